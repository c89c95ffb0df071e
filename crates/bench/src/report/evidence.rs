//! What the figures rest on: trials that do not count, command lines, the roads' settings, the machine.

use maud::{Markup, html};

use super::page::swatch;
use super::summary::{Scenario, Set};
use crate::results::{Cell, Outcome, Results, Trial};

/// Trials that failed or were disturbed, with their reasons.
pub(super) fn trials(results: &Results, scenarios: &[Scenario<'_>]) -> Markup {
    let mut rows = Vec::new();
    let (mut void, mut failed) = (0, 0);
    for set in scenarios.iter().flat_map(|scenario| &scenario.sets) {
        for (road, cell) in set.on_roads() {
            for trial in &cell.trials {
                let (outcome, reason) = match &trial.outcome {
                    Outcome::Counts => continue,
                    Outcome::Void(reason) => ("void", reason),
                    Outcome::Failed(reason) => ("failed", reason),
                };
                *if outcome == "void" {
                    &mut void
                } else {
                    &mut failed
                } += 1;
                rows.push(html! {
                    tr {
                        td { (cell.title) @if !set.parameters.is_empty() { ", " (set.label()) } }
                        td { (swatch(road)) (results.roads[road].name) }
                        td.number { (trial.round) }
                        td { (outcome) }
                        td.reason { (reason) }
                    }
                });
            }
        }
    }
    html! {
        section #trials {
            h2 { "Trials that do not count" }
            @if rows.is_empty() {
                p { "All trials count." }
            } @else {
                details {
                    summary { (void) " void, " (failed) " failed. They are in no figure; a void trial was disturbed, and repeated." }
                    table.plain {
                        thead {
                            tr {
                                th scope="col" { "Cell" } th scope="col" { "Road" } th.number scope="col" { "Round" }
                                th scope="col" { "Outcome" } th scope="col" { "Reason" }
                            }
                        }
                        tbody { @for row in &rows { (row) } }
                    }
                }
            }
        }
    }
}

/// The command lines of a scenario. Trials with the same ones are told together.
pub(super) fn commands(results: &Results, sets: &[Set<'_>]) -> Markup {
    html! {
        details.commands {
            summary { "Command lines that made these figures" }
            @for set in sets {
                @for (road, cell) in set.on_roads() {
                    h4 { (swatch(road)) (results.roads[road].name) @if !set.parameters.is_empty() { ", " (set.label()) } }
                    @for (rounds, trial) in alike(cell) {
                        p.quiet { (rounds) }
                        dl.commands {
                            @for (program, line) in &trial.commands { dt { (program) } dd { code { (line) } } }
                        }
                    }
                }
            }
        }
    }
}

/// Trials with the same command lines, by the first of them, and the rounds as `rounds 1, 2, 4`.
fn alike(cell: &Cell) -> Vec<(String, &Trial)> {
    let mut groups: Vec<(Vec<u32>, &Trial)> = Vec::new();
    for trial in &cell.trials {
        match groups
            .iter_mut()
            .find(|(_, first)| first.commands == trial.commands)
        {
            Some((rounds, _)) => rounds.push(trial.round),
            None => groups.push((vec![trial.round], trial)),
        }
    }
    let all = groups.len() == 1;
    let told = |mut rounds: Vec<u32>| {
        rounds.dedup();
        let rounds: Vec<String> = rounds.iter().map(u32::to_string).collect();
        match rounds.as_slice() {
            _ if all => "every round".to_owned(),
            [one] => format!("round {one}"),
            _ => format!("rounds {}", rounds.join(", ")),
        }
    };
    groups
        .into_iter()
        .map(|(rounds, trial)| (told(rounds), trial))
        .collect()
}

/// What sets up the roads.
pub(super) fn roads(results: &Results) -> Markup {
    html! {
        section #roads {
            h2 { "How the roads were set up" }
            @for (index, road) in results.roads.iter().enumerate() {
                div.road {
                    h3 { (swatch(index)) (road.name) }
                    p { (road.about) }
                    @if road.settings.is_empty() {
                        p.quiet { "With the system's own settings." }
                    } @else {
                        ul.settings { @for setting in &road.settings { li { code { (setting) } } } }
                    }
                }
            }
        }
    }
}

/// The machine and the run.
pub(super) fn machine(results: &Results) -> Markup {
    let plan = &results.plan;
    html! {
        section #machine {
            h2 { "The machine" }
            table.plain {
                tbody {
                    @for fact in &results.machine {
                        tr { th scope="row" { (fact.name) } td { (fact.value) } }
                    }
                    tr { th scope="row" { "seed of the order of trials" } td { (plan.seed) } }
                }
            }
            p.quiet {
                "Made by millrace " (results.millrace) " from results.json, whose schema is version " (results.schema)
                ". Charts by uPlot (MIT)."
            }
        }
    }
}
