//! A reader leaves its ring, and nobody is left who could have the kernel send what is in it: its sender was killed, or has closed with
//! more in the ring than the kernel had room for. The reader's queue is read to its end, and the connection made again (`renew`) with the
//! whole stream in it, in order. So is one of whose reset only the library knows, for whoever has it next.
//!
//! The sender's FIN stands in that queue behind all that went by the kernel, or will: what has no room there comes when there is some.
//! Where the kernel does not tell us that nobody has the sender's socket any more (another network namespace), there is room for the
//! moment, so that the FIN comes if it was sent. Nothing is taken before it is sure that there is one.
//!
//! Only for one that cannot go on to read the ring.
//!
//! Limits:
//! - CAP_NET_ADMIN over the connection's network namespace is needed;
//! - where a connection cannot be made again, the bytes are put behind the FIN, at which the stream stays: only while the reader's own
//!   direction is open; FIONREAD takes one byte off then, for the FIN; and the acknowledgement of the reader's own FIN comes from before
//!   these bytes, and is passed over: that end lingers;
//! - who dies in the middle leaves a part in the queue, or a socket that nobody can use: see `apart`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use millrace_shm::board::{Row, flags};
use millrace_shm::lock::{Held, OwnerLock};
use millrace_shm::segment::Segment;
use millrace_wire::{Address, Recall};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, setsockopt, sockopt};

use super::patience::pause;
use super::renew::Renewal;
use super::room::{Raised, tell_of_room};
use super::transfer::{STANDSTILL, TAKE_MAX};
use super::{Refusal, Unread, reorder, unread_in};
use crate::offers::ClientId;
use crate::pairings::PairedEnd;
use crate::proof::Process;
use crate::server::Server;
use crate::sys::{self, Buffer};

/// No more than this, from ring and queue together.
const BYTES_MAX: u64 = 32 << 20;
/// `TCP_RECV_QUEUE` (`include/uapi/linux/tcp.h`).
pub(super) const RECEIVE_QUEUE: i32 = 1;
/// `TCP_REPAIR_ON`, and `TCP_REPAIR_OFF_NO_WP`: without a probe of the other end.
const REPAIR_ON: i32 = 1;
const REPAIR_OFF: i32 = -1;

impl Server {
    /// The other end has gone: the segment is where the reader has it mapped.
    pub(super) fn put_back_alone(&self, client: ClientId, recall: &Recall) -> Result<(), Refusal> {
        let (connection_id, ends) = self.left_of(client, recall).ok_or(Refusal::Unpaired)?;
        let own = self.pairings.left((client, recall.offer_id));
        let index = match own {
            Some((_, index)) => index,
            None => self.end_shown(client, recall, ends)?,
        };
        let introduced = self.introduced.get(&connection_id);
        let introduced = introduced.ok_or(Refusal::Unpaired)?;
        let process = self.process_of(client)?;
        let memory = process.open_mapped(introduced.device, introduced.inode);
        let memory = memory.ok_or(Refusal::Unmapped)?;
        let segment = Segment::attach(memory.as_fd(), self.segments.ring_bytes());
        let left = Left {
            connection_id,
            ends,
            segment: &segment.map_err(|_| Refusal::Unmapped)?,
            direction: 1 - index,
        };
        self.put_back(&left, client, recall.fd)
    }

    /// Nobody could send what the reader has not read: it is put into the reader's own queue.
    pub(super) fn put_back(
        &self,
        left: &Left<'_>,
        client: ClientId,
        number: i32,
    ) -> Result<(), Refusal> {
        let [end, sender] = [1 - left.direction, left.direction].map(|index| &left.ends[index]);
        let bereaved = Bereaved {
            receiver: self.row_of(end, left.connection_id)?,
            segment: left.segment,
            direction: left.direction,
            local: &end.offer.local,
            may_await_room: !self.prover.is_in_reach(&sender.offer)
                && self.may_have_closed(sender, left.connection_id),
        };
        if bereaved.receiver.identity.flags.load(Relaxed) & flags::LEAVES == 0 {
            return Err(Refusal::Stays);
        }
        let reader = self
            .borrow_socket(end, bereaved.receiver)
            .or_else(|_| self.borrow_number(end, client, number))?;
        // Who asks holds it, unless it waits for us no more: then nobody may read meanwhile, either.
        let lock = &bereaved.receiver.receive.lock;
        let is_ours = lock.try_lock_for(OwnerLock::AGENT, Duration::ZERO);
        let is_orphaned = || self.prover.is_orphaned(&sender.offer);
        let outcome = bereaved.put_back(reader.as_fd(), is_orphaned);
        if is_ours {
            lock.unlock(Held::Owned);
        }
        outcome
    }

