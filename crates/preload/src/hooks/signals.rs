//! Handlers are entered through us, see `crate::signals`.

use std::ptr::null;

use libc::c_int;

use crate::signals::{action, bsd_flags, set, set_interrupting, simple};
use crate::{thread, user};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { action(signal, new, old) }
}

/// `struct sigaction` as the kernel has it.
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelAction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: Option<extern "C" fn()>,
    mask: u64,
}

/// `rt_sigaction` by number.
pub(super) fn by_number(signal: c_int, new: usize, old: usize) -> c_int {
    let (place, told) = (new as *const KernelAction, old as *mut KernelAction);
    let bytes = size_of::<KernelAction>();
    let is_there = (new == 0 || user::can_read(place.cast(), bytes))
        && (old == 0 || user::can_write(told.cast(), bytes));
    if !is_there {
        thread::set_errno(libc::EFAULT);
        return -1;
    }
    // SAFETY: integers and pointers, for which zero is a value.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    let mask_of = |action: &mut libc::sigaction| (&raw mut action.sa_mask).cast::<u64>();
    if new != 0 {
        // SAFETY: just found readable.
        let new = unsafe { place.read_unaligned() };
        ours.sa_sigaction = new.handler;
        ours.sa_flags = new.flags as c_int;
        // SAFETY: of the set the kernel knows the first eight bytes.
        unsafe { mask_of(&mut ours).write(new.mask) };
    }
    let ours = if new == 0 { null() } else { &raw const ours };
    // SAFETY: structures of ours, with the program's handler.
    let result = unsafe { action(signal, ours, &raw mut before) };
    if result == 0 && old != 0 {
        let before = KernelAction {
            handler: before.sa_sigaction,
            flags: before.sa_flags.cast_unsigned().into(),
            restorer: before.sa_restorer,
            // SAFETY: as above.
            mask: unsafe { mask_of(&mut before).read() },
        };
        // SAFETY: just found writable.
        unsafe { told.write_unaligned(before) };
    }
    result
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
