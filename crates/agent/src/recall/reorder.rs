//! Bytes that went by the kernel after those in the ring, because the ring was full or not open, lie in the reader's queue already.
//! They are taken out of it, and sent once more behind the ring's.
//!
//! Who asks waits and holds its lock, the other's lock is the agent's: nobody sends or takes anything meanwhile. For somebody who can do
//! without, it is done only where there is room beyond doubt for all of it; the sender's limits may be raised for that where nobody could
//! put anything back later. For a reader that leaves its ring for good, it is also tried where the reader's buffer can grow, as it does
//! when much is read at once: what was refused would be missing. Should the kernel not give or take them all the same, the connection is
//! reset.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use millrace_shm::board::flags;
use nix::sys::socket::{MsgFlags, getsockopt, recv, sockopt};

use super::patience::{WAIT, pause};
use super::room::Room;
use super::transfer::{STANDSTILL, take, transmit};
use super::{Refusal, Road, Unread};
use crate::sys;

/// No more than this for somebody who can do without, from ring and queue together: the smallest default of the kernel's buffers has room
/// for it.
const BYTES_MAX: u64 = 64 * 1024;
/// No more than this for a reader that leaves its ring for good: both buffers of the kernel, as large as they grow by themselves, and a
/// ring.
pub(super) const CARRIED_MAX: u64 = 16 << 20;
/// How long what is under way may take to arrive.
pub(super) const ARRIVAL: Duration = Duration::from_millis(5);
/// How long what a reader's small buffer had no memory for may take to come once more: the kernel's first time-out is of 200 ms.
const AGAIN_MAX: Duration = Duration::from_millis(500);

/// What lies in the reader's queue, or is under way to it.
#[derive(Debug, Clone, Copy)]
struct Queue {
    /// Bytes that were sent by the kernel since the connection began.
    sent: u64,
    bytes: u64,
    /// So many of them come before the ring's.
    first: usize,
    /// So many of them have been taken out before.
    drawn: usize,
}

impl Road<'_> {
    /// A call sleeps for room that nobody may give it: takes what lies in the reader's queue, so that the call goes on, until it has ended.
    /// Returns that.
    pub(super) fn draw<'a>(
        &self,
        (sender, reader): (BorrowedFd<'a>, BorrowedFd<'a>),
        room: &mut Room<'a>,
    ) -> Vec<u8> {
        let is_read = self.receiver.receive.sleepers.load(Acquire) != 0;
        if is_read || sys::is_writable(sender) || !room.grows(reader) {
            return Vec::new();
        }
        // A hostile sender says for ever that it is in a call, and sends a byte now and then.
        let until = Instant::now() + STANDSTILL;
        let sends = || self.sender.send.raw.load(Acquire) != 0 && Instant::now() < until;
        take(reader, CARRIED_MAX as usize, sends)
    }

    /// Sends again, in order, what lies in the reader's queue, of which the beginning has been `drawn`, and in the ring.
    pub(super) fn reorder<'a>(
        &self,
        unread: Unread,
        drawn: &[u8],
        (sender, reader): (BorrowedFd<'a>, BorrowedFd<'a>),
        (room, patience): (&mut Room<'a>, Duration),
    ) -> Result<(), Refusal> {
        let queue = self.queue(unread, drawn.len(), sender)?;
        let limits = (&mut *room, patience >= WAIT);
        self.is_movable(unread, queue, (sender, reader), limits)?;
        let ring = sys::copy_ring(
            self.segment,
            self.direction,
            unread.head,
            unread.window,
            unread.bytes,
        );
        let rest = take(reader, queue.bytes as usize - queue.drawn, || true);
        let taken = [drawn, &rest].concat();
        let (before, behind) = taken.split_at(queue.first.min(taken.len()));
        let is_all = taken.len() as u64 == queue.bytes
            // Somebody else who has the sender's socket may not have asked for its lock.
            && sys::sent(sender, self.sender_connected) == Some(queue.sent)
            && [before, &ring, behind]
                .iter()
                .all(|part| transmit(sender, part, STANDSTILL, room) == part.len());
        if !is_all {
            give_up(sender, Some(reader));
            return Err(Refusal::Full);
        }
        if unread.stopped_at.is_some() {
            let sent = queue.sent + queue.bytes + u64::from(unread.bytes);
            self.must_have_sent(sent, (sender, Some(reader)))?;
        }
        let receive = &self.receiver.receive;
        receive.kernel_position.store(queue.sent, Relaxed);
        receive.doubled_bytes.fetch_add(queue.bytes, Relaxed);
        let resent = &self.sender.send.resent_bytes;
        resent.fetch_add(queue.bytes, Relaxed);
        let before = Unread {
            position: queue.sent + queue.bytes,
            ..unread
        };
        self.advance(before, unread.bytes, (sender, Some(reader)))
    }

    fn queue(
        &self,
        unread: Unread,
        drawn: usize,
        sender: BorrowedFd<'_>,
    ) -> Result<Queue, Refusal> {
        let sent = sys::sent(sender, self.sender_connected).ok_or(Refusal::Overtaken)?;
        let taken = self.receiver.receive.kernel_position.load(Relaxed);
        let bytes = sent.checked_sub(taken).ok_or(Refusal::Corrupt)?;
        let first = unread.position.checked_sub(taken);
        let first = first.ok_or(Refusal::Corrupt)? as usize;
        if bytes < drawn as u64 {
            return Err(Refusal::Corrupt);
        }
        Ok(Queue {
            sent,
            bytes,
            first,
            drawn,
        })
    }

    /// Whether all can be taken out and sent again. Nothing of it has been touched yet, but for what a call slept for.
    fn is_movable<'a>(
        &self,
        unread: Unread,
        queue: Queue,
        (sender, reader): (BorrowedFd<'a>, BorrowedFd<'a>),
        (room, may_wait): (&mut Room<'a>, bool),
    ) -> Result<(), Refusal> {
        // Bytes that passed the library by may have come before those in the ring, or between them; but not when the ring was given up.
        let given_up = self.sender.identity.flags.load(Relaxed) & flags::SEND_PINNED != 0;
        let is_counted = queue.sent == self.noted(unread);
        let is_read = self.receiver.receive.sleepers.load(Acquire) != 0;
        let carries = is_counted && self.carries;
        let all = queue.bytes + u64::from(unread.bytes);
        let makes_room = is_counted && (self.carries || self.makes_room);
        let bytes_max = if makes_room { CARRIED_MAX } else { BYTES_MAX };
        if !(given_up || is_counted) {
            return Err(Refusal::Uncounted);
        }
        if is_read {
            return Err(Refusal::Read);
        }
        if all > BYTES_MAX {
            room.make();
        }
        if all > bytes_max || !(has_room(sender, reader, all) || carries && room.grows(reader)) {
            return Err(Refusal::Full);
        }
        let began = Instant::now();
        let mut patience = ARRIVAL;
        while sys::unread(reader).ok() != Some(queue.bytes - queue.drawn as u64) {
            if carries && only_waits(queue, (sender, reader)) {
                break;
            }
            if began.elapsed() > patience {
                let again = sys::time_to_send_again(sender).filter(|time| *time <= AGAIN_MAX);
                let Some(again) = again.filter(|_| may_wait && room.admit(reader)) else {
                    return Err(Refusal::UnderWay);
                };
                patience += again + ARRIVAL;
            }
            pause(began);
        }
        Ok(())
    }
}

