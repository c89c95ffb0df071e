//! Calls by the kernel, and sleeps, that know of no ring: they are announced, so that nobody joins, or opens a gate, beside them.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use libc::c_int;
use millrace_shm::board::Row;
use millrace_shm::lock::Held;

use super::Socket;
use crate::table;

impl Socket {
    /// Announces a receiving call that goes straight to the kernel. None: attached meanwhile, or `fd` is not this connection any more;
    /// go by the lock.
    #[inline]
    pub(crate) fn begin_raw_receive(&'static self, fd: c_int) -> Option<&'static Row> {
        self.begin_raw(fd, |row| &row.receive.sleepers)
    }

    /// Announces a sending call that goes straight to the kernel, as [`Socket::begin_raw_receive`].
    #[inline]
    pub(crate) fn begin_raw_send(&'static self, fd: c_int) -> Option<&'static Row> {
        self.begin_raw(fd, |row| &row.send.raw)
    }

    #[inline]
    fn begin_raw(
        &'static self,
        fd: c_int,
        count_in: impl Fn(&'static Row) -> &'static AtomicU32,
    ) -> Option<&'static Row> {
        loop {
            let row = self.row();
            let count = count_in(row);
            count.fetch_add(1, SeqCst);
            let needs_lock = self.is_attached() || !table::is(fd, self);
            if !needs_lock && std::ptr::eq(row, self.row()) {
                return Some(row);
            }
            count.fetch_sub(1, SeqCst);
            if needs_lock {
                return None;
            }
        }
    }

    /// Announces a sleep in `poll` that knows of no ring. False: there is one meanwhile.
    pub(crate) fn begin_poll(&self) -> bool {
        // Before we look at the phase: whoever opens the gate has set that before it looks for us.
        self.pollers.fetch_add(1, SeqCst);
        let may_sleep = !self.is_attached();
        if !may_sleep {
            self.end_poll();
        }
        may_sleep
    }

    /// In a forked child: the parent's other threads are not here, nor their calls in what is not shared.
    pub(crate) fn forget_threads(&self) {
        self.pollers.store(0, SeqCst);
        self.begun.forget();
        self.own_row.forget_calls();
        self.own_row.send.lock.unlock(Held::Owned);
        self.own_row.receive.lock.unlock(Held::Owned);
    }

    pub(crate) fn end_poll(&self) {
        self.pollers.fetch_sub(1, SeqCst);
    }

    /// Whether a thread sleeps that knows of no ring.
    #[inline]
    pub(crate) fn is_polled_unjoined(&self) -> bool {
        self.pollers.load(SeqCst) != 0
    }

    /// Whether no call of a thread of ours is under way that counts itself out of this object when it ends.
    pub(super) fn is_quiet(&self) -> bool {
        self.pollers.load(SeqCst) == 0 && self.begun.is_quiet() && self.own_row.is_quiet()
    }
}
