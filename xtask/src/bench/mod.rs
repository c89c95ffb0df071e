//! `cargo xtask bench-sockets`: real programs on both roads in one interleaved run, as a table.
//!
//! Reading order: `scenario` (what a workload is), `table` (the workloads), `lab` and `site` (where they
//! run), `measure` (how), `probe` (figures), `report` and `document` (what is shown).

mod document;
mod lab;
mod measure;
mod probe;
mod report;
mod scenario;
mod scratch;
mod servers;
mod site;
mod table;

use anyhow::{Result, bail, ensure};
use lexopt::prelude::{Long, ValueExt};

pub(crate) use lab::Lab;
pub(crate) use measure::{Plan, run};
pub(crate) use report::table;
pub(crate) use scenario::{Road, Scenario};
pub(crate) use table::SCENARIOS;

use millrace_bench::machine;

use crate::packages;

const USAGE: &str = "\
cargo xtask bench-sockets [--repeat N] [--seconds N] [--only NAME[,NAME…]] [--roads A,B] [--list]

Runs every workload over the kernel and over Millrace in turn, prints a table, and writes
docs/benchmarks.md and docs/results/. With --only or --roads nothing is written.

  --repeat N    runs of each side (5)
  --seconds N   length of a run (3)
  --only NAME   only these workloads; a name's beginning is enough
  --roads A,B   instead of each workload's own two roads: kernel,kernel tries the benchmark itself
  --list        the names of the workloads";

/// The command.
pub(crate) fn command(arguments: &mut lexopt::Parser) -> Result<()> {
    let mut plan = Plan {
        repeats: 5,
        seconds: 3,
        roads: None,
    };
    let mut only: Vec<String> = Vec::new();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("repeat") => plan.repeats = arguments.value()?.parse()?,
            Long("seconds") => plan.seconds = arguments.value()?.parse()?,
            Long("only") => {
                let names: String = arguments.value()?.parse()?;
                only.extend(names.split(',').map(str::to_owned));
            }
            Long("roads") => plan.roads = Some(arguments.value()?.parse_with(parse_roads)?),
            Long("list") => {
                SCENARIOS
                    .iter()
                    .for_each(|scenario| println!("{}", scenario.name));
                return Ok(());
            }
            Long("help") => {
                println!("{USAGE}");
                return Ok(());
            }
            other => return Err(other.unexpected().into()),
        }
    }
    ensure!(
        plan.repeats > 0 && plan.seconds > 0,
        "--repeat and --seconds start at 1"
    );
    let chosen = choose(&only)?;
    packages::install_missing("bench")?;
    let facts = machine::facts();
    let lab = Lab::open(plan.needs_millrace(&chosen))?;
    let mut rows = Vec::new();
    for scenario in chosen {
        eprintln!("{}", scenario.name);
        rows.extend(run(&lab, scenario, plan)?);
    }
    drop(lab);
    document::publish(&rows, &facts, plan, only.is_empty() && plan.roads.is_none())
}

/// The workloads whose names begin with one of `names`; all for none.
fn choose(names: &[String]) -> Result<Vec<&'static Scenario>> {
    for name in names {
        if !SCENARIOS
            .iter()
            .any(|scenario| scenario.name.starts_with(name.as_str()))
        {
            bail!("there is no workload {name}: see --list");
        }
    }
    let wanted = |scenario: &&Scenario| {
        // A full name is that workload alone, although others begin with it.
        let exact = names.iter().any(|name| name == scenario.name);
        let begun = names.iter().any(|name| {
            scenario.name.starts_with(name.as_str()) && SCENARIOS.iter().all(|s| s.name != *name)
        });
        names.is_empty() || exact || begun
    };
    Ok(SCENARIOS.iter().filter(wanted).collect())
}

/// Two roads, parted by a comma.
pub(crate) fn parse_roads(text: &str) -> Result<[Road; 2]> {
    let road = |name| match name {
        "kernel" => Ok(Road::Kernel),
        "millrace" => Ok(Road::Millrace),
        other => bail!("a road is kernel or millrace, not {other}"),
    };
    let Some((baseline, ours)) = text.split_once(',') else {
        bail!("two roads: A,B")
    };
    Ok([road(baseline)?, road(ours)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_name_chooses_one_workload_and_a_beginning_several() {
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            choose(&only)
                .unwrap()
                .iter()
                .map(|scenario| scenario.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&["nginx"]), ["nginx"]);
        assert_eq!(names(&["sockperf"]).len(), 3);
        assert_eq!(names(&[]).len(), SCENARIOS.len());
        assert!(choose(&["ngin-x".to_owned()]).is_err());
    }
}
