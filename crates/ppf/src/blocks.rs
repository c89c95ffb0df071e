//! Places that do not move when there are more of them: memory comes in blocks, so that adding one among a million does not copy the others
//! while packets wait.

const BITS: u32 = 15;
const BLOCK: usize = 1 << BITS;

/// Values by number.
#[derive(Debug)]
pub(crate) struct Blocks<T> {
    /// All but the last are full.
    blocks: Vec<Vec<T>>,
}

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Blocks { blocks: Vec::new() }
    }
}

impl<T> Blocks<T> {
    pub(crate) fn len(&self) -> usize {
        let last = self.blocks.last().map_or(0, Vec::len);
        self.blocks.len().saturating_sub(1) * BLOCK + last
    }

    #[inline]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.blocks.get(number >> BITS)?.get(number % BLOCK)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.blocks.get_mut(number >> BITS)?.get_mut(number % BLOCK)
    }

    /// Adds a value; returns its number.
    pub(crate) fn push(&mut self, value: T) -> usize {
        let number = self.len();
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(value),
            _ => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(value);
                self.blocks.push(block);
            }
        }
        number
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.blocks.iter().flatten()
    }
}

/// The same, with places that become free.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Blocks<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab {
            places: Blocks::default(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.places.get(number as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.places.get_mut(number as usize)?.as_mut()
    }

    pub(crate) fn add(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            if let Some(place) = self.places.get_mut(number as usize) {
                *place = Some(value);
            }
            return number;
        }
        self.places.push(Some(value)) as u32
    }

    /// Has a value at a place of its own, which another slab's is.
    pub(crate) fn put(&mut self, number: u32, value: T) {
        while self.places.len() <= number as usize {
            self.free.push(self.places.push(None) as u32);
        }
        if let Some(place) = self.places.get_mut(number as usize)
            && place.replace(value).is_none()
            && let Some(at) = self.free.iter().rposition(|free| *free == number)
        {
            self.free.remove(at);
        }
    }

    /// What there is, with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let places = (0..).zip(self.places.iter());
        places.filter_map(|(number, place)| Some((number, place.as_ref()?)))
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.places.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn place_bytes() -> usize {
        size_of::<Option<T>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_where_they_are() {
        let mut blocks = Blocks::default();
        blocks.push(0);
        let first: *const i32 = blocks.get(0).unwrap();
        for number in 1..100_000 {
            assert_eq!(blocks.push(number), number as usize);
        }
        assert_eq!(blocks.len(), 100_000);
        assert!(std::ptr::eq(first, blocks.get(0).unwrap()));
        assert_eq!(blocks.get(99_999), Some(&99_999));
        assert_eq!(blocks.get(100_000), None);
        assert!(blocks.iter().copied().eq(0..100_000));
    }

    #[test]
    fn free_places_are_used_again() {
        let mut slab = Slab::default();
        let numbers: Vec<_> = (0..10).map(|value| slab.add(value)).collect();
        assert_eq!(slab.remove(numbers[3]), Some(3));
        assert_eq!(
            (slab.remove(numbers[3]), slab.get(numbers[3])),
            (None, None)
        );
        assert_eq!((slab.add(77), slab.len()), (numbers[3], 10));
        let mut other = Slab::default();
        for number in [4, 0, 4] {
            other.put(number, number);
        }
        assert_eq!(
            (other.len(), other.get(4), other.get(3)),
            (2, Some(&4), None)
        );
        let mut rest: Vec<_> = (0..3).map(|_| other.add(9)).collect();
        rest.sort_unstable();
        assert_eq!((rest, other.add(9)), (vec![1, 2, 3], 5));
        assert!(other.iter().map(|(number, _)| number).eq(0..6));
    }
}
