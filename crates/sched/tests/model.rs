//! Random graphs against a sequential model: whatever workers do, each flow leaves as if one had done all of it, one event after another.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_sched::{
    Config, Entry, Event, Graph, Kind, Out, Priority, StageId, Worker, bucket_of,
    build_in_virtual_time,
};

const FLOWS: u64 = 30;

/// A number that looks random, of these.
fn mix(words: &[u64]) -> u64 {
    // splitmix64, Steele, Lea and Flood 2014.
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, word| {
        let mut word = (sum ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    })
}

/// What a graph does; the scheduler's handlers and the model ask it.
#[derive(Clone, Copy)]
struct Behaviour {
    seed: u64,
    stages: u64,
}

impl Behaviour {
    fn kind(self, stage: u64) -> Kind {
        [Kind::Atomic, Kind::Ordered][mix(&[self.seed, stage, 1]) as usize % 2]
    }

    /// How far an event goes from a stage: to the next one, or the one behind it. In some graphs all of a flow go the same way, in others
    /// each goes its own.
    fn steps(self, stage: u64, flow: u32, value: u64) -> u64 {
        let own = if self.seed % 4 < 2 { 0 } else { value };
        1 + mix(&[self.seed, stage, u64::from(flow), own]) % 2
    }

    /// What becomes of an event: nothing, itself, or several, and how far each goes. The stages that it passes over are in its value.
    fn values(self, stage: u64, flow: u32, value: u64) -> Vec<(u64, u64)> {
        let values = match mix(&[self.seed, stage, u64::from(flow), value]) % 12 {
            0 => vec![],
            1 => vec![value, value | 1 << (40 + stage)],
            2 => vec![value | 1 << (48 + stage)],
            _ => vec![value],
        };
        let go = |value: u64| {
            let steps = self.steps(stage, flow, value);
            (value | (steps - 1) << (WAY_BIT + stage), steps)
        };
        values.into_iter().map(go).collect()
    }

    /// What leaves of an event of a flow that comes to a stage, and how many events each stage has had.
    fn model(self, flow: u32, stage: u64, value: u64, handled: &mut [u64]) -> Vec<u64> {
        handled[stage.min(self.stages) as usize] += 1;
        if stage >= self.stages {
            return vec![value];
        }
        let values = self.values(stage, flow, value).into_iter();
        let leave = |(value, steps)| self.model(flow, stage + steps, value, handled);
        values.flat_map(leave).collect()
    }
}

/// From this bit on a value has its way.
const WAY_BIT: u64 = 56;

/// By the way that they went: of those that went the same one the order is kept.
fn by_way(values: impl IntoIterator<Item = u64>) -> BTreeMap<u64, Vec<u64>> {
    let mut ways: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for value in values {
        ways.entry(value >> WAY_BIT).or_default().push(value);
    }
    ways
}

type Left = Arc<Mutex<HashMap<u32, Vec<u64>>>>;

/// The graph, and behind it a stage that writes down what leaves.
fn graph(behaviour: Behaviour, left: &Left) -> (Graph, StageId) {
    let mut graph = Graph::new();
    let mut first = None;
    for stage in 0..behaviour.stages {
        let name = format!("stage {stage}");
        let id = graph.stage(&name, behaviour.kind(stage), move |_| {
            move |events: &[Event], out: &mut Out| {
                for event in events {
                    for (value, steps) in behaviour.values(stage, event.flow, event.value) {
                        let steps = steps.min(behaviour.stages - stage);
                        let mut event = event.to(event.stage.plus(steps as u8));
                        event.value = value;
                        out.forward(event);
                    }
                }
            }
        });
        first.get_or_insert(id);
    }
    let left = left.clone();
    graph.stage("out", Kind::Atomic, move |_| {
        let left = left.clone();
        move |events: &[Event], _: &mut Out| {
            let mut left = left.lock().unwrap();
            for event in events {
                left.entry(event.flow).or_default().push(event.value);
            }
        }
    });
    (graph, first.unwrap())
}

/// Some flows of some stages stay with some worker, in half of all graphs.
fn pin_some(
    graph: &mut Graph,
    behaviour: Behaviour,
    first: StageId,
    workers: usize,
) -> Vec<(StageId, u32, usize)> {
    let mut pins = HashMap::new();
    for at in 0..behaviour.seed % 2 * 12 {
        let draw = |of: u64, end: u64| mix(&[behaviour.seed, at, of]) % end;
        let stage = first.plus(draw(5, behaviour.stages + 1) as u8);
        let flow = draw(6, 2 * FLOWS) as u32;
        // A bucket has one worker.
        let pin = (stage, flow, draw(7, workers as u64) as usize);
        let pinned = *pins.entry((stage, bucket_of(flow))).or_insert(pin);
        graph.pin(stage, flow, pinned.2);
    }
    pins.into_values().collect()
}

struct Play {
    seed: u64,
    drawn: u64,
    now: Arc<AtomicU64>,
    workers: Vec<Worker>,
    entries: Vec<Entry>,
    first: StageId,
    stages: u64,
    /// Workers are called up and stand down: then so many words are sent that rings must have some room.
    is_elastic: bool,
    came: HashMap<u32, Vec<u64>>,
}

impl Play {
    fn below(&mut self, end: u64) -> u64 {
        self.drawn += 1;
        mix(&[self.seed, self.drawn, 99]) % end
    }

