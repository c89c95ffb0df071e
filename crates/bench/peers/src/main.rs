//! Channels and what they are measured against, behind one trait each for the sending and the receiving end: the crate iceoryx2, a Unix
//! socket that keeps the bounds of messages, a pipe; and as references a bare ring, a cache line, and an eventfd with epoll.
//!
//! `serve` is one side of all trials, `ask` the other side of one; `millrace bench run channels` calls both, and `all` does where there is
//! nothing but this program. Reading order: `trial` (what is asked), `transport` (the traits, and a file for each way), `workload` (the
//! loops that are measured), `serve` and `ask` (the processes), `table`.

mod ask;
mod clock;
mod head;
mod line;
mod options;
mod outcome;
mod request;
mod ring;
mod serve;
mod sys;
mod table;
mod transport;
mod trial;
mod workload;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::options::Command;

fn main() -> ExitCode {
    match options::read().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("millrace-peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}

fn run(command: Command) -> Result<()> {
    let mut out = io::stdout();
    match command {
        Command::Help => write!(out, "{}", options::HELP)?,
        Command::Version => writeln!(
            out,
            "millrace-peers {}, iceoryx2 {}",
            env!("CARGO_PKG_VERSION"),
            iceoryx2_version()
        )?,
        Command::List => {
            for kind in transport::ALL {
                let workloads: Vec<&str> = kind
                    .workloads
                    .iter()
                    .map(|workload| workload.name())
                    .collect();
                writeln!(
                    out,
                    "{:10}  {}\n{:10}  {}",
                    kind.name,
                    kind.about,
                    "",
                    workloads.join(", ")
                )?;
            }
        }
        Command::Serve { path, processor } => {
            pin(processor)?;
            serve::serve(&path)?;
        }
        Command::Ask {
            path,
            trial,
            processor,
            histogram,
        } => {
            pin(processor)?;
            let outcome = ask::ask(&path, &trial)?;
            if let Some(path) = histogram {
                outcome.write_histogram(&path)?;
            }
            writeln!(out, "{}", serde_json::to_string(&outcome)?)?;
        }
        Command::All(all) => table::all(&all)?,
    }
    Ok(())
}

/// The one that was built: of the lock file, where the line behind the name has it.
fn iceoryx2_version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let after = lock.split_once("name = \"iceoryx2\"\nversion = \"");
    after
        .and_then(|(_, rest)| rest.split('"').next())
        .unwrap_or("unknown")
}

/// Stays on one processor, and whatever it starts, too.
fn pin(processor: Option<usize>) -> Result<()> {
    let Some(processor) = processor else {
        return Ok(());
    };
    let mut only = CpuSet::new();
    only.set(processor);
    sched_setaffinity(None, &only).with_context(|| format!("processor {processor} cannot be used"))
}
