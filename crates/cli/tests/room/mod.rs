//! A place for an agent, and the command in it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A directory for an agent's socket; an agent that is still there at the end is killed.
pub(crate) struct Room {
    pub(crate) directory: tempfile::TempDir,
}

impl Room {
    pub(crate) fn new() -> Room {
        Room {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("m/agent.sock")
    }

    pub(crate) fn millrace(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_millrace"));
        command.args(arguments);
        command
    }

    /// A program that finds this room's agent and a library.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("MILLRACE_AGENT", self.socket())
            .env("MILLRACE_LIBRARY", harmless_library());
        command
            .env_remove("LD_PRELOAD")
            .env_remove("MILLRACE")
            .env_remove("MILLRACE_MODE");
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.millrace(arguments).output().unwrap()
    }

    /// The process of the agent that answers.
    pub(crate) fn agent(&self) -> Option<Pid> {
        let patience = Duration::from_secs(5);
        millrace_agent::status(&self.socket(), patience)
            .ok()
            .map(|(status, _)| Pid::from_raw(status.pid))
    }

    /// An agent in the foreground that listens, where its environment says.
    pub(crate) fn start_agent(&self) -> Agent {
        let mut child = self
            .millrace(&["agent"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        assert!(line.contains("the agent listens"), "{line}");
        Agent { child, log }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(pid) = self.agent() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

pub(crate) struct Agent {
    pub(crate) child: Child,
    pub(crate) log: BufReader<std::process::ChildStderr>,
}

impl Agent {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A library that every program has anyway stands in for Millrace's.
pub(crate) fn harmless_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("/libc.so"));
    PathBuf::from(path.expect("the tests run with a shared C library"))
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap().trim_end()
}

pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
