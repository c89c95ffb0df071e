//! `millrace bench list`: what can be measured, and what is missing here.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::Args;
use millrace_bench::scenario::{Case, Extent, Scenario};
use millrace_bench::suites::Suite;
use millrace_bench::{roads, scenario, suites};

use crate::table::Table;

/// Show suites, scenarios and roads, and what is missing on this machine with the package that brings it.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {}

pub(super) fn run(_: &ListArguments) -> Result<u8> {
    let styled = std::io::stdout().is_terminal();
    let mut questions = Table::new(&["SUITE", "CELLS", "HERE", "WHAT"], &[1]);
    for suite in suites::all() {
        let (cells, here) = of_suite(&suite)?;
        questions.push(vec![suite.name, cells.to_string(), here, suite.about]);
    }
    let mut scenarios = Table::new(
        &["SCENARIO", "CELLS", "SHORT", "QUICK", "HERE", "WHAT"],
        &[1, 2, 3],
    );
    for scenario in scenario::all() {
        for case in &scenario.cases {
            scenarios.push(vec![
                format!("{}/{}", scenario.name, case.name),
                cells(case, Extent::Whole),
                cells(case, Extent::Short),
                cells(case, Extent::Quick),
                missing(&scenario, case).unwrap_or("yes".to_owned()),
                format!("{}: {}", scenario.title, case.title),
            ]);
        }
    }
    let mut ways = Table::new(&["ROAD", "HERE", "WHAT"], &[]);
    for road in roads::all() {
        let here = road.missing().unwrap_or_else(|| "yes".to_owned());
        ways.push(vec![road.name, here, road.about]);
    }
    let tables = [questions, scenarios, ways].map(|table| table.render(styled));
    let text = tables.join("\n");
    // A reader that has seen enough may have gone.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(0)
}

/// The cells of a suite on all its roads, and which of these, or of its cases, cannot be measured here.
fn of_suite(suite: &Suite) -> Result<(usize, String)> {
    let (mut cells, mut lacking) = (0, Vec::new());
    let on = roads::choose(&suite.roads)?;
    for road in &on {
        lacking.extend(road.missing().map(|_| road.name.clone()));
    }
    for scenario in scenario::choose(&suite.scenarios)? {
        for case in &scenario.cases {
            let takes = on.iter().filter(|road| {
                let served = scenario.server.on(road);
                served.is_some() && case.on(road).is_some()
            });
            let roads = takes.count();
            cells += roads * case.parameters(Extent::Whole).len();
            if roads > 0 && missing(&scenario, case).is_some() {
                lacking.push(format!("{}/{}", scenario.name, case.name));
            }
        }
    }
    let here = match lacking.as_slice() {
        [] => "yes".to_owned(),
        lacking => format!("but for {}", lacking.join(", ")),
    };
    Ok((cells, here))
}

fn cells(case: &Case, extent: Extent) -> String {
    case.parameters(extent).len().to_string()
}

/// The program that is not there, with its package.
fn missing(scenario: &Scenario, case: &Case) -> Option<String> {
    let lack = scenario.server.missing().or_else(|| case.missing());
    lack.map(|lack| format!("no {}: {} {}", lack.program, lack.verb, lack.what))
}