/// Whether what is missing in the reader's queue has not left the sender's, because there is no room: it comes when that is taken. Nothing
/// was lost on the way, which the kernel would send again when it thinks fit.
fn only_waits(queue: Queue, (sender, reader): (BorrowedFd<'_>, BorrowedFd<'_>)) -> bool {
    let (Some(unsent), Ok(unread)) = (sys::unsent(sender), sys::unread(reader)) else {
        return false;
    };
    let drawn = queue.drawn as u64;
    unsent + unread + drawn == queue.bytes
        && sys::taken(reader) == Some(queue.sent - queue.bytes + drawn)
}

/// Resets a connection in whose queue something is missing, or may stand in a wrong place.
pub(super) fn give_up(sender: BorrowedFd<'_>, reader: Option<BorrowedFd<'_>>) {
    sys::reset(sender);
    if let Some(reader) = reader {
        throw_away(reader);
    }
}

/// Takes away what is in the queue of a connection that has just been reset: its program is to see the reset, and no byte before it.
pub(super) fn throw_away(reader: BorrowedFd<'_>) {
    let began = Instant::now();
    while !sys::is_over(reader) && began.elapsed() < ARRIVAL {
        pause(began);
    }
    if !sys::is_over(reader) {
        // The reset is behind what is under way still, which would be read first.
        return sys::reset(reader);
    }
    let mut bytes = [0; 4096];
    // Not until there is nothing: who reads there takes the error, too.
    while let Ok(count @ 1..) = sys::unread(reader) {
        let count = bytes
            .len()
            .min(usize::try_from(count).unwrap_or(usize::MAX));
        let part = &mut bytes[..count];
        if !matches!(
            recv(reader.as_raw_fd(), part, MsgFlags::MSG_DONTWAIT),
            Ok(1..)
        ) {
            break;
        }
    }
}

/// Whether so many bytes fit into either buffer. The kernel counts twice what a buffer holds; and a reader's may be larger than what the
/// kernel lets it be sent, but for a start.
fn has_room(sender: BorrowedFd<'_>, reader: BorrowedFd<'_>, bytes: u64) -> bool {
    let holds = |size: nix::Result<usize>| size.is_ok_and(|size| size as u64 / 4 >= bytes);
    holds(getsockopt(&sender, sockopt::SndBuf))
        || bytes <= BYTES_MAX && holds(getsockopt(&reader, sockopt::RcvBuf))
}
