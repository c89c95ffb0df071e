//! Notices that a signal handler ran while we looked at a ring.
//!
//! A program that waits in `poll` or `recv` relies on EINTR. While we spin there is no system call that could fail, so the
//! program's handlers are entered through [`enter`], which counts and goes on to the handler. What the program sees by
//! `sigaction` are its own handlers; flags, masks and arguments are untouched.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

use libc::{c_int, c_void, siginfo_t};

use crate::{real, table, thread};

const SIGNALS: usize = 65;

static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
static RESTARTS: [AtomicU8; SIGNALS] = [const { AtomicU8::new(0) }; SIGNALS];

extern "C-unwind" fn enter(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let index = signal.cast_unsigned() as usize % SIGNALS;
    thread::count_interrupt(RESTARTS[index].load(Relaxed) != 0);
    let handler = HANDLERS[index].load(Relaxed);
    if handler > libc::SIG_IGN {
        // SAFETY: the program installed this address as its handler; one that takes fewer arguments ignores the others,
        // as it does when the kernel calls it.
        let handler: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    }
}

fn is_handler(address: usize) -> bool {
    address != libc::SIG_DFL && address != libc::SIG_IGN && address != libc::SIG_ERR
}

/// `sigaction` with our entry in the place of the program's handler.
///
/// # Safety
/// As `sigaction(2)`.
pub(crate) unsafe fn action(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let index = match usize::try_from(signal) {
        Ok(index) if index < SIGNALS => index,
        // SAFETY: the program's own arguments.
        _ => return unsafe { real::sigaction(signal, new, old) },
    };
    let before = HANDLERS[index].load(Relaxed);
    let result = if new.is_null() {
        // SAFETY: the program's own arguments.
        unsafe { real::sigaction(signal, new, old) }
    } else {
        // SAFETY: not null; the program promises that it is readable.
        let mut ours = unsafe { *new };
        let handler = ours.sa_sigaction;
        let entered = is_handler(handler) && table::exists();
        if entered {
            RESTARTS[index].store(u8::from(ours.sa_flags & libc::SA_RESTART != 0), Relaxed);
            HANDLERS[index].store(handler, Relaxed);
            ours.sa_sigaction = enter as *const () as usize;
        }
        // SAFETY: our copy, and the program's place for the old action.
        let result = unsafe { real::sigaction(signal, &raw const ours, old) };
        if entered && result != 0 {
            HANDLERS[index].store(before, Relaxed);
        }
        result
    };
    if result == 0 && !old.is_null() {
        // SAFETY: the call has just filled it.
        let old = unsafe { &mut *old };
        if old.sa_sigaction == enter as *const () as usize {
            old.sa_sigaction = before;
        }
    }
    result
}

/// `signal` by way of [`action`], with the flags that the variant has.
///
/// # Safety
/// As `signal(2)`.
pub(crate) unsafe fn simple(signal: c_int, handler: usize, flags: c_int) -> usize {
    // SAFETY: integers and pointers, for which zero is a value; the mask is empty then.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    if flags & libc::SA_NODEFER == 0 {
        // SAFETY: our own set; a bad signal number is refused below.
        unsafe { libc::sigaddset(&raw mut new.sa_mask, signal) };
    }
    // SAFETY: as above.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    if !(1..SIGNALS as c_int).contains(&signal) || handler == libc::SIG_ERR {
        thread::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: two structures of ours.
    match unsafe { action(signal, &raw const new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// Signals for which `siginterrupt` asked that handlers installed by `signal` interrupt calls.
static INTERRUPTING: [AtomicU8; SIGNALS] = [const { AtomicU8::new(0) }; SIGNALS];

/// `siginterrupt` by way of [`action`].
pub(crate) fn set_interrupting(signal: c_int, interrupting: bool) -> c_int {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a structure of ours.
    if unsafe { action(signal, std::ptr::null(), &raw mut now) } != 0 {
        return -1;
    }
    if let Some(place) = usize::try_from(signal)
        .ok()
        .and_then(|index| INTERRUPTING.get(index))
    {
        place.store(u8::from(interrupting), Relaxed);
    }
    now.sa_flags = if interrupting {
        now.sa_flags & !libc::SA_RESTART
    } else {
        now.sa_flags | libc::SA_RESTART
    };
    // SAFETY: a structure of ours.
    unsafe { action(signal, &raw const now, std::ptr::null_mut()) }
}

/// Flags of `signal` as 4.3BSD and the C library have them.
pub(crate) fn bsd_flags(signal: c_int) -> c_int {
    let place = usize::try_from(signal)
        .ok()
        .and_then(|index| INTERRUPTING.get(index));
    if place.is_some_and(|place| place.load(Relaxed) != 0) {
        0
    } else {
        libc::SA_RESTART
    }
}
