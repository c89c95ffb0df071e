//! In virtual time: what a worker's thread does in place, without events; and flows that are pinned.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_sched::{
    Config, ConfigError, Entry, Event, Graph, Kind, Out, PinError, StageId, Worker, bucket_of,
    build_in_virtual_time,
};

/// Stages that hand on to each other, and do nothing.
fn stages(kinds: &[Kind]) -> (Graph, StageId) {
    let mut graph = Graph::new();
    let mut first = None;
    for (at, kind) in kinds.iter().enumerate() {
        let is_last = at + 1 == kinds.len();
        let id = graph.stage("stage", *kind, move |_| {
            move |events: &[Event], out: &mut Out| {
                if !is_last {
                    out.forward_all(events, events[0].stage.after());
                }
            }
        });
        first.get_or_insert(id);
    }
    (graph, first.unwrap())
}

struct Field {
    now: Arc<AtomicU64>,
    workers: Vec<Worker>,
    entry: Entry,
}

impl Field {
    fn new(graph: &Graph, config: &Config) -> Field {
        let now = Arc::new(AtomicU64::new(0));
        let (workers, mut entries) = build_in_virtual_time(graph, config, &now).unwrap();
        Field {
            now,
            workers,
            entry: entries.remove(0),
        }
    }

    /// A flow that is this worker's.
    fn flow_of(&self, worker: usize, stage: StageId) -> u32 {
        let mut flows = 0..;
        flows
            .find(|flow| self.workers[worker].has(stage, *flow))
            .unwrap()
    }

    fn enter(&mut self, stage: StageId, flow: u32, value: u64) {
        let event = self.entry.event(stage, flow, value);
        assert_eq!(self.entry.enter(&[event]), 1);
    }

    fn turn_all(&mut self) {
        for worker in &mut self.workers {
            worker.turn(64);
        }
    }

    fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds * 100 {
            self.turn_all();
            self.now.fetch_add(10_000, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_worker_is_clear_while_nothing_waits_for_it() {
    let (graph, first) = stages(&[Kind::Atomic, Kind::Ordered, Kind::Atomic]);
    let config = Config {
        ring: 1,
        lend_above: 0,
        burst: 1,
        ..Config::new(2)
    };
    let mut field = Field::new(&graph, &config);
    let flow = field.flow_of(0, first);
    assert!(field.workers[0].is_clear() && field.workers[0].has(first, flow));
    // It lies in the ring; then in a queue.
    field.enter(first, flow, 0);
    assert!(!field.workers[0].is_clear());
    field.workers[0].turn(0);
    assert!(!field.workers[0].is_clear());
    field.workers[0].turn(64);
    assert!(field.workers[0].is_clear() && field.entry.inside() == 0);
    // There is no room in the other one's ring.
    let others = field.flow_of(1, first);
    field.enter(first, others, 0);
    assert!(field.workers[0].give(first.after(), flow, 1));
    assert!(!field.workers[0].has(first.after(), flow));
    field.enter(first, flow, 1);
    field.workers[0].turn(64);
    assert!(!field.workers[0].is_clear());
    // It comes to the other one before its bucket does.
    (0..5).for_each(|_| field.turn_all());
    assert!(field.workers.iter().all(Worker::is_clear));
    assert!(field.workers[1].has(first.after(), flow));
    assert!(field.workers[0].give(first, flow, 1));
    field.enter(first, flow, 2);
    field.workers[1].turn(64);
    assert!(!field.workers[1].is_clear() && field.entry.inside() == 1);
    (0..5).for_each(|_| field.turn_all());
    assert!(field.workers.iter().all(Worker::is_clear));
}

#[test]
fn what_is_lent_or_borrowed_waits() {
    let (graph, first) = stages(&[Kind::Ordered]);
    let config = Config {
        lend_above: 0,
        burst: 1,
        ..Config::new(2)
    };
    let mut field = Field::new(&graph, &config);
    let flow = field.flow_of(0, first);
    for value in 0..3 {
        field.enter(first, flow, value);
    }
    field.workers[0].turn(64);
    assert!(!field.workers[0].is_clear(), "some is lent");
    field.workers[1].turn(0);
    assert!(!field.workers[0].is_clear(), "it comes back");
    (0..3).for_each(|_| field.turn_all());
    assert!(field.workers.iter().all(Worker::is_clear) && field.entry.inside() == 0);
}

#[test]
fn what_is_done_in_place_is_counted_and_balanced() {
    let (mut graph, first) = stages(&[Kind::Atomic, Kind::Atomic]);
    // Otherwise it would be the first to go.
    graph.pin(first, 0, 0);
    let mut field = Field::new(&graph, &Config::new(2));
    let own: Vec<u32> = (0..)
        .filter(|flow| field.workers[0].has(first, *flow))
        .take(64)
        .collect();
    let (mut handled, mut round) = (0, 0);
    // Nothing ever is in a queue. A third is of one flow.
    while field.now.load(Ordering::Relaxed) < 40_000_000 {
        round += 1;
        let mut burst = vec![own[0]; 10];
        burst.extend((0..22).map(|at| own[(round * 22 + at) % own.len()]));
        burst.retain(|flow| field.workers[0].has(first, *flow));
        let took = 100 * burst.len() as u64;
        field.now.fetch_add(took, Ordering::Relaxed);
        field.workers[0].did(first, &burst, took);
        handled += burst.len() as u64;
        field.turn_all();
    }
    let shown = field.entry.control().snapshot();
    let work = shown.workers[0].work[0];
    assert_eq!((work.events, work.cost_ns), (handled, 100));
    assert_eq!(work.batches_by_size.iter().sum::<u64>(), work.batches);
    assert!(field.workers[0].moves() > 0 && shown.workers[1].buckets_taken > 0);
    assert!(shown.workers[0].load > 900);
    let elephants: Vec<u32> = shown.workers[0]
        .elephants
        .iter()
        .map(|one| one.flow)
        .collect();
    assert_eq!((elephants, own[0]), (vec![0], 0));
    // Nothing at all was done of no flows.
    field.workers[0].did(first, &[], 7);
    assert_eq!(field.entry.control().snapshot().workers[0].work[0], work);
}

#[test]
fn a_handler_sees_for_which_stages_events_wait() {
    let mut graph = Graph::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::new(Mutex::new(Vec::new()));
    let mut stages = Vec::new();
    for stage in 0..3usize {
        let (seen, all) = (seen.clone(), all.clone());
        stages.push(graph.stage("stage", Kind::Atomic, move |_| {
            let (seen, all) = (seen.clone(), all.clone());
            move |_: &[Event], out: &mut Out| {
                let all: Vec<StageId> = all.lock().unwrap().clone();
                let waits = [0, 1, 2].map(|at: usize| out.waits(all[at]));
                seen.lock().unwrap().push((stage, waits));
            }
        }));
    }
    all.lock().unwrap().extend(&stages);
    let config = Config {
        burst: 2,
        ..Config::new(1)
    };
    let mut field = Field::new(&graph, &config);
    for stage in [0, 0, 0, 2, 2, 1] {
        field.enter(stages[stage], 7, 0);
    }
    field.workers[0].turn(64);
    let expected = [
        (2, [true, true, false]),
        (1, [true, false, false]),
        (0, [true, false, false]),
        (0, [false; 3]),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

#[test]
fn what_cannot_be_pinned_is_said() {
    let build = |pins: &[(u8, u32, usize)]| {
        let (mut graph, first) = stages(&[Kind::Parallel, Kind::Atomic, Kind::Ordered]);
        for (stage, flow, worker) in pins {
            graph.pin(first.plus(*stage), *flow, *worker);
        }
        let now = Arc::new(AtomicU64::new(0));
        build_in_virtual_time(&graph, &Config::new(3), &now).map(|(workers, _)| {
            let at = first.plus(1);
            workers.iter().position(|worker| worker.has(at, 7))
        })
    };
    let same = (8..).find(|flow| bucket_of(*flow) == bucket_of(7)).unwrap();
    assert_eq!(build(&[(1, 7, 2), (2, 7, 1), (1, same, 2)]), Ok(Some(2)));
    assert_eq!(build(&[(1, 7, 1)]), Ok(Some(1)));
    let why = |pins| match build(pins) {
        Err(ConfigError::Pin { why, .. }) => Some(why),
        _ => None,
    };
    assert_eq!(why(&[(1, 7, 3)]), Some(PinError::NoWorker(3)));
    assert_eq!(why(&[(0, 7, 0)]), Some(PinError::Parallel));
    assert_eq!(why(&[(1, 7, 2), (1, same, 0)]), Some(PinError::Apart(2, 0)));
    let said = build(&[(1, 7, 3)]).unwrap_err().to_string();
    assert_eq!(said, "flow 7 pinned at stage 1: there is no worker 3");
}

#[test]
fn a_pinned_flow_stays_with_a_worker_that_stands_down() {
    let handled = Arc::new(Mutex::new(Vec::new()));
    let mut graph = Graph::new();
    let sink = handled.clone();
    let stage = graph.stage("only", Kind::Atomic, move |worker| {
        let sink = sink.clone();
        move |events: &[Event], _: &mut Out| {
            sink.lock().unwrap().push((worker, events[0].value));
        }
    });
    graph.pin(stage, 7, 1);
    let config = Config {
        latency: Some(Duration::from_millis(1)),
        ..Config::new(2)
    };
    let mut field = Field::new(&graph, &config);
    assert!(!field.workers[1].give(stage, 7, 0));
    field.run(200);
    let shown = field.entry.control().snapshot();
    assert_eq!(field.entry.control().active(), 1);
    let buckets: Vec<u64> = shown.workers.iter().map(|worker| worker.buckets).collect();
    assert_eq!(buckets, [4095, 1], "all others are worker 0's");
    assert!(field.workers.iter().all(Worker::is_idle));
    field.enter(stage, 7, 5);
    field.run(100);
    assert_eq!(*handled.lock().unwrap(), [(1, 5)]);
    assert!(field.workers[1].has(stage, 7) && field.workers[1].is_idle());
}

#[test]
fn a_pinned_flow_stays_with_a_worker_that_is_ill_and_is_no_part_of_what_is_balanced() {
    let mut graph = Graph::new();
    let stage = graph.stage("fragile", Kind::Atomic, |_| {
        |events: &[Event], _: &mut Out| {
            if events[0].value == 13 {
                resume_unwind(Box::new("on purpose"));
            }
        }
    });
    graph.pin(stage, 7, 1);
    let mut field = Field::new(&graph, &Config::new(2));
    field.enter(stage, 7, 13);
    field.run(50);
    let shown = field.entry.control().snapshot();
    assert!(shown.workers[1].is_ill && field.workers[1].has(stage, 7));
    assert_eq!(shown.workers[1].buckets, 1);
    field.enter(stage, 7, 1);
    field.run(1);
    assert_eq!(field.entry.inside(), 0);
    // It is well again, and has more than enough to do: nothing of that can go.
    field.run(1100);
    let moves = field.workers[1].moves();
    for _ in 0..4000 {
        field.now.fetch_add(3200, Ordering::Relaxed);
        field.workers[1].did(stage, &[7; 32], 3200);
        field.turn_all();
    }
    let shown = field.entry.control().snapshot();
    assert!(shown.workers[1].load > 900);
    assert!(field.workers[1].has(stage, 7) && field.workers[1].moves() == moves);
}
