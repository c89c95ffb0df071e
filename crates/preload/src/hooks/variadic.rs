//! Functions with a variable number of arguments, or that return twice, which Rust can call but not define: a few instructions save the
//! arguments, let Rust act on the first one, and go on to the C library's function as if nothing had been.

use std::ffi::CStr;

use libc::{c_int, c_void};
use millrace_wire::Reason;

use crate::{objects, process, send, table};

/// `execl` and its relatives.
unsafe extern "C" fn before_exec(_path: usize) {
    // Nobody tells us when it fails: the connections that we let go of then count one holder too few, which only the other holder sees.
    let _ = process::leave_for_exec();
}

/// `dprintf` and its relatives: the C library writes to the descriptor without passing here.
unsafe extern "C" fn before_print(fd: usize) {
    let fd = fd as c_int;
    if let Some(socket) = table::socket(fd) {
        send::leave_to_kernel(socket, fd, Reason::Stdio);
    }
}

/// `vfork`: a child is about to begin that runs no fork handlers.
unsafe extern "C" fn before_vfork(_nothing: usize) {
    process::expect_bare_child();
}

/// `clone`: such a child, or a thread.
unsafe extern "C" fn before_clone(_function: usize, _stack: usize, flags: usize) {
    super::uring::before_clone(flags & u32::MAX as usize);
}

/// The next definition of a function.
unsafe extern "C" fn next(name: *const libc::c_char) -> *mut c_void {
    // SAFETY: the stubs below pass C strings.
    objects::next(unsafe { CStr::from_ptr(name) })
}

#[cfg(target_arch = "x86_64")]
macro_rules! stub {
    ($name:ident, $before:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            // The registers that carry arguments, and al, which counts those in vector registers.
            "push rdi",
            "push rsi",
            "push rdx",
            "push rcx",
            "push r8",
            "push r9",
            "push rax",
            "sub rsp, 136",
            "movups [rsp], xmm0",
            "movups [rsp + 16], xmm1",
            "movups [rsp + 32], xmm2",
            "movups [rsp + 48], xmm3",
            "movups [rsp + 64], xmm4",
            "movups [rsp + 80], xmm5",
            "movups [rsp + 96], xmm6",
            "movups [rsp + 112], xmm7",
            "call {before}",
            "lea rdi, [rip + 2f]",
            "call {next}",
            "mov r11, rax",
            "movups xmm0, [rsp]",
            "movups xmm1, [rsp + 16]",
            "movups xmm2, [rsp + 32]",
            "movups xmm3, [rsp + 48]",
            "movups xmm4, [rsp + 64]",
            "movups xmm5, [rsp + 80]",
            "movups xmm6, [rsp + 96]",
            "movups xmm7, [rsp + 112]",
            "add rsp, 136",
            "pop rax",
            "pop r9",
            "pop r8",
            "pop rcx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "pop rbp",
            "jmp r11",
            concat!("2: .asciz \"", stringify!($name), "\""),
            before = sym $before,
            next = sym next,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod stubs {
    use super::{before_clone, before_exec, before_print, before_vfork, next};

    stub!(vfork, before_vfork);
    stub!(__vfork, before_vfork);
    stub!(clone, before_clone);
    stub!(__clone, before_clone);
    stub!(execl, before_exec);
    stub!(execlp, before_exec);
    stub!(execle, before_exec);
    stub!(dprintf, before_print);
    stub!(vdprintf, before_print);
    stub!(__dprintf_chk, before_print);
    stub!(__vdprintf_chk, before_print);
}
