//! A process that was stopped, copied and started again elsewhere or later (CRIU, say): its segments are copies that nobody else has.
//!
//! What it publishes there nobody reads, and what its peers published since it was stopped it never sees. The kernel's connection may go on
//! all the same, so bytes would be missing from the middle of a stream. Such a connection is reset before anything goes by the kernel
//! that belongs behind what was lost.
//!
//! The socket is another one to the kernel, with another cookie, and the same addresses. One that has other addresses is another
//! connection, which got the number when ours was closed past this library. Asking for the cookie is a system call, so it is asked where
//! a segment's copy would do harm: before the kernel's bytes follow the ring's, and before a sleep that nobody would end. And not more
//! often than a process can have been stopped and started in between: all its connections are copied with it, so what one answers holds
//! for all that are of the same *life*.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use libc::c_int;

use super::Socket;
use crate::{client, kernel, spin};

/// Less than a process can be stopped, copied and started again in, in nanoseconds.
const NS_OF_RESTORE: u64 = 5_000_000;
/// What is known is noted not more often than this, in nanoseconds: all threads read it.
const NS_BETWEEN_NOTES: u64 = 1_000_000;

/// A time in which this process was not restored: connections that were asked in the course of it are of one life. Zero is none.
static LIFE: AtomicU64 = AtomicU64::new(0);
/// When, of `spin::clock`, it was known to go on.
static LIVED_AT: AtomicU64 = AtomicU64::new(0);

/// Whether the life that is on goes on until now: nobody can have been restored since it was known to.
#[inline]
fn goes_on(now: u64) -> bool {
    // Acquire: pairs with the Release in `begin_or_join`. Who finds a time then finds its life, or a later one.
    now.wrapping_sub(LIVED_AT.load(Acquire)) < spin::cycles(NS_OF_RESTORE)
}

#[inline]
fn note_alive(now: u64) {
    if now.wrapping_sub(LIVED_AT.load(Relaxed)) >= spin::cycles(NS_BETWEEN_NOTES) {
        LIVED_AT.store(now, Release);
    }
}

/// The life that a connection is of which was found to be no copy at `now`, and before that in the life `before`. Zero: that is not known.
fn begin_or_join(before: u64, now: u64) -> u64 {
    // Acquire: as in `goes_on`, which comes second: what is looked at here may have been stopped and started again since `now`.
    let life = LIFE.load(Acquire);
    if life != 0 && (life == before || goes_on(now)) {
        note_alive(now);
        return life;
    }
    // Nobody knows what was since the last answer, which was another's. AcqRel: a life comes first, and then its time. Relaxed on failure:
    // somebody else has begun one, maybe after this process was started again.
    match LIFE.compare_exchange(life, life + 1, AcqRel, Relaxed) {
        Ok(_) => {
            LIVED_AT.store(now, Release);
            life + 1
        }
        Err(_) => 0,
    }
}

impl Socket {
    /// Whether this process has only a copy of the segment; then the connection has just been reset. `now` is of `spin::clock`. The
    /// caller makes sure that `fd` stays the connection, and sees to the rest as with a peer that broke the rules.
    #[inline]
    pub(crate) fn is_restored_at(&self, fd: c_int, now: u64) -> bool {
        !self.is_alive(now) && self.is_restored(fd, now)
    }

    /// The sender has looked so short a time ago that it was not stopped in between: what was known then is so still. While it sends
    /// without a pause it asks for nothing.
    #[inline]
    pub(crate) fn was_not_stopped(&self, now: u64) {
        if self.is_alive(now) {
            note_alive(now);
        }
    }

    #[inline]
    fn is_alive(&self, now: u64) -> bool {
        goes_on(now) && self.life.load(Relaxed) == LIFE.load(Acquire)
    }

    /// As [`Socket::is_restored_at`], whatever is known.
    #[cold]
    pub(crate) fn is_restored(&self, fd: c_int, now: u64) -> bool {
        let known = self.row().identity.cookie.load(Relaxed);
        let cookie = kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
        let (Some(cookie), true) = (cookie, known != 0) else {
            // A kernel that does not tell has not told when the connection was offered.
            return false;
        };
        if cookie != known {
            let is_copy = client::has_addresses(self.row(), fd);
            if is_copy {
                kernel::reset(fd);
            }
            return is_copy;
        }
        let life = begin_or_join(self.life.load(Relaxed), now);
        self.life.store(life, Relaxed);
        false
    }

    /// Whether `fd` is known to be something else. Of a connection that was never offered nothing is known.
    #[cold]
    pub(crate) fn is_known_other(&self, fd: c_int) -> bool {
        let known = self.row().identity.cookie.load(Relaxed);
        known != 0 && kernel::option(fd, libc::SOL_SOCKET, libc::SO_COOKIE) != Some(known)
    }

    /// Whether `fd` is this connection still, or a copy of it: of one that was closed past this library, the number may be anything.
    pub(super) fn is_still(&self, fd: c_int) -> bool {
        let known = self.row().identity.cookie.load(Relaxed);
        let cookie = kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE);
        cookie.is_some_and(|cookie| cookie == known) || client::has_addresses(self.row(), fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test: there is one process, and one life at a time.
    #[test]
    fn what_one_connection_answers_holds_for_those_of_its_life() {
        let restore = spin::cycles(NS_OF_RESTORE);
        let start = spin::clock() + 1000 * restore;
        let first = begin_or_join(0, start);
        assert!(first != 0 && goes_on(start) && goes_on(start + restore - 1));
        assert_eq!(begin_or_join(0, start + 1), first, "so soon, it joins");
        assert!(!goes_on(start + restore), "long ago");
        let later = start + 3 * restore;
        assert_eq!(begin_or_join(first, later), first, "it was there before");
        assert!(goes_on(later + 1), "so the life went on all the time");
        let much_later = later + 3 * restore;
        let second = begin_or_join(0, much_later);
        assert_eq!(second, first + 1, "nobody knows what was in between");
        assert!(goes_on(much_later));
        assert!(
            !goes_on(much_later - 1),
            "a clock that goes back is another's"
        );
        assert_eq!(begin_or_join(first, much_later + 1), second);
    }
}