    /// Whether an end may have been closed, as far as its program tells: it has ended, or says nothing of that connection any more.
    fn may_have_closed(&self, end: &PairedEnd, connection_id: u64) -> bool {
        let process = self.process_of(end.client);
        !process.is_ok_and(Process::is_unchanged) || self.row_of(end, connection_id).is_err()
    }
}

/// A connection, and the direction in which nobody sends any more.
pub(super) struct Left<'a> {
    pub(super) connection_id: u64,
    pub(super) ends: &'a [PairedEnd; 2],
    pub(super) segment: &'a Segment,
    pub(super) direction: usize,
}

/// What is left of one direction of a connection: its reader, who holds the lock of its half.
pub(super) struct Bereaved<'a> {
    pub(super) receiver: &'a Row,
    pub(super) segment: &'a Segment,
    pub(super) direction: usize,
    /// The address of the reader's end.
    pub(super) local: &'a Address,
    /// The sender may have closed, and its FIN wait for room in the reader's queue, of which nobody tells us.
    pub(super) may_await_room: bool,
}

impl Bereaved<'_> {
    /// Puts what lies in the ring into the queue of `reader`. `is_orphaned`: nobody has the sender's socket.
    pub(super) fn put_back(
        &self,
        reader: BorrowedFd<'_>,
        is_orphaned: impl Fn() -> bool,
    ) -> Result<(), Refusal> {
        let gate = self.segment.words(self.direction).gate.load();
        if gate.open {
            return Err(Refusal::Open);
        }
        let unread = unread_in(self.segment, self.direction, self.receiver, gate)?;
        if unread.bytes == 0 && !owes_error(self.receiver) {
            return Ok(());
        }
        let first = self.bytes_before(unread, reader, is_orphaned)?;
        if sys::is_over(reader) && sys::unread(reader).is_ok_and(|queued| queued < first as u64) {
            // It was reset, and its queue thrown away: the kernel has that to tell, unless somebody has taken the error.
            if kept_error(self.receiver).is_some() {
                abandon(reader, self.local);
            }
            return Err(Refusal::Overtaken);
        }
        // Whether we may: nothing has been touched yet.
        Repair::begin(reader).map(drop).map_err(Refusal::Repair)?;
        let renewal = match Renewal::new(reader, kept_error(self.receiver)) {
            Ok(renewal) => Some(renewal),
            Err(error) if sys::is_over(reader) => return Err(Refusal::Repair(error)),
            Err(_) => None,
        };
        let Unread {
            head,
            window,
            bytes,
            ..
        } = unread;
        let ring = sys::copy_ring(self.segment, self.direction, head, window, bytes);
        if let Err(refusal) = refill(reader, renewal.as_ref(), first, &ring) {
            // The queue has been touched, and perhaps the error taken.
            abandon(reader, self.local);
            return Err(refusal);
        }
        if sys::is_over(reader) {
            self.receiver.identity.error.store(0, Release);
        }
        let next = head.wrapping_add(bytes);
        // AcqRel: as in the reader's commit; the copy comes before the head moves.
        let moved = self
            .receiver
            .receive
            .head
            .compare_exchange(head, next, AcqRel, Acquire);
        if moved.is_err() {
            abandon(reader, self.local);
        }
        moved.map(drop).map_err(|_| Refusal::Corrupt)
    }

    /// How many bytes of the reader's queue come before the ring's, once the sender's FIN is in it, or on its way.
    fn bytes_before(
        &self,
        unread: Unread,
        reader: BorrowedFd<'_>,
        is_orphaned: impl Fn() -> bool,
    ) -> Result<usize, Refusal> {
        let has_ended = || sys::is_closed_by_peer_alone(reader) || sys::is_over(reader);
        if !self.await_end(reader, || has_ended() || is_orphaned()) {
            return Err(Refusal::Connected);
        }
        let receive = &self.receiver.receive;
        let taken = receive.kernel_position.load(Relaxed);
        let before = unread.position.checked_sub(taken);
        // The position is the clients' word, and may be any number.
        let all = before.and_then(|before| before.checked_add(unread.bytes.into()));
        let before = before.filter(|_| all.is_some_and(|all| all <= BYTES_MAX));
        if receive.sleepers.load(Acquire) != 0 {
            return Err(Refusal::Read);
        }
        if unread.bytes == 0 {
            return Ok(0);
        }
        before
            .map(|before| before as usize)
            .ok_or(Refusal::Overtaken)
    }

    /// Waits a moment for the end of the stream, or, where that may need room, for as long as more comes.
    fn await_end(&self, reader: BorrowedFd<'_>, has_ended: impl Fn() -> bool) -> bool {
        let _room = self
            .may_await_room
            .then(|| Raised::by(reader, Buffer::Receive, BYTES_MAX as u32))
            .flatten();
        let began = Instant::now();
        let (mut since, mut queued) = (began, 0);
        while !has_ended() {
            if since.elapsed() > reorder::ARRIVAL || began.elapsed() > STANDSTILL {
                return false;
            }
            pause(since);
            if self.may_await_room {
                let now_queued = sys::unread(reader).unwrap_or(0);
                // Nobody waits for room in an empty queue, and a look there would take the error of a reset.
                if now_queued > 0 {
                    tell_of_room(reader);
                }
                if now_queued > queued {
                    (since, queued) = (Instant::now(), now_queued);
                }
            }
        }
        true
    }
}

