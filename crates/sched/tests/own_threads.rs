//! Workers run by threads that have more to do: each receives packets for its own flows and for others', deals with its own at once where
//! nothing waits, and sleeps its own way. Flows move all the while, and what is kept of them goes along.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use millrace_sched::{
    Config, Control, Entry, Event, Graph, Handler, Kind, Out, Running, StageId, State, Worker,
    bucket_of, build,
};

const FLOWS: usize = 48;
const WORKERS: usize = 3;
/// Nobody sleeps for so long, but one whom nobody wakes.
const TOO_LONG: Duration = Duration::from_secs(20);

/// By bucket and flow: the last number.
type Kept = HashMap<usize, HashMap<u32, u64>>;

#[derive(Default)]
struct Bell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.has_rung.lock().unwrap() = true;
        self.rings.notify_one();
    }

    /// Whether it rang.
    fn wait(&self, at_most: Duration) -> bool {
        let has_rung = self.has_rung.lock().unwrap();
        let waited = (self.rings).wait_timeout_while(has_rung, at_most, |has_rung| !*has_rung);
        std::mem::take(&mut *waited.unwrap().0)
    }
}

struct World {
    /// By worker and stage: locked by that worker alone.
    kept: Vec<[Mutex<Kept>; 2]>,
    /// By stage and flow.
    is_handled: [Vec<AtomicBool>; 2],
    bells: Vec<Bell>,
    total: u64,
    left: AtomicU64,
    wrong: AtomicU64,
    in_place: AtomicU64,
}

impl World {
    fn new(total: u64) -> Arc<World> {
        let flags = || (0..FLOWS).map(|_| AtomicBool::new(false)).collect();
        Arc::new(World {
            kept: (0..WORKERS).map(|_| Default::default()).collect(),
            is_handled: [flags(), flags()],
            bells: (0..WORKERS).map(|_| Bell::default()).collect(),
            total,
            left: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            in_place: AtomicU64::new(0),
        })
    }

    fn work(&self, worker: usize, stage: usize, flow: u32, number: u64) {
        let is_handled = &self.is_handled[stage][flow as usize];
        let is_alone = !is_handled.swap(true, Ordering::AcqRel);
        let mut kept = self.kept[worker][stage].lock().unwrap();
        let last = kept.entry(bucket_of(flow)).or_default().entry(flow);
        let last = std::mem::replace(last.or_default(), number);
        drop(kept);
        is_handled.store(false, Ordering::Release);
        if !is_alone || last + 1 != number {
            self.wrong.fetch_add(1, Ordering::Relaxed);
        }
        if stage == 1 && self.left.fetch_add(1, Ordering::AcqRel) + 1 == self.total {
            self.bells.iter().for_each(Bell::ring);
        }
    }

    fn is_over(&self) -> bool {
        self.left.load(Ordering::Acquire) >= self.total
    }
}

struct Counter {
    world: Arc<World>,
    worker: usize,
    stage: usize,
}

impl Handler for Counter {
    fn handle(&mut self, events: &[Event], out: &mut Out) {
        for event in events {
            (self.world).work(self.worker, self.stage, event.flow, event.value);
        }
        if self.stage == 0 {
            out.forward_all(events, events[0].stage.after());
        }
    }

    fn give(&mut self, bucket: usize) -> Option<State> {
        let mut kept = self.world.kept[self.worker][self.stage].lock().unwrap();
        kept.remove(&bucket).map(|flows| Box::new(flows) as State)
    }

    fn take(&mut self, bucket: usize, state: State) {
        let flows = *state.downcast().expect("a state of this graph");
        let mut kept = self.world.kept[self.worker][self.stage].lock().unwrap();
        assert!(kept.insert(bucket, flows).is_none());
    }
}

fn graph(world: &Arc<World>) -> (Graph, StageId) {
    let mut graph = Graph::new();
    let stages = [0, 1].map(|stage| {
        let world = world.clone();
        graph.stage("count", Kind::Atomic, move |worker| Counter {
            world: world.clone(),
            worker,
            stage,
        })
    });
    // Of both stages, one flow that never moves.
    graph.pin(stages[0], 5, 2);
    graph.pin(stages[1], 5, 0);
    (graph, stages[0])
}

/// A worker's thread.
struct Thread {
    world: Arc<World>,
    worker: Worker,
    entry: Entry,
    first: StageId,
    random: u64,
    /// Numbers of its port's flows, and how many packets are to come.
    numbers: Vec<u64>,
    to_come: u64,
}

