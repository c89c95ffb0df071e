//! What is claimed of each cell of a report, and at which error rate.
//!
//! | verdict | is given when | and is false |
//! |---|---|---|
//! | `Faster`, `Slower` | at least 10 pairs, the adjusted p value at most 5 % | for 5 % of these in a report at most, on average |
//! | `NoDifference` | at least 10 pairs, the 90 % interval within the margin of 5 % | for 5 % of the cells that differ by the margin |
//! | `Undecided` | at least 10 pairs, and none of these | never: nothing is claimed, and more pairs would tell |
//! | `TooFew` | fewer than 10 pairs, or a quick run | never: the interval is all there is |
//!
//! **Equal within the margin comes first.** A difference that is surely smaller than the margin is none that a user would notice, however
//! surely it is there. That the ratio lies within `1 / (1 + m)` and `1 + m` is shown by two one-sided tests (D. J. Schuirmann, 1987), which
//! is the same as looking whether the interval of level 1 − 2 · 5 % lies between the two.
//!
//! **Different** needs more than the permutation test's p value: the interval that is shown has to be on one side of 1, so that table and
//! verdict agree. A cell that is equal within the margin, or whose interval holds 1, enters the false discovery rate with p = 1. That
//! makes p values greater and never smaller, so that the rate holds for the verdicts that are given, and not for a wider set of which
//! the verdicts are a selection.
//!
//! **How many pairs.** The p value of 10 pairs is 1/512 at the least. Where a single one of a report's cells differs, it can be found by 10
//! pairs among 25 cells at most; each further pair doubles that. Who adds pairs until a report is good enough may not stop at the first p
//! value that pleases: that makes false verdicts. They may look at how wide the intervals are, as [`Paired::precise`] does, and they may
//! stop at a p value that equal roads hardly ever reach, however often it is looked at, which leaves the error rate of the last look as it
//! is (J. L. Haybittle, 1971, and R. Peto et al., 1976, of interim looks at trials of medicines). [`is_decided`] is both; `calibration`
//! tries it.

use serde::{Deserialize, Serialize};

use super::discovery;
use super::paired::{PAIRS_FOR_A_VERDICT, Pair, Paired, Settings, paired};

/// What an early look has to find: ten pairs that agree are just below it.
const EARLY_P: f64 = 0.002;

/// What is claimed of a road against the one that it is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is better: more where more is better, less where less is.
    Faster,
    /// It is worse.
    Slower,
    /// The two are equal within the margin.
    NoDifference,
    /// Neither can be said with so many pairs and so much noise.
    Undecided,
    /// Fewer than [`PAIRS_FOR_A_VERDICT`] pairs, or a quick run: an interval at most.
    TooFew,
}

/// A cell of a report, as the statistics see it.
#[derive(Clone, Debug)]
pub struct Question {
    /// Of the rounds that count on both roads.
    pub pairs: Vec<Pair>,
    /// Which direction of the ratio is the better one.
    pub more_is_better: bool,
    /// No verdict is wanted.
    pub quick: bool,
}

/// What is said of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// The ratio and its interval; `None` without pairs.
    pub paired: Option<Paired>,
    /// The p value, adjusted for all cells that got a verdict, and 1 where the interval alone decides; `None` where there is no verdict.
    pub adjusted_p: Option<f64>,
    /// What is claimed.
    pub verdict: Verdict,
}

/// Compares all cells of a report, and gives a verdict each, in their order. The false discovery rate holds over these cells together.
#[must_use]
pub fn judge(questions: &[Question], settings: &Settings) -> Vec<Judged> {
    let compared: Vec<Option<Paired>> = questions
        .iter()
        .map(|question| paired(&question.pairs, settings))
        .collect();
    let is_judged = |(question, found): (&Question, &Option<Paired>)| {
        let enough = !question.quick && question.pairs.len() >= PAIRS_FOR_A_VERDICT;
        found.clone().filter(|_| enough)
    };
    let judged: Vec<Option<Paired>> = questions.iter().zip(&compared).map(is_judged).collect();
    let p_values: Vec<f64> = judged
        .iter()
        .flatten()
        .map(|found| p_of_a_difference(found, settings))
        .collect();
    let mut adjusted = discovery::adjusted(&p_values).into_iter();
    let zipped = questions.iter().zip(compared).zip(judged);
    let all = zipped.map(|((question, paired), judged)| {
        let adjusted_p = judged.as_ref().and_then(|_| adjusted.next());
        let verdict = match (&judged, adjusted_p) {
            (Some(found), Some(p)) => verdict(found, p, question.more_is_better, settings),
            _ => Verdict::TooFew,
        };
        Judged {
            paired,
            adjusted_p,
            verdict,
        }
    });
    all.collect()
}

/// Whether a run that adds pairs may stop: further pairs are not worth their time, or it is past doubt which road is faster.
///
/// The p value is the adjusted one, of all cells that are judged at that moment.
#[must_use]
pub fn is_decided(found: &Paired, adjusted_p: f64) -> bool {
    found.precise || (found.pairs >= PAIRS_FOR_A_VERDICT && adjusted_p <= EARLY_P)
}

/// Whether the two are equal within the margin.
fn is_equal(found: &Paired, settings: &Settings) -> bool {
    let bound = 1.0 + settings.margin;
    1.0 / bound <= found.equivalence.low && found.equivalence.high <= bound
}

/// The p value with which a cell enters the false discovery rate.
fn p_of_a_difference(found: &Paired, settings: &Settings) -> f64 {
    let holds_one = found.interval.low <= 1.0 && 1.0 <= found.interval.high;
    if holds_one || is_equal(found, settings) {
        1.0
    } else {
        found.p
    }
}

