//! The variables of one thread, together at one address, in the memory that each thread has from its start on.
//!
//! The compiler's own way to a library's variables goes by a function of the dynamic linker that may have to make room for them first,
//! and calls the program's `malloc` for that. A signal handler must not: what it has interrupted may be `malloc`. It is slower, too.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::AtomicU8;

use millrace_shm::spin;

use crate::thread::Kept;

/// Signals that are kept at the same time at most.
pub(crate) const KEPT_MAX: usize = 3;

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
    /// Signals wait for the end of that work: all are blocked but those that may be faults.
    pub(crate) waits: Cell<bool>,
    /// The thread has made, or is, a child that has its memory.
    pub(crate) has_bare_child: Cell<bool>,
    /// It makes a fork, between the handlers before and after.
    pub(crate) forks: Cell<bool>,
    /// So many that it makes began while the library was not awake.
    pub(crate) sleeping_forks: Cell<u32>,
    /// It may be cancelled at any instruction, as it has asked for.
    pub(crate) is_asynchronous: Cell<bool>,
    /// Signals whose handlers we run ourselves, of those that wait.
    pub(crate) kept_count: AtomicU8,
    /// Signal handlers that have run, and those of them after which calls are not restarted.
    pub(crate) interrupts: Cell<u32>,
    pub(crate) strict_interrupts: Cell<u32>,
    /// Those of signals that the wait under way does not block, and what it blocks.
    pub(crate) unmasked_interrupts: Cell<u32>,
    pub(crate) masked: Cell<u64>,
    /// Where the stack was when the thread last began a message on a ring that has not left it; zero when there is none.
    pub(crate) message_at: Cell<usize>,
    /// See `thread::since_noted`.
    pub(crate) noted_at: Cell<u64>,
    /// What stands for the child of the fork that the thread makes, or made last.
    pub(crate) child: Cell<u32>,
    /// What is blocked no more when the signals that wait have come.
    pub(crate) unblocked_after: Cell<u64>,
    pub(crate) spin: spin::Local,
    pub(crate) kept: [Cell<Kept>; KEPT_MAX],
}

const _: () = assert!(
    size_of::<Local>() <= 640,
    "there is not much room for the variables of all libraries together"
);

core::arch::global_asm!(
    ".pushsection .tbss,\"awT\",%nobits",
    ".balign 64",
    ".globl millrace_local",
    ".hidden millrace_local",
    ".type millrace_local,%object",
    "millrace_local:",
    ".zero {size}",
    ".size millrace_local, {size}",
    ".popsection",
    size = const size_of::<Local>(),
);

/// The calling thread's.
#[inline(always)]
#[allow(clippy::inline_always, reason = "two instructions")]
pub(crate) fn local() -> &'static Local {
    let place: *const Local;
    // SAFETY: reads where the dynamic linker has put the variables, as seen from the thread's own address, and that address. Both stay as
    // long as the thread.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "mov {place}, qword ptr [rip + millrace_local@GOTTPOFF]",
            "add {place}, qword ptr fs:[0]",
            place = out(reg) place,
            options(pure, nomem, nostack)
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "mrs {place}, tpidr_el0",
            "adrp {offset}, :gottprel:millrace_local",
            "ldr {offset}, [{offset}, :gottprel_lo12:millrace_local]",
            "add {place}, {place}, {offset}",
            place = out(reg) place,
            offset = out(reg) _,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    // SAFETY: the thread's own memory, of this size and alignment, zeros at first, which are a value of each part.
    unsafe { &*place }
}
