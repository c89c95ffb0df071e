//! A comparison as people and programs read it.

use std::collections::BTreeMap;

use super::table::Table;
use super::{Comparison, Kind, Row};
use crate::figures::{self, NOTHING};
use crate::results::Unit;
use crate::stats::{Interval, Verdict};

/// Below this, p values are not told apart.
const LEAST_P: f64 = 0.001;

/// A verdict in a reader's words. Of processor time and memory nothing is faster: there is less of it, or more.
#[must_use]
pub fn verdict_word(verdict: Verdict, unit: Unit) -> &'static str {
    let consumed = matches!(unit, Unit::ProcessorShare | Unit::Bytes);
    match verdict {
        Verdict::Faster if consumed => "less",
        Verdict::Faster => "faster",
        Verdict::Slower if consumed => "more",
        Verdict::Slower => "slower",
        Verdict::NoDifference => "no difference",
        Verdict::Undecided => "undecided",
        Verdict::TooFew => "no verdict",
    }
}

impl Comparison {
    /// For a terminal: warnings, an aligned table, what it shows, and what stands on one side only.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = lines(&self.warnings, "warning: ");
        if !self.rows.is_empty() {
            text += &self.table().text();
            text.push('\n');
        }
        text += &lines(&self.remarks(), "");
        text
    }

    /// As [`text`](Comparison::text) has it, in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = lines(&self.warnings, "- **Warning:** ");
        if !text.is_empty() {
            text.push('\n');
        }
        if !self.rows.is_empty() {
            text += &self.table().markdown();
            text.push('\n');
        }
        text += &lines(&self.remarks(), "- ");
        text
    }

    /// A line per cell for spreadsheets, figures in their basic unit. Cells on one side only are there, with a verdict that says so.
    #[must_use]
    pub fn csv(&self) -> String {
        let heading = [
            "scenario",
            "parameters",
            "road",
            "baseline_road",
            "unit",
            "pairs",
            "baseline_median",
            "median",
            "ratio",
            "low",
            "high",
            "level",
            "p",
            "adjusted_p",
            "verdict",
        ];
        let mut table = Table::new(heading.map(str::to_owned).to_vec(), &[]);
        for row in &self.rows {
            let found = row.compared.as_ref();
            let interval = found.map(|found| found.interval);
            let number =
                |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
            table.push(vec![
                row.scenario.clone(),
                parameters(&row.parameters),
                row.road.clone(),
                row.baseline_road.clone(),
                name(&row.unit),
                found.map_or(0, |found| found.pairs).to_string(),
                number(row.baseline_median),
                number(row.median),
                number(found.map(|found| found.ratio)),
                number(interval.map(|interval| interval.low)),
                number(interval.map(|interval| interval.high)),
                number(interval.map(|interval| interval.level)),
                number(found.map(|found| found.p)),
                number(row.adjusted_p),
                name(&row.verdict),
            ]);
        }
        for cell in &self.unmatched {
            let mut line = vec![String::new(); heading.len()];
            line[0].clone_from(&cell.scenario);
            line[1] = parameters(&cell.parameters);
            line[2].clone_from(&cell.road);
            line[heading.len() - 1] =
                format!("only in {}, not in {}", cell.only_in, cell.missing_in);
            table.push(line);
        }
        table.csv()
    }

    /// The whole comparison, see [`super::SCHEMA`].
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("names, numbers and texts have a form in JSON")
            + "\n"
    }

    fn table(&self) -> Table {
        let level = format!("{:.0} % interval", self.settings.level * 100.0);
        let heading = [
            "scenario",
            "parameters",
            "road",
            &self.baseline,
            &self.measured,
            "ratio",
            &level,
            "adjusted p",
            "pairs",
            "verdict",
        ];
        let mut table = Table::new(heading.map(str::to_owned).to_vec(), &[3, 4, 5, 6, 7, 8]);
        for row in &self.rows {
            let found = row.compared.as_ref();
            let nothing = || NOTHING.to_owned();
            let figure = |value: Option<f64>| figures::show(row.unit, value.unwrap_or(f64::NAN));
            table.push(vec![
                row.scenario.clone(),
                parameters(&row.parameters),
                self.road(row),
                figure(row.baseline_median),
                figure(row.median),
                found.map_or_else(nothing, |found| figures::ratio(found.ratio)),
                found.map_or_else(nothing, |found| self.interval(found.interval)),
                row.adjusted_p.map_or_else(nothing, p_value),
                found.map_or(0, |found| found.pairs).to_string(),
                verdict_word(row.verdict, row.unit).to_owned(),
            ]);
        }
        table
    }

    /// The road of a row, with the other one where the heading does not name it.
    fn road(&self, row: &Row) -> String {
        if self.kind == Kind::Sets || row.baseline_road == self.baseline {
            row.road.clone()
        } else {
            format!("{} against {}", row.road, row.baseline_road)
        }
    }

    /// Its two ends, and its level where that is less than the table's.
    pub(crate) fn interval(&self, interval: Interval) -> String {
        if interval.level == 0.0 {
            return NOTHING.to_owned();
        }
        let ends = format!(
            "{} – {}",
            figures::ratio(interval.low),
            figures::ratio(interval.high)
        );
        if interval.level < self.settings.level {
            format!("{ends} ({:.0} %)", interval.level * 100.0)
        } else {
            ends
        }
    }

    /// What is said below the table, a sentence a line.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = vec![self.summary()];
        remarks.extend(self.about.iter().cloned());
        if !self.rows.is_empty() {
            let (measured, baseline) = (&self.measured, &self.baseline);
            let [more, less] = [true, false].map(|wanted| {
                let mut units = self.rows.iter().map(|row| row.unit.more_is_better());
                units.any(|more| more == wanted)
            });
            let better = match (more, less) {
                (true, false) => "above 1 is better",
                (false, true) => "below 1 is better, since less is",
                _ => "above 1 is better of rates, and below 1 of times, memory and processor time",
            };
            remarks.push(format!(
                "The ratio is {measured} over {baseline}, of a typical round, and not turned: {better}. p values are adjusted for all \
                 cells. No difference: the ratio is within {:.0} %.",
                self.settings.margin * 100.0
            ));
        }
        for row in &self.rows {
            let cell = cell(&row.scenario, &row.parameters, &row.road);
            remarks.extend(row.notes.iter().map(|note| format!("{cell}: {note}")));
        }
        for missing in &self.unmatched {
            let cell = cell(&missing.scenario, &missing.parameters, &missing.road);
            let (only, nowhere) = (&missing.only_in, &missing.missing_in);
            remarks.push(format!("{cell}: only in {only}, not in {nowhere}"));
        }
        remarks
    }

    /// How many cells have which verdict.
    fn summary(&self) -> String {
        if self.rows.is_empty() {
            return match self.kind {
                Kind::Sets => "Nothing could be compared: no cell of the one is in the other.",
                Kind::Roads => {
                    "Nothing could be compared: no road has a cell that the baseline has, too."
                }
            }
            .to_owned();
        }
        let better = |row: &&Row| row.verdict == Verdict::Faster;
        let worse = |row: &&Row| row.verdict == Verdict::Slower;
        let counts = [
            (self.rows.iter().filter(better).count(), "better"),
            (self.rows.iter().filter(worse).count(), "worse"),
            (self.count(Verdict::NoDifference), "without difference"),
            (self.count(Verdict::Undecided), "undecided"),
            (self.count(Verdict::TooFew), "without verdict"),
        ];
        let told = counts.iter().filter(|(count, _)| *count > 0);
        let told: Vec<String> = told
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let cells = if self.rows.len() == 1 {
            "cell"
        } else {
            "cells"
        };
        format!("{} {cells}: {}.", self.rows.len(), told.join(", "))
    }
}

fn lines(sentences: &[String], before: &str) -> String {
    sentences
        .iter()
        .map(|sentence| format!("{before}{sentence}\n"))
        .collect()
}

/// As `redis clients=8 on bridge`.
fn cell(scenario: &str, varied: &BTreeMap<String, u64>, road: &str) -> String {
    let varied = parameters(varied);
    let blank = if varied.is_empty() { "" } else { " " };
    format!("{scenario}{blank}{varied} on {road}")
}

/// As `bytes=64 clients=8`.
fn parameters(parameters: &BTreeMap<String, u64>) -> String {
    let pairs = parameters
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join(" ")
}

pub(crate) fn p_value(p: f64) -> String {
    if p < LEAST_P {
        format!("<{LEAST_P}")
    } else {
        format!("{p:.3}")
    }
}

/// The name that JSON has for it.
fn name(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}