impl Thread {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64*, Vigna 2016.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
    }

    /// A burst of packets, of flows that come in here.
    fn receive(&mut self) {
        let is_clear = self.entry.flush() == 0 && self.worker.is_clear();
        let (worker, begin) = (self.worker.index(), self.worker.now_ns());
        let mut done = [Vec::new(), Vec::new()];
        for _ in 0..self.below(33).min(self.to_come) {
            let at = self.below((FLOWS / WORKERS) as u64) as usize;
            let (flow, number) = ((at * WORKERS + worker) as u32, self.numbers[at] + 1);
            if !is_clear || !self.worker.has(self.first, flow) {
                let event = self.entry.event(self.first, flow, number);
                let taken = self.entry.gather(&[event]) as u64;
                (self.numbers[at], self.to_come) = (self.numbers[at] + taken, self.to_come - taken);
                continue;
            }
            (self.numbers[at], self.to_come) = (number, self.to_come - 1);
            self.world.work(worker, 0, flow, number);
            done[0].push(flow);
            if self.worker.has(self.first.after(), flow) {
                self.world.work(worker, 1, flow, number);
                done[1].push(flow);
                continue;
            }
            let next = self.entry.event(self.first.after(), flow, number);
            let mut is_first = true;
            while self.entry.enter(&[next]) == 0 {
                self.worker.turn(4);
                is_first = false;
            }
            if !is_first {
                break;
            }
        }
        let took = self.worker.now_ns() - begin;
        (self.world.in_place).fetch_add(done[1].len() as u64, Ordering::Relaxed);
        for (stage, flows) in done.iter().enumerate() {
            self.worker
                .did(self.first.plus(stage as u8), flows, took / 2);
        }
    }

    fn run(mut self) -> Worker {
        let mut silent = 0;
        while !self.world.is_over() {
            if silent == 0 {
                self.receive();
            }
            self.worker.turn(4);
            if self.below(20) == 0 {
                let stage = self.first.plus(self.below(2) as u8);
                let (flow, to) = (self.below(FLOWS as u64), self.below(WORKERS as u64));
                self.worker.give(stage, flow as u32, to as usize);
            }
            // Now and then nothing comes for a while.
            if silent == 0 && self.below(50) == 0 {
                silent = 20;
            }
            if silent > 0 || self.to_come == 0 {
                silent = silent.max(1) - 1;
                self.sleep();
            }
        }
        self.worker
    }

    fn sleep(&mut self) {
        let is_empty = self.entry.flush() == 0;
        self.worker.lie_down();
        if is_empty && self.worker.is_idle() {
            let at_most = match self.to_come {
                0 => TOO_LONG,
                _ => Duration::from_micros(20),
            };
            let has_rung = self.world.bells[self.worker.index()].wait(at_most);
            assert!(has_rung || at_most < TOO_LONG, "nobody wakes it");
        }
        self.worker.get_up();
    }
}

fn check(world: &World, workers: &[Worker], control: &Control) -> u64 {
    assert_eq!(world.left.load(Ordering::Relaxed), world.total);
    assert_eq!(world.wrong.load(Ordering::Relaxed), 0);
    let shown = control.snapshot();
    let done: u64 = shown.stages.iter().map(|stage| stage.work.events).sum();
    assert_eq!(done, 2 * world.total);
    assert!(shown.workers.iter().all(|worker| worker.states_lost == 0));
    assert_eq!(workers.len(), WORKERS);
    shown.workers.iter().map(|worker| worker.states_taken).sum()
}

#[test]
fn threads_of_ones_own_work_in_place_sleep_and_keep_what_is_known_of_flows_that_move() {
    const PACKETS: u64 = 30_000;
    let world = World::new(PACKETS * WORKERS as u64);
    let (graph, first) = graph(&world);
    let config = Config {
        entries: vec![300; WORKERS],
        ring: 1024,
        ..Config::new(WORKERS)
    };
    let (workers, entries) = build(&graph, &config).unwrap();
    let control = workers[0].control();
    let threads = workers.into_iter().zip(entries).map(|(worker, entry)| {
        let bells = world.clone();
        let index = worker.index();
        worker.wake_with(move || bells.bells[index].ring());
        let thread = Thread {
            world: world.clone(),
            random: index as u64 + 1,
            worker,
            entry,
            first,
            numbers: vec![0; FLOWS / WORKERS],
            to_come: PACKETS,
        };
        std::thread::spawn(move || thread.run())
    });
    let threads: Vec<_> = threads.collect();
    let workers: Vec<_> = (threads.into_iter())
        .map(|thread| thread.join().unwrap())
        .collect();
    assert!(check(&world, &workers, &control) > 100);
    assert!(world.in_place.load(Ordering::Relaxed) > 0);
    let shown = control.snapshot();
    let parks: u64 = shown.workers.iter().map(|worker| worker.parks).sum();
    let slept: u64 = shown.workers.iter().map(|worker| worker.parked_ns).sum();
    assert!(parks > 0 && slept > 0);
    assert!(workers[2].has(first, 5) && workers[0].has(first.after(), 5));
}

#[test]
fn workers_that_are_started_once_more_are_woken_and_have_what_was_known() {
    const PACKETS: u64 = 4000;
    let world = World::new(PACKETS);
    let (graph, first) = graph(&world);
    let (mut workers, mut entries) = build(&graph, &Config::new(WORKERS)).unwrap();
    let control = workers[0].control();
    for round in 0..4 {
        // Each has some others' flows from now on.
        for (at, worker) in workers.iter_mut().enumerate() {
            for flow in 0..FLOWS as u32 {
                worker.give(first, flow, (at + 1) % WORKERS);
            }
        }
        let running = Running::start(workers, Duration::ZERO, |_| {}).unwrap();
        for number in round * PACKETS / 4..(round + 1) * PACKETS / 4 {
            let (flow, value) = (number % FLOWS as u64, number / FLOWS as u64 + 1);
            let event = entries[0].event(first, flow as u32, value);
            assert_eq!(entries[0].enter(&[event]), 1);
            let begin = Instant::now();
            while number % 10 == 9 && entries[0].inside() > 0 {
                assert!(begin.elapsed() < TOO_LONG, "nobody wakes it");
                std::thread::yield_now();
            }
        }
        workers = running.stop();
    }
    assert!(check(&world, &workers, &control) > 0);
}
