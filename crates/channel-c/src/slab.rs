//! Things by numbers that are never used twice, nor by two handles: one that is given to the wrong handle is not taken for its own.

use std::sync::atomic::{AtomicU32, Ordering};

/// Where the counts of the next slab begin, far from those of the last.
static NEXT: AtomicU32 = AtomicU32::new(0);
const APART: u32 = 0x9e37_79b9;

/// What is there, by number.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    /// How often each place was used, and what is in it.
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    first: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab {
            places: Vec::new(),
            free: Vec::new(),
            first: NEXT.fetch_add(APART, Ordering::Relaxed),
        }
    }
}

impl<T> Slab<T> {
    pub(crate) fn put(&mut self, thing: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((self.first, None));
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.0 = place.0.wrapping_add(1);
        place.1 = Some(thing);
        u64::from(place.0) << 32 | u64::from(index)
    }

    /// Takes it out. None: it is not there, or not any more.
    pub(crate) fn take(&mut self, number: u64) -> Option<T> {
        let place = self.places.get_mut((number & 0xffff_ffff) as usize)?;
        if u64::from(place.0) != number >> 32 {
            return None;
        }
        let thing = place.1.take()?;
        self.free.push(number as u32);
        Some(thing)
    }

    /// Puts it back by the number that it had.
    pub(crate) fn put_back(&mut self, number: u64, thing: T) {
        let index = number as u32;
        self.free.retain(|free| *free != index);
        self.places[index as usize].1 = Some(thing);
    }
}

#[cfg(test)]
mod tests {
    use super::Slab;

    #[test]
    fn a_number_is_of_use_once() {
        let mut slab = Slab::default();
        let (first, second) = (slab.put('a'), slab.put('b'));
        assert_eq!(slab.take(first), Some('a'));
        assert_eq!(slab.take(first), None);
        let third = slab.put('c');
        assert_eq!((slab.take(first), slab.take(third)), (None, Some('c')));
        slab.put_back(third, 'd');
        assert_eq!(
            (slab.take(third), slab.take(second)),
            (Some('d'), Some('b'))
        );
        assert_eq!(slab.take(u64::MAX), None);
    }

    #[test]
    fn a_number_is_of_use_to_one_slab() {
        let (mut one, mut other) = (Slab::default(), Slab::default());
        for _ in 0..100 {
            let number = one.put('a');
            other.put('b');
            assert_eq!(other.take(number), None);
        }
    }
}
