//! `millrace bench run`: measures.

use std::env;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use millrace_bench::packets::Width;
use millrace_bench::results::{Cell, FILE, Outcome, Plan, Results};
use millrace_bench::roads::Road;
use millrace_bench::run::{Progress, Request};
use millrace_bench::scenario::Case;
use millrace_bench::stats::PAIRS_FOR_A_VERDICT;
use millrace_bench::{
    Pinning, carried, compare, figures, isolate, machine, process, roads, run, scenario, suites,
    sys,
};

use super::report;
use crate::locate;
use crate::table::Table;

/// Measure scenarios on roads, and keep the results in a directory.
///
/// Roads of one comparison take turns. A trial during which the hypervisor took processors away is made again, on all roads alike.
/// A run that was interrupted goes on where it stopped when the same command names the same directory.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when a trial failed, or nothing could be measured; 130 when it was interrupted."
)]
pub(crate) struct RunArguments {
    /// Scenarios (redis), cases of one (redis/get), files of your own (./mine.toml), or suites (containers), which have their roads with
    /// them; everything for none.
    #[arg(value_name = "SUITE|SCENARIO")]
    scenarios: Vec<String>,
    #[command(flatten)]
    how: Measuring,
}

/// Where, how much, and how.
#[derive(Debug, Args)]
pub(super) struct Measuring {
    /// Roads, or files of your own (./mine.toml, and millrace-mine beside it), parted by commas; the first is what the others are
    /// compared with [default: loopback,millrace-loopback].
    #[arg(long, value_delimiter = ',', value_name = "ROAD,…")]
    pub(super) roads: Vec<String>,
    /// Values of the parameter bytes, in place of the scenarios' own.
    #[arg(long, value_delimiter = ',', value_name = "BYTES,…")]
    sizes: Vec<u64>,
    /// Values of the parameter clients, in place of the scenarios' own.
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    clients: Vec<u64>,
    /// Trials of each cell [default: 10, quick: 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Go on with cells that are not decided after these trials, until the run has taken so many minutes.
    #[arg(long, value_name = "MINUTES", value_parser = parse_minutes, conflicts_with = "quick")]
    max_time: Option<f64>,
    /// Seconds of a trial [default: 3, short and quick: 1].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    time: Option<f64>,
    /// Of what searches the highest rates (packets, ppf): how narrow the range becomes, as a share of the rate, or as packets a second
    /// (100/s) [default: 0.01].
    #[arg(long, value_name = "SHARE|N/s")]
    width: Option<Width>,
    /// Processors of server and client: auto, none, or two numbers as 0,1; auto pins nothing where there is one only.
    #[arg(long, default_value = "auto", value_name = "CPUS")]
    pin: Pinning,
    /// Orders the roads, which take turns at random.
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Where results go; not below /run [default: millrace-bench-DATE].
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Take away what the directory has, in place of going on with it.
    #[arg(long)]
    anew: bool,
    /// Fewer parameters of each case, and trials of one second: the suite on five roads in about an hour, with verdicts.
    #[arg(long, conflicts_with = "quick")]
    short: bool,
    /// A first look: fewer parameters, three short trials each, intervals without verdicts.
    #[arg(long)]
    quick: bool,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds between 0.1 and 3600".to_owned()),
    }
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes <= 10_000.0 => Ok(minutes),
        _ => Err("a number of minutes, 10000 at most".to_owned()),
    }
}

/// The roads that are named; where none are, those of the scenarios that are named and have roads of their own.
fn roads_of(scenarios: &[String], named: Vec<String>) -> Result<Vec<String>> {
    let mut roads = named;
    if roads.is_empty() && !scenarios.is_empty() {
        for scenario in scenario::choose(scenarios)? {
            let default = roads::DEFAULT.map(str::to_owned).to_vec();
            let its = if scenario.roads.is_empty() {
                default
            } else {
                scenario.roads
            };
            let new = its.into_iter().filter(|road| !roads.contains(road));
            roads.extend(new.collect::<Vec<_>>());
        }
    }
    Ok(roads)
}

pub(super) fn run(arguments: &RunArguments) -> Result<u8> {
    let how = &arguments.how;
    // Mistakes are told before anything is set up.
    let (scenarios, of_suites) = suites::expand(&arguments.scenarios);
    let named = if how.roads.is_empty() {
        of_suites
    } else {
        how.roads.clone()
    };
    let roads = roads_of(&scenarios, named)?;
    let request = how.request(&scenarios, roads::choose(&roads)?)?;
    if let Some(status) = enter(&request)? {
        return Ok(status);
    }
    let there = Results::read(&request.directory)
        .ok()
        .filter(|_| !request.anew);
    let before = there.map_or(0, |results| trials(&results) - failed(&results));
    let results = measure(&request)?;
    let mut out = std::io::stdout();
    let _ = out.write_all(summary(&results, out.is_terminal()).as_bytes());
    if before > 0 {
        let made = trials(&results) - before;
        let _ = write!(
            out,
            "\nnote: {before} trials were there before, and {made} were made now"
        );
    }
    let _ = writeln!(out, "\n{}", places(&request));
    if sys::interrupted() {
        return Ok(130);
    }
    Ok(u8::from(failed(&results) > 0))
}

