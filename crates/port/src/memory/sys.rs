//! Copies in and out of memory that a peer can write.
#![allow(
    unsafe_code,
    reason = "bytes of mappings, between two checks of their bounds"
)]

use std::ptr::NonNull;
use std::sync::Arc;

use millrace_shm::Mapping;
use millrace_shm::pool::{PoolMemory, PoolView};

use super::Place;
use crate::burst::HEAD_BYTES;

/// Heads up to this length are copied as this many bytes: a copy of fixed size is a few moves, and a line less to wait for.
const SHORT_BYTES: usize = 64;

/// Processors have memory by lines of so many bytes.
const LINE_BYTES: usize = 64;

/// A part of a mapping, of at most 4 GiB.
#[derive(Debug)]
struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

/// What regions are parts of, which stays mapped as long as it is there.
#[derive(Debug)]
enum Mapped {
    Own(Arc<Mapping>),
    /// The pool of a publisher of a channel, for reading.
    View(Arc<PoolView>),
    /// The pool that this process publishes from.
    Pool(Arc<PoolMemory>),
}

impl Mapped {
    fn range(&self) -> (NonNull<u8>, usize) {
        match self {
            Mapped::Own(mapping) => (mapping.base(), mapping.bytes()),
            Mapped::View(view) => view.range(),
            Mapped::Pool(pool) => pool.range(),
        }
    }
}

/// The regions of a connection. They stay mapped while a burst has packets in them, whatever becomes of the connection.
#[derive(Debug)]
pub struct Memory {
    regions: Vec<Region>,
    mapped: Vec<Mapped>,
}

