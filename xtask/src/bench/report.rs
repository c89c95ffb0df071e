//! Measured rows as tables for people: aligned, so that a terminal and a Markdown reader both show them.

use millrace_bench::markdown;

use super::measure::{Row, Sample};
use super::scenario::{Bar, Measure, Unit};
use crate::stats;

/// Workload, both columns, the ratio, and what both cost in processor time.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut lines = vec![words(&[
        "workload",
        "kernel",
        "Millrace",
        "ratio",
        "processor time per operation: kernel",
        "Millrace",
    ])];
    for row in rows {
        let [kernel, ours] = [0, 1].map(|side| {
            let value = row.median(side, |sample| Some(sample.value));
            if value.is_nan() {
                "failed".to_owned()
            } else {
                row.step.unit.show(value)
            }
        });
        let [kernel_time, our_time] =
            [0, 1].map(|side| microseconds(row, side, Sample::processor_sum));
        let title = row.step.title.to_owned();
        lines.push(vec![
            title,
            kernel,
            ours,
            times(row.ratio()),
            kernel_time,
            our_time,
        ]);
    }
    markdown::table(&lines)
}

/// Every row with intervals and bars.
pub(super) fn figures(rows: &[Row]) -> String {
    let titles = [
        "workload",
        "baseline",
        "Millrace",
        "ratio",
        "must",
        "aim",
        "reached",
        "on the ring",
    ];
    let mut lines = vec![words(&titles)];
    for row in rows {
        let bar = |bar: Option<Bar>| match bar {
            Some(bar) => bar.show(row.step.unit),
            None => "-".to_owned(),
        };
        let must = match row.step.tail {
            Some(tail) => format!("{}, p99.9 {tail} ×", bar(row.step.must)),
            None => bar(row.step.must),
        };
        let reached = match (row.passes(), row.step.aim) {
            (None, _) => "-",
            (Some(false), _) => "**no**",
            (Some(true), Some(aim)) if row.reaches(aim) => "aim",
            (Some(true), _) => "yes",
        };
        lines.push(vec![
            row.step.title.to_owned(),
            interval(row, 0),
            interval(row, 1),
            ratio(row),
            must,
            bar(row.step.aim),
            reached.to_owned(),
            percent(row.median(1, |sample| sample.ring_share)),
        ]);
    }
    markdown::table(&lines)
}

/// Percentiles of the round trips and processor time per operation, server's and client's.
pub(super) fn costs(rows: &[Row]) -> String {
    let mut lines = vec![words(&[
        "workload",
        "p50 baseline",
        "p50 Millrace",
        "p99 baseline",
        "p99 Millrace",
        "p99.9 baseline",
        "p99.9 Millrace",
        "processor baseline",
        "processor Millrace",
    ])];
    let figures: [fn(&Sample) -> Option<f64>; 3] =
        [|s| s.latency.p50, |s| s.latency.p99, |s| s.latency.p999];
    let shown = |ns: f64| {
        if ns.is_nan() {
            "-".to_owned()
        } else {
            Unit::Nanoseconds.show(ns)
        }
    };
    for row in rows {
        let mut line = vec![row.step.title.to_owned()];
        for figure in figures {
            line.extend([0, 1].map(|side| shown(row.median(side, figure))));
        }
        line.extend([0, 1].map(|side| processor(row, side)));
        lines.push(line);
    }
    markdown::table(&lines)
}

/// What was run: each server once, each row's client.
pub(super) fn commands(rows: &[Row]) -> String {
    let mut lines = vec![words(&["workload", "end", "command"])];
    let mut last = "";
    for row in rows {
        let [baseline, _] = &row.scenario.sides;
        let extra = format!("[baseline: {}]", baseline.extra);
        let extra = if baseline.extra.is_empty() {
            ""
        } else {
            &extra
        };
        let shown = |template: &str| format!("`{}`", template.replace("{extra}", extra).trim_end());
        let server = row.scenario.server.command;
        if row.scenario.name != last && !server.is_empty() {
            lines.push(vec![
                row.scenario.name.to_owned(),
                "server".to_owned(),
                shown(server),
            ]);
        }
        last = row.scenario.name;
        if let Measure::Client(client, _) = row.step.measure {
            lines.push(vec![
                row.step.title.to_owned(),
                "client".to_owned(),
                shown(client),
            ]);
        }
    }
    markdown::table(&lines)
}

fn words(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}

/// Median and range of a side's figure.
fn interval(row: &Row, side: usize) -> String {
    let values = row.all(side, |sample| Some(sample.value));
    if values.is_empty() {
        return "failed".to_owned();
    }
    row.step
        .unit
        .show_interval(stats::median(&values), stats::range(&values))
}

fn ratio(row: &Row) -> String {
    let (low, high) = row.ratio_range();
    match row.ratio() {
        ratio if ratio.is_finite() => format!("{} ({low:.2} … {high:.2})", times(ratio)),
        _ => "-".to_owned(),
    }
}

fn times(ratio: f64) -> String {
    if ratio.is_finite() {
        format!("{ratio:.2} ×")
    } else {
        "-".to_owned()
    }
}

fn percent(share: f64) -> String {
    if share.is_nan() {
        "-".to_owned()
    } else {
        format!("{:.1} %", share * 100.0)
    }
}

fn microseconds(row: &Row, side: usize, figure: impl Fn(&Sample) -> Option<f64>) -> String {
    let value = row.median(side, figure);
    if value.is_nan() {
        "-".to_owned()
    } else {
        format!("{value:.2} µs")
    }
}

fn processor(row: &Row, side: usize) -> String {
    let end = |index: usize| row.median(side, |sample| sample.processor.map(|both| both[index]));
    let [server, client] = [end(0), end(1)];
    if server.is_nan() {
        "-".to_owned()
    } else {
        format!("{server:.2} + {client:.2} µs")
    }
}
