//! What belongs to one thread of the program.

use std::cell::Cell;

use millrace_shm::sys;

use crate::kernel::kernel;

thread_local! {
    static ID: Cell<u32> = const { Cell::new(0) };
    static PREEMPTIONS: Cell<i64> = const { Cell::new(0) };
    static INTERRUPTS: Cell<u32> = const { Cell::new(0) };
    static STRICT_INTERRUPTS: Cell<u32> = const { Cell::new(0) };
}

/// The thread's number, as the kernel knows it.
#[inline]
pub(crate) fn id() -> u32 {
    let id = ID.get();
    if id != 0 { id } else { learn_id() }
}

#[cold]
fn learn_id() -> u32 {
    ID.set(sys::thread_id());
    ID.get()
}

/// In a forked child: the thread has a new number.
pub(crate) fn forget_id() {
    ID.set(0);
}

/// Whether the scheduler has taken the processor away from this thread since the last question.
pub(crate) fn was_preempted() -> bool {
    // SAFETY: integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    kernel!(libc::SYS_getrusage, libc::RUSAGE_THREAD, &raw mut usage);
    PREEMPTIONS.replace(usage.ru_nivcsw) != usage.ru_nivcsw
}

/// Signal handlers that have run on this thread so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupts {
    /// Of any kind: `poll`, `select` and `epoll_wait` are never restarted after a handler.
    pub(crate) any: u32,
    /// Of those installed without SA_RESTART: other calls fail with EINTR only after these.
    pub(crate) strict: u32,
}

/// The counts now.
#[inline]
pub(crate) fn interrupts() -> Interrupts {
    Interrupts {
        any: INTERRUPTS.get(),
        strict: STRICT_INTERRUPTS.get(),
    }
}

/// A handler runs.
pub(crate) fn count_interrupt(restarts: bool) {
    INTERRUPTS.set(INTERRUPTS.get().wrapping_add(1));
    if !restarts {
        STRICT_INTERRUPTS.set(STRICT_INTERRUPTS.get().wrapping_add(1));
    }
}

/// Sets the thread's `errno`.
pub(crate) fn set_errno(error: i32) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = error };
}

/// The thread's `errno`.
pub(crate) fn errno() -> i32 {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Keeps this thread's signals waiting while it exists.
#[derive(Debug)]
pub(crate) struct BlockedSignals(u64);

impl BlockedSignals {
    pub(crate) fn new() -> BlockedSignals {
        let all = u64::MAX;
        let mut before = 0u64;
        kernel!(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            &raw mut before,
            size_of::<u64>()
        );
        BlockedSignals(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        kernel!(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const self.0,
            0usize,
            size_of::<u64>()
        );
    }
}
