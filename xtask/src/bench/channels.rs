//! What is claimed of channels, and what a run of `millrace bench run channels` shows of it.
//!
//! On some machines the trials of a cell are of two speeds, by where the hypervisor has put the processors. A claim is looked at for all
//! trials and for those of either speed, and is reached where it is reached for each of them.

use anyhow::{Context, Result};
use millrace_bench::figures::{self, NOTHING};
use millrace_bench::markdown;
use millrace_bench::results::{Cell, Results};

use super::measured::median;

/// Trials of one speed are no further apart from one to the next.
const GAP: f64 = 1.25;
/// The road of channels.
const OURS: &str = "channel";
/// Before and after the figure in the notes of trials.
const SHARES: [&str; 2] = ["the largest share is ", " % above the smallest"];

/// A line of the table.
struct Claim {
    title: &'static str,
    case: &'static str,
    bytes: u64,
    figure: Figure,
    must: f64,
    aim: Option<f64>,
}

/// What of a cell has to reach the bar.
#[derive(Clone, Copy)]
enum Figure {
    /// At most so many times what another road takes, or what this road takes of other messages.
    Over(&'static str, u64),
    /// At least so many messages a second.
    Rate,
    /// The largest share is above the smallest by so many percent at most, in each trial.
    Fair,
}

const CLAIMS: [Claim; 9] = [
    Claim {
        title: "round trip of 64 B, over the bare ring's",
        case: "round-trip",
        bytes: 64,
        figure: Figure::Over("bare-ring", 64),
        must: 1.5,
        aim: Some(1.2),
    },
    Claim {
        title: "round trip of 64 B, over iceoryx2's",
        case: "round-trip",
        bytes: 64,
        figure: Figure::Over("iceoryx2", 64),
        must: 0.25,
        aim: None,
    },
    Claim {
        title: "round trip of 16 KiB, over that of 64 B",
        case: "round-trip",
        bytes: 16 << 10,
        figure: Figure::Over(OURS, 64),
        must: 1.2,
        aim: None,
    },
    Claim {
        title: "round trip of 1 MiB, over that of 64 B",
        case: "round-trip",
        bytes: 1 << 20,
        figure: Figure::Over(OURS, 64),
        must: 1.2,
        aim: None,
    },
    Claim {
        title: "one way, 64 B",
        case: "one-way",
        bytes: 64,
        figure: Figure::Rate,
        must: 30e6,
        aim: Some(50e6),
    },
    Claim {
        title: "one way, 1 500 B",
        case: "one-way",
        bytes: 1500,
        figure: Figure::Rate,
        must: 10e6,
        aim: Some(20e6),
    },
    Claim {
        title: "fan-in of 8: shares apart",
        case: "fan-in",
        bytes: 64,
        figure: Figure::Fair,
        must: 10.0,
        aim: None,
    },
    Claim {
        title: "work for 4: shares apart",
        case: "work",
        bytes: 64,
        figure: Figure::Fair,
        must: 10.0,
        aim: None,
    },
    Claim {
        title: "waking who sleeps, over an eventfd's",
        case: "waking",
        bytes: 64,
        figure: Figure::Over("eventfd", 64),
        must: 1.0,
        aim: None,
    },
];

/// The claims, each with its bars and what was measured.
pub(super) fn claims(results: &Results) -> Result<String> {
    let titles = [
        "",
        "must",
        "aim",
        "all trials",
        "the fast ones",
        "the slow ones",
        "reached",
    ];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for claim in &CLAIMS {
        lines.push(claim.line(results).context(claim.title)?);
    }
    Ok(markdown::table(&lines))
}

impl Claim {
    fn line(&self, results: &Results) -> Result<Vec<String>> {
        let ours = find(results, self.case, OURS, self.bytes)?;
        let found = match self.figure {
            Figure::Over(road, bytes) => {
                let theirs = find(results, self.case, road, bytes)?;
                over(ours, theirs).map(Some)
            }
            Figure::Rate => speeds(ours).map(|values| Some(median(&values))),
            Figure::Fair => [Some(widest(ours)?), None, None],
        };
        let told = |bar: Option<f64>| bar.map_or(NOTHING.to_owned(), |bar| self.bar(ours, bar));
        let reaches = |bar: f64| {
            found
                .iter()
                .flatten()
                .all(|value| self.reaches(*value, bar))
        };
        let reached = match self.aim {
            _ if !reaches(self.must) => "**no**",
            Some(aim) if reaches(aim) => "aim",
            _ => "yes",
        };
        let mut line = vec![self.title.to_owned(), told(Some(self.must)), told(self.aim)];
        line.extend(
            found.map(|value| value.map_or(NOTHING.to_owned(), |value| self.show(ours, value))),
        );
        line.push(reached.to_owned());
        Ok(line)
    }

