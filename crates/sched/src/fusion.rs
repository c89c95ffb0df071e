//! Which stages stay together: a flow's later stages are done by another worker only where that takes more off the first one than handing
//! over costs.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What it costs both workers to hand an event from one to the other, in bursts, in nanoseconds, until it has been measured:
/// [`crate::Running::start`] does, where there are two workers.
pub const HAND_OVER_NS: u64 = 30;

/// Why a stage stays with the one before it, or may be another worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fused {
    /// There is none before it.
    First,
    /// The user has said so.
    Pinned(bool),
    /// It costs less than handing over.
    Cheap,
    /// It costs as much as handing over, or more: a flow that is too much for one worker is cut here.
    Dear,
}

impl Fused {
    /// Whether it stays with the stage before it.
    #[must_use]
    pub fn is_fused(self) -> bool {
        matches!(self, Fused::Pinned(true) | Fused::Cheap)
    }
}

/// What the user has said of each stage, and what handing over costs.
#[derive(Debug)]
pub(crate) struct Fusion {
    pins: Vec<Option<bool>>,
    /// What sending costs, and what receiving does, of each event; 0 until it has been measured.
    costs_ns: [AtomicU64; 2],
}

impl Fusion {
    pub(crate) fn new(pins: Vec<Option<bool>>) -> Fusion {
        Fusion {
            pins,
            costs_ns: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// One side has been measured.
    pub(crate) fn set_cost(&self, side: usize, ns: u64) {
        self.costs_ns[side].store(ns.max(1), Relaxed);
    }

    pub(crate) fn hand_over_ns(&self) -> u64 {
        match self.costs_ns.each_ref().map(|cost| cost.load(Relaxed)) {
            [0, _] | [_, 0] => HAND_OVER_NS,
            [sending, receiving] => sending.saturating_add(receiving),
        }
    }

    /// Of a stage whose events cost so much.
    pub(crate) fn of(&self, stage: usize, cost_ns: u64) -> Fused {
        match self.pins[stage] {
            _ if stage == 0 => Fused::First,
            Some(is_fused) => Fused::Pinned(is_fused),
            None if cost_ns < self.hand_over_ns() => Fused::Cheap,
            None => Fused::Dear,
        }
    }

    /// Of each stage, by what its events cost.
    pub(crate) fn of_each(&self, costs_ns: &[u64]) -> Vec<Fused> {
        let stages = costs_ns.iter().enumerate();
        stages.map(|(stage, cost)| self.of(stage, *cost)).collect()
    }

    /// The stages of which the given one is, and that move together, unless a flow is cut where it is dear: the user has said that none of
    /// the others stays with them.
    pub(crate) fn group(&self, stage: usize) -> Range<usize> {
        group(self.pins.len(), stage, |at| self.pins[at] == Some(false))
    }

    /// How many such groups are before that of a stage.
    pub(crate) fn groups_before(&self, stage: usize) -> usize {
        let pins = self.pins.iter().take(stage + 1).skip(1);
        pins.filter(|pin| **pin == Some(false)).count()
    }
}

/// The same of stages of which it is known whether they stay with those before them.
pub(crate) fn group_of(stages: &[Fused], stage: usize) -> Range<usize> {
    let begins = |at: usize| stages[at] == Fused::Pinned(false);
    group(stages.len(), stage, begins)
}

fn group(stages: usize, stage: usize, begins: impl Fn(usize) -> bool) -> Range<usize> {
    let first = (1..=stage).rev().find(|at| begins(*at)).unwrap_or(0);
    let end = (stage + 1..stages).find(|at| begins(*at)).unwrap_or(stages);
    first..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_less_than_handing_over_stays() {
        let fusion = Fusion::new(vec![None, None, None, Some(true), Some(false)]);
        let costs = [900, 5, 200, 200, 5];
        let first_three = |fusion: &Fusion| fusion.of_each(&costs)[..3].to_vec();
        assert_eq!(
            first_three(&fusion),
            [Fused::First, Fused::Cheap, Fused::Dear]
        );
        // It is dearer here than was thought.
        fusion.set_cost(0, 150);
        assert_eq!(fusion.hand_over_ns(), HAND_OVER_NS);
        fusion.set_cost(1, 100);
        assert_eq!(fusion.hand_over_ns(), 250);
        assert_eq!(
            first_three(&fusion),
            [Fused::First, Fused::Cheap, Fused::Cheap]
        );
        assert_eq!(fusion.of(2, 200), Fused::Cheap);
        assert_eq!(fusion.of(2, 300), Fused::Dear);
        assert_eq!(fusion.of(4, 300), Fused::Pinned(false));
    }

    #[test]
    fn stages_that_the_user_has_cut_off_are_groups() {
        let fusion = Fusion::new(vec![
            Some(false),
            None,
            Some(false),
            Some(true),
            Some(false),
        ]);
        let groups: Vec<_> = (0..5).map(|stage| fusion.group(stage)).collect();
        assert_eq!(groups, [0..2, 0..2, 2..4, 2..4, 4..5]);
        let before: Vec<_> = (0..5).map(|stage| fusion.groups_before(stage)).collect();
        assert_eq!(before, [0, 0, 1, 1, 2]);
        let fused = fusion.of_each(&[0; 5]);
        assert!((0..5).all(|stage| group_of(&fused, stage) == fusion.group(stage)));
    }
}
