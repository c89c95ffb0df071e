//! What the figures carry: each road held against the kernel's in the same place, and against the baseline.

use maud::{Markup, html};

use super::page::swatch;
use super::summary::{Scenario, Set};
use crate::compare::{self, Comparison, Row, p_value, verdict_word};
use crate::figures::{self, NOTHING};
use crate::results::{Cell, Results};
use crate::stats::{Interval, Verdict};

/// What is claimed of all cells of a report.
pub(super) struct Verdicts(pub(super) Comparison);

impl Verdicts {
    pub(super) fn of(results: &Results) -> Verdicts {
        Verdicts(compare::standing(results))
    }

    /// What a cell is held against, the nearest first.
    pub(super) fn of_cell<'a>(&'a self, cell: &'a Cell) -> impl Iterator<Item = &'a Row> {
        self.0.rows.iter().filter(|row| {
            row.road == cell.road
                && row.scenario == cell.scenario
                && row.parameters == cell.parameters
        })
    }

    /// The name of the road that a road is held against first.
    pub(super) fn reference(&self, road: &str) -> Option<&str> {
        let row = self.0.rows.iter().find(|row| row.road == road);
        row.map(|row| row.baseline_road.as_str())
    }
}

/// The ratio with its interval, turned so that above 1 is better.
pub(super) fn turned(row: &Row) -> Option<(f64, Interval)> {
    let found = row.compared.as_ref()?;
    let Interval { low, high, level } = found.interval;
    Some(if row.unit.more_is_better() {
        (found.ratio, found.interval)
    } else {
        let (low, high) = (high.recip(), low.recip());
        (found.ratio.recip(), Interval { low, high, level })
    })
}

/// The verdict in a word; nothing where there are too few pairs for one.
pub(super) fn word(row: &Row) -> Option<&'static str> {
    (row.verdict != Verdict::TooFew).then(|| verdict_word(row.verdict, row.unit))
}

/// The table of all of them.
pub(super) fn table(results: &Results, scenarios: &[Scenario<'_>], verdicts: &Verdicts) -> Markup {
    if verdicts.0.rows.is_empty() {
        return html! {};
    }
    let sets = scenarios.iter().flat_map(|scenario| {
        let sets = scenario.sets.iter();
        sets.map(move |set| (scenario, set))
    });
    let settings = &verdicts.0.settings;
    html! {
        section #verdicts {
            h2 { "What the figures carry" }
            p.caption {
                "Each road against the kernel's in the same place, and against " b { (super::overview::baseline(results)) }
                ". The ratio is that of a typical round, and above 1 is better. "
                @if results.plan.quick {
                    "A quick run has intervals, and no verdicts."
                } @else {
                    "A verdict needs 10 pairs of trials. Of all that is called faster or slower here, "
                    (percent(settings.error_rate)) " is false at most, on average. No difference: the ratio is within "
                    (percent(settings.margin)) ". Undecided: neither can be said with so many pairs and so much noise."
                }
            }
            div.wide tabindex="0" role="region" aria-label="Verdicts" {
                table.plain.dense.verdicts {
                    thead {
                        tr {
                            th scope="col" { "Road" } th scope="col" { "against" } th scope="col" { "ratio" }
                            th scope="col" { (percent(settings.level)) " interval" } th scope="col" { "adjusted p" }
                            th scope="col" { "pairs" } th scope="col" { "verdict" }
                        }
                    }
                    @for (scenario, set) in sets { (body(results, scenario, set, verdicts)) }
                }
            }
        }
    }
}

fn body(results: &Results, scenario: &Scenario<'_>, set: &Set<'_>, verdicts: &Verdicts) -> Markup {
    let rows: Vec<(usize, &Row)> = set
        .on_roads()
        .flat_map(|(road, cell)| verdicts.of_cell(cell).map(move |row| (road, row)))
        .collect();
    let label = [scenario.title, &scenario.fixed, &set.label];
    let label: Vec<&str> = label.into_iter().filter(|part| !part.is_empty()).collect();
    html! {
        @if !rows.is_empty() {
            tbody {
                tr.set { th scope="rowgroup" colspan="7" { (label.join(", ")) } }
                @for (road, row) in rows { (line(results, road, row, verdicts)) }
            }
        }
    }
}

fn line(results: &Results, road: usize, row: &Row, verdicts: &Verdicts) -> Markup {
    let turned = turned(row);
    html! {
        tr {
            th scope="row" { (swatch(road)) (results.roads[road].name) }
            td { (row.baseline_road) }
            td { (turned.map_or(NOTHING.to_owned(), |(ratio, _)| figures::ratio(ratio))) }
            td { (turned.map_or(NOTHING.to_owned(), |(_, interval)| verdicts.0.interval(interval))) }
            td { (row.adjusted_p.map_or(NOTHING.to_owned(), p_value)) }
            td { (row.compared.as_ref().map_or(0, |found| found.pairs)) }
            td { (word(row).unwrap_or(NOTHING)) }
        }
        @for note in &row.notes { tr.note { td colspan="7" { (note) } } }
    }
}

fn percent(share: f64) -> String {
    format!("{:.0}\u{a0}%", share * 100.0)
}
