//! What is claimed of channels, packets, the scheduler and the packet processing function, and what runs of `millrace bench` show of it.
//!
//! On virtual machines the two processors are sometimes near each other and sometimes far apart, as the hypervisor puts them; each trial
//! tells what a cache line took between them. A claim is looked at for all trials, and for those of either kind, and is reached where it is
//! reached for either kind.

use anyhow::{Context, Result, ensure};
use millrace_bench::figures::{self, NOTHING};
use millrace_bench::markdown;
use millrace_bench::results::{Cell, Results, Trial, Unit};
use millrace_bench::scenario::{self, Extent, Parameters};

use super::measured::median;

mod lists;

pub(super) use lists::{CHANNELS, PACKETS, PPF, SCHEDULER};

/// Processors are near where a line takes no more than this, of the least that it took in the run.
const NEAR_MAX: f64 = 2.0;
/// Before and after the figure in the notes of trials.
const SHARES: [&str; 2] = ["no share is farther than ", " % from an equal one"];
/// What stands for it where the results are older than the claim.
const NOT_MEASURED: &str = "not measured";
/// The share that may be lost, as the search has it, and what it may be off.
const SOME_LOSS: f64 = 0.005;
const HALF: f64 = 0.5;
const ROUNDING: f64 = 1e-9;
/// Of the latencies at half of the rate without loss.
const SLOW: f64 = 99.0;

/// A line of a table.
pub(super) struct Claim {
    title: &'static str,
    ours: Place,
    /// Held against the same figure there.
    over: Option<Place>,
    figure: Figure,
    bar: Bar,
    aim: Option<f64>,
}

/// A cell: its scenario, road, and parameters.
#[derive(Clone, Copy)]
struct Place(&'static str, &'static str, &'static [(&'static str, u64)]);

/// What of a trial is looked at.
#[derive(Clone, Copy, PartialEq)]
enum Figure {
    /// What the cell counts.
    Value,
    /// Packets a second of which at most half a per cent were lost.
    WithLoss,
    /// The 99th percentile of latencies at half of the highest rate without loss.
    Slow,
    /// How far the share that is farthest from an equal one is from it; the worst trial counts.
    Unfair,
}

/// What has to be reached.
#[derive(Clone, Copy)]
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

/// The claims, each with its bars and what was measured.
pub(super) fn table(claims: &[Claim], results: &Results) -> Result<String> {
    let titles = [
        "",
        "must",
        "aim",
        "all trials",
        "near",
        "far apart",
        "reached",
    ];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for claim in claims {
        lines.push(claim.line(results).context(claim.title)?);
    }
    Ok(markdown::table(&lines))
}

impl Claim {
    fn line(&self, results: &Results) -> Result<Vec<String>> {
        let unit = self.ours.unit()?;
        let measured = self.found(results)?;
        let is_measured = measured.is_some();
        let found = measured.unwrap_or_else(|| vec![None; 3]);
        // The medians of two cells may be of different places.
        let (all, parts) = found.split_at(1);
        let is_parted = parts.iter().any(Option::is_some);
        let judged = if is_parted { parts } else { all };
        let reaches = |bar: Bar| judged.iter().flatten().all(|value| bar.holds(*value));
        let aim = self.aim.map(|aim| self.bar.at(aim));
        let reached = match aim {
            _ if !is_measured => NOT_MEASURED,
            _ if !reaches(self.bar) => "**no**",
            Some(aim) if reaches(aim) => "aim",
            _ => "yes",
        };
        let show =
            |value: &Option<f64>| value.map_or(NOTHING.to_owned(), |value| self.show(unit, value));
        let told = |bar: Bar| format!("{} {}", bar.sign(), self.show(unit, bar.value()));
        let mut line = vec![
            self.title.to_owned(),
            told(self.bar),
            aim.map_or(NOTHING.to_owned(), told),
        ];
        line.extend(found.iter().map(show));
        line.push(reached.to_owned());
        Ok(line)
    }

