//! A worker: a thread that serves the ports it has, burst by burst, with a node of its own, and sleeps when there is nothing to do.
//!
//! What comes for bearers that are here is dealt with at once; everything else goes through the scheduler (`stages`), of which each worker
//! runs its part: packets of bearers that are another worker's, or that leave by another worker's port, and what is asked of bearers
//! (`errand`). What waits there for this worker is done before its ports are looked at; where some of it waits on, what comes by ports goes
//! behind it, so that no packet overtakes another of its flow.
//!
//! A turn makes no system call unless a peer sleeps, waits for no lock and allocates nothing for a packet; once in a millisecond it asks
//! which of its ports want to be polled. Of what it is told it does one thing in a turn, so that no packet waits for thousands of bearers.
//! When nothing has come for a while it arms its ports and waits for them, for a deadline, and for its bell. How long that while is depends
//! on whether looking was worth it before.
//!
//! In reading order: this file (a turn, and sleep), `serving` (ports and packets), `stages`, `errand`, `tell` (what is said of it).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use millrace_port::{Counters, Port};
use millrace_sched::StageId;
use millrace_switch::Bell;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::DropReport;
use crate::bearer::{Bearer, BearerId, MeterId};
use crate::hold::HeldCounts;
use crate::link::LinkCounts;
use crate::meter::Limit;
use crate::node::Node;
use crate::observed::PathCounts;
use crate::paths::PathState;
use crate::report::NeighbourReport;
use crate::told::EventLog;
use crate::trace::Tap;
use errand::{Changed, Errands};
use serving::Serving;
use stages::{Desk, Part, Stages};

pub(crate) mod errand;
mod serving;
pub(crate) mod stages;
mod tell;
#[cfg(test)]
mod tests;

/// How often a busy worker asks which ports want to be polled.
const TICK: Duration = Duration::from_millis(1);
/// A worker looks for packets so long at least before it sleeps, unless it is told to look less: or it would never find out that looking is
/// worth it.
const SPIN_MIN: Duration = Duration::from_micros(5);
/// Batches of the scheduler that are dealt with in a turn.
const BATCHES: usize = 8;
/// The bell's token in the epoll set; others are places of ports.
const BELL: u64 = u64::MAX;

/// What all workers are told; what is asked of a bearer is an [`errand::Errand`].
pub(crate) enum Command {
    /// Know these bearers' users and peers.
    Know(Vec<(BearerId, Bearer)>),
    /// Know other ones of bearers.
    Change(Vec<Changed>),
    /// Know them no more.
    Forget(Vec<(BearerId, Bearer)>),
    /// Limit all bearers of a user equipment together, or no more.
    Ue(MeterId, Option<[Limit; 2]>),
    /// Say that all before this was done.
    Done(Sender<()>),
    /// Say what was counted.
    Report(Sender<Report>),
    /// Say which paths it asks by, from a number on, so many at most.
    Paths(usize, usize, Sender<(usize, Vec<(usize, PathState)>)>),
    /// Show a bearer's frames to somebody.
    Trace(Box<Tap>),
    /// End.
    Stop,
}

/// What a worker has counted.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) worker: usize,
    /// Of its own ports: what passed, and how they are.
    pub(crate) ports: Vec<(u16, Counters, String)>,
    /// By number of port, of what this worker did.
    pub(crate) counts: Vec<LinkCounts>,
    /// By side.
    pub(crate) drops: [Vec<DropReport>; 2],
    pub(crate) neighbours: Vec<NeighbourReport>,
    pub(crate) lost: u64,
    pub(crate) alive: u64,
    pub(crate) work: Work,
    pub(crate) paths: PathCounts,
    pub(crate) held: HeldCounts,
    /// Events that there was no room for, and messages of the function's own.
    pub(crate) overflows: (u64, u64),
}

/// What a worker did with its time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) turns: u64,
    pub(crate) busy_turns: u64,
    pub(crate) sleeps: u64,
    /// What its thread has used of processors.
    pub(crate) processor_ns: u64,
    /// Shards of bearers that it has, gave away, and got.
    pub(crate) shards: u64,
    pub(crate) given: u64,
    pub(crate) taken: u64,
    /// Packets that it handed over.
    pub(crate) handed_over: u64,
}

/// A port that a worker has, or some queues of it.
pub(crate) struct Attached {
    pub(crate) number: u16,
    pub(crate) port: Box<dyn Port + Send>,
    /// It is a file, which wants to know the time.
    pub(crate) is_file: bool,
}

/// What a worker is made of.
pub(crate) struct Parts {
    pub(crate) node: Node,
    pub(crate) number: usize,
    pub(crate) workers: usize,
    pub(crate) epoch: Instant,
    pub(crate) spin: Duration,
    pub(crate) commands: Receiver<Command>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) ports: Vec<Attached>,
    /// By number of port, who has it.
    pub(crate) owners: Vec<usize>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) stages: Stages,
    pub(crate) errands: Arc<Errands>,
}

