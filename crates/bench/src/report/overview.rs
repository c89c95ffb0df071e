//! The summary: one table of all cells, and what has to be known of them.

use maud::{Markup, html};

use super::page::{Footnotes, anchor, swatch};
use super::summary::{Scenario, Set, figure, show, show_range, show_ring_share, split};
use super::verdicts::{Verdicts, turned, word};
use crate::figures;
use crate::results::{Cell, Results};
use crate::stats::Verdict;

/// With more roads, cells of the table have to be narrow.
pub(super) const ROOMY: usize = 4;

/// The table, scenarios by roads.
pub(super) fn table(results: &Results, scenarios: &[Scenario<'_>], verdicts: &Verdicts) -> Markup {
    let mut notes = Footnotes::default();
    let class = if results.roads.len() > ROOMY {
        "summary many"
    } else {
        "summary"
    };
    let bodies: Vec<Markup> = scenarios
        .iter()
        .map(|scenario| body(results, scenario, verdicts, &mut notes))
        .collect();
    html! {
        section #summary {
            h2 { "Summary" }
            div.wide tabindex="0" role="region" aria-label="Summary table" {
                table class=(class) style=(format!("--roads: {}", results.roads.len())) {
                    caption {
                        "In each cell: the median of the trials, the typical ratio to the road that is named in the heading, where above 1 "
                        "is better, with its verdict; the smallest and the largest trial; processor time of server and client for each "
                        "operation; of Millrace's roads, the share of bytes by shared memory."
                    }
                    thead {
                        tr {
                            td {}
                            @for (index, road) in results.roads.iter().enumerate() {
                                th scope="col" {
                                    (swatch(index)) (road.name)
                                    @if let Some(other) = verdicts.reference(&road.name) { span.range { "against " (other) } }
                                }
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

fn body(
    results: &Results,
    scenario: &Scenario<'_>,
    verdicts: &Verdicts,
    notes: &mut Footnotes,
) -> Markup {
    let counts = scenario.sets.first().map(|set| &set.counts);
    let rows: Vec<Markup> = scenario
        .sets
        .iter()
        .map(|set| row(set, verdicts, notes))
        .collect();
    html! {
        tbody {
            tr.scenario {
                th scope="rowgroup" colspan=(results.roads.len() + 1) {
                    a href=(format!("#{}", anchor(scenario))) { (scenario.title) @if !scenario.fixed.is_empty() { ", " (scenario.fixed) } }
                    @if let Some(counts) = counts { " " span.quiet { (counts) } }
                }
            }
            @for row in &rows { (row) }
        }
    }
}

fn row(set: &Set<'_>, verdicts: &Verdicts, notes: &mut Footnotes) -> Markup {
    let cells: Vec<Markup> = (0..set.cells.len())
        .map(|road| entry(set, road, verdicts, notes))
        .collect();
    html! {
        tr {
            th scope="row" { @if set.label.is_empty() { span.quiet { "nothing is varied" } } @else { (set.label) } }
            @for cell in &cells { (cell) }
        }
    }
}

fn entry(set: &Set<'_>, road: usize, verdicts: &Verdicts, notes: &mut Footnotes) -> Markup {
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
            (standing(cell, verdicts))
            (marks)
            span.range { (show_range(cell.unit, of_road.min, of_road.max)) }
            @if let Some(split) = split {
                span.range { (split.show(split.own())) span.what { " processor" } }
            }
            @if let Some(ring) = show_ring_share(cell) { span.range { (ring) } }
        }
    }
}

/// The ratio, and the verdict with an arrow: not everybody sees colours.
fn standing(cell: &Cell, verdicts: &Verdicts) -> Markup {
    let row = verdicts.of_cell(cell).next();
    let Some((row, (ratio, _))) = row.and_then(|row| Some((row, turned(row)?))) else {
        return html! {};
    };
    let (class, arrow) = match row.verdict {
        Verdict::Faster => ("ratio better", "▲\u{202f}"),
        Verdict::Slower => ("ratio worse", "▼\u{202f}"),
        Verdict::NoDifference | Verdict::Undecided | Verdict::TooFew => ("ratio", ""),
    };
    html! {
        span class=(class) { (arrow) (figures::ratio(ratio)) @if let Some(word) = word(row) { " " span.what { (word) } } }
    }
}
