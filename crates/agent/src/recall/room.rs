//! Room in the kernel's sockets for more than they take: for the moment of a recall the sender's limits are higher, and the reader's buffer
//! grows.
//!
//! A reader that leaves its ring has up to a ring of bytes to carry over more than the kernel had room for, and perhaps what a call has not
//! sent yet that sleeps for room. The limits are nothing but numbers: only what there is takes memory, and the sender sleeps afterwards
//! until what is too much has gone. To raise the buffer's at will takes the right to administer the connection's network; without it, it is
//! raised to what any program may choose. Both take Linux 5.16, before which nobody could take back what that means to the kernel: that the
//! program chose it.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::socket::{MsgFlags, recv};

use super::reorder::CARRIED_MAX;
use crate::sys::{self, Buffer};

/// The limits of what a socket takes; what they were, they are again when this is dropped.
#[derive(Debug)]
pub(super) struct Room<'a> {
    socket: BorrowedFd<'a>,
    may_raise: bool,
    unsent_limit: Option<u32>,
    buffer: Option<Raised<'a>>,
    /// Before `reader`, which knows what the size was: this one is taken back first.
    arrival: Option<Raised<'a>>,
    reader: Option<Growing<'a>>,
}

impl<'a> Room<'a> {
    /// The limits as they are.
    pub(super) fn of(socket: BorrowedFd<'a>, may_raise: bool) -> Room<'a> {
        Room {
            socket,
            may_raise,
            unsent_limit: None,
            buffer: None,
            arrival: None,
            reader: None,
        }
    }

    /// Raises the limits, once. True: there may be room now where there was none.
    pub(super) fn make(&mut self) -> bool {
        if !self.may_raise {
            return false;
        }
        self.may_raise = false;
        self.unsent_limit = self.raise_unsent_limit();
        // Less than twice as much: the kernel counts memory, not bytes.
        let more = 2 * CARRIED_MAX as u32;
        self.buffer = Raised::by(self.socket, Buffer::Send, more);
        true
    }

    /// Whether what there is room for now is no matter of the buffer.
    pub(super) fn is_ample(&self) -> bool {
        self.buffer.as_ref().is_some_and(|raised| raised.is_forced)
    }

    /// Has the reader's buffer grow when much is read from it. False: it does not.
    pub(super) fn grows(&mut self, reader: BorrowedFd<'a>) -> bool {
        if self.reader.is_none() {
            self.reader = Growing::allow(reader);
        }
        self.reader.is_some()
    }

    /// Has the reader's queue take what it has thrown away because there was no memory for it, when the sender's kernel sends that again,
    /// once. False: that cannot be had.
    pub(super) fn admit(&mut self, reader: BorrowedFd<'a>) -> bool {
        if self.arrival.is_some() {
            return false;
        }
        self.arrival = Raised::by(reader, Buffer::Receive, 2 * CARRIED_MAX as u32);
        tell_of_room(reader);
        self.arrival.is_some()
    }

    fn raise_unsent_limit(&self) -> Option<u32> {
        let before = sys::unsent_limit(self.socket).ok()?;
        sys::set_unsent_limit(self.socket, u32::MAX).ok()?;
        Some(before)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.unsent_limit.take()
            && sys::unsent_limit(self.socket).ok() == Some(u32::MAX)
        {
            let _ = sys::set_unsent_limit(self.socket, before);
        }
    }
}

/// Has the kernel tell the sender of room in the reader's queue, as it does when somebody has looked there.
pub(super) fn tell_of_room(reader: BorrowedFd<'_>) {
    // Not where a look changes what the program's own next look finds.
    if !sys::peeks_on(reader) {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let _ = recv(reader.as_raw_fd(), &mut [0], flags);
    }
}

/// A socket's buffer, which is larger until this is dropped.
#[derive(Debug)]
pub(super) struct Raised<'a> {
    socket: BorrowedFd<'a>,
    which: Buffer,
    before: u32,
    now: u32,
    locks: u32,
    is_forced: bool,
}

impl<'a> Raised<'a> {
    /// Makes the buffer larger by `more` bytes, twice; or by less, where more is not allowed.
    pub(super) fn by(socket: BorrowedFd<'a>, which: Buffer, more: u32) -> Option<Raised<'a>> {
        let locks = sys::buffer_locks(socket).ok()?;
        let before = sys::buffer(socket, which).ok()?;
        let wanted = (before / 2).saturating_add(more);
        let is_forced = sys::force_buffer(socket, which, wanted).is_ok();
        if !is_forced {
            // What the kernel has made larger by itself than anybody may choose could not be put back.
            let may_choose = sys::buffer_limit(which).filter(|limit| before / 2 < *limit)?;
            sys::set_buffer(socket, which, wanted.min(may_choose)).ok()?;
        }
        let now = sys::buffer(socket, which).ok()?;
        Some(Raised {
            socket,
            which,
            before,
            now,
            locks,
            is_forced,
        })
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        // Else the program has chosen another one meanwhile.
        if sys::buffer(self.socket, self.which).ok() == Some(self.now) {
            let set = if self.is_forced {
                sys::force_buffer
            } else {
                sys::set_buffer
            };
            let _ = set(self.socket, self.which, self.before / 2);
            let _ = sys::set_buffer_locks(self.socket, self.locks);
        }
    }
}

/// A reader's buffer, which the kernel makes larger when much is read from it, also where a program has chosen its size. That it has again
/// when this is dropped.
#[derive(Debug)]
struct Growing<'a> {
    socket: BorrowedFd<'a>,
    chosen: Option<u32>,
}

impl<'a> Growing<'a> {
    fn allow(socket: BorrowedFd<'a>) -> Option<Growing<'a>> {
        let locks = sys::buffer_locks(socket).ok()?;
        if locks & sys::RECEIVE_BUFFER_LOCK == 0 {
            let chosen = None;
            return Some(Growing { socket, chosen });
        }
        let before = sys::buffer(socket, Buffer::Receive).ok()?;
        if before / 2 > sys::buffer_limit(Buffer::Receive)? {
            return None;
        }
        sys::set_buffer_locks(socket, locks & !sys::RECEIVE_BUFFER_LOCK).ok()?;
        let chosen = Some(before);
        Some(Growing { socket, chosen })
    }
}

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        let is_free = |locks: u32| locks & sys::RECEIVE_BUFFER_LOCK == 0;
        // Else the program has chosen another one meanwhile.
        if let Some(before) = self.chosen
            && sys::buffer_locks(self.socket).is_ok_and(is_free)
        {
            let _ = sys::set_buffer(self.socket, Buffer::Receive, before / 2);
        }
    }
}
