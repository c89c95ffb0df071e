//! A world of its own for a run: namespaces that the kernel takes away with their last process, however the run ends.
//!
//! The network namespaces, interfaces, addresses and rules of the roads, and every process, are in it; nothing of them can be left behind
//! or meet what the machine has. Without root, a user namespace makes it, where the machine permits that.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::programs::find_program;
use crate::sys;

const INSIDE: &str = "MILLRACE_BENCH_INSIDE";
/// Where `ip netns` has its names, in a file system of the run's own.
pub(crate) const NAMES: &str = "/run/netns";
/// Where the run's own files are, in the same.
pub(crate) const FILES: &str = "/run/millrace-bench";
const PATIENCE: Duration = Duration::from_millis(200);

/// Runs this command line again inside. Some: it was, and ended with this status. None: we are inside.
///
/// # Errors
/// The world cannot be made: what is missing.
pub fn enter() -> Result<Option<u8>> {
    // The first process of a process namespace, as `unshare` made it: a variable that came from elsewhere would cover the machine's /run.
    if env::var_os(INSIDE).is_some() && std::process::id() == 1 {
        mount("tmpfs", "/run")?;
        fs::create_dir_all(NAMES)?;
        fs::create_dir_all(FILES)?;
        return Ok(None);
    }
    ensure_possible()?;
    let mut command = unshare();
    command
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1));
    command.env(INSIDE, "1");
    sys::die_with_parent(&mut command, libc::SIGKILL);
    sys::catch_interrupts();
    let child = command.spawn().context("cannot start unshare")?;
    let pid = i32::try_from(child.id())?;
    await_end(pid, sys::interrupted).map(Some)
}

/// Waits until `unshare`, of this process number, ends; its status. Interrupts are passed on to what it runs, since it blocks them.
///
/// Again and again: who has just begun may not hear the first one, as no process does that is the first of its namespace and has no
/// handler yet (pid_namespaces(7)).
fn await_end(pid: i32, is_interrupted: impl Fn() -> bool) -> Result<u8> {
    loop {
        if let Some(exit) = sys::wait_child(pid, PATIENCE)? {
            return Ok(exit.status.unwrap_or(1));
        }
        if is_interrupted() {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            for inner in children.unwrap_or_default().split_whitespace() {
                sys::signal(inner.parse()?, libc::SIGTERM);
            }
        }
    }
}

/// How such a world is made, without what is to run there.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    if sys::effective_user() != 0 {
        command.args(["--user", "--map-root-user"]);
    }
    command
}

/// Tries it with a program that does nothing: later, a failure of `unshare` looks like one of ours.
///
/// # Errors
/// What is missing, or refused.
pub fn ensure_possible() -> Result<()> {
    ensure!(
        find_program("unshare").is_some() && find_program("ip").is_some(),
        "the roads need the programs unshare and ip (on Debian: apt install util-linux iproute2)"
    );
    let tried = unshare().arg("true").output();
    let tried = tried.context("cannot start unshare")?;
    ensure!(
        tried.status.success(),
        "the namespaces of a run cannot be made here: {}\nRoot can make them, in a container only with CAP_SYS_ADMIN. Other users can \
         where the system lets them make user namespaces; look at user.max_user_namespaces, user.max_net_namespaces, \
         kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns.",
        String::from_utf8_lossy(&tried.stderr).trim()
    );
    Ok(())
}

/// Whether root here is root outside, too, and not another user's root of a user namespace (user_namespaces(7)).
#[must_use]
pub fn is_root_of_the_machine() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Whether what is written to a path would go with the run, as it has a `/run` of its own.
#[must_use]
pub fn is_hidden(path: &Path) -> bool {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // The part of it that is there already; links in the rest do not exist.
    let real = path
        .ancestors()
        .find_map(|part| fs::canonicalize(part).ok());
    real.is_some_and(|real| real.starts_with("/run"))
}

fn mount(kind: &str, place: &str) -> Result<()> {
    let status = Command::new("mount")
        .args(["-t", kind, "none", place])
        .status();
    let done = status
        .with_context(|| format!("cannot mount {kind} on {place}"))?
        .success();
    ensure!(done, "cannot mount {kind} on {place}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_hear_the_first_interrupt_hears_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let listens = directory.path().join("listens");
        let inner = r#"trap '[ -e heard ] && exit 7; : > heard' TERM; : > listens; for i in $(seq 500); do sleep 0.02; done; exit 3"#;
        let mut child = Command::new("sh")
            .args(["-c", "sh -c \"$0\"; exit $?", inner])
            .current_dir(directory.path())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let status = await_end(pid, || listens.exists()).unwrap();
        // It was collected.
        assert!(child.wait().is_err());
        assert_eq!(status, 7);
    }
}
