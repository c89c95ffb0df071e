//! `cargo xtask tidy`: the house rules that neither rustfmt nor clippy checks.
//!
//! Sizes are a ratchet: what is over a limit today is listed in `xtask/tidy-exceptions.txt` with its size
//! and a reason, may not grow, and when it shrinks the list has to follow.

mod documents;
mod figures;
mod rules;
mod sizes;
mod source;

use std::fmt;
use std::fs;

use anyhow::{Context, Result, ensure};
use lexopt::prelude::Long;
use millrace_bench::machine;

use crate::bench;

/// A file of the project, as text.
struct File {
    path: String,
    text: String,
}

/// Something to mend.
#[derive(Clone, Debug, PartialEq)]
struct Finding {
    path: String,
    /// Counted from 1; 0: the whole file.
    line: usize,
    what: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The command; `--shrink` makes the list of exceptions follow what has shrunk.
pub(crate) fn command(arguments: &mut lexopt::Parser) -> Result<()> {
    let mut shrink = false;
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("shrink") => shrink = true,
            other => return Err(other.unexpected().into()),
        }
    }
    let files = project_files()?;
    if shrink {
        sizes::shrink(&files)?;
    }
    let mut findings = rules::check(&files);
    findings.extend(documents::check(&files));
    findings.extend(figures::check(&files));
    findings.extend(stale_figures()?);
    findings.extend(sizes::check(&files)?);
    for finding in &findings {
        println!("{finding}");
    }
    ensure!(
        findings.is_empty(),
        "tidy: {} findings in {} files",
        findings.len(),
        files.len()
    );
    println!("tidy: {} files are in order", files.len());
    Ok(())
}

/// Documents whose figures are not those of the results that are kept.
fn stale_figures() -> Result<Vec<Finding>> {
    let stale = bench::stale()?;
    Ok(stale
        .into_iter()
        .map(|(path, why)| Finding::new(&path, 0, why))
        .collect())
}

/// All text files that git tracks or would track.
fn project_files() -> Result<Vec<File>> {
    let list = machine::capture(
        "git",
        &["ls-files", "--cached", "--others", "--exclude-standard"],
    );
    let list = list.context("tidy needs git and a git repository")?;
    let read = |path: &str| {
        // What is listed and cannot be read has been deleted, or is not text.
        let text = fs::read_to_string(path).ok()?;
        Some(File {
            path: path.to_owned(),
            text,
        })
    };
    Ok(list.lines().filter_map(read).collect())
}
