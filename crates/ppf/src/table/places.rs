//! Which slots are free, of all and of each shard, the one that has been so for longest first: its generation is the least likely to be
//! known still.
//!
//! A slot that had a bearer *rests*. It is in two lists, that of all and that of its shard, and found at once whichever is asked for. Both
//! go through the slots' own lines, which have nothing else to keep meanwhile, so that lists take no memory.
//!
//! Slots are used again that have rested, and otherwise more are made: in the shard that was asked for, or in the next that has not more
//! than its share, so that shards stay as long as each other. None is made that nobody asked for. So there are as many as bearers, and
//! those that rest: of all one in eight, 64 at least. A shard that is asked for by name has one in eight as well; but its oldest is used
//! again only when 64 others have begun to rest since, wherever they are: 64 slots of its own at worst, if nobody else's bearers come and
//! go.

use super::hot::{Hot, NO_SLOT, RESTING};
use super::slots::{ROWS_MAX, Slots};
use crate::bearer::{BEARERS_MAX, SHARDS};

/// So many slots rest at least, before one is used again.
const REST_MIN: usize = 64;
/// And one of so many.
const REST_PARTS: usize = 8;

/// Slots in an order.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
    count: u32,
}

const NO_SLOTS: List = List {
    first: NO_SLOT,
    last: NO_SLOT,
    count: 0,
};

/// The list of all, and that of a shard: places of a line's links.
const LISTS: usize = 2;

/// Those that are free.
#[derive(Debug)]
pub(super) struct Places {
    all: List,
    shards: Vec<List>,
    /// Slots that have begun to rest, so far.
    rested: u64,
    /// The shard in which the next slot is made, if nobody says another.
    next: usize,
}

impl Default for Places {
    fn default() -> Self {
        Places {
            all: NO_SLOTS,
            shards: vec![NO_SLOTS; SHARDS],
            rested: 0,
            next: 0,
        }
    }
}

impl Places {
    /// A slot, of a shard if one is said, that has rested. It is free no more. None: there are as many as there can be.
    pub(super) fn take(&mut self, slots: &mut Slots, shard: Option<u32>) -> Option<usize> {
        let found = match shard {
            None => self.find(slots),
            Some(shard) => self.find_in(slots, shard as usize % SHARDS),
        };
        match (found, shard) {
            (Some(slot), _) => {
                self.unlist(slots, slot);
                Some(slot)
            }
            (None, Some(shard)) => slots.push(shard as usize),
            (None, None) => self.make(slots),
        }
    }

    fn find(&self, slots: &Slots) -> Option<usize> {
        let rest = (slots.len() / REST_PARTS).max(REST_MIN);
        let is_rested = self.all.count as usize > rest || slots.len() == BEARERS_MAX;
        first(&self.all).filter(|_| is_rested)
    }

    fn find_in(&self, slots: &Slots, shard: usize) -> Option<usize> {
        let (list, there) = (&self.shards[shard], slots.of(shard).len());
        let oldest = first(list)?;
        let others = self.rested - slots.get(oldest)?.rests_since();
        let is_rested = list.count as usize > there / REST_PARTS && others > REST_MIN as u64;
        (is_rested || there == ROWS_MAX).then_some(oldest)
    }

    /// Makes a slot in the next shard that has not more than its share.
    fn make(&mut self, slots: &mut Slots) -> Option<usize> {
        let share = slots.len() / SHARDS;
        // One has not.
        for _ in 0..SHARDS {
            let shard = self.next;
            self.next = (shard + 1) % SHARDS;
            if slots.of(shard).len() <= share {
                return slots.push(shard);
            }
        }
        None
    }

    /// Has a slot that may not be there yet be free no more. Those before it in its shard are there then, and rest. Whether it was free.
    pub(super) fn claim(&mut self, slots: &mut Slots, slot: usize) -> bool {
        while slots.of(slot).len() <= slot / SHARDS {
            let Some(made) = slots.push(slot) else {
                return false;
            };
            if made != slot {
                self.list(slots, made);
            }
        }
        self.unlist(slots, slot);
        slots.get(slot).is_some_and(|hot| !hot.is_there())
    }

