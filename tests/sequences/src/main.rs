//! Random sequences of socket calls on both ends of TCP connections, played on the plain kernel and under
//! a preloaded library; what the programs observe must be the same. See README.md.

mod board;
mod census;
mod describe;
mod drive;
mod generate;
mod kept;
mod minimize;
mod perform;
mod plan;
mod play;
mod random;
mod run;
mod sys;

use anyhow::{Context as _, Result, bail};
use drive::Campaign;
use lexopt::prelude::*;
use plan::Plan;
use run::Road;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
sequences [OPTIONS]            run seeds on the plain kernel and under COMMAND; compare what they show
sequences --minimize WHICH     make a differing sequence small
sequences --kept FOLDER        run the kept sequences of a folder
sequences show WHICH           print a sequence
sequences plan WHICH           print a sequence as JSON
sequences play                 play the JSON sequence of the standard input; print its trace
sequences census [OPTIONS]     count what the calls of the seeds return on the plain kernel
  WHICH is a seed, or a file with a JSON sequence

  --under COMMAND     what runs a program under the library, as in 'millrace run --mode eager --';
                      without it, the plain kernel is compared with itself
  --seeds A..B        the seeds (0..1000)
  --seconds N         stop after this time (and go on beyond B)
  --jobs N            sequences at a time (four per processor: they mostly wait)
  --without A,B,...   leave out kinds of steps; 'kinds' prints their names
  --max-failures N    stop after this many differences (20)
  --save FILE         with --minimize: where to put the small sequence as JSON
Exit status: 0 no difference, 1 differences, 2 could not run.
";

/// What the command line asks for.
struct Arguments {
    campaign: Campaign,
    words: Vec<String>,
    minimize: Option<String>,
    kept: Option<PathBuf>,
    save: Option<PathBuf>,
}

fn main() -> ExitCode {
    match act() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sequences: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Does what is asked; returns how many differences there were.
fn act() -> Result<usize> {
    let arguments = parse()?;
    let campaign = &arguments.campaign;
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    match words[..] {
        ["actor", seat] => play::run_actor(seat).map(|()| 0),
        ["play"] => {
            let plan = serde_json::from_reader(std::io::stdin()).context("reading the sequence")?;
            play::play(&plan).map(|()| 0)
        }
        ["show", which] => {
            print!("{}", plan_of(which, campaign)?);
            Ok(0)
        }
        ["plan", which] => {
            println!("{}", to_json(&plan_of(which, campaign)?)?);
            Ok(0)
        }
        ["kinds"] => {
            generate::kinds().for_each(|name| println!("{name}"));
            Ok(0)
        }
        ["census"] => census::take(campaign).map(|()| 0),
        [] => compare_roads(&arguments),
        _ => bail!("{USAGE}"),
    }
}

fn compare_roads(arguments: &Arguments) -> Result<usize> {
    let campaign = &arguments.campaign;
    if let Some(which) = &arguments.minimize {
        let plan = plan_of(which, campaign)?;
        let (small, difference) = minimize::minimize(&plan, &campaign.under)?;
        print!("{small}");
        println!(
            "  plain: {}\n  under: {}",
            difference.plain, difference.under
        );
        if let Some(file) = &arguments.save {
            std::fs::write(file, to_json(&small)?).with_context(|| file.display().to_string())?;
        }
        return Ok(1);
    }
    match &arguments.kept {
        Some(folder) => drive::run(campaign, &kept::Kept::read(folder)?),
        None => drive::run_seeds(campaign),
    }
}

/// A plan as JSON, one step per line.
fn to_json(plan: &Plan) -> Result<String> {
    let mut head = plan.clone();
    let steps: Result<Vec<String>, _> = std::mem::take(&mut head.steps)
        .iter()
        .map(serde_json::to_string)
        .collect();
    let head = serde_json::to_string(&head)?;
    let open = head.strip_suffix("[]}").context("steps come last")?;
    Ok(format!("{open}[\n{}\n]}}\n", steps?.join(",\n")))
}

/// The plan of a seed, or of a file.
fn plan_of(which: &str, campaign: &Campaign) -> Result<Plan> {
    match which.parse() {
        Ok(seed) => Ok(generate::generate(seed, &campaign.without)),
        Err(_) => kept::read_plan(Path::new(which)),
    }
}

fn parse() -> Result<Arguments> {
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let mut arguments = Arguments {
        campaign: Campaign {
            under: Road::default(),
            under_text: String::new(),
            seeds: 0..1000,
            time: None,
            jobs: 4 * processors,
            without: Vec::new(),
            max_failures: 20,
        },
        words: Vec::new(),
        minimize: None,
        kept: None,
        save: None,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        let campaign = &mut arguments.campaign;
        match argument {
            Long("under") => {
                campaign.under_text = parser.value()?.string()?;
                campaign.under = Road::new(&campaign.under_text);
            }
            Long("seeds") => campaign.seeds = range(&parser.value()?.string()?)?,
            Long("seconds") => {
                campaign.time = Some(Duration::from_secs(parser.value()?.parse()?));
                campaign.seeds.end = u64::MAX;
            }
            Long("jobs") => campaign.jobs = parser.value()?.parse()?,
            Long("without") => {
                let names = parser.value()?.string()?;
                campaign.without = names.split(',').map(str::to_string).collect();
            }
            Long("max-failures") => campaign.max_failures = parser.value()?.parse()?,
            Long("minimize") => arguments.minimize = Some(parser.value()?.string()?),
            Long("kept") => arguments.kept = Some(parser.value()?.into()),
            Long("save") => arguments.save = Some(parser.value()?.into()),
            Value(word) => arguments.words.push(word.string()?),
            _ => bail!("{USAGE}"),
        }
    }
    let unknown = |name: &&String| !generate::kinds().any(|kind| kind == name.as_str());
    if let Some(name) = arguments.campaign.without.iter().find(unknown) {
        bail!("there is no kind of steps called {name}");
    }
    Ok(arguments)
}

/// `A..B` as a range.
fn range(text: &str) -> Result<std::ops::Range<u64>> {
    let (start, end) = text.split_once("..").context("seeds are given as A..B")?;
    Ok(start.parse()?..end.parse()?)
}
