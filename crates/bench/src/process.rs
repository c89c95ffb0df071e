//! Programs that we start: each with its output in a file, a process group of its own, its processor
//! time, and an end that comes for certain.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::sys::{self, Exit, Times};

/// How long a program may take to stop when asked, before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an interrupt may go unnoticed.
const LOOK: Duration = Duration::from_millis(200);

/// A running program. Dropping it ends it, with all its descendants.
pub struct Program {
    name: String,
    pid: i32,
    output: PathBuf,
    started: Instant,
    /// How it ended, once that is collected.
    exit: Option<Exit>,
}

impl Program {
    /// Starts `command`, that is called `name` in messages; standard output and standard error go to the
    /// file `output`.
    pub fn start(name: &str, mut command: Command, output: PathBuf) -> Result<Self> {
        let name = name.to_owned();
        let file = File::create(&output).with_context(|| format!("{}", output.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        sys::bind_to_parent(&mut command);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = i32::try_from(child.id())?;
        Ok(Self {
            name,
            pid,
            output,
            started: Instant::now(),
            exit: None,
        })
    }

    /// Its process number.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// What the program has printed so far.
    pub fn output(&self) -> String {
        let bytes = fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the program ends, at most `limit`; `None` when it runs on. An interrupt is an error.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Exit>> {
        let until = Instant::now() + limit;
        while self.exit.is_none() && !sys::interrupted() {
            // The interrupt may come to another thread.
            let left = until.saturating_duration_since(Instant::now());
            self.exit = sys::wait_child(self.pid, left.min(LOOK))?;
            if left.is_zero() {
                break;
            }
        }
        ensure!(self.exit.is_some() || !sys::interrupted(), "interrupted");
        Ok(self.exit)
    }

    /// Waits until the program ends, and takes what it printed. Failure and running longer than
    /// `limit` from now are errors.
    pub fn finish(mut self, limit: Duration) -> Result<(String, Exit)> {
        let Some(exit) = self.wait(limit)? else {
            bail!(
                "{} did not end within {} s\n{}",
                self.name,
                self.started.elapsed().as_secs(),
                self.tail()
            );
        };
        ensure!(exit.success, "{} failed\n{}", self.name, self.tail());
        Ok((self.output(), exit))
    }

    /// Waits until `ready` holds; the program's end, `limit` and an interrupt are errors.
    pub fn wait_until(&mut self, limit: Duration, ready: impl Fn(&Self) -> bool) -> Result<()> {
        let start = Instant::now();
        while !ready(self) {
            let ended = self.wait(Duration::from_millis(20))?.is_some();
            ensure!(
                !ended,
                "{} ended before it was ready\n{}",
                self.name,
                self.tail()
            );
            ensure!(
                start.elapsed() < limit,
                "{} was not ready within {} s\n{}",
                self.name,
                limit.as_secs(),
                self.tail()
            );
        }
        Ok(())
    }

    /// Processor time that the program and its descendants have used, those that ended included.
    pub fn processor(&self) -> Times {
        descendants(self.pid).iter().map(Process::processor).sum()
    }

    /// Memory of the program and its descendants.
    #[must_use]
    pub fn memory(&self) -> Memory {
        descendants(self.pid).iter().map(Process::memory).sum()
    }

    /// The last lines of what the program printed.
    fn tail(&self) -> String {
        let text = self.output();
        // Of progress that overwrites itself, what a terminal would show.
        let lines = text
            .lines()
            .map(|line| line.trim_end().rsplit('\r').next().unwrap_or(line));
        let lines: Vec<&str> = lines.collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.exit.is_some() {
            return;
        }
        let family = descendants(self.pid);
        sys::signal(self.pid, libc::SIGTERM);
        // SIGSTOPped programs hear SIGTERM only after SIGCONT.
        sys::signal(self.pid, libc::SIGCONT);
        let deadline = Instant::now() + PATIENCE;
        // Interrupts cut the waiting short, so it is repeated.
        while Instant::now() < deadline {
            match sys::wait_child(self.pid, deadline - Instant::now()) {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => break,
            }
        }
        sys::signal(-self.pid, libc::SIGKILL);
        for process in family {
            if Process::read(process.pid).is_some_and(|now| now.started == process.started) {
                sys::signal(process.pid, libc::SIGKILL);
            }
        }
        // An error says that it was collected above.
        let _ = sys::wait_child(self.pid, PATIENCE);
    }
}

/// Processor time that we and all below us have used, those that ended included.
pub(crate) fn used_by_us() -> Times {
    let ours = i32::try_from(std::process::id()).unwrap_or(0);
    descendants(ours).iter().map(Process::processor).sum()
}

/// Kills every descendant of ours that is still there, and collects them; returns their command lines.
pub fn end_descendants() -> Vec<String> {
    while sys::reap(-1).is_ok_and(|exit| exit.is_some()) {}
    let ours = i32::try_from(std::process::id()).unwrap_or(0);
    let left: Vec<Process> = descendants(ours)
        .into_iter()
        .filter(|p| p.pid != ours)
        .collect();
    let names = left.iter().map(Process::command_line).collect();
    for process in &left {
        sys::signal(process.pid, libc::SIGKILL);
    }
    let deadline = Instant::now() + PATIENCE;
    // Orphans become our children one generation after the other.
    while sys::reap(-1).is_ok() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    names
}

/// Memory in bytes, without that of files, most of which is the program's own text. What several programs share is divided among them, so
/// that sums over programs count it once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Of nobody else, but for what a `fork` left in common.
    pub private: u64,
    /// Of shared memory.
    pub shared: u64,
    /// Page tables.
    pub tables: u64,
}

impl Memory {
    /// Memory of this process.
    #[must_use]
    pub fn own() -> Memory {
        let pid = i32::try_from(std::process::id()).ok();
        pid.and_then(Process::read)
            .map_or(Memory::default(), |process| process.memory())
    }

    /// All of it.
    #[must_use]
    pub fn total(self) -> u64 {
        self.private + self.shared + self.tables
    }
}

impl std::iter::Sum for Memory {
    fn sum<I: Iterator<Item = Memory>>(memories: I) -> Memory {
        memories.fold(Memory::default(), |sum, each| Memory {
            private: sum.private + each.private,
            shared: sum.shared + each.shared,
            tables: sum.tables + each.tables,
        })
    }
}

/// A line of `/proc/PID/stat`.
struct Process {
    pid: i32,
    parent: i32,
    /// Processor time of its own, in the program and in the kernel, in ticks.
    own_ticks: [u64; 2],
    /// The same of the children that it has waited for.
    children_ticks: [u64; 2],
    /// When it started: with the number, this names a process for ever.
    started: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain anything.
        let (_, rest) = line.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // proc_pid_stat(5) counts from 1, and the state, field 3, is the first here.
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            own_ticks: [number(11)?, number(12)?],
            children_ticks: [number(13)?, number(14)?],
            started: number(19)?,
        })
    }

    /// Its number, and its words with spaces between them; a process that has ended has no words.
    fn command_line(&self) -> String {
        let words = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let line = String::from_utf8_lossy(&words).replace('\0', " ");
        format!("{} {}", self.pid, line.trim_end())
    }

    /// Its own time is known to the nanosecond; how it divides, by the kernel's ticks only.
    fn processor(&self) -> Times {
        let tick = Duration::from_nanos(1_000_000_000 / sys::ticks_per_second());
        let [user, system] = self.children_ticks.map(|ticks| tick * ticks as u32);
        let [in_program, in_kernel] = self.own_ticks.map(|ticks| ticks as f64);
        let own = sys::processor_time(self.pid).unwrap_or_default();
        let own_system = own.mul_f64(in_kernel / (in_program + in_kernel).max(1.0));
        Times {
            user: user + own.saturating_sub(own_system),
            system: system + own_system,
        }
    }

    fn memory(&self) -> Memory {
        let read = |file| fs::read_to_string(format!("/proc/{}/{file}", self.pid));
        let [mapped, status] =
            ["smaps_rollup", "status"].map(|file| read(file).unwrap_or_default());
        Memory {
            private: bytes(&mapped, "Pss_Anon:"),
            shared: bytes(&mapped, "Pss_Shmem:"),
            tables: bytes(&status, "VmPTE:"),
        }
    }
}

/// What a line of a file in `/proc` tells in KiB.
fn bytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

/// The process and all below it.
fn descendants(root: i32) -> Vec<Process> {
    let mut others: Vec<Process> = numbers_in_proc()
        .into_iter()
        .filter_map(Process::read)
        .collect();
    let mut family: Vec<Process> = Vec::new();
    let mut wave = vec![root];
    while !wave.is_empty() {
        let (found, rest): (Vec<_>, Vec<_>) = others
            .into_iter()
            .partition(|process| process.pid == root || wave.contains(&process.parent));
        wave = found
            .iter()
            .map(|p| p.pid)
            .filter(|&pid| pid != root)
            .collect();
        family.extend(found);
        others = rest;
    }
    family
}

fn numbers_in_proc() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}
