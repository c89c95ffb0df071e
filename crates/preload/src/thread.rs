//! What belongs to one thread of the program.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering::Relaxed};

use libc::{c_int, c_void, siginfo_t};
use millrace_shm::lock::{Held, OwnerLock};
use millrace_shm::sys;

use crate::kernel::kernel;
use crate::local::{Local, local};
use crate::{objects, process, real, signals, table};

mod interrupts;

pub(crate) use interrupts::{Interrupts, WaitInterrupts, count_interrupt, interrupts};

/// A signal that has come, and the mask of those that were blocked before it. Zeros are a value of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Kept {
    signal: c_int,
    mask: u64,
    info: siginfo_t,
}

/// Signals that may be about the instruction that the thread is at: blocked, they would end the process.
pub(crate) const FAULTS: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];
/// What the kernel strikes out of every mask.
pub(crate) const NEVER_BLOCKED: u64 = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
/// What is blocked while signals wait.
const ALL_BUT_FAULTS: u64 = {
    let mut mask = !NEVER_BLOCKED;
    let mut index = 0;
    while index < FAULTS.len() {
        mask &= !bit(FAULTS[index]);
        index += 1;
    }
    mask
};

/// A signal's place in a mask.
pub(crate) const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// The C library's own word for whether the process has a single thread (`sys/single_threaded.h`, glibc 2.32).
static SINGLE: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());

/// `pthread_testcancel`, which is in a library of threads before glibc 2.34; null: nobody has it yet.
static TEST_CANCEL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks for what threads need of the C library: at the start, and again when a library of threads may have come.
pub(crate) fn look_up() {
    let word = objects::any(c"__libc_single_threaded");
    SINGLE.store(word.cast(), Relaxed);
    TEST_CANCEL.store(objects::next(c"pthread_testcancel"), Relaxed);
}

/// Whether this thread is the only one, as far as can be told: nobody else changes anything while it sleeps.
#[inline]
pub(crate) fn is_alone() -> bool {
    // SAFETY: null, or the C library's word, which is one byte and stays.
    unsafe { SINGLE.load(Relaxed).as_ref() }.is_some_and(|single| single.load(Relaxed) != 0)
}

/// Ends the thread here if another has asked for that: the program's call is a place for it, and will not come to the C library's.
#[inline]
pub(crate) fn test_cancel() {
    let function = TEST_CANCEL.load(Relaxed);
    if !is_alone() && !function.is_null() {
        // SAFETY: the function of this name has this type (POSIX).
        let function: extern "C-unwind" fn() = unsafe { std::mem::transmute(function) };
        // Nothing is held by the callers that would have to be given back.
        function();
    }
}

const DEFERRED: c_int = 0;
const ASYNCHRONOUS: c_int = 1;

/// Whether any thread may ever have asked to be cancelled at any instruction.
static IS_ANY_ASYNCHRONOUS: AtomicBool = AtomicBool::new(false);

/// `pthread_setcanceltype`.
pub(crate) fn set_cancel_type(kind: c_int, before: *mut c_int) -> c_int {
    let asks = kind == ASYNCHRONOUS;
    if asks {
        IS_ANY_ASYNCHRONOUS.store(true, Relaxed);
        // First: it may be cancelled in the call.
        local().is_asynchronous.set(true);
    }
    // SAFETY: the program's own arguments.
    let answer = unsafe { real::pthread_setcanceltype(kind, before) };
    if answer == 0 {
        local().is_asynchronous.set(asks);
    }
    answer
}

/// While it exists, this thread is cancelled where the C library's functions let it, and not at any instruction: half of what we do
/// cannot be taken back.
#[derive(Debug)]
pub(crate) struct Deferred(bool);

impl Deferred {
    #[inline]
    pub(crate) fn new() -> Deferred {
        Deferred(IS_ANY_ASYNCHRONOUS.load(Relaxed) && defer())
    }
}

#[cold]
fn defer() -> bool {
    // Without the library that is nobody's business, and a child of `vfork` has its parent's.
    if !table::exists() || process::is_borrowed() {
        return false;
    }
    let asks = local().is_asynchronous.replace(false);
    if asks {
        // SAFETY: a plain number.
        unsafe { real::pthread_setcanceltype(DEFERRED, null_mut()) };
    }
    asks
}

impl Drop for Deferred {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            set_cancel_type(ASYNCHRONOUS, null_mut());
        }
    }
}

/// While it exists, this thread is not cancelled: the program's call is no place for that, or is in the middle of something.
#[derive(Debug)]
pub(crate) struct Uncancelled(Option<c_int>);

