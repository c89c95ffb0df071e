//! Which signal handlers have run on a thread: they end its calls.

use std::cell::Cell;

use libc::{c_int, sigset_t};

use super::bit;
use crate::local::local;
use crate::user;

/// Signal handlers that have run on this thread so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interrupts {
    /// Of any kind.
    pub(crate) any: u32,
    /// Of those installed without SA_RESTART: other calls fail with EINTR only after these.
    pub(crate) strict: u32,
}

impl Interrupts {
    /// Whether a handler that has run since these were counted ends a receiving call: if the call `has_some` bytes to return, any does.
    pub(crate) fn end_call(self, has_some: bool) -> bool {
        let now = interrupts();
        now.strict != self.strict || has_some && now.any != self.any
    }
}

/// The counts now.
#[inline]
pub(crate) fn interrupts() -> Interrupts {
    let local = local();
    Interrupts {
        any: local.interrupts.get(),
        strict: local.strict_interrupts.get(),
    }
}

/// Handlers that end `poll`, `select` or `epoll_wait`, which are never restarted after one: those of signals that the call's own mask lets
/// through. Between its looks the thread's mask is in force: the handlers of others may run then, as they may before the call.
#[derive(Debug)]
pub(crate) struct WaitInterrupts {
    before: u32,
    masked_outside: u64,
}

impl WaitInterrupts {
    /// Of a wait with such a mask, which may be null, or no memory: then the kernel refuses the call.
    pub(crate) fn of(mask: *const sigset_t) -> WaitInterrupts {
        let bits = mask.cast::<u64>();
        let is_there = !mask.is_null() && user::can_read(bits.cast(), size_of::<u64>());
        let masked = match is_there {
            // SAFETY: just found readable; of the set the kernel knows the first eight bytes.
            true => unsafe { bits.read_unaligned() },
            false => 0,
        };
        let local = local();
        WaitInterrupts {
            masked_outside: local.masked.replace(masked),
            before: local.unmasked_interrupts.get(),
        }
    }

    /// Whether one has run.
    pub(crate) fn have_come(&self) -> bool {
        local().unmasked_interrupts.get() != self.before
    }
}

impl Drop for WaitInterrupts {
    fn drop(&mut self) {
        local().masked.set(self.masked_outside);
    }
}

/// A handler runs.
pub(crate) fn count_interrupt(signal: c_int, restarts: bool) {
    let one_more = |count: &Cell<u32>| count.set(count.get().wrapping_add(1));
    let local = local();
    one_more(&local.interrupts);
    if !restarts {
        one_more(&local.strict_interrupts);
    }
    if local.masked.get() & bit(signal) == 0 {
        one_more(&local.unmasked_interrupts);
    }
}
