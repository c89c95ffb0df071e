//! Cells held against each other: those of two sets of results, of two builds in one set, or the roads of one set.
//!
//! `pairs` finds the cells that belong together and pairs their trials by round, [`crate::stats`] says what the pairs say, and `render`
//! writes it for a terminal, for Markdown and for spreadsheets; JSON is the [`Comparison`] itself.

mod builds;
mod pairs;
mod render;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::results::{Cell, Results, Unit};
use crate::roads;
use crate::stats::{self, Paired, Question, Settings, Verdict};

pub use builds::builds;
pub(crate) use render::p_value;
pub use render::verdict_word;

/// The version of a comparison's form in JSON.
pub const SCHEMA: u32 = 1;

/// How to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// How sure verdicts are to be.
    pub settings: Settings,
    /// What the two sets of [`compare`] are called: the one held against first, as `A` and `B`, or names of directories.
    pub names: [String; 2],
    /// The two sets of [`compare`] were made in turns, round by round. Where they were not, the comparison says what that means.
    pub interleaved: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            settings: Settings::default(),
            names: ["A", "B"].map(str::to_owned),
            interleaved: false,
        }
    }
}

/// What was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Two sets of results, each road with itself.
    Sets,
    /// The roads of one set, each with the baseline.
    Roads,
}

/// All cells of a comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was compared.
    pub kind: Kind,
    /// What is held against: the first set's name, or the baseline road's.
    pub baseline: String,
    /// What is held against it: the second set's name; `this road` where a row's own road is.
    pub measured: String,
    /// What the two are, a sentence each, where their names do not say it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub about: Vec<String>,
    /// How sure the verdicts are.
    pub settings: Settings,
    /// In the order of the cells of the first set, or of the only one.
    pub rows: Vec<Row>,
    /// Cells that have no counterpart.
    pub unmatched: Vec<Unmatched>,
    /// What a reader has to know before believing a ratio.
    pub warnings: Vec<String>,
}

/// A cell and its counterpart.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// As `redis`.
    pub scenario: String,
    /// What a reader sees above the scenario's charts.
    pub title: String,
    /// What is varied.
    pub parameters: BTreeMap<String, u64>,
    /// The road that was measured.
    pub road: String,
    /// The road that it is held against; the same one when two sets are compared.
    pub baseline_road: String,
    /// Of the medians.
    pub unit: Unit,
    /// Middle figure of what is held against, over the pairs; `None` without pairs.
    pub baseline_median: Option<f64>,
    /// Middle figure of what was measured.
    pub median: Option<f64>,
    /// Measured over baseline, round by round; `None` without pairs. Whether more or less than 1 is better, the unit says.
    pub compared: Option<Paired>,
    /// See [`stats::Judged::adjusted_p`].
    pub adjusted_p: Option<f64>,
    /// What is claimed of the measured one.
    pub verdict: Verdict,
    /// What a reader should know of this row.
    pub notes: Vec<String>,
}

/// A cell without a counterpart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmatched {
    /// As `redis`.
    pub scenario: String,
    /// What is varied.
    pub parameters: BTreeMap<String, u64>,
    /// Its road.
    pub road: String,
    /// The set or the road that has it.
    pub only_in: String,
    /// The set or the road that has it not.
    pub missing_in: String,
}

impl Comparison {
    /// For scripts: 0 when no cell is slower, 1 when some cell is, and 2 when nothing could be compared: no cell stands on both sides, or
    /// none has a verdict, as after quick runs. Cells that are undecided or that stand on one side only change nothing.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        let has =
            |wanted: &dyn Fn(Verdict) -> bool| self.rows.iter().any(|row| wanted(row.verdict));
        if has(&|verdict| verdict == Verdict::Slower) {
            1
        } else if has(&|verdict| verdict != Verdict::TooFew) {
            0
        } else {
            2
        }
    }

    /// How many rows have a verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.rows
            .iter()
            .filter(|row| row.verdict == verdict)
            .count()
    }
}

/// Holds the second set against the first: cells of the same scenario, parameters, road and unit. Ratios are second over first.
#[must_use]
pub fn compare(first: &Results, second: &Results, options: &Options) -> Comparison {
    let [baseline, measured] = options.names.clone();
    let quick = first.plan.quick || second.plan.quick;
    let (mut found, mut unmatched) = (Vec::new(), Vec::new());
    for cell in &first.cells {
        match pairs::counterpart(&second.cells, cell, &cell.road) {
            Some(other) => found.push((cell, other)),
            None => unmatched.push(unmatched_cell(cell, &baseline, &measured)),
        }
    }
    for cell in &second.cells {
        if pairs::counterpart(&first.cells, cell, &cell.road).is_none() {
            unmatched.push(unmatched_cell(cell, &measured, &baseline));
        }
    }
    Comparison {
        schema: SCHEMA,
        kind: Kind::Sets,
        about: Vec::new(),
        rows: rows(&found, quick, &options.settings),
        unmatched,
        warnings: pairs::warnings_of_sets(first, second, options),
        settings: options.settings.clone(),
        baseline,
        measured,
    }
}

