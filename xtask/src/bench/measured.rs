//! A row with the cells of the results that belong to it.

use std::collections::BTreeMap;

use millrace_bench::results::{Cell, Latency, Outcome, Results, Trial, Unit};
use millrace_bench::stats::percentiles::{BEYOND, BEYOND_IN_TRIAL};
use millrace_bench::stats::{self, Interval, Judged, Pair, Question, Settings, Verdict};

use super::rows::{Bar, Row, Side};

/// A row, and its pairs: the trials of both sides that were made in the same round.
pub(crate) struct Measured<'a> {
    pub(crate) row: &'static Row,
    pub(crate) unit: Unit,
    pub(crate) pairs: Vec<[&'a Trial; 2]>,
    /// What the pairs say, as `millrace bench compare` would; all rows of a table are one comparison.
    judged: Judged,
    /// Of trials that failed, the first lines of what they say.
    pub(crate) failures: Vec<String>,
}

/// A figure of a trial, where it has one.
pub(crate) type Figure = fn(&Trial) -> Option<f64>;

/// The figure of the cell.
pub(crate) const VALUE: Figure = |trial| Some(trial.value);

/// The rows of which anything was measured.
pub(crate) fn measured<'a>(results: &'a Results, rows: &'static [Row]) -> Vec<Measured<'a>> {
    let rows = rows.iter().filter_map(|row| Measured::new(results, row));
    let mut rows: Vec<Measured> = rows.collect();
    let question = |row: &Measured| Question {
        pairs: row.ratios_of(),
        more_is_better: row.unit.more_is_better(),
        quick: results.plan.quick,
    };
    let questions: Vec<Question> = rows.iter().map(question).collect();
    let judged = stats::judge(&questions, &Settings::default());
    for (row, judged) in rows.iter_mut().zip(judged) {
        row.judged = judged;
    }
    rows
}

impl<'a> Measured<'a> {
    fn new(results: &'a Results, row: &'static Row) -> Option<Measured<'a>> {
        let [baseline, ours] = row.sides.map(|side| find(results, side));
        let (baseline, ours) = (baseline?, ours?);
        let (before, after) = (by_round(baseline), by_round(ours));
        let pair = |(round, before): (&u32, &&'a Trial)| Some([*before, *after.get(round)?]);
        let failures = [baseline, ours].into_iter().flat_map(failures);
        Some(Measured {
            row,
            unit: ours.unit,
            pairs: before.iter().filter_map(pair).collect(),
            judged: Judged {
                paired: None,
                adjusted_p: None,
                verdict: Verdict::TooFew,
            },
            failures: failures.collect(),
        })
    }

    /// Some figure of the trials of a side.
    pub(crate) fn all(&self, side: usize, figure: Figure) -> Vec<f64> {
        let trials = self.pairs.iter().map(|pair| pair[side]);
        trials.filter_map(figure).collect()
    }

    /// Its median; NaN where there is none.
    pub(crate) fn median(&self, side: usize, figure: Figure) -> f64 {
        median(&self.all(side, figure))
    }

    /// The figures of the rounds, where there is a ratio of them.
    fn ratios_of(&self) -> Vec<Pair> {
        let pair = |[baseline, ours]: &[&Trial; 2]| Pair::new(ours.value, baseline.value);
        self.pairs.iter().filter_map(pair).collect()
    }

    /// How many times better ours is: the typical ratio of a round, and NaN where there is none.
    pub(crate) fn ratio(&self) -> f64 {
        let found = self.judged.paired.as_ref();
        found.map_or(f64::NAN, |found| self.better(found.ratio))
    }

    /// Where the true ratio is, turned as [`Self::ratio`] is.
    pub(crate) fn interval(&self) -> Option<Interval> {
        let Interval { low, high, level } = self.judged.paired.as_ref()?.interval;
        let ends = [low, high].map(|end| self.better(end));
        Some(Interval {
            low: ends[0].min(ends[1]),
            high: ends[0].max(ends[1]),
            level,
        })
    }

    /// What is claimed of the ratio.
    pub(crate) fn verdict(&self) -> Verdict {
        self.judged.verdict
    }

    /// A ratio of ours to the baseline's, turned so that above 1 is better.
    fn better(&self, ratio: f64) -> f64 {
        if self.unit.more_is_better() {
            ratio
        } else {
            ratio.recip()
        }
    }

    /// How much higher our median is.
    pub(crate) fn difference(&self) -> f64 {
        self.median(1, VALUE) - self.median(0, VALUE)
    }

    /// How many times lower our 99.9th percentile is.
    pub(crate) fn tail_ratio(&self) -> f64 {
        let [baseline, ours] = [0, 1].map(|side| self.percentile(side, 99.9));
        baseline / ours
    }

