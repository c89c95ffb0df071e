//! Events through the scheduler: `millrace load events`.
//!
//! One thread lets events in, in batches, and workers on processors of their own bring them through atomic stages, each of which works for
//! so many cycles, or not at all. What has come in is what the last stage has to have seen when all is over.

use std::fmt;
use std::fs;
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_sched::placement::pin;
use millrace_sched::toeplitz::{STANDARD_KEY, Toeplitz};
use millrace_sched::{Config, Entry, Event, Graph, Kind, Out, Running, Snapshot, StageId, build};
use serde::{Deserialize, Serialize};

mod simulated;
#[cfg(test)]
mod tests;
mod toeplitz;

pub use simulated::simulate;
pub(crate) use toeplitz::expected_sum;
use toeplitz::naive;
pub use toeplitz::{Hash, Hashed, hashes};

/// Steps of [`work`] depend on each other: six cycles each, where shifts and exclusive ors take one.
const CYCLES_OF_STEP: u64 = 6;
/// Who finds no room so often in a row lets others have the processor: the worker may be waiting for it.
const REFUSALS: u32 = 1000;
/// Batches between two looks at the clock.
const BATCHES: u32 = 64;
/// How long workers look for events before they sleep.
const PATIENCE: Duration = Duration::from_millis(1);
/// What has come in has gone by then.
const DRAIN: Duration = Duration::from_secs(10);
const BATCH_MAX: usize = 1024;

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Load {
    /// Atomic stages, one behind the other.
    pub stages: usize,
    /// How long each works for an event, in cycles, about.
    pub cycles: u64,
    /// How many flows there are.
    pub flows: u32,
    /// How long events are let in.
    pub seconds: f64,
    /// Whether stages stay together; none: as is measured.
    pub fused: Option<bool>,
    /// How many workers there are.
    pub workers: usize,
    /// Their processors, as far as they are named, and behind those that of who lets events in.
    pub processors: Vec<usize>,
    /// Events that are let in together.
    pub enqueue: usize,
    /// Events that a stage gets at once, at most.
    pub dequeue: usize,
    /// Events that may be in the graph.
    pub limit: usize,
    /// What flows are found by; none: they take turns.
    pub hash: Option<Hash>,
    /// Where a picture of it goes.
    pub picture: Option<PathBuf>,
}

/// What a stage did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Events that came together, on the average.
    pub batch: f64,
    /// What an event costs, in nanoseconds.
    pub cost_ns: u64,
    /// Whether it stays with the stage before it, and why: `First`, `Cheap`, `Dear`, `Pinned(true)`.
    pub fused: String,
}

/// What has passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// Events a second.
    pub rate: f64,
    /// Events that were let in.
    pub events: u64,
    /// How often there was no room for one.
    pub refused: u64,
    /// How long it took.
    pub seconds: f64,
    /// Of each stage.
    pub stages: Vec<Stage>,
    /// What it costs to hand an event to another worker, in nanoseconds.
    pub hand_over_ns: u64,
}

impl fmt::Display for Passed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (millions, stages) = (self.rate / 1e6, self.stages.len());
        write!(f, "{millions:.2} M events/s through {stages} stages")?;
        for (number, stage) in self.stages.iter().enumerate() {
            write!(
                f,
                "\n  stage {number}   batches of {:.1}, {} ns an event, {}",
                stage.batch, stage.cost_ns, stage.fused
            )?;
        }
        write!(f, "\n  a hand-over costs {} ns an event", self.hand_over_ns)
    }
}

