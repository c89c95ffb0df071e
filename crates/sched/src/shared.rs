//! What all workers and entry points of a scheduler see.

use std::sync::atomic::{AtomicU64 as Plain, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Config;
use crate::atomic::{Apart, AtomicBool, AtomicU64, Ordering, fence};
use crate::fusion::Fusion;
use crate::graph::{Graph, Kind, Maker, Pin};
use crate::map::{Owners, Pins, Sending};
use crate::seen::{EntrySeen, Seen};
use crate::state::States;
use crate::told::Told;
use crate::worker::Loans;

/// What all of them see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) names: Vec<String>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) makers: Makers,
    pub(crate) fusion: Fusion,
    pub(crate) workers: usize,
    pub(crate) entries: usize,
    pub(crate) tuning: Tuning,
    /// Which workers have flows, or are about to have some, by bits; never none.
    pub(crate) active: Apart<Plain>,
    pub(crate) owners: Owners,
    /// Buckets that never move.
    pub(crate) pins: Pins,
    /// What handlers keep of buckets that are on their way.
    pub(crate) states: States,
    /// Of workers, and of entry points behind them.
    pub(crate) senders: Box<[Sending]>,
    pub(crate) beds: Box<[Bed]>,
    /// Of each worker.
    pub(crate) loads: Box<[Apart<Told>]>,
    /// Of each worker.
    pub(crate) loans: Box<[Loans]>,
    /// Of each worker: events of each entry point that left the graph, less those that were made in it.
    gone: Box<[Apart<Box<[AtomicU64]>>]>,
    /// Of each worker, and of each entry point.
    pub(crate) seen: Box<[Apart<Seen>]>,
    pub(crate) entered: Box<[Apart<EntrySeen>]>,
}

/// What makes the handlers of each stage.
pub(crate) struct Makers(pub(crate) Vec<Maker>);

impl std::fmt::Debug for Makers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "makers of {} stages", self.0.len())
    }
}

/// What may be changed while it runs. Everything is read with `Relaxed`: each is a number of its own.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// Of each entry point.
    pub(crate) limits: Box<[Plain]>,
    pub(crate) burst: AtomicUsize,
    pub(crate) lend_above: AtomicUsize,
    /// How long an event may wait; 0: all workers are active, whatever waits.
    pub(crate) latency_ns: Plain,
}

impl Tuning {
    fn new(config: &Config) -> Tuning {
        let limits = config.entries.iter();
        Tuning {
            limits: limits.map(|limit| Plain::new(*limit as u64)).collect(),
            burst: AtomicUsize::new(config.burst),
            lend_above: AtomicUsize::new(config.lend_above),
            latency_ns: Plain::new(nanoseconds(config.latency)),
        }
    }
}

/// 0 stands for none.
pub(crate) fn nanoseconds(latency: Option<std::time::Duration>) -> u64 {
    let of = |latency: std::time::Duration| u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    latency.map_or(0, |latency| of(latency).max(1))
}

impl Shared {
    pub(crate) fn new(graph: &Graph, config: &Config) -> Shared {
        let (workers, entries) = (config.workers, config.entries.len());
        let stages = &graph.stages;
        let names = stages.iter().map(|stage| stage.name.clone()).collect();
        let kinds: Vec<_> = stages.iter().map(|stage| stage.kind).collect();
        let fusion = Fusion::new(stages.iter().map(|stage| stage.fused).collect());
        let place = |pin: &Pin| (pin.place(), pin.worker);
        let pins: Pins = graph.pins.iter().map(place).collect();
        let makers = stages.iter().map(|stage| stage.maker.clone()).collect();
        let zeros = |_| Apart((0..entries).map(|_| AtomicU64::new(0)).collect());
        let seen = |_| Apart(Seen::new(stages.len()));
        let entered = |_| Apart(EntrySeen::new(stages.len()));
        Shared {
            owners: Owners::new(kinds.len(), workers, &pins, |stage| {
                fusion.groups_before(stage)
            }),
            pins,
            states: States::new(kinds.len()),
            fusion,
            names,
            kinds,
            makers: Makers(makers),
            workers,
            entries,
            tuning: Tuning::new(config),
            active: Apart(Plain::new(u64::MAX >> (u64::BITS as usize - workers))),
            senders: (0..workers + entries).map(|_| Sending::default()).collect(),
            beds: (0..workers).map(|_| Bed::default()).collect(),
            loads: (0..workers).map(|_| Apart::default()).collect(),
            loans: (0..workers).map(|_| Loans::default()).collect(),
            gone: (0..workers).map(zeros).collect(),
            seen: (0..workers).map(seen).collect(),
            entered: (0..entries).map(entered).collect(),
        }
    }

