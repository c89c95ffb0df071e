//! Figures against a parameter, as clients or size.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::charts::{Chart, Line, range};
use super::section::{CURVES_SEEN, Drawing, folded};
use super::summary::{Scenario, Set, figure, join};

/// Figures against each parameter that varies, one chart for each setting of the others.
pub(super) fn sweeps(drawing: &mut Drawing<'_>, scenario: &Scenario<'_>) -> Markup {
    let names: BTreeSet<&String> = scenario
        .sets
        .iter()
        .flat_map(|set| set.parameters.keys())
        .collect();
    let mut parts = Vec::new();
    for name in names {
        // The chart's own parameter is left out of its label, and so is what never varies.
        let varies = |other: &String| {
            let mut values = scenario.sets.iter().map(|set| set.parameters.get(other));
            let first = values.next();
            values.any(|value| Some(value) != first)
        };
        let mut groups: BTreeMap<BTreeMap<&String, &u64>, Vec<&Set<'_>>> = BTreeMap::new();
        for set in scenario
            .sets
            .iter()
            .filter(|set| set.parameters.contains_key(name))
        {
            let others = set.parameters.iter();
            let others = others.filter(|(other, _)| *other != name && varies(other));
            groups.entry(others.collect()).or_default().push(set);
        }
        let figures: Vec<Markup> = groups
            .iter()
            .filter_map(|(others, sets)| sweep(drawing, name, others, sets))
            .collect();
        if !figures.is_empty() {
            let against = if name == "bytes" { "size" } else { name };
            parts.push((format!("Against {against}"), figures));
        }
    }
    let counts = scenario.sets.first().map_or("", |set| &set.counts);
    html! {
        @for (title, figures) in &parts {
            h3 { (title) }
            p.caption { "Median, smallest and largest of the trials: " (counts) "." }
            (folded(figures, CURVES_SEEN, title))
        }
    }
}

fn sweep(
    drawing: &mut Drawing<'_>,
    name: &str,
    others: &BTreeMap<&String, &u64>,
    sets: &[&Set<'_>],
) -> Option<Markup> {
    let mut lines: BTreeMap<usize, Vec<(u64, f64, f64, f64)>> = BTreeMap::new();
    for set in sets {
        for (road, cell) in set.on_roads() {
            if let Some(of) = figure(cell).filter(|of| of.min > 0.0) {
                lines.entry(road).or_default().push((
                    set.parameters[name],
                    of.median,
                    of.min,
                    of.max,
                ));
            }
        }
    }
    let values: BTreeSet<u64> = lines
        .values()
        .flatten()
        .map(|point| point.0)
        .filter(|value| *value > 0)
        .collect();
    if values.len() < 2 {
        return None;
    }
    let lines = lines.into_iter().map(|(road, mut points)| {
        points.retain(|point| point.0 > 0);
        points.sort_by_key(|point| point.0);
        Line { road, points }
    });
    let lines: Vec<Line> = lines.collect();
    let (low, high) = range(
        lines
            .iter()
            .flat_map(|line| &line.points)
            .flat_map(|point| [point.2, point.3]),
    )?;
    let label = join(others.iter().map(|(name, value)| (*name, *value)));
    let says = format!("Figures against {name}, {label}. The summary has them as a table.");
    let chart = Chart::Sweep {
        unit: sets.first()?.unit,
        parameter: name.to_owned(),
        lines,
        low,
        high,
    };
    let place = drawing.charts.add(chart, &says);
    Some(html! { figure { @if !label.is_empty() { figcaption { (label) } } (place) } })
}
