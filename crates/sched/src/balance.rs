//! Which buckets go to another worker, and when: each worker looks at its own load, and gives some of it to whoever has the least.
//!
//! The load is the share of time with work, over a quarter of a millisecond, smoothed twice: over half a millisecond for those who wait,
//! and over eight for what is given away, since that is to last. Limits are those of DPDK's distributed software device (`event_dsw`),
//! which have proved themselves: nothing moves below 70 %, nor for a difference below 3 %; what moves must make the more loaded of both
//! less loaded than it was, and is charged to the receiver at once, so that not everybody gives to the same one. And it begins only where
//! the difference is a tenth: what real work measures goes up and down, also where nothing is uneven, and a bucket that comes and goes has
//! its costs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::event::StageId;
use crate::fusion::{Fused, group_of};
use crate::map::Place;
use crate::seen::ELEPHANTS;

/// Time between two looks at the load, in nanoseconds.
pub(crate) const LOOK_NS: u64 = 250_000;
/// Looks between two moves.
pub(crate) const LOOKS: u32 = 4;
/// Below this load, in thousandths of a processor, nothing is given away.
const LOADED: u64 = 700;
/// A smaller difference is none.
const DIFFERENCE: u64 = 30;
/// A smaller one is none, while nothing was given away before.
const FIRST_DIFFERENCE: u64 = 100;
/// Looks that the steady load is smoothed over.
const STEADY: u64 = 32;
/// Buckets that move at a time, at most.
const MOVES: usize = 8;
/// Of so many events one is remembered: a prime, so that flows that take turns are all seen.
const STRIDE: usize = 17;
const SAMPLE: usize = 256;
/// Of so many times that the load is told to others, elephants are looked for once.
const HUNT: u32 = 16;
/// A flow with so much load, in thousandths of a processor, is one.
const ELEPHANT: u64 = 250;

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
    /// The same over a longer time, in millionths.
    steady: u64,
    /// Something was given away the last time.
    is_giving: bool,
    /// Of the last events that were handled.
    sample: Box<[Option<Mark>; SAMPLE]>,
    at: usize,
    skipped: usize,
    hunts: u32,
}

/// An event that is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    place: u32,
    flow: u32,
}

/// A flow that is much for one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elephant {
    pub(crate) flow: u32,
    /// In thousandths of a processor.
    pub(crate) load: u64,
}

impl Elephant {
    /// Never 0.
    pub(crate) fn pack(self) -> u64 {
        self.load << 32 | u64::from(self.flow)
    }

    pub(crate) fn unpack(word: u64) -> Option<Elephant> {
        let (flow, load) = (word as u32, word >> 32);
        (load > 0).then_some(Elephant { flow, load })
    }
}

impl Load {
    pub(crate) fn new(now: u64) -> Load {
        Load {
            looked: now,
            looks: 0,
            busy: 0,
            level: 0,
            steady: 0,
            is_giving: false,
            sample: Box::new([None; SAMPLE]),
            at: 0,
            skipped: 0,
            hunts: 0,
        }
    }

    /// Work took so long.
    #[inline]
    pub(crate) fn add(&mut self, ns: u64) {
        self.busy += ns;
    }

    /// A batch of a stage was handled: of what, and of which flow each is.
    #[inline]
    pub(crate) fn saw<T>(&mut self, stage: StageId, events: &[T], flow: impl Fn(&T) -> u32) {
        let mut at = STRIDE - 1 - self.skipped;
        while let Some(event) = events.get(at) {
            let flow = flow(event);
            self.remember(Place::of(stage, flow), flow);
            at += STRIDE;
        }
        // How many there were since the last that was remembered.
        self.skipped = STRIDE - 1 - (at - events.len());
    }

    fn remember(&mut self, place: Place, flow: u32) {
        let place = place.word();
        self.sample[self.at] = Some(Mark { place, flow });
        self.at = (self.at + 1) % SAMPLE;
    }