fn verdict(found: &Paired, adjusted_p: f64, more_is_better: bool, settings: &Settings) -> Verdict {
    if is_equal(found, settings) {
        Verdict::NoDifference
    } else if adjusted_p > settings.error_rate {
        Verdict::Undecided
    } else if (found.ratio > 1.0) == more_is_better {
        Verdict::Faster
    } else {
        Verdict::Slower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fewer samples than a report draws.
    fn settings() -> Settings {
        Settings {
            resamples: 200,
            ..Settings::default()
        }
    }

    /// Rounds with the ratios given, of a baseline that is not the same in each.
    fn question(ratios: &[f64]) -> Question {
        let pair = |(round, ratio): (u32, &f64)| {
            let baseline = 1000.0 + f64::from(round);
            Pair::new(baseline * ratio, baseline).expect("both are positive")
        };
        Question {
            pairs: (0..).zip(ratios).map(pair).collect(),
            more_is_better: true,
            quick: false,
        }
    }

    fn verdict_of(question: Question) -> Verdict {
        judge(&[question], &settings())[0].verdict
    }

    #[test]
    fn more_is_faster_where_more_is_better_and_slower_where_less_is() {
        let doubled = question(&[2.0; 10]);
        assert_eq!(verdict_of(doubled.clone()), Verdict::Faster);
        let latency = Question {
            more_is_better: false,
            ..doubled
        };
        assert_eq!(verdict_of(latency), Verdict::Slower);
        assert_eq!(verdict_of(question(&[0.5; 10])), Verdict::Slower);
    }

    #[test]
    fn a_sure_difference_below_the_margin_is_none() {
        let ratios = [1.02; 12];
        assert_eq!(verdict_of(question(&ratios)), Verdict::NoDifference);
        let judged = judge(
            &[question(&ratios)],
            &Settings {
                margin: 0.01,
                ..settings()
            },
        );
        assert_eq!(judged[0].verdict, Verdict::Faster);
    }

    #[test]
    fn few_pairs_and_quick_runs_have_an_interval_and_no_verdict() {
        let quick = Question {
            quick: true,
            ..question(&[2.0; 10])
        };
        for few in [question(&[2.0; 9]), quick] {
            let judged = &judge(&[few], &settings())[0];
            assert_eq!((judged.verdict, judged.adjusted_p), (Verdict::TooFew, None));
            let found = judged.paired.as_ref().expect("there are pairs");
            assert!((found.ratio - 2.0).abs() < 1e-12);
        }
        let none = &judge(&[question(&[])], &settings())[0];
        assert_eq!((none.verdict, &none.paired), (Verdict::TooFew, &None));
    }

    #[test]
    fn noise_that_leaves_both_open_is_undecided() {
        let ratios = [0.7, 1.4, 0.8, 1.3, 0.9, 1.2, 1.1, 0.75, 1.0, 1.5];
        let judged = &judge(&[question(&ratios)], &settings())[0];
        assert_eq!(judged.verdict, Verdict::Undecided);
        assert_eq!(judged.adjusted_p, Some(1.0), "the interval holds 1");
    }

    #[test]
    fn a_lone_difference_of_ten_pairs_is_lost_among_many_cells_and_more_pairs_find_it() {
        let open = [0.7, 1.4, 0.8, 1.3, 0.9, 1.2, 1.1, 0.75, 1.0, 1.5];
        let report = |pairs: usize, others: usize| {
            let mut cells = vec![question(&vec![1.3; pairs])];
            cells.extend((0..others).map(|_| question(&open)));
            judge(&cells, &settings())[0].verdict
        };
        assert_eq!(report(10, 24), Verdict::Faster);
        assert_eq!(report(10, 25), Verdict::Undecided);
        assert_eq!(report(11, 25), Verdict::Faster);
    }

    #[test]
    fn ten_pairs_that_agree_are_precise_wherever_they_are() {
        let precise = |ratios: &[f64]| {
            let found = paired(&question(ratios).pairs, &settings()).expect("there are pairs");
            found.precise
        };
        assert!(precise(&[1.0; 10]) && precise(&[3.0; 10]));
        assert!(!precise(&[1.0; 9]), "too few");
        let noisy = [0.7, 1.4, 0.8, 1.3, 0.9, 1.2, 1.1, 0.75, 1.0, 1.5];
        assert!(!precise(&noisy));
    }

    #[test]
    fn an_interval_just_narrow_enough_asks_for_three_pairs_more() {
        // Spread evenly, by the golden section.
        let spread = |place: u32| 0.95 + 0.1 * (0.618 * f64::from(place)).fract();
        let ratios: Vec<f64> = (0..13).map(spread).collect();
        let found = |count: usize| paired(&question(&ratios[..count]).pairs, &settings()).unwrap();
        let width = |found: &Paired| found.equivalence.high / found.equivalence.low;
        let width_of_ten = width(&found(10));
        assert!((1.025..1.05).contains(&width_of_ten), "{width_of_ten}");
        assert!(!found(10).precise);
        assert!(!found(12).precise && found(13).precise);
    }

    #[test]
    fn cells_without_verdict_do_not_weigh_on_the_others() {
        let mut cells = vec![question(&[1.3; 10])];
        cells.extend((0..100).map(|_| question(&[1.0, 2.0])));
        let judged = judge(&cells, &settings());
        assert_eq!(judged[0].verdict, Verdict::Faster);
        assert_eq!(judged[0].adjusted_p, Some(1.0 / 512.0));
    }
}
