//! What belongs to one thread of the program.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::Relaxed};

use libc::{c_int, c_void, siginfo_t};
use millrace_shm::lock::{Held, OwnerLock};
use millrace_shm::sys;

use crate::kernel::kernel;
use crate::{objects, process, signals};

/// What is looked at in every call, at one address.
struct Local {
    id: Cell<u32>,
    /// Locks held, and other work that a signal handler must not find half done.
    busy: Cell<u32>,
    /// A signal waits for the end of that work, in `WAITING`.
    waits: Cell<bool>,
    /// The thread has made, or is, a child that has its memory.
    has_bare_child: Cell<bool>,
}

/// A signal that has come, and the mask of those that were blocked before it.
#[derive(Clone, Copy)]
struct Waiting {
    signal: c_int,
    info: siginfo_t,
    mask: u64,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            id: Cell::new(0),
            busy: Cell::new(0),
            waits: Cell::new(false),
            has_bare_child: Cell::new(false),
        }
    };
    static WAITING: Cell<Option<Waiting>> = const { Cell::new(None) };
    static NOTED_AT: Cell<u64> = const { Cell::new(0) };
    static INTERRUPTS: Cell<u32> = const { Cell::new(0) };
    static STRICT_INTERRUPTS: Cell<u32> = const { Cell::new(0) };
}

/// The C library's own word for whether the process has a single thread (`sys/single_threaded.h`, glibc 2.32).
static SINGLE: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());

/// Looks for that word.
pub(crate) fn look_up_single() {
    let word = objects::any(c"__libc_single_threaded");
    SINGLE.store(word.cast(), Relaxed);
}

/// Whether this thread is the only one, as far as can be told: nobody else changes anything while it sleeps.
#[inline]
pub(crate) fn is_alone() -> bool {
    // SAFETY: null, or the C library's word, which is one byte and stays.
    unsafe { SINGLE.load(Relaxed).as_ref() }.is_some_and(|single| single.load(Relaxed) != 0)
}

/// The thread's number, as the kernel knows it.
#[inline]
pub(crate) fn id() -> u32 {
    LOCAL.with(Local::id)
}

impl Local {
    #[inline]
    fn id(&self) -> u32 {
        match self.id.get() {
            0 => self.learn_id(),
            id => id,
        }
    }

    #[cold]
    fn learn_id(&self) -> u32 {
        self.id.set(sys::thread_id());
        self.id.get()
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
    LOCAL.with(|local| local.has_bare_child.set(true));
}

/// Whether it is such a child.
#[inline]
pub(crate) fn is_in_bare_child() -> bool {
    LOCAL.with(|local| local.has_bare_child.get() && local.is_bare_child())
}

/// How long ago, in cycles of `spin::clock`, this thread last asked for that; it is `now` then.
pub(crate) fn since_noted(now: u64) -> u64 {
    now.wrapping_sub(NOTED_AT.replace(now))
}

/// In a forked child: the thread has a new number, and a signal that waits is for the parent.
pub(crate) fn begin_child() {
    LOCAL.with(|local| {
        local.id.set(0);
        local.busy.set(0);
        if local.waits.replace(false)
            && let Some(waiting) = WAITING.take()
        {
            set_mask(waiting.mask);
        }
    });
}

/// After a fork, during which introductions and the heap stood still, in the parent.
pub(crate) fn end_fork() {
    LOCAL.with(|local| {
        local.busy.set(0);
        if local.waits.get() {
            deliver(local);
        }
    });
}

/// While it exists, this thread's signal handlers wait: they find no lock held, and may leave by `siglongjmp`.
#[derive(Debug)]
pub(crate) struct Busy(*const Local);

impl Busy {
    #[inline]
    pub(crate) fn new() -> Busy {
        LOCAL.with(|local| {
            local.busy.set(local.busy.get() + 1);
            Busy(local)
        })
    }

    #[inline]
    fn local(&self) -> &Local {
        // SAFETY: this thread's, which does not leave this thread; it has no destructor that would end it before.
        unsafe { &*self.0 }
    }

    /// Takes a lock for this thread, whose handlers run while it has to wait for it.
    #[inline]
    pub(crate) fn lock(lock: &OwnerLock) -> (Held, Busy) {
        let busy = Busy::new();
        match lock.try_lock(busy.local().id()) {
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
            if let Some(held) = lock.lock_in_turn(busy.local().id(), turn) {
                return (held, busy);
            }
            turn += 1;
        }
    }
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        let local = self.local();
        let busy = local.busy.get().saturating_sub(1);
        local.busy.set(busy);
        if busy == 0 && local.waits.get() {
            deliver(local);
        }
    }
}

/// A signal has come. True: it is kept, with all others, until this thread is busy no more.
pub(crate) fn must_wait(signal: c_int, info: *const siginfo_t, context: *mut c_void) -> bool {
    LOCAL.with(|local| {
        if local.busy.get() == 0 || local.waits.get() {
            return false;
        }
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel gives both to a handler with SA_SIGINFO. Of the mask it knows eight bytes, which hold when the
        // handler returns.
        let (info, mask) = unsafe { (*info, &mut *(&raw mut (*context).uc_sigmask).cast::<u64>()) };
        let mask = std::mem::replace(mask, u64::MAX);
        WAITING.set(Some(Waiting { signal, info, mask }));
        local.waits.set(true);
        true
    })
}

/// Lets the signal that waits come, as it was, and then all others.
#[cold]
fn deliver(local: &Local) {
    local.waits.set(false);
    let Some(waiting) = WAITING.take() else {
        return;
    };
    if signals::run_kept(waiting.signal, &waiting.info, waiting.mask) {
        return;
    }
    send_again(waiting.signal, &raw const waiting.info);
    set_mask(waiting.mask);
}

/// Sends a signal that has come to this thread once more, as it was.
pub(crate) fn send_again(signal: c_int, info: *const siginfo_t) {
    kernel!(
        libc::SYS_rt_tgsigqueueinfo,
        crate::kernel::process_id(),
        sys::thread_id(),
        signal,
        info
    );
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

/// Blocks a signal of this thread, or blocks it no more, as `sigprocmask` calls that. Whether it was blocked before.
pub(crate) fn change_mask(how: c_int, signal: c_int) -> bool {
    let (one, mut before) = (1u64 << (signal - 1), 0u64);
    kernel!(
        libc::SYS_rt_sigprocmask,
        how,
        &raw const one,
        &raw mut before,
        size_of::<u64>()
    );
    before & one != 0
}

/// Signal handlers that have run on this thread so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interrupts {
    /// Of any kind: `poll`, `select` and `epoll_wait` are never restarted after a handler.
    pub(crate) any: u32,
    /// Of those installed without SA_RESTART: other calls fail with EINTR only after these.
    pub(crate) strict: u32,
}

impl Interrupts {
    /// Whether a handler that has run since these were counted ends a receiving call: if the call `has_some` bytes to return, any does.
    pub(crate) fn end_call(self, has_some: bool) -> bool {
        let now = interrupts();
        now.strict != self.strict || has_some && now.any != self.any
    }
}

/// The counts now.
#[inline]
pub(crate) fn interrupts() -> Interrupts {
    Interrupts {
        any: INTERRUPTS.get(),
        strict: STRICT_INTERRUPTS.get(),
    }
}

/// A handler runs.
pub(crate) fn count_interrupt(restarts: bool) {
    INTERRUPTS.set(INTERRUPTS.get().wrapping_add(1));
    if !restarts {
        STRICT_INTERRUPTS.set(STRICT_INTERRUPTS.get().wrapping_add(1));
    }
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
