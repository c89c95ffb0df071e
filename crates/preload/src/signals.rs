//! Notices that a signal handler ran while we looked at a ring, and keeps handlers out of our locks.
//!
//! A program that waits in `poll` or `recv` relies on EINTR. While we spin there is no system call that could fail, so the
//! program's handlers are entered through [`enter`], which counts and goes on to the handler. While the thread holds a lock, the
//! signal is kept until it is free. What the program sees by `sigaction` are its own handlers; masks and arguments are untouched.

use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use libc::{c_int, c_void, siginfo_t};

use crate::{fault, objects, real, table, thread};

const SIGNALS: usize = 65;
/// The kernel's first signal of real time: such signals queue, and come in their order.
const REAL_TIME: c_int = 32;

/// Set by the C library on this processor for every action that is installed; missing from the libc crate.
const SA_RESTORER: c_int = if cfg!(target_arch = "x86_64") {
    0x0400_0000
} else {
    0
};
/// Flags that we install otherwise than the program said.
const OUR_FLAGS: c_int = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND | SA_RESTORER;

/// What the program has installed. Zero is the default action.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];
/// Signals that a handler keeps blocked.
static MASKS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];

/// Whether a handler was ever installed after which calls are restarted.
static RESTARTS: AtomicBool = AtomicBool::new(false);

/// Whether the kernel may restart a call that a handler has interrupted.
pub(crate) fn may_restart_calls() -> bool {
    RESTARTS.load(Relaxed)
}

extern "C-unwind" fn enter(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let kept = if fault::is_synchronous(signal, info) {
        fault::ends_copy(signal, context)
    } else {
        thread::must_wait(signal, info, context)
    };
    if !kept {
        run(signal, info, context);
    }
}

/// Goes on to the program's handler.
fn run(signal: c_int, info: *const siginfo_t, context: *mut c_void) {
    let index = signal.cast_unsigned() as usize % SIGNALS;
    let flags = FLAGS[index].load(Relaxed);
    let handler = HANDLERS[index].load(Relaxed);
    if fault::is_ours(signal) && handler == libc::SIG_DFL {
        return die(signal, info);
    }
    if fault::is_ours(signal) && flags & libc::SA_RESETHAND != 0 {
        HANDLERS[index].store(libc::SIG_DFL, Relaxed);
    }
    thread::count_interrupt(flags & libc::SA_RESTART != 0);
    if handler > libc::SIG_IGN {
        // SAFETY: the program installed this address as its handler; one that takes fewer arguments ignores the others,
        // as it does when the kernel calls it.
        let handler: extern "C-unwind" fn(c_int, *const siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    }
}

/// The program has no handler: once ours returns, the signal ends it as it would have without us.
#[cold]
fn die(signal: c_int, info: *const siginfo_t) {
    // SAFETY: integers and pointers, for which zero is a value: the default action.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a structure of ours.
    unsafe { real::sigaction(signal, &raw const default, std::ptr::null_mut()) };
    // A fault comes again by itself.
    if !fault::is_synchronous(signal, info) {
        thread::send_again(signal, info);
    }
}

/// Has faults come here first, where the program starts with the default action.
pub(crate) fn watch_faults() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: integers and pointers, for which zero is a value.
        let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: structures of ours.
        unsafe {
            real::sigaction(signal, std::ptr::null(), &raw mut now);
            if fault::is_ours(signal) && now.sa_sigaction == libc::SIG_DFL {
                action(signal, &raw const now, std::ptr::null_mut());
            }
        }
        FLAGS[signal as usize].store(0, Relaxed);
    }
}

/// Has a signal that was kept come now: `mask` was in force then. False: the kernel is to bring it once more, which is as good.
///
/// It would bring one of real time after those that came later, and one whose handler serves once not to the handler.
pub(crate) fn run_kept(signal: c_int, info: &siginfo_t, mask: u64) -> bool {
    let index = signal.cast_unsigned() as usize % SIGNALS;
    let flags = FLAGS[index].load(Relaxed);
    if signal < REAL_TIME && flags & libc::SA_RESETHAND == 0 {
        return false;
    }
    let own = if flags & libc::SA_NODEFER == 0 {
        1 << (index - 1)
    } else {
        0
    };
    let mut context = here();
    thread::set_mask(mask | own | MASKS[index].load(Relaxed));
    run(signal, info, (&raw mut context).cast());
    thread::set_mask(mask);
    true
}

