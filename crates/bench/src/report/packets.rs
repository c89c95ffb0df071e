//! Packets through a device: the highest rates, and latency at shares of them.

use maud::{Markup, html};

use super::charts::{Chart, Line, range};
use super::page::swatch;
use super::section::{CURVES_SEEN, Drawing, folded};
use super::summary::{Scenario, Set, median, show, to_float};
use crate::figures::NOTHING;
use crate::results::{Cell, Latency, PacketLatency, Packets, Results, Unit};

/// Percentiles of the table.
const PERCENTILES: [f64; 3] = [50.0, 99.0, 99.9];
/// The one that is drawn.
const DRAWN: f64 = 99.0;

/// What the trials that count have found.
fn told(cell: &Cell) -> impl Iterator<Item = &Packets> {
    cell.counted().filter_map(|trial| trial.packets.as_ref())
}

/// Whether a rate was searched: then it matters how narrowly.
pub(super) fn is_searched(results: &Results) -> bool {
    results.cells.iter().any(|cell| told(cell).next().is_some())
}

/// The median over trials of a figure, as far as they have it.
fn middle(cell: &Cell, figure: impl Fn(&Packets) -> Option<f64>) -> Option<f64> {
    median(&mut told(cell).filter_map(figure).collect::<Vec<_>>())
}

/// A share as a column's name has it: `0.5 %`.
fn percent(share: f64) -> String {
    format!("{}\u{a0}%", share * 100.0)
}

/// The shares that could be lost, of all cells of a scenario.
fn losses(scenario: &Scenario<'_>) -> Vec<f64> {
    let cells = scenario.sets.iter().flat_map(Set::on_roads);
    let rates = cells.flat_map(|(_, cell)| told(cell).flat_map(|packets| &packets.rates));
    different(rates.map(|rate| rate.loss))
}

/// The shares of the rate at which a cell has latencies.
fn shares(cell: &Cell) -> Vec<f64> {
    let latencies = told(cell).flat_map(|packets| &packets.latencies);
    different(latencies.map(|at| at.share))
}

/// Each once, rising.
fn different(shares: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = shares.collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

/// The rate of a share that could be lost, which trials look for with the same shares.
fn rate(packets: &Packets, loss: f64) -> Option<f64> {
    let mut rates = packets.rates.iter();
    Some(rates.find(|rate| rate.loss == loss)?.rate)
}

fn at(packets: &Packets, share: f64) -> Option<&PacketLatency> {
    packets.latencies.iter().find(|at| at.share == share)
}

fn percentile(latency: &Latency, wanted: f64) -> Option<f64> {
    let mut told = latency.percentiles.iter();
    let (_, ns) = told.find(|(percentile, _)| *percentile == wanted)?;
    Some(to_float(*ns))
}

/// Names of what [`rates`] tells.
pub(super) fn rate_names(scenario: &Scenario<'_>) -> Vec<String> {
    let losses = losses(scenario).into_iter().map(|loss| match loss > 0.0 {
        true => format!("at most {} lost", percent(loss)),
        false => "none lost".to_owned(),
    });
    let rest = ["at full speed", "of that lost", "generator itself"];
    losses.chain(rest.map(str::to_owned)).collect()
}

/// The highest rates of a cell. None: no packets were sent.
pub(super) fn rates(scenario: &Scenario<'_>, cell: &Cell) -> Option<Vec<String>> {
    told(cell).next()?;
    let shown = |unit: Unit, figure: Option<f64>| {
        figure.map_or(NOTHING.to_owned(), |figure| show(unit, figure))
    };
    let second = Unit::OperationsPerSecond;
    let losses = losses(scenario).into_iter();
    let found = losses.map(|loss| shown(second, middle(cell, |packets| rate(packets, loss))));
    let rest = [
        shown(second, middle(cell, |packets| Some(packets.most))),
        shown(
            Unit::ProcessorShare,
            middle(cell, |packets| Some(packets.most_loss)),
        ),
        shown(
            second,
            middle(cell, |packets| (packets.own > 0.0).then_some(packets.own)),
        ),
    ];
    Some(found.chain(rest).collect())
}

/// Names of what [`latencies`] tells.
pub(super) fn latency_names() -> Vec<String> {
    let before = ["share", "rate", "min", "mean", "deviation"].map(str::to_owned);
    let percentiles = PERCENTILES.map(|percentile| format!("{percentile}\u{a0}%"));
    let after = ["max", "lost"].map(str::to_owned);
    before.into_iter().chain(percentiles).chain(after).collect()
}

/// Latencies of a cell, a line for each share of the rate.
pub(super) fn latencies(cell: &Cell) -> Vec<Vec<String>> {
    let line = |share: f64| {
        let shown = |unit: Unit, figure: &dyn Fn(&PacketLatency) -> Option<f64>| {
            let found = middle(cell, |packets| figure(at(packets, share)?));
            found.map_or(NOTHING.to_owned(), |figure| show(unit, figure))
        };
        let mut figures = vec![
            percent(share),
            shown(Unit::OperationsPerSecond, &|at| Some(at.rate)),
            shown(Unit::Nanoseconds, &|at| Some(to_float(at.latency.min_ns))),
            shown(Unit::Nanoseconds, &|at| Some(at.latency.mean_ns)),
            shown(Unit::Nanoseconds, &|at| Some(at.latency.deviation_ns)),
        ];
        figures.extend(
            PERCENTILES
                .map(|wanted| shown(Unit::Nanoseconds, &|at| percentile(&at.latency, wanted))),
        );
        figures.push(shown(Unit::Nanoseconds, &|at| {
            Some(to_float(at.latency.max_ns))
        }));
        figures.push(shown(Unit::ProcessorShare, &|at| Some(at.loss)));
        figures
    };
    shares(cell).into_iter().map(line).collect()
}

/// The part of a scenario, on the page.
pub(super) fn packets(drawing: &mut Drawing<'_>, scenario: &Scenario<'_>) -> Markup {
    let is_told = |(_, cell): (usize, &Cell)| told(cell).next().is_some();
    if !scenario.sets.iter().any(|set| set.on_roads().any(is_told)) {
        return html! {};
    }
    let results = drawing.results;
    let charts: Vec<Markup> = scenario
        .sets
        .iter()
        .filter_map(|set| chart(drawing, set))
        .collect();
    html! {
        h3 { "Packets: highest rates" }
        p.caption {
            "Medians over trials: packets a second of which no more than that share was lost, found by search, to "
            (results.plan.width.words()) ", and verified by longer runs. "
            "At full speed packets are sent as fast as the port takes them: that says how many pass, and not how many without loss. "
            "Nothing can be found faster than the generator brings to itself. No packet came changed, twice or out of order."
        }
        (rate_table(results, scenario))
        h3 { "Packets: latency at shares of the rate without loss" }
        p.caption {
            "From when a packet was due until it was taken, at shares of the rate that was found for the same device: medians over trials. "
            "The charts have the 99th percentile, with its smallest and its largest."
        }
        (folded(&charts, CURVES_SEEN, "Latency at shares of the rate"))
        (latency_table(results, scenario))
    }
}

fn rate_table(results: &Results, scenario: &Scenario<'_>) -> Markup {
    let lines = |set: &Set<'_>| {
        let found = set.on_roads();
        let found = found.filter_map(|(road, cell)| Some((road, rates(scenario, cell)?)));
        found.collect::<Vec<_>>()
    };
    table(
        results,
        scenario,
        "Highest rates",
        &rate_names(scenario),
        lines,
    )
}

