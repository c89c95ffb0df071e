//! A process that was stopped, copied and started again elsewhere or later (CRIU, say): its segments are copies that nobody else has.
//!
//! What it publishes there nobody reads, and what its peers published since it was stopped it never sees. The kernel's connection may go on
//! all the same, so bytes would be missing from the middle of a stream. Such a connection is reset before anything goes by the kernel
//! that belongs behind what was lost.
//!
//! The socket is another one to the kernel, with another cookie. Asking for that is a system call, so it is asked where a segment's copy
//! would do harm: before the kernel's bytes follow the ring's, and before a sleep that nobody would end. And not more often than a
//! process can have been stopped and started in between.

use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;

use super::Socket;
use crate::{kernel, spin};

/// Less than a process can be stopped, copied and started again in, in nanoseconds.
const NS_BETWEEN_LOOKS: u64 = 5_000_000;

impl Socket {
    /// Whether this process has only a copy of the segment; then the connection has just been reset. `now` is of `spin::clock`. The
    /// caller makes sure that `fd` stays the connection, and sees to the rest as with a peer that broke the rules.
    #[inline]
    pub(crate) fn is_restored_at(&self, fd: c_int, now: u64) -> bool {
        let age = now.wrapping_sub(self.known_at.load(Relaxed));
        age >= spin::cycles(NS_BETWEEN_LOOKS) && self.is_restored(fd, now)
    }

    /// The sender has looked so short a time ago that it was not stopped in between: what was known then is so still. While it sends
    /// without a pause it asks for nothing.
    #[inline]
    pub(crate) fn was_not_stopped(&self, now: u64) {
        let age = now.wrapping_sub(self.known_at.load(Relaxed));
        if age < spin::cycles(NS_BETWEEN_LOOKS) {
            self.known_at.store(now, Relaxed);
        }
    }

    /// As [`Socket::is_restored_at`], however long ago it was asked.
    #[cold]
    pub(crate) fn is_restored(&self, fd: c_int, now: u64) -> bool {
        let known = self.row().identity.cookie.load(Relaxed);
        let cookie = kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
        // A kernel that does not tell has not told when the connection was offered.
        let is_another = known != 0 && cookie.is_some_and(|cookie| cookie != known);
        if is_another {
            kernel::reset(fd);
        } else {
            self.known_at.store(now, Relaxed);
        }
        is_another
    }
}
