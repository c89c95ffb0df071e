//! A few pieces of memory that threads take in turn: no allocation, and nothing on a stack that may be small.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

/// `N` places, zeros at first. One that was taken by a thread that a fork left behind stays taken in the child.
pub(crate) struct Pool<T, const N: usize>([Place<T>; N]);

struct Place<T> {
    is_taken: AtomicBool,
    memory: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the memory is that of the thread that has taken it.
unsafe impl<T, const N: usize> Sync for Pool<T, N> {}

impl<T, const N: usize> Pool<T, N> {
    /// Pages of it are there when they are first touched.
    pub(crate) const fn new() -> Self {
        Self(
            [const {
                Place {
                    is_taken: AtomicBool::new(false),
                    memory: UnsafeCell::new(MaybeUninit::zeroed()),
                }
            }; N],
        )
    }

    /// What was given back last is still in there.
    pub(crate) fn take(&self) -> Option<*mut T> {
        // Acquire: pairs with the Release in `give_back`; what the last thread wrote is there.
        let is_free = |place: &&Place<T>| !place.is_taken.swap(true, Acquire);
        Some(self.0.iter().find(is_free)?.memory.get().cast())
    }

    /// False: it is not from here.
    pub(crate) fn give_back(&self, memory: *mut T) -> bool {
        let place = self
            .0
            .iter()
            .find(|place| place.memory.get().cast() == memory);
        if let Some(place) = place {
            place.is_taken.store(false, Release);
        }
        place.is_some()
    }
}
