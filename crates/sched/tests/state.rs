//! In virtual time: what handlers keep of flows goes with them, whatever moves, stands down, panics, is lent or is done in place. What is
//! lost is what a handler had that panicked, or that was giving it up or getting it.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_sched::{
    Config, Entry, Event, Graph, Handler, Kind, Out, StageId, State, Worker, bucket_of,
    build_in_virtual_time,
};

const FLOWS: u64 = 40;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64*, Vigna 2016.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
    }
}

/// Of each flow: the number of the last event.
type Flows = HashMap<u32, u64>;

/// What is true, and what handlers have.
struct World {
    random: Random,
    /// By stage, what must be known of a flow; nothing: it was lost, or never came.
    truth: Vec<Flows>,
    /// By worker and stage, what its handler keeps, by bucket.
    kept: Vec<Vec<HashMap<usize, Flows>>>,
    /// Where flows are pinned.
    pins: HashMap<(usize, u32), usize>,
    /// One time in so many somebody panics.
    panics: Option<u64>,
    left: HashMap<u32, Vec<u64>>,
    /// States that were lost on their way.
    dropped: u64,
    wrong: Vec<String>,
}

type Shared = Arc<Mutex<World>>;

fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn new(seed: u64, workers: usize, panics: Option<u64>) -> World {
        World {
            random: Random(seed * 2 + 1),
            truth: vec![Flows::new(); 3],
            kept: vec![vec![HashMap::new(); 3]; workers],
            pins: HashMap::new(),
            panics,
            left: HashMap::new(),
            dropped: 0,
            wrong: Vec::new(),
        }
    }

    fn panics(&mut self) -> bool {
        self.panics
            .is_some_and(|every| self.random.below(every) == 0)
    }

    fn forget(&mut self, stage: usize, flows: &Flows) {
        for flow in flows.keys() {
            self.truth[stage].remove(flow);
        }
    }

    /// A handler ends, with all that it has.
    fn forget_all(&mut self, worker: usize, stage: usize) {
        for (_, flows) in std::mem::take(&mut self.kept[worker][stage]) {
            self.forget(stage, &flows);
        }
    }

    /// What a stage does with an event.
    fn work(&mut self, worker: usize, stage: usize, flow: u32, number: u64) {
        let bucket = bucket_of(flow);
        let others = (0..self.kept.len()).filter(|other| *other != worker);
        let mut wrong = Vec::new();
        for other in others.filter(|other| self.kept[*other][stage].contains_key(&bucket)) {
            wrong.push(format!("worker {other} has it still"));
        }
        if let Some(pinned) = self.pins.get(&(stage, flow))
            && *pinned != worker
        {
            wrong.push(format!("it is pinned to worker {pinned}"));
        }
        let flows = self.kept[worker][stage].entry(bucket).or_default();
        let known = flows.insert(flow, number);
        let truth = self.truth[stage].insert(flow, number);
        if known != truth || known >= Some(number) {
            wrong.push(format!("{known:?} is known, and {truth:?} true"));
        }
        for what in wrong {
            let event = format!("worker {worker}, stage {stage}, flow {flow}, {number}: {what}");
            self.wrong.push(event);
        }
        if stage == 2 {
            self.left.entry(flow).or_default().push(number);
        }
    }
}

/// On its way from one handler to another.
struct Carried {
    stage: usize,
    flows: Flows,
    world: Shared,
}

impl Drop for Carried {
    fn drop(&mut self) {
        if !self.flows.is_empty() {
            let mut world = lock(&self.world);
            world.forget(self.stage, &self.flows);
            world.dropped += 1;
        }
    }
}

struct Counter {
    worker: usize,
    stage: usize,
    kind: Kind,
    world: Shared,
    clock: Arc<AtomicU64>,
    is_broken: bool,
}

impl Counter {
    fn break_down(&mut self) -> ! {
        self.is_broken = true;
        lock(&self.world).forget_all(self.worker, self.stage);
        // Without a message for each.
        resume_unwind(Box::new("on purpose"));
    }
}

