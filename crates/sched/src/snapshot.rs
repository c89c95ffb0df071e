//! All figures of a scheduler at a time, as plain numbers: for a table, for metrics, for a picture.

use std::time::Duration;

use crate::balance::Elephant;
use crate::fusion::Fused;
use crate::graph::Kind;
use crate::seen::{Figure, SIZES, Seen, StageSeen};
use crate::shared::Shared;

/// All figures. Those that only grow are since the graph was built: the difference of two snapshots is what happened between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// When it was taken, in nanoseconds since the graph was built.
    pub at_ns: u64,
    /// What handing an event to another worker costs both, in nanoseconds, as measured when the workers started.
    pub hand_over_ns: u64,
    /// How long an event may wait, if that is bounded.
    pub latency: Option<Duration>,
    /// Of each stage.
    pub stages: Vec<StageFigures>,
    /// Of each worker.
    pub workers: Vec<WorkerFigures>,
    /// Of each entry point.
    pub entries: Vec<EntryFigures>,
    /// Between stages: those that any event ever took.
    pub flows: Vec<FlowFigures>,
}

/// Of a stage, all workers together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageFigures {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// Whether it stays with the stage before it, and why.
    pub fused: Fused,
    /// What workers did there; the cost is the mean, by events.
    pub work: WorkFigures,
    /// Events that it dropped, by causes that it did drop any for.
    pub drops: Vec<(u8, u64)>,
}

/// What is done at a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkFigures {
    /// Events that were handled.
    pub events: u64,
    /// Batches that they came in.
    pub batches: u64,
    /// The same by size: of 1, 2 and 3, 4 to 7, and so on, up to 1024.
    pub batches_by_size: [u64; SIZES],
    /// What an event costs, in nanoseconds, of late.
    pub cost_ns: u64,
    /// Events that wait.
    pub waiting: u64,
    /// How many have waited, at most; of all workers, at one of them.
    pub waiting_max: u64,
    /// Events that were dropped by the program's own causes.
    pub dropped: u64,
    /// Events that were lost because the handler that had them panicked, or handed them to a stage that there is not.
    pub lost: u64,
}

/// Of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFigures {
    /// Whether it has flows, or is to have some.
    pub is_active: bool,
    /// Whether nothing is given to it because its handler has panicked.
    pub is_ill: bool,
    /// The processor that it was given by [`crate::placement`], if it was.
    pub processor: Option<usize>,
    /// The share of time with work, in thousandths.
    pub load: u64,
    /// Buckets of flows that it has; each counts for each stage.
    pub buckets: u64,
    /// Buckets that it has given to others.
    pub buckets_given: u64,
    /// Buckets that it has got from others.
    pub buckets_taken: u64,
    /// Buckets that it has given together with what its handler had kept of them.
    pub states_given: u64,
    /// Buckets that it has got together with what another handler had kept of them.
    pub states_taken: u64,
    /// What a handler had kept of a bucket, and was lost when the bucket moved: giving it up or getting it panicked, or there was no
    /// handler. What is lost with a handler that panics is not counted.
    pub states_lost: u64,
    /// What it did at each stage.
    pub work: Vec<WorkFigures>,
    /// Events and words that came to it from entry points and other workers.
    pub received: u64,
    /// Events and words that it sent to other workers.
    pub sent: u64,
    /// Events that wait for room in another worker's ring.
    pub pending: u64,
    /// Events that are kept until their bucket has come.
    pub held: u64,
    /// Events that are lent to others, or wait for what is.
    pub lent: u64,
    /// Batches of others that it has done.
    pub borrowed: u64,
    /// Events that were put off.
    pub timers: u64,
    /// How long an event has waited for its turn at most, in nanoseconds, by what was there before it; where waiting is bounded.
    pub wait_max_ns: u64,
    /// How often it went to sleep.
    pub parks: u64,
    /// How long it has slept.
    pub parked_ns: u64,
    /// Workers that it has called up, having had too much to do.
    pub called: u64,
    /// How often it stood down, others having had room for its work.
    pub stood_down: u64,
    /// How often a handler of its panicked.
    pub panics: u64,
    /// Flows that are much for one worker.
    pub elephants: Vec<ElephantFigures>,
}

/// A flow that is much for one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElephantFigures {
    /// Its key.
    pub flow: u32,
    /// Its share of a processor, in thousandths.
    pub load: u64,
}