    /// Some events by one entry point; each flow has one, and one priority.
    fn enter(&mut self) {
        let at = self.below(self.entries.len() as u64);
        let mut batch = Vec::new();
        for _ in 0..self.below(30) {
            let flow = (self.below(FLOWS) * self.entries.len() as u64 + at) as u32;
            let came = self.came.entry(flow).or_default().len() as u64;
            let before = batch
                .iter()
                .filter(|event: &&Event| event.flow == flow)
                .count() as u64;
            let mut event = self.entries[at as usize].event(self.first, flow, came + before);
            event.priority = Priority::ALL[flow as usize / 3 % 4];
            batch.push(event);
        }
        let is_gathered = self.below(2) == 0;
        let entry = &mut self.entries[at as usize];
        let entered = match is_gathered {
            true => entry.gather(&batch),
            false => entry.enter(&batch),
        };
        for event in &batch[..entered] {
            self.came.get_mut(&event.flow).unwrap().push(event.value);
        }
    }

    /// Somebody changes something.
    fn tune(&mut self) {
        let control = self.entries[0].control();
        match self.below(4) {
            0 => {
                let entry = self.below(self.entries.len() as u64) as usize;
                assert!(control.set_limit(entry, 1 + self.below(300) as usize));
            }
            1 => control.set_burst(1 + self.below(40) as usize),
            2 => control.set_lend_above(self.below(20) as usize),
            _ if self.is_elastic => {
                let bound = [None, Some(Duration::from_micros(1 + self.below(300)))];
                control.set_latency(bound[self.below(2) as usize]);
            }
            _ => {}
        }
    }

    fn step(&mut self) {
        let worker = self.below(self.workers.len() as u64) as usize;
        match self.below(21) {
            20 => {
                let entry = self.below(self.entries.len() as u64) as usize;
                self.entries[entry].flush();
            }
            0..4 => self.enter(),
            4..6 => {
                let stage = self.first.plus(self.below(self.stages + 1) as u8);
                let flow = self.below(FLOWS * 2) as u32;
                let to = self.below(self.workers.len() as u64) as usize;
                self.workers[worker].give(stage, flow, to);
            }
            6 => self.tune(),
            _ => {
                let batches = self.below(5) as usize;
                self.workers[worker].turn(batches);
            }
        }
        let passed = self.below(60_000);
        self.now.fetch_add(passed, Ordering::Relaxed);
    }

    fn drain(&mut self) {
        for _ in 0..3000 {
            self.now.fetch_add(10_000, Ordering::Relaxed);
            let gathered: usize = self.entries.iter_mut().map(Entry::flush).sum();
            for worker in &mut self.workers {
                worker.turn(64);
            }
            if gathered == 0 && self.workers.iter().all(Worker::is_idle) {
                return;
            }
        }
        panic!("seed {}: the graph does not become empty", self.seed);
    }
}

fn play(seed: u64, steps: usize) {
    let behaviour = Behaviour {
        seed,
        stages: 1 + seed % 5,
    };
    let left = Left::default();
    let (mut graph, first) = graph(behaviour, &left);
    let workers = 1 + seed as usize / 2 % 5;
    let pins = pin_some(&mut graph, behaviour, first, workers);
    let now = Arc::new(AtomicU64::new(0));
    let is_elastic = seed.is_multiple_of(3);
    let config = Config {
        ring: if is_elastic {
            1024
        } else {
            1 << (seed / 3 % 9)
        },
        entries: vec![200; 1 + seed as usize % 2],
        latency: is_elastic.then_some(Duration::from_micros(100)),
        ..Config::new(workers)
    };
    let (workers, entries) = build_in_virtual_time(&graph, &config, &now).unwrap();
    let mut play = Play {
        seed,
        drawn: 0,
        now,
        workers,
        entries,
        first,
        stages: behaviour.stages,
        is_elastic,
        came: HashMap::new(),
    };
    (0..steps).for_each(|_| play.step());
    play.drain();
    let left = left.lock().unwrap();
    let mut handled = vec![0; behaviour.stages as usize + 1];
    for (flow, came) in &play.came {
        let leave = |value: &u64| behaviour.model(*flow, 0, *value, &mut handled);
        let expected = by_way(came.iter().flat_map(leave));
        let left = left.get(flow).cloned().unwrap_or_default();
        assert_eq!(by_way(left), expected, "seed {seed}, flow {flow}");
    }
    assert!(
        play.entries.iter().all(|entry| entry.inside() == 0),
        "seed {seed}"
    );
    assert!(
        play.workers.iter().all(|worker| worker.backlog() == 0),
        "seed {seed}"
    );
    for (stage, flow, worker) in pins {
        assert!(play.workers[worker].has(stage, flow), "seed {seed}");
    }
    // What is shown is what happened.
    let shown = play.entries[0].control().snapshot();
    let events: Vec<u64> = shown.stages.iter().map(|stage| stage.work.events).collect();
    assert_eq!(events, handled, "seed {seed}");
    let entered: u64 = shown.entries.iter().map(|entry| entry.entered[0]).sum();
    assert_eq!(entered, handled[0], "seed {seed}");
    let handed_on: u64 = shown.flows.iter().map(|flow| flow.events).sum();
    assert_eq!(handed_on, handled[1..].iter().sum::<u64>(), "seed {seed}");
    assert!(
        shown.workers.iter().any(|worker| worker.is_active),
        "seed {seed}"
    );
}

#[test]
fn each_flow_leaves_as_if_one_had_done_all_of_it() {
    for seed in 0..150 {
        play(seed, 500);
    }
}
