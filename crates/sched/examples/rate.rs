//! How many events a worker does in a second: one thread lets them in, another one is the worker.
//!
//! `rate [STAGES [FLOWS [SECONDS [WORKERS [SVG]]]]]`: atomic stages that do nothing, four, 1 024, 3 and one unless told, on processors of
//! their own as far as there are any; SVG is a file for a picture of it.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use millrace_sched::placement::{Machine, pin};
use millrace_sched::{Config, Event, Graph, Kind, Out, Running, Snapshot, StageId, build};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: u64| {
        let word = words.get(at);
        word.map_or(Ok(otherwise), |word| word.parse())
    };
    let (stages, flows, seconds) = (number(0, 4)?, number(1, 1024)? as u32, number(2, 3)?);
    let (graph, first) = graph(stages);
    let first = first.ok_or("a graph has a stage")?;
    let workers = number(3, 1)? as usize;
    let (workers, mut entries) = build(&graph, &Config::new(workers))?;
    let entry = &mut entries[0];
    let control = entry.control();
    // Of a machine with too few, some share one.
    let processors = Machine::detect().choose(workers.len() + 1, None);
    let running = Running::start_on(workers, Duration::from_millis(1), &processors)?;
    pin(*processors.last().ok_or("there is no processor")?)?;
    let mut batch: Vec<Event> = (0..32).map(|value| entry.event(first, 0, value)).collect();
    let before = control.snapshot();
    let (begin, mut flow, mut entered) = (Instant::now(), 0u32, 0u64);
    let mut refused = 0u32;
    while begin.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..64 {
            for event in &mut batch {
                flow = if flow + 1 == flows { 0 } else { flow + 1 };
                event.flow = flow;
            }
            let mut left = &batch[..];
            while !left.is_empty() {
                let now = entry.enter(left);
                left = &left[now..];
                entered += now as u64;
                refused = if now == 0 { refused + 1 } else { 0 };
                if refused > 1000 {
                    // The worker may be waiting for this processor.
                    std::thread::yield_now();
                } else if refused > 0 {
                    std::hint::spin_loop();
                }
            }
        }
    }
    let elapsed = begin.elapsed();
    let shown = control.snapshot().since(&before);
    while entry.inside() > 0 {
        std::thread::yield_now();
    }
    let rate = entered as f64 / elapsed.as_secs_f64() / 1e6;
    println!("{rate:.2} M events/s through {stages} stages, {flows} flows");
    show(&shown);
    if let Some(file) = words.get(4) {
        std::fs::write(file, shown.svg())?;
    }
    running.stop();
    Ok(())
}

/// So many stages that do nothing, and the first of them.
fn graph(stages: u64) -> (Graph, Option<StageId>) {
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
    (graph, first)
}

fn show(shown: &Snapshot) {
    for stage in &shown.stages {
        println!(
            "  {}: batches of {:.1}, {} ns an event, {:?}",
            stage.name,
            stage.work.batch(),
            stage.work.cost_ns,
            stage.fused
        );
    }
    println!("  a hand-over costs {} ns an event", shown.hand_over_ns);
    for (number, worker) in shown.workers.iter().enumerate() {
        println!(
            "  worker {number} on processor {:?}: load {} of 1000, {} parks",
            worker.processor, worker.load, worker.parks
        );
    }
}
