//! Workers that take turns on one thread, with ports in memory, while shards of bearers move between them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use millrace_port::{Burst, Counters, Port, State};
use nix::sys::eventfd::EventFd;
use std::os::fd::AsFd;

use super::errand::{Errand, Way, by_shard};
use super::*;
use crate::bearer::Side;
use crate::link::LinkCause;
use crate::node::tests::{CORE, RADIO, datagram, g_pdu, interfaces, meet_stations, opened, tunnel};
use crate::post;
use crate::random::Random;
use crate::report::Passed;

/// Frames that came to a port and were not looked at yet, and those that have left.
#[derive(Default)]
struct Wire {
    came: VecDeque<Vec<u8>>,
    left: Vec<Vec<u8>>,
}

struct Loop {
    wire: Arc<Mutex<Wire>>,
    event: EventFd,
}

impl Port for Loop {
    fn poll(&mut self, _: Instant) -> &State {
        &State::Connected
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn state(&self) -> &State {
        &State::Connected
    }

    fn receive_queues(&self) -> usize {
        1
    }

    fn transmit_queues(&self) -> usize {
        1
    }

    fn receive(&mut self, _: usize, burst: &mut Burst) -> usize {
        burst.clear();
        let mut wire = self.wire.lock().unwrap();
        while !burst.is_full()
            && let Some(frame) = wire.came.pop_front()
        {
            assert!(burst.push(&frame));
        }
        burst.len()
    }

    fn release(&mut self, _: usize) {}

    fn transmit(&mut self, _: usize, burst: &Burst, first: usize) -> usize {
        let frames = burst.iter().skip(first).map(|packet| packet.to_vec());
        self.wire.lock().unwrap().left.extend(frames);
        burst.len() - first
    }

    fn give_up(&mut self, _: usize, _: &Burst, _: usize) {}

    fn arm(&mut self) -> bool {
        self.wire.lock().unwrap().came.is_empty()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// Workers, each with its turn when the test says so, and what is at their ports.
struct World {
    workers: Vec<Worker>,
    wires: [Arc<Mutex<Wire>>; 2],
    commands: Vec<Sender<Command>>,
    bells: Vec<Arc<Bell>>,
    errands: Arc<Errands>,
    way: Way,
    stages: Stages,
}

impl World {
    /// So many workers, of which the first has the radio network's port, and the last the core network's.
    fn new(workers: usize) -> World {
        let owners = vec![0, workers - 1];
        let (parts, entry, stages) = stages::build(workers, &owners).unwrap();
        // So that much waits, and not all of it is dealt with in a turn.
        entry.control().set_burst(2);
        let errands = Arc::<Errands>::default();
        let mut world = World {
            workers: Vec::new(),
            wires: [Arc::default(), Arc::default()],
            commands: Vec::new(),
            bells: Vec::new(),
            way: Way::new(entry, stages.bearer, errands.clone()),
            errands,
            stages,
        };
        for (number, part) in parts.into_iter().enumerate() {
            let mut node = Node::new(interfaces(), number, workers);
            node.deal_with(|shard| part.scheduled.has(stages.bearer, shard));
            meet_stations(&mut node);
            let ports = (0..).zip(&world.wires).zip(&owners);
            let ports = ports.filter(|(_, owner)| **owner == number);
            let ports = ports.map(|((number, wire), _)| Attached {
                number,
                port: Box::new(Loop {
                    wire: wire.clone(),
                    event: EventFd::new().unwrap(),
                }),
                is_file: false,
            });
            let (commands, received) = channel();
            let bell = Arc::new(Bell::new().unwrap());
            let parts = Parts {
                node,
                number,
                workers,
                epoch: Instant::now(),
                spin: Duration::ZERO,
                commands: received,
                bell: bell.clone(),
                ports: ports.collect(),
                owners: owners.clone(),
                events: Arc::default(),
                stages,
                errands: world.errands.clone(),
            };
            world.workers.push(Worker::new(parts, part).unwrap());
            world.commands.push(commands);
            world.bells.push(bell);
        }
        world
    }

    fn tell(&self, command: impl Fn() -> Command) {
        for (commands, bell) in self.commands.iter().zip(&self.bells) {
            commands.send(command()).unwrap();
            bell.ring();
        }
    }

    fn run(&mut self, errands: impl IntoIterator<Item = (u32, Errand)>) {
        self.way.send(errands);
    }

    fn put(&mut self, bearers: &[(BearerId, Bearer)]) {
        self.tell(|| Command::Know(bearers.to_vec()));
        let shards = by_shard(bearers.to_vec(), |(id, _)| *id);
        self.run(
            shards
                .into_iter()
                .map(|(shard, some)| (shard, Errand::Put(some))),
        );
    }

    fn turn(&mut self, worker: usize) -> bool {
        self.workers[worker].turn(Instant::now()).unwrap()
    }

    /// All take turns until nobody has anything to do.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..100_000 {
            let busy = (0..self.workers.len()).filter(|worker| self.turn(*worker));
            quiet = if busy.count() == 0 { quiet + 1 } else { 0 };
            if quiet == 4 {
                return;
            }
        }
        panic!("it does not come to rest");
    }

    /// Gives a shard to another worker, if it is somebody's now.
    fn give(&mut self, shard: u32, to: usize) -> bool {
        let stage = self.stages.bearer;
        let mut workers = self.workers.iter_mut();
        workers.any(|worker| worker.scheduled.give(stage, shard, to))
    }

    /// What passed by bearers, asked as an errand and answered when all had their turns.
    fn usage(&mut self, ids: &[BearerId]) -> HashMap<BearerId, Passed> {
        let (answer, answers) = channel();
        let shards = by_shard(ids.to_vec(), |id| *id);
        let ask = |(shard, ids)| (shard, Errand::Usage(ids, answer.clone()));
        self.run(shards.into_iter().map(ask));
        self.settle();
        answers.try_iter().flatten().collect()
    }

    fn left(&self, port: u16) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.wires[usize::from(port)].lock().unwrap().left)
    }
}

