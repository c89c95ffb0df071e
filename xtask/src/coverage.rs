//! `cargo xtask coverage`: which calls of programs have met which states of a connection, in `docs/coverage.md`.
//!
//! Builds the library so that it counts (`crates/preload/src/coverage.rs` says what), runs differential sequences, public suites and
//! real programs with it, and reads the file of counters that all their processes had mapped.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lexopt::prelude::{Long, ValueExt};
use millrace_bench::process::Program;
use millrace_bench::{machine, markdown};

const DIRECTORY: &str = "target/coverage";
const DOCUMENT: &str = "docs/coverage.md";
/// As `crates/preload/src/coverage.rs` has them.
/// Sequences from this seed on bring connections to the ring in the default mode.
const MIDWAY: u32 = 1_000_000_000;
const NAME_BYTES: usize = 32;
const CELLS: usize = 18;
const RECORD_BYTES: usize = NAME_BYTES + 8 * CELLS;
/// Room for more calls than there are.
const FILE_BYTES: usize = 1 << 16;
/// Modes in which sequences and suites run.
const MODES: [&str; 3] = ["eager", "default", "chaos:7"];
/// No part runs longer.
const PART_LIMIT: Duration = Duration::from_secs(3 * 3600);
const BUILD: [&str; 9] = [
    "build",
    "--profile",
    "xtask",
    "--package",
    "millrace-cli",
    "--package",
    "millrace-preload",
    "--features",
    "millrace-preload/coverage",
];

/// One call, and how often it met each state.
struct Call {
    name: String,
    counts: [u64; CELLS],
}

/// The command: `coverage [--sequences COUNT] [--units UNIT,...] [--programs NAME,...]`.
pub(crate) fn command(arguments: &mut lexopt::Parser) -> Result<()> {
    let mut seeds = 2000u32;
    let (mut units, mut programs) = ("cpython".to_owned(), String::new());
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("sequences") => seeds = arguments.value()?.parse()?,
            Long("units") => units = arguments.value()?.parse()?,
            Long("programs") => programs = arguments.value()?.parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    fs::create_dir_all(DIRECTORY).context(DIRECTORY)?;
    let directory = fs::canonicalize(DIRECTORY)?;
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(BUILD).arg("--target-dir").arg(&directory);
    Program::start("build", build, directory.join("build.log"))?.finish(PART_LIMIT)?;
    let counts = directory.join("counts");
    fs::write(&counts, vec![0; FILE_BYTES])?;
    let site = Site { directory, counts };
    let mut parts = Vec::new();
    for mode in MODES {
        parts.push(site.sequences(mode, seeds)?);
        if !units.is_empty() {
            parts.push(site.suites(mode, &units)?);
        }
    }
    parts.push(site.programs(&programs)?);
    let calls = read(&fs::read(&site.counts)?);
    ensure!(!calls.is_empty(), "no process has counted anything");
    fs::write(DOCUMENT, document(&calls, &parts)).context(DOCUMENT)?;
    println!("Written: {DOCUMENT}");
    Ok(())
}

/// Where the build, the counters and the logs are.
struct Site {
    directory: PathBuf,
    counts: PathBuf,
}

impl Site {
    fn millrace(&self) -> String {
        format!("{}/xtask/millrace", self.directory.display())
    }

    fn under(&self, mode: &str) -> String {
        format!("{} run --mode {mode} --", self.millrace())
    }

    /// Runs a part; returns its name and how it ended. Differences are for the suites to report, not for this one.
    fn run(&self, name: &str, mut command: Command) -> Result<String> {
        command.env("MILLRACE_COVERAGE", &self.counts);
        println!("{name}");
        let log = self
            .directory
            .join(format!("{}.log", name.replace([' ', ':'], "-")));
        let mut program = Program::start(name, command, log)?;
        let exit = program.wait(PART_LIMIT)?;
        let how = match exit {
            Some(exit) if exit.success => "",
            Some(_) => ", with failures",
            None => ", not to its end",
        };
        Ok(format!("{name}{how}"))
    }

    fn sequences(&self, mode: &str, seeds: u32) -> Result<String> {
        let run = self.directory.join("run");
        fs::create_dir_all(&run)?;
        let socket = run.join("agent.sock");
        let mut agent = Command::new(self.millrace());
        agent.arg("agent").arg("--socket").arg(&socket);
        let mut agent = Program::start("agent", agent, self.directory.join("agent.log"))?;
        agent.wait_until(Duration::from_secs(10), |_| socket.exists())?;
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args([
            "run",
            "--release",
            "--quiet",
            "--manifest-path",
            "tests/sequences/Cargo.toml",
        ]);
        command.args([
            "--target-dir",
            "target/sequences",
            "--",
            "--under",
            &self.under(mode),
        ]);
        let first = if mode == "default" { MIDWAY } else { 0 };
        let seeds_of_mode = format!("{first}..{}", first + seeds);
        command.args(["--seeds", &seeds_of_mode, "--jobs", "8"]);
        command.env("MILLRACE_AGENT", &socket);
        self.run(&format!("{seeds} sequences, mode {mode}"), command)
    }

    fn suites(&self, mode: &str, units: &str) -> Result<String> {
        let mut command = Command::new("tests/suites/run.py");
        let under = self.under("MODE");
        command.args([
            "--mode",
            mode,
            "--plain-runs",
            "1",
            "--confirm",
            "0",
            "--under",
            &under,
        ]);
        command
            .args(["--reuse-plain", "--results"])
            .arg(self.directory.join("suites"));
        command.args(units.split(','));
        self.run(&format!("public suites ({units}), mode {mode}"), command)
    }

