//! A value behind a lock that this process's threads share.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use millrace_shm::lock::{Held, OwnerLock};

use crate::thread::Busy;

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

    /// Makes the lock free whoever held it: in a forked child, whose other threads are gone.
    pub(crate) fn force_unlock(&self) {
        self.lock.unlock(Held::Owned);
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