/// Whether there is an error that nobody has told, and that whoever reads on would not hear of from the kernel.
pub(super) fn owes_error(receiver: &Row) -> bool {
    let was_killed = receiver.identity.flags.load(Relaxed) & flags::PEER_KILLED != 0;
    was_killed || kept_error(receiver).is_some()
}

fn kept_error(receiver: &Row) -> Option<Errno> {
    let error = receiver.identity.error.load(Acquire).cast_signed();
    (error != 0).then(|| Errno::from_raw(error))
}

/// A socket whose queues may be filled, until this is dropped. The kernel lets such a socket's address be used again by anybody, and
/// by nobody afterwards.
pub(super) struct Repair<'a> {
    socket: BorrowedFd<'a>,
    reuses: Option<bool>,
}

impl Repair<'_> {
    pub(super) fn begin(socket: BorrowedFd<'_>) -> io::Result<Repair<'_>> {
        let reuses = getsockopt(&socket, sockopt::ReuseAddr).ok();
        sys::set_tcp_option(socket, libc::TCP_REPAIR, REPAIR_ON)?;
        Ok(Repair { socket, reuses })
    }
}

/// Resets a connection on which such work was cut off, or failed; `local`: the address that this end had.
pub(super) fn abandon(socket: BorrowedFd<'_>, local: &Address) {
    // Without the right to it nobody can have begun.
    let _ = sys::set_tcp_option(socket, libc::TCP_REPAIR, REPAIR_OFF);
    // One that is over has an end to tell of again.
    let tells = || Renewal::of_reset(socket, local)?.make(0, || Ok(()));
    if !sys::is_over(socket) || tells().is_err() {
        sys::reset(socket);
    }
}

impl Drop for Repair<'_> {
    fn drop(&mut self) {
        let _ = sys::set_tcp_option(self.socket, libc::TCP_REPAIR, REPAIR_OFF);
        if let Some(reuses) = self.reuses {
            let _ = setsockopt(&self.socket, sockopt::ReuseAddr, &reuses);
        }
    }
}

/// Puts what was in the ring behind the `first` bytes of the queue.
fn refill(
    reader: BorrowedFd<'_>,
    renewal: Option<&Renewal<'_>>,
    first: usize,
    ring: &[u8],
) -> Result<(), Refusal> {
    let queue = drain(reader).ok_or(Refusal::Connected)?;
    // Less than what comes before the ring's: somebody else has read.
    let (before, behind) = queue.split_at_checked(first).ok_or(Refusal::Overtaken)?;
    let stream = [before, ring, behind].concat();
    // The kernel counts memory, not bytes.
    let _room = Raised::by(reader, Buffer::Receive, 2 * stream.len() as u32);
    let filled = match renewal {
        Some(renewal) => renewal.make(stream.len(), || push(reader, &stream)),
        None => fill_behind_end(reader, &stream),
    };
    filled.map_err(Refusal::Repair)
}

/// Takes what is queued, and what comes when there is room, up to the end of the stream.
fn drain(reader: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut queue = Vec::new();
    let mut part = vec![0; 64 << 10];
    let began = Instant::now();
    let mut since = began;
    while queue.len() as u64 <= BYTES_MAX && began.elapsed() < TAKE_MAX {
        match recv(reader.as_raw_fd(), &mut part, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Some(queue),
            Ok(count) => {
                queue.extend_from_slice(&part[..count]);
                since = Instant::now();
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if since.elapsed() < STANDSTILL => pause(since),
            Err(_) => return None,
        }
    }
    None
}

/// Puts a stream into an empty queue at whose end it is.
fn fill_behind_end(reader: BorrowedFd<'_>, stream: &[u8]) -> io::Result<()> {
    // The sender's FIN is acknowledged before the numbers move: that acknowledgement has to fit.
    sys::set_tcp_option(reader, libc::TCP_QUICKACK, 1)?;
    let _repair = Repair::begin(reader)?;
    sys::set_tcp_option(reader, libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE)?;
    push(reader, stream)
}

/// All of it, or it fails.
fn push(reader: BorrowedFd<'_>, stream: &[u8]) -> io::Result<()> {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let mut pushed = 0;
    while pushed < stream.len() {
        match send(reader.as_raw_fd(), &stream[pushed..], flags) {
            Ok(count) => pushed += count,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
