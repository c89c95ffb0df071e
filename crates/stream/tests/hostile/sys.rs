//! Memory: a buffer between pages that nobody may touch, and a peer's raw stores.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use millrace_shm::gate::GateWord;
use millrace_shm::segment::Segment;
use millrace_shm::{Mapping, sys};

const PAGE_BYTES: usize = 4096;

/// A buffer that ends where a forbidden page begins.
pub(crate) struct Guarded {
    base: std::ptr::NonNull<u8>,
    bytes: usize,
}

impl Guarded {
    /// `bytes` is a whole number of pages.
    pub(crate) fn new(bytes: usize) -> Guarded {
        assert!(bytes.is_multiple_of(PAGE_BYTES));
        let base = sys::map_private(bytes + 2 * PAGE_BYTES).unwrap();
        for page in [0, PAGE_BYTES + bytes] {
            let place = base.as_ptr().addr() + page;
            let arguments = [place, PAGE_BYTES, libc::PROT_NONE as usize, 0, 0, 0];
            // SAFETY: a page of the mapping that we have just made.
            let result = unsafe { sys::call(libc::SYS_mprotect, arguments) };
            assert_eq!(result, 0);
        }
        Guarded { base, bytes }
    }

    /// The last `bytes` bytes before the guard.
    fn last(&self, bytes: u32) -> *mut u8 {
        let bytes = bytes as usize;
        assert!(bytes <= self.bytes);
        let end = self.base.as_ptr().wrapping_add(PAGE_BYTES + self.bytes);
        end.wrapping_sub(bytes)
    }

    /// Copies the buffer's last bytes to the ring of `direction`.
    pub(crate) fn write(
        &self,
        segment: &Segment,
        direction: usize,
        tail: u32,
        (bytes, window): (u32, u32),
    ) {
        // SAFETY: `last` gives as many bytes; the page behind them would end the test.
        unsafe { segment.write(direction, tail, window, self.last(bytes), bytes) };
    }

    /// Copies from the ring of `direction` to the buffer's last bytes.
    pub(crate) fn read(
        &self,
        segment: &Segment,
        direction: usize,
        head: u32,
        (bytes, window): (u32, u32),
    ) {
        // SAFETY: as in `write`.
        unsafe { segment.read(direction, head, window, self.last(bytes), bytes) };
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { sys::unmap(self.base, self.bytes + 2 * PAGE_BYTES) };
    }
}

/// Stores a byte anywhere in the segment.
pub(crate) fn store(mapping: &Mapping, offset: usize, value: u8) {
    assert!(offset < mapping.bytes());
    // SAFETY: within the mapping.
    let place = unsafe { mapping.base().add(offset) };
    // SAFETY: a byte of memory that everybody accesses by atomics or raw copies.
    unsafe { place.cast::<AtomicU8>().as_ref() }.store(value, Relaxed);
}

/// Turns over bits of a gate.
pub(crate) fn flip(gate: &GateWord, bits: u64) {
    let word = std::ptr::from_ref(gate).cast::<AtomicU64>();
    // SAFETY: the gate is one 64-bit atomic word, and transparent.
    unsafe { &*word }.fetch_xor(bits, Relaxed);
}
