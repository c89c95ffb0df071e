//! Tables with all figures of a cell: latency in percentiles, ready connections, and what idle connections cost.

use std::fmt::Write;
use std::path::Path;

use maud::{Markup, html};

use super::latency::{Percentiles, TABLE, percentiles};
use super::packets;
use super::page::swatch;
use super::plain::cell_text;
use super::summary::{Scenario, median, show, thousands};
use crate::figures::NOTHING;
use crate::markdown;
use crate::results::{Cell, Idle, Results, Trial, Unit};

/// Names of what [`latency`] tells.
pub(super) fn latency_names() -> Vec<String> {
    let before = ["requests", "min"].map(str::to_owned);
    let after = ["max", "mean", "deviation"].map(str::to_owned);
    let percentiles = TABLE.map(|percentile| format!("{percentile}\u{a0}%"));
    before.into_iter().chain(percentiles).chain(after).collect()
}

/// The figures of latency.
pub(super) fn latency(found: &Percentiles) -> Vec<String> {
    let time = |ns: f64| show(Unit::Nanoseconds, ns);
    // What tools do not tell is zero.
    let told = |ns: f64| match ns > 0.0 {
        true => time(ns),
        false => NOTHING.to_owned(),
    };
    let mut figures = vec![thousands(found.count), told(found.min_ns)];
    figures.extend(found.table.map(|ns| ns.map_or(NOTHING.to_owned(), time)));
    figures.extend([found.max_ns, found.mean_ns, found.deviation_ns].map(told));
    figures
}

/// Names of what [`idle`] tells.
const IDLE: [&str; 8] = [
    "server memory",
    "client memory",
    "agent memory",
    "kernel memory",
    "memory in all",
    "server processor",
    "client processor",
    "agent processor",
];

/// What idle connections cost: memory for each, and the share of a processor for all. None: they were not idle.
fn idle(cell: &Cell) -> Option<Vec<String>> {
    let middle = |unit: Unit, figure: &dyn Fn(&Idle) -> Option<f64>| {
        let trials = cell.counted().filter_map(|trial| trial.idle.as_ref());
        let found = median(&mut trials.filter_map(figure).collect::<Vec<_>>());
        found.map_or(NOTHING.to_owned(), |value| show(unit, value))
    };
    let memory = |bytes: &dyn Fn(&Idle) -> Option<i64>| {
        middle(Unit::Bytes, &|idle| {
            Some(bytes(idle)? as f64 / idle.connections.max(1) as f64)
        })
    };
    let share = |seconds: &dyn Fn(&Idle) -> f64| {
        middle(Unit::ProcessorShare, &|idle| {
            Some(seconds(idle) / idle.seconds)
        })
    };
    cell.counted().find_map(|trial| trial.idle)?;
    Some(vec![
        memory(&|idle| Some(idle.server.memory_bytes)),
        memory(&|idle| Some(idle.client.memory_bytes)),
        memory(&|idle| Some(idle.agent.memory_bytes)),
        memory(&|idle| idle.kernel_bytes),
        memory(&|idle| Some(idle.memory_bytes())),
        share(&|idle| idle.server.processor_s),
        share(&|idle| idle.client.processor_s),
        share(&|idle| idle.agent.processor_s),
    ])
}

