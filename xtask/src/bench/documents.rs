//! What documents say of the committed results: tables between marks, made of results and never typed.
//!
//! A mark is a line `<!-- made of docs/results/SET: NAME -->`, where SET is a directory of results, or, of the newest results of
//! `bench-sockets`, `<!-- made of docs/results: NAME -->`; what it made ends with `<!-- end -->`. `tidy` refuses tables of figures
//! without one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path};

use anyhow::{Context, Result, ensure};
use millrace_bench::machine;
use millrace_bench::results::{FILE, Results};

use super::measured::{Measured, measured};
use super::rows::ROWS;
use super::{claims, sets, tables};

/// Where results are kept, each set in a directory of its own; those of `bench-sockets` in `sockets-DATE`.
pub(super) const RESULTS: &str = "docs/results";
/// What the names of those directories begin with.
pub(super) const SET: &str = "sockets-";
/// The fact that names the commit that was measured.
pub(super) const COMMIT: &str = "commit";
/// The documents that have marks.
pub(crate) const DOCUMENTS: &[&str] = &[
    "README.md",
    "SPECIFICATION.md",
    "docs/benchmarks.md",
    "docs/benchmarks-channels.md",
    "docs/benchmarks-packets.md",
    "docs/containers.md",
];
/// Before the set, if one is named, and the name of what is made.
pub(crate) const MARK: &str = "<!-- made of docs/results";
/// Its line.
pub(crate) const END: &str = "<!-- end -->";
const MARK_ENDS: &str = " -->\n";

/// Sets of results by the names of their directories, read once.
#[derive(Default)]
struct Sources(BTreeMap<String, Source>);

/// Results, and the name of their directory.
struct Source {
    name: String,
    results: Results,
}

/// Makes what the marks name anew, in every document.
pub(super) fn refresh() -> Result<()> {
    let mut sources = Sources::default();
    for document in DOCUMENTS {
        let text = fs::read_to_string(document).context(*document)?;
        let fresh = sources
            .render(Path::new(RESULTS), &text)
            .context(*document)?;
        fs::write(document, fresh).context(*document)?;
    }
    let made_of: Vec<&str> = sources.0.keys().map(String::as_str).collect();
    eprintln!("Made of {}: {}", made_of.join(", "), DOCUMENTS.join(", "));
    Ok(())
}

/// The documents that do not say what the results say, each with its reason.
pub(crate) fn stale() -> Result<Vec<(String, String)>> {
    let mut sources = Sources::default();
    let mut found = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(document).context(*document)?;
        let why = match sources.render(Path::new(RESULTS), &text) {
            Ok(fresh) if fresh == text => continue,
            Ok(_) => format!(
                "its figures are not those of {RESULTS}: cargo xtask bench-sockets --documents"
            ),
            Err(error) => format!("{error:#}"),
        };
        found.push(((*document).to_owned(), why));
    }
    Ok(found)
}

/// The report of a run that is not kept.
pub(super) fn report(results: &Results) -> String {
    let rows = measured(results, ROWS);
    [
        tables::all(&rows),
        tables::costs(&rows),
        tables::shortcomings(&rows),
    ]
    .join("\n")
}

/// The newest set of `bench-sockets`.
fn newest(place: &Path) -> Result<String> {
    let sets = fs::read_dir(place).context(RESULTS)?.flatten();
    let sets = sets.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let newest = sets
        .filter(|name| name.starts_with(SET) && place.join(name).join(FILE).exists())
        .max();
    newest.with_context(|| format!("{RESULTS} has no {SET}DATE"))
}

impl Sources {
    /// The document with everything between marks made anew, of the results in `place`.
    fn render(&mut self, place: &Path, text: &str) -> Result<String> {
        let mut parts = text.split(MARK);
        let mut fresh = parts.next().unwrap_or_default().to_owned();
        ensure!(fresh != text, "it has no mark `{MARK}: NAME -->`");
        for part in parts {
            let (mark, rest) = part
                .split_once(MARK_ENDS)
                .context("a mark has no end of its line")?;
            let (set, name) = mark
                .split_once(": ")
                .with_context(|| format!("a mark names nothing: {MARK}{mark} -->"))?;
            let (_, after) = rest
                .split_once(&format!("{END}\n"))
                .with_context(|| format!("what is made of {name} has no end"))?;
            let made = self.named(place, set)?.part(name)?;
            fresh += &format!("{MARK}{mark} -->\n\n{made}\n{END}\n{after}");
        }
        Ok(fresh)
    }

    /// The set of a mark, with the slash before its name; the newest for none.
    fn named(&mut self, place: &Path, set: &str) -> Result<&Source> {
        let name = match set.strip_prefix('/') {
            Some(name) => name.to_owned(),
            None => newest(place)?,
        };
        let is_name = |part: Component| matches!(part, Component::Normal(_));
        ensure!(
            Path::new(&name).components().all(is_name),
            "{name} is no directory in {RESULTS}"
        );
        if !self.0.contains_key(&name) {
            let results = Results::read(&place.join(&name))?;
            let source = Source {
                name: name.clone(),
                results,
            };
            self.0.insert(name.clone(), source);
        }
        Ok(&self.0[&name])
    }
}

