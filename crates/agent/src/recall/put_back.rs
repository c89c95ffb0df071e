//! A reader leaves its ring, and nobody is left who could have the kernel send what is in it: its sender was killed. The bytes are put
//! into the reader's own queue, in the way in which checkpoint and restore fill one (TCP_REPAIR, `net/ipv4/tcp.c`).
//!
//! The sender's FIN stands in that queue behind all that went by the kernel, so nothing more can come. The queue is read to its end, and
//! the whole stream put back in order. A stream whose end was read stays at its end, behind the bytes that are put back.
//!
//! Limits:
//! - CAP_NET_ADMIN over the connection's network namespace is needed;
//! - the kernel does so only while the reader's own direction is open;
//! - it takes the FIN off what FIONREAD says, and did so before: it says one byte less than there are;
//! - an agent that dies in the middle leaves a part in the queue; the reader gets no answer then, and resets the connection.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::time::Instant;

use millrace_shm::board::Row;
use millrace_shm::segment::Segment;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, setsockopt, sockopt};

use super::{Refusal, Unread, reorder, unread_in};
use crate::offers::ClientId;
use crate::pairings::Pairing;
use crate::server::Server;
use crate::sys;

/// No more than this, from ring and queue together.
const BYTES_MAX: u64 = 32 << 20;
/// `TCP_RECV_QUEUE` (`include/uapi/linux/tcp.h`).
const RECEIVE_QUEUE: i32 = 1;
/// `TCP_REPAIR_ON`, and `TCP_REPAIR_OFF_NO_WP`: without a probe of the other end.
const REPAIR_ON: i32 = 1;
const REPAIR_OFF: i32 = -1;

impl Server {
    /// Nobody could send what the reader has not read: it is put into the reader's own queue.
    pub(super) fn put_back(
        &self,
        pairing: &Pairing,
        direction: usize,
        client: ClientId,
        number: i32,
    ) -> Result<(), Refusal> {
        let end = &pairing.ends[1 - direction];
        let bereaved = Bereaved {
            receiver: self.row_of(end, pairing.connection_id)?,
            segment: &pairing.segment,
            direction,
        };
        let reader = self
            .borrow_socket(end, bereaved.receiver)
            .or_else(|_| self.borrow_number(end, client, number))?;
        bereaved.put_back(reader.as_fd())
    }
}

/// What is left of one direction of a connection: its reader, who holds the lock of its half.
pub(super) struct Bereaved<'a> {
    pub(super) receiver: &'a Row,
    pub(super) segment: &'a Segment,
    pub(super) direction: usize,
}

impl Bereaved<'_> {
    /// Puts what lies in the ring into the queue of `reader`.
    pub(super) fn put_back(&self, reader: BorrowedFd<'_>) -> Result<(), Refusal> {
        let gate = self.segment.words(self.direction).gate.load();
        if gate.open {
            return Err(Refusal::Open);
        }
        let unread = unread_in(self.segment, self.direction, self.receiver, gate)?;
        if unread.bytes == 0 {
            return Ok(());
        }
        let first = self.bytes_before(unread, reader)?;
        // Whether we may: nothing has been touched yet.
        Repair::begin(reader).map(drop).map_err(Refusal::Repair)?;
        let Unread {
            head,
            window,
            bytes,
            ..
        } = unread;
        let ring = sys::copy_ring(self.segment, self.direction, head, window, bytes);
        let queue = drain(reader).ok_or(Refusal::Connected)?;
        let (before, behind) = queue.split_at(first.min(queue.len()));
        let stream = [before, &ring, behind].concat();
        if first > queue.len() || !fill(reader, &stream).map_err(Refusal::Repair)? {
            return Err(Refusal::Full);
        }
        let next = head.wrapping_add(bytes);
        // AcqRel: as in the reader's commit; the copy comes before the head moves.
        let moved = self
            .receiver
            .receive
            .head
            .compare_exchange(head, next, AcqRel, Acquire);
        moved.map(drop).map_err(|_| Refusal::Corrupt)
    }

    /// How many bytes of the reader's queue come before the ring's, once the sender's FIN is in it.
    fn bytes_before(&self, unread: Unread, reader: BorrowedFd<'_>) -> Result<usize, Refusal> {
        let deadline = Instant::now() + reorder::ARRIVAL;
        while !sys::is_closed_by_peer_alone(reader) {
            if Instant::now() > deadline {
                return Err(Refusal::Connected);
            }
            std::thread::yield_now();
        }
        let receive = &self.receiver.receive;
        let taken = receive.kernel_position.load(Relaxed);
        let queued = sys::unread(reader).map_err(Refusal::Descriptor)?;
        let before = unread.position.checked_sub(taken);
        let before = before.filter(|before| *before <= queued);
        if receive.sleepers.load(Acquire) != 0 || queued + u64::from(unread.bytes) > BYTES_MAX {
            return Err(Refusal::Overtaken);
        }
        before
            .map(|before| before as usize)
            .ok_or(Refusal::Overtaken)
    }
}

/// A socket whose queues may be filled, until this is dropped. The kernel lets such a socket's address be used again by anybody, and
/// by nobody afterwards.
struct Repair<'a> {
    socket: BorrowedFd<'a>,
    reuses: Option<bool>,
}

impl Repair<'_> {
    fn begin(socket: BorrowedFd<'_>) -> io::Result<Repair<'_>> {
        let reuses = getsockopt(&socket, sockopt::ReuseAddr).ok();
        sys::set_tcp_option(socket, libc::TCP_REPAIR, REPAIR_ON)?;
        Ok(Repair { socket, reuses })
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

/// Takes what is queued, up to the end of the stream.
fn drain(reader: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut queue = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        match recv(reader.as_raw_fd(), &mut part, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => return Some(queue),
            Ok(count) => queue.extend_from_slice(&part[..count]),
            Err(Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

/// Puts a stream into an empty queue at whose end it is. False: not all of it.
fn fill(reader: BorrowedFd<'_>, stream: &[u8]) -> io::Result<bool> {
    // The sender's FIN is acknowledged before the numbers move: that acknowledgement has to fit.
    sys::set_tcp_option(reader, libc::TCP_QUICKACK, 1)?;
    let size = getsockopt(&reader, sockopt::RcvBuf)?;
    let _ = setsockopt(&reader, sockopt::RcvBufForce, &size.max(2 * stream.len()));
    let repair = Repair::begin(reader)?;
    sys::set_tcp_option(reader, libc::TCP_REPAIR_QUEUE, RECEIVE_QUEUE)?;
    let pushed = push(reader, stream);
    drop(repair);
    // The kernel doubles what it is told.
    let _ = setsockopt(&reader, sockopt::RcvBufForce, &(size / 2));
    Ok(pushed == stream.len())
}

fn push(reader: BorrowedFd<'_>, stream: &[u8]) -> usize {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let mut pushed = 0;
    while pushed < stream.len() {
        match send(reader.as_raw_fd(), &stream[pushed..], flags) {
            Ok(count) => pushed += count,
            Err(Errno::EINTR) => {}
            Err(_) => break,
        }
    }
    pushed
}
