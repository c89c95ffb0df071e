//! How many events a worker does in a second: one thread lets them in, another one is the worker.
//!
//! `rate [STAGES [FLOWS [SECONDS]]]`: atomic stages that do nothing, four, 1 024 and 3 unless told. Pinned to processors 0 and 1.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use millrace_sched::{Config, Event, Graph, Kind, Out, Running, build};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

fn pin(processor: usize) {
    let mut set = CpuSet::new();
    // Of a machine with one processor both threads share it.
    if set.set(processor).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut next = |otherwise: u64| words.next().map_or(Ok(otherwise), |word| word.parse());
    let (stages, flows, seconds) = (next(4)?, next(1024)? as u32, next(3)?);
    let mut graph = Graph::new();
    let mut first = None;
    for number in 0..stages {
        let is_last = number + 1 == stages;
        let name = format!("stage {number}");
        let stage = graph.stage(&name, Kind::Atomic, move |_| {
            move |events: &[Event], out: &mut Out| {
                if !is_last {
                    for event in events {
                        out.forward(event.to(event.stage.after()));
                    }
                }
            }
        });
        first.get_or_insert(stage);
    }
    let first = first.ok_or("a graph has a stage")?;
    let (workers, mut entries) = build(&graph, &Config::new(1))?;
    let entry = &mut entries[0];
    let running = Running::start(workers, Duration::from_millis(1), |_| pin(1))?;
    pin(0);
    let mut batch: Vec<Event> = (0..32).map(|value| entry.event(first, 0, value)).collect();
    let (begin, mut flow, mut entered) = (Instant::now(), 0u32, 0u64);
    while begin.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..64 {
            for event in &mut batch {
                flow = (flow + 1) % flows;
                event.flow = flow;
            }
            let mut left = &batch[..];
            while !left.is_empty() {
                let now = entry.enter(left);
                left = &left[now..];
                entered += now as u64;
            }
        }
    }
    let elapsed = begin.elapsed();
    while entry.inside() > 0 {
        std::thread::yield_now();
    }
    let rate = entered as f64 / elapsed.as_secs_f64() / 1e6;
    println!("{rate:.1} M events/s through {stages} stages, {flows} flows");
    for worker in running.stop() {
        for (stage, work) in worker.work() {
            let burst = work.events as f64 / work.batches.max(1) as f64;
            println!(
                "  stage {stage}: bursts of {burst:.1}, {} ns an event",
                work.cost_ns
            );
        }
    }
    Ok(())
}
