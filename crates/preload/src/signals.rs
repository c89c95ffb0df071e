//! Notices that a signal handler ran while we looked at a ring, and keeps handlers out of our locks.
//!
//! A program that waits in `poll` or `recv` relies on EINTR. While we spin there is no system call that could fail, so the
//! program's handlers are entered through `enter` here, which counts and goes on to the handler. While the thread holds a lock, the
//! signal is kept until it is free. What the program sees by `sigaction` are its own handlers; masks and arguments are untouched.

use std::ptr::{null, null_mut};
use std::sync::atomic::{
    AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use libc::{c_int, c_void, siginfo_t};

use crate::kernel::{self, kernel};
use crate::{fault, process, real, table, thread};

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

extern "C-unwind" fn enter(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let is_fault = fault::is_synchronous(signal, info);
    let kept = if is_fault {
        fault::ends_copy(signal, context)
    } else {
        thread::must_wait(signal, info, context)
    };
    if kept {
        return;
    }
    if fault::is_ours(signal) {
        // SAFETY: the kernel gives it to a handler with SA_SIGINFO. Of the mask it knows eight bytes.
        let before =
            unsafe { *(&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() };
        thread::set_mask(before | blocked_in(signal));
    }
    run(signal, info, context);
}

/// What the program's handler has blocked besides what was before.
fn blocked_in(signal: c_int) -> u64 {
    let index = signal.cast_unsigned() as usize % SIGNALS;
    let own = if FLAGS[index].load(Relaxed) & libc::SA_NODEFER == 0 {
        thread::bit(signal)
    } else {
        0
    };
    own | MASKS[index].load(Relaxed)
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
    thread::count_interrupt(signal, flags & libc::SA_RESTART != 0);
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
    unsafe { real::sigaction(signal, &raw const default, null_mut()) };
    // A fault comes again by itself.
    if !fault::is_synchronous(signal, info) && !thread::send_again(signal, info) {
        kernel!(libc::SYS_kill, kernel::process_id(), signal);
    }
}

/// Changes of actions that are under way, begun while the library slept.
static CHANGES: AtomicU32 = AtomicU32::new(0);
/// So long they are waited for, in milliseconds: a handler that left one by a jump has left its count.
const AWAITED_MS: u32 = 20;

/// A change that what is found installed does not miss.
struct Change;

impl Change {
    fn begin() -> Change {
        // SeqCst: it finds that the library is about to wake, or is found by it.
        CHANGES.fetch_add(1, SeqCst);
        if process::is_waking() {
            CHANGES.fetch_sub(1, SeqCst);
            process::await_waking();
            CHANGES.fetch_add(1, SeqCst);
        }
        Change
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        CHANGES.fetch_sub(1, SeqCst);
    }
}

/// Has faults come here first, where the program has the default action; and what has a handler already.
pub(crate) fn watch() {
    for _ in 0..AWAITED_MS {
        if CHANGES.load(SeqCst) == 0 {
            break;
        }
        kernel::pause(1);
    }
    for signal in 1..SIGNALS as c_int {
        if let Some(found) = found(signal) {
            take_over(signal, found);
        }
    }
}

/// What the kernel does when a signal comes.
fn found(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: integers and pointers, for which zero is a value.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a structure of ours.
    let answer = unsafe { real::sigaction(signal, null(), &raw mut found) };
    (answer == 0).then_some(found)
}

/// Puts our entry in the place of an action that was found, again where another thread, or the signal itself, has changed it meanwhile.
fn take_over(signal: c_int, mut found: libc::sigaction) {
    let index = signal as usize;
    loop {
        let handler = found.sa_sigaction;
        let by_default = handler == libc::SIG_DFL && fault::is_ours(signal);
        if handler == entry() || !is_handler(handler) && !by_default {
            return;
        }
        let mut ours = found;
        replace(&mut ours, index, by_default);
        if by_default {
            FLAGS[index].store(0, Relaxed);
        }
        HANDLERS[index].store(handler, Relaxed);
        ours.sa_sigaction = entry();
        let before = found;
        // SAFETY: structures of ours.
        unsafe { real::sigaction(signal, &raw const ours, &raw mut found) };
        if (found.sa_sigaction, found.sa_flags) == (before.sa_sigaction, before.sa_flags) {
            return;
        }
        // SAFETY: as the kernel had it.
        unsafe { real::sigaction(signal, &raw const found, null_mut()) };
    }
}

/// What is installed in the place of handlers.
fn entry() -> usize {
    enter as *const () as usize
}

/// Gives the program its own actions back: the library is as if it were not there.
pub(crate) fn give_back() {
    for signal in 1..SIGNALS as c_int {
        if found(signal).is_none_or(|found| found.sa_sigaction != entry()) {
            continue;
        }
        // SAFETY: integers and pointers, for which zero is a value.
        let mut own: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: structures of ours; `action` tells the program's own.
        unsafe {
            action(signal, null(), &raw mut own);
            real::sigaction(signal, &raw const own, null_mut());
        }
    }
}

/// Whether a signal that was kept comes as well when the kernel brings it once more.
///
/// It would bring one of real time after those that came later, which is better than on the wrong stack, and one whose handler serves
/// once not to the handler.
pub(crate) fn comes_again(signal: c_int) -> bool {
    let flags = FLAGS[signal.cast_unsigned() as usize % SIGNALS].load(Relaxed);
    let is_simple = signal < REAL_TIME || flags & libc::SA_ONSTACK != 0 && has_other_stack();
    is_simple && flags & libc::SA_RESETHAND == 0
}

/// Whether the thread has a stack for handlers that it is not on.
fn has_other_stack() -> bool {
    // SAFETY: integers and a pointer, for which zero is a value.
    let mut stack: libc::stack_t = unsafe { std::mem::zeroed() };
    let answer = kernel!(libc::SYS_sigaltstack, 0usize, &raw mut stack);
    answer == 0 && stack.ss_flags & (libc::SS_DISABLE | libc::SS_ONSTACK) == 0
}

/// Has a signal that was kept come now: `mask` was in force then. Returns which one is to be afterwards, as the handler has left it.
/// Another one is when this returns.
#[inline(never)]
pub(crate) fn run_kept(signal: c_int, info: &siginfo_t, mask: u64) -> u64 {
    let mut context = here();
    let known = (&raw mut context.uc_sigmask).cast::<u64>();
    // SAFETY: ours; of the mask the kernel knows eight bytes.
    unsafe { known.write_unaligned(mask) };
    thread::set_mask(mask | blocked_in(signal));
    run(signal, info, (&raw mut context).cast());
    // SAFETY: as above.
    unsafe { known.read_unaligned() }
}

/// For a handler that wants to know what it interrupts: us.
#[inline(never)]
fn here() -> libc::ucontext_t {
    // SAFETY: plain data, for which zero is a value. In musl, which has no such function, it stays that.
    let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
    let errno = thread::errno();
    // SAFETY: a place of ours.
    unsafe { real::getcontext(&raw mut context) };
    thread::set_errno(errno);
    context
}

fn is_handler(address: usize) -> bool {
    address != libc::SIG_DFL && address != libc::SIG_IGN && address != libc::SIG_ERR
}

/// Notes what the program wants, and makes of it what is installed, but for the handler.
fn replace(action: &mut libc::sigaction, index: usize, by_default: bool) {
    FLAGS[index].store(action.sa_flags | SA_RESTORER, Relaxed);
    // SAFETY: of the set the kernel knows the first eight bytes.
    let mask = unsafe { &mut *(&raw mut action.sa_mask).cast::<u64>() };
    MASKS[index].store(*mask & !thread::NEVER_BLOCKED, Relaxed);
    action.sa_flags |= libc::SA_SIGINFO;
    if by_default {
        action.sa_flags |= libc::SA_ONSTACK;
    }
    if fault::is_ours(index as c_int) {
        action.sa_flags &= !libc::SA_RESETHAND;
        // No other handler comes between a fault and ours, which would keep the fault's own signal blocked with its own.
        *mask = u64::MAX;
    }
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
    process::await_waking();
    let was_awake = process::is_awake();
    // Whoever has the library wake waits for it, and it for whoever has begun to.
    let change = (!was_awake).then(Change::begin);
    // SAFETY: the program's own arguments.
    let result = unsafe { exchange(signal, new, old) };
    drop(change);
    if !was_awake && result == 0 && !new.is_null() {
        // Another thread may have had the library wake meanwhile, which has found the action before.
        process::await_waking();
        if process::is_awake() {
            // SAFETY: as above.
            unsafe { exchange(signal, new, null_mut()) };
        }
    }
    result
}

/// As [`action`], whatever other threads do.
unsafe fn exchange(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let index = match usize::try_from(signal) {
        Ok(index) if index < SIGNALS => index,
        // SAFETY: the program's own arguments.
        _ => return unsafe { real::sigaction(signal, new, old) },
    };
    let noted = || {
        (
            HANDLERS[index].load(Relaxed),
            FLAGS[index].load(Relaxed),
            MASKS[index].load(Relaxed),
        )
    };
    let mut before = noted();
    // A child of `vfork` has actions of its own, and its parent's tables.
    let result = if new.is_null() || process::is_borrowed() {
        // SAFETY: the program's own arguments.
        let result = unsafe { real::sigaction(signal, new, old) };
        before = noted();
        result
    } else {
        // SAFETY: not null; the program promises that it is readable.
        let mut ours = unsafe { *new };
        if ours.sa_sigaction == entry() {
            // As the kernel has told it by a call that we did not see.
            ours.sa_sigaction = before.0;
        }
        let handler = ours.sa_sigaction;
        let by_default = handler == libc::SIG_DFL && fault::is_ours(signal);
        let entered = (is_handler(handler) || by_default) && table::exists();
        if entered {
            replace(&mut ours, index, by_default);
            HANDLERS[index].store(handler, Relaxed);
            ours.sa_sigaction = entry();
        }
        // SAFETY: our copy, and the program's place for the old action.
        let result = unsafe { real::sigaction(signal, &raw const ours, old) };
        if !entered {
            before = noted();
            if result == 0 {
                FLAGS[index].store(0, Relaxed);
            }
        } else if result != 0 {
            HANDLERS[index].store(before.0, Relaxed);
            FLAGS[index].store(before.1, Relaxed);
            MASKS[index].store(before.2, Relaxed);
        }
        result
    };
    if result == 0 && !old.is_null() {
        // SAFETY: the call has just filled it.
        let old = unsafe { &mut *old };
        if old.sa_sigaction == entry() {
            old.sa_sigaction = before.0;
            // SAFETY: as above.
            unsafe { (&raw mut old.sa_mask).cast::<u64>().write(before.2) };
            old.sa_flags = old.sa_flags & !OUR_FLAGS | before.1 & OUR_FLAGS;
        } else if old.sa_sigaction == libc::SIG_DFL && before.1 & libc::SA_RESETHAND != 0 {
            // It has served, and the kernel has left the flags.
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
    unsafe { install(signal, handler, &raw const new) }
}

/// By way of [`action`]: the handler before, or SIG_ERR.
///
/// # Safety
/// As `sigaction(2)`; `new` is readable or null.
unsafe fn install(signal: c_int, handler: usize, new: *const libc::sigaction) -> usize {
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
        (null(), libc::SIG_BLOCK)
    } else {
        (&raw const new, libc::SIG_UNBLOCK)
    };
    // SAFETY: null, or a structure of ours with the program's handler.
    let old = unsafe { install(signal, disposition, new) };
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
    if unsafe { action(signal, null(), &raw mut now) } != 0 {
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
    unsafe { action(signal, &raw const now, null_mut()) }
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
