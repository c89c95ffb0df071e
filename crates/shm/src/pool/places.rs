//! Which parts of a pool are in use. Private memory of the publisher, and no I/O.
//!
//! The pool is divided into extents. Short messages share an extent with others of their class; long ones have a run of extents. What comes
//! back waits in its class's list and is the next to go out, since it is likeliest to be in the cache. Only when nothing is left are
//! extents without a message taken back from their classes: who is in which extent is found out then, and counted nowhere.

use std::num::NonZeroU64;

/// Bytes of an extent; the pool's size is a multiple of it.
const EXTENT_BYTES: u64 = super::POOL_STEP_BYTES;
const LINE: u64 = super::LINE_BYTES as u64;
const EXTENT_LINES: u32 = (EXTENT_BYTES / LINE) as u32;
/// Messages up to so many lines share extents.
const SMALL_LINES_MAX: u32 = EXTENT_LINES / 2;
/// Classes of messages that share extents: 1, 2, 4 … lines.
const SMALL_CLASSES: usize = SMALL_LINES_MAX.ilog2() as usize + 1;
/// Classes of runs: 1, 2, 4 … 256 extents.
const CLASSES: usize = SMALL_CLASSES + 9;
/// Buffers of these counts of lines lie one line farther apart: at a power of two, all their first lines would meet in few places of a
/// processor's cache.
const APART: std::ops::RangeInclusive<u32> = 4..=256;

/// What is given to one message, in one word: the line where it begins, above that its class, and the highest bit, so that it is never
/// zero.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place(NonZeroU64);

impl Place {
    const CLASS_SHIFT: u32 = 32;
    const SOME: NonZeroU64 = NonZeroU64::new(1 << 63).unwrap();

    #[inline]
    fn new(line: u32, class: usize) -> Place {
        Place(Place::SOME | u64::from(line) | (class as u64) << Place::CLASS_SHIFT)
    }

    #[inline]
    pub(super) fn line(&self) -> u32 {
        self.0.get() as u32
    }

    #[inline]
    fn class(&self) -> usize {
        usize::from((self.0.get() >> Place::CLASS_SHIFT) as u8)
    }

    /// Bytes of memory that it takes.
    #[inline]
    pub(super) fn memory_bytes(&self) -> u64 {
        match self.class() {
            class if class < SMALL_CLASSES => u64::from(stride(class)) * LINE,
            class => u64::from(run_extents(class)) * EXTENT_BYTES,
        }
    }
}

/// Lines between two buffers of a class that shares extents.
#[inline]
fn stride(class: usize) -> u32 {
    let lines = 1 << class;
    lines + u32::from(APART.contains(&lines))
}

/// Extents of a buffer of a class that does not.
#[inline]
fn run_extents(class: usize) -> u32 {
    1 << (class - SMALL_CLASSES)
}

#[inline]
fn class_of(bytes: usize) -> usize {
    let lines = bytes.div_ceil(super::LINE_BYTES).max(1);
    // The logarithm, rounded up.
    let class = (usize::BITS - (lines - 1).leading_zeros()) as usize;
    if class < SMALL_CLASSES {
        return class;
    }
    let extents = lines.div_ceil(EXTENT_LINES as usize);
    SMALL_CLASSES + (usize::BITS - (extents - 1).leading_zeros()) as usize
}

/// How many turns ahead memory is asked for.
const SOON: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Free,
    /// Divided among messages of a class.
    Shared(u8),
    /// Of a run, in use or in its class's list.
    Run,
}

/// The state of all parts.
#[derive(Debug)]
pub(super) struct Places {
    extents: Vec<Extent>,
    /// Lines that buffers of each class may begin at.
    free: [Vec<u32>; CLASSES],
}

impl Places {
    pub(super) fn new(pool_bytes: u64) -> Places {
        let extents = usize::try_from(pool_bytes / EXTENT_BYTES).unwrap_or(0);
        Places {
            extents: vec![Extent::Free; extents],
            free: [const { Vec::new() }; CLASSES],
        }
    }

    /// The longest message that there would be room for if nothing was out.
    pub(super) fn longest_bytes(&self) -> usize {
        let extents = self.extents.len().min(1 << (CLASSES - SMALL_CLASSES - 1));
        (1 << extents.max(1).ilog2()) * EXTENT_BYTES as usize
    }

    /// Bytes that are in use.
    pub(super) fn used_bytes(&self) -> u64 {
        let divided = self.extents.iter().map(|extent| match extent {
            Extent::Free => 0,
            Extent::Shared(class) => {
                let stride = stride(usize::from(*class));
                u64::from(EXTENT_LINES / stride * stride) * LINE
            }
            Extent::Run => EXTENT_BYTES,
        });
        let lists = self.free.iter().zip(0..);
        let free =
            lists.map(|(list, class)| list.len() as u64 * Place::new(0, class).memory_bytes());
        divided.sum::<u64>() - free.sum::<u64>()
    }

    #[inline]
    pub(super) fn take(&mut self, bytes: usize) -> Option<Place> {
        let class = class_of(bytes);
        let line = match self.free.get_mut(class)?.pop() {
            Some(line) => line,
            None => self.refill(class)?,
        };
        Some(Place::new(line, class))
    }

