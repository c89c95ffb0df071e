//! How many workers are active: as many as the load needs, and as keep the wait within what the user allows.
//!
//! Nobody decides for all. A worker that has too much to do calls up one that is not active, and gives it half of its buckets. One that
//! finds that the others could do its work as well stands down: it gives them all that it has, and sleeps. Between the two limits nothing
//! happens, so that a load that does not change leaves everybody where it is.
//!
//! A worker whose handler has panicked stands down as well, for a second. What is pinned to a worker stays there in all this: it is woken
//! for that, active or not.
//!
//! | a worker is | and becomes | when |
//! |---|---|---|
//! | active | leaving | it is calm for some looks, or its handler panics and another one is well |
//! | leaving | inactive | it has no bucket any more but those that are pinned |
//! | leaving, inactive | active | it is called up, and is not ill; what it has not given away yet it keeps |
//! | inactive | leaving | it is given a bucket by somebody who has not seen that it stood down |
//!
//! Never: the last active one stands down; one that is ill is called up; two stand down by the same look, as both change one word.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::Worker;
use crate::event::StageId;
use crate::map::{BUCKETS, Place};

/// Above this load, in thousandths of a processor, another worker is called up.
const BUSY: u64 = 800;
/// Who stands down leaves no more than this to each of the others, as if all were even.
const CALM: u64 = 500;
/// And lets nobody wait for more than this share of the bound, in hundredths, whose waits are what they have been of late, and its own.
const CALM_WAIT: u64 = 80;
/// What has been of late is forgotten by this part of it at each look, so that crowds that come rarely are remembered.
const FORGET: u64 = 8;
/// It has to have been so for this many looks at others' loads, of a millisecond each; and for some more for each active worker behind it,
/// so that it is the last one that stands down first.
const CALM_LOOKS: u32 = 20;
const MORE_LOOKS: u32 = 4;
/// Between calling up one and another.
const CALL_NS: u64 = 2_000_000;
/// Nothing is given to a worker whose handler has panicked for so long.
const ILL_NS: u64 = 1_000_000_000;
/// Buckets that leave in one turn, at most.
const BUCKETS_AT_ONCE: usize = 64;
/// While so many events wait to be sent, no more are added by giving buckets away.
const PENDING: usize = 1024;

/// Buckets that leave, a few in each turn.
#[derive(Debug, Clone, Copy)]
struct Exodus {
    /// The next one.
    bucket: usize,
    /// Every second one that is there, or all.
    is_half: bool,
    is_second: bool,
    /// To whom, by bits, and from where on the next of them is looked for.
    to: u64,
    turn: usize,
}

impl Exodus {
    fn new(is_half: bool, to: u64) -> Exodus {
        Exodus {
            bucket: 0,
            is_half,
            is_second: false,
            to,
            turn: 0,
        }
    }

    /// Whose turn it is to get some.
    fn next(&mut self) -> usize {
        let later = self.to >> self.turn << self.turn;
        let next = if later == 0 { self.to } else { later }.trailing_zeros() as usize;
        self.turn = (next + 1) % u64::BITS as usize;
        next
    }

    fn takes(&mut self) -> bool {
        self.is_second = !self.is_second;
        !self.is_half || self.is_second
    }
}

/// What a worker knows of how many are needed.
#[derive(Debug, Default)]
pub(super) struct Activity {
    exodus: Option<Exodus>,
    /// For how many looks the others could have done its work.
    calm: u32,
    /// How long events have waited since the last look, at most, and of late.
    wait_ns: u64,
    late_wait_ns: u64,
    /// What an event costs that goes through all stages.
    way_ns: u64,
    called_ns: Option<u64>,
}

impl Activity {
    pub(super) fn is_leaving(&self) -> bool {
        self.exodus.is_some()
    }
}

impl Worker {
    /// Looks at what waits now. What an event costs from here to the way out, for each that is before it, is how long it will wait.
    #[inline]
    pub(super) fn watch_latency(&mut self, now: u64) {
        let bound = self.shared.tuning.latency_ns.load(Relaxed);
        if bound == 0 {
            return;
        }
        let wait = self.queues.len() as u64 * self.activity.way_ns;
        if wait > self.activity.wait_ns {
            self.activity.wait_ns = wait;
            self.seen().wait_max_ns.raise(wait);
        }
        if wait > bound {
            self.activity.calm = 0;
            self.call_up(now);
        }
    }

    /// Each millisecond or so.
    pub(super) fn follow_load(&mut self, now: u64) {
        let costs = self.seen().stages.iter().map(|stage| stage.cost_ns.get());
        self.activity.way_ns = costs.sum();
        let wait = std::mem::take(&mut self.activity.wait_ns);
        let faded = self.activity.late_wait_ns - self.activity.late_wait_ns.div_ceil(FORGET);
        self.activity.late_wait_ns = wait.max(faded);
        self.seen().late_wait_ns.set(self.activity.late_wait_ns);
        let active = self.shared.active();
        if active >> self.index & 1 == 0 {
            // Somebody has given it something since it stood down.
            if self.flows.movable() > 0 && self.activity.exodus.is_none() {
                self.leave(active);
            }
            return;
        }
        let bound = self.shared.tuning.latency_ns.load(Relaxed);
        if bound == 0 {
            self.call_all(active, now);
        } else if self.load.level > BUSY {
            self.activity.calm = 0;
            self.call_up(now);
        } else {
            self.stand_down_if_calm(active, bound, now);
        }
    }

