//! Rings in shared memory: each word may be written by the peer at any time.
#![allow(
    unsafe_code,
    reason = "atomics in a mapping at places that were checked"
)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use millrace_wire::virtio::{
    DESCRIPTOR_BYTES, EVENT_BYTES, RING_ENTRIES, RING_INDEX, available_bytes, used_bytes,
};

use crate::memory::{Memory, Place};

/// A place that stays mapped, and is aligned.
#[derive(Debug, Clone)]
struct Area {
    base: NonNull<u8>,
    _memory: Arc<Memory>,
}

// SAFETY: the memory is mapped as long as the area has its share of it, wherever it is used, and is accessed by atomics only.
unsafe impl Send for Area {}

impl Area {
    fn new(memory: &Arc<Memory>, place: Place, bytes: usize, align: usize) -> Option<Area> {
        if (place.length as usize) < bytes || !memory.contains(place) {
            return None;
        }
        let base = memory.start(place);
        base.addr().get().is_multiple_of(align).then(|| Area {
            base,
            _memory: memory.clone(),
        })
    }

    /// # Safety
    /// `offset` is inside of what `new` was asked for, with all bytes of a `T` from there on, and a multiple of its alignment, as the
    /// area's own alignment is.
    #[inline]
    unsafe fn at<T>(&self, offset: usize) -> &T {
        // SAFETY: the caller's promise.
        let start = unsafe { self.base.add(offset) };
        // SAFETY: mapped and aligned, by the caller's promise; `T` is an atomic, which may be written by anybody.
        unsafe { start.cast::<T>().as_ref() }
    }
}

/// The descriptors of a ring of either kind.
#[derive(Debug, Clone)]
pub(super) struct Descriptors {
    area: Area,
    size: u16,
}

impl Descriptors {
    /// None: they are not inside, or not aligned.
    pub(super) fn new(memory: &Arc<Memory>, place: Place, size: u16) -> Option<Descriptors> {
        let bytes = usize::from(size) * DESCRIPTOR_BYTES;
        let area = Area::new(memory, place, bytes, DESCRIPTOR_BYTES)?;
        Some(Descriptors { area, size })
    }

    #[inline]
    fn words(&self, number: u16) -> [&AtomicU64; 2] {
        assert!(number < self.size, "there is no descriptor {number}");
        let offset = usize::from(number) * DESCRIPTOR_BYTES;
        // SAFETY: one of the descriptors, which are aligned to 16 bytes.
        let first = unsafe { self.area.at(offset) };
        // SAFETY: as above.
        [first, unsafe { self.area.at(offset + 8) }]
    }

