//! A lock in memory that several processes share, known by its owner's thread number.
//!
//! It is held for a copy and a few words, never across a sleep. An owner that died is noticed and succeeded.
//! An owner that is the calling thread itself was interrupted by a signal whose handler calls us: it waits
//! beneath us on the stack, so we go on, and it finds out when it commits (its compare-and-swap fails).
//! It may be in the middle of a copy *to* the ring, so a nested sender leaves the ring alone and goes by the kernel.

mod bounded;

use crate::atomic::{AtomicU32, Ordering};
#[cfg(loom)]
use crate::model::{has_ended, thread_exists, yield_now, yield_now as nap};
#[cfg(not(loom))]
use crate::sys::{has_ended, nap, thread_exists, yield_now};

/// Looks at the lock before the processor is given away.
const SPINS_BEFORE_YIELD: u32 = if cfg!(loom) { 1 } else { 200 };
/// Times the processor is given away before we ask whether the owner is alive.
const YIELDS_BEFORE_QUESTION: u32 = if cfg!(loom) { 1 } else { 50 };

/// Such questions before we ask whether it has ended and only its number is left, until its parent waits for it: some 20 ms. A security
/// module may note that question down.
const QUESTIONS_BEFORE_LOOK: u32 = if cfg!(loom) { 1 } else { 64 };

/// Turns until an agent is believed to be dead: some ten seconds.
const AGENT_TURNS: u32 = 100_000 * YIELDS_BEFORE_QUESTION;

/// The lock word: zero, or the owner's thread number.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct OwnerLock(AtomicU32);

/// How a lock was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// It was free; unlock it.
    Owned,
    /// Its owner died, perhaps in the middle of its work: put right what it left, then unlock it.
    Inherited,
    /// The calling thread holds it already, below on its stack; do not unlock it.
    Nested,
}

impl OwnerLock {
    /// The agent as an owner, which may be in another PID namespace, where its number means nothing: no thread has this one. What it does
    /// with a lock ends within seconds.
    pub const AGENT: u32 = 1 << 31;

    /// A free lock.
    #[must_use]
    #[cfg(not(loom))]
    pub const fn new() -> OwnerLock {
        OwnerLock(AtomicU32::new(0))
    }

    /// For models: the calling thread's operations on the lock go wrong from now on.
    #[cfg(loom)]
    pub fn break_here(&self, fault: crate::model::Fault) {
        self.0.break_here(fault);
    }

    /// Takes the lock for `thread`.
    #[inline]
    pub fn lock(&self, thread: u32) -> Held {
        match self.try_lock(thread) {
            Some(held) => held,
            None => self.lock_contended(thread),
        }
    }

