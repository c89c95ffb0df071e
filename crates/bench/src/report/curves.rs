//! Latency by percentile: curves, and the same as a table.

use maud::{Markup, html};

use super::charts::{Chart, Curve, range};
use super::latency::{Percentiles, TABLE, percentiles};
use super::page::swatch;
use super::section::{CURVES_SEEN, Drawing, folded};
use super::summary::{Scenario, Set, show, thousands};
use crate::figures::NOTHING;
use crate::results::Unit;

/// Latency of a set: of each road, by its index.
type OnRoads = Vec<(usize, Percentiles)>;

pub(super) fn by_percentile(drawing: &mut Drawing<'_>, scenario: &Scenario<'_>) -> Markup {
    let mut sets: Vec<(&Set<'_>, OnRoads)> = Vec::new();
    for set in &scenario.sets {
        let of_road = |(road, cell)| {
            Some((
                road,
                percentiles(drawing.directory, cell, drawing.warnings)?,
            ))
        };
        let found: OnRoads = set.on_roads().filter_map(of_road).collect();
        if !found.is_empty() {
            sets.push((set, found));
        }
    }
    if sets.is_empty() {
        return html! {};
    }
    let drawn = sets
        .iter()
        .flat_map(|(_, roads)| roads)
        .flat_map(|(_, found)| &found.curve);
    let told_only = sets
        .iter()
        .any(|(_, roads)| roads.iter().any(|(_, found)| !found.merged));
    let figures: Vec<Markup> = match range(drawn.map(|(_, ns)| *ns)) {
        Some(range) => sets
            .iter()
            .map(|(set, roads)| curves(drawing, set, roads, range))
            .collect(),
        None => Vec::new(),
    };
    html! {
        h3 { "Latency by percentile" }
        p.caption {
            "All counted trials of a road together. To the right the rare cases: each step is ten times rarer. A curve ends where fewer "
            "than 100 requests were slower."
            @if told_only { " Dots: the median over trials of what the load generator told of each, as it keeps no histogram." }
        }
        (folded(&figures, CURVES_SEEN, "Latency by percentile"))
        details {
            summary { "Percentiles as a table" }
            (table(drawing, &sets))
        }
    }
}

fn curves(
    drawing: &mut Drawing<'_>,
    set: &Set<'_>,
    roads: &OnRoads,
    (low, high): (f64, f64),
) -> Markup {
    let curve = |(road, found): &(usize, Percentiles)| Curve {
        road: *road,
        merged: found.merged,
        points: found.curve.clone(),
    };
    let drawn = roads.iter().filter(|(_, found)| !found.curve.is_empty());
    let curves: Vec<Curve> = drawn.map(curve).collect();
    if curves.is_empty() {
        return html! {};
    }
    let names: Vec<&str> = curves
        .iter()
        .map(|curve| drawing.road(curve.road))
        .collect();
    let says = format!(
        "Latency by percentile, {}: {}. The table below has the figures.",
        set.label,
        names.join(", ")
    );
    let chart = drawing
        .charts
        .add(Chart::Percentiles { curves, low, high }, &says);
    html! { figure { @if !set.label.is_empty() { figcaption { (set.label) } } (chart) } }
}

fn table(drawing: &Drawing<'_>, sets: &[(&Set<'_>, OnRoads)]) -> Markup {
    let time = |ns: f64| show(Unit::Nanoseconds, ns);
    // Tools that tell percentiles only leave these at zero.
    let told = |found: &Percentiles, ns: f64| {
        if found.max_ns > 0.0 {
            time(ns)
        } else {
            NOTHING.to_owned()
        }
    };
    html! {
        div.wide tabindex="0" role="region" aria-label="Percentiles" {
            table.plain.dense {
                thead {
                    tr {
                        th scope="col" { "Road" } th scope="col" { "requests" } th scope="col" { "min" }
                        @for percentile in TABLE { th scope="col" { (percentile) "\u{a0}%" } }
                        th scope="col" { "max" } th scope="col" { "mean" } th scope="col" { "deviation" }
                    }
                }
                @for (set, roads) in sets {
                    tbody {
                        @if !set.label.is_empty() {
                            tr.set { th scope="rowgroup" colspan="13" { (set.label) } }
                        }
                        @for (road, found) in roads {
                            tr {
                                th scope="row" { (swatch(*road)) (drawing.road(*road)) }
                                td { (thousands(found.count)) } td { (told(found, found.min_ns)) }
                                @for ns in found.table { td { @match ns { Some(ns) => (time(ns)), None => (NOTHING) } } }
                                td { (told(found, found.max_ns)) }
                                td { (told(found, found.mean_ns)) } td { (told(found, found.deviation_ns)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
