//! Room in a sender's kernel socket for more than it takes: for the moment of a recall its limits are higher.
//!
//! A reader that leaves its ring has up to a ring of bytes to carry over more than the kernel had room for, and perhaps what a call has not
//! sent yet that sleeps for room. The limits are nothing but numbers: only what there is takes memory, and the sender sleeps afterwards
//! until what is too much has gone. To raise the buffer's takes the right to administer the connection's network, and Linux 5.16, before
//! which nobody could take back what that means to the kernel: that the program chose it.

use std::os::fd::BorrowedFd;

use super::reorder::CARRIED_MAX;
use crate::sys::{self, Buffer};

/// The limits of what a socket takes; what they were, they are again when this is dropped.
#[derive(Debug)]
pub(super) struct Room<'a> {
    socket: BorrowedFd<'a>,
    may_raise: bool,
    unsent_limit: Option<u32>,
    buffer: Option<Raised<'a>>,
}

impl<'a> Room<'a> {
    /// The limits as they are.
    pub(super) fn of(socket: BorrowedFd<'a>, may_raise: bool) -> Room<'a> {
        Room {
            socket,
            may_raise,
            unsent_limit: None,
            buffer: None,
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

/// A socket's buffer, which is larger until this is dropped.
#[derive(Debug)]
pub(super) struct Raised<'a> {
    socket: BorrowedFd<'a>,
    which: Buffer,
    before: u32,
    now: u32,
    locks: u32,
}

impl<'a> Raised<'a> {
    /// Makes the buffer larger by `more` bytes, twice.
    pub(super) fn by(socket: BorrowedFd<'a>, which: Buffer, more: u32) -> Option<Raised<'a>> {
        let locks = sys::buffer_locks(socket).ok()?;
        let before = sys::buffer(socket, which).ok()?;
        sys::force_buffer(socket, which, (before / 2).saturating_add(more)).ok()?;
        let now = sys::buffer(socket, which).ok()?;
        Some(Raised {
            socket,
            which,
            before,
            now,
            locks,
        })
    }
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        // Else the program has chosen another one meanwhile.
        if sys::buffer(self.socket, self.which).ok() == Some(self.now) {
            let _ = sys::force_buffer(self.socket, self.which, self.before / 2);
            let _ = sys::set_buffer_locks(self.socket, self.locks);
        }
    }
}