impl Source {
    fn part(&self, name: &str) -> Result<String> {
        let rows = || measured(&self.results, ROWS);
        let of_sockets = |table: fn(&[Measured]) -> String| table(&rows());
        Ok(match name {
            "origin" => self.origin(),
            "machine" => machine::table(&self.results.machine),
            "roads" => sets::roads(&self.results),
            "pairs" => sets::pairs(&self.results),
            "channels" => claims::table(claims::CHANNELS, &self.results)?,
            "packets" => claims::table(claims::PACKETS, &self.results)?,
            "ppf" => claims::table(claims::PPF, &self.results)?,
            "scheduler" => claims::table(claims::SCHEDULER, &self.results)?,
            "short" => of_sockets(tables::readme),
            "promises" => of_sockets(tables::promises),
            "figures" => of_sockets(tables::all),
            "costs" => of_sockets(tables::costs),
            "shortcomings" => of_sockets(tables::shortcomings),
            "commands" => of_sockets(tables::commands),
            other => anyhow::bail!("nothing is called {other}"),
        })
    }

    /// When, where, of what and how often was measured, and what has to be known of that.
    fn origin(&self) -> String {
        let Results { plan, started, .. } = &self.results;
        let fact = |name: &str| {
            let fact = self.results.machine.iter().find(|fact| fact.name == name);
            fact.map_or("unknown", |fact| fact.value.as_str())
        };
        let commit = match fact(COMMIT) {
            "unknown" => String::new(),
            commit => format!(", commit {commit}"),
        };
        let day = started.split('T').next().unwrap_or_default();
        let (rounds, seconds) = (plan.repeats, plan.seconds);
        let (processor, kernel) = (fact("processor"), fact("kernel"));
        let mut text = tables::folded(&format!(
            "Measured on {day}{commit}, on {processor}, kernel {kernel}, in {rounds} rounds of {seconds} s each. Every trial is in \
             [{FILE}](results/{}/{FILE}).",
            self.name
        ));
        if let [_, words @ ..] = plan.command.as_slice()
            && !words.is_empty()
        {
            text += &format!("\n{}", tables::command(words));
        }
        if !self.results.warnings.is_empty() {
            text.push('\n');
        }
        for warning in &self.results.warnings {
            text += &tables::item(warning);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(RESULTS)
    }

    fn render(text: &str) -> Result<String> {
        Sources::default().render(&results(), text)
    }

    #[test]
    fn a_figure_that_was_typed_is_replaced_and_the_rest_stays() {
        let text = format!("# A\n\n{MARK}: short -->\ntyped\n{END}\n\nmore\n");
        let fresh = render(&text).unwrap();
        assert!(fresh.starts_with("# A\n") && fresh.ends_with("more\n"));
        assert!(!fresh.contains("typed") && fresh.contains("| redis SET 1 KiB, 1 client "));
        assert_eq!(render(&fresh).unwrap(), fresh);
    }

    #[test]
    fn documents_without_marks_and_unknown_marks_are_errors() {
        let told = |text: &str| format!("{:#}", render(text).unwrap_err());
        assert!(told("# A\n").contains("no mark"));
        assert!(told(&format!("# A\n{MARK}: short -->\n")).contains("has no end"));
        assert!(told(&format!("# A\n{MARK} -->\n{END}\n")).contains("names nothing"));
        assert!(told(&format!("# A\n{MARK}: best -->\n{END}\n")).contains("called best"));
        let nowhere = told(&format!("# A\n{MARK}/never: roads -->\n{END}\n"));
        assert!(nowhere.contains("never"), "{nowhere}");
        let outside = told(&format!("# A\n{MARK}/../results: roads -->\n{END}\n"));
        assert!(outside.contains("no directory in"), "{outside}");
    }

    #[test]
    fn a_mark_may_name_its_results() {
        let made = |name: &str| {
            let text = format!("# A\n{MARK}/containers-2026-11-25: {name} -->\n{END}\n");
            render(&text).unwrap()
        };
        let pairs = made("pairs");
        assert!(
            pairs.contains("| `redis/mix` ") && pairs.contains("| vxlan "),
            "{pairs}"
        );
        assert!(made("origin").contains("millrace bench run containers --clients 1,50"));
    }

    #[test]
    fn every_row_has_its_cells_in_the_results() {
        let place = results();
        let mut sources = Sources::default();
        let source = sources.named(&place, "").unwrap();
        let rows = measured(&source.results, ROWS);
        let titles = |rows: &[Measured]| rows.iter().map(|row| row.row.title).collect::<Vec<_>>();
        let all: Vec<&str> = ROWS.iter().map(|row| row.title).collect();
        assert_eq!(titles(&rows), all);
    }
}
