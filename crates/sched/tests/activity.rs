//! In virtual time: how many workers are active, handlers that panic, and timers.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_sched::{
    Config, Control, Entry, Event, Graph, Kind, Out, StageId, Worker, build_in_virtual_time,
};

/// Workers that run side by side: each has its own time in a step, and the latest is what has passed.
struct Machine {
    now: Arc<AtomicU64>,
    workers: Vec<Worker>,
    entry: Entry,
    control: Control,
    stage: StageId,
    /// When the next event comes, and how many came.
    due_ns: u64,
    came: u64,
}

impl Machine {
    /// Each event takes a microsecond.
    fn new(workers: usize, latency: Duration) -> Machine {
        let now = Arc::new(AtomicU64::new(0));
        let mut graph = Graph::new();
        let clock = now.clone();
        let stage = graph.stage("work", Kind::Atomic, move |_| {
            let clock = clock.clone();
            move |events: &[Event], _: &mut Out| {
                clock.fetch_add(1000 * events.len() as u64, Ordering::Relaxed);
            }
        });
        let config = Config {
            latency: Some(latency),
            ..Config::new(workers)
        };
        let (workers, mut entries) = build_in_virtual_time(&graph, &config, &now).unwrap();
        let entry = entries.remove(0);
        Machine {
            now,
            workers,
            control: entry.control(),
            entry,
            stage,
            due_ns: 0,
            came: 0,
        }
    }

    /// For some time, at so many events in a millisecond. How often somebody was called up, and how often one stood down.
    fn run(&mut self, milliseconds: u64, rate: u64) -> (u64, u64) {
        let before = self.changes();
        let until = self.now.load(Ordering::Relaxed) + milliseconds * 1_000_000;
        while self.now.load(Ordering::Relaxed) < until {
            let begin = self.now.load(Ordering::Relaxed);
            while self.due_ns <= begin {
                let flow = (self.came * 7 % 501) as u32;
                let event = self.entry.event(self.stage, flow, 0);
                self.came += self.entry.enter(&[event]) as u64;
                self.due_ns += 1_000_000 / rate;
            }
            let mut end = begin + 10_000;
            for worker in &mut self.workers {
                self.now.store(begin, Ordering::Relaxed);
                worker.turn(4);
                end = end.max(self.now.load(Ordering::Relaxed));
            }
            self.now.store(end, Ordering::Relaxed);
        }
        let (called, stood_down) = self.changes();
        (called - before.0, stood_down - before.1)
    }

    fn changes(&self) -> (u64, u64) {
        let workers = self.control.snapshot().workers;
        let sum =
            |of: fn(&millrace_sched::WorkerFigures) -> u64| workers.iter().map(of).sum::<u64>();
        (sum(|worker| worker.called), sum(|worker| worker.stood_down))
    }
}

#[test]
fn as_many_workers_are_active_as_the_load_needs_and_it_settles() {
    let mut machine = Machine::new(4, Duration::from_micros(500));
    for (rate, active) in [(100, 1), (2600, 4), (900, 2), (100, 1), (900, 2), (2600, 4)] {
        machine.run(200, rate);
        assert_eq!(
            machine.control.active(),
            active,
            "{rate} events a millisecond"
        );
        let changes = machine.run(100, rate);
        assert_eq!(
            changes,
            (0, 0),
            "{rate} events a millisecond: it does not settle"
        );
        // Who is not active has nothing, and is not woken.
        for worker in machine.control.snapshot().workers {
            assert_eq!(worker.is_active, worker.buckets > 0);
        }
    }
    // Nothing was refused since the first workers were called up again, and all that came has left.
    for _ in 0..100 {
        machine.workers.iter_mut().for_each(|worker| {
            worker.turn(64);
        });
    }
    assert_eq!(machine.entry.inside(), 0);
}

#[test]
fn who_waits_for_too_long_has_another_worker_called_up() {
    // A third of what a worker can do, which by itself calls up nobody; but it comes in crowds of 350.
    let calls = |latency: Duration| {
        let mut machine = Machine::new(2, latency);
        machine.run(200, 50);
        assert_eq!(machine.control.active(), 1);
        for _ in 0..100 {
            let begin = machine.now.load(Ordering::Relaxed);
            for flow in 0..350 {
                let event = machine.entry.event(machine.stage, flow, 0);
                assert_eq!(machine.entry.enter(&[event]), 1);
            }
            // Nobody else, for a millisecond.
            machine.due_ns = begin + 2_000_000;
            machine.run(1, 1);
        }
        let workers = machine.control.snapshot().workers;
        let mut buckets: Vec<u64> = workers.iter().map(|worker| worker.buckets).collect();
        buckets.sort_unstable();
        (machine.control.active(), buckets)
    };
    // Who is called up gets half of what there is.
    assert_eq!(calls(Duration::from_micros(100)), (2, vec![2048, 2048]));
    assert_eq!(calls(Duration::from_millis(50)), (1, vec![0, 4096]));
}