    /// Whether there was so much work since the last look that it is time for the next one.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.busy >= LOOK_NS
    }

    /// Looks at the load, if it is time for it; and then, whether it is time to give something away.
    #[inline]
    pub(crate) fn look(&mut self, now: u64) -> Option<bool> {
        let elapsed = now.saturating_sub(self.looked);
        if elapsed < LOOK_NS {
            return None;
        }
        let last = (self.busy.min(elapsed) * 1000 / elapsed).min(1000);
        self.level = u64::midpoint(self.level, last);
        // Who has slept looks once for all that time.
        for _ in 0..(elapsed / LOOK_NS).min(4 * STEADY) {
            self.steady = self.steady - self.steady / STEADY + last * 1000 / STEADY;
        }
        (self.looked, self.busy) = (now, 0);
        self.looks += 1;
        Some(self.looks.is_multiple_of(LOOKS))
    }

    /// The steady load, in thousandths.
    pub(crate) fn steady(&self) -> u64 {
        (self.steady / 1000).min(1000)
    }

    /// It was given so much, which will be measured before long.
    pub(crate) fn charge(&mut self, load: u64) {
        self.steady += load * 1000;
    }

    /// What was chosen is given away.
    pub(crate) fn give(&mut self, gone: &[Move]) {
        let given: u64 = gone.iter().map(|gone| gone.load).sum();
        self.steady = self.steady.saturating_sub(given * 1000);
        self.forget(gone);
    }

    /// What to give to a worker of another steady load. `costs` are what an event of each stage costs, `stages` says which may be done by
    /// another worker than the one before them, and `may_move` what may be given at all, `may_go` what of that now: the rest is load that
    /// stays.
    pub(crate) fn choose(
        &mut self,
        other: u64,
        costs: &[u64],
        stages: &[Fused],
        may_move: impl Fn(Place) -> bool,
        may_go: impl Fn(&Move) -> bool,
    ) -> Vec<Move> {
        let (own, least) = (
            self.steady(),
            if self.is_giving {
                DIFFERENCE
            } else {
                FIRST_DIFFERENCE
            },
        );
        let chosen = match own >= LOADED && other + least <= own {
            true => {
                let mut shares = self.shares(costs);
                shares.retain(|(place, _)| may_move(*place));
                choose_between(own, other, &shares, stages, may_go)
            }
            false => Vec::new(),
        };
        self.is_giving = !chosen.is_empty();
        chosen
    }

    /// The load of each place that was seen, in their order.
    fn shares(&self, costs: &[u64]) -> Vec<(Place, u64)> {
        let mut seen: Vec<Mark> = self.sample.iter().copied().flatten().collect();
        seen.sort_unstable();
        let place = |same: &[Mark]| Place::from_word(same[0].place);
        let same = seen.chunk_by(|one, two| one.place == two.place);
        self.weigh(self.steady(), same.map(|same| (place(same), same)), costs)
    }

    /// The load of groups of events that were seen.
    fn weigh<'a, T>(
        &self,
        load: u64,
        groups: impl Iterator<Item = (T, &'a [Mark])>,
        costs: &[u64],
    ) -> Vec<(T, u64)> {
        let cost = |mark: &Mark| costs[Place::from_word(mark.place).stage().index()].max(1);
        let weigh = |(what, same): (T, &[Mark])| (what, same.iter().map(cost).sum::<u64>());
        let weights: Vec<_> = groups.map(weigh).collect();
        let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
        let share = |(what, weight)| (what, load * weight / total);
        weights.into_iter().map(share).collect()
    }

    /// Now and then: flows that are much for one worker, the heaviest first.
    pub(crate) fn elephants(&mut self, costs: &[u64]) -> Option<Vec<Elephant>> {
        self.hunts += 1;
        if !self.hunts.is_multiple_of(HUNT) {
            return None;
        }
        if self.level < ELEPHANT {
            return Some(Vec::new());
        }
        let mut seen: Vec<Mark> = self.sample.iter().copied().flatten().collect();
        seen.sort_unstable_by_key(|mark| (mark.flow, mark.place));
        let same = seen.chunk_by(|one, two| one.flow == two.flow);
        let shares = self.weigh(self.level, same.map(|same| (same[0].flow, same)), costs);
        let elephant = |(flow, load)| Elephant { flow, load };
        let mut elephants: Vec<_> = shares.into_iter().map(elephant).collect();
        elephants.retain(|elephant| elephant.load >= ELEPHANT);
        elephants
            .sort_unstable_by_key(|elephant| (std::cmp::Reverse(elephant.load), elephant.flow));
        elephants.truncate(ELEPHANTS);
        Some(elephants)
    }

    /// What was seen of buckets that have gone.
    fn forget(&mut self, gone: &[Move]) {
        for seen in self.sample.iter_mut() {
            let place = seen.map(|mark| Place::from_word(mark.place));
            if place.is_some_and(|place| gone.iter().any(|gone| gone.has(place))) {
                *seen = None;
            }
        }
    }
}

