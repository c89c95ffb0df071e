//! The scheduler in virtual time: seeded schedules of turns, moves and entries, of which the order of each flow, and that nothing is lost
//! or doubled, is checked at every step.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use millrace_sched::{
    Config, Entry, Event, Graph, Kind, Out, StageId, Worker, build_in_virtual_time,
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64*, Vigna 2016.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What the handlers saw.
#[derive(Default)]
struct Seen {
    /// By stage and flow: the last number.
    last: HashMap<(usize, u32), u64>,
    /// By flow: numbers that left by the last stage.
    left: HashMap<u32, Vec<u64>>,
    dropped: u64,
    wrong: Vec<String>,
}

impl Seen {
    fn check(&mut self, stage: usize, event: &Event) {
        let last = self.last.entry((stage, event.flow)).or_default();
        if event.value < *last {
            self.wrong.push(format!(
                "stage {stage}, flow {}: {} after {}",
                event.flow, event.value, last
            ));
        }
        *last = event.value;
    }
}

/// An atomic stage, one of either kind that drops every 16th event of each flow and doubles every 16th, and another atomic one.
fn graph(seen: &Arc<Mutex<Seen>>, second: Kind) -> (Graph, StageId) {
    let mut graph = Graph::new();
    let atomic = |stage: usize| {
        let seen = seen.clone();
        move |_: usize| {
            let seen = seen.clone();
            move |events: &[Event], out: &mut Out| {
                let mut seen = seen.lock().unwrap();
                for event in events {
                    // Inside an ordered stage there is no order.
                    if stage != 1 || second == Kind::Atomic {
                        seen.check(stage, event);
                    }
                    let next = event.to(event.stage.after());
                    match (stage, event.value % 16) {
                        (1, 3) => {
                            seen.dropped += 1;
                            out.drop(3);
                        }
                        (1, 5) => {
                            out.forward(next);
                            out.forward(next);
                        }
                        (2, _) => seen.left.entry(event.flow).or_default().push(event.value),
                        _ => out.forward(next),
                    }
                }
            }
        }
    };
    let first = graph.stage("first", Kind::Atomic, atomic(0));
    graph.stage("second", second, atomic(1));
    graph.stage("last", Kind::Atomic, atomic(2));
    (graph, first)
}

const FLOWS: u64 = 40;

struct Play {
    random: Random,
    now: Arc<AtomicU64>,
    workers: Vec<Worker>,
    entry: Entry,
    first: StageId,
    /// Numbers that entered, by flow.
    entered: HashMap<u32, u64>,
    /// It has no turn any more.
    ended: Option<usize>,
}

impl Play {
    fn enter(&mut self) {
        let count = self.random.below(40);
        for _ in 0..count {
            let flow = self.random.below(FLOWS) as u32;
            let number = self.entered.entry(flow).or_default();
            let event = self.entry.event(self.first, flow, *number + 1);
            let entered = match self.random.below(2) {
                0 => self.entry.enter(&[event]),
                _ => self.entry.gather(&[event]),
            };
            if entered == 1 {
                *number += 1;
            }
        }
    }

    fn step(&mut self) {
        let worker = self.random.below(self.workers.len() as u64) as usize;
        match self.random.below(10) {
            0..2 => self.enter(),
            // Whoever has ended neither gives anything away nor works.
            _ if self.ended == Some(worker) => {}
            2 => {
                let stage = self.first.plus(self.random.below(3) as u8);
                let flow = self.random.below(FLOWS) as u32;
                let to = self.random.below(self.workers.len() as u64) as usize;
                self.workers[worker].give(stage, flow, to);
            }
            _ => {
                let batches = self.random.below(4) as usize;
                self.workers[worker].turn(batches);
            }
        }
        self.now
            .fetch_add(self.random.below(20_000), Ordering::Relaxed);
    }

    /// Workers that have turns.
    fn living(&mut self) -> impl Iterator<Item = &mut Worker> {
        let ended = self.ended;
        let workers = self.workers.iter_mut().enumerate();
        let living = workers.filter(move |(number, _)| Some(*number) != ended);
        living.map(|(_, worker)| worker)
    }