/// A worker.
pub(crate) struct Worker {
    scheduled: millrace_sched::Worker,
    desk: Arc<Desk>,
    bell: Arc<Bell>,
    epoll: Epoll,
    /// How long it looks for packets at most before it sleeps, and how long it does now.
    spin_max: Duration,
    spin: Duration,
    bearer_stage: StageId,
    /// How often shards had moved when the node was told of them.
    changes: u64,
    /// Since when it has served its ports, and of which shards it has dealt with packets where they came.
    since: Option<Instant>,
    done: Vec<u32>,
}

impl Worker {
    pub(crate) fn new(mut parts: Parts, part: Part) -> nix::Result<Worker> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, BELL);
        epoll.add(parts.bell.event(), event)?;
        for (place, attached) in (0..).zip(&mut parts.ports) {
            attached.port.poll(Instant::now());
            let event = EpollEvent::new(EpollFlags::EPOLLIN, place);
            // Without it the port is polled when the worker is awake, which is said nowhere else.
            if let Err(error) = epoll.add(attached.port.as_fd(), event) {
                tracing::warn!(
                    port = attached.number,
                    "a port cannot wake its worker: {error}"
                );
            }
        }
        let bell = parts.bell.clone();
        part.scheduled.wake_with(move || bell.ring());
        let worker = Worker {
            desk: part.desk.clone(),
            bell: parts.bell.clone(),
            epoll,
            spin_max: parts.spin,
            spin: parts.spin,
            bearer_stage: parts.stages.bearer,
            changes: part.scheduled.changes(),
            scheduled: part.scheduled,
            since: None,
            done: Vec::new(),
        };
        worker.desk.fill(Serving::new(parts, part.entry, part.post));
        Ok(worker)
    }

    /// Serves until it is told to stop.
    pub(crate) fn run(mut self) {
        // Since when there is nothing, and whether it has slept since.
        let mut idle = None;
        loop {
            let now = Instant::now();
            let Some(is_busy) = self.turn(now) else {
                break;
            };
            if is_busy {
                if let Some((_, false)) = idle.take() {
                    // Looking was worth it.
                    self.spin = (self.spin * 2).min(self.spin_max);
                }
                continue;
            }
            let (since, has_slept) = idle.get_or_insert((now, false));
            if now - *since < self.spin {
                std::hint::spin_loop();
                continue;
            }
            if !*has_slept {
                *has_slept = true;
                self.spin = (self.spin / 2).max(SPIN_MIN).min(self.spin_max);
            }
            self.sleep();
        }
    }

    /// Looks at everything once; whether there was something. None: it is to end.
    fn turn(&mut self, now: Instant) -> Option<bool> {
        self.count_done(now);
        let (epoll, has_news) = (&self.epoll, self.bell.take_news());
        let begin = |serving: &mut Serving| serving.begin(now, has_news, epoll);
        let mut is_busy = self.desk.with(begin)??;
        let handled = self.scheduled.turn(BATCHES);
        is_busy |= handled > 0 || !self.scheduled.is_idle();
        let is_clear = self.scheduled.is_clear();
        let changes = self.scheduled.changes();
        let moved = std::mem::replace(&mut self.changes, changes) != changes;
        let (scheduled, stage, done) = (&self.scheduled, self.bearer_stage, &mut self.done);
        let since = if handled > 0 { Instant::now() } else { now };
        let (has_served, is_waiting) = self.desk.with(|serving| {
            if moved {
                let node = &mut serving.node;
                node.deal_with(|shard| scheduled.has(stage, shard));
            }
            serving.turn(is_clear, is_busy, done)
        })?;
        // Who waits for others has no work.
        self.since = has_served.then_some(since);
        Some(is_busy || has_served || is_waiting)
    }

    /// Tells the scheduler what was done beside it in the turn before.
    #[inline]
    fn count_done(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            let spent = now.saturating_duration_since(since).as_nanos();
            let spent = u64::try_from(spent).unwrap_or(u64::MAX);
            self.scheduled.did(self.bearer_stage, &self.done, spent);
            self.done.clear();
        }
    }

    /// Waits until there is something to do.
    fn sleep(&mut self) {
        let now = Instant::now();
        self.desk.with(|serving| serving.tell_all(now));
        self.scheduled.lie_down();
        let is_to_sleep = self.bell.is_to_sleep();
        if !is_to_sleep || !self.scheduled.is_idle() {
            self.bell.wake();
            self.scheduled.get_up();
            return;
        }
        let armed = self.desk.with(|serving| serving.arm(now));
        let mut events = [EpollEvent::empty(); 32];
        let mut count = 0;
        if let Some((true, until)) = armed {
            // An interruption is a wake-up.
            let waited = self.epoll.wait(&mut events, timeout(until, now));
            count = waited.unwrap_or(0);
        }
        self.bell.wake();
        self.scheduled.get_up();
        let events = &events[..count];
        self.desk
            .with(|serving| serving.attend(events, Instant::now()));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // What it has knows the scheduler, and that the desk: ports would never be closed.
        self.desk.clear();
    }
}

/// To the deadline, rounded up so that it has passed when the wait ends.
fn timeout(until: Option<Instant>, now: Instant) -> EpollTimeout {
    match until {
        Some(until) => {
            let milliseconds = until.saturating_duration_since(now).as_millis() + 1;
            EpollTimeout::try_from(milliseconds).unwrap_or(EpollTimeout::MAX)
        }
        None => EpollTimeout::NONE,
    }
}
