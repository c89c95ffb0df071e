//! Figures against a parameter, as clients or size; against a fixed rate, also what else is known of latency.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};

use super::charts::{Chart, Line, range};
use super::section::{CURVES_SEEN, Drawing, folded};
use super::summary::{Figure, Scenario, Set, figure, join, middle, to_float};
use crate::results::{Cell, Latency, Unit};

/// What the figures of latency are.
const LESS: &str = "time; less is better";

/// What a chart shows of a cell.
struct Shown {
    name: &'static str,
    /// None: that of the cell's figure.
    unit: Option<Unit>,
    of: fn(&Cell) -> Option<Figure>,
}

/// The cell's own figure.
const FIGURE: Shown = Shown {
    name: "",
    unit: None,
    of: figure,
};

/// The parameter whose charts have these, too: requests come as often as it says, whoever is slow.
const FIXED_RATE: &str = "rate";
const LATENCIES: [Shown; 6] = [
    latency("shortest", |cell| {
        of_latency(cell, |l| Some(to_float(l.min_ns)))
    }),
    latency("mean", |cell| of_latency(cell, |l| Some(l.mean_ns))),
    latency("99\u{a0}%", |cell| of_latency(cell, |l| at(l, 99.0))),
    latency("99.9\u{a0}%", |cell| of_latency(cell, |l| at(l, 99.9))),
    latency("longest", |cell| {
        of_latency(cell, |l| Some(to_float(l.max_ns)))
    }),
    latency("deviation (jitter)", |cell| {
        of_latency(cell, |l| Some(l.deviation_ns))
    }),
];

const fn latency(name: &'static str, of: fn(&Cell) -> Option<Figure>) -> Shown {
    Shown {
        name,
        unit: Some(Unit::Nanoseconds),
        of,
    }
}

fn of_latency(cell: &Cell, of: fn(&Latency) -> Option<f64>) -> Option<Figure> {
    middle(
        cell.counted()
            .filter_map(|trial| of(trial.latency.as_ref()?)),
    )
}

fn at(latency: &Latency, wanted: f64) -> Option<f64> {
    let mut told = latency.percentiles.iter();
    let (_, ns) = told.find(|(percentile, _)| *percentile == wanted)?;
    Some(to_float(*ns))
}

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
        let mut charts = |all: &[Shown]| -> Vec<Markup> {
            let all = all.iter();
            let all = all.flat_map(|shown| groups.iter().map(move |group| (shown, group)));
            all.filter_map(|(shown, (others, sets))| sweep(drawing, name, shown, others, sets))
                .collect()
        };
        let against = if name == "bytes" { "size" } else { name };
        let counts = scenario.sets.first().map_or("", |set| &set.counts);
        parts.push((format!("Against {against}"), counts, charts(&[FIGURE])));
        if name == FIXED_RATE {
            parts.push(("Latency against rate".to_owned(), LESS, charts(&LATENCIES)));
        }
    }
    parts.retain(|(.., figures)| !figures.is_empty());
    html! {
        @for (title, counts, figures) in &parts {
            h3 { (title) }
            p.caption { "Median, smallest and largest of the trials: " (counts) "." }
            (folded(figures, CURVES_SEEN, title))
        }
    }
}

fn sweep(
    drawing: &mut Drawing<'_>,
    name: &str,
    shown: &Shown,
    others: &BTreeMap<&String, &u64>,
    sets: &[&Set<'_>],
) -> Option<Markup> {
    let mut lines: BTreeMap<usize, Vec<(u64, f64, f64, f64)>> = BTreeMap::new();
    for set in sets {
        for (road, cell) in set.on_roads() {
            if let Some(of) = (shown.of)(cell).filter(|of| of.min > 0.0) {
                lines.entry(road).or_default().push((
                    set.parameters[name],
                    of.median,
                    of.min,
                    of.max,
                ));
            }
        }
    }
    let values: BTreeSet<u64> = lines.values().flatten().map(|point| point.0).collect();
    if values.len() < 2 {
        return None;
    }
    let lines = lines.into_iter().map(|(road, mut points)| {
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
    let label = [shown.name, &label]
        .into_iter()
        .filter(|part| !part.is_empty());
    let label = label.collect::<Vec<_>>().join(", ");
    let says = format!("Figures against {name}, {label}. Tables have them, too.");
    let chart = Chart::Sweep {
        unit: shown.unit.unwrap_or(sets.first()?.unit),
        parameter: name.to_owned(),
        lines,
        low,
        high,
    };
    let place = drawing.charts.add(chart, &says);
    Some(html! { figure { @if !label.is_empty() { figcaption { (label) } } (place) } })
}