#[test]
fn crowds_that_one_worker_cannot_serve_in_time_keep_two_active() {
    // A crowd that takes one worker a little more than the bound, and two of them about half of it, at a load of a few per cent.
    let mut machine = Machine::new(2, Duration::from_micros(200));
    machine.run(200, 50);
    assert_eq!(machine.control.active(), 1);
    let mut crowds = |count: u32| {
        let before = machine.changes();
        for _ in 0..count {
            for flow in 0..205 {
                let event = machine.entry.event(machine.stage, flow, 0);
                assert_eq!(machine.entry.enter(&[event]), 1);
            }
            machine.due_ns = u64::MAX;
            machine.run(5, 1);
        }
        let after = machine.changes();
        (after.0 - before.0, after.1 - before.1)
    };
    assert_eq!(crowds(40), (1, 0));
    assert_eq!(crowds(200), (0, 0), "it does not settle");
    machine.due_ns = 0;
    machine.run(400, 50);
    assert_eq!(machine.control.active(), 1, "the crowds are over");
}

/// What became of numbers, by flow.
#[derive(Default)]
struct Seen {
    left: HashMap<u32, Vec<u64>>,
    lost: HashMap<u32, Vec<u64>>,
    panics: u64,
}

/// Three stages of which the one in the middle panics now and then.
fn fragile(seen: &Arc<Mutex<Seen>>, kind: Kind) -> (Graph, StageId) {
    let mut graph = Graph::new();
    let stage = |at: usize| {
        let seen = seen.clone();
        move |_: usize| {
            let (seen, mut is_broken) = (seen.clone(), false);
            move |events: &[Event], out: &mut Out| {
                assert!(!is_broken, "a handler that has panicked is called again");
                let mut seen = seen.lock().unwrap();
                for event in events {
                    if at == 2 {
                        seen.left.entry(event.flow).or_default().push(event.value);
                    } else {
                        out.forward(event.to(event.stage.after()));
                    }
                    if at == 1 && (event.value * 31 + u64::from(event.flow)) % 97 == 5 {
                        for event in events {
                            seen.lost.entry(event.flow).or_default().push(event.value);
                        }
                        (seen.panics, is_broken) = (seen.panics + 1, true);
                        drop(seen);
                        // Without a message for each.
                        resume_unwind(Box::new("on purpose"));
                    }
                }
            }
        }
    };
    let first = graph.stage("first", Kind::Atomic, stage(0));
    graph.stage("second", kind, stage(1));
    graph.stage("third", Kind::Atomic, stage(2));
    (graph, first)
}

fn play_panics(seed: u64) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let kind = [Kind::Atomic, Kind::Ordered][seed as usize % 2];
    let (graph, first) = fragile(&seen, kind);
    let now = Arc::new(AtomicU64::new(0));
    let config = Config {
        lend_above: 8,
        burst: 1 + seed as usize % 20,
        latency: seed.is_multiple_of(3).then_some(Duration::from_micros(200)),
        ..Config::new(1 + seed as usize / 2 % 4)
    };
    let (mut workers, mut entries) = build_in_virtual_time(&graph, &config, &now).unwrap();
    let mut came: HashMap<u32, u64> = HashMap::new();
    for round in 0..400u64 {
        for number in 0..seed % 7 + 3 {
            let flow = ((round * 13 + number * 5) % 17) as u32;
            let next = came.entry(flow).or_default();
            let event = entries[0].event(first, flow, *next + 1);
            *next += entries[0].enter(&[event]) as u64;
        }
        let worker = (round * 11 + seed) as usize % workers.len();
        workers[worker].turn(3);
        now.fetch_add(20_000 * (seed % 200), Ordering::Relaxed);
    }
    for _ in 0..1500 {
        workers.iter_mut().for_each(|worker| {
            worker.turn(64);
        });
        now.fetch_add(10_000, Ordering::Relaxed);
    }
    assert!(workers.iter().all(Worker::is_idle), "seed {seed}");
    assert_eq!(entries[0].inside(), 0, "seed {seed}");
    let seen = seen.lock().unwrap();
    for (flow, count) in &came {
        let lost = seen.lost.get(flow).cloned().unwrap_or_default();
        let expected: Vec<u64> = (1..=*count)
            .filter(|number| !lost.contains(number))
            .collect();
        let left = seen.left.get(flow).cloned().unwrap_or_default();
        assert_eq!(left, expected, "seed {seed}, flow {flow}");
    }
    let shown = entries[0].control().snapshot();
    let lost: usize = seen.lost.values().map(Vec::len).sum();
    assert!(lost > 0, "seed {seed}");
    assert_eq!(shown.stages[1].work.lost, lost as u64, "seed {seed}");
    let panics: u64 = shown.workers.iter().map(|worker| worker.panics).sum();
    assert_eq!(panics, seen.panics, "seed {seed}");
}