    /// All that are well are active: who was ill can be given something again.
    fn call_all(&self, active: u64, now: u64) {
        let absent = (0..self.shared.workers).filter(|worker| active >> worker & 1 == 0);
        let well = absent.filter(|worker| !self.is_ill(*worker, now));
        let well = well.fold(0, |all, worker| all | 1 << worker);
        if well != 0 {
            self.shared.active.0.fetch_or(well, AcqRel);
        }
    }

    /// Has another worker take half of what this one has, if there is one.
    fn call_up(&mut self, now: u64) {
        let is_early = |called: u64| now < called.saturating_add(CALL_NS);
        if self.activity.exodus.is_some() || self.activity.called_ns.is_some_and(is_early) {
            return;
        }
        let active = self.shared.active();
        let mut absent = (0..self.shared.workers).filter(|worker| active >> worker & 1 == 0);
        let Some(worker) = absent.find(|worker| !self.is_ill(*worker, now)) else {
            return;
        };
        // Somebody else may have been faster: then it has been called up by that one, and this one looks again.
        let bit = 1 << worker;
        if self.shared.active.0.fetch_or(bit, AcqRel) & bit != 0 {
            return;
        }
        self.activity.called_ns = Some(now);
        self.seen().called.add(1);
        self.activity.exodus = Some(Exodus::new(true, bit));
    }

    fn stand_down_if_calm(&mut self, active: u64, bound: u64, now: u64) {
        // One that sleeps does not look, and could not give back what it was given.
        let is_up = |worker: &usize| {
            active >> worker & 1 != 0 && !self.shared.loads[*worker].0.is_long_asleep(now)
        };
        let others = (0..self.shared.workers).filter(|worker| *worker != self.index);
        let others: Vec<usize> = others.filter(is_up).collect();
        let loads = others.iter().map(|worker| self.shared.load(*worker, now));
        let sum = self.load.level + loads.sum::<u64>();
        // What would wait here waits at the others then, beside what waits there.
        let waits = others.iter().map(|worker| &self.shared.seen[*worker].0);
        let longest = waits.map(|seen| seen.late_wait_ns.get()).max();
        let to = others.iter().fold(0, |to, worker| to | 1 << worker);
        let others = others.len() as u64;
        let is_calm = others > 0
            && sum <= CALM * others
            && longest.unwrap_or(0) + self.activity.late_wait_ns / others
                <= bound / 100 * CALM_WAIT;
        self.activity.calm = if is_calm { self.activity.calm + 1 } else { 0 };
        let behind = (active >> self.index >> 1).count_ones();
        if self.activity.calm < CALM_LOOKS + MORE_LOOKS * behind {
            return;
        }
        self.activity.calm = 0;
        // One at a time: who comes second goes by an older number, and looks again.
        let left = active & !(1 << self.index);
        let exchange = self
            .shared
            .active
            .0
            .compare_exchange(active, left, AcqRel, Acquire);
        if exchange.is_ok() {
            self.seen().stood_down.add(1);
            self.leave(to);
        }
    }

    /// Gives all that it has to those.
    fn leave(&mut self, to: u64) {
        let to = to & !(1 << self.index);
        self.activity.exodus = (to != 0).then_some(Exodus::new(false, to));
    }

    fn is_ill(&self, worker: usize, now: u64) -> bool {
        self.shared.seen[worker].0.ill_until_ns.get() > now
    }

    /// A handler has panicked: whoever is well does the work meanwhile. If nobody is, it goes on.
    pub(super) fn fall_ill(&mut self) {
        let now = self.clock.now();
        self.seen().ill_until_ns.set(now.saturating_add(ILL_NS));
        let all = 0..self.shared.workers;
        let well = all.filter(|worker| !self.is_ill(*worker, now));
        let well = well.fold(0, |all, worker| all | 1u64 << worker);
        let me = 1 << self.index;
        let rest = |active: u64| match active & !me {
            // Those that are active are not enough of a reason to call up all the others.
            rest if rest & well != 0 => Some(rest),
            rest if well != 0 => Some(rest | 1 << well.trailing_zeros()),
            _ => None,
        };
        if self
            .shared
            .active
            .0
            .fetch_update(AcqRel, Acquire, rest)
            .is_ok()
        {
            self.leave(self.shared.active());
        }
    }

    /// Gives away a few more of the buckets that leave.
    pub(super) fn go_on_leaving(&mut self) {
        let Some(mut exodus) = self.activity.exodus else {
            return;
        };
        let is_active = self.shared.active() >> self.index & 1 != 0;
        if !exodus.is_half && is_active {
            // Called up again: what is left stays.
            self.activity.exodus = None;
            return;
        }
        if self.pending.len() > PENDING {
            return;
        }
        let to = exodus.next();
        let end = (exodus.bucket + BUCKETS_AT_ONCE).min(BUCKETS);
        let stages = self.shared.kinds.len() as u8;
        let mut places = Vec::new();
        for bucket in exodus.bucket..end {
            let of_bucket = (0..stages).map(|stage| Place::new(StageId(stage), bucket));
            let before = places.len();
            places.extend(of_bucket.filter(|place| self.may_move(*place)));
            if places.len() > before && !exodus.takes() {
                places.truncate(before);
            }
        }
        self.moves += self.give_away(&places, to) as u64;
        let is_over = end == BUCKETS && (exodus.is_half || self.flows.movable() == 0);
        exodus.bucket = end % BUCKETS;
        self.activity.exodus = (!is_over).then_some(exodus);
    }
}
