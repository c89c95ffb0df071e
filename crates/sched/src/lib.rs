//! An event scheduler without a scheduler, for few processors.
//!
//! A program is a graph of *stages* over *flows* ([`Graph`]). Each *worker* runs to completion: it does the work of its flows stage by
//! stage, nearest to the way out first, and hands to another worker only what is another one's. Flows belong to workers by buckets, for
//! each stage, and buckets move when work is uneven. No thread does nothing but schedule, and no event takes a lock; a batch
//! that is lent has one, for which nobody waits.
//!
//! Words mean what they mean in DPDK's Eventdev, where they are the same: an *atomic* stage has one worker at a time for each flow, and
//! keeps the order of its events; an *ordered* one may have several, and its order is restored behind it; a *parallel* one promises
//! neither.
//!
//! What a handler keeps of its flows goes with them, by value: [`Handler::give`] and [`Handler::take`]. Flows that cannot move are pinned
//! ([`Graph::pin`]). A worker may be run by a thread that has more to do, which wakes it its own way ([`Worker::wake_with`]), and does in
//! place what it has received for flows of its own ([`Worker::is_clear`], [`Worker::has`], [`Worker::did`]).
//!
//! | Eventdev | here |
//! |---|---|
//! | event device, port | scheduler, worker |
//! | queue | stage |
//! | `op` NEW | [`Entry::enter`], or [`Entry::gather`] |
//! | `rte_event_maintain` | [`Entry::flush`] |
//! | FORWARD | [`Out::forward`]: never fails |
//! | port link | buckets, which move by themselves, but for those of [`Graph::pin`] |
//! | RELEASE | whatever a handler does not hand on; buckets are a worker's until they move, so there is no lock to release early |
//! | `new_event_threshold` | the limit of an entry point |
//! | priority 0 to 255 | [`Priority`], four levels; lower ones are never starved |
//! | timer adapter | [`Out::forward_after`] |
//! | `xstats` | [`Control::snapshot`] |
//!
//! In reading order: `event`, `graph`; `map` (who has which flows), `ring`, `shared`, `outbox`; `entry`, `worker` (a turn),
//! `worker::queues` and `worker::batch` (what is done next, and what becomes of it), `worker::moving` (buckets that go to another one),
//! `state` and `worker::carrying` (what handlers keep of them goes with them), `worker::lending` (batches of ordered stages), `balance`,
//! `told` and `fusion` (which, and when), `worker::activity` (how many workers there is work for), `worker::in_place` (what its thread does
//! without events), `timers`; `run` (threads), `calibration` (what handing over costs here), `placement` (on which processors); `seen`
//! (what is counted), `control` (who looks at it, and tunes), `snapshot`, `picture`; `keys` of flows, and `toeplitz`.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

mod atomic;
mod balance;
mod calibration;
mod control;
mod entry;
mod event;
mod fusion;
mod graph;
pub mod keys;
mod map;
#[cfg(loom)]
#[doc(hidden)]
pub mod model;
mod outbox;
mod picture;
pub mod placement;
mod ring;
mod run;
mod seen;
mod shared;
mod snapshot;
mod state;
mod timers;
pub mod toeplitz;
mod told;
mod worker;

pub use control::Control;
pub use entry::Entry;
pub use event::{Event, Priority, StageId};
pub use fusion::{Fused, HAND_OVER_NS};
pub use graph::{Graph, Handler, Kind, Out, STAGES_MAX};
pub use map::{BUCKETS, bucket_of};
pub use run::Running;
pub use snapshot::{
    ElephantFigures, EntryFigures, FlowFigures, Snapshot, StageFigures, WorkFigures, WorkerFigures,
};
pub use state::State;
pub use worker::{Work, Worker};

use balance::Clock;
use map::Pins;
use outbox::Outbox;
use shared::Shared;

/// Workers, at most: their sets are bits of a word.
pub const WORKERS_MAX: usize = 64;
/// Entry points, at most.
pub const ENTRIES_MAX: usize = 64;
/// Of so many batches one at least is of the least urgent that wait.
pub const STARVATION_BATCHES: usize = 16;

/// How a graph is run.
#[derive(Debug, Clone)]
pub struct Config {
    /// How many workers there are, up to [`WORKERS_MAX`].
    pub workers: usize,
    /// Of each entry point: how many of its events may be in the graph.
    pub entries: Vec<usize>,
    /// Events that a handler gets at once, at most.
    pub burst: usize,
    /// Events on their way to a worker that there is room for, a power of two. What a worker finds no room for waits where it is; what
    /// enters is refused.
    pub ring: usize,
    /// Batches of ordered stages go to workers with less to do while more events than so many wait at a stage.
    pub lend_above: usize,
    /// How long an event may wait. With it as few workers are active as keep that, and as the load needs; without it, all.
    pub latency: Option<Duration>,
}

/// Events that a handler gets at once, at most.
const BURST_MAX: usize = 1024;
/// Events of an entry point that may be in the graph, at most.
const LIMIT_MAX: usize = 1 << 24;

