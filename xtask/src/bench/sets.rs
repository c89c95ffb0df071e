//! Tables of all cells of a run of `millrace bench`, none of them chosen.

use millrace_bench::compare::{self, Row};
use millrace_bench::figures::{self, NOTHING};
use millrace_bench::results::{Cell, Results, Trial, Unit};
use millrace_bench::run::show_parameters;
use millrace_bench::stats::Interval;
use millrace_bench::{markdown, roads};

use super::measured::{median, percentile};
use super::tables::paired;

/// A line for each set of parameters, a column for each road: the median of the trials, the least and the greatest.
pub(super) fn roads(results: &Results) -> String {
    let mut titles = vec![String::new()];
    titles.extend(results.roads.iter().map(|road| road.name.clone()));
    let mut lines = vec![titles];
    let mut seen = Vec::new();
    for cell in &results.cells {
        let key = (&cell.scenario, &cell.parameters);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let on_road = |road: &str| results.on_road(cell, road).map_or(String::new(), range);
        let mut line = vec![label(&cell.scenario, &show_parameters(&cell.parameters))];
        line.extend(results.roads.iter().map(|road| on_road(&road.name)));
        lines.push(line);
    }
    markdown::table(&lines)
}

/// A line for each cell on a road of Millrace, held against the kernel's in the same place.
pub(super) fn pairs(results: &Results) -> String {
    let titles = [
        "",
        "road",
        "kernel",
        "Millrace",
        "ratio",
        "verdict",
        "p99 kernel",
        "p99 Millrace",
        "on the ring",
    ];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    let standing = compare::standing(results);
    for row in &standing.rows {
        if roads::below(&row.road) == Some(row.baseline_road.as_str()) {
            lines.push(pair(results, row));
        }
    }
    markdown::table(&lines)
}

fn pair(results: &Results, row: &Row) -> Vec<String> {
    let cell = |road: &str| {
        results.cells.iter().find(|cell| {
            cell.road == road && cell.scenario == row.scenario && cell.parameters == row.parameters
        })
    };
    let [kernel, ours] = [&row.baseline_road, &row.road].map(|road| cell(road));
    let p99 = |cell: Option<&Cell>| {
        let slow = of_trials(cell, |trial| percentile(trial, 99.0));
        figures::show(Unit::Nanoseconds, slow)
    };
    let figure = |value: Option<f64>| figures::show(row.unit, value.unwrap_or(f64::NAN));
    let ring = of_trials(ours, |trial| trial.ring_share);
    vec![
        label(&row.scenario, &show_parameters(&row.parameters)),
        row.baseline_road.clone(),
        figure(row.baseline_median),
        figure(row.median),
        ratio(row),
        compare::verdict_word(row.verdict, row.unit).to_owned(),
        p99(kernel),
        p99(ours),
        figures::show(Unit::ProcessorShare, ring),
    ]
}

/// Turned, where less is better, so that above 1 is.
fn ratio(row: &Row) -> String {
    let Some(found) = &row.compared else {
        return NOTHING.to_owned();
    };
    let Interval { low, high, level } = found.interval;
    if row.unit.more_is_better() {
        return paired(found.ratio, found.interval);
    }
    let turned = Interval {
        low: high.recip(),
        high: low.recip(),
        level,
    };
    paired(found.ratio.recip(), turned)
}

fn label(scenario: &str, parameters: &str) -> String {
    format!("`{scenario}` {parameters}")
}

/// The median of a figure over the trials that count; NaN where none has it.
fn of_trials(cell: Option<&Cell>, figure: impl Fn(&Trial) -> Option<f64>) -> f64 {
    let trials = cell.into_iter().flat_map(Cell::counted);
    median(&trials.filter_map(figure).collect::<Vec<_>>())
}

fn range(cell: &Cell) -> String {
    let values: Vec<f64> = cell.counted().map(|trial| trial.value).collect();
    let ends = [
        median(&values),
        values.iter().copied().fold(f64::NAN, f64::min),
        values.iter().copied().fold(f64::NAN, f64::max),
    ];
    let [middle, low, high] = ends.map(|value| figures::show(cell.unit, value));
    format!("{middle} ({low} … {high})")
}