    /// Everything leaves, but for what is with a worker that has ended.
    fn drain(&mut self) {
        let mut quiet = 0;
        for _ in 0..1000 {
            let gathered = self.entry.flush();
            let done: usize = self.living().map(|worker| worker.turn(64)).sum();
            if gathered == 0 && self.living().all(|worker| worker.is_idle()) {
                return;
            }
            // What finds no room at one that has ended waits for ever.
            quiet = if done == 0 { quiet + 1 } else { 0 };
            if self.ended.is_some() && quiet == 20 {
                return;
            }
        }
        panic!("the graph does not become empty");
    }

    /// What is to leave of a flow, of which some events are dropped and some doubled, in this order.
    fn expected(&self, flow: u32) -> Vec<u64> {
        let entered = self.entered.get(&flow).copied().unwrap_or_default();
        let left = (1..=entered).flat_map(|number| match number % 16 {
            3 => vec![],
            5 => vec![number; 2],
            _ => vec![number],
        });
        left.collect()
    }
}

/// Somebody who plays, and what the handlers see.
fn begun(seed: u64, second: Kind, workers: usize, ring: usize) -> (Play, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (graph, first) = graph(&seen, second);
    let now = Arc::new(AtomicU64::new(0));
    let config = Config {
        ring,
        entries: vec![500],
        burst: 1 + seed as usize % 32,
        lend_above: seed as usize % 7,
        ..Config::new(workers)
    };
    let (workers, mut entries) = build_in_virtual_time(&graph, &config, &now).unwrap();
    let play = Play {
        random: Random(seed * 2 + 1),
        now,
        workers,
        entry: entries.remove(0),
        first,
        entered: HashMap::new(),
        ended: None,
    };
    (play, seen)
}

fn play(seed: u64, second: Kind, workers: usize, ring: usize, steps: usize) {
    let (mut play, seen) = begun(seed, second, workers, ring);
    for _ in 0..steps {
        play.step();
    }
    play.drain();
    check_all_left(seed, &play, &seen.lock().unwrap());
}

/// Each event once, and in its order.
fn check_all_left(seed: u64, play: &Play, seen: &Seen) {
    assert!(
        seen.wrong.is_empty(),
        "seed {seed}: {:?}",
        &seen.wrong[..seen.wrong.len().min(3)]
    );
    assert_eq!(play.entry.inside(), 0, "seed {seed}");
    assert!(
        play.workers.iter().all(|worker| worker.backlog() == 0),
        "seed {seed}"
    );
    let mut dropped = 0;
    for (flow, count) in &play.entered {
        let left = seen.left.get(flow).cloned().unwrap_or_default();
        assert_eq!(left, play.expected(*flow), "seed {seed}, flow {flow}");
        dropped += (1..=*count).filter(|number| number % 16 == 3).count() as u64;
    }
    let second = play.first.plus(1);
    let counted: u64 = play
        .workers
        .iter()
        .map(|worker| worker.drops(second)[3])
        .sum();
    assert_eq!((seen.dropped, counted), (dropped, dropped), "seed {seed}");
}

#[test]
fn order_is_kept_and_nothing_is_lost_whatever_moves() {
    for seed in 0..300 {
        play(seed, Kind::Atomic, 1 + seed as usize % 5, 1024, 600);
    }
}

#[test]
fn order_is_restored_behind_a_stage_where_several_work_on_one_flow() {
    for seed in 0..300 {
        play(seed, Kind::Ordered, 1 + seed as usize % 5, 1024, 600);
    }
}

#[test]
fn rings_that_are_full_change_nothing() {
    for seed in 0..200 {
        let second = [Kind::Atomic, Kind::Ordered][seed as usize / 2 % 2];
        play(seed, second, 2 + seed as usize % 4, 1 << (seed % 3), 1500);
    }
}

