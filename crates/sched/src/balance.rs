//! Which buckets go to another worker, and when: each worker looks at its own load, and gives some of it to whoever has the least.
//!
//! The load is the share of time with work, over a quarter of a millisecond, smoothed. Limits are those of DPDK's distributed software
//! device (`event_dsw`), which have proved themselves: nothing moves below 70 %, nor for a difference below 3 %; what moves must make the
//! more loaded of both less loaded than it was, and is charged to the receiver at once, so that not everybody gives to the same one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::map::Place;

/// Time between two looks at the load, in nanoseconds.
const LOOK_NS: u64 = 250_000;
/// Looks between two moves.
const LOOKS: u32 = 4;
/// Below this load, in thousandths of a processor, nothing is given away.
const LOADED: u64 = 700;
/// A smaller difference is none.
const DIFFERENCE: u64 = 30;
/// Buckets that move at a time, at most.
const MOVES: usize = 8;
/// Of so many events one is remembered.
const STRIDE: usize = 4;
const SAMPLE: usize = 256;

/// What time it is, in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) enum Clock {
    Real(Instant),
    /// As a test has it.
    Set(Arc<AtomicU64>),
}

impl Clock {
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Clock::Real(begin) => begin.elapsed().as_nanos() as u64,
            Clock::Set(now) => now.load(Ordering::Relaxed),
        }
    }
}

/// What a worker knows of its load.
#[derive(Debug)]
pub(crate) struct Load {
    looked: u64,
    looks: u32,
    busy: u64,
    /// In thousandths.
    pub(crate) level: u64,
    /// Places of the last events that were handled, and one.
    sample: Box<[u32; SAMPLE]>,
    at: usize,
    skipped: usize,
}

impl Load {
    pub(crate) fn new(now: u64) -> Load {
        Load {
            looked: now,
            looks: 0,
            busy: 0,
            level: 0,
            sample: Box::new([0; SAMPLE]),
            at: 0,
            skipped: 0,
        }
    }

    /// Work took so long.
    #[inline]
    pub(crate) fn add(&mut self, ns: u64) {
        self.busy += ns;
    }

    /// An event of a place was handled.
    #[inline]
    pub(crate) fn saw(&mut self, place: Place) {
        self.skipped += 1;
        if self.skipped == STRIDE {
            self.skipped = 0;
            self.sample[self.at] = place.word() + 1;
            self.at = (self.at + 1) % SAMPLE;
        }
    }

    /// Looks at the load, if it is time for it. Whether it is time to give something away.
    #[inline]
    pub(crate) fn look(&mut self, now: u64) -> bool {
        let elapsed = now.saturating_sub(self.looked);
        if elapsed < LOOK_NS {
            return false;
        }
        let last = (self.busy.min(elapsed) * 1000 / elapsed).min(1000);
        self.level = u64::midpoint(self.level, last);
        (self.looked, self.busy) = (now, 0);
        self.looks += 1;
        self.looks.is_multiple_of(LOOKS)
    }

    /// What to give to a worker of another load. `costs` are what an event of each stage costs, and `is_apart` says which stages may be
    /// done by another worker than the one before them.
    pub(crate) fn choose(&self, other: u64, costs: &[u64], is_apart: &[bool]) -> Vec<Move> {
        let mut chosen = Vec::new();
        let (mut own, mut other) = (self.level, other);
        if own < LOADED {
            return chosen;
        }
        let shares = self.shares(costs);
        for whole in buckets(&shares) {
            if chosen.len() < MOVES && other + whole.load + DIFFERENCE <= own {
                chosen.push(whole);
                (own, other) = (own - whole.load.min(own), other + whole.load);
            }
        }
        if !chosen.is_empty() {
            return chosen;
        }
        // Whole buckets are too much: the later stages of one of them.
        let parts = (1..is_apart.len()).filter(|stage| is_apart[*stage]);
        let parts = parts.flat_map(|stage| {
            let is_behind = |(place, _): &&(Place, u64)| place.stage().index() >= stage;
            let behind: Vec<_> = shares.iter().filter(is_behind).copied().collect();
            let from = move |part| Move { stage, ..part };
            buckets(&behind).into_iter().map(from)
        });
        let better = parts.filter(|part| part.load > 0 && other + part.load + DIFFERENCE <= own);
        chosen.extend(better.max_by_key(|part| part.load.min(own - part.load)));
        chosen
    }

