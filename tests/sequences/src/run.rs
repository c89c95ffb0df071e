//! Running a plan on a road, and comparing what two roads showed.

use crate::plan::Plan;
use crate::play::HANG;
use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A run that has not ended by itself after this long is killed.
const LIMIT: Duration = Duration::from_secs(40);

/// How programs are started: with nothing before them, or with a command that runs them under something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Road {
    prefix: Vec<String>,
}

impl Road {
    /// The road on which a command prefix puts a program; the plain one for an empty prefix.
    pub(crate) fn new(prefix: &str) -> Self {
        Road {
            prefix: prefix.split_whitespace().map(str::to_string).collect(),
        }
    }

    fn command(&self) -> Result<Command> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = match self.prefix.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.arg("play");
        Ok(command)
    }

    /// Plays a plan, and returns its trace: what it wrote, line by line, and how it ended where that was not well.
    pub(crate) fn run(&self, plan: &Plan) -> Result<Vec<String>> {
        let plan_bytes = serde_json::to_vec(plan)?;
        let mut child = self
            .command()?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {:?}", self.prefix))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that ends without reading its plan tells so by its status.
            let _ = stdin.write_all(&plan_bytes);
        }
        let (output, errors, in_time) = read_all(&mut child, Instant::now() + LIMIT)?;
        if !in_time {
            kill_group(&child);
        }
        let status = child.wait()?;
        let mut trace: Vec<String> = output.lines().map(str::to_string).collect();
        trace.extend(errors.lines().map(|line| format!("stderr: {line}")));
        if !in_time {
            trace.push(format!("{HANG}: the controller does not end"));
        } else if let Some(signal) = status.signal() {
            trace.push(format!("the controller died of signal {signal}"));
        } else if !status.success() {
            trace.push(format!("the controller ended with {status}"));
        }
        Ok(trace)
    }
}

/// Kills everything that the child started.
fn kill_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended this instant.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Reads both outputs to their ends; false when the deadline came first.
fn read_all(child: &mut Child, deadline: Instant) -> Result<(String, String, bool)> {
    let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
        return Ok(Default::default());
    };
    let mut texts = [Vec::new(), Vec::new()];
    let mut open = [true, true];
    let mut in_time = true;
    while in_time && open != [false, false] {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs())?,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let ready = {
            let mut items = Vec::new();
            if open[0] {
                items.push(PollFd::new(&out, PollFlags::IN));
            }
            if open[1] {
                items.push(PollFd::new(&err, PollFlags::IN));
            }
            in_time = poll(&mut items, Some(&timeout))? > 0;
            let mut ready = items.iter().map(|item| !item.revents().is_empty());
            open.map(|open| open && ready.next().unwrap_or(false))
        };
        if ready[0] {
            open[0] = read_some(&mut out, &mut texts[0])?;
        }
        if ready[1] {
            open[1] = read_some(&mut err, &mut texts[1])?;
        }
    }
    let [out, err] = texts.map(|text| String::from_utf8_lossy(&text).into_owned());
    Ok((out, err, in_time))
}

/// Reads what is there; false at the end.
fn read_some(from: &mut impl Read, into: &mut Vec<u8>) -> Result<bool> {
    let mut buffer = [0; 16_384];
    let bytes = from.read(&mut buffer)?;
    into.extend_from_slice(&buffer[..bytes]);
    Ok(bytes > 0)
}

/// The first line where two traces differ.
#[derive(Debug, PartialEq)]
pub(crate) struct Difference {
    /// The lines just before, which are the same.
    pub(crate) before: Vec<String>,
    pub(crate) plain: String,
    pub(crate) under: String,
}

/// Compares two traces.
pub(crate) fn compare(plain: &[String], under: &[String]) -> Option<Difference> {
    let missing = || "(the end)".to_string();
    let length = plain.len().max(under.len());
    let index = (0..length).find(|index| plain.get(*index) != under.get(*index))?;
    Some(Difference {
        before: plain[index.saturating_sub(6)..index].to_vec(),
        plain: plain.get(index).cloned().unwrap_or_else(missing),
        under: under.get(index).cloned().unwrap_or_else(missing),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_string).collect()
    }

    #[test]
    fn the_first_difference_is_found_with_what_came_before() {
        let difference = compare(&lines("a\nb\nc"), &lines("a\nx\nc"));
        let expected = Difference {
            before: lines("a"),
            plain: "b".into(),
            under: "x".into(),
        };
        assert_eq!(difference, Some(expected));
    }

    #[test]
    fn a_trace_that_ends_early_differs() {
        let difference = compare(&lines("a\nb"), &lines("a"));
        assert_eq!(
            difference.map(|found| found.under),
            Some("(the end)".into())
        );
        assert_eq!(compare(&lines("a"), &lines("a")), None);
    }
}
