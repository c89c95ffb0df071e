//! `cargo xtask test`: the test suites, in seeded samples or in full, with one closing line.
//!
//! A suite is a command. It says how many of its cases passed either as `cargo test` does or by a line
//! `N passed, N failed, N skipped`; a line that begins with `figure:` goes into the result file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lexopt::prelude::{Long, ValueExt};
use millrace_bench::process::Program;
use millrace_bench::sys;

mod list;
mod record;
#[cfg(test)]
mod tests;

use list::{SUITES, Suite};
use record::Record;

const LOGS: &str = "target/test";
/// Of suites that run beside others, in samples. In full each has the machine for itself: it is to show what is so, however long it takes.
const AT_A_TIME: usize = 2;

/// What a suite's run has shown.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    passed: u64,
    failed: u64,
    skipped: u64,
    seconds: u64,
    figures: Vec<String>,
}

/// The command: `test [--all] [--only NAME] [--restart]`.
pub(crate) fn command(arguments: &mut lexopt::Parser) -> Result<()> {
    let (mut all, mut only, mut restart) = (false, None::<String>, false);
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("all") => all = true,
            Long("only") => only = Some(arguments.value()?.parse()?),
            Long("restart") => restart = true,
            other => return Err(other.unexpected().into()),
        }
    }
    let chosen: Vec<&Suite> = SUITES
        .iter()
        .filter(|suite| all || !suite.sample.is_empty())
        .filter(|suite| only.as_deref().is_none_or(|n| n == suite.name))
        .collect();
    ensure!(!chosen.is_empty(), "there is no such suite");
    fs::create_dir_all(LOGS).context(LOGS)?;
    let record = Mutex::new(Record::load()?);
    let run_or_recall = |suite: &Suite| {
        let before = (all && !restart).then(|| held(&record).passed(suite.name));
        let outcome = match before.flatten() {
            Some(outcome) => {
                println!("{}: passed before, with this tree", suite.name);
                outcome
            }
            None => run(suite, all)?,
        };
        if all {
            held(&record).store(suite.name, &outcome)?;
        }
        anyhow::Ok((suite.name, outcome))
    };
    let at_once = if all { 1 } else { AT_A_TIME };
    let mut outcomes = Vec::new();
    for turn in chosen.chunk_by(|one, next| one.beside && next.beside) {
        for outcome in at_a_time(at_once, turn, |suite| run_or_recall(suite)) {
            outcomes.push(outcome?);
        }
    }
    close(&outcomes)
}

/// Does something with each, with so many at a time; returns what it made of them, in their order.
fn at_a_time<T: Sync, U: Send>(count: usize, all: &[T], work: impl Fn(&T) -> U + Sync) -> Vec<U> {
    let (next, done) = (Mutex::new(all.iter().enumerate()), Mutex::new(Vec::new()));
    let worker = || {
        while let Some((index, one)) = { held(&next).next() } {
            let made = work(one);
            held(&done).push((index, made));
        }
    };
    std::thread::scope(|scope| (0..count.min(all.len())).for_each(|_| drop(scope.spawn(worker))));
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, made)| made).collect()
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one suite with its output in a log, of which failures show the end.
fn run(suite: &Suite, all: bool) -> Result<Outcome> {
    ensure!(!sys::interrupted(), "interrupted");
    let (words, minutes) = if all {
        (suite.full, suite.full_minutes)
    } else {
        (suite.sample, suite.sample_minutes)
    };
    println!(
        "{}: {} (at most {minutes} min)",
        suite.name,
        words.join(" ")
    );
    let (first, rest) = words.split_first().context("a suite without a command")?;
    let cargo = std::env::var_os("CARGO").filter(|_| *first == "cargo");
    let mut command = Command::new(cargo.unwrap_or_else(|| (*first).into()));
    command.args(rest);
    let log = log_of(suite.name);
    let start = Instant::now();
    let mut program = Program::start(suite.name, command, log.clone())?;
    let exit = program.wait(Duration::from_secs(60 * minutes))?;
    let text = program.output();
    let mut outcome = count(&text);
    outcome.seconds = start.elapsed().as_secs();
    if exit.is_none() {
        println!("{}: stopped, its {minutes} minutes are over", suite.name);
    }
    let success = exit.is_some_and(|exit| exit.success);
    if !success && outcome.failed == 0 {
        outcome.failed = 1;
    }
    if success && outcome.passed + outcome.failed + outcome.skipped == 0 {
        outcome.passed = 1;
    }
    if outcome.failed > 0 {
        println!(
            "{}\n{}: the whole log is {}",
            tail(&text, 60),
            suite.name,
            log.display()
        );
    }
    let worked = exit.map_or(Duration::ZERO, |exit| exit.processor.total());
    println!(
        "{}: {} after {} s, {} s of a processor",
        suite.name,
        outcome.counts(),
        outcome.seconds,
        worked.as_secs()
    );
    Ok(outcome)
}

fn log_of(suite: &str) -> PathBuf {
    Path::new(LOGS).join(format!("{suite}.log"))
}

/// Adds up what a log says.
fn count(text: &str) -> Outcome {
    let mut sum = Outcome::default();
    for line in text.lines() {
        if let Some(figure) = line.strip_prefix("figure:") {
            sum.figures.push(figure.trim().to_owned());
        }
        let counts = match line.strip_prefix("test result: ") {
            Some(rest) => rest.split_once(". ").map(|(_, counts)| counts),
            None => Some(line).filter(|line| line.ends_with(" skipped")),
        };
        for part in counts.unwrap_or_default().split([',', ';']) {
            let Some((number, word)) = part.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match word {
                "passed" => sum.passed += number,
                "failed" => sum.failed += number,
                "skipped" | "ignored" => sum.skipped += number,
                _ => {}
            }
        }
    }
    sum
}

/// The lines of a log that say which case failed: a few, as there may be thousands.
fn failures(text: &str) -> impl Iterator<Item = &str> {
    let says = |line: &&str| line.contains("FAILED") && !line.starts_with("test result: ");
    text.lines().filter(says).take(10)
}

fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// What failed, once more, and the closing line; failures make it an error.
fn close(outcomes: &[(&str, Outcome)]) -> Result<()> {
    let mut sum = Outcome::default();
    let mut names = Vec::new();
    for (name, outcome) in outcomes {
        if outcome.failed > 0 {
            let log = fs::read_to_string(log_of(name)).unwrap_or_default();
            println!("{name} failed:\n{}", tail(&log, 30));
            names.extend(failures(&log).map(|case| format!("{name}: {case}")));
        }
        sum.passed += outcome.passed;
        sum.failed += outcome.failed;
        sum.skipped += outcome.skipped;
    }
    // Last, since who reads the end of a long log sees only that.
    names.iter().for_each(|name| println!("{name}"));
    println!("{}", sum.counts());
    if sum.failed > 0 {
        bail!("{} failed", sum.failed);
    }
    Ok(())
}

impl Outcome {
    fn counts(&self) -> String {
        format!(
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}