/// A bearer between two tunnels, whose peers have these numbers for it.
fn relay(number: u32) -> (BearerId, Bearer) {
    let ends = [
        tunnel("198.51.100.9", 100_000 + number),
        tunnel("192.0.2.9", 200_000 + number),
    ];
    let [core, radio] = ends;
    (BearerId::new(number as usize, 1), Bearer::new(core, radio))
}

/// The next message of a bearer, by a port; of many lengths.
fn message(id: BearerId, port: u16, sequence: u32) -> Vec<u8> {
    let (side, from, to) = match port {
        RADIO => (Side::Radio, "192.0.2.9", "192.0.2.1"),
        _ => (Side::Core, "198.51.100.9", "198.51.100.1"),
    };
    let mut body = sequence.to_be_bytes().to_vec();
    body.resize(4 + sequence as usize * 37 % 1000, sequence as u8);
    datagram(port, from, to, &g_pdu(id.teid(side), &body))
}

/// Of a message that has left: its bearer's number, and its own.
fn told(port: u16, frame: &[u8]) -> (u32, u32) {
    let (_, _, _, message) = opened(port, frame);
    let word = |at: usize| u32::from_be_bytes(message[at..at + 4].try_into().unwrap());
    let sequence = word(8);
    assert_eq!(message.len(), 12 + sequence as usize * 37 % 1000);
    (word(4) % 100_000, sequence)
}

const BEARERS: u32 = 40;

/// One way of one bearer's messages: sent, and seen leaving.
type Ways = HashMap<(u16, u32), u32>;

/// What has left is in its order, and nothing is missing.
fn check(world: &World, seen: &mut Ways) {
    for (port, came_by) in [(CORE, RADIO), (RADIO, CORE)] {
        for frame in world.left(port) {
            let (bearer, sequence) = told(port, &frame);
            let next = seen.entry((came_by, bearer)).or_default();
            assert_eq!(sequence, *next, "bearer {bearer} by port {came_by}");
            *next += 1;
        }
    }
}

