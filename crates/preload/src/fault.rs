//! Copies that fail, where the program would die, when a buffer is not there any more.
//!
//! The kernel answers EFAULT for memory that is not there. `user` asks it beforehand, and remembers; memory may go after that in
//! ways that nobody sees: a mapped file gets shorter, the C library frees a block. So SIGSEGV and SIGBUS come here first. In the
//! middle of a copy they end it; all others are the program's, which sees nothing of this.

use libc::{c_int, c_void, siginfo_t};

use crate::local::local;
use crate::thread::FAULTS;

/// Runs `copy`, which does nothing but copy. False: memory was not there; a part may have been copied.
#[inline]
pub(crate) fn guarded<F: FnMut()>(mut copy: F) -> bool {
    arch::run(call::<F>, (&raw mut copy).cast(), local().copying.as_ptr())
}

extern "C" fn call<F: FnMut()>(copy: *mut c_void) {
    // SAFETY: `guarded` passes its closure, and waits.
    unsafe { (*copy.cast::<F>())() }
}

/// Whether a signal is about the instruction that the thread was at.
pub(crate) fn is_synchronous(signal: c_int, info: *const siginfo_t) -> bool {
    // SAFETY: the kernel gives it to a handler with SA_SIGINFO.
    FAULTS.contains(&signal) && unsafe { (*info).si_code } > 0
}

/// Whether signals of this kind come here even when the program has no handler.
pub(crate) fn is_ours(signal: c_int) -> bool {
    arch::RECOVERS && (signal == libc::SIGSEGV || signal == libc::SIGBUS)
}

/// A fault has come. True: it ends a copy of ours, once the handler returns.
pub(crate) fn ends_copy(signal: c_int, context: *mut c_void) -> bool {
    let stack = local().copying.get();
    is_ours(signal) && stack != 0 && arch::resume(context.cast(), stack)
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use libc::{c_void, ucontext_t};

    pub(super) const RECOVERS: bool = true;

    // Saves what a called function keeps for its caller, and where the stack is; calls `work(argument)`; returns zero. A fault
    // goes on at `millrace_copy_failed` with the stack as it was, and one is returned.
    std::arch::global_asm!(
        ".hidden millrace_copy",
        ".globl millrace_copy",
        ".type millrace_copy, @function",
        "millrace_copy:",
        ".cfi_startproc",
        "push rbp",
        ".cfi_adjust_cfa_offset 8",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        "push r13",
        ".cfi_adjust_cfa_offset 8",
        "push r14",
        ".cfi_adjust_cfa_offset 8",
        "push r15",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "mov qword ptr [rdx], rsp",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        "2:",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "mov qword ptr [rdx], 0",
        "pop r15",
        ".cfi_adjust_cfa_offset -8",
        "pop r14",
        ".cfi_adjust_cfa_offset -8",
        "pop r13",
        ".cfi_adjust_cfa_offset -8",
        "pop r12",
        ".cfi_adjust_cfa_offset -8",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "pop rbp",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_adjust_cfa_offset 56",
        ".hidden millrace_copy_failed",
        ".globl millrace_copy_failed",
        "millrace_copy_failed:",
        "cld",
        "mov eax, 1",
        "jmp 2b",
        ".cfi_endproc",
        ".size millrace_copy, . - millrace_copy",
    );

    unsafe extern "C" {
        fn millrace_copy(
            work: extern "C" fn(*mut c_void),
            argument: *mut c_void,
            stack: *mut usize,
        ) -> c_int;
        fn millrace_copy_failed();
    }

    use libc::c_int;

    #[inline]
    pub(super) fn run(
        work: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        stack: *mut usize,
    ) -> bool {
        // SAFETY: `work` takes `argument`, and holds nothing that would have to be given back if it ended in its middle.
        unsafe { millrace_copy(work, argument, stack) == 0 }
    }

    pub(super) fn resume(context: *mut ucontext_t, stack: usize) -> bool {
        // SAFETY: the kernel gives it to a handler with SA_SIGINFO; the registers hold when the handler returns.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        registers[libc::REG_RSP as usize] = stack as i64;
        registers[libc::REG_RIP as usize] = millrace_copy_failed as *const () as i64;
        true
    }
}

/// Elsewhere what `user` remembers has to do.
#[cfg(not(target_arch = "x86_64"))]
mod arch {
    use libc::{c_void, ucontext_t};

    pub(super) const RECOVERS: bool = false;

    #[inline]
    pub(super) fn run(
        work: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        _stack: *mut usize,
    ) -> bool {
        work(argument);
        true
    }

    pub(super) fn resume(_context: *mut ucontext_t, _stack: usize) -> bool {
        false
    }
}
