//! Measured figures in documents: tables of them are made of results, and not typed.
//!
//! A *measured figure* is a rate (`16.7 k/s`, `41 Gb/s`), a time that is no round number (`31.6 µs`), or a ratio (`1.07×`). Settings and
//! limits, as `50 µs` or `64 MiB`, are none. A table with two of them has to stand between the marks of [`bench::MARK`]. What the marks say
//! is checked against the results by [`bench::stale`].

use super::documents::prose;
use super::{File, Finding};
use crate::bench;

/// Documents that other programs write.
const WRITTEN_BY_PROGRAMS: &str = "docs/results/";
/// So many figures make a table one of figures.
const FIGURES: usize = 2;

pub(super) fn check(files: &[File]) -> Vec<Finding> {
    let documents = files
        .iter()
        .filter(|file| file.path.ends_with(".md") && !file.path.starts_with(WRITTEN_BY_PROGRAMS));
    documents
        .flat_map(|file| [typed(file), unknown_marks(file)].concat())
        .collect()
}

/// Tables of figures outside of marks, by the line of their first figure.
fn typed(file: &File) -> Vec<Finding> {
    let (mut findings, mut is_made) = (Vec::new(), false);
    let (mut begin, mut found) = (0, 0);
    let mut end_of_table = |begin: usize, found: usize| {
        if found >= FIGURES {
            let what = "a table of measured figures that is not made of results: see xtask/src/bench/documents.rs";
            findings.push(Finding::new(&file.path, begin, what));
        }
    };
    for (number, line) in prose(&file.text) {
        is_made = (is_made || line.starts_with(bench::MARK)) && line != bench::END;
        if line.starts_with('|') && !is_made {
            begin = if found == 0 { number } else { begin };
            found += line
                .split_whitespace()
                .zip(after(line))
                .filter(is_figure)
                .count();
        } else {
            end_of_table(begin, found);
            found = 0;
        }
    }
    end_of_table(begin, found);
    findings
}

/// The words of a line without its first; an empty one for the last.
fn after(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace().skip(1).chain([""])
}

/// Whether a word, with the next one, is a measured figure.
fn is_figure((word, next): &(&str, &str)) -> bool {
    let bare = |text: &str| {
        text.trim_matches(|c: char| !c.is_alphanumeric() && c != '×' && c != '.')
            .to_owned()
    };
    let (word, unit) = (bare(word), bare(next));
    let number = |text: &str| {
        text.parse::<f64>()
            .ok()
            .filter(|_| text.starts_with(|c: char| c.is_ascii_digit()))
    };
    if let Some(factor) = word.strip_suffix('×') {
        return number(factor).is_some() && factor.contains('.');
    }
    let is_rate = |unit: &str| {
        matches!(
            unit,
            "k/s" | "M/s" | "G/s" | "kb/s" | "Mb/s" | "Gb/s" | "Tb/s"
        )
    };
    match unit.as_str() {
        unit if is_rate(unit) => number(&word).is_some(),
        "ns" | "µs" | "ms" | "×" => number(&word).is_some() && word.contains('.'),
        _ => false,
    }
}

/// Marks in documents that are not made anew.
fn unknown_marks(file: &File) -> Vec<Finding> {
    let is_known = bench::DOCUMENTS.contains(&file.path.as_str());
    let mut lines = (1..).zip(file.text.lines());
    let mark = lines.find(|(_, line)| line.starts_with(bench::MARK));
    let unknown = mark.filter(|_| !is_known).map(|(number, _)| {
        let what = "what is made here is never made anew: the document is not among DOCUMENTS of xtask/src/bench/documents.rs";
        Finding::new(&file.path, number, what)
    });
    unknown.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    const TABLE: &str =
        "| | kernel | ours |\n|---|---|---|\n| redis | 16.7 k/s | **809 k/s** (790–820) |\n";

    #[test]
    fn a_table_of_figures_has_to_be_made_of_results() {
        let lines = |text: &str| -> Vec<usize> {
            let found = typed(&file("docs/a.md", text));
            found.iter().map(|finding| finding.line).collect()
        };
        assert_eq!(lines(&format!("# A\n\n{TABLE}\nmore\n")), [5]);
        assert_eq!(lines(&format!("# A\n\n{TABLE}")), [5]);
        let made = format!("# A\n{}: all -->\n\n{TABLE}\n{}\n", bench::MARK, bench::END);
        assert_eq!(lines(&made), [0; 0]);
        // What stands behind the end of a mark is typed again; the next table is another one.
        assert_eq!(lines(&format!("{made}\n{TABLE}\n{TABLE}")), [12, 16]);
        let settings = "| spin | 50 µs, 10 ms at most |\n| ring | 64 KiB, 2 MiB | 0.95 | 30 s |\n";
        assert_eq!(lines(settings), [0; 0]);
        assert_eq!(
            lines("| a | 1.07 × (1.05 to 1.09) | 1.90 to 2.34 ms |\n"),
            [1]
        );
        assert_eq!(lines("| a | 142× (44.3× … 180×) |\n| b | 0.96× |\n"), [1]);
        assert_eq!(lines("    | a | 16.7 k/s | 809 k/s |\n"), [0; 0]);
    }

    #[test]
    fn a_mark_that_nobody_follows_is_told() {
        let text = format!("# A\n\n{}: all -->\n", bench::MARK);
        assert_eq!(unknown_marks(&file("docs/other.md", &text)).len(), 1);
        assert!(unknown_marks(&file("README.md", &text)).is_empty());
    }
}