/// Goes into a world of the run's own. Some: it was all done there, and ended with this status.
pub(super) fn enter(request: &Request) -> Result<Option<u8>> {
    ensure!(
        !isolate::is_hidden(&request.directory),
        "results cannot go to {}: a run has a /run of its own, which goes with it. Name another directory with --out",
        request.directory.display()
    );
    isolate::enter()
}

/// Runs a plan in there, showing how far it has come, and makes the page.
pub(super) fn measure(request: &Request) -> Result<Results> {
    sys::catch_interrupts();
    sys::adopt_orphans();
    let mut line = Line::new();
    let outcome = run::run(request, &mut |progress| line.show(progress));
    line.clear();
    process::end_descendants();
    let results = outcome?;
    let page = report::page_of(&request.directory);
    report::write_page(&request.directory, &results, &page)?;
    Ok(results)
}

/// Where the results of a run are.
pub(super) fn places(request: &Request) -> String {
    format!(
        "Results: {}\nTo look at: {}",
        request.directory.join(FILE).display(),
        report::page_of(&request.directory).display()
    )
}

fn trials(results: &Results) -> usize {
    results.cells.iter().map(|cell| cell.trials.len()).sum()
}

fn failed(results: &Results) -> usize {
    let trials = results.cells.iter().flat_map(|cell| &cell.trials);
    let failed = trials.filter(|trial| matches!(trial.outcome, Outcome::Failed(_)));
    failed.count()
}

impl Measuring {
    /// These scenarios on these roads.
    pub(super) fn request(&self, scenarios: &[String], roads: Vec<Road>) -> Result<Request> {
        let mut scenarios = scenario::choose(scenarios)?;
        for (name, wanted) in [("bytes", &self.sizes), ("clients", &self.clients)] {
            for case in scenarios
                .iter_mut()
                .flat_map(|scenario| &mut scenario.cases)
            {
                case.restrict(name, wanted);
            }
        }
        let mut cases = scenarios.iter().flat_map(|scenario| &scenario.cases);
        let searches = |case: &Case| roads.iter().any(|road| case.searches_on(road));
        ensure!(
            self.width.is_none() || cases.any(searches),
            "--width is for what searches the highest rates, and nothing does that here: name packets, ppf, or a case of theirs with a \
             rate without loss"
        );
        self.pin.processors()?;
        let mut build = Vec::from_iter(env::current_exe());
        build.extend(locate::library());
        for peer in roads.iter().flat_map(Road::peers) {
            if !build.contains(&peer) {
                build.push(peer);
            }
        }
        let repeats = self.repeat.unwrap_or(if self.quick { 3 } else { 10 });
        ensure!(
            self.max_time.is_none() || repeats as usize >= PAIRS_FOR_A_VERDICT,
            "--max-time goes on after {PAIRS_FOR_A_VERDICT} trials of each cell at least, and --repeat says {repeats}"
        );
        Ok(Request {
            scenarios,
            roads,
            plan: Plan {
                command: env::args_os()
                    .map(|word| word.to_string_lossy().into_owned())
                    .collect(),
                repeats,
                minutes_max: self.max_time,
                seconds: self
                    .time
                    .unwrap_or(if self.quick || self.short { 1.0 } else { 3.0 }),
                width: self.width.unwrap_or_default(),
                seed: self.seed,
                short: self.short,
                quick: self.quick,
                pinned: self.pin.to_string(),
            },
            pinning: self.pin,
            directory: self
                .out
                .clone()
                .unwrap_or_else(|| PathBuf::from(format!("millrace-bench-{}", machine::today()))),
            anew: self.anew,
            build,
        })
    }
}

/// One line that overwrites itself in a terminal; elsewhere, a line for each trial.
struct Line {
    is_terminal: bool,
}