/// Holds every other road of a set against the baseline. Ratios are road over baseline.
#[must_use]
pub fn roads(results: &Results, baseline: &str, options: &Options) -> Comparison {
    let cells = &results.cells;
    let (mut found, mut unmatched) = (Vec::new(), Vec::new());
    for cell in cells.iter().filter(|cell| cell.road != baseline) {
        match pairs::counterpart(cells, cell, baseline) {
            Some(other) => found.push((other, cell)),
            None => unmatched.push(unmatched_cell(cell, &cell.road, baseline)),
        }
    }
    let others = results.roads.iter().filter(|road| road.name != baseline);
    for road in others {
        for cell in cells.iter().filter(|cell| cell.road == baseline) {
            if pairs::counterpart(cells, cell, &road.name).is_none() {
                unmatched.push(unmatched_cell(cell, baseline, &road.name));
            }
        }
    }
    Comparison {
        schema: SCHEMA,
        kind: Kind::Roads,
        about: Vec::new(),
        rows: rows(&found, results.plan.quick, &options.settings),
        unmatched,
        warnings: pairs::warnings_of_roads(results, baseline),
        settings: options.settings.clone(),
        baseline: baseline.to_owned(),
        measured: "this road".to_owned(),
    }
}

/// Holds each road of a set against what it is to be judged by: one of Millrace against the kernel's in the same place, and every road
/// against the baseline, which is the first that its programs can take. The verdicts of a report are these.
#[must_use]
pub fn standing(results: &Results) -> Comparison {
    let settings = Settings::default();
    let mut found = Vec::new();
    for cell in &results.cells {
        let references = references(results, cell);
        let others = references.map(|road| pairs::counterpart(&results.cells, cell, road));
        found.extend(others.flatten().map(|other| (other, cell)));
    }
    Comparison {
        schema: SCHEMA,
        kind: Kind::Roads,
        about: Vec::new(),
        rows: rows(&found, results.plan.quick, &settings),
        unmatched: Vec::new(),
        warnings: Vec::new(),
        settings,
        baseline: "the other".to_owned(),
        measured: "this road".to_owned(),
    }
}

impl Comparison {
    /// The rows of which further pairs would tell more. A row without pairs is none of them: nothing can be added to it.
    pub fn undecided(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| {
            let judged = row.compared.as_ref().zip(row.adjusted_p);
            judged.is_some_and(|(found, p)| !stats::is_decided(found, p))
        })
    }
}

/// The roads that a cell is held against, the nearest first. The baseline is the first road; where that cannot take the cell's programs,
/// the first one that can.
fn references<'a>(results: &'a Results, cell: &'a Cell) -> impl Iterator<Item = &'a str> {
    let mut names = results.roads.iter().map(|road| road.name.as_str());
    let is_measured = |name: &&str| pairs::counterpart(&results.cells, cell, name).is_some();
    let baseline = names.find(is_measured);
    let below = roads::below(&cell.road);
    let apart = baseline.filter(|name| below != Some(name));
    below
        .into_iter()
        .chain(apart)
        .filter(move |name| *name != cell.road)
}

/// Rows of cells, each with the one that it is held against before it.
fn rows(cells: &[(&Cell, &Cell)], quick: bool, settings: &Settings) -> Vec<Row> {
    let matched: Vec<pairs::Matched> = cells
        .iter()
        .map(|(baseline, measured)| pairs::matched(baseline, measured))
        .collect();
    let questions: Vec<Question> = cells
        .iter()
        .zip(&matched)
        .map(|((_, measured), matched)| Question {
            pairs: matched.pairs.clone(),
            more_is_better: measured.unit.more_is_better(),
            quick,
        })
        .collect();
    let judged = stats::judge(&questions, settings);
    let all = cells.iter().zip(matched).zip(judged);
    let row =
        |(((baseline, measured), matched), judged): ((&(&Cell, &Cell), pairs::Matched), _)| {
            let stats::Judged {
                paired,
                adjusted_p,
                verdict,
            } = judged;
            let medians = paired
                .as_ref()
                .map(|_| stats::paired::medians(&matched.pairs));
            Row {
                scenario: measured.scenario.clone(),
                title: measured.title.clone(),
                parameters: measured.parameters.clone(),
                road: measured.road.clone(),
                baseline_road: baseline.road.clone(),
                unit: measured.unit,
                baseline_median: medians.map(|(_, baseline)| baseline),
                median: medians.map(|(measured, _)| measured),
                compared: paired,
                adjusted_p,
                verdict,
                notes: matched.notes,
            }
        };
    all.map(row).collect()
}

fn unmatched_cell(cell: &Cell, only_in: &str, missing_in: &str) -> Unmatched {
    Unmatched {
        scenario: cell.scenario.clone(),
        parameters: cell.parameters.clone(),
        road: cell.road.clone(),
        only_in: only_in.to_owned(),
        missing_in: missing_in.to_owned(),
    }
}