/// A worker ends at some step, as its thread would that the kernel runs no more: it takes nothing in, gives nothing away, and says nothing.
/// The others, and whoever enters, go on. What it had is with it, and nowhere else: when it goes on, everything leaves in its order.
fn play_with_an_end(seed: u64, second: Kind, workers: usize, ring: usize) -> (u64, u64) {
    let (mut play, seen) = begun(seed, second, workers, ring);
    for _ in 0..play.random.below(600) {
        play.step();
    }
    play.ended = Some(play.random.below(workers as u64) as usize);
    for _ in 0..600 {
        play.step();
    }
    play.drain();
    // What is with the one that ended counts in the limit of who enters, as long as it is there.
    let is_full = play.entry.flush() > 0;
    let (mut whole, mut kept) = (0, 0);
    for flow in 0..FLOWS as u32 {
        let (seen, expected) = (seen.lock().unwrap(), play.expected(flow));
        let left = seen.left.get(&flow).map_or(&[][..], Vec::as_slice);
        assert!(expected.starts_with(left), "seed {seed}, flow {flow}");
        let mut stages = (0..3).map(|stage| play.first.plus(stage));
        let is_others = stages.all(|stage| {
            let mut owners = play.workers.iter().enumerate();
            owners.any(|(number, one)| Some(number) != play.ended && one.has(stage, flow))
        });
        // All that came before for what others have was handed over to them. An ordered stage's batch may be lent to the one that ended.
        if second == Kind::Atomic && ring > 500 && !is_full && is_others {
            assert!(left == expected, "seed {seed}, flow {flow}");
            whole += left.len() as u64;
        }
        kept += (expected.len() - left.len()) as u64;
    }
    assert!(kept == 0 || play.entry.inside() > 0, "seed {seed}");
    play.ended = None;
    play.drain();
    check_all_left(seed, &play, &seen.lock().unwrap());
    (whole, kept)
}

#[test]
fn a_worker_that_ends_keeps_what_is_its_own_and_holds_up_nobody_else_s() {
    let (mut whole, mut kept) = (0, 0);
    for seed in 0..300 {
        let second = [Kind::Atomic, Kind::Ordered][seed as usize % 2];
        // Rings that are full for good among them.
        let ring = [1024, 1024, 4][seed as usize % 3];
        let (some, others) = play_with_an_end(seed, second, 2 + seed as usize % 4, ring);
        whole += some;
        kept += others;
    }
    // It is seen that there were such and such.
    assert!(whole > 10_000 && kept > 10_000, "{whole} {kept}");
}

#[test]
fn what_is_gathered_goes_in_when_there_is_much_of_it_or_when_told_and_before_what_comes_later() {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (graph, first) = graph(&seen, Kind::Atomic);
    let now = Arc::new(AtomicU64::new(0));
    let config = Config {
        entries: vec![300],
        ..Config::new(1)
    };
    let (mut workers, mut entries) = build_in_virtual_time(&graph, &config, &now).unwrap();
    let entry = &mut entries[0];
    let events: Vec<_> = (1..=700)
        .map(|value| entry.event(first, 7, value))
        .collect();
    assert_eq!(entry.gather(&events[..3]), 3);
    assert_eq!((workers[0].turn(8), entry.inside()), (0, 3));
    assert_eq!(entry.flush(), 0);
    assert!(workers[0].turn(8) > 0 && entry.inside() == 0);
    // Those first, and then these.
    assert_eq!(entry.gather(&events[3..5]), 2);
    assert_eq!(entry.enter(&events[5..6]), 1);
    assert!(workers[0].turn(8) > 0 && entry.inside() == 0);
    // Many go at once. What the limit has no room for is refused, but for what may wait here.
    assert_eq!(entry.gather(&events[6..206]), 200);
    assert_eq!(
        (entry.gather(&events[206..456]), entry.inside()),
        (100, 300)
    );
    assert_eq!((entry.gather(&events[306..316]), entry.inside()), (10, 310));
    assert_eq!(
        (entry.gather(&events[316..516]), entry.inside()),
        (118, 428)
    );
    assert_eq!((entry.flush(), entry.enter(&events[434..435])), (128, 0));
    assert_eq!(entry.refused(), 150 + 82 + 1);
    while entry.inside() > 0 {
        workers[0].turn(64);
        entry.flush();
    }
    let seen = seen.lock().unwrap();
    assert!(seen.wrong.is_empty(), "{:?}", seen.wrong);
}

