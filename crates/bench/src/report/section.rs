//! A scenario's part of the page: its charts, their figures as tables, and its command lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use maud::{Markup, html};

use super::charts::{Chart, Charts, Curve, Line, range};
use super::latency::{Percentiles, TABLE, percentiles};
use super::page::{anchor, swatch};
use super::summary::{OWN_PARTS, PARTS, Per, Scenario, Set, figure, join, ring_share, show, split};
use super::trace::{Thinned, read, slices, thin};
use super::{evidence, overview};
use crate::figures::NOTHING;
use crate::results::{Cell, Results, Trial, Unit};

/// Points of one road's requests that a chart shows.
const POINTS: usize = 20_000;
/// Points of all of them: with more, a page is slow to open, and each road gets fewer.
const ALL_POINTS: usize = 1_000_000;
const FEWEST_POINTS: usize = 2_000;
/// Sets of parameters whose curves are seen at once; those of the others are unfolded.
const CURVES_SEEN: usize = 6;
/// The same for requests, which take more room.
const REQUESTS_SEEN: usize = 2;

/// What the parts of a page have in common.
pub(super) struct Drawing<'a> {
    directory: &'a Path,
    results: &'a Results,
    charts: &'a mut Charts,
    warnings: &'a mut Vec<String>,
    points: usize,
}

impl<'a> Drawing<'a> {
    /// Shares the points out among all traces.
    pub(super) fn new(
        directory: &'a Path,
        results: &'a Results,
        charts: &'a mut Charts,
        warnings: &'a mut Vec<String>,
    ) -> Self {
        let traces = results
            .cells
            .iter()
            .filter(|cell| typical(cell).is_some())
            .count();
        Self {
            directory,
            results,
            charts,
            warnings,
            points: (ALL_POINTS / traces.max(1)).clamp(FEWEST_POINTS, POINTS),
        }
    }

    fn road(&self, index: usize) -> &'a str {
        &self.results.roads[index].name
    }
}

/// The part of one scenario.
pub(super) fn section(drawing: &mut Drawing<'_>, scenario: &Scenario<'_>) -> Markup {
    html! {
        section.scenario id=(anchor(scenario)) {
            h2 { (scenario.title) @if !scenario.fixed.is_empty() { ", " (scenario.fixed) } }
            (by_percentile(drawing, scenario))
            (by_request(drawing, scenario))
            (sweeps(drawing, scenario))
            (processor(drawing.results, scenario))
            (evidence::commands(drawing.results, &scenario.sets))
        }
    }
}

/// Figures beside each other.
fn grid(figures: &[Markup]) -> Markup {
    let class = if figures.len() == 1 {
        "figures one"
    } else {
        "figures"
    };
    html! { div class=(class) { @for figure in figures { (figure) } } }
}

/// The first ones at once, the others folded.
fn folded(figures: &[Markup], seen: usize, what: &str) -> Markup {
    let (first, rest) = figures.split_at(seen.min(figures.len()));
    html! {
        (grid(first))
        @if !rest.is_empty() {
            details {
                summary { (what) " at " (rest.len()) " more sets of parameters" }
                (grid(rest))
            }
        }
    }
}

/// Latency of a set: of each road, by its index.
type OnRoads = Vec<(usize, Percentiles)>;

