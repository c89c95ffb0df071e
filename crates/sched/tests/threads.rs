//! The scheduler on threads: one worker at a time for each flow of an atomic stage, order, and sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_sched::{Config, Entry, Event, Graph, Kind, Out, Running, StageId, build};

const FLOWS: usize = 64;

/// What is known of each flow.
struct Flow {
    is_handled: AtomicBool,
    last: AtomicU64,
}

struct Watch {
    flows: Vec<Flow>,
    wrong: AtomicU64,
    left: AtomicU64,
}

/// One atomic stage, whose work is uneven: low flows take long.
fn graph(watch: &Arc<Watch>) -> (Graph, StageId) {
    let mut graph = Graph::new();
    let watch = watch.clone();
    let first = graph.stage("spread", Kind::Parallel, |_| {
        |events: &[Event], out: &mut Out| {
            for event in events {
                out.forward(event.to(event.stage.after()));
            }
        }
    });
    graph.stage("work", Kind::Atomic, move |_| {
        let watch = watch.clone();
        move |events: &[Event], _: &mut Out| {
            for event in events {
                let flow = &watch.flows[event.flow as usize];
                let is_alone = !flow.is_handled.swap(true, Ordering::AcqRel);
                let last = flow.last.swap(event.value, Ordering::AcqRel);
                if event.flow < 8 {
                    (0..200).for_each(|_| std::hint::spin_loop());
                }
                flow.is_handled.store(false, Ordering::Release);
                let is_wrong = !is_alone || last + 1 != event.value;
                watch
                    .wrong
                    .fetch_add(u64::from(is_wrong), Ordering::Relaxed);
                watch.left.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    (graph, first.after())
}

fn enter_all(entry: &mut Entry, stage: StageId, events: u64) {
    let mut numbers = [0; FLOWS];
    let mut sent = 0;
    while sent < events {
        // Half of all goes to eight flows.
        let flow = (sent % 2 * 8 + sent / 2 % (8 + sent % 2 * 48)) as usize % FLOWS;
        let event = entry.event(stage, flow as u32, numbers[flow] + 1);
        if entry.enter(&[event]) == 1 {
            numbers[flow] += 1;
            sent += 1;
        } else {
            std::thread::yield_now();
        }
    }
}

#[test]
fn flows_have_one_worker_at_a_time_and_keep_their_order() {
    let flow = || Flow {
        is_handled: AtomicBool::new(false),
        last: AtomicU64::new(0),
    };
    let watch = Arc::new(Watch {
        flows: (0..FLOWS).map(|_| flow()).collect(),
        wrong: AtomicU64::new(0),
        left: AtomicU64::new(0),
    });
    let (graph, stage) = graph(&watch);
    let (workers, mut entries) = build(&graph, &Config::new(3)).unwrap();
    let running = Running::start(workers, Duration::from_micros(50), |_| {}).unwrap();
    let events = 300_000;
    enter_all(&mut entries[0], stage, events);
    let begin = Instant::now();
    while entries[0].inside() > 0 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let workers = running.stop();
    assert_eq!(watch.left.load(Ordering::Relaxed), events);
    assert_eq!(watch.wrong.load(Ordering::Relaxed), 0);
    let moves: u64 = workers.iter().map(|worker| worker.moves()).sum();
    println!("{moves} buckets moved");
}

#[test]
fn who_sleeps_is_woken_by_each_event() {
    let left = Arc::new(AtomicU64::new(0));
    let mut graph = Graph::new();
    let count = left.clone();
    let stage = graph.stage("count", Kind::Atomic, move |_| {
        let count = count.clone();
        move |events: &[Event], _: &mut Out| {
            count.fetch_add(events.len() as u64, Ordering::Release);
        }
    });
    let (workers, mut entries) = build(&graph, &Config::new(2)).unwrap();
    let running = Running::start(workers, Duration::ZERO, |_| {}).unwrap();
    for number in 0..500 {
        let event = entries[0].event(stage, number as u32, 0);
        assert_eq!(entries[0].enter(&[event]), 1);
        let begin = Instant::now();
        while left.load(Ordering::Acquire) <= number {
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "event {number} sleeps"
            );
            std::thread::yield_now();
        }
    }
    assert_eq!(running.stop().len(), 2);
}
