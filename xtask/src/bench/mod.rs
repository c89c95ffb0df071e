//! `cargo xtask bench-sockets`: what is claimed of sockets, measured by `millrace bench run`, and the documents that say it.
//!
//! Reading order: `../sockets/*.toml` (the scenarios), `rows` (what is claimed of their cells), `lab` (how the suite is run), `probe` (what
//! it does not measure yet), `measured` and `tables` (what is shown of that), `sets` and `claims` (what is shown of other results that
//! are kept), `documents` (where).

mod claims;
mod documents;
mod lab;
mod measured;
mod probe;
mod rows;
mod scratch;
mod sets;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lexopt::prelude::{Long, ValueExt};
use millrace_bench::machine;
use millrace_bench::results::{self, Fact, Results, SCHEMA};
use millrace_bench::stats::PAIRS_FOR_A_VERDICT;

pub(crate) use documents::{DOCUMENTS, END, MARK, stale};
pub(crate) use lab::Plan;

use self::lab::Lab;
use self::measured::measured;
use self::probe::{PROBES, Probe};
use self::rows::ROWS;
use self::scratch::Scratch;
use crate::packages;

const USAGE: &str = "\
cargo xtask bench-sockets [--repeat N] [--seconds N] [--only NAME[,NAME…]] [--list]
cargo xtask bench-sockets --documents

Runs every scenario of xtask/sockets over the kernel and over Millrace in turn, by `millrace bench run`, and what that does not measure
yet; keeps the results in docs/results, and makes of them what the documents show. Scenarios that were measured when a run was
interrupted are not measured again by the next one of the same commit. With --only the figures are printed, and nothing is kept.

  --repeat N    trials of each cell (10, as many as a verdict needs)
  --seconds N   length of a trial (3)
  --only NAME   only these; a name's beginning is enough
  --list        the names
  --documents   measures nothing; makes the documents anew of the results that are kept";

/// Where the scenarios are.
const SCENARIOS: &str = "xtask/sockets";
/// The scenario whose two ends have one processor.
const TOGETHER: &str = "redis-one-processor";
/// Results of runs that are not at their ends, by commit.
const UNFINISHED: &str = "target/bench-sockets";

/// What is measured.
struct Chosen {
    scenarios: Vec<PathBuf>,
    /// Those of them whose ends have one processor.
    together: Vec<PathBuf>,
    probes: Vec<&'static Probe>,
}