/// What idle connections cost, on the page.
pub(super) fn idle_table(results: &Results, scenario: &Scenario<'_>) -> Markup {
    let is_idle = |(_, cell): (usize, &Cell)| idle(cell).is_some();
    if !scenario.sets.iter().any(|set| set.on_roads().any(is_idle)) {
        return html! {};
    }
    html! {
        h3 { "What idle connections cost" }
        p.caption {
            "Medians over trials: memory for each connection, and for all together the share of one processor. Memory is what a program "
            "has more than without connections; what programs share is divided among them. The kernel's is that for sockets and files, "
            "of the whole machine, and is told for 100 connections and more."
        }
        div.wide tabindex="0" role="region" aria-label="Idle connections" {
            table.plain.dense {
                thead { tr { th scope="col" { "Road" } @for name in IDLE { th scope="col" { (name) } } } }
                @for set in &scenario.sets {
                    tbody {
                        @if !set.label.is_empty() {
                            tr.set { th scope="rowgroup" colspan=(IDLE.len() + 1) { (set.label) } }
                        }
                        @for (road, figures) in set.on_roads().filter_map(|(road, cell)| Some((road, idle(cell)?))) {
                            tr {
                                th scope="row" { (swatch(road)) (results.roads[road].name) }
                                @for figure in figures { td { (figure) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What was ready for each wake-up, of one end.
type Ready = fn(&Trial) -> Option<f64>;

/// The ends, and where a trial has their figures.
const READY: [(&str, Ready); 2] = [
    ("generator", |trial| trial.ready_per_wake),
    ("server", |trial| trial.server_ready_per_wake),
];

/// What was ready for each wake-up: the end and the parameters, and the median over trials for each road; none where nobody tells it.
fn ready_lines(scenario: &Scenario<'_>) -> Vec<(String, Vec<String>)> {
    let mut lines = Vec::new();
    for (end, of_end) in READY {
        for set in &scenario.sets {
            let middle = |cell: &Cell| {
                let told = cell.counted().filter_map(of_end);
                median(&mut told.collect::<Vec<_>>())
            };
            let cells = set.cells.iter();
            let figures: Vec<Option<f64>> = cells.map(|cell| cell.and_then(middle)).collect();
            if figures.iter().any(Option::is_some) {
                let parts = [end, &set.label].into_iter();
                let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
                let shown = |figure: Option<f64>| {
                    figure.map_or(NOTHING.to_owned(), |figure| format!("{figure:.2}"))
                };
                lines.push((parts.join(", "), figures.into_iter().map(shown).collect()));
            }
        }
    }
    lines
}

/// Ready connections, on the page.
pub(super) fn ready(results: &Results, scenario: &Scenario<'_>) -> Markup {
    let lines = ready_lines(scenario);
    if lines.is_empty() {
        return html! {};
    }
    html! {
        details {
            summary { "Ready connections for each wake-up" }
            p.caption {
                "How many answers were there each time that the generator looked for some, and how many requests each time that the server "
                "did, where it tells that: near 1, each costs a wake-up of its own; near the number of connections, they come in batches."
            }
            div.wide tabindex="0" role="region" aria-label="Ready connections" {
                table.plain.dense {
                    thead {
                        tr {
                            th scope="col" { "End" }
                            @for (index, road) in results.roads.iter().enumerate() { th scope="col" { (swatch(index)) (road.name) } }
                        }
                    }
                    tbody {
                        @for (label, figures) in lines {
                            tr { th scope="row" { (label) } @for figure in figures { td { (figure) } } }
                        }
                    }
                }
            }
        }
    }
}

/// All as tables in Markdown, one for each scenario that has such figures.
pub(super) fn markdown(directory: &Path, results: &Results, scenarios: &[Scenario<'_>]) -> String {
    let mut text = String::new();
    // A file that cannot be read is told on the page; here the figures that the trials tell stand in.
    let mut unread = Vec::new();
    let idle_names = || IDLE.map(str::to_owned).to_vec();
    for scenario in scenarios {
        let mut latencies = Vec::new();
        let mut idles = Vec::new();
        let mut rates = Vec::new();
        let mut of_packets = Vec::new();
        for set in &scenario.sets {
            for (road, cell) in set.on_roads() {
                let place = vec![cell_text(&set.label), cell_text(&results.roads[road].name)];
                let found = percentiles(directory, cell, &mut unread);
                latencies.extend(found.map(|found| [place.clone(), latency(&found)].concat()));
                let found = packets::latencies(cell).into_iter();
                of_packets.extend(found.map(|figures| [place.clone(), figures].concat()));
                let found = packets::rates(scenario, cell);
                rates.extend(found.map(|figures| [place.clone(), figures].concat()));
                idles.extend(idle(cell).map(|figures| [place, figures].concat()));
            }
        }
        let roads = results.roads.iter().map(|road| cell_text(&road.name));
        let ready = ready_lines(scenario).into_iter();
        let ready = ready.map(|(label, figures)| [vec![cell_text(&label)], figures].concat());
        let road = || vec!["road".to_owned()];
        for (what, names, lines) in [
            ("latency", [road(), latency_names()].concat(), latencies),
            ("ready for each wake-up", roads.collect(), ready.collect()),
            ("idle connections", [road(), idle_names()].concat(), idles),
            (
                "highest rates",
                [road(), packets::rate_names(scenario)].concat(),
                rates,
            ),
            (
                "latency at shares of the rate without loss",
                [road(), packets::latency_names()].concat(),
                of_packets,
            ),
        ] {
            if lines.is_empty() {
                continue;
            }
            let heading = [vec![String::new()], names].concat();
            let table = markdown::table(&[vec![heading], lines].concat());
            let _ = write!(
                text,
                "\n### {}: {what}\n\n{table}",
                cell_text(scenario.title)
            );
        }
    }
    text
}
