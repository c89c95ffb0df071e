//! The asking process: one trial.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::line::Line;
use crate::outcome::Outcome;
use crate::request::{self, Request};
use crate::trial::Trial;
use crate::{sys, transport};

/// Measures a trial with the process that serves at a path.
pub(crate) fn ask(path: &Path, trial: &Trial) -> Result<Outcome> {
    trial.check()?;
    let kind = transport::by_name(&trial.transport)?;
    ensure!(
        kind.workloads.contains(&trial.workload),
        "{} is not measured over {}",
        trial.workload.name(),
        kind.name
    );
    sys::end_after(trial.limit_seconds());
    let mut lines = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..trial.others {
        let (ours, other) = Line::pair()?;
        lines.push(ours);
        theirs.push(other);
    }
    let request = Request {
        trial: trial.clone(),
        parts: (kind.make)(trial)?,
        lines: theirs,
    };
    request::send(path, &request)?;
    // The others' ends are the others' alone: their closing has to be seen.
    let Request { parts, .. } = request;
    (kind.ask)(trial, parts, &mut lines)
}
