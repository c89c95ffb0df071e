//! Sets that the program closes while its threads wait on them. In the kernel the waits go on, and are told of the members.
//!
//! Who sleeps has the set by the kernel. Who spins gets a descriptor of its own, of one that whoever closes the set has made before. The
//! members take the kernel's road from now on, and what is known of them stays until nobody waits any more.

use std::os::fd::IntoRawFd;
use std::sync::atomic::Ordering::{Acquire, Release};

use libc::c_int;
use millrace_wire::Reason;

use super::EpollSet;
use super::rings::Inner;
use crate::kernel::{self, kernel};

/// Nanoseconds after which a thread that spun on a set is not waited for any more: a handler has left that by a jump.
const WAIT_NS: u64 = 1_000_000_000;

/// A descriptor of a set that the program does not know.
#[derive(Debug)]
pub(super) struct Own(c_int);

impl Own {
    fn copy_of(fd: c_int) -> Option<Own> {
        kernel::high_copy(fd).map(|copy| Own(copy.into_raw_fd()))
    }

    pub(super) fn fd(&self) -> c_int {
        self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        kernel!(libc::SYS_close, self.0);
    }
}

impl Inner {
    /// A thread spins no more, and sleeps, if at all, by what it has of its own.
    pub(super) fn end_look(&mut self) {
        self.lookers = self.lookers.saturating_sub(1);
        if self.lookers == 0 {
            self.kept = None;
        }
    }
}

impl EpollSet {
    /// A descriptor of the set, `fd`, is about to be closed.
    pub(crate) fn keep_for_waits(&'static self, fd: c_int) {
        let Some(mut inner) = self.inner.lock().filter(|inner| inner.lookers > 0) else {
            return;
        };
        if inner.kept.is_none() {
            inner.kept = Own::copy_of(fd);
        }
        drop(inner);
        self.tell_kernel_by(fd);
    }

    /// The last descriptor goes. Whether threads wait on the set still: no ring of its members is opened any more. What lies there unread
    /// is looked at by those who spin, and has been told to those who sleep.
    pub(super) fn stay_for_waits(&'static self) -> bool {
        let Some(mut inner) = self.inner.lock() else {
            return false;
        };
        if inner.lookers == 0 && self.sleepers.load(Acquire) <= inner.sleepers_elsewhere {
            return false;
        }
        inner.closed_ns = kernel::monotonic_ns();
        drop(inner);
        self.kernel_only.store(true, Release);
        for (_, socket) in self.connections() {
            socket.pin(Reason::EpollAmbiguous);
        }
        true
    }

    /// Whether a thread may be in a wait that began before the set was closed. One that slept counts itself out when it wakes up.
    pub(super) fn is_waited_on_still(&self) -> bool {
        let may_look = |inner: &Inner| {
            inner.lookers > 0 && kernel::monotonic_ns() < inner.closed_ns.saturating_add(WAIT_NS)
        };
        self.has_sleepers() || self.inner.lock().is_some_and(|inner| may_look(&inner))
    }

    /// In a forked child: those who wait are the parent's.
    pub(super) fn end_waits_of_others(&self) {
        if let Some(mut inner) = self.inner.lock() {
            inner.sleepers_elsewhere = self.sleepers.load(Acquire);
            inner.lookers = 0;
            inner.kept = None;
        }
    }

    /// For a thread that spins on the set, which has been closed, and is counted until its wait is over.
    pub(super) fn take_own(&self) -> Option<Own> {
        let inner = self.inner.lock()?;
        Own::copy_of(inner.kept.as_ref()?.0)
    }

    /// See [`Inner::end_look`].
    pub(super) fn end_look(&self) {
        if let Some(mut inner) = self.inner.lock() {
            inner.end_look();
        }
    }
}