/// Of an entry point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryFigures {
    /// Events that came in, by stage.
    pub entered: Vec<u64>,
    /// Events that did not.
    pub refused: u64,
    /// How many of its events are in the graph.
    pub inside: u64,
    /// How many may be.
    pub limit: u64,
}

/// Events that went from a stage to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowFigures {
    /// The stage that handed them on.
    pub from: usize,
    /// The stage that they were for.
    pub to: usize,
    /// How many.
    pub events: u64,
}

impl WorkFigures {
    fn of(seen: &StageSeen) -> WorkFigures {
        WorkFigures {
            events: seen.events.get(),
            batches: seen.batches.get(),
            batches_by_size: seen.sizes.each_ref().map(Figure::get),
            cost_ns: seen.cost_ns.get(),
            waiting: seen.waiting.get(),
            waiting_max: seen.waiting_max.get(),
            dropped: seen.drops.iter().map(Figure::get).sum(),
            lost: seen.lost.get(),
        }
    }

    /// The same of several workers.
    fn sum<'a>(all: impl Iterator<Item = &'a WorkFigures>) -> WorkFigures {
        let (mut sum, mut cost) = (WorkFigures::default(), 0u128);
        for work in all {
            sum.events += work.events;
            sum.batches += work.batches;
            for (sum, more) in sum.batches_by_size.iter_mut().zip(work.batches_by_size) {
                *sum += more;
            }
            cost += u128::from(work.cost_ns) * u128::from(work.events);
            sum.waiting += work.waiting;
            sum.waiting_max = sum.waiting_max.max(work.waiting_max);
            sum.dropped += work.dropped;
            sum.lost += work.lost;
        }
        sum.cost_ns = (cost / u128::from(sum.events.max(1))) as u64;
        sum
    }

    /// Events of a batch, in the mean.
    #[must_use]
    pub fn batch(&self) -> f64 {
        self.events as f64 / self.batches.max(1) as f64
    }
}

impl WorkerFigures {
    fn of(shared: &Shared, worker: usize, now: u64) -> WorkerFigures {
        let seen: &Seen = &shared.seen[worker].0;
        // Who sleeps does not look for what it has no longer.
        let is_asleep = shared.loads[worker].0.is_long_asleep(now);
        let elephants = seen
            .elephants
            .iter()
            .filter(|_| !is_asleep)
            .map(Figure::get);
        let elephants = elephants.filter_map(Elephant::unpack);
        WorkerFigures {
            is_active: shared.active() >> worker & 1 != 0,
            is_ill: seen.ill_until_ns.get() > now,
            processor: seen.processor.get().checked_sub(1).map(|at| at as usize),
            load: if is_asleep { 0 } else { seen.load.get() },
            buckets: seen.owned.get(),
            buckets_given: seen.given.get(),
            buckets_taken: seen.taken.get(),
            states_given: seen.states_given.get(),
            states_taken: seen.states_taken.get(),
            states_lost: seen.states_lost.get(),
            work: seen.stages.iter().map(WorkFigures::of).collect(),
            received: seen.received.get(),
            sent: seen.sent.get(),
            pending: seen.pending.get(),
            held: seen.held.get(),
            lent: seen.lent.get(),
            borrowed: seen.borrowed.get(),
            timers: seen.timers.get(),
            wait_max_ns: seen.wait_max_ns.get(),
            parks: seen.parks.get(),
            parked_ns: seen.parked_ns.get(),
            called: seen.called.get(),
            stood_down: seen.stood_down.get(),
            panics: seen.panics.get(),
            elephants: elephants
                .map(|Elephant { flow, load }| ElephantFigures { flow, load })
                .collect(),
        }
    }
}

impl Snapshot {
    pub(crate) fn take(shared: &Shared, now: u64) -> Snapshot {
        let workers: Vec<_> = (0..shared.workers)
            .map(|worker| WorkerFigures::of(shared, worker, now))
            .collect();
        let stages = (0..shared.kinds.len()).map(|stage| {
            let work = WorkFigures::sum(workers.iter().map(|worker| &worker.work[stage]));
            let by_cause = |cause: usize| {
                let of = shared.seen.iter();
                of.map(|seen| seen.0.stages[stage].drops[cause].get())
                    .sum::<u64>()
            };
            let drops = (0..=u8::MAX).map(|cause| (cause, by_cause(usize::from(cause))));
            StageFigures {
                name: shared.names[stage].clone(),
                kind: shared.kinds[stage],
                fused: shared.fusion.of(stage, work.cost_ns),
                drops: drops.filter(|(_, count)| *count > 0).collect(),
                work,
            }
        });
        let latency_ns = shared
            .tuning
            .latency_ns
            .load(std::sync::atomic::Ordering::Relaxed);
        Snapshot {
            at_ns: now,
            hand_over_ns: shared.fusion.hand_over_ns(),
            latency: (latency_ns > 0).then(|| Duration::from_nanos(latency_ns)),
            stages: stages.collect(),
            entries: (0..shared.entries)
                .map(|entry| entry_of(shared, entry))
                .collect(),
            flows: flows(shared),
            workers,
        }
    }