    /// The median over trials of a percentile of a side's round trips in nanoseconds; NaN where too few of them all lie beyond it.
    pub(crate) fn percentile(&self, side: usize, wanted: f64) -> f64 {
        let trials = self.pairs.iter().map(|pair| pair[side]);
        let told = trials.filter_map(|trial| Some((percentile(trial, wanted)?, trial)));
        let (told, beyond): (Vec<f64>, Vec<f64>) = told
            .map(|(told, trial)| (told, beyond(trial, wanted)))
            .unzip();
        if beyond.iter().sum::<f64>() >= BEYOND as f64 {
            median(&told)
        } else {
            f64::NAN
        }
    }

    /// Whether a bar is reached.
    pub(crate) fn reaches(&self, bar: Bar) -> bool {
        let [baseline, ours] = [0, 1].map(|side| self.median(side, VALUE));
        let reached = bar.reached(baseline, ours, self.ratio());
        self.failures.is_empty() && reached
    }

    /// Whether the bars that must be reached are; `None` where there are none.
    pub(crate) fn passes(&self) -> Option<bool> {
        self.row
            .must
            .map(|bar| self.reaches_tail() && self.reaches(bar))
    }

    /// Whether the tail's bar is reached, where there is one.
    pub(crate) fn reaches_tail(&self) -> bool {
        let is_low = |times| self.tail_ratio() >= times;
        self.row.tail.is_none_or(is_low)
    }
}

/// A percentile of a trial's round trips in nanoseconds.
pub(crate) fn percentile(trial: &Trial, wanted: f64) -> Option<f64> {
    let Latency { percentiles, .. } = trial.latency.as_ref()?;
    let known = percentiles.iter().find(|(known, _)| *known == wanted);
    known.map(|(_, nanoseconds)| *nanoseconds as f64)
}

/// How many round trips of a trial lie beyond a percentile that it has kept. Older files do not say how many there were, but that it was
/// kept says that there are some.
fn beyond(trial: &Trial, wanted: f64) -> f64 {
    let count = trial.latency.as_ref().map_or(0, |latency| latency.count);
    // A little slack, since 100 - 99.9 is a little less than 0.1 in binary.
    let beyond = count as f64 * (100.0 - wanted) / 100.0 + 1e-6;
    beyond.max(BEYOND_IN_TRIAL as f64)
}

/// The middle value; between the two middle ones. NaN for nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.as_slice() {
        [] => f64::NAN,
        sorted if sorted.len() % 2 == 1 => sorted[middle],
        sorted => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

fn find(results: &Results, side: Side) -> Option<&Cell> {
    let parameters: BTreeMap<String, u64> = side
        .parameters
        .iter()
        .map(|&(name, value)| (name.to_owned(), value))
        .collect();
    results.cells.iter().find(|cell| {
        cell.scenario == side.scenario && cell.road == side.road && cell.parameters == parameters
    })
}

fn by_round(cell: &Cell) -> BTreeMap<u32, &Trial> {
    cell.counted().map(|trial| (trial.round, trial)).collect()
}

fn failures(cell: &Cell) -> impl Iterator<Item = String> {
    cell.trials.iter().filter_map(|trial| match &trial.outcome {
        Outcome::Failed(why) => {
            let first = why.lines().next().unwrap_or_default();
            Some(format!("{} on {}: {first:.100}", cell.scenario, cell.road))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_needs_a_hundred_round_trips_beyond_it_in_all_trials_together() {
        let trial = |count, tail_ns| Trial {
            latency: Some(Latency {
                count,
                percentiles: vec![(50.0, 5), (99.9, tail_ns)],
                ..Latency::default()
            }),
            ..Trial::begun(1)
        };
        let of = |trials: &[Trial]| {
            let measured = Measured {
                row: &super::super::rows::ROWS[0],
                unit: Unit::OperationsPerSecond,
                pairs: trials.iter().map(|trial| [trial, trial]).collect(),
                judged: Judged {
                    paired: None,
                    adjusted_p: None,
                    verdict: Verdict::TooFew,
                },
                failures: Vec::new(),
            };
            measured.percentile(0, 99.9)
        };
        let trials = [trial(30_000, 7), trial(30_000, 9), trial(39_999, 8)];
        assert!(of(&trials).is_nan());
        let [one, other, _] = trials;
        assert_eq!(of(&[one, other, trial(40_000, 8)]), 8.0);
        // Where it is not told how many there were.
        let unknown = [4, 6, 5, 8, 7].map(|tail_ns| trial(0, tail_ns));
        assert!(of(&unknown[..4]).is_nan());
        assert_eq!(of(&unknown), 6.0);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[5.0, 1.0, 4.0]), 4.0);
        assert_eq!(median(&[5.0, 1.0, 4.0, 2.0]), 3.0);
        assert!(median(&[]).is_nan());
    }
}
