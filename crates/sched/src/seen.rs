//! What is counted, where others can read it while it runs: each figure is written by one thread, by a plain store.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Batches are counted by the power of two of their size: 1, 2 and 3, 4 to 7, up to 1024.
pub(crate) const SIZES: usize = 11;
/// Elephants that are shown of each worker, at most.
pub(crate) const ELEPHANTS: usize = 4;

/// A figure of one writer.
#[derive(Debug, Default)]
pub(crate) struct Figure(AtomicU64);

impl Figure {
    // Relaxed, all of it: figures say nothing of each other, and nobody goes by them.
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    #[inline]
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    #[inline]
    pub(crate) fn raise(&self, value: u64) {
        if value > self.get() {
            self.set(value);
        }
    }
}

fn figures(count: usize) -> Box<[Figure]> {
    (0..count).map(|_| Figure::default()).collect()
}

/// What a worker did at a stage.
#[derive(Debug)]
pub(crate) struct StageSeen {
    pub(crate) events: Figure,
    pub(crate) batches: Figure,
    pub(crate) cost_ns: Figure,
    pub(crate) sizes: [Figure; SIZES],
    /// Events that wait, and how many have waited at most.
    pub(crate) waiting: Figure,
    pub(crate) waiting_max: Figure,
    /// By the program's own causes.
    pub(crate) drops: Box<[Figure]>,
    /// Events that a handler had when it panicked.
    pub(crate) lost: Figure,
    /// To each stage: events that were handed on.
    pub(crate) handed_on: Box<[Figure]>,
}

impl StageSeen {
    fn new(stages: usize) -> StageSeen {
        StageSeen {
            events: Figure::default(),
            batches: Figure::default(),
            cost_ns: Figure::default(),
            sizes: std::array::from_fn(|_| Figure::default()),
            waiting: Figure::default(),
            waiting_max: Figure::default(),
            drops: figures(256),
            lost: Figure::default(),
            handed_on: figures(stages),
        }
    }

    /// A batch took so long for each event; it is not counted yet.
    #[inline]
    pub(crate) fn learn_cost(&self, cost_ns: u64) {
        // One that was interrupted is not what work costs.
        let known = self.cost_ns.get();
        self.cost_ns.set(match self.batches.get() {
            0 => cost_ns,
            _ => (7 * known + cost_ns.min(16 * known + 1000)) / 8,
        });
    }

    /// A batch was handled.
    #[inline]
    pub(crate) fn count(&self, events: usize) {
        self.events.add(events as u64);
        self.batches.add(1);
        let size = (events | 1).ilog2() as usize;
        self.sizes[size.min(SIZES - 1)].add(1);
    }
}

/// What there is to see of a worker.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) stages: Box<[StageSeen]>,
    /// In thousandths of a processor.
    pub(crate) load: Figure,
    /// Events that came by the ring, and that went to other workers; words between workers among them.
    pub(crate) received: Figure,
    pub(crate) sent: Figure,
    /// Events that wait to be sent, are kept for buckets that come, are lent, and are timers.
    pub(crate) pending: Figure,
    pub(crate) held: Figure,
    pub(crate) lent: Figure,
    pub(crate) timers: Figure,
    /// Buckets that it has, and that it has given and got; a bucket of each stage is one.
    pub(crate) owned: Figure,
    pub(crate) given: Figure,
    pub(crate) taken: Figure,
    /// What handlers kept of buckets that it gave and got, and what was lost of that on the way.
    pub(crate) states_given: Figure,
    pub(crate) states_taken: Figure,
    pub(crate) states_lost: Figure,
    /// Batches of others that it has done.
    pub(crate) borrowed: Figure,
    pub(crate) parks: Figure,
    pub(crate) parked_ns: Figure,
    pub(crate) panics: Figure,
    /// Workers that it has called up, and how often it stood down itself.
    pub(crate) called: Figure,
    pub(crate) stood_down: Figure,
    /// How long an event that came has waited at most, as far as can be told by what was there before it.
    pub(crate) wait_max_ns: Figure,
    /// The same of late: what was is forgotten slowly.
    pub(crate) late_wait_ns: Figure,
    /// A processor's number, and one.
    pub(crate) processor: Figure,
    /// Flows, with their load in thousandths.
    pub(crate) elephants: [Figure; ELEPHANTS],
    /// Until when nothing is given to it.
    pub(crate) ill_until_ns: Figure,
}

impl Seen {
    pub(crate) fn new(stages: usize) -> Seen {
        let figure = Figure::default;
        Seen {
            stages: (0..stages).map(|_| StageSeen::new(stages)).collect(),
            load: figure(),
            received: figure(),
            sent: figure(),
            pending: figure(),
            held: figure(),
            lent: figure(),
            timers: figure(),
            owned: figure(),
            given: figure(),
            taken: figure(),
            states_given: figure(),
            states_taken: figure(),
            states_lost: figure(),
            borrowed: figure(),
            parks: figure(),
            parked_ns: figure(),
            panics: figure(),
            called: figure(),
            stood_down: figure(),
            wait_max_ns: figure(),
            late_wait_ns: figure(),
            processor: figure(),
            elephants: std::array::from_fn(|_| Figure::default()),
            ill_until_ns: figure(),
        }
    }
}

/// What there is to see of an entry point.
#[derive(Debug)]
pub(crate) struct EntrySeen {
    /// To each stage.
    pub(crate) entered: Box<[Figure]>,
    pub(crate) refused: Figure,
}

impl EntrySeen {
    pub(crate) fn new(stages: usize) -> EntrySeen {
        EntrySeen {
            entered: figures(stages),
            refused: Figure::default(),
        }
    }
}
