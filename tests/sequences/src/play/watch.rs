//! Watching over the processes of a sequence, by what the kernel tells of them.

use crate::board::Board;
use crate::perform::pause;
use crate::plan::{Process, Thread};
use crate::sys::{Fd, borrow};
use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getpid, getrlimit, pidfd_open,
    pidfd_send_signal, set_child_subreaper, set_parent_process_death_signal, setrlimit, waitpid,
};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A process of the sequence.
pub(super) struct Watched {
    pub(super) pid: Pid,
    /// The process that forked it, if it was none of the first.
    pub(super) parent: Option<Process>,
    handle: OwnedFd,
}

impl Watched {
    pub(super) fn new(pid: i32, parent: Option<Process>) -> Result<Self> {
        let pid = Pid::from_raw(pid).context("a process without an id")?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).context("opening a process")?;
        Ok(Watched {
            pid,
            parent,
            handle,
        })
    }

    /// Sends it a signal; never to another process that has got its number since.
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        pidfd_send_signal(&self.handle, signal).context("sending a signal")
    }

    /// Waits for its end; false when it did not come before the deadline.
    pub(super) fn wait(&self, deadline: Instant) -> Result<bool> {
        let mut items = [PollFd::new(&self.handle, PollFlags::IN)];
        Ok(poll(&mut items, Some(&left(deadline)))? > 0)
    }
}

/// Makes this process the one that gets the orphans of the sequence, and that dies with who started it.
pub(super) fn become_guardian() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("binding to the parent")?;
    set_child_subreaper(Some(getpid())).context("adopting orphans")?;
    // The numbers of the tester's own descriptors lie above many systems' soft limit.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("raising the limit of descriptors")
}

fn left(deadline: Instant) -> Timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    }
}

/// Waits for a report; false when there was none before the deadline. Fails when a process dies.
pub(super) fn readable(
    reports: Fd,
    processes: &BTreeMap<Process, Watched>,
    deadline: Instant,
) -> Result<bool> {
    let reports = borrow(reports);
    let mut items = vec![PollFd::from_borrowed_fd(reports, PollFlags::IN)];
    let handles = processes.values().map(|watched| watched.handle.as_fd());
    items.extend(handles.map(|handle| PollFd::from_borrowed_fd(handle, PollFlags::IN)));
    poll(&mut items, Some(&left(deadline))).context("waiting for reports")?;
    if items[0].revents().contains(PollFlags::IN) {
        return Ok(true);
    }
    for ((process, watched), item) in processes.iter().zip(&items[1..]) {
        if !item.revents().is_empty() {
            bail!("P{process} died{}", how(watched));
        }
    }
    Ok(false)
}

/// How a process died, where it is a child of the controller.
fn how(watched: &Watched) -> String {
    match waitpid(Some(watched.pid), WaitOptions::NOHANG) {
        Ok(Some((_, status))) => match (status.terminating_signal(), status.exit_status()) {
            (Some(signal), _) => format!(" of signal {signal}"),
            (_, Some(status)) => format!(" with status {status}"),
            _ => String::new(),
        },
        _ => String::new(),
    }
}

/// The state letter that the kernel tells of a thread; `None` when it is gone.
pub(super) fn state(pid: Pid, tid: i32) -> Option<char> {
    let file = format!("/proc/{}/task/{tid}/stat", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(file).ok()?;
    // The name, in parentheses, may hold anything; the state follows it.
    text.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Whether the thread sleeps, and still does a moment later.
pub(super) fn sleeps(pid: Pid, tid: i32) -> bool {
    let look = || state(pid, tid) == Some('S');
    look() && {
        pause(Duration::from_micros(100));
        look()
    }
}

/// Where everybody is, for the report of a hang: each process, and each of its threads with its state and its system call.
pub(super) fn describe(
    processes: &BTreeMap<Process, Watched>,
    threads: &BTreeMap<Thread, Process>,
    board: &Board,
) -> String {
    let mut parts = Vec::new();
    for (process, watched) in processes {
        let pid = watched.pid.as_raw_nonzero().get();
        let tids = std::fs::read_dir(format!("/proc/{pid}/task"));
        let tids = tids.into_iter().flatten().flatten();
        let mut tids: Vec<i32> = tids
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        tids.sort_by_key(|tid| *tid != pid);
        for tid in tids {
            let of = |thread: &&Thread| {
                board.tids[usize::from(**thread)].load(SeqCst) == tid
                    && threads[*thread] == *process
            };
            let name = match threads.keys().find(of) {
                Some(thread) => format!("P{process}/T{thread}"),
                None if tid == pid => format!("P{process}"),
                None => format!("P{process}/?"),
            };
            let state = state(watched.pid, tid).unwrap_or('-');
            let call = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
            let call = call.unwrap_or_default();
            // Its number and first arguments, but for pointers, which are others in each run.
            let mut words: Vec<&str> = call.split_whitespace().take(4).collect();
            words.retain(|word| word.len() <= "0xffffffff".len());
            parts.push(format!("{name} {state} in {}", words.join(" ")));
        }
    }
    parts.join(", ")
}

/// Collects all children that have died or are about to: they were killed.
pub(super) fn reap_all() {
    while matches!(waitpid(None, WaitOptions::empty()), Ok(Some(_))) {}
}