#[test]
fn a_worker_that_never_has_a_turn_holds_up_no_move_between_others() {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (graph, first) = graph(&seen, Kind::Atomic);
    let now = Arc::new(AtomicU64::new(0));
    let (mut workers, mut entries) = build_in_virtual_time(&graph, &Config::new(3), &now).unwrap();
    let entry = &mut entries[0];
    for flow in 0..FLOWS as u32 {
        let event = entry.event(first, flow, 1);
        assert_eq!(entry.enter(&[event]), 1);
    }
    for flow in 0..FLOWS as u32 {
        for stage in 0..3 {
            workers[0].give(first.plus(stage), flow, 1);
        }
    }
    for _ in 0..10 {
        workers[0].turn(8);
        workers[1].turn(8);
    }
    // All but what is worker 2's has left.
    assert!(workers[0].is_idle() && workers[1].is_idle());
    workers[2].turn(100);
    for _ in 0..10 {
        for worker in &mut workers {
            worker.turn(8);
        }
    }
    assert_eq!(entry.inside(), 0);
}

#[test]
fn uneven_work_is_evened_out_and_then_stays_where_it_is() {
    let now = Arc::new(AtomicU64::new(0));
    let mut graph = Graph::new();
    let clock = now.clone();
    let stage = graph.stage("work", Kind::Atomic, move |_| {
        let clock = clock.clone();
        // A microsecond for each event.
        move |events: &[Event], _: &mut Out| {
            clock.fetch_add(1000 * events.len() as u64, Ordering::Relaxed);
        }
    });
    let (mut workers, mut entries) = build_in_virtual_time(&graph, &Config::new(2), &now).unwrap();
    // All flows are worker 0's at first.
    let flows: Vec<u32> = (0..200).collect();
    for flow in &flows {
        workers[1].give(stage, *flow, 0);
    }
    let mut moves = Vec::new();
    for round in 0..12_000 {
        let entry = &mut entries[0];
        for count in 0..8 {
            let flow = flows[(round * 8 + count) % flows.len()];
            let event = entry.event(stage, flow, 0);
            entry.enter(&[event]);
        }
        // Both run at once: each has its own time, and the later one is what has passed.
        let begin = now.load(Ordering::Relaxed);
        let mut end = begin;
        for worker in &mut workers {
            now.store(begin, Ordering::Relaxed);
            worker.turn(8);
            end = end.max(now.load(Ordering::Relaxed));
        }
        now.store(end.max(begin + 500), Ordering::Relaxed);
        if round % 3000 == 2999 {
            moves.push(workers.iter().map(Worker::moves).sum::<u64>());
        }
    }
    let work: Vec<u64> = workers
        .iter()
        .map(|worker| worker.work().map(|(_, work)| work.events).sum())
        .collect();
    assert!(moves[0] > 0, "{moves:?}");
    assert!(work[1] * 10 > work[0] * 5, "{work:?}, {moves:?}");
    assert!(moves[3] - moves[2] <= 4, "it does not settle: {moves:?}");
}

#[test]
fn a_stage_that_is_not_to_stay_with_the_one_before_it_begins_at_another_worker() {
    let crossings = |is_fused: bool| {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (mut graph, first) = graph(&seen, Kind::Atomic);
        graph.fuse(first.after(), is_fused);
        graph.fuse(first.plus(2), true);
        let now = Arc::new(AtomicU64::new(0));
        let built = build_in_virtual_time(&graph, &Config::new(2), &now);
        let (mut workers, mut entries) = built.unwrap();
        for flow in 0..FLOWS as u32 {
            let event = entries[0].event(first, flow, 1);
            assert_eq!(entries[0].enter(&[event]), 1);
        }
        while entries[0].inside() > 0 {
            workers.iter_mut().for_each(|worker| {
                worker.turn(8);
            });
        }
        let workers = entries[0].control().snapshot().workers;
        workers.iter().map(|worker| worker.sent).sum::<u64>()
    };
    assert_eq!([false, true].map(crossings), [FLOWS, 0]);
}