    /// A slot rests from now on.
    pub(super) fn rest(&mut self, slots: &mut Slots, slot: usize) {
        self.rested += 1;
        self.list(slots, slot);
    }

    /// No slot of a shard rests any more.
    pub(super) fn clear(&mut self, slots: &mut Slots, shard: usize) {
        while let Some(slot) = first(&self.shards[shard % SHARDS]) {
            self.unlist(slots, slot);
        }
    }

    fn list_of(&mut self, which: usize, slot: usize) -> &mut List {
        match which {
            0 => &mut self.all,
            _ => &mut self.shards[slot % SHARDS],
        }
    }

    /// Puts an empty slot behind the others.
    fn list(&mut self, slots: &mut Slots, slot: usize) {
        // Fewer than 2^22.
        let number = slot as u32;
        for which in 0..LISTS {
            let list = self.list_of(which, slot);
            let before = std::mem::replace(&mut list.last, number);
            list.count += 1;
            match slots.get_mut(before as usize) {
                Some(hot) => hot.links_mut(which)[1] = number,
                None => list.first = number,
            }
            if let Some(hot) = slots.get_mut(slot) {
                hot.flags = RESTING;
                *hot.links_mut(which) = [before, NO_SLOT];
                hot.rest_since(self.rested);
            }
        }
    }

    /// Takes a slot out of its lists, if it is in any.
    fn unlist(&mut self, slots: &mut Slots, slot: usize) {
        let Some(hot) = slots.get_mut(slot).filter(|hot| hot.flags & RESTING != 0) else {
            return;
        };
        let links = [*hot.links_mut(0), *hot.links_mut(1)];
        *hot = Hot::empty(hot.generation);
        for (which, [before, behind]) in links.into_iter().enumerate() {
            let list = self.list_of(which, slot);
            list.count -= 1;
            match slots.get_mut(before as usize) {
                Some(hot) => hot.links_mut(which)[1] = behind,
                None => list.first = behind,
            }
            match slots.get_mut(behind as usize) {
                Some(hot) => hot.links_mut(which)[0] = before,
                None => list.last = before,
            }
        }
    }
}