    /// The load of each place that was seen, in their order.
    fn shares(&self, costs: &[u64]) -> Vec<(Place, u64)> {
        let seen = self.sample.iter().filter(|mark| **mark > 0);
        let mut seen: Vec<u32> = seen.map(|mark| mark - 1).collect();
        seen.sort_unstable();
        let weigh = |same: &[u32]| {
            let place = Place::from_word(same[0]);
            (
                place,
                costs[place.stage().index()].max(1) * same.len() as u64,
            )
        };
        let weights: Vec<_> = seen.chunk_by(|one, two| one == two).map(weigh).collect();
        let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
        let share = |(place, weight)| (place, self.level * weight / total);
        weights.into_iter().map(share).collect()
    }

    /// What was seen of buckets that have gone.
    pub(crate) fn forget(&mut self, gone: &[Move]) {
        for mark in self.sample.iter_mut().filter(|mark| **mark > 0) {
            let place = Place::from_word(*mark - 1);
            if gone.iter().any(|gone| gone.has(place)) {
                *mark = 0;
            }
        }
    }
}

/// What goes to another worker: stages of a bucket, from one on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) bucket: usize,
    pub(crate) stage: usize,
    pub(crate) load: u64,
}

impl Move {
    fn has(self, place: Place) -> bool {
        place.bucket() == self.bucket && place.stage().index() >= self.stage
    }
}

/// The load of each bucket, the heaviest first.
fn buckets(shares: &[(Place, u64)]) -> Vec<Move> {
    let mut shares = shares.to_vec();
    shares.sort_by_key(|(place, _)| place.bucket());
    let sum = |same: &[(Place, u64)]| Move {
        bucket: same[0].0.bucket(),
        stage: 0,
        load: same.iter().map(|(_, load)| load).sum(),
    };
    let of_one = shares.chunk_by(|one, two| one.0.bucket() == two.0.bucket());
    let mut buckets: Vec<_> = of_one.map(sum).collect();
    buckets.sort_by_key(|whole| (std::cmp::Reverse(whole.load), whole.bucket));
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::StageId;

    /// Events of a stage and a bucket.
    fn load_of(level: u64, events: &[(u8, usize, usize)]) -> Load {
        let mut load = Load::new(0);
        load.level = level;
        for (stage, bucket, count) in events {
            for _ in 0..count * STRIDE {
                load.saw(Place::new(StageId(*stage), *bucket));
            }
        }
        load
    }

    /// Of one stage.
    fn choose(level: u64, events: &[(usize, usize)], other: u64) -> Vec<(usize, u64)> {
        let events: Vec<_> = events
            .iter()
            .map(|(bucket, count)| (0, *bucket, *count))
            .collect();
        let chosen = load_of(level, &events).choose(other, &[10], &[false]);
        chosen
            .iter()
            .map(|chosen| (chosen.bucket, chosen.load))
            .collect()
    }

    #[test]
    fn what_moves_makes_the_more_loaded_one_less_loaded() {
        // Ten buckets of a tenth each, and somebody idle: half of them go.
        let even: Vec<_> = (0..10).map(|bucket| (bucket, 10)).collect();
        let moved = choose(1000, &even, 0);
        assert_eq!(moved.len(), 5, "{moved:?}");
        assert!(moved.iter().all(|(_, load)| *load == 100));
        // An elephant stays, since it would only be somewhere else; mice go.
        let moved = choose(1000, &[(7, 90), (1, 5), (2, 5)], 100);
        assert_eq!(moved, [(1, 50), (2, 50)]);
        assert_eq!(choose(1000, &[(7, 90)], 0), []);
        assert_eq!(choose(600, &even, 0), []);
        assert_eq!(choose(1000, &even, 950), []);
    }

    #[test]
    fn an_elephant_is_cut_where_its_stages_may_be_apart() {
        // Stage 2 costs as much as the others together.
        let elephant = load_of(1000, &[(0, 7, 30), (1, 7, 30), (2, 7, 30)]);
        let costs = [10, 10, 20];
        let part = |stage, load| {
            vec![Move {
                bucket: 7,
                stage,
                load,
            }]
        };
        assert_eq!(
            elephant.choose(0, &costs, &[false, true, true]),
            part(2, 500)
        );
        assert_eq!(
            elephant.choose(0, &costs, &[false, true, false]),
            part(1, 750)
        );
        assert_eq!(elephant.choose(0, &costs, &[false; 3]), []);
        assert_eq!(elephant.choose(480, &costs, &[false, true, true]), []);
    }

    #[test]
    fn the_load_is_the_share_of_time_with_work() {
        let mut load = Load::new(0);
        for look in 1..=20 {
            load.add(LOOK_NS / 2);
            assert!(!load.look(look * LOOK_NS - 1));
            assert_eq!(load.look(look * LOOK_NS), look % 4 == 0);
        }
        assert!((490..=500).contains(&load.level), "{}", load.level);
    }
}
