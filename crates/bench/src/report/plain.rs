//! The summary in Markdown, and all trials as CSV.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::latency::TABLE;
use super::overview::baseline;
use super::summary::{Set, figure, remarks, scenarios, show, show_range, show_ring_share, split};
use super::verdicts::{Verdicts, turned, word};
use crate::figures;
use crate::results::{Cell, Clocks, Idle, Outcome, Results, Trial, Unit};
use crate::stats::percentiles::is_carried;

/// The summary table; see [`super::markdown`].
pub(super) fn markdown(results: &Results) -> String {
    let mut text = String::new();
    let scenarios = match scenarios(results) {
        Ok(scenarios) => scenarios,
        Err(error) => return format!("{}\n", cell_text(&format!("{error:#}"))),
    };
    let names: Vec<String> = results
        .roads
        .iter()
        .map(|road| cell_text(&road.name))
        .collect();
    let _ = writeln!(text, "| | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(names.len()));
    let verdicts = Verdicts::of(results);
    let mut notes: Vec<String> = Vec::new();
    for scenario in &scenarios {
        for set in &scenario.sets {
            let label = [scenario.title, &scenario.fixed, &set.label];
            let label: Vec<&str> = label.into_iter().filter(|part| !part.is_empty()).collect();
            let cells: Vec<String> = (0..names.len())
                .map(|road| entry(set, road, &verdicts))
                .collect();
            let _ = writeln!(
                text,
                "| {} | {} |",
                cell_text(&label.join(", ")),
                cells.join(" | ")
            );
            for (road, cell) in set.on_roads() {
                let remarks = remarks(cell).into_iter();
                notes.extend(remarks.map(|remark| {
                    cell_text(&format!(
                        "{} on {}: {remark}",
                        label.join(", "),
                        results.roads[road].name
                    ))
                }));
            }
        }
    }
    let _ = writeln!(
        text,
        "\nThe median of the trials, the typical ratio (above 1 is better, whether more or less is) of a road of Millrace to the kernel's \
         in the same place, and of any other to {}, with its verdict; the smallest and the largest trial; processor time of server and \
         client for each operation; of Millrace's roads, the share of bytes by shared memory.",
        cell_text(baseline(results)),
    );
    if !verdicts.0.rows.is_empty() {
        let _ = write!(text, "\n{}", verdicts.0.markdown());
    }
    for note in results
        .warnings
        .iter()
        .map(|warning| cell_text(warning))
        .chain(notes)
    {
        let _ = write!(text, "\n- {note}");
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn entry(set: &Set<'_>, road: usize, verdicts: &Verdicts) -> String {
    let Some(cell) = set.cells[road] else {
        return "not measured".to_owned();
    };
    let Some(of_road) = figure(cell) else {
        return "no trial counts".to_owned();
    };
    let mut text = show(cell.unit, of_road.median);
    let row = verdicts.of_cell(cell).next();
    if let Some((row, (ratio, _))) = row.and_then(|row| Some((row, turned(row)?))) {
        let _ = write!(text, ", **{}**", figures::ratio(ratio));
        text.extend(word(row).map(|word| format!(" {word}")));
    }
    let _ = write!(
        text,
        " ({})",
        show_range(cell.unit, of_road.min, of_road.max)
    );
    if let Some(split) = split(cell) {
        let _ = write!(text, ", {}", split.show(split.own()));
    }
    text.extend(show_ring_share(cell).map(|ring| format!(", {ring}")));
    text
}

/// Text as it stands in a table: nothing in it is Markdown or HTML.
pub(super) fn cell_text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => escaped.push(' '),
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' => escaped.extend(['\\', character]),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// All trials; see [`super::csv`].
pub(super) fn csv(results: &Results) -> String {
    let parameters: BTreeSet<&String> = results
        .cells
        .iter()
        .flat_map(|cell| cell.parameters.keys())
        .collect();
    let trials = results.cells.iter().flat_map(|cell| &cell.trials);
    let programs: BTreeSet<&String> = trials.flat_map(|trial| trial.commands.keys()).collect();
    let mut names: Vec<String> = ["scenario", "road"].map(str::to_owned).to_vec();
    names.extend(parameters.iter().map(|name| (*name).clone()));
    names.extend(FIELDS_OF_CELL.map(str::to_owned));
    names.extend(FIELDS.map(str::to_owned));
    names.extend(TABLE.map(|percentile| format!("p{percentile}_ns")));
    names.push("notes".to_owned());
    names.extend(programs.iter().map(|program| format!("command_{program}")));
    let mut text = line(&names);
    let verdicts = Verdicts::of(results);
    for cell in &results.cells {
        let judged = of_cell(cell, &verdicts);
        for trial in &cell.trials {
            let mut fields = vec![cell.scenario.clone(), cell.road.clone()];
            fields.extend(
                parameters
                    .iter()
                    .map(|name| told(cell.parameters.get(*name))),
            );
            fields.extend(judged.clone());
            fields.extend(of_trial(cell.unit, trial));
            fields.extend(
                programs
                    .iter()
                    .map(|program| told(trial.commands.get(*program))),
            );
            text.push_str(&line(&fields));
        }
    }
    text
}

/// Names of what [`of_cell`] tells.
const FIELDS_OF_CELL: [&str; 8] = [
    "figure",
    "against",
    "ratio",
    "ratio_low",
    "ratio_high",
    "ratio_level",
    "pairs",
    "verdict",
];

/// What its figure is, and what is said of it by the road that it is held against first.
/// The ratio is this road over the other, whichever way is better.
fn of_cell(cell: &Cell, verdicts: &Verdicts) -> [String; 8] {
    let row = verdicts.of_cell(cell).next();
    let found = row.and_then(|row| row.compared.as_ref());
    let interval = found.map(|found| found.interval);
    [
        cell.figure.clone(),
        told(row.map(|row| &row.baseline_road)),
        told(found.map(|found| found.ratio)),
        told(interval.map(|interval| interval.low)),
        told(interval.map(|interval| interval.high)),
        told(interval.map(|interval| interval.level)),
        told(found.map(|found| found.pairs)),
        told(row.and_then(word)),
    ]
}

/// Names of what [`of_trial`] tells, up to percentiles and notes.
const FIELDS: [&str; 38] = [
    "round",
    "outcome",
    "reason",
    "unit",
    "value",
    "operations",
    "seconds",
    "server_user_s",
    "server_system_s",
    "client_user_s",
    "client_system_s",
    "softirq_s",
    "steal_s",
    "busy_s",
    "others_s",
    "line_ns",
    "slowest_mhz",
    "fastest_mhz",
    "slowed_for_heat",
    "ring_share",
    "ready_per_wake",
    "server_ready_per_wake",
    "latency_count",
    "latency_min_ns",
    "latency_max_ns",
    "latency_mean_ns",
    "latency_deviation_ns",
    "clock_offset_ns",
    "clock_error_ns",
    "clock_drift_ppm",
    "idle_connections",
    "idle_server_processor_s",
    "idle_client_processor_s",
    "idle_agent_processor_s",
    "idle_server_memory_bytes",
    "idle_client_memory_bytes",
    "idle_agent_memory_bytes",
    "idle_kernel_memory_bytes",
];

fn of_trial(unit: Unit, trial: &Trial) -> Vec<String> {
    let (outcome, reason) = match &trial.outcome {
        Outcome::Counts => ("counts", ""),
        Outcome::Void(reason) => ("void", reason.as_str()),
        Outcome::Failed(reason) => ("failed", reason.as_str()),
    };
    let unit = match unit {
        Unit::OperationsPerSecond => "operations_per_second",
        Unit::BitsPerSecond => "bits_per_second",
        Unit::Nanoseconds => "nanoseconds",
        Unit::ProcessorShare => "processor_share",
        Unit::Bytes => "bytes",
    };
    let (took, latency) = (&trial.processor, trial.latency.as_ref());
    let mut fields = vec![
        trial.round.to_string(),
        outcome.to_owned(),
        reason.to_owned(),
        unit.to_owned(),
    ];
    fields.extend([trial.value, trial.operations, trial.seconds].map(|value| value.to_string()));
    let processor = [
        took.server_user_s,
        took.server_system_s,
        took.client_user_s,
        took.client_system_s,
        took.softirq_s,
        took.steal_s,
        took.busy_s,
        took.others_s,
    ];
    fields.extend(processor.map(|seconds| seconds.to_string()));
    fields.push(told(took.line_ns));
    fields.extend([0, 1].map(|end| told(took.megahertz.map(|speeds| speeds[end]))));
    fields.push(took.slowed_for_heat.to_string());
    fields.push(told(trial.ring_share));
    fields.extend([trial.ready_per_wake, trial.server_ready_per_wake].map(told));
    fields.extend([
        told(latency.map(|latency| latency.count)),
        told(latency.map(|latency| latency.min_ns)),
        told(latency.map(|latency| latency.max_ns)),
        told(latency.map(|latency| latency.mean_ns)),
        told(latency.map(|latency| latency.deviation_ns)),
    ]);
    let clocks = trial.clocks.as_ref();
    let offset = |clocks: &Clocks| clocks.before.map_or(0, |before| before.offset_ns);
    fields.extend([
        told(clocks.map(offset)),
        told(clocks.map(Clocks::error_ns)),
        told(clocks.map(|clocks| clocks.drift_ppm)),
    ]);
    fields.extend(of_silence(trial.idle.as_ref()));
    let at = |wanted: f64| {
        let latency = latency.filter(|latency| is_carried(latency.count, wanted))?;
        let mut pairs = latency.percentiles.iter();
        pairs
            .find(|(percentile, _)| (percentile - wanted).abs() < 1e-9)
            .map(|(_, ns)| *ns)
    };
    fields.extend(TABLE.map(|percentile| told(at(percentile))));
    fields.push(trial.notes.join("; "));
    fields
}

/// What silent connections cost, and whom.
fn of_silence(idle: Option<&Idle>) -> [String; 8] {
    let shares = idle.map(|idle| [&idle.server, &idle.client, &idle.agent]);
    let processor = |end: usize| told(shares.map(|shares| shares[end].processor_s));
    let memory = |end: usize| told(shares.map(|shares| shares[end].memory_bytes));
    [
        told(idle.map(|idle| idle.connections)),
        processor(0),
        processor(1),
        processor(2),
        memory(0),
        memory(1),
        memory(2),
        told(idle.and_then(|idle| idle.kernel_bytes)),
    ]
}

fn told(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Fields as RFC 4180 has them, but with the line's end of Unix. What a spreadsheet would take for a formula gets an apostrophe.
fn line(fields: &[String]) -> String {
    let fields: Vec<String> = fields.iter().map(|field| csv_field(field)).collect();
    fields.join(",") + "\n"
}

fn csv_field(field: &str) -> String {
    let formula =
        field.starts_with(['=', '+', '-', '@', '\t', '\r']) && field.parse::<f64>().is_err();
    let field = if formula {
        format!("'{field}")
    } else {
        field.to_owned()
    };
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_fields_are_quoted_where_needed_and_no_formula() {
        let cases = [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"so\"", "\"say \"\"so\"\"\""),
            ("two\nlines", "\"two\nlines\""),
            ("=1+1", "'=1+1"),
            ("-1.5", "-1.5"),
        ];
        for (field, expected) in cases {
            assert_eq!(csv_field(field), expected);
        }
    }

    #[test]
    fn text_in_a_table_is_no_markup() {
        assert_eq!(cell_text("a|b <i>\n*c*"), "a\\|b &lt;i> \\*c\\*");
    }
}
