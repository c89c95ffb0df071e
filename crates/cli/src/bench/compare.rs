//! `millrace bench compare`: what the figures say, with a verdict per cell.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use millrace_bench::compare::{self, Comparison, Options};
use millrace_bench::results::Results;

/// Compare two sets of results, or the roads of one, and say of each cell which is faster, if the figures carry that.
///
/// Two sets are compared cell by cell, B with A. In one set, every road is compared with the first. A cell is called faster or slower when
/// that holds at a false discovery rate of 5 % over the whole comparison, and equal when its ratio is within the margin.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 when no cell is slower, 1 when one is, 2 when there is nothing to compare or no cell has a verdict."
)]
pub(crate) struct CompareArguments {
    /// A directory that `millrace bench run` made: the baseline.
    #[arg(value_name = "A")]
    first: PathBuf,
    /// Another one.
    #[arg(value_name = "B")]
    second: Option<PathBuf>,
    /// How far a ratio may be from 1 and still be no difference, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    margin: f64,
    #[command(flatten)]
    form: Form,
}

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
    let first = Results::read(&arguments.first)?;
    let found = match &arguments.second {
        Some(second) => {
            options.names = [&arguments.first, second].map(|path| path.display().to_string());
            compare::compare(&first, &Results::read(second)?, &options)
        }
        None => {
            let baseline = first.roads.first().context("these results have no roads")?;
            compare::roads(&first, &baseline.name.clone(), &options)
        }
    };
    // A reader that has seen enough may have gone.
    let _ = std::io::stdout().write_all(arguments.form.render(&found).as_bytes());
    Ok(found.exit_status())
}

impl Form {
    fn render(&self, found: &Comparison) -> String {
        match self {
            Form { markdown: true, .. } => found.markdown(),
            Form { csv: true, .. } => found.csv(),
            Form { json: true, .. } => found.json(),
            Form { .. } => found.text(),
        }
    }
}
