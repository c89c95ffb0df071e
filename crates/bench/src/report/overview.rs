//! The summary: one table of all cells, and what has to be known of them.

use maud::{Markup, html};

use super::page::{Footnotes, anchor, swatch};
use super::summary::{Scenario, Set, Standing, figure, ratio, show, show_range, split};
use crate::figures;
use crate::results::{Cell, Results, Unit};

/// The table, scenarios by roads.
pub(super) fn table(results: &Results, scenarios: &[Scenario<'_>]) -> Markup {
    let mut notes = Footnotes::default();
    let bodies: Vec<Markup> = scenarios
        .iter()
        .map(|scenario| body(results, scenario, &mut notes))
        .collect();
    html! {
        section #summary {
            h2 { "Summary" }
            div.wide tabindex="0" role="region" aria-label="Summary table" {
                table.summary {
                    caption {
                        "Median of the trials, how many times better than the baseline " b { (baseline(results)) } ", smallest to largest trial, "
                        "and processor time of server and client together."
                    }
                    thead {
                        tr {
                            td {}
                            @for (index, road) in results.roads.iter().enumerate() {
                                th scope="col" { (swatch(index)) (road.name) }
                            }
                        }
                    }
                    @for body in &bodies { (body) }
                }
            }
            (notes.list())
        }
    }
}

/// The road that all others are compared with.
pub(super) fn baseline(results: &Results) -> &str {
    results.roads.first().map_or("none", |road| &road.name)
}

fn body(results: &Results, scenario: &Scenario<'_>, notes: &mut Footnotes) -> Markup {
    let unit = scenario.sets.first().map(|set| set.unit);
    let rows: Vec<Markup> = scenario.sets.iter().map(|set| row(set, notes)).collect();
    html! {
        tbody {
            tr.scenario {
                th scope="rowgroup" colspan=(results.roads.len() + 1) {
                    a href=(format!("#{}", anchor(scenario))) { (scenario.title) }
                    @if let Some(unit) = unit { " " span.quiet { (counts(unit)) } }
                }
            }
            @for row in &rows { (row) }
        }
    }
}

/// What a figure is, in a few words.
pub(super) fn counts(unit: Unit) -> &'static str {
    match unit {
        Unit::OperationsPerSecond => "operations per second; more is better",
        Unit::BitsPerSecond => "bits per second; more is better",
        Unit::Nanoseconds => "median round trip; less is better",
        Unit::ProcessorShare => "share of one processor; less is better",
        Unit::Bytes => "memory; less is better",
    }
}

fn row(set: &Set<'_>, notes: &mut Footnotes) -> Markup {
    let label = set.label();
    let cells: Vec<Markup> = (0..set.cells.len())
        .map(|road| entry(set, road, notes))
        .collect();
    html! {
        tr {
            th scope="row" { @if label.is_empty() { "as it is" } @else { (label) } }
            @for cell in &cells { (cell) }
        }
    }
}

fn entry(set: &Set<'_>, road: usize, notes: &mut Footnotes) -> Markup {
    let Some(cell) = set.cells[road] else {
        return html! { td.none { "not measured" } };
    };
    let marks = notes.marks(cell);
    let Some(of_road) = figure(cell) else {
        return html! { td.none { "no trial counts" (marks) } };
    };
    let split = split(cell);
    html! {
        td {
            span.median { (show(cell.unit, of_road.median)) }
            @if road > 0 { (standing(set, cell)) }
            (marks)
            span.range { (show_range(cell.unit, of_road.min, of_road.max)) }
            @if let Some(split) = split {
                span.range title="processor time of server and client for each operation" { (split.show(split.own())) " cpu" }
            }
        }
    }
}

/// The ratio, with an arrow: not everybody sees colours.
fn standing(set: &Set<'_>, cell: &Cell) -> Markup {
    let baseline = set.cells.first().copied().flatten().and_then(figure);
    let (Some(baseline), Some(of_road)) = (baseline, figure(cell)) else {
        return html! {};
    };
    let (ratio, standing) = ratio(cell.unit, baseline, of_road);
    let (class, arrow) = match standing {
        Standing::Better => ("ratio better", "▲"),
        Standing::Worse => ("ratio worse", "▼"),
        Standing::Overlapping => ("ratio", ""),
    };
    html! { span class=(class) { (arrow) (figures::ratio(ratio)) } }
}
