//! Whether the program's buffers are really there.
//!
//! The kernel answers a bad pointer with EFAULT; a copy of ours would be a SIGSEGV. So memory is tried by the kernel before it is first
//! touched, and each thread remembers the ranges that it found good. The memory is forgotten when the program unmaps or protects anything.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::kernel::kernel;

const PAGE: usize = 4096;
const RANGES: usize = 4;
const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;

/// Counts the program's changes to its address space.
static EPOCH: AtomicU32 = AtomicU32::new(0);

#[derive(Clone, Copy)]
struct Known {
    epoch: u32,
    next: usize,
    ranges: [(usize, usize); RANGES],
}

const NOTHING: Known = Known {
    epoch: 0,
    next: 0,
    ranges: [(0, 0); RANGES],
};

thread_local! {
    static READABLE: Cell<Known> = const { Cell::new(NOTHING) };
    static WRITABLE: Cell<Known> = const { Cell::new(NOTHING) };
}

/// The program changed its address space.
pub(crate) fn forget() {
    EPOCH.fetch_add(1, Relaxed);
}

/// Whether `bytes` bytes at `start` can be read.
#[inline]
pub(crate) fn can_read(start: *const u8, bytes: usize) -> bool {
    READABLE.with(|known| is_good(known, start as usize, bytes, MADV_POPULATE_READ))
}

/// Whether `bytes` bytes at `start` can be written.
#[inline]
pub(crate) fn can_write(start: *mut u8, bytes: usize) -> bool {
    WRITABLE.with(|known| is_good(known, start as usize, bytes, MADV_POPULATE_WRITE))
}

#[inline]
fn is_good(known: &Cell<Known>, start: usize, bytes: usize, advice: i32) -> bool {
    let Some(end) = start.checked_add(bytes) else {
        return false;
    };
    // SAFETY: a thread-local cell of plain values; no reference outlives this function.
    let seen = unsafe { &*known.as_ptr() };
    let fresh = seen.epoch == EPOCH.load(Relaxed);
    if fresh
        && seen
            .ranges
            .iter()
            .any(|(low, high)| *low <= start && end <= *high)
    {
        return true;
    }
    try_memory(known, start, end, advice)
}

#[cold]
fn try_memory(known: &Cell<Known>, start: usize, end: usize, advice: i32) -> bool {
    let (low, high) = (
        start & !(PAGE - 1),
        end.saturating_add(PAGE - 1) & !(PAGE - 1),
    );
    let answer = kernel!(libc::SYS_madvise, low, high - low, advice);
    let unknown_advice = -(libc::EINVAL as isize);
    if answer != 0 && answer != unknown_advice && answer != -(libc::EAGAIN as isize) {
        return false;
    }
    let mut now = known.get();
    let epoch = EPOCH.load(Relaxed);
    if now.epoch != epoch {
        now = Known { epoch, ..NOTHING };
    }
    if let Some(range) = now
        .ranges
        .iter_mut()
        .find(|range| range.0 <= high && low <= range.1 && range.1 != 0)
    {
        *range = (range.0.min(low), range.1.max(high));
    } else {
        now.ranges[now.next] = (low, high);
        now.next = (now.next + 1) % RANGES;
    }
    known.set(now);
    true
}