#[test]
fn a_handler_that_panics_takes_its_batch_with_it_and_nothing_else() {
    (0..80).for_each(play_panics);
}

#[test]
fn flows_of_a_worker_whose_handler_panicked_are_others_for_a_while() {
    let mut graph = Graph::new();
    let stage = graph.stage("fragile", Kind::Atomic, |_| {
        |events: &[Event], _: &mut Out| {
            if events.iter().any(|event| event.value == 13) {
                resume_unwind(Box::new("on purpose"));
            }
        }
    });
    let now = Arc::new(AtomicU64::new(0));
    let (mut workers, mut entries) = build_in_virtual_time(&graph, &Config::new(2), &now).unwrap();
    let run = |workers: &mut Vec<Worker>, milliseconds: u64| {
        for _ in 0..milliseconds * 100 {
            workers.iter_mut().for_each(|worker| {
                worker.turn(8);
            });
            now.fetch_add(10_000, Ordering::Relaxed);
        }
    };
    let control = entries[0].control();
    let event = entries[0].event(stage, 0, 13);
    entries[0].enter(&[event]);
    run(&mut workers, 50);
    let shown = control.snapshot();
    let ill = shown.workers.iter().position(|worker| worker.is_ill);
    let ill = ill.expect("one of them is ill");
    assert_eq!(shown.workers[ill].buckets, 0);
    assert_eq!(shown.workers[1 - ill].buckets, 4096);
    // With nobody else to do the work, the second one keeps it.
    let event = entries[0].event(stage, 0, 13);
    entries[0].enter(&[event]);
    run(&mut workers, 50);
    let shown = control.snapshot();
    assert_eq!(shown.workers[1 - ill].buckets, 4096);
    assert_eq!(shown.stages[0].work.lost, 2);
    assert_eq!(control.active(), 1);
    run(&mut workers, 1100);
    assert_eq!(control.active(), 2, "the first one is well again");
}

#[test]
fn events_that_are_put_off_come_when_they_are_due_wherever_their_flow_is() {
    const TICK_NS: u64 = 1 << 14;
    let mut graph = Graph::new();
    let came = Arc::new(Mutex::new(Vec::new()));
    let now = Arc::new(AtomicU64::new(0));
    let first = graph.stage("put off", Kind::Atomic, |_| {
        |events: &[Event], out: &mut Out| {
            for event in events {
                // The value is the delay.
                let delay = Duration::from_nanos(event.value);
                let mut later = event.to(event.stage.after());
                later.value = out.now_ns() + event.value;
                out.forward_after(later, delay);
            }
        }
    });
    let (sink, clock) = (came.clone(), now.clone());
    graph.stage("later", Kind::Atomic, move |worker| {
        let (sink, clock) = (sink.clone(), clock.clone());
        move |events: &[Event], _: &mut Out| {
            let now = clock.load(Ordering::Relaxed);
            let came = events
                .iter()
                .map(|event| (worker, event.flow, event.value, now));
            sink.lock().unwrap().extend(came);
        }
    });
    let (mut workers, mut entries) = build_in_virtual_time(&graph, &Config::new(2), &now).unwrap();
    for number in 0..500u64 {
        let delay = (number * number * 7919) % (1 << (10 + number % 18));
        let event = entries[0].event(first, number as u32, delay);
        assert_eq!(entries[0].enter(&[event]), 1);
    }
    for worker in &mut workers {
        worker.turn(64);
    }
    assert_eq!(entries[0].inside(), 500 - came.lock().unwrap().len() as u64);
    // All flows go to worker 0 meanwhile.
    for flow in 0..500 {
        workers[1].give(first.after(), flow, 0);
    }
    const STEP_NS: u64 = 5_000;
    while entries[0].inside() > 0 {
        now.fetch_add(STEP_NS, Ordering::Relaxed);
        workers.iter_mut().for_each(|worker| {
            worker.turn(64);
        });
    }
    let came = came.lock().unwrap();
    assert_eq!(came.len(), 500);
    for (worker, flow, due, now) in came.iter() {
        assert_eq!(*worker, 0, "flow {flow}");
        let late = now.checked_sub(*due);
        let late = late.unwrap_or_else(|| panic!("flow {flow} came early"));
        assert!(late <= TICK_NS + 3 * STEP_NS, "flow {flow}: {late} ns");
    }
}