/// What to give of these shares, so that both have more nearly the same.
fn choose_between(
    mut own: u64,
    mut other: u64,
    shares: &[(Place, u64)],
    stages: &[Fused],
    may_go: impl Fn(&Move) -> bool,
) -> Vec<Move> {
    let mut chosen = Vec::new();
    let from = |first: usize| {
        let range = first..group_of(stages, first).end;
        let is_in = |(place, _): &&(Place, u64)| range.contains(&place.stage().index());
        let part: Vec<_> = shares.iter().filter(is_in).copied().collect();
        let mut parts = buckets(&part, &range);
        parts.retain(&may_go);
        parts
    };
    let begins = |stage: &usize| group_of(stages, *stage).start == *stage;
    let mut wholes: Vec<_> = (0..stages.len()).filter(begins).flat_map(from).collect();
    wholes.sort_by_key(Move::heaviest_first);
    for whole in wholes {
        if chosen.len() < MOVES && other + whole.load + DIFFERENCE <= own {
            (own, other) = (own - whole.load.min(own), other + whole.load);
            chosen.push(whole);
        }
    }
    if !chosen.is_empty() {
        return chosen;
    }
    // Whole buckets are too much: the later stages of one of them.
    let parts = (1..stages.len()).filter(|stage| !stages[*stage].is_fused());
    let parts = parts.flat_map(from);
    let better = parts.filter(|part| part.load > 0 && other + part.load + DIFFERENCE <= own);
    chosen.extend(better.max_by_key(|part| part.load.min(own - part.load)));
    chosen
}

/// What goes to another worker: stages of a bucket that stand beside each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) bucket: usize,
    pub(crate) stages: Range<usize>,
    pub(crate) load: u64,
}

impl Move {
    fn has(&self, place: Place) -> bool {
        place.bucket() == self.bucket && self.stages.contains(&place.stage().index())
    }

    /// What goes, whether it is there or not.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let bucket = self.bucket;
        let stages = self.stages.clone();
        stages.map(move |stage| Place::new(StageId(stage as u8), bucket))
    }

    fn heaviest_first(&self) -> impl Ord + use<> {
        (std::cmp::Reverse(self.load), self.bucket, self.stages.start)
    }
}

/// The load of each bucket at these stages.
fn buckets(shares: &[(Place, u64)], stages: &Range<usize>) -> Vec<Move> {
    let mut shares = shares.to_vec();
    shares.sort_by_key(|(place, _)| place.bucket());
    let sum = |same: &[(Place, u64)]| Move {
        bucket: same[0].0.bucket(),
        stages: stages.clone(),
        load: same.iter().map(|(_, load)| load).sum(),
    };
    let of_one = shares.chunk_by(|one, two| one.0.bucket() == two.0.bucket());
    of_one.map(sum).collect()
}

#[cfg(test)]
mod tests;