    /// Takes the lock for `thread` if it can be had at once.
    #[inline]
    pub fn try_lock(&self, thread: u32) -> Option<Held> {
        // Acquire: pairs with the Release in `unlock`; the last owner's writes are visible after it.
        match self
            .0
            .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Some(Held::Owned),
            Err(owner) if owner == thread => Some(Held::Nested),
            Err(_) => None,
        }
    }

    /// The number of the thread that holds it; zero when it is free.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    #[cold]
    fn lock_contended(&self, thread: u32) -> Held {
        let mut turn = 0;
        loop {
            if let Some(held) = self.lock_in_turn(thread, turn) {
                return held;
            }
            turn += 1;
        }
    }

    /// Waits for the lock a moment, in the `turn`th turn of the same caller. None: it is still taken.
    #[cold]
    pub fn lock_in_turn(&self, thread: u32, turn: u32) -> Option<Held> {
        for _ in 0..SPINS_BEFORE_YIELD {
            if self.0.load(Ordering::Relaxed) == 0 && self.succeed(0, thread) {
                return Some(Held::Owned);
            }
            std::hint::spin_loop();
        }
        yield_now();
        if (turn + 1).is_multiple_of(YIELDS_BEFORE_QUESTION) {
            let looks = (turn + 1).is_multiple_of(YIELDS_BEFORE_QUESTION * QUESTIONS_BEFORE_LOOK);
            let owner = self.0.load(Ordering::Relaxed);
            let is_dead = match owner {
                0 => false,
                OwnerLock::AGENT => turn >= AGENT_TURNS,
                _ => !thread_exists(owner) || looks && has_ended(owner),
            };
            if is_dead && self.succeed(owner, thread) {
                return Some(Held::Inherited);
            }
            // To one that a scheduling policy puts behind us the processor is not given away by that.
            nap();
        }
        None
    }

    fn succeed(&self, owner: u32, thread: u32) -> bool {
        // Acquire: as in `lock`.
        self.0
            .compare_exchange(owner, thread, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Gives the lock back if the agent has it, whose worker does nothing more.
    pub fn free_from_agent(&self) {
        // Release: as in `unlock`.
        let _ = self
            .0
            .compare_exchange(Self::AGENT, 0, Ordering::Release, Ordering::Relaxed);
    }

    /// Gives the lock back, unless it is still needed below on the stack.
    #[inline]
    pub fn unlock(&self, held: Held) {
        if held != Held::Nested {
            // Release: pairs with the Acquire in `lock`.
            self.0.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys;

    /// Memory that a child shares, with a lock in it that is free.
    #[cfg(not(miri))]
    fn shared_lock() -> &'static OwnerLock {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: new memory.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
        assert_ne!(place, libc::MAP_FAILED);
        // SAFETY: zeros are a free lock, and the memory stays.
        unsafe { &*place.cast::<OwnerLock>() }
    }

    #[cfg(not(miri))]
    fn fork() -> libc::pid_t {
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        child
    }

    /// The owner's parent, which is not the caller, does not wait for it.
    #[test]
    #[cfg(not(miri))]
    fn an_owner_that_is_dead_and_not_waited_for_is_succeeded() {
        let lock = shared_lock();
        let parent = fork();
        if parent == 0 {
            if fork() == 0 {
                lock.lock(sys::thread_id());
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) };
            }
            loop {
                // SAFETY: plain arguments.
                unsafe { libc::pause() };
            }
        }
        while lock.owner() == 0 {
            yield_now();
        }
        let me = sys::thread_id();
        let turns = 8 * QUESTIONS_BEFORE_LOOK * YIELDS_BEFORE_QUESTION;
        let held = (0..turns).find_map(|turn| lock.lock_in_turn(me, turn));
        // SAFETY: a child of ours.
        unsafe {
            libc::kill(parent, libc::SIGKILL);
            libc::waitpid(parent, std::ptr::null_mut(), 0);
        }
        assert_eq!(held, Some(Held::Inherited));
    }

    #[test]
    #[cfg(not(miri))]
    fn an_owner_that_sleeps_is_waited_for() {
        let lock = shared_lock();
        let owner = fork();
        if owner == 0 {
            lock.lock(sys::thread_id());
            loop {
                // SAFETY: plain arguments.
                unsafe { libc::pause() };
            }
        }
        while lock.owner() == 0 {
            yield_now();
        }
        assert!(!sys::has_ended(lock.owner()) && !sys::has_ended(sys::thread_id()));
        let me = sys::thread_id();
        let turns = 2 * QUESTIONS_BEFORE_LOOK * YIELDS_BEFORE_QUESTION;
        let held = (0..turns).find_map(|turn| lock.lock_in_turn(me, turn));
        // SAFETY: a child of ours.
        unsafe {
            libc::kill(owner, libc::SIGKILL);
            libc::waitpid(owner, std::ptr::null_mut(), 0);
        }
        assert_eq!(held, None);
        assert_eq!(lock.lock(me), Held::Inherited);
    }

    #[test]
    fn the_same_thread_nests() {
        let lock = OwnerLock::default();
        let me = sys::thread_id();
        let outer = lock.lock(me);
        assert_eq!(outer, Held::Owned);
        let inner = lock.lock(me);
        assert_eq!(inner, Held::Nested);
        lock.unlock(inner);
        assert_eq!(lock.lock(me), Held::Nested);
        lock.unlock(outer);
        assert_eq!(lock.lock(me), Held::Owned);
    }

    #[test]
    fn a_dead_owner_is_succeeded() {
        let lock = std::sync::Arc::new(OwnerLock::default());
        let other = std::sync::Arc::clone(&lock);
        std::thread::spawn(move || assert_eq!(other.lock(sys::thread_id()), Held::Owned))
            .join()
            .unwrap();
        assert_eq!(lock.lock(sys::thread_id()), Held::Inherited);
    }
}
