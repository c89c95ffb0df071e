//! The library's own heap.
//!
//! The program's `malloc` is out of bounds: the handler of a signal may call `write` or `poll` while `malloc` below it holds its lock,
//! and it may be the program's own, which knows nothing of ours. Here signals wait while the heap is locked. What is needed for
//! each message is on the stack (`smallvec`), so that this costs nothing then.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;

use dlmalloc::Dlmalloc;
use millrace_shm::lock::{Held, OwnerLock};

use crate::thread::{self, BlockedSignals};

#[global_allocator]
static HEAP: Heap = Heap {
    lock: OwnerLock::new(),
    inner: UnsafeCell::new(Dlmalloc::new()),
};

struct Heap {
    lock: OwnerLock,
    inner: UnsafeCell<Dlmalloc>,
}

// SAFETY: the heap is reached only through the lock.
unsafe impl Sync for Heap {}

impl Heap {
    /// Runs `work` on the locked heap.
    fn locked<T>(&self, work: impl FnOnce(&mut Dlmalloc) -> T) -> T {
        let _blocked = BlockedSignals::new();
        // It nests only where a handler runs between the two halves of a fork, which have left the heap whole.
        let held = self.lock.lock(thread::id());
        // SAFETY: we hold the lock.
        let result = work(unsafe { &mut *self.inner.get() });
        self.lock.unlock(held);
        result
    }
}

// SAFETY: memory comes from a well-kept allocator, under a lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        self.locked(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's place, which came from this heap with this layout.
        self.locked(|heap| unsafe { heap.free(place, layout.size(), layout.align()) });
    }
}

/// Before a fork: no other thread is in the middle of a change.
pub(crate) fn lock_for_fork() {
    HEAP.lock.lock(thread::id());
}

/// After it, in both processes.
pub(crate) fn unlock_after_fork() {
    HEAP.lock.unlock(Held::Owned);
}