    /// The line that a message of this class will begin at in a few turns.
    #[inline]
    pub(super) fn soon(&self, place: &Place) -> Option<u32> {
        let free = &self.free[place.class()];
        free.get(free.len().wrapping_sub(SOON)).copied()
    }

    #[inline]
    pub(super) fn give_back(&mut self, place: Place) {
        self.free[place.class()].push(place.line());
    }

    /// More buffers for a class; returns the first of them.
    #[cold]
    fn refill(&mut self, class: usize) -> Option<u32> {
        if class >= SMALL_CLASSES {
            let extents = run_extents(class);
            let first = self.find_run(extents)?;
            self.extents[first..first + extents as usize].fill(Extent::Run);
            return Some(first as u32 * EXTENT_LINES);
        }
        let extent = self.find_run(1)?;
        self.extents[extent] = Extent::Shared(class as u8);
        let start = extent as u32 * EXTENT_LINES;
        let lines = (0..EXTENT_LINES / stride(class)).map(|index| start + index * stride(class));
        // The lowest goes out first.
        self.free[class].extend(lines.rev());
        self.free[class].pop()
    }

    /// The first of so many free extents in a row.
    fn find_run(&mut self, count: u32) -> Option<usize> {
        self.free_run(count).or_else(|| {
            self.reclaim();
            self.free_run(count)
        })
    }

    fn free_run(&self, count: u32) -> Option<usize> {
        let mut length = 0;
        for (index, extent) in self.extents.iter().enumerate() {
            length = if *extent == Extent::Free {
                length + 1
            } else {
                0
            };
            if length == count {
                return Some(index + 1 - count as usize);
            }
        }
        None
    }

    /// Takes back from the classes every extent that no message is in.
    fn reclaim(&mut self) {
        for class in SMALL_CLASSES..CLASSES {
            for line in std::mem::take(&mut self.free[class]) {
                let first = (line / EXTENT_LINES) as usize;
                let count = run_extents(class) as usize;
                self.extents[first..first + count].fill(Extent::Free);
            }
        }
        let mut idle = vec![0; self.extents.len()];
        for line in self.free[..SMALL_CLASSES].iter().flatten() {
            idle[(line / EXTENT_LINES) as usize] += 1;
        }
        for (extent, idle) in self.extents.iter_mut().zip(idle) {
            if let Extent::Shared(class) = extent
                && idle == EXTENT_LINES / stride(usize::from(*class))
            {
                *extent = Extent::Free;
            }
        }
        let extents = &self.extents;
        for list in &mut self.free[..SMALL_CLASSES] {
            list.retain(|line| extents[(line / EXTENT_LINES) as usize] != Extent::Free);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_class_has_room_for_what_is_asked_and_not_for_twice_as_much() {
        let step = if cfg!(miri) { 997 } else { 1 };
        for bytes in (0..70_000)
            .step_by(step)
            .chain([1 << 20, (1 << 24) - 1, 1 << 24])
        {
            let class = class_of(bytes);
            let place = Place::new(0, class);
            assert!(place.memory_bytes() >= bytes as u64, "{bytes}");
            assert!(
                place.memory_bytes() <= (2 * bytes as u64).max(64) + 64,
                "{bytes}"
            );
            assert!(class < CLASSES);
        }
    }

    /// Random takes and returns against a list of what is out: no two overlap, none is outside, and what came back can be had again.
    #[test]
    fn parts_never_overlap() {
        let mut random = 7_u64;
        let mut next = move || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as usize
        };
        let mut places = Places::new(2 * MIB);
        let mut out: Vec<Place> = Vec::new();
        for _ in 0..if cfg!(miri) { 300 } else { 30_000 } {
            if next() % 2 == 0 && !out.is_empty() {
                let index = next() % out.len();
                places.give_back(out.swap_remove(index));
                continue;
            }
            let bytes = next() % (1 << (next() % 20));
            let Some(place) = places.take(bytes) else {
                out.drain(..).for_each(|place| places.give_back(place));
                assert_eq!(places.used_bytes(), 0);
                assert!(
                    places
                        .take(MIB as usize)
                        .map(|place| places.give_back(place))
                        .is_some()
                );
                continue;
            };
            let range = |place: &Place| {
                let start = u64::from(place.line()) * LINE;
                start..start + place.memory_bytes()
            };
            let new = range(&place);
            assert!(new.end <= 2 * MIB && new.end - new.start >= bytes as u64);
            for other in &out {
                let other = range(other);
                assert!(new.end <= other.start || other.end <= new.start);
            }
            out.push(place);
        }
    }

    #[test]
    fn a_full_pool_says_so_and_extents_change_their_class() {
        let mut places = Places::new(4 * EXTENT_BYTES);
        let small: Vec<Place> = std::iter::from_fn(|| places.take(64)).collect();
        assert_eq!(small.len(), 4 * EXTENT_LINES as usize);
        assert_eq!(places.take(1), None);
        small.into_iter().for_each(|place| places.give_back(place));
        let long = places.take(4 * EXTENT_BYTES as usize).unwrap();
        assert_eq!(places.take(1), None);
        places.give_back(long);
        assert!(places.take(1).is_some());
    }
}
