//! Starting an agent that outlives whoever started it.
//!
//! Three processes, and no code between fork and exec: the starter runs `millrace agent --background` (1), which runs
//! `millrace agent --detached` (2) and ends as soon as (2) listens. (2) has no parent that could wait for it, a session
//! of its own, the root directory, and none of the starter's descriptors. Each listens to the next one's standard error:
//! words on it are why it failed; its end without a word means that the agent listens.
//!
//! What the starter is about to become must find nothing of this: no child, and no signal of one.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{get_child_subreaper, set_child_subreaper};
use nix::sys::signal::{SigSet, Signal};

use crate::sys;

/// How long a program that is to be run waits for its agent: one that cannot listen says so at once, and a busy machine takes seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Starts an agent at `socket`, and returns when it listens.
pub(crate) fn start(socket: &Path) -> anyhow::Result<()> {
    ensure!(
        std::process::id() != 1,
        "one that is started here is a child of this process, which is the first of its PID namespace: start `millrace agent` before it"
    );
    // Who adopts orphans adopts no agent.
    let adopts = get_child_subreaper().unwrap_or(false);
    if adopts {
        set_child_subreaper(false)?;
    }
    let was_told = is_child_s_end_pending();
    let started = start_by_another(socket);
    if !was_told && is_child_s_end_pending() {
        let ends: SigSet = [Signal::SIGCHLD].into_iter().collect();
        let _ = ends.wait();
    }
    if adopts {
        set_child_subreaper(true)?;
    }
    started
}

fn start_by_another(socket: &Path) -> anyhow::Result<()> {
    let mut command = own_command()?;
    command
        .args(["agent", "--background", "--socket"])
        .arg(socket);
    let mut starter = wait(&mut command, PATIENCE)?;
    // It ends now, and must not be left for the program to find.
    let _ = starter.wait();
    Ok(())
}

/// Whether a SIGCHLD waits that is blocked: `proc_pid_status(5)`.
fn is_child_s_end_pending() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.is_some_and(|mask| mask >> (Signal::SIGCHLD as u32 - 1) & 1 == 1)
}

/// Runs the agent itself, detached; `arguments` are those of the `agent` subcommand.
pub(crate) fn detach(arguments: &[OsString]) -> anyhow::Result<()> {
    let mut command = own_command()?;
    command
        .args(["agent", "--detached"])
        .args(arguments)
        .current_dir("/");
    // What the caller left open without saying so would be held by the agent.
    sys::close_others_on_exec();
    wait(&mut command, PATIENCE).map(drop)
}

fn own_command() -> anyhow::Result<Command> {
    let executable = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(executable);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // The agent is not to be accelerated, nor to find the agent that it is.
    for name in ["LD_PRELOAD", "MILLRACE_AGENT", "MILLRACE_MODE"] {
        command.env_remove(name);
    }
    Ok(command)
}

/// Starts the process, and returns it when it has closed its standard error without a word.
fn wait(command: &mut Command, patience: Duration) -> anyhow::Result<Child> {
    let mut child = command.spawn().context("cannot start a process")?;
    match hear_out(&mut child, patience) {
        Ok(text) if text.is_empty() => Ok(child),
        Ok(text) => {
            let _ = child.wait();
            Err(anyhow!(
                "{}",
                text.trim_end().trim_start_matches("millrace: ").to_owned()
            ))
        }
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

/// Everything that the child writes to its standard error until it closes it.
fn hear_out(child: &mut Child, patience: Duration) -> anyhow::Result<String> {
    let deadline = Instant::now() + patience;
    let Some(mut pipe) = child.stderr.take() else {
        bail!("the process has no standard error")
    };
    let mut said = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut descriptors = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut descriptors, timeout) {
            Ok(0) => bail!("it did not listen within {} ms", patience.as_millis()),
            Ok(_) => {}
            Err(nix::errno::Errno::EINTR) => continue,
            Err(errno) => return Err(errno).context("cannot wait for the process"),
        }
        let mut buffer = [0; 1024];
        match pipe.read(&mut buffer)? {
            0 => return Ok(String::from_utf8_lossy(&said).into_owned()),
            length => said.extend_from_slice(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_come_to_listen_is_ended_and_told_of() {
        let mut command = Command::new("sleep");
        command.arg("600").stderr(Stdio::piped());
        let error = wait(&mut command, Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.to_string(), "it did not listen within 1 ms");
    }

    #[test]
    fn the_words_of_who_fails_are_the_reason() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo millrace: no room >&2"])
            .stderr(Stdio::piped());
        assert_eq!(
            wait(&mut command, PATIENCE).unwrap_err().to_string(),
            "no room"
        );
    }
}
