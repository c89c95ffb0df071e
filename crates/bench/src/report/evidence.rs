//! What the figures rest on: trials that do not count, command lines, the roads' settings, the machine.

use maud::{Markup, html};

use super::page::swatch;
use super::summary::{Scenario, Set};
use crate::results::{Cell, Outcome, Results, Trial};

/// Trials of a cell with the same outcome for the same reason.
struct Lost<'a> {
    set: &'a Set<'a>,
    road: usize,
    outcome: &'static str,
    reason: &'a str,
    rounds: Vec<u32>,
}

fn lost<'a>(set: &'a Set<'_>) -> Vec<Lost<'a>> {
    let mut all: Vec<Lost<'a>> = Vec::new();
    for (road, cell) in set.on_roads() {
        for trial in &cell.trials {
            let (outcome, reason) = match &trial.outcome {
                Outcome::Counts => continue,
                Outcome::Void(reason) => ("void", reason),
                Outcome::Failed(reason) => ("failed", reason),
            };
            let alike = |lost: &&mut Lost<'_>| {
                (lost.road, lost.outcome, lost.reason) == (road, outcome, reason)
            };
            match all.iter_mut().find(alike) {
                Some(lost) => lost.rounds.push(trial.round),
                None => all.push(Lost {
                    set,
                    road,
                    outcome,
                    reason,
                    rounds: vec![trial.round],
                }),
            }
        }
    }
    all
}

/// As `1–3, 7`.
fn ranges(rounds: &[u32]) -> String {
    let mut rounds = rounds.to_vec();
    rounds.sort_unstable();
    rounds.dedup();
    let runs = rounds.chunk_by(|a, b| a + 1 == *b);
    let runs = runs.map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}–{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// Trials that failed or were disturbed, with their reasons.
pub(super) fn trials(results: &Results, scenarios: &[Scenario<'_>]) -> Markup {
    let mut all: Vec<(&str, Lost<'_>)> = Vec::new();
    for scenario in scenarios {
        let lost = scenario.sets.iter().flat_map(lost);
        all.extend(lost.map(|lost| (scenario.title, lost)));
    }
    let count = |outcome: &str| {
        let alike = all.iter().filter(|(_, lost)| lost.outcome == outcome);
        alike.map(|(_, lost)| lost.rounds.len()).sum::<usize>()
    };
    html! {
        section #trials {
            h2 { "Trials that do not count" }
            @if all.is_empty() {
                p { "All trials count." }
            } @else {
                details {
                    summary {
                        (count("void")) " void, " (count("failed")) " failed. "
                        "They are in no figure. A void trial was disturbed, and is repeated."
                    }
                    p.caption {
                        "Void is a trial during which the hypervisor took more than 5 % of the processors’ time (steal), or during which "
                        "others had more than 5 % of the processors of server and client. Others are programs that are none of the run’s: "
                        "found by what these processors did, less what the run’s own programs used. The set of parameters is then measured "
                        "again on all roads, twice at most; a trial that is disturbed still then counts, with a note. Failed is one whose "
                        "program ended badly, or said nothing that could be read."
                    }
                    table.plain {
                        thead {
                            tr {
                                th scope="col" { "Cell" } th scope="col" { "Road" } th scope="col" { "Rounds" }
                                th scope="col" { "Outcome" } th scope="col" { "Reason" }
                            }
                        }
                        tbody {
                            @for (title, lost) in &all {
                                tr {
                                    td { (title) @if !lost.set.label.is_empty() { ", " (lost.set.label) } }
                                    td.name { (swatch(lost.road)) (results.roads[lost.road].name) }
                                    td.name { (ranges(&lost.rounds)) }
                                    td { (lost.outcome) }
                                    td.reason { (lost.reason) }
                                }
                            }
                        }
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
                    h4 { (swatch(road)) (results.roads[road].name) @if !set.label.is_empty() { ", " (set.label) } }
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
    let told = |rounds: Vec<u32>| {
        if all {
            "every round".to_owned()
        } else {
            format!("rounds {}", ranges(&rounds))
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
            p.quiet.made {
                "Made by millrace " (results.millrace) " from results.json, whose schema is version " (results.schema)
                ". Charts by uPlot (MIT)."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_in_a_row_are_told_as_one() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1–3, 7, 9–10");
        assert_eq!(ranges(&[4, 4]), "4");
        assert_eq!(ranges(&[]), "");
    }
}
