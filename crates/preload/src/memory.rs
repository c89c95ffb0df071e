//! The library's own heap.
//!
//! The program's `malloc` is out of bounds: the handler of a signal may call `write` or `poll` while `malloc` below it holds its lock,
//! and it may be the program's own, which knows nothing of ours. Here signals wait while the heap is locked. What is needed for
//! each message is on the stack (`smallvec`), so that this costs nothing then.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};

use dlmalloc::Dlmalloc;
use millrace_shm::lock::{Held, OwnerLock};

use crate::thread::{self, BlockedSignals};

/// Bytes for handlers that run in the middle of a fork.
const SPARE_BYTES: usize = 64 << 10;

#[global_allocator]
static HEAP: Heap = Heap {
    lock: OwnerLock::new(),
    inner: UnsafeCell::new(Dlmalloc::new()),
    forking: AtomicBool::new(false),
    spare: Spare(UnsafeCell::new([0; SPARE_BYTES])),
    spare_used: AtomicUsize::new(0),
};

struct Heap {
    lock: OwnerLock,
    inner: UnsafeCell<Dlmalloc>,
    /// The lock is held for a fork, whose child must find a whole heap.
    forking: AtomicBool,
    spare: Spare,
    spare_used: AtomicUsize,
}

#[repr(align(64))]
struct Spare(UnsafeCell<[u8; SPARE_BYTES]>);

// SAFETY: the heap is reached only through the lock, and each part of the spare is given out once.
unsafe impl Sync for Heap {}

impl Heap {
    /// Runs `work` on the locked heap. None: this thread holds it for a fork, and a handler runs in between.
    fn locked<T>(&self, work: impl FnOnce(&mut Dlmalloc) -> T) -> Option<T> {
        let _waiting = BlockedSignals::new();
        let held = self.lock.lock(thread::id());
        if held == Held::Nested && self.forking.load(Relaxed) {
            return None;
        }
        // SAFETY: we hold the lock.
        let result = work(unsafe { &mut *self.inner.get() });
        self.lock.unlock(Held::Owned);
        Some(result)
    }

    /// A part of the spare, which is never given back; null when it is used up.
    fn spare(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size() + layout.align();
        let at = self.spare_used.fetch_add(bytes, AcqRel);
        if at.saturating_add(bytes) > SPARE_BYTES {
            return std::ptr::null_mut();
        }
        let start = self.spare.0.get().cast::<u8>().wrapping_add(at);
        start.wrapping_add(start.align_offset(layout.align()))
    }

    fn is_spare(&self, place: *mut u8) -> bool {
        let start = self.spare.0.get() as usize;
        (start..start + SPARE_BYTES).contains(&(place as usize))
    }
}

// SAFETY: memory comes from one well-kept allocator under a lock, or from parts of the spare that are given out once.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        self.locked(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
            .unwrap_or_else(|| self.spare(layout))
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        if !self.is_spare(place) {
            // In the middle of a fork it is lost.
            // SAFETY: the caller's place, which came from this heap with this layout.
            self.locked(|heap| unsafe { heap.free(place, layout.size(), layout.align()) });
        }
    }
}

/// Before a fork: no other thread is in the middle of a change.
pub(crate) fn lock_for_fork() {
    HEAP.lock.lock(thread::id());
    HEAP.forking.store(true, Relaxed);
}

/// After it, in both processes.
pub(crate) fn unlock_after_fork() {
    HEAP.forking.store(false, Relaxed);
    HEAP.lock.unlock(Held::Owned);
}
