//! What it takes to wake a worker that sleeps, until it has an event, and what processor time it takes while it sleeps.
//!
//! `wake [EVENTS]`: 2 000, half a millisecond apart, unless told.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_sched::placement::{Machine, pin};
use millrace_sched::{Config, Event, Graph, Kind, Out, Running, build};

fn main() -> Result<(), Box<dyn Error>> {
    let events = std::env::args()
        .nth(1)
        .map_or(Ok(2000), |word| word.parse::<u64>())?;
    let begin = Instant::now();
    let came_ns = Arc::new(AtomicU64::new(0));
    let mut graph = Graph::new();
    let came = came_ns.clone();
    let stage = graph.stage("only", Kind::Atomic, move |_| {
        let came = came.clone();
        move |_: &[Event], _: &mut Out| {
            came.store(begin.elapsed().as_nanos() as u64, Ordering::Release);
        }
    });
    let (workers, mut entries) = build(&graph, &Config::new(1))?;
    let processors = Machine::detect().choose(2, None);
    let running = Running::start_on(workers, Duration::ZERO, &processors)?;
    pin(*processors.last().ok_or("there is no processor")?)?;
    let mut took = Vec::new();
    for number in 0..events {
        std::thread::sleep(Duration::from_micros(500));
        let event = entries[0].event(stage, 0, number);
        came_ns.store(0, Ordering::Relaxed);
        let sent = begin.elapsed().as_nanos() as u64;
        entries[0].enter(&[event]);
        let came = loop {
            match came_ns.load(Ordering::Acquire) {
                0 => std::hint::spin_loop(),
                came => break came,
            }
        };
        took.push(came - sent);
    }
    took.sort_unstable();
    let at = |share: usize| took[(took.len() - 1) * share / 100] as f64 / 1e3;
    println!("woken after {:.1} us, median; p99 {:.1} us", at(50), at(99));
    let before = processor_ticks()?;
    std::thread::sleep(Duration::from_secs(5));
    let used = processor_ticks()? - before;
    println!("asleep for 5 s: {used} hundredths of a second of processor time");
    running.stop();
    Ok(())
}

/// What this process has used, in ticks of 10 ms.
fn processor_ticks() -> Result<u64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let ticks = fields.skip(11).take(2).map(str::parse::<u64>);
    Ok(ticks.sum::<Result<u64, _>>()?)
}
