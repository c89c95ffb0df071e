//! `docs/benchmarks.md` and the figures beside it as JSON.

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};
use millrace_bench::machine;
use millrace_bench::results::Fact;
use serde_json::{Value, json};

use super::measure::{Plan, Row, Sample};
use super::report;

const DOCUMENT: &str = "docs/benchmarks.md";
const RESULTS: &str = "docs/results";
/// What follows this line is written by hand, and kept.
const NOTES: &str = "## What the profiles show\n";

/// Prints the report, and writes the files when `write`.
pub(super) fn publish(rows: &[Row], facts: &[Fact], plan: Plan, write: bool) -> Result<()> {
    let date = machine::today();
    let data = format!("sockets-{date}.json");
    let report = render(rows, facts, plan, &date, &data);
    println!("{report}");
    if !write {
        return Ok(());
    }
    let old = fs::read_to_string(DOCUMENT).unwrap_or_default();
    let notes = old
        .split_once(NOTES)
        .map_or("\nNothing is noted yet.\n", |(_, notes)| notes);
    fs::create_dir_all(RESULTS).context(RESULTS)?;
    fs::write(DOCUMENT, format!("{report}\n{NOTES}{notes}")).context(DOCUMENT)?;
    let path = format!("{RESULTS}/{data}");
    let figures = to_json(rows, facts, plan, &date);
    fs::write(&path, format!("{figures:#}\n")).context(path.clone())?;
    eprintln!("Written: {DOCUMENT} and {path}");
    Ok(())
}

fn render(rows: &[Row], facts: &[Fact], plan: Plan, date: &str, data: &str) -> String {
    format!(
        "# Benchmarks: sockets

Made by `make bench-sockets` on {date}, commit {commit}. Do not edit what is above the last heading.
Every single figure is in [results/{data}](results/{data}).

Real programs, unmodified, over the kernel and under `millrace run --` in turn (baseline, Millrace, baseline, …),
server and client on a processor each and started anew for each run: {repeats} runs of {seconds} s each. One configuration,
the default. Cells have the median and the least and greatest run. A ratio above 1 is a win, whatever the unit; its
interval is that of the pairs of runs. *On the ring* is the share of bytes that went through shared memory by the middle
of a run.

## The machine

{facts}
## Figures

{figures}
## Round trips and processor time

Processor time is server + client, per operation, from the kernel's accounts. All figures are medians.
`redis-benchmark` rounds its percentiles up to buckets of 8 µs.

{costs}
## What does not reach its bar

{shortcomings}
## Commands

{commands}",
        commit = machine::commit(),
        repeats = plan.repeats,
        seconds = plan.seconds,
        facts = machine::table(facts),
        figures = report::figures(rows),
        costs = report::costs(rows),
        shortcomings = shortcomings(rows),
        commands = report::commands(rows),
    )
}

fn shortcomings(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        if row.passes() == Some(false) && row.ratio().is_finite() {
            let _ = writeln!(text, "- {}", shortcoming(row));
        }
        for failure in &row.failures {
            let reason = failure.lines().next().unwrap_or_default();
            let _ = writeln!(text, "- {}: a run failed: {reason}", row.step.title);
        }
    }
    if text.is_empty() {
        "Everything reaches it.\n".to_owned()
    } else {
        text
    }
}

/// Which bar a row misses, and by what.
fn shortcoming(row: &Row) -> String {
    let unit = row.step.unit;
    let mut parts = Vec::new();
    if let Some(must) = row.step.must.filter(|&bar| !row.reaches(bar)) {
        let ours = unit.show(row.median(1, |sample| Some(sample.value)));
        parts.push(format!(
            "{ours}, {:.2} ×, where it must be {}",
            row.ratio(),
            must.show(unit)
        ));
    }
    if let Some(tail) = row.step.tail.filter(|&tail| row.tail_ratio() < tail) {
        let ratio = row.tail_ratio();
        parts.push(format!(
            "p99.9 {ratio:.2} × lower, where it must be {tail} ×"
        ));
    }
    format!("{}: {}", row.step.title, parts.join("; "))
}

fn to_json(rows: &[Row], facts: &[Fact], plan: Plan, date: &str) -> Value {
    json!({
        "date": date,
        "commit": machine::commit(),
        "machine": machine::to_json(facts),
        "repeats": plan.repeats,
        "seconds": plan.seconds,
        "rows": rows.iter().map(row_to_json).collect::<Vec<_>>(),
    })
}

fn row_to_json(row: &Row) -> Value {
    let unit = row.step.unit;
    let side = |side: usize| {
        json!({
            "label": row.scenario.sides[side].label,
            "runs": row.sides[side].iter().map(sample_to_json).collect::<Vec<_>>(),
        })
    };
    json!({
        "workload": row.scenario.name,
        "title": row.step.title,
        "unit": format!("{unit:?}"),
        "baseline": side(0),
        "ours": side(1),
        "ratio": row.ratio(),
        "must": row.step.must.map(|bar| bar.show(unit)),
        "aim": row.step.aim.map(|bar| bar.show(unit)),
        "reached": row.passes(),
        "failures": row.failures,
    })
}

fn sample_to_json(sample: &Sample) -> Value {
    let [server, client] = sample.processor.map_or([None, None], |both| both.map(Some));
    json!({
        "value": sample.value,
        "p50_ns": sample.latency.p50,
        "p99_ns": sample.latency.p99,
        "p99.9_ns": sample.latency.p999,
        "ring_share": sample.ring_share,
        "server_us_per_operation": server,
        "client_us_per_operation": client,
    })
}