impl Line {
    fn new() -> Line {
        Line {
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn show(&mut self, progress: &Progress) {
        let Progress {
            done,
            total,
            now,
            last,
            left,
        } = progress;
        let last = match last {
            None => String::new(),
            Some((unit, Outcome::Counts, value)) => {
                format!(" (last {})", figures::show(*unit, *value))
            }
            Some((_, Outcome::Void(_), _)) => " (last disturbed)".to_owned(),
            Some((_, Outcome::Failed(_), _)) => " (last failed)".to_owned(),
        };
        let text = format!("{done}/{total}  {now}{last}, {} left", span(*left));
        let mut error = std::io::stderr();
        let _ = if self.is_terminal {
            write!(error, "\r\x1b[K{}", fitting(&text, columns()))
        } else {
            writeln!(error, "{text}")
        };
    }

    fn clear(&mut self) {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// How wide the terminal is.
fn columns() -> usize {
    ratatui::crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns))
}

/// What goes into one line: a longer one would break, and the next one could not overwrite it.
fn fitting(text: &str, columns: usize) -> String {
    if text.chars().count() < columns {
        return text.to_owned();
    }
    let kept = text.chars().take(columns.saturating_sub(2));
    kept.chain(['…']).collect()
}

fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// Medians of all cells, roads side by side.
fn summary(results: &Results, styled: bool) -> String {
    let mut heading = vec!["SCENARIO", "PARAMETERS"];
    heading.extend(results.roads.iter().map(|road| road.name.as_str()));
    let mut table = Table::new(&heading, &[2, 3, 4, 5, 6, 7, 8, 9]);
    let mut seen = Vec::new();
    for cell in &results.cells {
        let key = (&cell.scenario, &cell.parameters);
        if seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let mut line = vec![
            cell.scenario.clone(),
            run::show_parameters(&cell.parameters),
        ];
        line.extend(results.roads.iter().map(|road| {
            let here = results.on_road(cell, &road.name);
            here.map_or(figures::NOTHING.to_owned(), |cell| match cell.median() {
                Some(median) => figures::show(cell.unit, median),
                None if cell.trials.is_empty() => figures::NOTHING.to_owned(),
                None => "failed".to_owned(),
            })
        }));
        table.push(line);
    }
    let mut text = table.render(styled);
    let standing = compare::standing(results);
    if !standing.rows.is_empty() {
        text.push_str(&format!("\n{}", standing.text()));
    }
    text.extend(on_the_kernels_road(results));
    for warning in &results.warnings {
        text.push_str(&format!("\nwarning: {warning}"));
    }
    for failure in failures(results) {
        text.push_str(&format!("\nfailed: {failure}"));
    }
    text
}

/// Of each cell the last trial that failed, and why.
pub(super) fn failures(results: &Results) -> Vec<String> {
    let of_cell = |cell: &Cell| {
        let mut whys = cell.trials.iter().filter_map(|trial| match &trial.outcome {
            Outcome::Failed(why) => Some(why),
            _ => None,
        });
        let why = whys.next_back()?;
        let parameters = run::show_parameters(&cell.parameters);
        Some(format!(
            "{} {parameters} on {}: {why}",
            cell.scenario, cell.road
        ))
    };
    results.cells.iter().filter_map(of_cell).collect()
}

/// Cells of Millrace whose bytes did not take its road, or that nothing is known of.
fn on_the_kernels_road(results: &Results) -> impl Iterator<Item = String> {
    results.cells.iter().filter_map(|cell| {
        roads::below(&cell.road)?;
        let mut notes = cell
            .counted()
            .filter_map(|trial| carried::note(trial.ring_share));
        let place = format!(
            "{} {} on {}",
            cell.scenario,
            run::show_parameters(&cell.parameters),
            cell.road
        );
        notes.next().map(|note| format!("\nnote: {place}: {note}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_cut_and_not_broken() {
        assert_eq!(fitting("1/2  redis", 11), "1/2  redis");
        assert_eq!(fitting("1/2  redis", 10), "1/2  red…");
        assert_eq!(fitting("µs µs µs", 6), "µs µ…");
        assert_eq!(fitting("redis", 0), "…");
    }

    #[test]
    fn a_scenario_with_roads_of_its_own_is_measured_on_them() {
        let roads = |scenarios: &[&str], named: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let scenarios: Vec<String> = owned(scenarios);
            roads_of(&scenarios, owned(named)).unwrap()
        };
        let its = roads(&["channels"], &[]);
        assert!(its.contains(&"iceoryx2".to_owned()) && roads::choose(&its).is_ok());
        assert_eq!(roads(&["channels"], &["pipe"]), ["pipe"]);
        assert_eq!(roads(&["redis/get"], &[]), roads::DEFAULT);
        assert_eq!(
            roads(&["redis", "channels"], &[])[..3],
            ["loopback", "millrace-loopback", "iceoryx2"]
        );
        assert!(roads(&[], &[]).is_empty());
    }
}
