//! Bytes that went by the kernel after those in the ring, because the ring was full or not open, lie in the reader's queue already.
//! They are taken out of it, and sent once more behind the ring's.
//!
//! Who asks waits and holds its lock, the other's lock is the agent's: nobody sends or takes anything meanwhile. It is done only with
//! few bytes, for which there is room beyond doubt. Should the kernel not take them all the same, the connection ends.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use millrace_shm::board::flags;
use nix::sys::socket::{MsgFlags, Shutdown, getsockopt, recv, shutdown, sockopt};

use super::{Refusal, Road, Unread, transmit};
use crate::sys;

/// No more than this, from ring and queue together: the smallest default of the kernel's buffers has room for it.
const BYTES_MAX: u64 = 64 * 1024;
/// How long what is under way may take to arrive.
pub(super) const ARRIVAL: Duration = Duration::from_millis(5);

impl Road<'_> {
    /// Sends again, in order, what lies in the reader's queue and in the ring.
    pub(super) fn reorder(
        &self,
        unread: Unread,
        sender: BorrowedFd<'_>,
        reader: BorrowedFd<'_>,
    ) -> Result<(), Refusal> {
        let (send, receive) = (&self.sender.send, &self.receiver.receive);
        let sent = sys::sent(sender, self.sender_connected).ok_or(Refusal::Overtaken)?;
        let taken = receive.kernel_position.load(Relaxed);
        let queued = sent.checked_sub(taken).ok_or(Refusal::Corrupt)?;
        let first = unread.position.checked_sub(taken);
        let first = first.ok_or(Refusal::Corrupt)? as usize;
        let all = queued + u64::from(unread.bytes);
        // Bytes that passed the library by may have come before those in the ring, or between them; but not when the ring was given up.
        let given_up = self.sender.identity.flags.load(Relaxed) & flags::SEND_PINNED != 0;
        let is_sure = given_up || sent == send.kernel_position.load(Relaxed);
        let is_read = receive.sleepers.load(Acquire) != 0;
        if !is_sure || is_read || all > BYTES_MAX || !has_room(sender, reader, all) {
            return Err(Refusal::Overtaken);
        }
        let deadline = Instant::now() + ARRIVAL;
        while sys::unread(reader).ok() != Some(queued) {
            if Instant::now() > deadline {
                return Err(Refusal::Overtaken);
            }
            std::thread::yield_now();
        }
        let ring = sys::copy_ring(
            self.segment,
            self.direction,
            unread.head,
            unread.window,
            unread.bytes,
        );
        let mut queue = vec![0; queued as usize];
        let count = recv(reader.as_raw_fd(), &mut queue, MsgFlags::MSG_DONTWAIT).unwrap_or(0);
        queue.truncate(count);
        let stream = [
            &queue[..first.min(count)],
            &ring,
            &queue[first.min(count)..],
        ]
        .concat();
        if count as u64 != queued || transmit(sender, &stream, ARRIVAL) != stream.len() {
            let _ = shutdown(sender.as_raw_fd(), Shutdown::Both);
            return Err(Refusal::Full);
        }
        receive.kernel_position.store(sent, Relaxed);
        let before = Unread {
            position: sent + queued,
            ..unread
        };
        self.advance(before, unread.bytes)
    }
}

/// Whether so many bytes fit into either buffer; the kernel counts twice what a buffer holds.
fn has_room(sender: BorrowedFd<'_>, reader: BorrowedFd<'_>, bytes: u64) -> bool {
    let sizes = [
        getsockopt(&sender, sockopt::SndBuf),
        getsockopt(&reader, sockopt::RcvBuf),
    ];
    sizes
        .iter()
        .any(|size| matches!(size, Ok(size) if *size as u64 / 4 >= bytes))
}
