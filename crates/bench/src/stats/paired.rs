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

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::generator::Generator;
use super::shift::{Interval, Shift};
use super::{flips, sample};

/// With fewer samples the ends of an interval are chance.
const LEAST_RESAMPLES: usize = 100;

/// Pairs that a verdict needs.
pub const PAIRS_FOR_A_VERDICT: usize = 10;

/// Pairs that are added to those whose interval was narrow enough.
const FURTHER_PAIRS: usize = 3;

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

impl Settings {
    /// Refuses what no statistics can be made with. A program that takes settings from a user asks before it compares.
    ///
    /// # Errors
    /// Which setting is wrong, and what it may be.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.level > 0.0 && self.level < 1.0,
            "the level of intervals is {}; it has to be between 0 and 1, as 0.95",
            self.level
        );
        ensure!(
            self.margin > 0.0 && self.margin.is_finite(),
            "the margin for no difference is {}; it has to be positive, as 0.05",
            self.margin
        );
        ensure!(
            self.error_rate > 0.0 && self.error_rate < 0.5,
            "the error rate is {}; it has to be between 0 and 0.5, as 0.05",
            self.error_rate
        );
        ensure!(
            self.resamples >= LEAST_RESAMPLES,
            "the bootstrap is to draw {} samples; {LEAST_RESAMPLES} are the least",
            self.resamples
        );
        Ok(())
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
    /// Whether further pairs are not worth their time: the equivalence interval was narrow enough three pairs ago, or is half as wide as it
    /// may be.
    #[serde(skip)]
    pub precise: bool,
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
    let interval = |level| ratios(shift.interval(&resampled, level));
    let equivalence = interval(1.0 - 2.0 * settings.error_rate);
    Some(Paired {
        pairs: pairs.len(),
        ratio: shift.estimate().exp(),
        interval: interval(settings.level),
        equivalence,
        p: flips::p_value(&logarithms, generator),
        precise: is_precise(&logarithms, equivalence, settings),
    })
}

/// Of logarithms.
fn ratios(found: Interval) -> Interval {
    Interval {
        low: found.low.exp(),
        high: found.high.exp(),
        ..found
    }
}

/// Whether a run that adds pairs may stop: there are [`PAIRS_FOR_A_VERDICT`], and the interval that equivalence looks at was no wider than
/// the margin [`FURTHER_PAIRS`] ago, or is no wider than half of it. Equal roads are then found equal, unless chance has moved the ratio
/// by half of the margin. It knows how wide the interval is, and not where.
///
/// An interval is narrow because there are pairs enough, or because those that there are happen to lie close together. Who stops as soon
/// as it is narrow stops more often by such chance, with an interval that is too narrow for what it claims: of cells that differ by the
/// margin, up to 6.8 % were called equal where it should be 5 % (see `calibration`). A few further pairs, whatever they are, mend that (G.
/// Simons, *On the cost of not knowing the variance when making a fixed-width confidence interval for the mean*, Annals of Mathematical
/// Statistics 39(6), 1968). Chance hardly makes an interval half as wide as it should be.
fn is_precise(logarithms: &[f64], equivalence: Interval, settings: &Settings) -> bool {
    let width = |found: Interval| found.high / found.low - 1.0;
    if logarithms.len() < PAIRS_FOR_A_VERDICT {
        return false;
    }
    if width(equivalence) <= settings.margin / 2.0 {
        return true;
    }
    let earlier = &logarithms[..logarithms.len() - FURTHER_PAIRS];
    if earlier.len() < PAIRS_FOR_A_VERDICT {
        return false;
    }
    let shift = Shift::new(earlier);
    let resampled = shift.resampled(settings.resamples, &mut Generator::new(settings.seed));
    width(ratios(shift.interval(&resampled, equivalence.level))) <= settings.margin
}

/// The pairs' middle figures: of the measured road, and of the baseline.
#[must_use]
pub fn medians(pairs: &[Pair]) -> (f64, f64) {
    let of = |value: fn(&Pair) -> f64| sample::median(&pairs.iter().map(value).collect::<Vec<_>>());
    (of(|pair| pair.measured), of(|pair| pair.baseline))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(figures: &[(f64, f64)]) -> Vec<Pair> {
        let pair =
            |&(measured, baseline)| Pair::new(measured, baseline).expect("both are positive");
        figures.iter().map(pair).collect()
    }

    #[test]
    fn a_pair_needs_two_figures_that_have_a_ratio() {
        assert!(Pair::new(1.0, 2.0).is_some());
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Pair::new(bad, 1.0).is_none() && Pair::new(1.0, bad).is_none());
        }
    }

    #[test]
    fn ratio_is_that_of_the_rounds_and_not_of_the_medians() {
        // The baseline doubles from round to round, and the ratio stays.
        let figures: Vec<(f64, f64)> = (0..10)
            .map(|round| 2.0_f64.powi(round))
            .map(|base| (base * 1.5, base))
            .collect();
        let found = paired(&pairs(&figures), &Settings::default()).expect("there are pairs");
        assert!((found.ratio - 1.5).abs() < 1e-12);
        assert!(found.interval.high - found.interval.low < 1e-12);
        assert_eq!((found.pairs, found.p), (10, 1.0 / 512.0));
        assert_eq!(paired(&[], &Settings::default()), None);
    }

    #[test]
    fn the_equivalence_interval_lies_within_the_shown_one() {
        let figures: Vec<(f64, f64)> = (1..13).map(|round| (f64::from(round), 6.0)).collect();
        let found = paired(&pairs(&figures), &Settings::default()).expect("there are pairs");
        assert!(
            found.interval.low < found.equivalence.low
                && found.equivalence.high < found.interval.high
        );
        assert!((found.equivalence.level - 0.9).abs() < 1e-12);
    }

    #[test]
    fn medians_are_those_of_each_side() {
        let found = medians(&pairs(&[(1.0, 10.0), (2.0, 30.0), (9.0, 20.0)]));
        assert_eq!(found, (2.0, 20.0));
    }

    #[test]
    fn settings_without_sense_are_refused_with_what_they_may_be() {
        assert!(Settings::default().check().is_ok());
        let usual = Settings::default;
        for (settings, what) in [
            (
                Settings {
                    level: 95.0,
                    ..usual()
                },
                "level",
            ),
            (
                Settings {
                    margin: 0.0,
                    ..usual()
                },
                "margin",
            ),
            (
                Settings {
                    error_rate: f64::NAN,
                    ..usual()
                },
                "error rate",
            ),
            (
                Settings {
                    resamples: 0,
                    ..usual()
                },
                "bootstrap",
            ),
        ] {
            let error = settings.check().expect_err(what).to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
