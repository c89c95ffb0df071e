//! Two roads held against each other, round by round.
//!
//! The trials of a round are made one after the other, and what disturbs the machine for longer than a round (its temperature, its
//! neighbours, its clock) meets all of them: the ratio of the two figures of a round is free of it. Ratios are taken as logarithms, in
//! which half as fast is as far from equal as twice as fast, and the two roads can be exchanged.
//!
//! The figure given is the typical ratio of a round: Hodges and Lehmann's estimate over the logarithms, see [`super::shift`]. The
//! geometric mean of the ratios would be moved by each single disturbed trial, and their median would waste a third of the trials.
//!
//! What is said is said of the run on this machine, as it was set up. Another start of the machine, another build, another layout of
//! memory may move figures by more than an interval's width (T. Kalibera and R. Jones, *Rigorous benchmarking in reasonable time*, ISMM
//! 2013): who wants to include that repeats whole runs.

use serde::{Deserialize, Serialize};

use super::generator::Generator;
use super::shift::{Interval, Shift};
use super::{flips, sample};

/// How sure verdicts are to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// How often an interval that is shown holds the true ratio.
    pub level: f64,
    /// A ratio that is this share away from 1 is no difference yet.
    pub margin: f64,
    /// Of the verdicts `faster` and `slower` over a report, the share that is false at most, on average. Also the share of cells truly
    /// different by the margin that are called equal at most.
    pub error_rate: f64,
    /// Samples that the bootstrap draws.
    pub resamples: usize,
    /// Decides what the bootstrap and the permutation test draw.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            level: 0.95,
            margin: 0.05,
            error_rate: 0.05,
            // An end of a 95 % interval of 10 pairs is the 86th of these, so that another seed hardly moves it.
            resamples: 10_000,
            seed: 1,
        }
    }
}

/// The figures of two roads in one round, both positive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Of the road that is held against the other one: the ratio's numerator.
    pub measured: f64,
    /// Of the road that it is held against: the ratio's denominator.
    pub baseline: f64,
}

impl Pair {
    /// A pair, if there is a ratio: if both figures are positive and finite.
    #[must_use]
    pub fn new(measured: f64, baseline: f64) -> Option<Pair> {
        let has_logarithm = |value: f64| value.is_finite() && value > 0.0;
        (has_logarithm(measured) && has_logarithm(baseline)).then_some(Pair { measured, baseline })
    }
}

/// What pairs say about the ratio of two roads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    /// Rounds that were compared.
    pub pairs: usize,
    /// The typical ratio of a round.
    pub ratio: f64,
    /// Where the true ratio is, at [`Settings::level`].
    pub interval: Interval,
    /// The same at 1 − 2 [`Settings::error_rate`]: two one-sided tests for equivalence look at it.
    pub equivalence: Interval,
    /// How probable it is that signs lean as far to one side when the roads are equal.
    pub p: f64,
}

/// Compares two roads; `None` of nothing.
#[must_use]
pub fn paired(pairs: &[Pair], settings: &Settings) -> Option<Paired> {
    if pairs.is_empty() {
        return None;
    }
    let logarithms: Vec<f64> = pairs
        .iter()
        .map(|pair| pair.measured.ln() - pair.baseline.ln())
        .collect();
    let generator = &mut Generator::new(settings.seed);
    let shift = Shift::new(&logarithms);
    let resampled = shift.resampled(settings.resamples, generator);
    let interval = |level| {
        let found = shift.interval(&resampled, level);
        Interval {
            low: found.low.exp(),
            high: found.high.exp(),
            ..found
        }
    };
    Some(Paired {
        pairs: pairs.len(),
        ratio: shift.estimate().exp(),
        interval: interval(settings.level),
        equivalence: interval(1.0 - 2.0 * settings.error_rate),
        p: flips::p_value(&logarithms, generator),
    })
}

/// The pairs' middle figures: of the measured road, and of the baseline.
#[must_use]
pub fn medians(pairs: &[Pair]) -> (f64, f64) {
    let of = |value: fn(&Pair) -> f64| sample::median(&pairs.iter().map(value).collect::<Vec<_>>());
    (of(|pair| pair.measured), of(|pair| pair.baseline))
}