    /// Which workers are active, by bits.
    #[inline]
    pub(crate) fn active(&self) -> u64 {
        // Acquire: pairs with the changes in `worker::activity`, which are AcqRel; nothing else hangs on it.
        self.active.0.load(Ordering::Acquire)
    }

    /// A worker's load, as far as others know, in thousandths of a processor.
    #[inline]
    pub(crate) fn load(&self, worker: usize, now: u64) -> u64 {
        self.loads[worker].0.load(now)
    }

    /// The next active worker, from one on.
    #[inline]
    pub(crate) fn next_active(&self, from: usize) -> usize {
        let active = self.active();
        let later = active >> from << from;
        let first = if later == 0 { active } else { later };
        first.trailing_zeros() as usize % self.workers
    }

    /// So many more of an entry point's events have left than were made; only the worker itself counts.
    #[inline]
    pub(crate) fn count_gone(&self, worker: usize, entry: usize, events: u64) {
        let gone = &self.gone[worker].0[entry];
        // Release: pairs with the acquire in `gone_of`. Relaxed: nobody else writes.
        gone.store(
            gone.load(Ordering::Relaxed).wrapping_add(events),
            Ordering::Release,
        );
    }

    /// How many of an entry point's events have left, less those that were made of them.
    pub(crate) fn gone_of(&self, entry: usize) -> u64 {
        self.gone.iter().fold(0, |sum: u64, worker| {
            sum.wrapping_add(worker.0[entry].load(Ordering::Acquire))
        })
    }

    /// Wakes those that were sent something, by bits.
    #[inline]
    pub(crate) fn wake(&self, workers: u64) {
        // SeqCst: pairs with the one in `Bed::lie_down`: either the sleeper sees what was sent, or we see that it sleeps.
        fence(Ordering::SeqCst);
        let mut left = workers;
        while left != 0 {
            self.beds[left.trailing_zeros() as usize].rouse();
            left &= left - 1;
        }
    }
}

type Waker = Arc<dyn Fn() + Send + Sync>;

/// Where a worker sleeps.
#[derive(Default)]
pub(crate) struct Bed {
    sleeps: Apart<AtomicBool>,
    /// What wakes it: locked by whoever does, when it sleeps, and when another thread comes to run it.
    waker: Mutex<Option<Waker>>,
}

impl std::fmt::Debug for Bed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bed, sleeps: {:?}", self.sleeps.0)
    }
}

impl Bed {
    /// It is this thread's, which parks.
    pub(crate) fn own(&self) {
        let thread = std::thread::current();
        self.wake_with(move || thread.unpark());
    }

    /// What wakes who sleeps here, from now on.
    pub(crate) fn wake_with(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(wake));
    }

    /// From here on it is woken; what was sent before is to be looked for once more.
    pub(crate) fn lie_down(&self) {
        self.sleeps.0.store(true, Ordering::Relaxed);
        // SeqCst: see `Shared::wake`.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn get_up(&self) {
        self.sleeps.0.store(false, Ordering::Relaxed);
    }

    #[cold]
    fn wake(&self) {
        let lock = self.waker.lock();
        let waker = Option::clone(&lock.unwrap_or_else(PoisonError::into_inner));
        // The lock is free again: whoever is woken may be as quick as it likes.
        if let Some(wake) = waker {
            wake();
        }
    }

    pub(crate) fn rouse(&self) {
        // Most are awake: a swap would take the line from them.
        if self.sleeps.0.load(Ordering::Relaxed) && self.sleeps.0.swap(false, Ordering::AcqRel) {
            self.wake();
        }
    }
}
