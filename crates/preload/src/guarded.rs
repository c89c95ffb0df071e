//! A value behind a lock that this process's threads share.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use millrace_shm::lock::{Held, OwnerLock};

use crate::thread::{self, Busy};

/// How often a fork gives the processor away for a lock.
const FORK_TURNS_MAX: u32 = 20;

/// A value and its lock. Handlers of the owner's signals wait; those that go around us do not get in.
#[derive(Debug, Default)]
pub(crate) struct Guarded<T> {
    lock: OwnerLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the lock.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) const fn new(value: T) -> Guarded<T> {
        Guarded {
            lock: OwnerLock::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock. None: this very thread holds it, below on its stack, and we run in a signal handler.
    #[inline]
    pub(crate) fn lock(&self) -> Option<Guard<'_, T>> {
        let (held, busy) = Busy::lock(&self.lock);
        (held != Held::Nested).then_some(Guard {
            guarded: self,
            held,
            _busy: busy,
        })
    }

    /// Makes the lock free whoever holds it.
    pub(crate) fn force_unlock(&self) {
        self.lock.unlock(Held::Owned);
    }

    /// Before a fork: takes the lock, so that the child gets the value whole. Not for long: who holds it may wait for us.
    pub(crate) fn lock_for_fork(&self) {
        let thread = thread::id();
        let soon = |turn| self.lock.lock_in_turn(thread, turn).is_some();
        let _ = self.lock.try_lock(thread).is_some() || (0..FORK_TURNS_MAX).any(soon);
    }

    /// After it, in the parent: frees what this thread has locked for it.
    pub(crate) fn unlock_after_fork(&self) {
        if self.lock.owner() == thread::id() {
            self.force_unlock();
        }
    }
}

impl<T: Default> Guarded<T> {
    /// In a forked child, whose other threads are gone: frees the lock. The value begins anew where one of these was at it, and may have
    /// left it in pieces: then the answer is false. `forker` is the thread that forked, by its number in the parent.
    pub(crate) fn begin_child(&self, forker: u32) -> bool {
        let owner = self.lock.owner();
        let is_whole = owner == 0 || owner == forker;
        if !is_whole {
            // SAFETY: no other thread is here. What the pieces own is not given back: they may own it no more.
            unsafe { self.value.get().write(T::default()) };
        }
        self.force_unlock();
        is_whole
    }
}

/// The locked value.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    guarded: &'a Guarded<T>,
    held: Held,
    _busy: Busy,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.guarded.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock, and borrow the guard mutably.
        unsafe { &mut *self.guarded.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.guarded.lock.unlock(self.held);
    }
}