/// For a handler that wants to know what it interrupts: us.
fn here() -> libc::ucontext_t {
    // SAFETY: plain data, for which zero is a value.
    let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
    let function = objects::any(c"getcontext");
    // musl has none.
    if !function.is_null() {
        // SAFETY: the function of this name has this type (POSIX, up to 2004).
        let function: unsafe extern "C" fn(*mut libc::ucontext_t) -> c_int =
            unsafe { std::mem::transmute(function) };
        // SAFETY: a place of ours.
        unsafe { function(&raw mut context) };
    }
    context
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
    let before = (HANDLERS[index].load(Relaxed), FLAGS[index].load(Relaxed));
    let result = if new.is_null() {
        // SAFETY: the program's own arguments.
        unsafe { real::sigaction(signal, new, old) }
    } else {
        // SAFETY: not null; the program promises that it is readable.
        let mut ours = unsafe { *new };
        let handler = ours.sa_sigaction;
        let by_default = handler == libc::SIG_DFL && fault::is_ours(signal);
        let entered = (is_handler(handler) || by_default) && table::exists();
        if entered {
            FLAGS[index].store(ours.sa_flags | SA_RESTORER, Relaxed);
            // SAFETY: of the set the kernel knows the first eight bytes.
            let mask = unsafe { (&raw const ours.sa_mask).cast::<u64>().read() };
            MASKS[index].store(mask, Relaxed);
            RESTARTS.fetch_or(
                is_handler(handler) && ours.sa_flags & libc::SA_RESTART != 0,
                Relaxed,
            );
            ours.sa_flags |= libc::SA_SIGINFO;
            if by_default {
                ours.sa_flags |= libc::SA_ONSTACK;
            }
            if fault::is_ours(signal) {
                ours.sa_flags &= !libc::SA_RESETHAND;
            }
            HANDLERS[index].store(handler, Relaxed);
            ours.sa_sigaction = enter as *const () as usize;
        }
        // SAFETY: our copy, and the program's place for the old action.
        let result = unsafe { real::sigaction(signal, &raw const ours, old) };
        if entered && result != 0 {
            HANDLERS[index].store(before.0, Relaxed);
            FLAGS[index].store(before.1, Relaxed);
        }
        result
    };
    if result == 0 && !old.is_null() {
        // SAFETY: the call has just filled it.
        let old = unsafe { &mut *old };
        if old.sa_sigaction == enter as *const () as usize {
            old.sa_sigaction = before.0;
            old.sa_flags = old.sa_flags & !OUR_FLAGS | before.1 & OUR_FLAGS;
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
    // SAFETY: a structure of ours, with the program's handler.
    unsafe { exchange(signal, handler, &raw const new) }
}

/// The handler before, or SIG_ERR.
///
/// # Safety
/// As `sigaction(2)`; `new` is readable or null.
unsafe fn exchange(signal: c_int, handler: usize, new: *const libc::sigaction) -> usize {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    if !(1..SIGNALS as c_int).contains(&signal) || handler == libc::SIG_ERR {
        thread::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: the caller's structure, and one of ours.
    match unsafe { action(signal, new, &raw mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// `sigset` by way of [`action`].
///
/// # Safety
/// As `sigset(3)`.
pub(crate) unsafe fn set(signal: c_int, disposition: usize) -> usize {
    const HOLD: usize = 2;
    // SAFETY: integers and pointers, for which zero is a value.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = disposition;
    let (new, change) = if disposition == HOLD {
        (std::ptr::null(), libc::SIG_BLOCK)
    } else {
        (&raw const new, libc::SIG_UNBLOCK)
    };
    // SAFETY: null, or a structure of ours with the program's handler.
    let old = unsafe { exchange(signal, disposition, new) };
    if old != libc::SIG_ERR && thread::change_mask(change, signal) {
        return HOLD;
    }
    old
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
