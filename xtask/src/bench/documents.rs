//! What documents say of the committed results: tables between marks, made of the newest results and never typed.
//!
//! A mark is a line `<!-- made of docs/results: NAME -->`; what it made ends with `<!-- end -->`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use millrace_bench::machine;
use millrace_bench::results::{FILE, Results};

use super::measured::{Measured, measured};
use super::rows::ROWS;
use super::tables;

/// Where results are kept, each set in a directory `sockets-DATE`.
pub(super) const RESULTS: &str = "docs/results";
/// What the names of those directories begin with.
pub(super) const SET: &str = "sockets-";
/// The fact that names the commit that was measured.
pub(super) const COMMIT: &str = "commit";
/// The documents that have marks.
const DOCUMENTS: &[&str] = &["README.md", "SPECIFICATION.md", "docs/benchmarks.md"];
const MARK: &str = "<!-- made of docs/results: ";
const END: &str = "<!-- end -->\n";

/// The newest results, and the name of their directory.
struct Source {
    name: String,
    results: Results,
}

/// Makes what the marks name anew, in every document.
pub(super) fn refresh() -> Result<()> {
    let source = Source::newest(Path::new(RESULTS))?;
    for document in DOCUMENTS {
        let text = fs::read_to_string(document).context(*document)?;
        let fresh = source.render(&text).context(*document)?;
        fs::write(document, fresh).context(*document)?;
    }
    eprintln!("Made of {}: {}", source.name, DOCUMENTS.join(", "));
    Ok(())
}

/// The documents that do not say what the newest results say, each with its reason.
pub(crate) fn stale() -> Result<Vec<(String, String)>> {
    let source = Source::newest(Path::new(RESULTS))?;
    let mut found = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(document).context(*document)?;
        let why = match source.render(&text) {
            Ok(fresh) if fresh == text => continue,
            Ok(_) => format!(
                "its figures are not those of {RESULTS}/{}: cargo xtask bench-sockets --documents",
                source.name
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

impl Source {
    fn newest(place: &Path) -> Result<Source> {
        let sets = fs::read_dir(place).context(RESULTS)?.flatten();
        let sets = sets.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let newest = sets
            .filter(|name| name.starts_with(SET) && place.join(name).join(FILE).exists())
            .max();
        let name = newest.with_context(|| format!("{RESULTS} has no {SET}DATE"))?;
        Ok(Source {
            results: Results::read(&place.join(&name))?,
            name,
        })
    }

    /// The document with everything between marks made anew.
    fn render(&self, text: &str) -> Result<String> {
        let rows = measured(&self.results, ROWS);
        let mut parts = text.split(MARK);
        let mut fresh = parts.next().unwrap_or_default().to_owned();
        ensure!(fresh != text, "it has no mark `{MARK}NAME -->`");
        for part in parts {
            let (name, rest) = part
                .split_once(" -->\n")
                .context("a mark has no end of its line")?;
            let (_, after) = rest
                .split_once(END)
                .with_context(|| format!("what is made of {name} has no end"))?;
            let made = self.part(name, &rows)?;
            fresh += &format!("{MARK}{name} -->\n\n{made}\n{END}{after}");
        }
        Ok(fresh)
    }

    fn part(&self, name: &str, rows: &[Measured]) -> Result<String> {
        Ok(match name {
            "origin" => self.origin(),
            "machine" => machine::table(&self.results.machine),
            "short" => tables::readme(rows),
            "promises" => tables::promises(rows),
            "figures" => tables::all(rows),
            "costs" => tables::costs(rows),
            "shortcomings" => tables::shortcomings(rows),
            "commands" => tables::commands(rows),
            other => anyhow::bail!("nothing is called {other}"),
        })
    }

    /// When, of what and how often was measured, and what has to be known of that.
    fn origin(&self) -> String {
        let Results { plan, started, .. } = &self.results;
        let fact = self.results.machine.iter().find(|fact| fact.name == COMMIT);
        let commit = fact.map_or("unknown", |fact| &fact.value);
        let day = started.split('T').next().unwrap_or_default();
        let (rounds, seconds) = (plan.repeats, plan.seconds);
        let mut text = format!(
            "Measured on {day}, commit {commit}, in {rounds} rounds of {seconds} s each. Every trial is in\n[{FILE}](results/{}/{FILE}).\n",
            self.name
        );
        for warning in &self.results.warnings {
            text += &format!("\n{}", tables::item(warning));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Source {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Source::newest(&root.join(RESULTS)).unwrap()
    }

    #[test]
    fn a_figure_that_was_typed_is_replaced_and_the_rest_stays() {
        let source = source();
        let text = format!("# A\n\n{MARK}short -->\ntyped\n{END}\nmore\n");
        let fresh = source.render(&text).unwrap();
        assert!(fresh.starts_with("# A\n") && fresh.ends_with("more\n"));
        assert!(!fresh.contains("typed") && fresh.contains("| redis SET 1 KiB, 1 client "));
        assert_eq!(source.render(&fresh).unwrap(), fresh);
    }

    #[test]
    fn documents_without_marks_and_unknown_marks_are_errors() {
        let source = source();
        let told = |text: &str| source.render(text).unwrap_err().to_string();
        assert!(told("# A\n").contains("no mark"));
        assert!(told(&format!("# A\n{MARK}short -->\n")).contains("has no end"));
        assert!(told(&format!("# A\n{MARK}best -->\n{END}")).contains("called best"));
    }

    #[test]
    fn every_row_has_its_cells_in_the_results() {
        let source = source();
        let rows = measured(&source.results, ROWS);
        let titles = |rows: &[Measured]| rows.iter().map(|row| row.row.title).collect::<Vec<_>>();
        let all: Vec<&str> = ROWS.iter().map(|row| row.title).collect();
        assert_eq!(titles(&rows), all);
    }
}
