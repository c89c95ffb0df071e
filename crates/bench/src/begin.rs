//! What a run begins with: what can be measured here, and what is there already.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::closing;
use crate::isolate;
use crate::machine;
use crate::programs::Lack;
use crate::results::{self, Fact, Outcome, Plan, Results, Trial};
use crate::roads::Road;
use crate::run::Request;
use crate::scenario::{self, Scenario};
use crate::trial::RAW;

/// New results, or those that are there already, if they are of the same plan, build and machine. Those of trials that failed are
/// taken out, so that they are made again.
pub(crate) fn begin(request: &Request) -> Result<Results> {
    let mut machine = machine::facts(request.pinning.processors()?);
    machine.insert(0, machine::build(&request.build));
    machine.extend(request.scenarios.iter().filter_map(Scenario::fact));
    let mut fresh = Results {
        schema: results::SCHEMA,
        millrace: env!("CARGO_PKG_VERSION").to_owned(),
        started: machine::now(),
        plan: request.plan.clone(),
        machine,
        roads: request.roads.iter().map(describe).collect(),
        cells: Vec::new(),
        warnings: machine::warnings(),
    };
    if request.anew {
        remove(&request.directory)?;
    }
    if !request.directory.join(results::FILE).exists() {
        return Ok(fresh);
    }
    let mut old = Results::read(&request.directory)?;
    // A run may go on for longer than was said at first.
    let without_end = |plan: &Plan| Plan {
        command: Vec::new(),
        minutes_max: None,
        ..plan.clone()
    };
    let same = without_end(&old.plan) == without_end(&fresh.plan) && old.roads == fresh.roads;
    ensure!(
        same,
        "{} has results of another plan: {}\nName another directory with --out, give the same options to go on with it, or give --anew.",
        request.directory.display(),
        old.plan.command.join(" ")
    );
    add_scenarios(&mut old.machine, &fresh.machine);
    add_scenarios(&mut fresh.machine, &old.machine);
    let differences = machine::differences(&old.machine, &fresh.machine)
        .into_iter()
        .map(|[name, before, now]| format!("{name}: {before} before, {now} now"));
    let differences: Vec<String> = differences.collect();
    ensure!(
        differences.is_empty(),
        "{} has results of another build, of another machine, or of other files:\n{}\n\
         Name another directory with --out, or begin anew with --anew.",
        request.directory.display(),
        differences.join("\n")
    );
    for cell in &mut old.cells {
        let has_failed = |trial: &Trial| matches!(trial.outcome, Outcome::Failed(_));
        cell.trials.retain(|trial| !has_failed(trial));
    }
    old.warnings.retain(|line| !closing::is_of_the_end(line));
    old.plan.minutes_max = fresh.plan.minutes_max.or(old.plan.minutes_max);
    Ok(old)
}

/// Adds the scenarios that only others tell: what is measured beside the rest makes no difference to it.
fn add_scenarios(facts: &mut Vec<Fact>, others: &[Fact]) {
    let is_one = |fact: &&Fact| fact.name.starts_with(scenario::FACT);
    for other in others.iter().filter(is_one) {
        if facts.iter().all(|fact| fact.name != other.name) {
            facts.push(other.clone());
        }
    }
}

/// Takes away what a run has left, and nothing else.
fn remove(directory: &Path) -> Result<()> {
    let is_gone = |done: std::io::Result<()>| match done {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    is_gone(fs::remove_file(directory.join(results::FILE)))
        .and_then(|()| is_gone(fs::remove_dir_all(directory.join(RAW))))
        .with_context(|| format!("cannot begin anew in {}", directory.display()))
}

fn describe(road: &Road) -> results::Road {
    results::Road {
        name: road.name.clone(),
        about: road.about.clone(),
        settings: road.settings(),
        build: road.build.clone(),
    }
}

/// The roads that can be set up; what is missing goes to `missing`.
pub(crate) fn roads_here(roads: &[Road], missing: &mut Vec<String>) -> Vec<Road> {
    let is_here = |road: &&Road| {
        let why = road.missing();
        missing.extend(why.iter().map(|why| road.left_out(why)));
        why.is_none()
    };
    roads.iter().filter(is_here).cloned().collect()
}

/// What of a scenario can be run, if something can; what is missing goes to `missing`.
pub(crate) fn with_programs(scenario: &Scenario, missing: &mut Vec<String>) -> Option<Scenario> {
    let left_out = |name: &str, lack: Lack<'_>| {
        let Lack {
            program,
            place,
            verb,
            what,
        } = lack;
        format!("{name} is left out: there is no {program} here ({place}: {verb} {what})")
    };
    if let Some(lack) = scenario.server.missing() {
        missing.push(left_out(&scenario.name, lack));
        return None;
    }
    let mut found = scenario.clone();
    found.cases.retain(|case| {
        let lack = case.missing();
        let name = format!("{}/{}", scenario.name, case.name);
        missing.extend(lack.map(|lack| left_out(&name, lack)));
        lack.is_none()
    });
    (!found.cases.is_empty()).then_some(found)
}

/// What everybody who measures these roads has to know.
pub(crate) fn cautions(roads: &[Road]) -> impl Iterator<Item = String> {
    roads.iter().filter_map(|road| {
        let caution = road.caution.as_ref()?;
        Some(format!("the road {}: {caution}", road.name))
    })
}

/// Without root, connections between network namespaces cannot be proved to Millrace's agent, and stay on the kernel's road.
pub(crate) fn unproved(roads: &[Road]) -> Option<String> {
    let between = |road: &&Road| road.accelerated && road.server != road.client;
    let names: Vec<&str> = roads
        .iter()
        .filter(between)
        .map(|road| road.name.as_str())
        .collect();
    (!names.is_empty() && !isolate::is_root_of_the_machine()).then(|| {
        format!(
            "without root, Millrace recognises connections within one network namespace only: the kernel's road is what {} shows",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Pinning;

    const TEXT: &str = r#"
        title = "Mine"
        about = ""
        [server]
        command = "true"
        [[case]]
        name = "one"
        title = "One"
        client = "true"
        read = "result-line"
        unit = "operations_per_second"
        grid = [{}]
    "#;

    #[test]
    fn a_scenario_s_file_that_has_changed_is_no_scenario_to_go_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let begin = |names: &[&str]| {
            let paths = names.iter().map(|name| directory.path().join(name));
            let words: Vec<String> = paths.map(|path| path.display().to_string()).collect();
            begin(&Request {
                scenarios: scenario::choose(&words).unwrap(),
                roads: Vec::new(),
                plan: Plan::default(),
                pinning: Pinning::Free,
                directory: directory.path().to_owned(),
                anew: false,
                build: Vec::new(),
            })
        };
        for name in ["mine.toml", "other.toml"] {
            fs::write(directory.path().join(name), TEXT).unwrap();
        }
        let results = begin(&["mine.toml"]).unwrap();
        results.write(directory.path()).unwrap();
        let both = begin(&["other.toml"]).unwrap();
        both.write(directory.path()).unwrap();
        assert_eq!(both.machine.len(), results.machine.len() + 1);
        fs::write(directory.path().join("mine.toml"), TEXT.replace("One", "1")).unwrap();
        let error = begin(&["mine.toml"]).unwrap_err().to_string();
        assert!(error.contains("scenario mine: "), "{error}");
        assert!(begin(&["other.toml"]).is_ok());
    }
}
