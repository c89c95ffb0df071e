//! Processor time, its parts as bars beside their figures.

use maud::{Markup, html};

use super::page::swatch;
use super::summary::{OWN_PARTS, PARTS, Per, Scenario, Set, ring_share, show, split};
use crate::figures::NOTHING;
use crate::results::{Results, Unit};

/// Processor time, as bars with their figures.
pub(super) fn processor(results: &Results, scenario: &Scenario<'_>) -> Markup {
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
            "All counted trials together. Bars of one group have one scale. Softirq and steal, hatched, are those of all processors "
            "during the trials, whoever caused them; some kernels count softirq time also as that of the program it interrupted. “Own” "
            "is what server and client took themselves, without the hatched parts."
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
