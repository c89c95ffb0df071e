//! Sizes of files and functions, and the list of what is allowed to be larger.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail};

use super::{File, Finding, source};

const FILE_LIMIT: usize = 500;
const FUNCTION_LIMIT: usize = 70;
const LIST: &str = "xtask/tidy-exceptions.txt";

/// Lines of a file, or of a function as `FILE::NAME`.
type Sizes = BTreeMap<String, usize>;

/// Everything over its limit is in the list, with its size of today.
pub(super) fn check(files: &[File]) -> Result<Vec<Finding>> {
    let text = fs::read_to_string(LIST).context(LIST)?;
    Ok(compare(&oversized(files), &parse(&text)?))
}

/// Takes what has shrunk out of the list, or lowers its figure.
pub(super) fn shrink(files: &[File]) -> Result<()> {
    let sizes = oversized(files);
    let text = fs::read_to_string(LIST).context(LIST)?;
    let mut new = String::new();
    for line in text.lines() {
        if let Some((what, listed, reason)) = parse_line(line)? {
            let Some(size) = sizes.get(what) else {
                continue;
            };
            new.push_str(&format!("{what} {} {reason}\n", listed.min(*size)));
        } else {
            new.push_str(&format!("{line}\n"));
        }
    }
    fs::write(LIST, new).context(LIST)
}

fn oversized(files: &[File]) -> Sizes {
    let mut sizes = Sizes::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        let lines = file.text.lines().count();
        if lines > FILE_LIMIT {
            sizes.insert(file.path.clone(), lines);
        }
        for function in source::functions(&file.text) {
            if function.lines > FUNCTION_LIMIT {
                let size = sizes
                    .entry(format!("{}::{}", file.path, function.name))
                    .or_default();
                *size = function.lines.max(*size);
            }
        }
    }
    sizes
}

fn parse(text: &str) -> Result<Sizes> {
    let mut sizes = Sizes::new();
    for line in text.lines() {
        if let Some((what, size, _)) = parse_line(line)? {
            sizes.insert(what.to_owned(), size);
        }
    }
    Ok(sizes)
}

/// `WHAT LINES REASON`; `None` for comments and empty lines.
fn parse_line(line: &str) -> Result<Option<(&str, usize, &str)>> {
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut words = line.splitn(3, ' ');
    let (Some(what), Some(size), Some(reason)) = (words.next(), words.next(), words.next()) else {
        bail!("{LIST}: a line is WHAT LINES REASON, not: {line}");
    };
    let size = size
        .parse()
        .with_context(|| format!("{LIST}: not a number of lines: {line}"))?;
    Ok(Some((what, size, reason)))
}

fn compare(sizes: &Sizes, listed: &Sizes) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (what, &size) in sizes {
        let path = what.split("::").next().unwrap_or(what);
        let limit = if what.contains("::") {
            FUNCTION_LIMIT
        } else {
            FILE_LIMIT
        };
        match listed.get(what) {
            None => {
                let text = format!("{what} has {size} lines; {limit} are the limit");
                findings.push(Finding::new(path, 0, text));
            }
            Some(&allowed) if size > allowed => {
                let text = format!("{what} has grown to {size} lines, from {allowed}");
                findings.push(Finding::new(path, 0, text));
            }
            Some(_) => {}
        }
    }
    for (what, &allowed) in listed {
        if sizes.get(what).is_none_or(|&size| size < allowed) {
            let text = format!("{what} has shrunk: run `cargo xtask tidy --shrink`");
            findings.push(Finding::new(LIST, 0, text));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(entries: &[(&str, usize)]) -> Sizes {
        entries
            .iter()
            .map(|&(what, size)| (what.to_owned(), size))
            .collect()
    }

    #[test]
    fn the_list_can_only_shrink() {
        let today = sizes(&[("a.rs", 600), ("b.rs::long", 80)]);
        let findings = |listed: &[(&str, usize)]| compare(&today, &sizes(listed)).len();
        assert_eq!(findings(&[("a.rs", 600), ("b.rs::long", 80)]), 0);
        assert_eq!(findings(&[("a.rs", 600)]), 1);
        assert_eq!(findings(&[("a.rs", 599), ("b.rs::long", 80)]), 1);
        assert_eq!(findings(&[("a.rs", 601), ("b.rs::long", 80)]), 1);
        assert_eq!(
            findings(&[("a.rs", 600), ("b.rs::long", 80), ("gone.rs", 501)]),
            1
        );
    }

    #[test]
    fn every_exception_has_a_reason() {
        assert!(parse("# comment\n\na.rs 600 a table\n").is_ok());
        assert!(parse("a.rs 600\n").is_err());
    }
}