impl Handler for Counter {
    fn handle(&mut self, events: &[Event], out: &mut Out) {
        assert!(!self.is_broken, "it is called again");
        self.clock
            .fetch_add(1000 * events.len() as u64, Ordering::Relaxed);
        if lock(&self.world).panics() {
            self.break_down();
        }
        for event in events {
            // Inside an ordered stage several work on one flow, and nothing goes with it.
            if self.kind == Kind::Atomic {
                let mut world = lock(&self.world);
                world.work(self.worker, self.stage, event.flow, event.value);
            }
            if self.stage < 2 {
                out.forward(event.to(event.stage.after()));
            }
        }
    }

    fn give(&mut self, bucket: usize) -> Option<State> {
        assert!(!self.is_broken && self.kind == Kind::Atomic);
        if lock(&self.world).panics() {
            self.break_down();
        }
        let flows = lock(&self.world).kept[self.worker][self.stage].remove(&bucket)?;
        Some(Box::new(Carried {
            stage: self.stage,
            flows,
            world: self.world.clone(),
        }))
    }

    fn take(&mut self, bucket: usize, state: State) {
        assert!(!self.is_broken && self.kind == Kind::Atomic);
        let mut carried = state.downcast::<Carried>().expect("a state of this graph");
        if lock(&self.world).panics() {
            self.break_down();
        }
        let flows = std::mem::take(&mut carried.flows);
        let mut world = lock(&self.world);
        let before = world.kept[self.worker][self.stage].insert(bucket, flows);
        if before.is_some() {
            world.wrong.push(format!("bucket {bucket} came twice"));
        }
    }
}

/// Three stages; the one in the middle is of either kind.
fn graph(world: &Shared, clock: &Arc<AtomicU64>, second: Kind) -> (Graph, StageId) {
    let mut graph = Graph::new();
    let is_built = Arc::new(AtomicU64::new(0));
    let workers = lock(world).kept.len() as u64;
    let mut add = |stage: usize, kind: Kind| {
        let (world, clock, is_built) = (world.clone(), clock.clone(), is_built.clone());
        graph.stage(&format!("stage {stage}"), kind, move |worker| {
            let made = is_built.fetch_add(1, Ordering::Relaxed);
            if made >= 3 * workers && lock(&world).random.below(3) == 0 {
                resume_unwind(Box::new("no handler"));
            }
            Counter {
                worker,
                stage,
                kind,
                world: world.clone(),
                clock: clock.clone(),
                is_broken: false,
            }
        })
    };
    let first = add(0, Kind::Atomic);
    add(1, second);
    add(2, Kind::Atomic);
    (graph, first)
}

struct Play {
    random: Random,
    world: Shared,
    now: Arc<AtomicU64>,
    workers: Vec<Worker>,
    entry: Entry,
    first: StageId,
    gives: bool,
    /// Numbers that entered, by flow.
    entered: HashMap<u32, u64>,
    in_place: u64,
    /// How often stages of one flow were found apart.
    apart: u64,
}

impl Play {
    /// Half of all are of one flow.
    fn flow(&mut self) -> u32 {
        let flow = self.random.below(2 * FLOWS);
        flow.saturating_sub(FLOWS) as u32
    }

    fn enter(&mut self) {
        for _ in 0..self.random.below(60) {
            let flow = self.flow();
            let number = self.entered.entry(flow).or_default();
            let event = self.entry.event(self.first, flow, *number + 1);
            let entered = match self.random.below(2) {
                0 => self.entry.enter(&[event]),
                _ => self.entry.gather(&[event]),
            };
            *number += entered as u64;
        }
    }

    /// A worker's thread has received some.
    fn work_in_place(&mut self, at: usize) {
        if self.entry.flush() > 0 || !self.workers[at].is_clear() {
            return;
        }
        let mut flows = Vec::new();
        for _ in 0..self.random.below(30) {
            let flow = self.flow();
            if !self.workers[at].has(self.first, flow) {
                continue;
            }
            let number = self.entered.entry(flow).or_default();
            let next = self.entry.event(self.first.after(), flow, *number + 1);
            if self.entry.enter(&[next]) == 1 {
                *number += 1;
                lock(&self.world).work(at, 0, flow, *number);
                flows.push(flow);
            }
        }
        let took = 1000 * flows.len() as u64;
        self.now.fetch_add(took, Ordering::Relaxed);
        self.workers[at].did(self.first, &flows, took);
        self.in_place += flows.len() as u64;
    }