/// Works for about so many cycles.
#[inline]
fn work(cycles: u64, seed: u64) -> u64 {
    // xorshift64, Marsaglia 2003.
    let mut state = seed | 1;
    for _ in 0..cycles / CYCLES_OF_STEP {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    state
}

/// So many stages, which do `act` with the values of their events, and the last of which counts what it has seen; the first of them.
fn graph(
    load: &Load,
    seen: &Arc<AtomicU64>,
    act: impl Fn(&[Event]) + Clone + Send + Sync + 'static,
) -> (Graph, Option<StageId>) {
    let mut graph = Graph::new();
    let mut first = None;
    for number in 0..load.stages {
        let is_last = number + 1 == load.stages;
        let name = format!("stage {number}");
        let (seen, act) = (Arc::clone(seen), act.clone());
        let stage = graph.stage(&name, Kind::Atomic, move |_| {
            let (seen, act) = (Arc::clone(&seen), act.clone());
            move |events: &[Event], out: &mut Out| {
                act(events);
                if is_last {
                    seen.fetch_add(events.len() as u64, Ordering::Relaxed);
                } else if let Some(event) = events.first() {
                    out.forward_all(events, event.stage.after());
                }
            }
        });
        if let Some(fused) = load.fused.filter(|_| number > 0) {
            graph.fuse(stage, fused);
        }
        first.get_or_insert(stage);
    }
    (graph, first)
}

/// Which flow the next event is of.
struct Flows {
    count: u32,
    next: u32,
    hash: Option<Hash>,
    tables: Toeplitz,
}

impl Flows {
    #[inline]
    fn next(&mut self) -> u32 {
        self.next = if self.next + 1 >= self.count {
            0
        } else {
            self.next + 1
        };
        let Some(hash) = self.hash else {
            return self.next;
        };
        let mut tuple = [198, 18, 0, 0, 198, 19, 0, 1, 0, 9, 0, 9];
        tuple[..4].copy_from_slice(&self.next.to_be_bytes());
        match hash {
            Hash::Naive => naive(black_box(&tuple)),
            Hash::Tables => self.tables.hash(black_box(&tuple)),
        }
    }
}

/// A day is what nobody needs, and what every clock has room for.
fn check_time(seconds: f64) -> Result<()> {
    const LONGEST_SECONDS: f64 = 86_400.0;
    ensure!(
        seconds > 0.0 && seconds <= LONGEST_SECONDS,
        "it goes on for up to {LONGEST_SECONDS} seconds, not {seconds}"
    );
    Ok(())
}

/// Lets events through until the time is over, or `stop` is set.
///
/// # Errors
/// What cannot be; events that were lost.
pub fn run(load: &Load, stop: &AtomicBool) -> Result<Passed> {
    ensure!(
        load.flows > 0 && (1..=BATCH_MAX).contains(&load.enqueue),
        "there is a flow at least, and 1 to {BATCH_MAX} events are let in together"
    );
    check_time(load.seconds)?;
    let seen = Arc::new(AtomicU64::new(0));
    let cycles = load.cycles;
    let (graph, first) = graph(load, &seen, move |events| {
        if cycles > 0 {
            for event in events {
                black_box(work(cycles, event.value));
            }
        }
    });
    let first = first.context("there is a stage at least")?;
    let config = Config {
        entries: vec![load.limit],
        burst: load.dequeue,
        ring: load.limit.next_power_of_two().max(8192),
        ..Config::new(load.workers)
    };
    let (workers, mut entries) = build(&graph, &config)?;
    let entry = entries.first_mut().context("there is no way in")?;
    let control = entry.control();
    let named = load.processors.len().min(load.workers);
    let running = Running::start_on(workers, PATIENCE, &load.processors[..named])?;
    if let Some(processor) = load.processors.get(load.workers) {
        pin(*processor).with_context(|| format!("processor {processor} cannot be had"))?;
    }
    let before = control.snapshot();
    let begin = Instant::now();
    let events = enter(entry, first, load, stop);
    let elapsed = begin.elapsed();
    let shown = control.snapshot().since(&before);
    let drained = Instant::now();
    while entry.inside() > 0 && drained.elapsed() < DRAIN {
        entry.flush();
        std::thread::yield_now();
    }
    running.stop();
    let seen = seen.load(Ordering::Relaxed);
    ensure!(
        seen == events,
        "{events} events came in, and {seen} went out"
    );
    if let Some(picture) = &load.picture {
        let written = fs::write(picture, shown.svg());
        written.with_context(|| format!("cannot write {}", picture.display()))?;
    }
    Ok(passed(load, events, elapsed, entry.refused(), &shown))
}

/// How many events came in.
fn enter(entry: &mut Entry, first: StageId, load: &Load, stop: &AtomicBool) -> u64 {
    let mut batch: Vec<Event> = (0..)
        .take(load.enqueue)
        .map(|value| entry.event(first, 0, value))
        .collect();
    let mut flows = Flows {
        count: load.flows,
        next: 0,
        hash: load.hash,
        tables: Toeplitz::new(&STANDARD_KEY),
    };
    let time = Duration::from_secs_f64(load.seconds);
    let (begin, mut entered, mut refused) = (Instant::now(), 0, 0);
    while begin.elapsed() < time && !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCHES {
            for event in &mut batch {
                event.flow = flows.next();
            }
            let mut left = &batch[..];
            while !left.is_empty() {
                let now = entry.gather(left);
                left = &left[now..];
                entered += now as u64;
                refused = if now == 0 { refused + 1 } else { 0 };
                if refused > REFUSALS {
                    std::thread::yield_now();
                } else if refused > 0 {
                    std::hint::spin_loop();
                }
            }
        }
    }
    entered
}

fn passed(load: &Load, events: u64, elapsed: Duration, refused: u64, shown: &Snapshot) -> Passed {
    let seconds = elapsed.as_secs_f64();
    let stages = shown.stages.iter().take(load.stages).map(|stage| Stage {
        batch: stage.work.batch(),
        cost_ns: stage.work.cost_ns,
        fused: format!("{:?}", stage.fused),
    });
    Passed {
        rate: events as f64 / seconds,
        events,
        refused,
        seconds,
        stages: stages.collect(),
        hand_over_ns: shown.hand_over_ns,
    }
}
