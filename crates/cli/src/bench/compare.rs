//! `millrace bench compare`: what the figures say, with a verdict per cell.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use millrace_bench::builds::{self, Build};
use millrace_bench::compare::{self, Comparison, Options};
use millrace_bench::results::Results;
use millrace_bench::run::Request;
use millrace_bench::{machine, roads, sys};

use super::run::{self, Measuring};
use crate::locate;

/// The road of builds where none is named.
const ROAD: &str = "millrace-loopback";
/// Interrupted, as shells have it.
const INTERRUPTED: u8 = 130;
/// There is something without a verdict that should have one.
const INCOMPLETE: u8 = 2;

/// Compare two sets of results, two builds of Millrace, or the roads of one set: is one faster, if the figures carry that?
///
/// Two sets are compared cell by cell, B with A. In one set, every road is compared with the first. With --build-a and --build-b, two
/// builds of Millrace are measured now, in turns and on the same roads, and B is compared with A. A cell is called faster or slower when
/// that holds at a false discovery rate of 5 % over the whole comparison, and equal when its ratio is within the margin.
#[derive(Debug, Args)]
#[command(
    after_help = NOTES,
    override_usage = USAGE,
    mut_group("Measuring", |group| group.requires("build_a")),
    mut_arg("roads", |roads| roads.help("Roads of Millrace, parted by commas [default: millrace-loopback]")),
    mut_arg("out", |out| out.help("Where results go; not below /run [default: millrace-builds-DATE]"))
)]
pub(crate) struct CompareArguments {
    /// Directories that `millrace bench run` made: the baseline, and another one. With builds: scenarios, as `run` has them.
    #[arg(value_name = "A [B] | SCENARIO", required_unless_present = "build_a")]
    words: Vec<String>,
    /// How far a ratio may be from 1 and still be no difference, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    margin: f64,
    #[command(flatten)]
    form: Form,
    /// A build of Millrace to measure, the baseline: a program, or a directory that has one as cargo's, an installation or a checkout does.
    #[arg(long, value_name = "DIR|PROGRAM", requires = "build_b", help_heading = BUILDS)]
    build_a: Option<PathBuf>,
    /// The other build.
    #[arg(long, value_name = "DIR|PROGRAM", requires = "build_a", help_heading = BUILDS)]
    build_b: Option<PathBuf>,
    #[command(flatten, next_help_heading = MEASURING)]
    how: Measuring,
}

const USAGE: &str = "millrace bench compare [OPTIONS] A [B]
       millrace bench compare --build-a DIR --build-b DIR [OPTIONS] [SCENARIO…]";
const BUILDS: &str = "Two builds";
const MEASURING: &str = "How two builds are measured";
const NOTES: &str =
    "Exit status: 0 when no cell is slower, 1 when one is, 2 when there is nothing to compare, no cell has a verdict, or a trial of a build
failed; 130 when the measuring of builds was interrupted.";

/// What is printed.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct Form {
    /// Print a Markdown table.
    #[arg(long)]
    markdown: bool,
    /// Print comma-separated values.
    #[arg(long)]
    csv: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &CompareArguments) -> Result<u8> {
    let mut options = Options::default();
    options.settings.margin = arguments.margin / 100.0;
    options.settings.check().context("--margin")?;
    match (&arguments.build_a, &arguments.build_b) {
        (Some(first), Some(second)) => arguments.measure([first, second], &options),
        _ => arguments.read(options),
    }
}

impl CompareArguments {
    /// What was measured before.
    fn read(&self, mut options: Options) -> Result<u8> {
        let found = match self.words.as_slice() {
            [only] => {
                let results = Results::read(Path::new(only))?;
                match compare::builds(&results, &options) {
                    Some(found) => found,
                    None => of_roads(&results, &options)?,
                }
            }
            [first, second] => {
                options.names = [first, second].map(Clone::clone);
                let [first, second] = [first, second].map(|place| Results::read(Path::new(place)));
                compare::compare(&first?, &second?, &options)
            }
            _ => bail!("one set of results is compared, or two; more are named"),
        };
        self.form.print(&found);
        Ok(found.exit_status())
    }

    /// Two builds, now.
    fn measure(&self, builds: [&PathBuf; 2], options: &Options) -> Result<u8> {
        let request = self.request(builds)?;
        if let Some(status) = run::enter(&request)? {
            return Ok(status);
        }
        let results = run::measure(&request)?;
        let found = compare::builds(&results, options);
        let found = found.context("the results are not of two builds")?;
        self.form.print(&found);
        let failures = run::failures(&results);
        for failure in &failures {
            complain!("failed: {failure}");
        }
        complain!("\n{}", run::places(&request));
        Ok(match found.exit_status() {
            _ if sys::interrupted() => INTERRUPTED,
            0 if !failures.is_empty() => INCOMPLETE,
            status => status,
        })
    }

    fn request(&self, [first, second]: [&PathBuf; 2]) -> Result<Request> {
        let builds = [
            find_build("A", first).context("--build-a")?,
            find_build("B", second).context("--build-b")?,
        ];
        let default = [ROAD.to_owned()];
        let named = Some(self.how.roads.as_slice()).filter(|named| !named.is_empty());
        let roads = roads::choose(named.unwrap_or(&default))?;
        let roads = builds::roads(&roads, &builds)?;
        let mut request = self.how.request(&self.words, roads)?;
        if self.how.out.is_none() {
            request.directory = format!("millrace-builds-{}", machine::today()).into();
        }
        Ok(request)
    }
}

fn find_build(name: &str, place: &Path) -> Result<Build> {
    let program = builds::program_in(place)?;
    let library = locate::library_of(&program).map_err(|places| {
        let places: Vec<String> = places
            .iter()
            .map(|place| place.display().to_string())
            .collect();
        anyhow!(
            "{} has no library; it is not at {}",
            program.display(),
            places.join(" or ")
        )
    })?;
    Build::new(name, program, library)
}

/// Every road of one set with the first.
fn of_roads(results: &Results, options: &Options) -> Result<Comparison> {
    let baseline = results.roads.first();
    let baseline = baseline.context("these results have no roads")?;
    Ok(compare::roads(results, &baseline.name, options))
}

impl Form {
    fn print(&self, found: &Comparison) {
        let text = match self {
            Form { markdown: true, .. } => found.markdown(),
            Form { csv: true, .. } => found.csv(),
            Form { json: true, .. } => found.json(),
            Form { .. } => found.text(),
        };
        // A reader that has seen enough may have gone.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
}
