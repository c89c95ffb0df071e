//! Handlers are entered through us, see `crate::signals`.

use libc::c_int;

use crate::signals::{action, bsd_flags, set, set_interrupting, simple};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { action(signal, new, old) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the program's own arguments.
    unsafe { simple(signal, handler, bsd_flags(signal)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn bsd_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the program's own arguments.
    unsafe { simple(signal, handler, bsd_flags(signal)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __sysv_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the program's own arguments.
    unsafe { simple(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sysv_signal(signal: c_int, handler: usize) -> usize {
    // SAFETY: the program's own arguments.
    unsafe { simple(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sigset(signal: c_int, disposition: usize) -> usize {
    // SAFETY: the program's own arguments.
    unsafe { set(signal, disposition) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupting: c_int) -> c_int {
    set_interrupting(signal, interrupting != 0)
}
