//! Measured rows as tables for people: aligned, so that a terminal and a Markdown reader both show them.

use millrace_bench::compare;
use millrace_bench::figures::{self, NOTHING};
use millrace_bench::markdown;
use millrace_bench::results::{Trial, Unit};
use millrace_bench::stats::{Interval, Settings};

use super::measured::{Figure, Measured, VALUE};
use super::rows::Bar;

/// A line of a command has no more.
const COMMAND_COLUMNS: usize = 120;

/// Workload, both columns, the ratio, and what both cost in processor time.
pub(crate) fn short(rows: &[Measured]) -> String {
    let titles = [
        "workload",
        "kernel",
        "Millrace",
        "ratio",
        "processor time per operation: kernel",
        "Millrace",
    ];
    table(&titles, rows, |row| {
        let [kernel, ours] = [0, 1].map(|side| figure(row, side));
        let [kernel_time, our_time] = [0, 1].map(|side| nanoseconds(row, side, processor));
        let title = row.row.title.to_owned();
        let ratio = figures::ratio(row.ratio());
        vec![title, kernel, ours, ratio, kernel_time, our_time]
    })
}

/// What the README shows.
pub(super) fn readme(rows: &[Measured]) -> String {
    let shown = rows.iter().filter(|row| !row.row.short.is_empty());
    table(&["workload", "kernel", "Millrace", ""], shown, |row| {
        let [kernel, ours] = [0, 1].map(|side| figure(row, side));
        vec![row.row.short.to_owned(), kernel, ours, gain(row)]
    })
}

/// What is promised, and what was measured of it.
pub(super) fn promises(rows: &[Measured]) -> String {
    let titles = ["workload", "must", "aim", "measured as", "shown"];
    let promised = rows.iter().filter(|row| row.row.must.is_some());
    table(&titles, promised, |row| {
        let absolute = matches!(row.row.aim, Some(Bar::AtLeast(_) | Bar::Below(_)));
        let mut shown = match row.row.must {
            Some(Bar::Below(_)) => figure(row, 1),
            _ if absolute => format!("{}, {}", gain(row), figure(row, 1)),
            _ => gain(row),
        };
        if row.row.tail.is_some() {
            shown += &format!(", {}", tail(row));
        }
        if row.passes() == Some(false) {
            shown = format!("**{shown}**");
        }
        let measured = format!("`{}`", row.row.sides[0].scenario);
        vec![
            row.row.title.to_owned(),
            must(row),
            aim(row),
            measured,
            shown,
        ]
    })
}

/// Every row with intervals and bars.
pub(super) fn all(rows: &[Measured]) -> String {
    let titles = [
        "workload",
        "baseline",
        "Millrace",
        "ratio",
        "verdict",
        "must",
        "aim",
        "reached",
        "on the ring",
    ];
    table(&titles, rows, |row| {
        let reached = match (row.passes(), row.row.aim) {
            (None, _) => NOTHING,
            (Some(false), _) => "**no**",
            (Some(true), Some(aim)) if row.reaches(aim) => "aim",
            (Some(true), _) => "yes",
        };
        vec![
            row.row.title.to_owned(),
            interval(row, 0),
            interval(row, 1),
            ratio(row),
            compare::verdict_word(row.verdict(), row.unit).to_owned(),
            must(row),
            aim(row),
            reached.to_owned(),
            percent(row.median(1, |trial| trial.ring_share)),
        ]
    })
}

/// Percentiles of the round trips, and processor time per operation of server and client.
pub(super) fn costs(rows: &[Measured]) -> String {
    let titles = [
        "workload",
        "p50 baseline",
        "p50 Millrace",
        "p99 baseline",
        "p99 Millrace",
        "p99.9 baseline",
        "p99.9 Millrace",
        "processor baseline",
        "processor Millrace",
    ];
    table(&titles, rows, |row| {
        let mut line = vec![row.row.title.to_owned()];
        for wanted in [50.0, 99.0, 99.9] {
            let time = |side| figures::show(Unit::Nanoseconds, row.percentile(side, wanted));
            line.extend([0, 1].map(time));
        }
        line.extend([0, 1].map(|side| {
            let [server, client] =
                [server_time, client_time].map(|figure| nanoseconds(row, side, figure));
            if server == NOTHING {
                server
            } else {
                format!("{server} + {client}")
            }
        }));
        line
    })
}