// SAFETY: the regions are mapped as long as the memory lives, wherever it is used; every access to them goes through atomics or raw copies
// that expect others to write at the same time.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Each mapping is a region.
    pub(crate) fn new(mappings: Vec<Mapping>) -> Memory {
        let windows = mappings.into_iter().map(|mapping| {
            let bytes = mapping.bytes();
            (Arc::new(mapping), 0, bytes)
        });
        Memory::of_windows(windows.collect())
    }

    /// Parts of mappings are regions: from an offset, so many bytes.
    ///
    /// # Panics
    /// When a part is not inside.
    pub(crate) fn of_windows(windows: Vec<(Arc<Mapping>, usize, usize)>) -> Memory {
        let region = |(mapping, offset, bytes): &(Arc<Mapping>, usize, usize)| {
            let is_inside = offset
                .checked_add(*bytes)
                .is_some_and(|end| end <= mapping.bytes());
            assert!(is_inside, "a window reaches beyond its mapping");
            // SAFETY: inside of the mapping, or at its end where there are no bytes.
            let base = unsafe { mapping.base().add(*offset) };
            Region {
                base,
                bytes: *bytes,
            }
        };
        Memory {
            regions: windows.iter().map(region).collect(),
            mapped: windows
                .into_iter()
                .map(|(mapping, ..)| Mapped::Own(mapping))
                .collect(),
        }
    }

    /// What a publisher's messages lie in. Nothing is written there.
    pub(crate) fn of_view(view: Arc<PoolView>) -> Memory {
        Memory::of(Mapped::View(view))
    }

    /// What a publisher writes messages into.
    pub(crate) fn of_pool(pool: Arc<PoolMemory>) -> Memory {
        Memory::of(Mapped::Pool(pool))
    }

    fn of(mapped: Mapped) -> Memory {
        let (base, bytes) = mapped.range();
        Memory {
            regions: vec![Region { base, bytes }],
            mapped: vec![mapped],
        }
    }

    /// Whether it is a pool to publish from, in which a program may write its packets in place.
    pub(crate) fn is_pool(&self) -> bool {
        matches!(self.mapped.first(), Some(Mapped::Pool(_)))
    }

    /// Whether a place is inside.
    #[inline]
    pub(crate) fn contains(&self, place: Place) -> bool {
        let end = u64::from(place.offset) + u64::from(place.length);
        let region = self.regions.get(usize::from(place.region));
        region.is_some_and(|region| end <= region.bytes as u64)
    }

    /// Where a place begins. It is inside, or this is our own mistake: places are checked when they are made.
    #[inline]
    pub(crate) fn start(&self, place: Place) -> NonNull<u8> {
        assert!(self.contains(place), "{place:?} is not in the memory");
        let base = self.regions[usize::from(place.region)].base;
        // SAFETY: `contains`: the offset is not beyond the end of the region, which is mapped as long as `self` lives.
        unsafe { base.add(place.offset as usize) }
    }

    /// Copies the first bytes of a place, at most [`HEAD_BYTES`]. What is behind them in `head` is of no meaning afterwards.
    #[inline]
    pub(crate) fn read_head(&self, place: Place, head: &mut [u8; HEAD_BYTES]) {
        let whole = |bytes: usize| Place {
            length: bytes as u32,
            ..place
        };
        if place.length as usize <= SHORT_BYTES && self.contains(whole(SHORT_BYTES)) {
            let from = self.start(whole(SHORT_BYTES));
            // SAFETY: `start`: so many bytes are mapped there, and the head has more. `head` is private, so they do not overlap. When the
            // peer writes at the same time, the copy has bytes of either time: any are good.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), head.as_mut_ptr(), SHORT_BYTES) };
        } else if place.length as usize <= HEAD_BYTES && !self.contains(whole(HEAD_BYTES)) {
            self.read(place, head);
        } else {
            let from = self.start(whole(HEAD_BYTES));
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), head.as_mut_ptr(), HEAD_BYTES) };
        }
    }

    /// Copies from the start of a place until it or `target` ends; returns how many bytes.
    #[inline]
    pub(crate) fn read(&self, place: Place, target: &mut [u8]) -> usize {
        let count = target.len().min(place.length as usize);
        let from = self.start(place);
        // SAFETY: `start`: the place is mapped, and has so many bytes, as the target has. The target is private, so they do not overlap.
        // When the peer writes at the same time, the copy has bytes of either time: any are good.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), target.as_mut_ptr(), count) };
        count
    }

    /// The first bytes of a place, which has so many: their number is known where they are copied, which is a move or two then.
    #[inline]
    pub(crate) fn read_array<const BYTES: usize>(&self, place: Place) -> [u8; BYTES] {
        let whole = Place {
            length: BYTES as u32,
            ..place
        };
        let from = self.start(whole);
        let mut bytes = [0; BYTES];
        // SAFETY: `start`: so many bytes are mapped there, and the array is private, so they do not overlap. When the peer writes at the
        // same time, the copy has bytes of either time: any are good.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), BYTES) };
        bytes
    }

    /// Copies all of `source` to the start of a place.
    #[inline]
    pub(crate) fn write(&self, place: Place, source: &[u8]) {
        let whole = Place {
            length: source.len() as u32,
            ..place
        };
        let to = self.start(whole);
        // SAFETY: `start`: so many bytes are mapped there. The source is private, so they do not overlap. Nobody of this process has a
        // reference to them; the peer may see any bytes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), to.as_ptr(), source.len()) };
    }

    /// Copies all of a place in another memory, or in this one, to the start of a place.
    #[inline]
    pub(crate) fn write_from(&self, place: Place, source: &Memory, from: Place) {
        let whole = Place {
            length: from.length,
            ..place
        };
        let (to, start) = (self.start(whole), source.start(from));
        // SAFETY: `start`, twice: so many bytes are mapped at both. They may overlap: `copy` allows for that. Nobody of this process has a
        // reference to either.
        unsafe { std::ptr::copy(start.as_ptr(), to.as_ptr(), from.length as usize) };
    }

    /// Has a place brought near, as much of it as most packets have: it will be read soon.
    #[inline]
    pub(crate) fn will_read(&self, place: Place) {
        self.first_lines(place)
            .for_each(millrace_shm::sys::will_read);
    }

    /// The same of what will be written: its lines come to be this processor's alone.
    #[inline]
    pub(crate) fn will_write(&self, place: Place) {
        self.first_lines(place)
            .for_each(millrace_shm::sys::will_write);
    }

    /// Addresses in each line that a packet's head lies in which begins where the place does. Without any, if the place cannot be.
    #[inline]
    fn first_lines(&self, place: Place) -> impl Iterator<Item = *const u8> {
        let start = self.contains(place).then(|| self.start(place).as_ptr());
        let offsets = (0..HEAD_BYTES.min(place.length as usize)).step_by(LINE_BYTES);
        start.into_iter().flat_map(move |start| {
            let offsets = offsets.clone();
            offsets.map(move |offset| start.wrapping_add(offset).cast_const())
        })
    }
}
