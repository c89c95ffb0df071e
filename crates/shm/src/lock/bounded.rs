//! Taking a lock without being held up by its owner.

use std::time::{Duration, Instant};

use super::OwnerLock;
use crate::atomic::Ordering;
#[cfg(loom)]
use crate::model::yield_now;
#[cfg(not(loom))]
use crate::sys::yield_now;

impl OwnerLock {
    /// Takes the lock for `thread` if it is free, or is given back within `patience`. True: it is taken; give it back with
    /// [`Held::Owned`](super::Held::Owned).
    ///
    /// For one who trusts no owner: a dead one is not succeeded, because its number may be of another PID namespace, where
    /// the caller cannot ask whether it lives; and one that bears the caller's own number does not make the lock nest.
    #[must_use]
    pub fn try_lock_for(&self, thread: u32, patience: Duration) -> bool {
        let start = Instant::now();
        loop {
            // Acquire: pairs with the Release in `unlock`; the last owner's writes are visible after it.
            if self
                .0
                .compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return true;
            }
            if start.elapsed() >= patience {
                return false;
            }
            yield_now();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lock::Held;

    #[test]
    fn a_lock_that_is_not_given_back_is_given_up() {
        let lock = OwnerLock::new();
        assert!(lock.try_lock_for(7, Duration::ZERO));
        assert!(!lock.try_lock_for(8, Duration::from_millis(1)));
        assert!(!lock.try_lock_for(7, Duration::ZERO), "it does not nest");
        lock.unlock(Held::Owned);
        assert!(lock.try_lock_for(8, Duration::ZERO));
    }
}