    /// The figures, or their ratios. None: the results do not have them, and may be older than the claim.
    fn found(&self, results: &Results) -> Result<Option<Vec<Option<f64>>>> {
        let near_ns = NEAR_MAX * least_line_ns(results);
        let Some(ours) = self.ours.cell(results) else {
            return Ok(None);
        };
        let ours = self.figures(ours, near_ns)?;
        let Some(place) = self.over else {
            return Ok(Some(ours));
        };
        place.unit()?;
        let Some(theirs) = place.cell(results) else {
            return Ok(None);
        };
        let both = ours.into_iter().zip(self.figures(theirs, near_ns)?);
        let ratios = both.map(|(ours, theirs)| Some(ours? / theirs?));
        Ok(Some(ratios.collect()))
    }

    /// Of all trials, and of those whose processors were near, or were not.
    fn figures(&self, cell: &Cell, near_ns: f64) -> Result<Vec<Option<f64>>> {
        let [mut all, mut near, mut far] = [const { Vec::new() }; 3];
        for trial in cell.counted() {
            let value = self.figure.of(trial);
            let value = value.context("a trial does not tell the figure")?;
            all.push(value);
            match trial.processor.line_ns {
                Some(ns) if ns <= near_ns => near.push(value),
                Some(_) => far.push(value),
                None => {}
            }
        }
        if self.figure == Figure::Unfair {
            return Ok(vec![all.into_iter().max_by(f64::total_cmp), None, None]);
        }
        let middle = |values: &Vec<f64>| (!values.is_empty()).then(|| median(values));
        Ok([all, near, far].iter().map(middle).collect())
    }

    fn show(&self, unit: Unit, value: f64) -> String {
        match self.figure {
            _ if self.over.is_some() => figures::ratio(value),
            Figure::Value | Figure::WithLoss => figures::show(unit, value),
            Figure::Slow => figures::show(Unit::Nanoseconds, value),
            Figure::Unfair => format!("{value:.1} %"),
        }
    }
}

impl Bar {
    fn value(self) -> f64 {
        match self {
            Bar::AtLeast(value) | Bar::AtMost(value) => value,
        }
    }

    /// The same, of another value.
    fn at(self, value: f64) -> Bar {
        match self {
            Bar::AtLeast(_) => Bar::AtLeast(value),
            Bar::AtMost(_) => Bar::AtMost(value),
        }
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Bar::AtLeast(bar) => value >= bar,
            Bar::AtMost(bar) => value <= bar,
        }
    }

    fn sign(self) -> char {
        match self {
            Bar::AtLeast(_) => '≥',
            Bar::AtMost(_) => '≤',
        }
    }
}

impl Figure {
    /// None: the trial does not tell.
    fn of(self, trial: &Trial) -> Option<f64> {
        match self {
            Figure::Value => Some(trial.value),
            Figure::WithLoss => {
                let mut rates = trial.packets.as_ref()?.rates.iter();
                let found = rates.find(|rate| (rate.loss - SOME_LOSS).abs() < ROUNDING);
                found.map(|rate| rate.rate)
            }
            Figure::Slow => {
                let mut latencies = trial.packets.as_ref()?.latencies.iter();
                let half = latencies.find(|latency| (latency.share - HALF).abs() < ROUNDING)?;
                let mut slow = half.latency.percentiles.iter();
                slow.find(|(share, _)| (share - SLOW).abs() < ROUNDING)
                    .map(|(_, ns)| *ns as f64)
            }
            Figure::Unfair => {
                let apart = |note: &String| {
                    let (_, rest) = note.split_once(SHARES[0])?;
                    rest.split_once(SHARES[1])?.0.parse::<f64>().ok()
                };
                trial.notes.iter().find_map(apart)
            }
        }
    }
}

