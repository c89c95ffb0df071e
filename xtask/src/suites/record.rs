//! What `test --all` has shown so far: each suite's latest run in full, committed beside the code.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::ErrorKind;

use anyhow::{Context, Result};
use millrace_bench::{machine, markdown};
use serde_json::{Map, Value, json};

use super::Outcome;
use super::list::SUITES;

const RESULTS: &str = "docs/results";
const DATA: &str = "docs/results/full.json";
const TEXT: &str = "docs/results/full.md";

/// The runs, by suite. A suite that has passed is not run again for the same tree.
pub(super) struct Record {
    /// The tree as it is: see [`tree`].
    tree: String,
    runs: Map<String, Value>,
}

impl Record {
    pub(super) fn load() -> Result<Self> {
        let (tree, runs) = (tree(), runs()?);
        Ok(Self { tree, runs })
    }

    /// The suite's outcome, when all of it passed with this tree.
    pub(super) fn passed(&self, name: &str) -> Option<Outcome> {
        let run = self.runs.get(name)?;
        let outcome = Outcome::from_json(run)?;
        (run["tree"] == self.tree.as_str() && outcome.failed == 0).then_some(outcome)
    }

    /// Writes down what a suite's run has shown, beside what other commands have written meanwhile.
    pub(super) fn store(&mut self, name: &str, outcome: &Outcome) -> Result<()> {
        self.runs = runs()?;
        if self.passed(name).is_none() {
            let mut run = outcome.to_json();
            run["tree"] = json!(self.tree);
            run["commit"] = json!(machine::commit());
            run["date"] = json!(machine::today());
            self.runs.insert(name.to_owned(), run);
        }
        fs::create_dir_all(RESULTS).context(RESULTS)?;
        fs::write(DATA, format!("{:#}\n", json!(self.runs))).context(DATA)?;
        fs::write(TEXT, self.text()).context(TEXT)
    }

    fn text(&self) -> String {
        let titles = [
            "suite", "commit", "date", "passed", "failed", "skipped", "minutes",
        ];
        let mut lines = vec![titles.map(str::to_owned).to_vec()];
        let mut figures = String::new();
        for suite in SUITES {
            let Some(run) = self.runs.get(suite.name) else {
                let cells = [suite.name, "not yet", "", "", "", "", ""];
                lines.push(cells.map(str::to_owned).to_vec());
                continue;
            };
            let outcome = Outcome::from_json(run).unwrap_or_default();
            let word = |name: &str| run[name].as_str().unwrap_or_default().to_owned();
            lines.push(vec![
                suite.name.to_owned(),
                word("commit"),
                word("date"),
                outcome.passed.to_string(),
                outcome.failed.to_string(),
                outcome.skipped.to_string(),
                outcome.seconds.div_ceil(60).to_string(),
            ]);
            for figure in &outcome.figures {
                let _ = writeln!(figures, "{}", item(&format!("{}: {figure}", suite.name)));
            }
        }
        let mut text = format!(
            "# Tests in full\n\nMade by `make test-all`: the latest run of each suite.\n\n{}\n## The machine\n\n{}",
            markdown::table(&lines),
            machine::table(&machine::facts(machine::two_processors())),
        );
        if !figures.is_empty() {
            let _ = write!(text, "\n## Figures\n\n{figures}");
        }
        text
    }
}

/// What is written down.
fn runs() -> Result<Map<String, Value>> {
    match fs::read_to_string(DATA) {
        Ok(text) => serde_json::from_str(&text).context(DATA),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Map::new()),
        Err(error) => Err(error).context(DATA),
    }
}

/// An item of a list, in lines of the usual length.
fn item(text: &str) -> String {
    let mut lines = vec![String::from("-")];
    for word in text.split(' ') {
        if lines
            .last()
            .is_some_and(|line| line.len() + word.len() >= 140)
        {
            lines.push(String::from(" "));
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.join("\n")
}

/// A name for the contents of all files that belong to the project, but for results and prose.
fn tree() -> String {
    let list = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let files = machine::capture("git", &list).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    for path in files
        .lines()
        .filter(|path| !path.starts_with(RESULTS) && !path.ends_with(".md"))
    {
        path.hash(&mut hasher);
        fs::read(path).unwrap_or_default().hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

impl Outcome {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "passed": self.passed,
            "failed": self.failed,
            "skipped": self.skipped,
            "seconds": self.seconds,
            "figures": self.figures,
        })
    }

    pub(super) fn from_json(value: &Value) -> Option<Self> {
        let number = |name: &str| value[name].as_u64();
        let figures = value["figures"].as_array()?.iter();
        Some(Self {
            passed: number("passed")?,
            failed: number("failed")?,
            skipped: number("skipped")?,
            seconds: number("seconds")?,
            figures: figures
                .filter_map(|figure| Some(figure.as_str()?.to_owned()))
                .collect(),
        })
    }
}
