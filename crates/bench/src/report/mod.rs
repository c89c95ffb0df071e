//! What people look at: one HTML page, a table in Markdown, and all trials as CSV.
//!
//! Reading order: `summary` (what is said of a cell), `latency` (percentiles) and `trace` (each request), `charts` (what `report.js`
//! draws), `page` (the HTML from top to bottom) with its parts `overview` (the summary), `verdicts`, `section` (a scenario: `curves`,
//! `requests`, `sweeps`, `packets`, `processor`, `details`) and `evidence` (what all rests on); then `plain` (Markdown, CSV).
//!
//! Every name and text comes from files and is escaped: maud does that for HTML, `charts` for the data of the charts.
//! The page loads nothing from anywhere, and tells the browser so.

mod charts;
mod curves;
mod details;
mod evidence;
mod latency;
mod overview;
mod packets;
mod page;
mod plain;
mod processor;
mod requests;
mod section;
mod summary;
mod sweeps;
mod trace;
mod verdicts;

use std::path::Path;

use anyhow::Result;

use crate::results::Results;

/// The report as one HTML page that needs no other file. `directory` is where the results lie, with histograms and traces beside them.
/// A histogram or trace that cannot be read is left out, and the page says so.
///
/// # Errors
/// The results contradict themselves: a cell is on a road that is not among the roads, or is there twice.
pub fn html(directory: &Path, results: &Results) -> Result<String> {
    let scenarios = summary::scenarios(results)?;
    Ok(page::page(directory, results, &scenarios))
}

/// The summary table, as a README has it, and the tables of latency and of idle connections. `directory` is as for [`html`].
#[must_use]
pub fn markdown(directory: &Path, results: &Results) -> String {
    let details = summary::scenarios(results)
        .map(|scenarios| details::markdown(directory, results, &scenarios));
    plain::markdown(results) + &details.unwrap_or_default()
}

/// A line for every trial, also for those that do not count, below a line of names.
#[must_use]
pub fn csv(results: &Results) -> String {
    plain::csv(results)
}
