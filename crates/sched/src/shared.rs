//! What all workers and entry points of a scheduler see.

use std::sync::OnceLock;
use std::thread::Thread;

use crate::atomic::{Apart, AtomicBool, AtomicU64, Ordering, fence};
use crate::fusion::Fusion;
use crate::graph::{Kind, Stage};
use crate::map::{Owners, Sending};
use crate::worker::Loans;

/// What all of them see.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) names: Vec<String>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) fusion: Fusion,
    pub(crate) workers: usize,
    pub(crate) owners: Owners,
    /// Of workers, and of entry points behind them.
    pub(crate) senders: Box<[Sending]>,
    pub(crate) beds: Box<[Bed]>,
    /// Of each worker, in thousandths of a processor.
    pub(crate) loads: Box<[Apart<AtomicU64>]>,
    /// Of each worker.
    pub(crate) loans: Box<[Loans]>,
    /// Of each worker: events of each entry point that left the graph, less those that were made in it.
    gone: Box<[Apart<Box<[AtomicU64]>>]>,
}

impl Shared {
    pub(crate) fn new(stages: &[Stage], workers: usize, entries: usize) -> Shared {
        let names = stages.iter().map(|stage| stage.name.clone()).collect();
        let kinds: Vec<_> = stages.iter().map(|stage| stage.kind).collect();
        let pins = stages.iter().map(|stage| stage.fused).collect();
        let zeros = |_| Apart((0..entries).map(|_| AtomicU64::new(0)).collect());
        Shared {
            owners: Owners::new(kinds.len(), workers),
            fusion: Fusion(pins),
            names,
            kinds,
            workers,
            senders: (0..workers + entries).map(|_| Sending::default()).collect(),
            beds: (0..workers).map(|_| Bed::default()).collect(),
            loads: (0..workers).map(|_| Apart::default()).collect(),
            loans: (0..workers).map(|_| Loans::default()).collect(),
            gone: (0..workers).map(zeros).collect(),
        }
    }

    /// So many more of an entry point's events have left than were made; only the worker itself counts.
    #[inline]
    pub(crate) fn count_gone(&self, worker: usize, entry: u8, events: u64) {
        let gone = &self.gone[worker].0[usize::from(entry)];
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

/// Where a worker sleeps.
#[derive(Debug, Default)]
pub(crate) struct Bed {
    sleeps: Apart<AtomicBool>,
    thread: OnceLock<Thread>,
}

impl Bed {
    /// Whose it is.
    pub(crate) fn own(&self) {
        let _ = self.thread.set(std::thread::current());
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

    pub(crate) fn rouse(&self) {
        // Most are awake: a swap would take the line from them.
        if self.sleeps.0.load(Ordering::Relaxed)
            && self.sleeps.0.swap(false, Ordering::AcqRel)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}