    fn give(&mut self, worker: usize) {
        let stage = self.first.plus(self.random.below(3) as u8);
        let flow = self.flow();
        let to = self.random.below(self.workers.len() as u64) as usize;
        self.workers[worker].give(stage, flow, to);
    }

    /// Workers run side by side: each has its own time, and the latest is what has passed.
    fn turn_all(&mut self) {
        let begin = self.now.load(Ordering::Relaxed);
        let mut end = begin + self.random.below(60_000);
        for worker in &mut self.workers {
            self.now.store(begin, Ordering::Relaxed);
            if self.random.below(4) > 0 {
                worker.turn(self.random.below(6) as usize);
            }
            end = end.max(self.now.load(Ordering::Relaxed));
        }
        self.now.store(end, Ordering::Relaxed);
        let is_apart = |flow: &u32| {
            let owner = |stage| {
                (self.workers.iter()).position(|worker| worker.has(self.first.plus(stage), *flow))
            };
            let owners = [0, 1, 2].map(owner);
            owners.iter().all(Option::is_some) && owners != [owners[0]; 3]
        };
        self.apart += (0..FLOWS as u32).filter(is_apart).count() as u64;
    }

    /// Now and then there is little to do for a while.
    fn step(&mut self, at: u64) {
        let worker = self.random.below(self.workers.len() as u64) as usize;
        let is_calm = at % 700 > 400;
        if is_calm {
            self.now
                .fetch_add(self.random.below(1_000_000), Ordering::Relaxed);
        }
        match self.random.below(12) {
            1..4 if is_calm => self.turn_all(),
            0..4 => self.enter(),
            4 if self.gives => self.give(worker),
            5 if lock(&self.world).panics.is_none() => self.work_in_place(worker),
            _ => self.turn_all(),
        }
    }

    fn drain(&mut self) {
        for _ in 0..4000 {
            self.now.fetch_add(10_000, Ordering::Relaxed);
            let gathered = self.entry.flush();
            for worker in &mut self.workers {
                worker.turn(64);
            }
            if gathered == 0 && self.workers.iter().all(Worker::is_idle) {
                return;
            }
        }
        panic!("the graph does not become empty");
    }

    fn check(&self, seed: u64) {
        let world = lock(&self.world);
        let wrong = &world.wrong[..world.wrong.len().min(3)];
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        assert_eq!(self.entry.inside(), 0, "seed {seed}");
        // What did not leave was lost, and is counted, in order.
        let work = self.entry.control().snapshot().stages;
        let mut lost: u64 = work.iter().map(|stage| stage.work.lost).sum();
        for (flow, count) in &self.entered {
            let left = world.left.get(flow).map_or(&[][..], Vec::as_slice);
            assert!(left.is_sorted_by(|one, next| one < next), "seed {seed}");
            lost -= count - left.len() as u64;
        }
        assert_eq!(lost, 0, "seed {seed}");
        // Whoever has a flow has what is known of it; nothing is anywhere else.
        for (stage, truth) in world.truth.iter().enumerate() {
            for (flow, number) in truth {
                let id = self.first.plus(stage as u8);
                let mut owners =
                    (0..self.workers.len()).filter(|at| self.workers[*at].has(id, *flow));
                let owner = owners.next().expect("it is somebody's");
                let kept = &world.kept[owner][stage][&bucket_of(*flow)];
                assert_eq!(kept.get(flow), Some(number), "seed {seed}, flow {flow}");
            }
        }
    }
}

/// What all plays together have had.
#[derive(Default, Debug)]
struct Had {
    moves: u64,
    states: u64,
    dropped: u64,
    lent: u64,
    in_place: u64,
    apart: u64,
    stood_down: u64,
    panics: u64,
}