fn first(list: &List) -> Option<usize> {
    (list.count > 0).then_some(list.first as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::table::hot::OCCUPIED;

    #[derive(Default)]
    struct Rig {
        slots: Slots,
        places: Places,
    }

    impl Rig {
        fn take(&mut self, shard: Option<u32>) -> Option<usize> {
            let slot = self.places.take(&mut self.slots, shard)?;
            let hot = self.slots.get_mut(slot).unwrap();
            assert_eq!(hot.flags, 0, "{slot} is listed, or has a bearer");
            hot.flags = OCCUPIED;
            Some(slot)
        }

        fn rest(&mut self, slot: usize) {
            *self.slots.get_mut(slot).unwrap() = Hot::empty(2);
            self.places.rest(&mut self.slots, slot);
        }

        /// Slots of a list, by its links both ways.
        fn listed(&mut self, which: usize, shard: usize) -> Vec<usize> {
            let list = *self.places.list_of(which, shard);
            let (mut found, mut at, mut before) = (Vec::new(), list.first, NO_SLOT);
            while let Some(hot) = self.slots.get_mut(at as usize) {
                let [back, next] = *hot.links_mut(which);
                assert_eq!((hot.flags, back), (RESTING, before));
                found.push(at as usize);
                (before, at) = (at, next);
            }
            assert_eq!((list.last, list.count as usize), (before, found.len()));
            found
        }
    }

    /// Lists of numbers, gone through from their beginnings.
    struct Model {
        /// Slots of each shard.
        there: Vec<usize>,
        /// With how many had begun to rest.
        resting: Vec<(usize, u64)>,
        rested: u64,
        next: usize,
    }

    impl Model {
        fn take(&mut self, shard: Option<usize>) -> usize {
            let is_of = |slot: usize| shard.is_none_or(|shard| slot % SHARDS == shard);
            let all: usize = self.there.iter().sum();
            let there = shard.map_or(all, |shard| self.there[shard]);
            let resting = self.resting.iter().filter(|one| is_of(one.0)).count();
            let oldest = self.resting.iter().position(|one| is_of(one.0));
            let is_rested = match (shard, oldest) {
                (None, _) => resting > (there / 8).max(64),
                (Some(_), Some(at)) => resting > there / 8 && self.rested - self.resting[at].1 > 64,
                (Some(_), None) => false,
            };
            if is_rested {
                return self.resting.remove(oldest.unwrap()).0;
            }
            let shard = shard.unwrap_or_else(|| {
                let mut shards = (self.next..).map(|shard| shard % SHARDS);
                let fits = |shard: &usize| self.there[*shard] <= all / SHARDS;
                let shard = shards.find(fits).unwrap();
                self.next = shard + 1;
                shard
            });
            self.there[shard] += 1;
            (self.there[shard] - 1) * SHARDS + shard
        }
    }

    #[test]
    fn slots_are_those_that_lists_of_numbers_say() {
        for seed in 1..12 {
            let (mut random, mut rig) = (Random(seed), Rig::default());
            let mut used = Vec::new();
            let mut model = Model {
                there: vec![0; SHARDS],
                resting: Vec::new(),
                rested: 0,
                next: 0,
            };
            for step in 0..2_000 {
                // Few, and then many.
                let most = if step < 1_000 { 4 } else { 200 };
                if random.below(most) < used.len() as u64 {
                    let at = random.below(used.len() as u64) as usize;
                    let slot = used.swap_remove(at);
                    rig.rest(slot);
                    model.rested += 1;
                    model.resting.push((slot, model.rested));
                    continue;
                }
                let shard = random.below(6) as usize;
                let shard = (shard < 3).then_some(shard * 400);
                let slot = rig.take(shard.map(|shard| shard as u32)).unwrap();
                assert_eq!(slot, model.take(shard), "seed {seed}, step {step}");
                assert!(shard.is_none_or(|shard| slot % SHARDS == shard));
                used.push(slot);
            }
            let resting: Vec<_> = model.resting.iter().map(|one| one.0).collect();
            assert_eq!(rig.listed(0, 0), resting);
            for shard in 0..SHARDS {
                let of_it = resting.iter().copied();
                let of_it: Vec<_> = of_it.filter(|slot| slot % SHARDS == shard).collect();
                assert_eq!(rig.listed(1, shard), of_it);
            }
        }
    }

    /// Of one shard's bearers that come and go, of any, and of both.
    #[test]
    fn slots_rest_and_are_no_more_after_a_million_bearers() {
        for shards in [1, 0, 2] {
            let (mut random, mut rig) = (Random(shards + 1), Rig::default());
            let mut used = std::collections::VecDeque::new();
            let mut rested_at = std::collections::HashMap::new();
            for step in 0..1_000_000_u64 {
                let shard = (random.below(2) < shards).then_some(7);
                let slot = rig.take(shard).unwrap();
                if let Some(at) = rested_at.remove(&slot) {
                    assert!(step - at > REST_MIN as u64, "{slot} has not rested");
                }
                used.push_back(slot);
                if used.len() == 16
                    && let Some(gone) = used.pop_front()
                {
                    rig.rest(gone);
                    rested_at.insert(gone, step);
                }
            }
            assert_eq!(rig.listed(0, 0).len() + used.len(), rig.slots.len());
            assert!(rig.slots.len() < 200, "{}", rig.slots.len());
        }
    }

    #[test]
    fn a_full_table_has_one_place_more_when_one_is_free() {
        let mut rig = Rig::default();
        assert!((0..BEARERS_MAX).all(|slot| rig.take(None) == Some(slot)));
        assert_eq!((rig.take(None), rig.take(Some(5))), (None, None));
        rig.rest(5 + SHARDS);
        assert_eq!(
            (rig.take(Some(6)), rig.take(Some(5))),
            (None, Some(5 + SHARDS))
        );
        rig.rest(0);
        assert_eq!((rig.take(None), rig.take(None)), (Some(0), None));
        assert!(!rig.places.claim(&mut rig.slots, 77));
    }
}