fn messages_keep_their_order(workers: usize, seed: u64) {
    let mut random = Random(seed);
    let mut world = World::new(workers);
    let bearers: Vec<_> = (0..BEARERS).map(relay).collect();
    let ids: Vec<BearerId> = bearers.iter().map(|(id, _)| *id).collect();
    world.put(&bearers);
    world.settle();
    let (mut sent, mut seen, mut moves) = (Ways::new(), Ways::new(), 0);
    for step in 0..6000 {
        match random.below(8) {
            0..4 => {
                let port = random.below(2) as u16;
                for _ in 0..random.below(12) {
                    // Few bearers have most of the messages, so that those of one are everywhere at once.
                    let bearer = random.below(random.0 % u64::from(BEARERS)) as u32;
                    let next = sent.entry((port, bearer)).or_default();
                    let frame = message(ids[bearer as usize], port, *next);
                    *next += 1;
                    let wire = &world.wires[usize::from(port)];
                    wire.lock().unwrap().came.push_back(frame);
                }
            }
            4 => {
                let (shard, to) = (random.below(u64::from(BEARERS)), random.below(8));
                moves += usize::from(world.give(shard as u32, to as usize % workers));
                check(&world, &mut seen);
            }
            5 if step % 50 == 0 => {
                // What a bearer is told anew keeps what it has counted.
                let again = random.below(u64::from(BEARERS)) as usize;
                world.put(&bearers[again..=again]);
            }
            _ => {
                let worker = random.below(workers as u64) as usize;
                world.turn(worker);
            }
        }
    }
    world.settle();
    check(&world, &mut seen);
    assert_eq!(seen, sent, "seed {seed}");
    assert!(moves > 100, "{moves} moves");
    let usage = world.usage(&ids);
    for (number, id) in (0..).zip(&ids) {
        let passed = usage[id].usage.map(|usage| usage.packets);
        let sent = |port| u64::from(sent.get(&(port, number)).copied().unwrap_or(0));
        assert_eq!(passed, [sent(RADIO), sent(CORE)], "bearer {number}");
    }
}

#[test]
fn ports_are_closed_with_their_workers() {
    let mut world = World::new(2);
    // Whoever runs the function may still look at what was counted, by the entry point.
    drop(std::mem::take(&mut world.workers));
    assert!(world.wires.iter().all(|wire| Arc::strong_count(wire) == 1));
}

/// Of a worker that has no turn: neither is a burst that is full.
#[test]
fn what_another_worker_has_no_time_for_is_dropped_by_cause() {
    for (limit, cause, passes) in [
        (post::PARCELS, LinkCause::Parcels, post::PARCELS),
        (1, LinkCause::NewEvents, 129), // One is let in, and 128 wait.
    ] {
        let mut world = World::new(2);
        let (id, bearer) = relay(3);
        world.put(&[(id, bearer)]);
        world.settle();
        world.give(id.shard(), 1);
        world.settle();
        assert!(world.way.control().set_limit(0, limit));
        let frames = (0..5_000).map(|_| message(id, RADIO, 0));
        world.wires[0].lock().unwrap().came.extend(frames);
        while !world.wires[0].lock().unwrap().came.is_empty() {
            world.turn(0);
        }
        let counts = world.workers[0].desk.with(|serving| {
            let counts = serving.node.counts()[usize::from(RADIO)];
            let all = LinkCause::ALL.map(|any| counts.dropped(any));
            (counts.dropped(cause), all.iter().sum())
        });
        let dropped = 5_000 - passes as u64;
        assert_eq!(counts, Some((dropped, dropped)), "{cause:?}");
        world.settle();
        assert_eq!(world.left(CORE).len(), passes, "what was handed over");
    }
}

/// Where one worker does everything, and where one only receives, for another.
#[test]
fn what_ports_take_is_load() {
    for workers in [1, 2] {
        let mut world = World::new(workers);
        let (id, bearer) = relay(3);
        world.put(&[(id, bearer)]);
        world.settle();
        world.give(id.shard(), workers - 1);
        world.settle();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(5) {
            let frames = (0..100).map(|_| message(id, RADIO, 0));
            world.wires[0].lock().unwrap().came.extend(frames);
            world.settle();
        }
        let load = world.workers[0].scheduled.load();
        assert!(load > 0, "{workers} workers");
    }
}

#[test]
fn what_leaves_by_another_worker_s_port_was_handed_over_twice() {
    let mut world = World::new(3);
    let (id, bearer) = relay(4);
    world.put(&[(id, bearer)]);
    world.settle();
    world.give(id.shard(), 1);
    world.settle();
    for sequence in 0..50 {
        let frame = message(id, RADIO, sequence);
        world.wires[0].lock().unwrap().came.push_back(frame);
    }
    world.settle();
    let counted = |worker: &Worker| worker.desk.with(|serving| serving.counted.handed_over);
    let handed: Vec<_> = world.workers.iter().flat_map(counted).collect();
    assert_eq!(handed, [50, 50, 0]);
}