    fn reaches(&self, value: f64, bar: f64) -> bool {
        match self.figure {
            Figure::Rate => value >= bar,
            Figure::Over(..) | Figure::Fair => value <= bar,
        }
    }

    fn bar(&self, cell: &Cell, bar: f64) -> String {
        let sign = match self.figure {
            Figure::Rate => '≥',
            Figure::Over(..) | Figure::Fair => '≤',
        };
        format!("{sign} {}", self.show(cell, bar))
    }

    fn show(&self, cell: &Cell, value: f64) -> String {
        match self.figure {
            Figure::Over(..) => figures::ratio(value),
            Figure::Rate => figures::show(cell.unit, value),
            Figure::Fair => format!("{value:.1} %"),
        }
    }
}

fn find<'a>(results: &'a Results, case: &str, road: &str, bytes: u64) -> Result<&'a Cell> {
    let scenario = format!("channels/{case}");
    let mut cells = results.cells.iter();
    let is_it = |cell: &&Cell| {
        let same = cell.scenario == scenario && cell.road == road;
        same && cell.parameters.get("bytes") == Some(&bytes)
    };
    cells
        .find(is_it)
        .with_context(|| format!("the results have no {scenario} of {bytes} B on {road}"))
}

/// Ratios of the medians, of all trials and of those of either speed.
fn over(ours: &Cell, theirs: &Cell) -> [f64; 3] {
    let ([ours, ours_fast, ours_slow], [theirs, fast, slow]) = (speeds(ours), speeds(theirs));
    [(ours, theirs), (ours_fast, fast), (ours_slow, slow)]
        .map(|(ours, theirs)| median(&ours) / median(&theirs))
}

/// The values of all trials, of the fast and of the slow ones; where no gap parts them, all are both.
fn speeds(cell: &Cell) -> [Vec<f64>; 3] {
    let mut all: Vec<f64> = cell.counted().map(|trial| trial.value).collect();
    all.sort_by(f64::total_cmp);
    let gap = |at: &usize| all[*at] / all[at - 1];
    let widest = (1..all.len()).max_by(|one, other| gap(one).total_cmp(&gap(other)));
    match widest.filter(|at| gap(at) > GAP) {
        None => [all.clone(), all.clone(), all],
        Some(at) => {
            let (low, high) = (all[..at].to_vec(), all[at..].to_vec());
            if cell.unit.more_is_better() {
                [all, high, low]
            } else {
                [all, low, high]
            }
        }
    }
}

/// How far shares were apart in the worst trial, in percent.
fn widest(cell: &Cell) -> Result<f64> {
    let apart = |note: &str| {
        let (_, rest) = note.split_once(SHARES[0])?;
        rest.split_once(SHARES[1])?.0.parse::<f64>().ok()
    };
    let mut worst: f64 = 0.0;
    for trial in cell.counted() {
        let told = trial.notes.iter().find_map(|note| apart(note));
        worst = worst.max(told.context("a trial does not tell how far shares are apart")?);
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millrace_bench::results::{Trial, Unit};

    use super::*;

    fn cell(unit: Unit, values: &[f64], note: &str) -> Cell {
        let trial = |(round, &value): (u32, &f64)| Trial {
            value,
            notes: vec![note.to_owned()],
            ..Trial::begun(round)
        };
        Cell {
            scenario: String::new(),
            title: String::new(),
            road: String::new(),
            parameters: BTreeMap::new(),
            unit,
            figure: String::new(),
            trials: (1..).zip(values).map(trial).collect(),
        }
    }

    #[test]
    fn trials_of_two_speeds_are_parted_at_the_widest_gap() {
        let of = |unit, values: &[f64]| speeds(&cell(unit, values, "")).map(|all| median(&all));
        let times = [600.0, 230.0, 230.0, 630.0, 230.0];
        assert_eq!(of(Unit::Nanoseconds, &times), [230.0, 230.0, 615.0]);
        let rates = [44.0, 32.0, 45.0, 31.0, 33.0];
        assert_eq!(of(Unit::OperationsPerSecond, &rates), [33.0, 44.5, 32.0]);
        let even = [10.0, 11.0, 12.0];
        assert_eq!(of(Unit::Nanoseconds, &even), [11.0; 3]);
    }

    #[test]
    fn shares_are_read_where_trials_tell_them() {
        let told = "no message was lost; the largest share is 19.3 % above the smallest";
        let unit = Unit::OperationsPerSecond;
        assert_eq!(widest(&cell(unit, &[1.0, 2.0], told)).unwrap(), 19.3);
        assert!(widest(&cell(unit, &[1.0], "no message was lost")).is_err());
    }
}
