//! Room in a sender's kernel socket for more than it takes: for the moment of a recall its limits are higher.
//!
//! A reader that leaves its ring has up to a ring of bytes to carry over more than the kernel had room for, and perhaps what a call has not
//! sent yet that sleeps for room. The limits are nothing but numbers: only what there is takes memory, and the sender sleeps afterwards
//! until what is too much has gone. To raise the buffer's takes the right to administer the connection's network, and Linux 5.16, before
//! which nobody could take back what that means to the kernel: that the program chose it.

use std::os::fd::BorrowedFd;

use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use super::reorder::CARRIED_MAX;
use crate::sys;

/// The limits of what a socket takes; what they were, they are again when this is dropped.
#[derive(Debug)]
pub(super) struct Room<'a> {
    socket: BorrowedFd<'a>,
    may_raise: bool,
    unsent_limit: Option<u32>,
    buffer: Option<Buffer>,
}

#[derive(Debug)]
struct Buffer {
    before: usize,
    now: usize,
    locks: u32,
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
        self.buffer = self.enlarge_buffer();
        true
    }

    fn raise_unsent_limit(&self) -> Option<u32> {
        let before = sys::unsent_limit(self.socket).ok()?;
        sys::set_unsent_limit(self.socket, u32::MAX).ok()?;
        Some(before)
    }

    fn enlarge_buffer(&self) -> Option<Buffer> {
        let before = getsockopt(&self.socket, sockopt::SndBuf).ok()?;
        let locks = sys::buffer_locks(self.socket).ok()?;
        // The kernel doubles what it is told, and counts memory, not bytes: less than twice as much.
        let bytes = before / 2 + 2 * CARRIED_MAX as usize;
        setsockopt(&self.socket, sockopt::SndBufForce, &bytes).ok()?;
        let now = getsockopt(&self.socket, sockopt::SndBuf).ok()?;
        Some(Buffer { before, now, locks })
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.unsent_limit.take()
            && sys::unsent_limit(self.socket).ok() == Some(u32::MAX)
        {
            let _ = sys::set_unsent_limit(self.socket, before);
        }
        if let Some(Buffer { before, now, locks }) = self.buffer.take()
            // Else the program has chosen another one meanwhile.
            && getsockopt(&self.socket, sockopt::SndBuf) == Ok(now)
        {
            let _ = setsockopt(&self.socket, sockopt::SndBufForce, &(before / 2));
            let _ = sys::set_buffer_locks(self.socket, locks);
        }
    }
}