fn play(seed: u64, panics: Option<u64>, had: &mut Had) {
    let mut random = Random(seed * 2 + 77);
    let workers = 2 + random.below(4) as usize;
    let world = Arc::new(Mutex::new(World::new(seed, workers, panics)));
    let now = Arc::new(AtomicU64::new(0));
    let second = [Kind::Atomic, Kind::Ordered][seed as usize % 2];
    let (mut graph, first) = graph(&world, &now, second);
    let is_whole = random.below(3) == 0;
    if is_whole {
        graph.fuse(first.after(), true);
        graph.fuse(first.plus(2), true);
    } else if random.below(2) == 0 {
        graph.fuse(first.after(), false);
    }
    let pins = if is_whole {
        0
    } else {
        random.below(2) * random.below(12)
    };
    for _ in 0..pins {
        let (stage, flow) = (random.below(3) as u8, random.below(FLOWS) as u32);
        let worker = random.below(workers as u64) as usize;
        graph.pin(first.plus(stage), flow, worker);
        let atomic = second == Kind::Atomic || stage != 1;
        let mut world = lock(&world);
        if atomic && world.pins.insert((stage.into(), flow), worker).is_some() {
            // Twice, and perhaps to two workers.
            return;
        }
    }
    let config = Config {
        ring: 1 << (6 + random.below(5)),
        entries: vec![100 + 400 * random.below(2) as usize],
        burst: 1 + random.below(32) as usize,
        lend_above: random.below(20) as usize,
        latency: (random.below(3) == 0).then_some(Duration::from_micros(300)),
        ..Config::new(workers)
    };
    let (workers, mut entries) = match build_in_virtual_time(&graph, &config, &now) {
        Ok(built) => built,
        // Two pins of one bucket.
        Err(_) => return,
    };
    let mut play = Play {
        gives: !is_whole && random.below(2) == 0,
        random,
        world,
        now,
        workers,
        entry: entries.remove(0),
        first,
        entered: HashMap::new(),
        in_place: 0,
        apart: 0,
    };
    (0..1400).for_each(|step| play.step(step));
    play.drain();
    play.check(seed);
    assert!(
        !is_whole || play.apart == 0,
        "seed {seed}: fused stages were apart"
    );
    had.add(&play, seed, panics.is_none());
}

impl Had {
    fn add(&mut self, play: &Play, seed: u64, nobody_panics: bool) {
        let shown = play.entry.control().snapshot();
        let sum = |of: fn(&millrace_sched::WorkerFigures) -> u64| {
            shown.workers.iter().map(of).sum::<u64>()
        };
        let (given, taken) = (sum(|one| one.states_given), sum(|one| one.states_taken));
        let lost = sum(|one| one.states_lost);
        // What was given came, or was lost at the receiver; or giving it panicked, and it was lost where it was.
        let dropped = lock(&play.world).dropped;
        assert_eq!(given - taken, dropped, "seed {seed}");
        assert!(lost >= dropped, "seed {seed}");
        if nobody_panics {
            assert_eq!(lost, 0, "seed {seed}");
        }
        self.moves += sum(|one| one.buckets_given);
        self.states += taken;
        self.dropped += dropped;
        self.lent += sum(|one| one.borrowed);
        self.in_place += play.in_place;
        self.apart += if play.gives { 0 } else { play.apart };
        self.stood_down += sum(|one| one.stood_down);
        self.panics += sum(|one| one.panics);
    }
}

#[test]
fn what_is_kept_of_a_flow_is_where_the_flow_is_whatever_moves() {
    let mut had = Had::default();
    (0..100).for_each(|seed| play(seed, None, &mut had));
    assert!(had.states > 500 && had.states <= had.moves, "{had:?}");
    assert!(
        had.lent > 0 && had.in_place > 0 && had.apart > 0 && had.stood_down > 0,
        "{had:?}"
    );
}

#[test]
fn who_panics_loses_what_it_keeps_and_nobody_else_does() {
    let mut had = Had::default();
    (0..100).for_each(|seed| play(seed, Some(60 + seed), &mut had));
    assert!(
        had.states > 500 && had.panics > 500 && had.dropped > 0,
        "{had:?}"
    );
}