fn latency_table(results: &Results, scenario: &Scenario<'_>) -> Markup {
    let lines = |set: &Set<'_>| {
        let of_cell = |(road, cell)| {
            let lines = latencies(cell).into_iter();
            lines.map(move |figures| (road, figures))
        };
        set.on_roads().flat_map(of_cell).collect::<Vec<_>>()
    };
    table(
        results,
        scenario,
        "Latency at shares of the rate",
        &latency_names(),
        lines,
    )
}

/// A table with lines of roads for each set of parameters.
fn table<'a>(
    results: &Results,
    scenario: &Scenario<'a>,
    says: &str,
    names: &[String],
    lines: impl Fn(&Set<'a>) -> Vec<(usize, Vec<String>)>,
) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label=(says) {
            table.plain.dense {
                thead { tr { th scope="col" { "Road" } @for name in names { th scope="col" { (name) } } } }
                @for set in &scenario.sets {
                    tbody {
                        @if !set.label.is_empty() {
                            tr.set { th scope="rowgroup" colspan=(names.len() + 1) { (set.label) } }
                        }
                        @for (road, figures) in lines(set) {
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

/// Latency against the share of the rate. None: there are not two shares.
fn chart(drawing: &mut Drawing<'_>, set: &Set<'_>) -> Option<Markup> {
    let point = |cell: &Cell, share: f64| {
        let of_trial = |packets| percentile(&at(packets, share)?.latency, DRAWN);
        let mut values: Vec<f64> = told(cell).filter_map(of_trial).collect();
        let middle = median(&mut values)?;
        let whole = (share * 100.0).round() as u64;
        Some((whole, middle, *values.first()?, *values.last()?))
    };
    let line = |(road, cell): (usize, &Cell)| {
        let points = shares(cell).into_iter();
        let points: Vec<_> = points.filter_map(|share| point(cell, share)).collect();
        (points.len() > 1).then_some(Line { road, points })
    };
    let lines: Vec<Line> = set.on_roads().filter_map(line).collect();
    let points = lines.iter().flat_map(|line| &line.points);
    let (low, high) = range(points.flat_map(|point| [point.2, point.3]))?;
    let says = format!(
        "The 99th percentile of latency at shares of the rate without loss, {}. The table below has the figures.",
        set.label
    );
    let chart = Chart::Sweep {
        unit: Unit::Nanoseconds,
        parameter: "% of the rate".to_owned(),
        lines,
        low,
        high,
    };
    let place = drawing.charts.add(chart, &says);
    Some(html! { figure { @if !set.label.is_empty() { figcaption { (set.label) } } (place) } })
}