    fn programs(&self, names: &str) -> Result<String> {
        let mut command = Command::new("tests/programs/run.py");
        command.args([
            "--under",
            &self.under("MODE"),
            "--modes",
            "eager",
            "--quick",
            "--results",
        ]);
        command.arg(self.directory.join("programs"));
        command
            .arg("--document")
            .arg(self.directory.join("programs.md"));
        command.args(names.split(',').filter(|name| !name.is_empty()));
        self.run("real programs, quick, mode eager", command)
    }
}

fn read(bytes: &[u8]) -> Vec<Call> {
    let records = bytes.chunks_exact(RECORD_BYTES);
    records.filter_map(parse).collect()
}

/// None: no call.
fn parse(record: &[u8]) -> Option<Call> {
    let (name, words) = record.split_at_checked(NAME_BYTES)?;
    let name = name.split(|byte| *byte == 0).next()?;
    let mut counts = [0; CELLS];
    for (count, word) in counts.iter_mut().zip(words.chunks_exact(8)) {
        *count = u64::from_ne_bytes(word.try_into().ok()?);
    }
    let name = String::from_utf8(name.to_vec()).ok()?;
    (!name.is_empty()).then_some(Call { name, counts })
}

impl Call {
    /// Roads: 0 the kernel's, 1 closed gate, 2 the ring. Manners: 0 may wait, 1 does not.
    fn fills(&self, road: usize, manner: usize) -> &[u64] {
        &self.counts[road * 6 + manner * 3..][..3]
    }

    fn total(&self, road: usize) -> u64 {
        self.counts[road * 6..][..6].iter().sum()
    }
}

fn document(calls: &[Call], parts: &[String]) -> String {
    let titles = "call, kernel, gate closed, ring empty, partly, full, empty (no wait), partly (no wait), full (no wait)";
    let mut lines = vec![titles.split(", ").map(str::to_owned).collect::<Vec<_>>()];
    for call in calls {
        let mut line = vec![
            format!("`{}`", call.name),
            call.total(0).to_string(),
            call.total(1).to_string(),
        ];
        let on_ring = call.fills(2, 0).iter().chain(call.fills(2, 1));
        line.extend(on_ring.map(u64::to_string));
        lines.push(line);
    }
    let parts: String = parts.iter().fold(String::new(), |mut text, part| {
        let _ = writeln!(text, "- {part}");
        text
    });
    let never: Vec<&str> = calls
        .iter()
        .filter(|call| call.total(2) == 0)
        .map(|call| call.name.as_str())
        .collect();
    format!(
        "# Which calls have run on the ring\n\n\
         Made by `cargo xtask coverage`, commit {}, from runs of\n\n{parts}\n\
         A call is counted by the state of its connection when it is made: *kernel*, the end has not joined a ring; *gate closed*,\n\
         it has, and the call's direction goes by the kernel now; else by how full the ring is, for calls that may wait and for those\n\
         that do not (`O_NONBLOCK`, `MSG_DONTWAIT`, a time-out of zero). A call of several descriptors is counted by the one that is\n\
         nearest to the ring. A call that the library makes of another counts for both: `recvmmsg` is `recvmsg` again, `__poll_chk`\n\
         is `poll`.\n\n{}\n\
         ## Unproven\n\n{}",
        machine::commit(),
        markdown::table(&lines),
        unproven(calls, &never),
    )
}

/// Calls that have not met the ring at all, and states that others have not met.
fn unproven(calls: &[Call], never: &[&str]) -> String {
    let mut text = match never {
        [] => "Every call has run on the ring.\n".to_owned(),
        never => format!("Never on the ring:\n\n{}", list(never)),
    };
    let states = ["empty", "partly full", "full"];
    let mut lacking = Vec::new();
    for call in calls.iter().filter(|call| call.total(2) > 0) {
        let missing = (0..2).flat_map(|manner| {
            let fills = call.fills(2, manner).iter().zip(states);
            fills
                .filter(|(count, _)| **count == 0)
                .map(move |(_, state)| {
                    let manner = ["may wait", "does not wait"][manner];
                    format!("{state} ({manner})")
                })
        });
        let missing: Vec<String> = missing.collect();
        if !missing.is_empty() {
            lacking.push(format!("`{}`: {}", call.name, missing.join(", ")));
        }
    }
    if !lacking.is_empty() {
        text.push_str("\nOn the ring, but never when it was\n\n");
        for line in lacking {
            let _ = writeln!(text, "- {line}");
        }
    }
    text
}

fn list(names: &[&str]) -> String {
    names.iter().fold(String::new(), |mut text, name| {
        let _ = writeln!(text, "- `{name}`");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_the_library_writes_them() {
        let mut bytes = vec![0; FILE_BYTES];
        bytes[RECORD_BYTES..RECORD_BYTES + 4].copy_from_slice(b"recv");
        let last = RECORD_BYTES + NAME_BYTES + 8 * (CELLS - 1);
        bytes[last..last + 8].copy_from_slice(&7u64.to_ne_bytes());
        let calls = read(&bytes);
        assert_eq!(calls.len(), 1);
        assert_eq!((calls[0].name.as_str(), calls[0].total(0)), ("recv", 0));
        assert_eq!(calls[0].fills(2, 1), [0, 0, 7]);
        let text = unproven(&calls, &[]);
        assert!(text.contains("`recv`: empty (may wait), partly full (may wait), full (may wait), empty (does not wait)"));
    }
}