fn by_percentile(drawing: &mut Drawing<'_>, scenario: &Scenario<'_>) -> Markup {
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
    html! {
        div.wide tabindex="0" role="region" aria-label="Percentiles" {
            table.plain.dense {
                thead {
                    tr {
                        th scope="col" { "Road" } th scope="col" { "requests" } th scope="col" { "min" }
                        @for percentile in TABLE { th scope="col" { (percentile) "\u{a0}%" } }
                        th scope="col" { "max" } th scope="col" { "mean" } th scope="col" { "std. dev." }
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
                                td { (thousands(found.count)) } td { (time(found.min_ns)) }
                                @for ns in found.table { td { @match ns { Some(ns) => (time(ns)), None => (NOTHING) } } }
                                td { (time(found.max_ns)) } td { (time(found.mean_ns)) } td { (time(found.deviation_ns)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Thin blanks between groups of three digits.
fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Of the counted trials with a trace, the one whose figure is in the middle.
fn typical(cell: &Cell) -> Option<&Trial> {
    let mut trials: Vec<&Trial> = cell
        .counted()
        .filter(|trial| trial.trace.is_some())
        .collect();
    trials.sort_by(|a, b| a.value.total_cmp(&b.value));
    trials.get(trials.len().saturating_sub(1) / 2).copied()
}

fn by_request(drawing: &mut Drawing<'_>, scenario: &Scenario<'_>) -> Markup {
    let mut figures = Vec::new();
    for set in &scenario.sets {
        let mut found = Vec::new();
        for (road, cell) in set.on_roads() {
            let Some((trial, name)) =
                typical(cell).and_then(|trial| Some((trial, trial.trace.as_ref()?)))
            else {
                continue;
            };
            match read(drawing.directory, name) {
                Ok(requests) if requests.is_empty() => {}
                Ok(requests) => found.push((road, trial.round, thin(&requests, drawing.points))),
                Err(error) => drawing.warnings.push(format!(
                    "{} on {}: {error:#}. Its requests are not drawn.",
                    cell.scenario, cell.road
                )),
            }
        }
        figures.extend(requests(drawing, set, found));
    }
    if figures.is_empty() {
        return html! {};
    }
    html! {
        h3 { "Latency over time" }
        p.caption {
            "Every request of one trial of each road, of that with the median figure: when it was to be sent, and how long it then took. "
            "Of more than " (thousands(drawing.points as u64)) " requests there are drawn: in each of " (thousands(slices(drawing.points) as u64)) " equal slices of time the slowest "
            "and the fastest, the slowest fifth of those drawn, and every n-th of the rest. So no extreme is missing."
            span.screen { " Drag to look closer; a double click goes back." }
        }
        @for strips in figures.iter().take(REQUESTS_SEEN) { (strips) }
        @if figures.len() > REQUESTS_SEEN {
            details {
                summary { "Latency over time at " (figures.len() - REQUESTS_SEEN) " more sets of parameters" }
                @for strips in figures.iter().skip(REQUESTS_SEEN) { (strips) }
            }
        }
    }
}

/// One chart a road, with axes in common.
fn requests(
    drawing: &mut Drawing<'_>,
    set: &Set<'_>,
    found: Vec<(usize, u32, Thinned)>,
) -> Option<Markup> {
    let all = || found.iter().flat_map(|(_, _, thinned)| &thinned.requests);
    let (low, high) = range(all().map(|request| super::summary::to_float(request.took_ns)))?;
    let seconds = super::summary::to_float(all().map(|request| request.at_ns).max()?) / 1e9;
    let mut charts = Vec::new();
    for (road, round, thinned) in found {
        let name = drawing.road(road);
        let mut before = 0;
        let distance = |at_ns: u64| {
            let at = at_ns / 1000;
            at - std::mem::replace(&mut before, at)
        };
        let chart = Chart::Requests {
            road,
            at_us: thinned
                .requests
                .iter()
                .map(|request| request.at_ns)
                .map(distance)
                .collect(),
            took_ns: thinned
                .requests
                .iter()
                .map(|request| request.took_ns)
                .collect(),
            seconds,
            low,
            high,
        };
        let says = format!("Latency of each request over time on {name}, {}", set.label);
        let place = drawing.charts.add(chart, &says);
        let drawn = thinned.requests.len();
        charts.push(html! {
            figure {
                figcaption {
                    (swatch(road)) (name)
                    span.quiet {
                        ", round " (round) ", " (thousands(thinned.of as u64)) " requests"
                        @if drawn < thinned.of { ", " (thousands(drawn as u64)) " drawn" }
                    }
                }
                (place)
            }
        });
    }
    Some(html! {
        div.strips {
            @if !set.label.is_empty() { h4 { (set.label) } }
            (grid(&charts))
        }
    })
}

/// Figures against each parameter that varies, one chart for each setting of the others.
fn sweeps(drawing: &mut Drawing<'_>, scenario: &Scenario<'_>) -> Markup {
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
    let unit = scenario
        .sets
        .first()
        .map_or("", |set| overview::counts(set.unit));
    html! {
        @for (title, figures) in &parts {
            h3 { (title) }
            p.caption { "Median, smallest and largest of the trials: " (unit) "." }
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

/// Processor time, as bars with their figures.
fn processor(results: &Results, scenario: &Scenario<'_>) -> Markup {
    let sets: Vec<&Set<'_>> = scenario
        .sets
        .iter()
        .filter(|set| set.on_roads().any(|(_, cell)| split(cell).is_some()))
        .collect();
    let Some(first) = sets
        .first()
        .and_then(|set| set.on_roads().find_map(|(_, cell)| split(cell)))
    else {
        return html! {};
    };
    let shares = scenario
        .sets
        .iter()
        .any(|set| set.on_roads().any(|(_, cell)| ring_share(cell).is_some()));
    let per = match first.per {
        Per::Operation => "for each operation",
        Per::Second => "as a share of one processor",
    };
    html! {
        h3 { "Processor time " (per) }
        p.caption {
            "All counted trials together. Bars of one group have one scale. Softirq and steal, hatched, are those of all processors during the "
            "trials, whoever caused them; many kernels count softirq time also as that of the program it interrupted. “Own” is without them."
        }
        div.wide tabindex="0" role="region" aria-label="Processor time" {
            table.plain.dense.processor {
                thead {
                    tr {
                        th scope="col" { "Road" } th.bar scope="col" { span.hidden { "Bar" } } th scope="col" { "own" }
                        @for (part, name) in PARTS.iter().enumerate() {
                            th scope="col" { span class=(format!("key part-{part}")) {} (name) }
                        }
                        @if shares { th.ring scope="col" { "bytes by shared memory" } }
                    }
                }
                @for set in sets { (bars(results, set, shares)) }
            }
        }
    }
}

fn bars(results: &Results, set: &Set<'_>, shares: bool) -> Markup {
    let splits: Vec<_> = set
        .on_roads()
        .filter_map(|(road, cell)| Some((road, cell, split(cell)?)))
        .collect();
    let longest = splits
        .iter()
        .map(|(_, _, split)| split.parts.iter().sum::<f64>())
        .fold(0.0, f64::max);
    let width = |part: f64| {
        format!(
            "width:{:.3}%",
            if longest > 0.0 {
                100.0 * part / longest
            } else {
                0.0
            }
        )
    };
    let columns = OWN_PARTS + 5 + usize::from(shares);
    html! {
        tbody {
            @if !set.label.is_empty() {
                tr.set { th scope="rowgroup" colspan=(columns) { (set.label) } }
            }
            @for (road, cell, split) in &splits {
                tr {
                    th scope="row" { (swatch(*road)) (results.roads[*road].name) }
                    td.bar {
                        div.bar aria-hidden="true" {
                            @for (index, part) in split.parts.iter().enumerate() {
                                @if *part > 0.0 { span class=(format!("part-{index}")) style=(width(*part)) {} }
                            }
                        }
                    }
                    td { (split.show(split.own())) }
                    @for part in split.parts { td { (split.show(part)) } }
                    @if shares { td { @match ring_share(cell) { Some(share) => (show(Unit::ProcessorShare, share)), None => (NOTHING) } } }
                }
            }
        }
    }
}
