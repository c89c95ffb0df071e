//! Makes a directory of results that were never measured, and its reports: for the report's tests, and for whoever works on it.
//!
//!     cargo run --package millrace-bench --example sample -- DIRECTORY [--reports-only]
//!
//! With `--reports-only` the results are taken as they are in the directory.

mod make;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use millrace_bench::report;
use millrace_bench::results::Results;

fn main() -> Result<()> {
    let directory = std::env::args_os()
        .nth(1)
        .context("usage: sample DIRECTORY [--reports-only]")?;
    let directory = Path::new(&directory);
    if std::env::args_os()
        .nth(2)
        .is_none_or(|word| word != "--reports-only")
    {
        make::results(directory)?;
    }
    let results = Results::read(directory)?;
    let write = |name: &str, text: String| {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))
    };
    write("report.html", report::html(directory, &results)?)?;
    write("report.md", report::markdown(directory, &results))?;
    write("report.csv", report::csv(&results))
}