impl Uncancelled {
    pub(crate) fn new() -> Uncancelled {
        const DISABLE: c_int = 1;
        // Nobody can cancel the only thread, and a child of `vfork` has its parent's.
        let may_be = !is_alone() && !process::is_borrowed();
        let mut before = 0;
        // SAFETY: a place of ours.
        let done = may_be && unsafe { real::pthread_setcancelstate(DISABLE, &raw mut before) } == 0;
        Uncancelled(done.then_some(before))
    }
}

/// Whether who asks to cancel this thread is heard now.
pub(crate) fn may_be_cancelled() -> bool {
    const ENABLE: c_int = 0;
    Uncancelled::new().0 == Some(ENABLE)
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: what it was.
            unsafe { real::pthread_setcancelstate(before, null_mut()) };
        }
    }
}

/// The thread's number, as the kernel knows it.
#[inline]
pub(crate) fn id() -> u32 {
    local().id()
}

impl Local {
    #[inline]
    fn id(&self) -> u32 {
        match self.id.get() {
            0 => self.learn_id(),
            id => id,
        }
    }

    /// A child that has our memory has a number of its own: what it has locked is known to be free once it is killed.
    #[cold]
    fn learn_id(&self) -> u32 {
        let id = sys::thread_id();
        if !(self.has_bare_child.get() && process::is_borrowed()) {
            self.forget_child();
            self.id.set(id);
        }
        id
    }

    /// What such a child was busy with when it was killed is nobody's work any more: nothing was locked when it was made.
    #[cold]
    fn forget_child(&self) {
        self.busy.set(0);
        // Signals that waited there were the child's, and so is the mask.
        if self.waits.replace(false) {
            self.kept_count.store(0, Relaxed);
            self.unblocked_after.set(0);
        }
    }

    #[cold]
    fn is_bare_child(&self) -> bool {
        let is_child = process::is_borrowed();
        // The parent goes on when the child has gone.
        self.has_bare_child.set(is_child);
        is_child
    }
}

/// The thread is about to make a child that has its memory, and lets it wait until that has another.
pub(crate) fn expect_bare_child() {
    let local = local();
    local.has_bare_child.set(true);
    // Both learn their own.
    local.id.set(0);
}

/// Whether it is such a child.
#[inline]
pub(crate) fn is_in_bare_child() -> bool {
    let local = local();
    local.has_bare_child.get() && local.is_bare_child()
}

/// How long ago, in cycles of `spin::clock`, this thread last asked for that; it is `now` then.
pub(crate) fn since_noted(now: u64) -> u64 {
    now.wrapping_sub(local().noted_at.replace(now))
}

/// In a forked child: the thread has a new number, and signals that wait are for the parent.
pub(crate) fn begin_child() {
    let local = local();
    local.id.set(0);
    local.busy.set(0);
    if local.waits.replace(false) {
        local.kept_count.store(0, Relaxed);
        set_mask(!local.unblocked_after.replace(0));
    }
}

/// After a fork, during which introductions and the heap stood still, in the parent.
pub(crate) fn end_fork() {
    let local = local();
    local.busy.set(0);
    if local.waits.get() {
        deliver(local);
    }
}

/// While it exists, this thread's signal handlers wait: they find no lock held, and may leave by `siglongjmp`.
#[derive(Debug)]
pub(crate) struct Busy(&'static Local);

impl Busy {
    #[inline]
    pub(crate) fn new() -> Busy {
        let local = local();
        // First: who learns its number is busy with nothing yet.
        local.id();
        local.busy.set(local.busy.get() + 1);
        Busy(local)
    }

    /// Takes a lock for this thread, whose handlers run while it has to wait for it.
    #[inline]
    pub(crate) fn lock(lock: &OwnerLock) -> (Held, Busy) {
        let busy = Busy::new();
        match lock.try_lock(busy.0.id()) {
            Some(held) => (held, busy),
            None => {
                drop(busy);
                Busy::lock_contended(lock)
            }
        }
    }

    #[cold]
    fn lock_contended(lock: &OwnerLock) -> (Held, Busy) {
        let mut turn = 0;
        loop {
            let busy = Busy::new();
            if let Some(held) = lock.lock_in_turn(busy.0.id(), turn) {
                return (held, busy);
            }
            turn += 1;
        }
    }
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        let local = self.0;
        let busy = local.busy.get().saturating_sub(1);
        local.busy.set(busy);
        if busy == 0 && local.waits.get() {
            deliver(local);
        }
    }
}

