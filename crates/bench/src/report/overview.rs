//! The summary: one table of all cells, and what has to be known of them.

use maud::{Markup, html};

use super::page::{Footnotes, anchor, swatch};
use super::summary::{Scenario, Set, Standing, figure, ratio, show, show_range, split};
use crate::figures;
use crate::results::{Cell, Results, Unit};

/// With more roads, cells of the table have to be narrow.
pub(super) const ROOMY: usize = 6;

/// The table, scenarios by roads.
pub(super) fn table(results: &Results, scenarios: &[Scenario<'_>]) -> Markup {
    let mut notes = Footnotes::default();
    let class = if results.roads.len() > ROOMY {
        "summary many"
    } else {
        "summary"
    };
    let bodies: Vec<Markup> = scenarios
        .iter()
        .map(|scenario| body(results, scenario, &mut notes))
        .collect();
    html! {
        section #summary {
            h2 { "Summary" }
            div.wide tabindex="0" role="region" aria-label="Summary table" {
                table class=(class) {
                    caption {
                        "In each cell: the median of the trials and its ratio to " b { (baseline(results)) } ", where above 1 is better; "
                        "the smallest and the largest trial; processor time of server and client for each operation."
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
                    a href=(format!("#{}", anchor(scenario))) { (scenario.title) @if !scenario.fixed.is_empty() { ", " (scenario.fixed) } }
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
    let cells: Vec<Markup> = (0..set.cells.len())
        .map(|road| entry(set, road, notes))
        .collect();
    html! {
        tr {
            th scope="row" { @if set.label.is_empty() { span.quiet { "nothing is varied" } } @else { (set.label) } }
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
                span.range { (split.show(split.own())) span.what { " processor" } }
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
        Standing::Better => ("ratio better", "▲\u{202f}"),
        Standing::Worse => ("ratio worse", "▼\u{202f}"),
        Standing::Overlapping => ("ratio", ""),
    };
    html! { span class=(class) { (arrow) (figures::ratio(ratio)) } }
}
