//! `millrace bench report`: results as something to look at.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use millrace_bench::report;
use millrace_bench::results::Results;

/// The page's name where none is given, beside the results.
const PAGE: &str = "report.html";

/// Make a report of results: a page that opens offline, a Markdown table, or comma-separated values.
///
/// The page is one file, with every chart, the commands behind every figure, and facts about the machine.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when the results cannot be read, or the page cannot be written."
)]
pub(crate) struct ReportArguments {
    /// Directories that `millrace bench run` made.
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Where the page goes [default: DIR/report.html].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["markdown", "csv"])]
    html: Option<PathBuf>,
    /// Print a Markdown table instead.
    #[arg(long, conflicts_with = "csv")]
    markdown: bool,
    /// Print a line for each trial instead.
    #[arg(long)]
    csv: bool,
}

pub(super) fn run(arguments: &ReportArguments) -> Result<u8> {
    anyhow::ensure!(
        arguments.html.is_none() || arguments.directories.len() == 1,
        "--html names one page, and there are {} directories",
        arguments.directories.len()
    );
    for directory in &arguments.directories {
        let results = Results::read(directory)?;
        let text = if arguments.markdown {
            report::markdown(directory, &results)
        } else if arguments.csv {
            report::csv(&results)
        } else {
            let page = arguments.html.clone().unwrap_or_else(|| page_of(directory));
            write_page(directory, &results, &page)?;
            format!("{}\n", page.display())
        };
        // A reader that has seen enough may have gone.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    Ok(0)
}

/// Makes the page of a directory.
pub(super) fn write_page(directory: &Path, results: &Results, page: &Path) -> Result<()> {
    let text = report::html(directory, results)?;
    fs::write(page, text).with_context(|| format!("cannot write {}", page.display()))
}

/// The page of a directory, where none is named.
pub(super) fn page_of(directory: &Path) -> PathBuf {
    directory.join(PAGE)
}