    /// What happened since an earlier one: figures that grow are less by what they were, the others as they are.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let mut now = self.clone();
        now.at_ns = now.at_ns.saturating_sub(earlier.at_ns);
        for (now, before) in now.stages.iter_mut().zip(&earlier.stages) {
            now.work.subtract(&before.work);
            for (cause, count) in &mut now.drops {
                let same = before.drops.iter().find(|(known, _)| known == cause);
                *count -= same.map_or(0, |(_, count)| *count).min(*count);
            }
        }
        for (now, before) in now.workers.iter_mut().zip(&earlier.workers) {
            now.subtract(before);
        }
        for (now, before) in now.entries.iter_mut().zip(&earlier.entries) {
            for (now, before) in now.entered.iter_mut().zip(&before.entered) {
                *now = now.saturating_sub(*before);
            }
            now.refused = now.refused.saturating_sub(before.refused);
        }
        for flow in &mut now.flows {
            let is_same = |before: &&FlowFigures| (before.from, before.to) == (flow.from, flow.to);
            let before = earlier.flows.iter().find(is_same);
            flow.events -= before.map_or(0, |before| before.events).min(flow.events);
        }
        now
    }
}

impl WorkFigures {
    fn subtract(&mut self, before: &WorkFigures) {
        let less = |now: &mut u64, before: u64| *now = now.saturating_sub(before);
        less(&mut self.events, before.events);
        less(&mut self.batches, before.batches);
        less(&mut self.dropped, before.dropped);
        less(&mut self.lost, before.lost);
        for (now, before) in self.batches_by_size.iter_mut().zip(before.batches_by_size) {
            less(now, before);
        }
    }
}

impl WorkerFigures {
    fn subtract(&mut self, before: &WorkerFigures) {
        let less = |now: &mut u64, before: u64| *now = now.saturating_sub(before);
        less(&mut self.buckets_given, before.buckets_given);
        less(&mut self.buckets_taken, before.buckets_taken);
        less(&mut self.states_given, before.states_given);
        less(&mut self.states_taken, before.states_taken);
        less(&mut self.states_lost, before.states_lost);
        less(&mut self.received, before.received);
        less(&mut self.sent, before.sent);
        less(&mut self.borrowed, before.borrowed);
        less(&mut self.parks, before.parks);
        less(&mut self.parked_ns, before.parked_ns);
        less(&mut self.called, before.called);
        less(&mut self.stood_down, before.stood_down);
        less(&mut self.panics, before.panics);
        for (now, before) in self.work.iter_mut().zip(&before.work) {
            now.subtract(before);
        }
    }
}

fn entry_of(shared: &Shared, entry: usize) -> EntryFigures {
    let seen = &shared.entered[entry].0;
    let entered: Vec<u64> = seen.entered.iter().map(Figure::get).collect();
    let came: u64 = entered.iter().sum();
    // Read one after another: some that have gone may not have been seen coming.
    let inside = came.wrapping_sub(shared.gone_of(entry));
    EntryFigures {
        inside: if inside > u64::MAX / 2 { 0 } else { inside },
        refused: seen.refused.get(),
        limit: shared.tuning.limits[entry].load(std::sync::atomic::Ordering::Relaxed),
        entered,
    }
}

fn flows(shared: &Shared) -> Vec<FlowFigures> {
    let stages = shared.kinds.len();
    let pairs = (0..stages).flat_map(|from| (0..stages).map(move |to| (from, to)));
    let flows = pairs.map(|(from, to)| {
        let of = shared.seen.iter();
        let events = of.map(|seen| seen.0.stages[from].handed_on[to].get()).sum();
        FlowFigures { from, to, events }
    });
    flows.filter(|flow| flow.events > 0).collect()
}
