//! The same in virtual time: what workers bring that have a processor each, however few there are here.
//!
//! Each worker has a time of its own, and the one that is behind all others has its turn. A stage takes so long for an event, and handing
//! one over takes what the scheduler reckons with. Caches, memory and the producer take nothing: it is what the scheduler's own decisions
//! leave of the workers, and no figure of a machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use millrace_sched::{Config, Event, HAND_OVER_NS, Snapshot, Worker, build_in_virtual_time};

use super::{Load, Passed, check_time, graph, passed};

/// A worker without anything to do looks again so much later.
const LOOK_NS: u64 = 100;
/// How many turns of all workers go on credit: looking takes time here.
const TURNS_BETWEEN_CHARGES: u32 = 256;
/// What is left at the end has gone after so many turns of each.
const DRAIN_TURNS: usize = 1_000_000;

/// Plays `seconds` of virtual time, in which a stage takes `cost_ns` for an event.
///
/// # Errors
/// What cannot be; events that were lost.
pub fn simulate(load: &Load, cost_ns: u64, stop: &AtomicBool) -> Result<Passed> {
    ensure!(
        load.flows > 0 && cost_ns > 0,
        "there is a flow at least, and a stage takes time"
    );
    check_time(load.seconds)?;
    let now = Arc::new(AtomicU64::new(0));
    let seen = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now);
    let (graph, first) = graph(load, &seen, move |events| {
        clock.fetch_add(cost_ns * events.len() as u64, Ordering::Relaxed);
    });
    let first = first.context("there is a stage at least")?;
    let config = Config {
        entries: vec![load.limit * load.workers],
        burst: load.dequeue,
        ..Config::new(load.workers)
    };
    let (workers, mut entries) = build_in_virtual_time(&graph, &config, &now)?;
    let entry = entries.first_mut().context("there is no way in")?;
    let control = entry.control();
    let mut field = Field::new(workers, Arc::clone(&now));
    let batch: Vec<Event> = (0..)
        .take(load.enqueue)
        .map(|value| entry.event(first, 0, value))
        .collect();
    let end_ns = (load.seconds * 1e9) as u64;
    let (mut flow, mut entered, mut turns) = (0, 0, 0u32);
    while field.behind() < end_ns && !stop.load(Ordering::Relaxed) {
        // Whoever lets events in is never what they wait for.
        let mut events = batch.clone();
        loop {
            for event in &mut events {
                flow = if flow + 1 >= load.flows { 0 } else { flow + 1 };
                event.flow = flow;
            }
            let taken = entry.enter(&events);
            entered += taken as u64;
            if taken < events.len() {
                break;
            }
        }
        field.turn();
        turns += 1;
        if turns % TURNS_BETWEEN_CHARGES == 0 {
            field.charge(&control.snapshot());
        }
    }
    let (within, elapsed_ns) = (seen.load(Ordering::Relaxed), field.behind().max(1));
    let shown = control.snapshot();
    for _ in 0..DRAIN_TURNS {
        if entry.inside() == 0 {
            break;
        }
        field.turn();
    }
    let seen = seen.load(Ordering::Relaxed);
    ensure!(
        seen == entered,
        "{entered} events came in, and {seen} went out"
    );
    let elapsed = std::time::Duration::from_nanos(elapsed_ns);
    Ok(passed(load, within, elapsed, entry.refused(), &shown))
}

/// Workers, each with its own time.
struct Field {
    workers: Vec<Worker>,
    times_ns: Vec<u64>,
    handed: Vec<u64>,
    now: Arc<AtomicU64>,
}

impl Field {
    fn new(workers: Vec<Worker>, now: Arc<AtomicU64>) -> Field {
        Field {
            times_ns: vec![0; workers.len()],
            handed: vec![0; workers.len()],
            workers,
            now,
        }
    }

    /// The time of the one that is behind all others.
    fn behind(&self) -> u64 {
        self.times_ns.iter().copied().min().unwrap_or_default()
    }

    /// Its turn.
    fn turn(&mut self) {
        let times = self.times_ns.iter().enumerate();
        let Some((number, &begin)) = times.min_by_key(|(_, time)| **time) else {
            return;
        };
        self.now.store(begin, Ordering::Relaxed);
        let handled = self.workers[number].turn(1);
        let end = self.now.load(Ordering::Relaxed);
        self.times_ns[number] = if handled > 0 { end } else { end + LOOK_NS };
    }

    /// Each pays for its half of what was handed over since it paid last.
    fn charge(&mut self, shown: &Snapshot) {
        for (number, worker) in shown.workers.iter().enumerate() {
            let handed = worker.sent + worker.received;
            self.times_ns[number] += (handed - self.handed[number]) * HAND_OVER_NS / 2;
            self.handed[number] = handed;
        }
    }
}
