//! Latency by percentile: curves, and the same as a table.

use maud::{Markup, html};

use super::charts::{Chart, Curve, range};
use super::details::{latency, latency_names};
use super::latency::{Percentiles, percentiles};
use super::page::swatch;
use super::section::{CURVES_SEEN, Drawing, folded};
use super::summary::{Scenario, Set};

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
    let names = latency_names();
    html! {
        div.wide tabindex="0" role="region" aria-label="Percentiles" {
            table.plain.dense {
                thead {
                    tr {
                        th scope="col" { "Road" }
                        @for name in &names { th scope="col" { (name) } }
                    }
                }
                @for (set, roads) in sets {
                    tbody {
                        @if !set.label.is_empty() {
                            tr.set { th scope="rowgroup" colspan=(names.len() + 1) { (set.label) } }
                        }
                        @for (road, found) in roads {
                            tr {
                                th scope="row" { (swatch(*road)) (drawing.road(*road)) }
                                @for figure in latency(found) { td { (figure) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
