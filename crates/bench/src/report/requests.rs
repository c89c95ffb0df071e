//! Latency over time: each request as a point.

use maud::{Markup, html};

use super::charts::{Chart, range};
use super::page::swatch;
use super::section::{Drawing, grid};
use super::summary::{Scenario, Set, thousands, to_float};
use super::trace::{Thinned, read, slices, slowest, thin};
use crate::results::{Cell, Trial};

/// Sets of parameters whose requests are seen at once; those of the others are unfolded.
const REQUESTS_SEEN: usize = 2;

/// Of the counted trials with a trace, the one whose figure is in the middle.
pub(super) fn typical(cell: &Cell) -> Option<&Trial> {
    let mut trials: Vec<&Trial> = cell
        .counted()
        .filter(|trial| trial.trace.is_some())
        .collect();
    trials.sort_by(|a, b| a.value.total_cmp(&b.value));
    trials.get(trials.len().saturating_sub(1) / 2).copied()
}

pub(super) fn by_request(drawing: &mut Drawing<'_>, scenario: &Scenario<'_>) -> Markup {
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
    let most = drawing.points;
    html! {
        h3 { "Latency over time" }
        p.caption {
            "Each point is a request, of that trial of a road whose figure is the median: when it was to be sent, and how long it then "
            "took. Where there are more than " (thousands(most as u64)) " of them, those drawn are the slowest and the fastest in each of "
            (thousands(slices(most) as u64)) " equal slices of time, the " (thousands(slowest(most) as u64)) " slowest of all, and every "
            "n-th of the rest: no extreme is missing."
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
    let (low, high) = range(all().map(|request| to_float(request.took_ns)))?;
    // One request makes no range, but has to be drawn.
    let seconds = (to_float(all().map(|request| request.at_ns).max()?) / 1e9).max(1e-3);
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