impl Config {
    /// For so many workers, and one entry point of 4096 events.
    #[must_use]
    pub fn new(workers: usize) -> Config {
        Config {
            workers,
            entries: vec![4096],
            burst: 32,
            ring: 8192,
            lend_above: 64,
            latency: None,
        }
    }

    fn check(&self, graph: &Graph) -> Result<(), ConfigError> {
        let at_most = |what, count, most| match (1..=most).contains(&count) {
            true => Ok(()),
            false => Err(ConfigError::Count { what, count, most }),
        };
        at_most("workers", self.workers, WORKERS_MAX)?;
        at_most("entry points", self.entries.len(), ENTRIES_MAX)?;
        at_most("stages", graph.stages.len(), STAGES_MAX)?;
        at_most("events of a burst", self.burst, BURST_MAX)?;
        for limit in &self.entries {
            at_most("events of an entry point", *limit, LIMIT_MAX)?;
        }
        if !self.ring.is_power_of_two() || self.ring > 1 << 20 {
            return Err(ConfigError::Ring(self.ring));
        }
        self.check_pins(graph)
    }

    fn check_pins(&self, graph: &Graph) -> Result<(), ConfigError> {
        let mut pins = Pins::new();
        for pin in &graph.pins {
            let (stage, flow, worker) = (pin.stage, pin.flow, pin.worker);
            let error = |why| Err(ConfigError::Pin { stage, flow, why });
            if worker >= self.workers {
                return error(PinError::NoWorker(worker));
            }
            if graph.stages[stage.index()].kind == Kind::Parallel {
                return error(PinError::Parallel);
            }
            let known = *pins.entry(pin.place()).or_insert(worker);
            if known != worker {
                return error(PinError::Apart(known, worker));
            }
        }
        Ok(())
    }
}

/// Why a graph cannot be run so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigError {
    /// There are too few or too many of something.
    Count {
        /// Of what.
        what: &'static str,
        /// So many are asked for.
        count: usize,
        /// There may be from one to so many.
        most: usize,
    },
    /// The size of rings is no power of two up to a million.
    Ring(usize),
    /// A flow cannot be pinned as [`Graph::pin`] was asked to.
    Pin {
        /// At which stage.
        stage: StageId,
        /// The flow.
        flow: u32,
        /// Why not.
        why: PinError,
    },
}

/// Why a flow cannot be pinned so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinError {
    /// There is no such worker.
    NoWorker(usize),
    /// The stage is parallel: its flows are nobody's.
    Parallel,
    /// Its bucket is pinned to two workers.
    Apart(usize, usize),
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinError::NoWorker(worker) => write!(f, "there is no worker {worker}"),
            PinError::Parallel => write!(f, "flows of a parallel stage are no worker's"),
            PinError::Apart(one, other) => {
                write!(
                    f,
                    "its bucket is pinned to worker {one} and to worker {other}"
                )
            }
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::Count { what, count, most } => {
                write!(f, "{count} {what}: there can be 1 to {most}")
            }
            ConfigError::Ring(room) => {
                write!(f, "rings of {room} events: a power of two up to 1048576")
            }
            ConfigError::Pin { stage, flow, why } => {
                write!(f, "flow {flow} pinned at stage {}: {why}", stage.index())
            }
        }
    }
}

impl std::error::Error for ConfigError {}

/// Makes the workers and entry points of a graph. Who wants threads gives the workers to [`Running::start`].
///
/// # Errors
/// When the configuration cannot be.
pub fn build(graph: &Graph, config: &Config) -> Result<(Vec<Worker>, Vec<Entry>), ConfigError> {
    build_with(graph, config, &Clock::Real(Instant::now()))
}

/// The same for a test that plays turn after turn, in its own time: `now` is in nanoseconds.
///
/// # Errors
/// As [`build`].
pub fn build_in_virtual_time(
    graph: &Graph,
    config: &Config,
    now: &Arc<AtomicU64>,
) -> Result<(Vec<Worker>, Vec<Entry>), ConfigError> {
    build_with(graph, config, &Clock::Set(now.clone()))
}

fn build_with(
    graph: &Graph,
    config: &Config,
    clock: &Clock,
) -> Result<(Vec<Worker>, Vec<Entry>), ConfigError> {
    config.check(graph)?;
    let (workers, entries) = (config.workers, config.entries.len());
    let shared = Arc::new(Shared::new(graph, config));
    let (producers, consumers): (Vec<_>, Vec<_>) =
        (0..workers).map(|_| ring::ring(config.ring)).unzip();
    let outbox = |sender: usize| {
        let rings = producers.iter().enumerate();
        let to =
            |(worker, ring): (usize, &ring::Producer)| (worker != sender).then(|| ring.clone());
        Outbox::new(sender, rings.map(to).collect())
    };
    let made = consumers.into_iter().enumerate().map(|(index, input)| {
        let (shared, clock) = (shared.clone(), clock.clone());
        Worker::new(index, shared, input, outbox(index), clock)
    });
    let made = made.collect();
    let entries = (0..entries).map(|number| {
        let outbox = outbox(workers + number);
        Entry::new(shared.clone(), number as u8, outbox, clock.clone())
    });
    let entries = entries.collect();
    Ok((made, entries))
}
