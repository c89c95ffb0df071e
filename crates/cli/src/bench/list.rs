//! `millrace bench list`: what can be measured, and what is missing here.

use std::io::{IsTerminal, Write};

use anyhow::Result;
use clap::Args;
use millrace_bench::scenario::{Case, Extent, Scenario};
use millrace_bench::{roads, scenario};

use crate::table::Table;

/// Show scenarios and roads, and what is missing on this machine with the package that brings it.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {}

pub(super) fn run(_: &ListArguments) -> Result<u8> {
    let styled = std::io::stdout().is_terminal();
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
    let text = format!("{}\n{}", scenarios.render(styled), ways.render(styled));
    // A reader that has seen enough may have gone.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(0)
}

fn cells(case: &Case, extent: Extent) -> String {
    case.parameters(extent).len().to_string()
}

/// The program that is not there, with its package.
fn missing(scenario: &Scenario, case: &Case) -> Option<String> {
    let lack = scenario.server.missing().or_else(|| case.missing());
    lack.map(|lack| format!("no {}: {} {}", lack.program, lack.verb, lack.what))
}