/// Has all signals wait, `also` these, once a handler has returned. What was blocked when it came.
fn hold(local: &Local, also: u64, context: *mut c_void) -> u64 {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel gives it to a handler with SA_SIGINFO. Of the mask it knows eight bytes, which hold when the handler returns.
    let mask = unsafe { &mut *(&raw mut (*context).uc_sigmask).cast::<u64>() };
    let before = *mask;
    // Several may come at once, and interrupt each other's handlers before they are here, here, or behind this: what was not blocked
    // before one of them is not in the end.
    let unblocked = &local.unblocked_after;
    unblocked.set(unblocked.get() | !before);
    *mask = before | ALL_BUT_FAULTS | also;
    before
}

/// A signal has come. True: it is kept, with all others, until this thread is busy no more.
pub(crate) fn must_wait(signal: c_int, info: *const siginfo_t, context: *mut c_void) -> bool {
    let local = local();
    if local.busy.get() == 0 {
        return false;
    }
    if local.id.get() == 0 && !process::is_borrowed() {
        local.forget_child();
        return false;
    }
    // A fault by `kill` would come again at once.
    let before = hold(local, bit(signal), context);
    let is_first = !local.waits.replace(true);
    // The first one comes first, by whatever way; of the others the kernel can keep most.
    if !is_first && signals::comes_again(signal) && send_again(signal, info) {
        return true;
    }
    // In one step: another one may come here between.
    let count = local.kept_count.fetch_add(1, Relaxed);
    let Some(place) = local.kept.get(usize::from(count)) else {
        local.kept_count.fetch_sub(1, Relaxed);
        send_again(signal, info);
        return true;
    };
    // SAFETY: the kernel gives it to a handler with SA_SIGINFO.
    let info = unsafe { *info };
    place.set(Kept {
        signal,
        mask: before,
        info,
    });
    true
}

/// Lets the signals that wait come, as they were, and then all others.
#[cold]
#[inline(never)]
fn deliver(local: &Local) {
    // Handlers may leave by a jump, and signals that come meanwhile are kept in the same places.
    let kept = local.kept.each_ref().map(Cell::get);
    let count = usize::from(local.kept_count.swap(0, Relaxed)).min(kept.len());
    let after = !local.unblocked_after.replace(0);
    local.waits.set(false);
    // What a handler has put into the mask that it found: that is in force afterwards.
    let mut chosen = None;
    for kept in &kept[..count] {
        let again =
            signals::comes_again(kept.signal) && send_again(kept.signal, &raw const kept.info);
        if !again {
            let mask = chosen.unwrap_or(kept.mask);
            let left = signals::run_kept(kept.signal, &kept.info, mask);
            chosen = (left != mask).then_some(left).or(chosen);
        }
    }
    set_mask(chosen.unwrap_or(after));
}

/// Sends a signal that has come to this thread once more, as it was. False: a filter has the kernel refuse that.
pub(crate) fn send_again(signal: c_int, info: *const siginfo_t) -> bool {
    let sent = kernel!(
        libc::SYS_rt_tgsigqueueinfo,
        crate::kernel::process_id(),
        sys::thread_id(),
        signal,
        info
    );
    sent == 0
}

/// Blocks these signals of this thread, and no others.
pub(crate) fn set_mask(mask: u64) {
    kernel!(
        libc::SYS_rt_sigprocmask,
        libc::SIG_SETMASK,
        &raw const mask,
        0usize,
        size_of::<u64>()
    );
}

/// Whether a signal of this thread is blocked.
pub(crate) fn blocks(signal: c_int) -> bool {
    let mut mask = 0u64;
    kernel!(
        libc::SYS_rt_sigprocmask,
        libc::SIG_BLOCK,
        0usize,
        &raw mut mask,
        size_of::<u64>()
    );
    mask & bit(signal) != 0
}

/// Blocks a signal of this thread, or blocks it no more, as `sigprocmask` calls that. Whether it was blocked before.
pub(crate) fn change_mask(how: c_int, signal: c_int) -> bool {
    let (one, mut before) = (bit(signal), 0u64);
    kernel!(
        libc::SYS_rt_sigprocmask,
        how,
        &raw const one,
        &raw mut before,
        size_of::<u64>()
    );
    before & one != 0
}

/// Whether a signal has come whose handler waits; see [`Busy`].
pub(crate) fn has_waiting() -> bool {
    local().waits.get()
}

/// What a system call answered, as the C library would say it.
pub(crate) fn told(answer: isize) -> isize {
    if answer < 0 {
        set_errno(-(answer as c_int));
        return -1;
    }
    answer
}

/// Sets the thread's `errno`.
pub(crate) fn set_errno(error: i32) {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = error };
}

/// What a function returns that fails with this error number.
#[cold]
pub(crate) fn fail(error: i32) -> c_int {
    set_errno(error);
    -1
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
        set_mask(self.0);
    }
}
