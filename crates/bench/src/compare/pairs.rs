//! Which cells belong together, and which of their trials.

use std::collections::BTreeMap;

use super::Options;
use crate::machine;
use crate::results::{Cell, Results};
use crate::stats::{self, Pair};

/// What two cells have in common.
#[derive(Debug)]
pub(super) struct Matched {
    /// Of the rounds that count on both, in their order.
    pub(super) pairs: Vec<Pair>,
    pub(super) notes: Vec<String>,
}

/// The cell on a road that shows the same as another: scenario, parameters and unit.
pub(super) fn counterpart<'a>(cells: &'a [Cell], cell: &Cell, road: &str) -> Option<&'a Cell> {
    cells.iter().find(|other| {
        other.road == road
            && other.scenario == cell.scenario
            && other.parameters == cell.parameters
            && other.unit == cell.unit
    })
}

/// Pairs the trials of two cells by round.
pub(super) fn matched(baseline: &Cell, measured: &Cell) -> Matched {
    let (ours, theirs) = (by_round(measured), by_round(baseline));
    let rounds = ours.keys().filter(|round| theirs.contains_key(round));
    let both: Vec<(f64, f64)> = rounds.map(|round| (ours[round], theirs[round])).collect();
    let pairs: Vec<Pair> = both
        .iter()
        .filter_map(|&(measured, baseline)| Pair::new(measured, baseline))
        .collect();
    let mut notes = Vec::new();
    if both.is_empty() {
        notes.push("no round counts on both sides".to_owned());
    }
    let without_ratio = both.len() - pairs.len();
    if without_ratio > 0 {
        notes.push(format!(
            "rounds left out because a figure is not positive, so that there is no ratio: {without_ratio} of {}",
            both.len()
        ));
    }
    let single = ours.len() + theirs.len() - 2 * both.len();
    if single > 0 && !both.is_empty() {
        notes.push(format!(
            "rounds that count on one side only, and are left out: {single}"
        ));
    }
    let values = |of: fn(&Pair) -> f64| pairs.iter().map(of).collect::<Vec<_>>();
    for (side, figures) in [
        ("measured", values(|pair| pair.measured)),
        ("baseline", values(|pair| pair.baseline)),
    ] {
        if stats::is_bimodal(&figures) {
            notes.push(format!("{side}: {}", stats::BIMODAL));
        }
    }
    Matched { pairs, notes }
}

/// Figures of the trials that count. A round that was repeated counts with its last trial.
fn by_round(cell: &Cell) -> BTreeMap<u32, f64> {
    cell.counted()
        .map(|trial| (trial.round, trial.value))
        .collect()
}

/// What makes two sets differ beside what they are to show.
pub(super) fn warnings_of_sets(
    first: &Results,
    second: &Results,
    options: &Options,
) -> Vec<String> {
    let [one, other] = &options.names;
    let mut warnings = Vec::new();
    if !options.interleaved {
        warnings.push(format!(
            "{one} and {other} were measured one after the other: what the machine did meanwhile is in the ratios, and a verdict is one on \
             these two runs."
        ));
    }
    let differing = machine::differences(&first.machine, &second.machine).into_iter();
    warnings.extend(differing.map(|[name, before, after]| {
        format!("{name} differs: {before} in {one}, {after} in {other}")
    }));
    let (before, after) = (&first.plan, &second.plan);
    if before.seconds != after.seconds {
        warnings.push(format!(
            "trials differ in length: {} s in {one}, {} s in {other}",
            before.seconds, after.seconds
        ));
    }
    if before.width != after.width {
        warnings.push(format!(
            "rates were searched to {} in {one}, to {} in {other}",
            before.width.words(),
            after.width.words()
        ));
    }
    if before.pinned != after.pinned {
        warnings.push(format!(
            "processors differ: {} in {one}, {} in {other}",
            before.pinned, after.pinned
        ));
    }
    warnings
}

/// A baseline that was not measured.
pub(super) fn warnings_of_roads(results: &Results, baseline: &str) -> Vec<String> {
    if results.cells.iter().any(|cell| cell.road == baseline) {
        return Vec::new();
    }
    let measured: Vec<&str> = results
        .roads
        .iter()
        .map(|road| road.name.as_str())
        .collect();
    let these = if measured.is_empty() {
        "no road at all".to_owned()
    } else {
        measured.join(", ")
    };
    vec![format!(
        "the road `{baseline}` has no cells here; these results are of {these}"
    )]
}
