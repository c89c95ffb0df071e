//! The variables of one thread, together at one address.

use std::cell::Cell;
use std::ffi::c_void;

use crate::thread::Kept;

/// Signals that are kept at the same time at most.
pub(crate) const KEPT_MAX: usize = 2;

/// All zeros at first; nothing in it has to be given back.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Local {
    /// The thread's number; zero: not asked for yet.
    pub(crate) id: Cell<u32>,
    /// Locks held, and other work that a signal handler must not find half done.
    pub(crate) busy: Cell<u32>,
    /// Where the stack was when the copy began that is under way; zero when there is none.
    pub(crate) copying: Cell<usize>,
    /// What the thread has found good of the program's memory; null: nothing yet.
    pub(crate) tables: Cell<*mut c_void>,
    /// Signals wait for the end of that work, and all are blocked.
    pub(crate) waits: Cell<bool>,
    /// The thread has made, or is, a child that has its memory.
    pub(crate) has_bare_child: Cell<bool>,
    /// It makes a fork, between the handlers before and after.
    pub(crate) forks: Cell<bool>,
    /// It may be cancelled at any instruction, as it has asked for.
    pub(crate) is_asynchronous: Cell<bool>,
    /// Signals whose handlers we run ourselves, of those that wait.
    pub(crate) kept_count: Cell<u8>,
    /// Signal handlers that have run, and those of them after which calls are not restarted.
    pub(crate) interrupts: Cell<u32>,
    pub(crate) strict_interrupts: Cell<u32>,
    /// See `thread::since_noted`.
    pub(crate) noted_at: Cell<u64>,
    /// What stands for the child of the fork that the thread makes, or made last.
    pub(crate) child: Cell<u32>,
    /// What is blocked when the signals that wait have come.
    pub(crate) mask_after: Cell<u64>,
    pub(crate) kept: [Cell<Kept>; KEPT_MAX],
}

const _: () = assert!(
    size_of::<Local>() <= 512,
    "there is not much room for the variables of all libraries together"
);

millrace_shm::thread_block! {
    /// The calling thread's.
    pub(crate) fn local() -> &Local as "millrace_preload_local"
}
