//! Sequences that failed once, kept as tests: seeds with a reason in `seeds.txt`, and whole plans in `kept/`.
//! A seed means another sequence when the generator changes; a plan stays what it is.

use crate::drive::Source;
use crate::generate::generate;
use crate::plan::Plan;
use anyhow::{Context as _, Result};
use std::path::Path;
use std::sync::Mutex;

/// Kept plans, with their names.
pub(crate) struct Kept {
    plans: Mutex<Vec<(String, Plan)>>,
}

impl Kept {
    /// Reads all that is kept in a folder.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let mut plans = Vec::new();
        let file = folder.join("seeds.txt");
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some(word) = line.split_whitespace().next() else {
                continue;
            };
            let seed = word
                .parse()
                .with_context(|| format!("{word} in {}", file.display()))?;
            plans.push((word.to_string(), generate(seed, &[])));
        }
        if let Ok(entries) = std::fs::read_dir(folder.join("kept")) {
            for entry in entries {
                let path = entry?.path();
                if path
                    .extension()
                    .is_some_and(|extension| extension == "json")
                {
                    plans.push((path.display().to_string(), read_plan(&path)?));
                }
            }
        }
        plans.sort_by(|left, right| left.0.cmp(&right.0));
        Ok(Kept {
            plans: Mutex::new(plans),
        })
    }
}

/// Reads a plan from a file.
pub(crate) fn read_plan(path: &Path) -> Result<Plan> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

impl Source for Kept {
    fn next(&self) -> Option<(String, Plan)> {
        self.plans.lock().ok()?.pop()
    }
}
