//! The network between the ends is to see the connection: once a second, some bytes of each direction in use go by the kernel.
//!
//! What is on the ring passes no packet filter, no route and no connection tracking. A rule that came after the connection would not hold
//! for it, and whatever keeps a table of connections would forget it, to turn its packets away later. Bytes that go by the kernel are
//! what the network carries or does not, and what follows them waits for them, whichever road it takes.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use libc::c_int;
use millrace_shm::board::flags;
use millrace_stream::SendHalf;

use super::{Locked, Socket};
use crate::{kernel, spin};

/// A direction that is in use shows itself so often, in nanoseconds.
const NS_BETWEEN_SHOWS: u64 = 1_000_000_000;

/// When a direction went by the kernel on purpose, and what the peer's kernel had acknowledged then.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    /// Of `spin::clock`; zero: never.
    at: AtomicU64,
    acknowledged: AtomicU64,
}

impl Shown {
    pub(super) fn reset(&self) {
        self.at.store(0, Relaxed);
        self.acknowledged.store(0, Relaxed);
    }
}

impl Socket {
    /// Has the next bytes go by the kernel when it is time; and all further ones while nothing of what went there is acknowledged.
    #[inline]
    pub(super) fn show_to_network(&self, fd: c_int, locked: &Locked<SendHalf<'_>>, now: u64) {
        let is_unheard = self.row().identity.flags.load(Relaxed) & flags::UNHEARD != 0;
        let is_due = now.wrapping_sub(self.shown.at.load(Relaxed))
            >= spin::cycles(NS_BETWEEN_SHOWS)
            && locked.half.is_open();
        if is_unheard || is_due {
            self.show_now(fd, locked, now, is_due);
        }
    }

    #[cold]
    fn show_now(&self, fd: c_int, locked: &Locked<SendHalf<'_>>, now: u64, is_due: bool) {
        let Some((acknowledged, is_outstanding)) = kernel::acknowledged(fd) else {
            return;
        };
        let before = self.shown.acknowledged.swap(acknowledged, Relaxed);
        let is_first = self.shown.at.load(Relaxed) == 0;
        let flags = &self.row().identity.flags;
        if is_first || !is_outstanding || acknowledged != before {
            flags.fetch_and(!flags::UNHEARD, AcqRel);
        } else if is_due {
            flags.fetch_or(flags::UNHEARD, AcqRel);
        }
        if is_due {
            self.shown.at.store(now, Relaxed);
        }
        if is_due && !is_first {
            locked.half.leave();
        }
    }
}
