//! The library's own heap.
//!
//! The program's `malloc` is out of bounds: the handler of a signal may call `write` or `poll` while `malloc` below it holds its lock,
//! and it may be the program's own, which knows nothing of ours. Here signals wait while the heap is locked. What is needed for
//! each message is on the stack (`smallvec`), so that this costs nothing then.
//!
//! A program that runs out of memory goes on, and so do we: some is kept, with which the process leaves the rings.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{AcqRel, Relaxed},
};

use dlmalloc::{Allocator, Dlmalloc};
use millrace_shm::lock::{Held, OwnerLock};

use crate::kernel::kernel;
use crate::thread::{self, BlockedSignals};

/// What is kept for the time when there is no more. Nothing touches it, so that it is numbers only until then.
const KEPT: Layout = match Layout::from_size_align(512 << 10, 16) {
    Ok(layout) => layout,
    Err(_) => panic!("a size and a power of two"),
};

static RESERVE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static IS_SCARCE: AtomicBool = AtomicBool::new(false);

#[global_allocator]
static HEAP: Heap = Heap {
    lock: OwnerLock::new(),
    inner: UnsafeCell::new(Dlmalloc::new_with_allocator(Kernel)),
};

struct Heap {
    lock: OwnerLock,
    inner: UnsafeCell<Dlmalloc<Kernel>>,
}

// SAFETY: the heap is reached only through the lock.
unsafe impl Sync for Heap {}

/// Memory from the kernel itself: a library that stands before `mmap` would find the heap locked.
struct Kernel;

/// What the kernel says of memory; null for an error.
fn place(answer: isize) -> *mut u8 {
    // Errors are the last page of the numbers.
    if (-4095..0).contains(&answer) {
        null_mut()
    } else {
        answer as *mut u8
    }
}

/// Pages for so many bytes; null: there are none.
pub(crate) fn map(bytes: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    place(kernel!(
        libc::SYS_mmap,
        0usize,
        bytes,
        access,
        kind,
        usize::MAX,
        0usize
    ))
}

// SAFETY: pages that nobody else has, which become more, fewer, or none as the allocator says.
unsafe impl Allocator for Kernel {
    fn alloc(&self, bytes: usize) -> (*mut u8, usize, u32) {
        (map(bytes), bytes, 0)
    }

    fn remap(&self, start: *mut u8, before: usize, bytes: usize, can_move: bool) -> *mut u8 {
        let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
        place(kernel!(libc::SYS_mremap, start, before, bytes, flags))
    }

    fn free_part(&self, start: *mut u8, before: usize, bytes: usize) -> bool {
        kernel!(libc::SYS_munmap, start as usize + bytes, before - bytes) == 0
    }

    fn free(&self, start: *mut u8, bytes: usize) -> bool {
        kernel!(libc::SYS_munmap, start, bytes) == 0
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        // SAFETY: takes a number.
        unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
    }
}

impl Heap {
    /// Runs `work` on the locked heap.
    fn locked<T>(&self, work: impl FnOnce(&mut Dlmalloc<Kernel>) -> T) -> T {
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
        self.locked(|heap| {
            // SAFETY: the caller's layout.
            let found = unsafe { heap.malloc(layout.size(), layout.align()) };
            let reserve = if found.is_null() {
                RESERVE.swap(null_mut(), AcqRel)
            } else {
                null_mut()
            };
            if reserve.is_null() {
                return found;
            }
            IS_SCARCE.store(true, Relaxed);
            // SAFETY: it came from this heap with this layout; and as above.
            unsafe {
                heap.free(reserve, KEPT.size(), KEPT.align());
                heap.malloc(layout.size(), layout.align())
            }
        })
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's place, which came from this heap with this layout.
        self.locked(|heap| unsafe { heap.free(place, layout.size(), layout.align()) });
    }
}

/// Keeps some memory for the time when there is no more. False: that is now.
pub(crate) fn keep_reserve() -> bool {
    // SAFETY: not of zero bytes.
    let kept = unsafe { HEAP.alloc(KEPT) };
    RESERVE.store(kept, Relaxed);
    !kept.is_null()
}

/// Whether that time has come.
#[inline]
pub(crate) fn is_scarce() -> bool {
    IS_SCARCE.load(Relaxed)
}

/// Before a fork: no other thread is in the middle of a change.
pub(crate) fn lock_for_fork() {
    HEAP.lock.lock(thread::id());
}

/// After it, in both processes.
pub(crate) fn unlock_after_fork() {
    HEAP.lock.unlock(Held::Owned);
}
