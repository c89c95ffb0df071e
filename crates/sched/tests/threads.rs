//! The scheduler on threads: one worker at a time for each flow of an atomic stage, order, and sleep.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_sched::placement::Machine;
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
    /// One in so many events has its handler panic.
    panics: Option<u64>,
    lost: AtomicU64,
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
            let is_bad = |event: &Event| {
                watch
                    .panics
                    .is_some_and(|every| event.value % every == every - 1)
            };
            if events.iter().any(is_bad) {
                for event in events {
                    let flow = &watch.flows[event.flow as usize];
                    let last = flow.last.swap(event.value, Ordering::AcqRel);
                    let is_wrong = u64::from(last + 1 != event.value);
                    watch.wrong.fetch_add(is_wrong, Ordering::Relaxed);
                }
                let lost = events.len() as u64;
                watch.lost.fetch_add(lost, Ordering::Relaxed);
                // Without a message for each.
                std::panic::resume_unwind(Box::new("on purpose"));
            }
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
        let entered = match sent / 1000 % 2 {
            0 => entry.enter(&[event]),
            _ => entry.gather(&[event]),
        };
        if entered == 1 {
            numbers[flow] += 1;
            sent += 1;
        } else {
            std::thread::yield_now();
        }
    }
    while entry.flush() > 0 {
        std::thread::yield_now();
    }
}

fn play(events: u64, config: &Config, panics: Option<u64>) {
    let flow = || Flow {
        is_handled: AtomicBool::new(false),
        last: AtomicU64::new(0),
    };
    let watch = Arc::new(Watch {
        flows: (0..FLOWS).map(|_| flow()).collect(),
        wrong: AtomicU64::new(0),
        left: AtomicU64::new(0),
        panics,
        lost: AtomicU64::new(0),
    });
    let (graph, stage) = graph(&watch);
    let (workers, mut entries) = build(&graph, config).unwrap();
    let running = Running::start(workers, Duration::from_micros(50), |_| {}).unwrap();
    enter_all(&mut entries[0], stage, events);
    let begin = Instant::now();
    while entries[0].inside() > 0 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let workers = running.stop();
    let lost = watch.lost.load(Ordering::Relaxed);
    assert_eq!(watch.left.load(Ordering::Relaxed) + lost, events);
    assert_eq!(watch.wrong.load(Ordering::Relaxed), 0);
    assert_eq!(lost > 0, panics.is_some());
    let shown = entries[0].control().snapshot();
    assert_eq!(shown.stages[1].work.lost, lost);
    assert_eq!(shown.stages[1].work.events, events);
    let moves: u64 = workers.iter().map(|worker| worker.moves()).sum();
    println!("{moves} buckets moved");
}

#[test]
fn flows_have_one_worker_at_a_time_and_keep_their_order() {
    play(200_000, &Config::new(3), None);
}

#[test]
fn so_they_do_while_workers_are_called_up_and_stand_down() {
    let config = Config {
        latency: Some(Duration::from_micros(20)),
        ..Config::new(3)
    };
    play(100_000, &config, None);
}

#[test]
fn so_they_do_while_handlers_panic_and_what_that_takes_is_counted() {
    play(100_000, &Config::new(3), Some(700));
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

#[test]
fn who_sleeps_is_woken_by_what_was_put_off_and_is_shown_to_have_slept() {
    let came_ns = Arc::new(AtomicU64::new(0));
    let mut graph = Graph::new();
    let first = graph.stage("put off", Kind::Atomic, |_| {
        |events: &[Event], out: &mut Out| {
            for event in events {
                let mut later = event.to(event.stage.after());
                later.value = out.now_ns();
                out.forward_after(later, Duration::from_millis(5));
            }
        }
    });
    let came = came_ns.clone();
    graph.stage("later", Kind::Atomic, move |_| {
        let came = came.clone();
        move |events: &[Event], out: &mut Out| {
            came.store(out.now_ns() - events[0].value, Ordering::Release);
        }
    });
    let (workers, mut entries) = build(&graph, &Config::new(2)).unwrap();
    let processors = Machine::detect().choose(2, None);
    let running = Running::start_on(workers, Duration::ZERO, &processors).unwrap();
    let event = entries[0].event(first, 7, 0);
    assert_eq!(entries[0].enter(&[event]), 1);
    let begin = Instant::now();
    while came_ns.load(Ordering::Acquire) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "it never came");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(
        came_ns.load(Ordering::Acquire) >= 5_000_000,
        "it came early"
    );
    running.stop();
    let shown = entries[0].control().snapshot();
    let slept: u64 = shown.workers.iter().map(|worker| worker.parked_ns).sum();
    assert!(slept > 1_000_000, "{slept} ns");
    let pinned = shown.workers.iter().map(|worker| worker.processor);
    assert!(pinned.eq((0..2).map(|worker| processors.get(worker).copied())));
}
