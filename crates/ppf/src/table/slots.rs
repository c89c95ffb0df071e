//! Lines by slot. Those of a shard are together, so that it moves as fast as memory is read, and a table has memory for those shards
//! that it has.
//!
//! What is added to a shard copies its lines now and then, 2048 of them at most: some microseconds, and never those of others.

use super::hot::Hot;
use crate::bearer::{BEARERS_MAX, SHARDS};

/// Lines of a shard, at most.
pub(super) const ROWS_MAX: usize = BEARERS_MAX / SHARDS;

/// All of them.
#[derive(Debug)]
pub(super) struct Slots {
    shards: Box<[Vec<Hot>; SHARDS]>,
    count: usize,
    /// Lines of the longest shard so far.
    rows: usize,
}

impl Default for Slots {
    fn default() -> Self {
        Slots {
            shards: Box::new(std::array::from_fn(|_| Vec::new())),
            count: 0,
            rows: 0,
        }
    }
}

impl Slots {
    #[inline]
    pub(super) fn get(&self, slot: usize) -> Option<&Hot> {
        self.shards[slot % SHARDS].get(slot / SHARDS)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Hot> {
        self.shards[slot % SHARDS].get_mut(slot / SHARDS)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// No slot that there is has this number, or a higher one.
    pub(super) fn end(&self) -> usize {
        self.rows * SHARDS
    }

    /// Lines of a shard.
    #[inline]
    pub(super) fn of(&self, shard: usize) -> &[Hot] {
        &self.shards[shard % SHARDS]
    }

    /// Adds an empty line to a shard; returns its slot. None: the shard has as many as it can.
    pub(super) fn push(&mut self, shard: usize) -> Option<usize> {
        let lines = &mut self.shards[shard % SHARDS];
        if lines.len() == ROWS_MAX {
            return None;
        }
        lines.push(Hot::empty(1));
        self.count += 1;
        self.rows = self.rows.max(lines.len());
        Some((lines.len() - 1) * SHARDS + shard % SHARDS)
    }

    /// Has no lines of a shard any more, nor memory for them.
    pub(super) fn clear(&mut self, shard: usize) {
        let lines = std::mem::take(&mut self.shards[shard % SHARDS]);
        self.count -= lines.len();
    }

    /// Those from a slot on, in order.
    pub(super) fn iter_from(&self, slot: usize) -> impl Iterator<Item = (usize, &Hot)> {
        (slot..self.end()).filter_map(|slot| Some((slot, self.get(slot)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_slots_in_order() {
        let mut slots = Slots::default();
        let shards = [5, 1023, 5, 0, 5];
        let made: Vec<_> = shards.into_iter().flat_map(|one| slots.push(one)).collect();
        assert_eq!(made, [5, 1023, 1029, 0, 2053]);
        for slot in made {
            slots.get_mut(slot).unwrap().active_s = slot as u32;
        }
        let found = slots.iter_from(1).map(|(slot, hot)| (slot, hot.active_s));
        assert!(found.eq([(5, 5), (1023, 1023), (1029, 1029), (2053, 2053)]));
        assert_eq!((slots.len(), slots.end(), slots.of(5).len()), (5, 3072, 3));
        slots.clear(5);
        assert!(slots.len() == 2 && slots.get(1029).is_none());
        assert!((0..ROWS_MAX).all(|row| slots.push(7) == Some(row * SHARDS + 7)));
        assert_eq!(slots.push(7), None);
    }
}