/// What was run on the baseline.
pub(super) fn commands(rows: &[Measured]) -> String {
    let mut lines = vec![
        ["workload", "program", "command"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for row in rows {
        let Some([baseline, _]) = row.pairs.first() else {
            continue;
        };
        for (program, command) in &baseline.commands {
            let command = format!("`{}`", command.replace('|', "\\|"));
            lines.push(vec![row.row.title.to_owned(), program.clone(), command]);
        }
    }
    markdown::table(&lines)
}

/// Which rows miss their bars, and by what.
pub(super) fn shortcomings(rows: &[Measured]) -> String {
    let mut text = String::new();
    for row in rows {
        if row.passes() == Some(false) && !row.pairs.is_empty() {
            text += &item(&format!("{}: {}", row.row.title, shortcoming(row)));
        }
        for failure in &row.failures {
            text += &item(&format!("{}: a trial failed: {failure}", row.row.title));
        }
    }
    if text.is_empty() {
        "Everything reaches it.\n".to_owned()
    } else {
        text
    }
}

fn shortcoming(row: &Measured) -> String {
    let mut parts = Vec::new();
    if let Some(must) = row.row.must.filter(|&bar| !row.reaches(bar)) {
        let bar = must.show(row.unit);
        parts.push(format!(
            "{}, {}, where it must be {bar}",
            figure(row, 1),
            gain(row)
        ));
    }
    if let Some(times) = row.row.tail.filter(|_| !row.reaches_tail()) {
        parts.push(format!("{}, where it must be {times}×", tail(row)));
    }
    parts.join("; ")
}

/// How many times lower the slowest of a thousand round trips is.
fn tail(row: &Measured) -> String {
    match row.tail_ratio() {
        ratio if ratio.is_finite() => format!("p99.9 {} lower", figures::ratio(ratio)),
        _ => "p99.9 not known".to_owned(),
    }
}

/// An item of a list, in lines of a document's width.
pub(super) fn item(text: &str) -> String {
    fold("-", "\n ", text)
}

/// A command line as a block of code, in as many lines as it needs.
pub(super) fn command(words: &[String]) -> String {
    let (mut text, mut width) = ("    millrace".to_owned(), "    millrace".len());
    for word in words {
        if width + 1 + word.len() > COMMAND_COLUMNS {
            text += " \\\n       ";
            width = 7;
        }
        text += " ";
        text += word;
        width += 1 + word.len();
    }
    text + "\n"
}

/// A paragraph in such lines.
pub(super) fn folded(text: &str) -> String {
    fold("", "\n", text).trim_start().to_owned()
}

/// Words after a beginning; where a line is full, a new one.
fn fold(beginning: &str, new_line: &str, text: &str) -> String {
    const WIDTH: usize = 120;
    let (mut folded, mut width) = (beginning.to_owned(), beginning.len());
    for word in text.split(' ') {
        let more = word.chars().count() + 1;
        let is_new = width + more > WIDTH;
        if is_new {
            folded += new_line;
            width = new_line.len() - 1;
        }
        if !folded.ends_with('\n') {
            folded += " ";
        }
        folded += word;
        width += more;
    }
    folded + "\n"
}

fn table<'a, 'b: 'a>(
    titles: &[&str],
    rows: impl IntoIterator<Item = &'a Measured<'b>>,
    line: impl Fn(&Measured<'b>) -> Vec<String>,
) -> String {
    let titles = titles.iter().map(|&title| title.to_owned()).collect();
    let lines: Vec<Vec<String>> = [titles]
        .into_iter()
        .chain(rows.into_iter().map(line))
        .collect();
    markdown::table(&lines)
}

fn must(row: &Measured) -> String {
    let bar = bar(row, row.row.must);
    match row.row.tail {
        Some(tail) => format!("{bar}, p99.9 {tail}×"),
        None => bar,
    }
}

fn aim(row: &Measured) -> String {
    bar(row, row.row.aim)
}

fn bar(row: &Measured, bar: Option<Bar>) -> String {
    bar.map_or(NOTHING.to_owned(), |bar| bar.show(row.unit))
}

/// What Millrace brings: a ratio, or what it takes more.
fn gain(row: &Measured) -> String {
    match row.row.must {
        Some(Bar::LessMore(_)) if !row.pairs.is_empty() => {
            format!("{} more", figures::show(row.unit, row.difference()))
        }
        _ => ratio(row),
    }
}

fn figure(row: &Measured, side: usize) -> String {
    match row.median(side, VALUE) {
        value if value.is_nan() => "failed".to_owned(),
        value => figures::show(row.unit, value),
    }
}

/// Median, least and greatest of a side's trials.
fn interval(row: &Measured, side: usize) -> String {
    let (low, high) = range(&row.all(side, VALUE));
    let [low, high] = [low, high].map(|value| figures::show(row.unit, value));
    format!("{} ({low} … {high})", figure(row, side))
}

/// The typical ratio of a round, and where the true one is; with the level of that where it is not 95 %.
fn ratio(row: &Measured) -> String {
    let Some(interval) = row.interval() else {
        return NOTHING.to_owned();
    };
    paired(row.ratio(), interval)
}

/// A ratio with its interval.
pub(super) fn paired(ratio: f64, interval: Interval) -> String {
    let [ratio, low, high] = [ratio, interval.low, interval.high].map(figures::ratio);
    match interval.level {
        0.0 => ratio,
        level if level < Settings::default().level => {
            format!("{ratio} ({low} … {high}, {:.0} %)", level * 100.0)
        }
        _ => format!("{ratio} ({low} … {high})"),
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::NAN, f64::min);
    let high = values.iter().copied().fold(f64::NAN, f64::max);
    (low, high)
}

fn percent(share: f64) -> String {
    if share.is_nan() {
        NOTHING.to_owned()
    } else {
        format!("{:.1} %", share * 100.0)
    }
}

fn nanoseconds(row: &Measured, side: usize, figure: Figure) -> String {
    figures::show(Unit::Nanoseconds, row.median(side, figure))
}

/// Processor time per operation of both ends in nanoseconds.
fn processor(trial: &Trial) -> Option<f64> {
    Some(server_time(trial)? + client_time(trial)?)
}

fn server_time(trial: &Trial) -> Option<f64> {
    let spent = trial.processor;
    each(trial, spent.server_user_s + spent.server_system_s)
}

fn client_time(trial: &Trial) -> Option<f64> {
    let spent = trial.processor;
    each(trial, spent.client_user_s + spent.client_system_s)
}

fn each(trial: &Trial, seconds: f64) -> Option<f64> {
    (trial.operations > 0.0).then(|| seconds * 1e9 / trial.operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_item_is_folded_between_words_and_nothing_is_lost() {
        let text = "word ".repeat(60);
        let item = item(text.trim());
        assert!(item.lines().count() == 3 && item.lines().all(|line| line.len() <= 120));
        assert!(item.starts_with("- word word") && item.ends_with("\n"));
        assert_eq!(item.split_whitespace().count(), 61);
    }
}