#[test]
fn messages_keep_their_order_while_their_bearers_move() {
    for workers in [2, 3] {
        for seed in 1..12 {
            messages_keep_their_order(workers, seed * 0x9e37_79b9);
        }
    }
}

#[test]
fn what_is_asked_of_a_bearer_is_done_once_wherever_it_is() {
    let mut world = World::new(3);
    let (id, bearer) = relay(7);
    world.put(&[(id, bearer.clone())]);
    world.settle();
    let mut shut = bearer.clone();
    shut.gates = [false; 2];
    let path_of = |worker: &Worker| {
        let core = bearer.core.address;
        let find =
            |serving: &mut Serving| serving.node.function.bearers.paths.find(Side::Core, core);
        worker.desk.with(find)
    };
    let paths = |world: &World| world.workers.iter().map(path_of).collect::<Vec<_>>();
    let mut given = 0;
    for round in 0..60 {
        let known = paths(&world);
        // It is on its way while it is shut, passed, opened, and removed and added.
        given += usize::from(world.give(id.shard(), round % 3));
        for after in [&shut, &bearer] {
            let change = Box::new((bearer.clone(), after.clone()));
            world.tell(|| Command::Change(vec![(id, change.clone())]));
            world.run([(id.shard(), Errand::Change(vec![(id, change.clone())], 0))]);
            let frame = message(id, RADIO, 0);
            world.wires[0].lock().unwrap().came.push_back(frame);
            if round % 2 == 0 {
                world.turn(round % 3);
            } else {
                world.settle();
            }
        }
        world.settle();
        assert_eq!(paths(&world), known, "no peer was forgotten");
        let before = world.usage(&[id])[&id].usage[Side::Core as usize];
        let (answer, answers) = channel();
        world.tell(|| Command::Forget(vec![(id, bearer.clone())]));
        world.run([(id.shard(), Errand::Remove(vec![id], answer.clone()))]);
        world.put(&[(id, bearer.clone())]);
        world.settle();
        let gone: Vec<_> = answers.try_iter().flatten().collect();
        assert_eq!(gone.len(), 1, "removed once");
        assert_eq!(gone[0].1.usage[Side::Core as usize], before);
        assert_eq!(world.usage(&[id])[&id].usage[0].packets, 0, "anew");
    }
    assert!(given > 30, "{given} moves");
}

/// Messages of bearers that are all one worker's at first, by threads of their own, which share them.
#[test]
fn threads_share_bearers_and_keep_their_order() {
    const UNDER_WAY: u32 = 500;
    let mut world = World::new(2);
    let stage = world.stages.bearer;
    let is_first_s = |number: &u32| world.workers[0].scheduled.has(stage, *number);
    let numbers: Vec<u32> = (0..200).filter(is_first_s).collect();
    let bearers: Vec<_> = numbers.iter().map(|number| relay(*number)).collect();
    world.put(&bearers);
    world.settle();
    let control = world.way.control();
    let threads: Vec<_> = std::mem::take(&mut world.workers)
        .into_iter()
        .map(|worker| std::thread::spawn(move || worker.run()))
        .collect();
    let (mut sent, mut seen) = (Ways::new(), Ways::new());
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        for (id, number) in bearers.iter().map(|(id, _)| *id).zip(&numbers) {
            let next = sent.entry((RADIO, *number)).or_default();
            let frame = message(id, RADIO, *next);
            *next += 1;
            world.wires[0].lock().unwrap().came.push_back(frame);
        }
        world.bells[0].ring();
        let all = |ways: &Ways| ways.values().sum::<u32>();
        while all(&sent) - all(&seen) > UNDER_WAY {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "they stand still"
            );
            check(&world, &mut seen);
            std::thread::yield_now();
        }
    }
    while seen != sent {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "some are missing"
        );
        check(&world, &mut seen);
        world.bells.iter().for_each(|bell| bell.ring());
        std::thread::sleep(Duration::from_millis(1));
    }
    let usage = control.snapshot().workers.into_iter();
    let taken: Vec<u64> = usage.map(|worker| worker.states_taken).collect();
    eprintln!(
        "{} messages, shards taken {taken:?}",
        seen.values().sum::<u32>()
    );
    world.tell(|| Command::Stop);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}