/// The command.
pub(crate) fn command(arguments: &mut lexopt::Parser) -> Result<()> {
    let mut plan = Plan {
        repeats: PAIRS_FOR_A_VERDICT as u32,
        seconds: 3,
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
            Long("list") => {
                names()?.iter().for_each(|name| println!("{name}"));
                return Ok(());
            }
            Long("documents") => return documents::refresh(),
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
    let chosen = Chosen::of(&only)?;
    packages::install_missing("bench")?;
    if !only.is_empty() {
        let place = Scratch::new("bench-sockets")?;
        let results = chosen.measure(plan, place.path())?;
        println!("{}", documents::report(&results));
        return Ok(());
    }
    let unfinished = Path::new(UNFINISHED).join(machine::commit());
    let results = chosen.measure(plan, &unfinished)?;
    keep(&results)?;
    documents::refresh()?;
    fs::remove_dir_all(&unfinished).context(UNFINISHED)
}

/// The names of what is measured: of scenarios, and of probes.
fn names() -> Result<Vec<String>> {
    let files = fs::read_dir(SCENARIOS).context(SCENARIOS)?.flatten();
    let stems = files.filter_map(|file| Some(file.path().file_stem()?.to_str()?.to_owned()));
    let mut names: Vec<String> = stems.collect();
    names.sort();
    names.extend(PROBES.iter().map(|probe| probe.scenario.to_owned()));
    Ok(names)
}

impl Chosen {
    /// What has a name that begins with one of these; all for none.
    fn of(only: &[String]) -> Result<Chosen> {
        let known = names()?;
        for name in only {
            let begins = known.iter().any(|known| known.starts_with(name.as_str()));
            ensure!(begins, "nothing is called {name}: see --list");
        }
        let wanted =
            |name: &str| only.is_empty() || only.iter().any(|only| name.starts_with(only.as_str()));
        let is_probe = |name: &&String| PROBES.iter().any(|probe| probe.scenario == **name);
        let names = known.iter().filter(|name| !is_probe(name) && wanted(name));
        let (together, apart): (Vec<&String>, Vec<&String>) =
            names.partition(|name| *name == TOGETHER);
        let files = |names: Vec<&String>| {
            let file = |name: &String| Path::new(SCENARIOS).join(format!("{name}.toml"));
            names.into_iter().map(file).collect()
        };
        Ok(Chosen {
            scenarios: files(apart),
            together: files(together),
            probes: PROBES
                .iter()
                .filter(|probe| wanted(probe.scenario))
                .collect(),
        })
    }

    /// Measures all of it; `place` has what there is when it is interrupted.
    fn measure(&self, plan: Plan, place: &Path) -> Result<Results> {
        let lab = Lab::open()?;
        let [processor, _] = lab.processors;
        let one = format!("{processor},{processor}");
        let mut parts = Vec::new();
        for (files, more, name) in [
            (&self.scenarios, vec![], "apart"),
            (&self.together, vec!["--pin", &one], "together"),
        ] {
            if !files.is_empty() {
                parts.push(lab.run(files, plan, &more, &place.join(name))?);
            }
        }
        let mut results = joined(parts, plan);
        for probe in &self.probes {
            probe::measure(&lab, probe, plan, &mut results)?;
        }
        Ok(results)
    }
}

/// Results of several runs as those of one.
fn joined(parts: Vec<Results>, plan: Plan) -> Results {
    let mut parts = parts.into_iter();
    let mut results = parts.next().unwrap_or_else(|| empty(plan));
    for part in parts {
        results.cells.extend(part.cells);
        let new = |line: &String| !results.warnings.contains(line);
        let more: Vec<String> = part.warnings.into_iter().filter(new).collect();
        results.warnings.extend(more);
    }
    // Histograms and traces of each request are not kept.
    for trial in results.cells.iter_mut().flat_map(|cell| &mut cell.trials) {
        (trial.histogram, trial.trace) = (None, None);
    }
    results.machine.push(Fact {
        name: documents::COMMIT.to_owned(),
        value: machine::commit(),
    });
    results
}

/// Results of a run of the suite that had nothing to do.
fn empty(plan: Plan) -> Results {
    Results {
        schema: SCHEMA,
        millrace: env!("CARGO_PKG_VERSION").to_owned(),
        started: machine::now(),
        plan: results::Plan {
            repeats: plan.repeats,
            seconds: plan.seconds.into(),
            ..results::Plan::default()
        },
        machine: machine::facts(machine::two_processors()),
        roads: Vec::new(),
        cells: Vec::new(),
        warnings: machine::warnings(),
    }
}

/// Writes results where the documents find them.
fn keep(results: &Results) -> Result<()> {
    let name = format!("{}{}", documents::SET, machine::today());
    let place = Path::new(documents::RESULTS).join(name);
    fs::create_dir_all(&place).with_context(|| format!("{}", place.display()))?;
    results.write(&place)?;
    eprintln!("Written: {}", place.display());
    Ok(())
}

/// The table of the demo: a first look at what the scenarios show.
pub(crate) fn demo(plan: Plan, scenarios: &[&str]) -> Result<String> {
    let lab = Lab::open()?;
    let file = |name: &&str| Path::new(SCENARIOS).join(format!("{name}.toml"));
    let files: Vec<PathBuf> = scenarios.iter().map(file).collect();
    let results = lab.run(&files, plan, &["--quick"], &lab.directory("demo"))?;
    Ok(tables::short(&measured(&results, ROWS)))
}

#[cfg(test)]
mod tests {
    use millrace_bench::scenario::{Extent, Parameters, Scenario};

    use super::*;
    use crate::bench::rows::Side;

    fn scenario(name: &str) -> Scenario {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let file = root.join(SCENARIOS).join(format!("{name}.toml"));
        Scenario::parse(name, &fs::read_to_string(file).unwrap()).unwrap()
    }

    fn is_measured(side: &Side) -> bool {
        let wanted: Parameters = probe::owned(side.parameters);
        let mut probes = PROBES
            .iter()
            .filter(|probe| probe.scenario == side.scenario);
        if let Some(probe) = probes.next() {
            return probe.has(side.road, &wanted);
        }
        let (name, case) = side.scenario.split_once('/').unwrap();
        let scenario = scenario(name);
        let case = scenario.cases.iter().find(|known| known.name == case);
        case.is_some_and(|case| case.parameters(Extent::Whole).contains(&wanted))
    }

    #[test]
    fn every_claim_is_of_cells_that_are_measured() {
        for side in ROWS.iter().flat_map(|row| &row.sides) {
            assert!(is_measured(side), "{} {:?}", side.scenario, side.parameters);
        }
    }

    #[test]
    fn what_the_demo_shows_has_cases_for_a_quick_run() {
        for name in crate::demo::SHOWN {
            let cases = scenario(name).cases;
            assert!(
                cases
                    .iter()
                    .any(|case| !case.parameters(Extent::Quick).is_empty())
            );
        }
    }
}