    /// A copy of one. Its words may be of different times when the peer does what it must not.
    #[inline]
    pub(super) fn get(&self, number: u16) -> [u64; 2] {
        // Relaxed: ordered by the index, or by the flags, that were read before.
        self.words(number).map(|word| word.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn set(&self, number: u16, words: [u64; 2]) {
        let [first, second] = self.words(number);
        // Relaxed: ordered by the index, or by the flags, that are written after.
        first.store(words[0], Ordering::Relaxed);
        second.store(words[1], Ordering::Relaxed);
    }

    /// Packed: all but the address. Always as one word: parts of words are not accessed atomically beside it.
    #[inline]
    pub(super) fn second(&self, number: u16, ordering: Ordering) -> u64 {
        self.words(number)[1].load(ordering)
    }

    /// Packed: the same, written.
    #[inline]
    pub(super) fn set_second(&self, number: u16, word: u64, ordering: Ordering) {
        self.words(number)[1].store(word, ordering);
    }

    /// Packed: the address.
    #[inline]
    pub(super) fn set_first(&self, number: u16, word: u64) {
        // Relaxed: ordered by the flags that are written after.
        self.words(number)[0].store(word, Ordering::Relaxed);
    }
}

/// A split ring's available area, which the driver writes.
#[derive(Debug, Clone)]
pub(super) struct Available {
    area: Area,
    size: u16,
}

impl Available {
    /// None: it is not inside, or not aligned. The size is a power of two.
    pub(super) fn new(memory: &Arc<Memory>, place: Place, size: u16) -> Option<Available> {
        let area = Area::new(
            memory,
            place,
            available_bytes(size),
            align_of::<AtomicU16>(),
        )?;
        size.is_power_of_two().then_some(Available { area, size })
    }

    #[inline]
    fn entry_at(&self, index: u16) -> &AtomicU16 {
        let slot = usize::from(index & (self.size - 1));
        // SAFETY: one of the entries.
        unsafe { self.area.at(RING_ENTRIES + 2 * slot) }
    }

    #[inline]
    fn index_at(&self) -> &AtomicU16 {
        // SAFETY: before the entries.
        unsafe { self.area.at(RING_INDEX) }
    }

    #[inline]
    fn flags_at(&self) -> &AtomicU16 {
        // SAFETY: before the entries.
        unsafe { self.area.at(0) }
    }

    fn event_at(&self) -> &AtomicU16 {
        // SAFETY: behind the entries.
        unsafe { self.area.at(RING_ENTRIES + 2 * usize::from(self.size)) }
    }

    /// What the driver has given so far.
    #[inline]
    pub(super) fn index(&self) -> u16 {
        // Acquire: pairs with the driver's release of the same word; entries, descriptors and buffers are visible after it.
        self.index_at().load(Ordering::Acquire)
    }

    /// Driver: says that everything before is given.
    #[inline]
    pub(super) fn set_index(&self, index: u16) {
        // Release: pairs with the device's load of the same word (`Available::index`).
        self.index_at().store(index, Ordering::Release);
    }

    #[inline]
    pub(super) fn entry(&self, index: u16) -> u16 {
        // Relaxed: ordered by the index that was read before.
        self.entry_at(index).load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_entry(&self, index: u16, number: u16) {
        // Relaxed: ordered by the index that is written after.
        self.entry_at(index).store(number, Ordering::Relaxed);
    }

    /// Whether the driver wants to be notified at all. A fence is before it.
    #[inline]
    pub(super) fn flags(&self) -> u16 {
        self.flags_at().load(Ordering::Relaxed)
    }

    /// Driver. A fence is behind it.
    pub(super) fn set_flags(&self, flags: u16) {
        self.flags_at().store(flags, Ordering::Relaxed);
    }

    /// The used index at which the driver wants to be notified. A fence is before it.
    #[inline]
    pub(super) fn event(&self) -> u16 {
        self.event_at().load(Ordering::Relaxed)
    }

    /// Driver. A fence is behind it.
    pub(super) fn set_event(&self, index: u16) {
        self.event_at().store(index, Ordering::Relaxed);
    }
}

/// A split ring's used area, which the device writes.
#[derive(Debug, Clone)]
pub(super) struct Used {
    area: Area,
    size: u16,
}

impl Used {
    /// None: it is not inside, or not aligned. The size is a power of two.
    pub(super) fn new(memory: &Arc<Memory>, place: Place, size: u16) -> Option<Used> {
        let area = Area::new(memory, place, used_bytes(size), align_of::<AtomicU32>())?;
        size.is_power_of_two().then_some(Used { area, size })
    }

    #[inline]
    fn entry_at(&self, index: u16) -> [&AtomicU32; 2] {
        let offset = RING_ENTRIES + 8 * usize::from(index & (self.size - 1));
        // SAFETY: one of the entries.
        let number = unsafe { self.area.at(offset) };
        // SAFETY: as above.
        [number, unsafe { self.area.at(offset + 4) }]
    }

    #[inline]
    fn index_at(&self) -> &AtomicU16 {
        // SAFETY: before the entries.
        unsafe { self.area.at(RING_INDEX) }
    }

    #[inline]
    fn flags_at(&self) -> &AtomicU16 {
        // SAFETY: before the entries.
        unsafe { self.area.at(0) }
    }

    fn event_at(&self) -> &AtomicU16 {
        // SAFETY: behind the entries.
        unsafe { self.area.at(RING_ENTRIES + 8 * usize::from(self.size)) }
    }

    /// What the device has used so far.
    #[inline]
    pub(super) fn index(&self) -> u16 {
        // Acquire: pairs with the device's release of the same word; entries, and bytes in buffers, are visible after it.
        self.index_at().load(Ordering::Acquire)
    }

    /// Device: says that everything before is used.
    #[inline]
    pub(super) fn set_index(&self, index: u16) {
        // Release: pairs with the driver's load of the same word (`Used::index`).
        self.index_at().store(index, Ordering::Release);
    }

    /// The chain that was used, and how many bytes were written to it.
    #[inline]
    pub(super) fn entry(&self, index: u16) -> (u32, u32) {
        // Relaxed: ordered by the index that was read before.
        let [number, length] = self
            .entry_at(index)
            .map(|word| word.load(Ordering::Relaxed));
        (number, length)
    }

    #[inline]
    pub(super) fn set_entry(&self, index: u16, number: u16, length: u32) {
        let words = self.entry_at(index);
        // Relaxed: ordered by the index that is written after.
        words[0].store(u32::from(number), Ordering::Relaxed);
        words[1].store(length, Ordering::Relaxed);
    }

    /// Whether the device wants to be notified at all. A fence is before it.
    #[inline]
    pub(super) fn flags(&self) -> u16 {
        self.flags_at().load(Ordering::Relaxed)
    }

    /// Device. A fence is behind it.
    pub(super) fn set_flags(&self, flags: u16) {
        self.flags_at().store(flags, Ordering::Relaxed);
    }

    /// The available index at which the device wants to be notified. A fence is before it.
    #[inline]
    pub(super) fn event(&self) -> u16 {
        self.event_at().load(Ordering::Relaxed)
    }

    /// Device. A fence is behind it.
    pub(super) fn set_event(&self, index: u16) {
        self.event_at().store(index, Ordering::Relaxed);
    }
}

/// When one side of a packed ring wants to be notified; it writes, and the other reads.
#[derive(Debug, Clone)]
pub(super) struct Event(Area);

impl Event {
    /// None: it is not inside, or not aligned.
    pub(super) fn new(memory: &Arc<Memory>, place: Place) -> Option<Event> {
        Area::new(memory, place, EVENT_BYTES, align_of::<AtomicU32>()).map(Event)
    }

    #[inline]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: all of it.
        unsafe { self.0.at(0) }
    }

    /// Position and flags. A fence is before it.
    #[inline]
    pub(super) fn get(&self) -> (u16, u16) {
        let word = self.word().load(Ordering::Relaxed);
        (word as u16, (word >> 16) as u16)
    }

    /// A fence is behind it.
    pub(super) fn set(&self, position: u16, flags: u16) {
        let word = u32::from(position) | u32::from(flags) << 16;
        self.word().store(word, Ordering::Relaxed);
    }
}

/// Words of in-flight memory of one ring, by their offsets in bytes.
#[derive(Debug, Clone)]
pub(super) struct Record {
    area: Area,
    bytes: usize,
}

impl Record {
    /// None: it is not inside, or not aligned.
    pub(super) fn new(memory: &Arc<Memory>, place: Place) -> Option<Record> {
        let bytes = place.length as usize;
        let area = Area::new(memory, place, bytes, align_of::<AtomicU64>())?;
        Some(Record { area, bytes })
    }

    fn half_at(&self, offset: usize) -> &AtomicU16 {
        assert!(offset + 2 <= self.bytes && offset.is_multiple_of(2));
        // SAFETY: inside, and aligned.
        unsafe { self.area.at(offset) }
    }

    fn byte_at(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.bytes);
        // SAFETY: inside.
        unsafe { self.area.at(offset) }
    }

    fn word_at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.bytes && offset.is_multiple_of(8));
        // SAFETY: inside, and aligned.
        unsafe { self.area.at(offset) }
    }

    // Acquire and Release, all of these: whoever comes after a death finds nothing that was written later than what it reads here.

    pub(super) fn half(&self, offset: usize) -> u16 {
        self.half_at(offset).load(Ordering::Acquire)
    }

    pub(super) fn set_half(&self, offset: usize, value: u16) {
        self.half_at(offset).store(value, Ordering::Release);
    }

    pub(super) fn byte(&self, offset: usize) -> u8 {
        self.byte_at(offset).load(Ordering::Acquire)
    }

    pub(super) fn word(&self, offset: usize) -> u64 {
        self.word_at(offset).load(Ordering::Acquire)
    }

    pub(super) fn set_word(&self, offset: usize, value: u64) {
        self.word_at(offset).store(value, Ordering::Release);
    }
}