impl Place {
    /// What is counted there.
    ///
    /// # Errors
    /// No scenario measures it.
    fn unit(self) -> Result<Unit> {
        let Place(name, road, parameters) = self;
        let scenarios = scenario::choose(&[name.to_owned()])?;
        let mut cases = scenarios.iter().flat_map(|scenario| &scenario.cases);
        let case = cases.next().context("there is no such case")?;
        let all = case.parameters(Extent::Whole);
        let is_road = |known: &String| known == road;
        ensure!(
            all.iter().any(|all| self.is_of(all))
                && (case.roads.is_empty() || case.roads.iter().any(is_road)),
            "{name} is not measured with {parameters:?} on {road}"
        );
        Ok(case.unit)
    }

    fn is_of(self, all: &Parameters) -> bool {
        let mut wanted = self.2.iter();
        wanted.all(|(name, value)| all.get(*name) == Some(value))
    }

    fn cell(self, results: &Results) -> Option<&Cell> {
        let Place(name, road, _) = self;
        let mut cells = results.cells.iter();
        cells
            .find(|cell| cell.scenario == name && cell.road == road && self.is_of(&cell.parameters))
    }
}

/// The least that a cache line took between the processors; infinite where no trial tells.
fn least_line_ns(results: &Results) -> f64 {
    let trials = results.cells.iter().flat_map(Cell::counted);
    let lines = trials.filter_map(|trial| trial.processor.line_ns);
    lines.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Bar::{AtLeast, AtMost};
    use super::*;

    #[test]
    fn a_claim_is_looked_at_by_how_near_the_processors_were() {
        let trial = |(value, line_ns): (f64, f64)| {
            let mut trial = Trial::begun(1);
            (trial.value, trial.processor.line_ns) = (value, Some(line_ns));
            trial
        };
        let cell = Cell {
            scenario: "channels/one-way".to_owned(),
            title: String::new(),
            road: "channel".to_owned(),
            parameters: BTreeMap::new(),
            unit: Unit::OperationsPerSecond,
            figure: String::new(),
            trials: [(44e6, 40.0), (31e6, 390.0), (33e6, 400.0)]
                .map(trial)
                .into(),
        };
        let claim = CHANNELS.iter().find(|claim| claim.ours.0 == cell.scenario);
        let found = claim.unwrap().figures(&cell, 80.0).unwrap();
        assert_eq!(found, [Some(33e6), Some(44e6), Some(32e6)]);
        assert!(AtLeast(32e6).holds(32e6) && !AtMost(10.0).holds(10.1));
    }

    #[test]
    fn what_no_results_have_yet_is_told_to_be_so_and_what_no_scenario_measures_is_an_error() {
        let results = Results {
            schema: 1,
            millrace: String::new(),
            started: String::new(),
            plan: Default::default(),
            machine: Vec::new(),
            roads: Vec::new(),
            cells: Vec::new(),
            warnings: Vec::new(),
        };
        for claim in [CHANNELS, PACKETS, PPF, SCHEDULER]
            .iter()
            .copied()
            .flatten()
        {
            let line = claim.line(&results).unwrap();
            assert_eq!(line.last().unwrap(), NOT_MEASURED, "{line:?}");
            assert!(line[1] != NOTHING && line[3] == NOTHING, "{line:?}");
        }
        let told = |place: Place| place.unit().unwrap_err().to_string();
        assert!(told(Place("scheduler/stages", "scheduler", &[("stages", 9)])).contains("9"));
        assert!(told(Place("scheduler/stages", "ring", &[])).contains("on ring"));
        assert!(told(Place("scheduler/stage", "scheduler", &[])).contains("no case stage"));
    }

    #[test]
    fn shares_are_read_where_trials_tell_them() {
        let told = |note: &str| {
            let trial = Trial {
                notes: vec![note.to_owned()],
                ..Trial::begun(1)
            };
            Figure::Unfair.of(&trial)
        };
        let note = "no message was lost; no share is farther than 19.3 % from an equal one";
        assert_eq!(told(note), Some(19.3));
        assert_eq!(told("no message was lost"), None);
    }
}
