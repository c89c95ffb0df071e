//! Making a plan from a seed. Each seed uses only some of the kinds of steps (swarm testing), so that what
//! one kind hides (urgent data pins a connection to the kernel, say) is not hidden in every sequence.

mod blocked;
mod descriptors;
mod endings;
mod errors;
mod model;
mod processes;
mod registrations;
mod setup;
mod special;
mod streams;
mod transfer;
mod waits;

use crate::board::{PROCESSES, SLOTS, THREADS};
use crate::plan::{Awaited, Call, Plan, Process, Slot, Step, Thread};
use crate::random::Random;
use model::{EndId, Model};

/// A kind of step: its name, how often it is chosen, and what makes it. A maker that finds nothing to do returns false.
struct Kind {
    name: &'static str,
    weight: u32,
    make: fn(&mut Generator) -> bool,
}

const fn kind(name: &'static str, weight: u32, make: fn(&mut Generator) -> bool) -> Kind {
    Kind { name, weight, make }
}

/// All kinds. The first two are in every sequence.
const KINDS: [Kind; 53] = [
    kind("message", 24, Generator::message),
    kind("receive", 24, Generator::receive_some),
    kind("peek", 5, Generator::peek),
    kind("wait-all", 5, Generator::wait_all),
    kind("empty", 5, Generator::receive_nothing),
    kind("more", 4, Generator::send_more),
    kind("urgent", 2, Generator::urgent),
    kind("zero-copy", 1, Generator::zero_copy),
    kind("bulk", 4, Generator::bulk),
    kind("duplex", 2, Generator::duplex),
    kind("fill", 2, Generator::fill),
    kind("errors", 4, Generator::wrong_arguments),
    kind("odd", 2, Generator::odd_call),
    kind("poll", 10, Generator::poll),
    kind("epoll-create", 4, Generator::epoll_create),
    kind("epoll-change", 10, Generator::epoll_change),
    kind("epoll-wait", 10, Generator::epoll_wait),
    kind("epoll-nested", 2, Generator::epoll_nest),
    kind("blocked-receive", 8, Generator::blocked_receive),
    kind("blocked-poll", 5, Generator::blocked_poll),
    kind("blocked-epoll", 6, Generator::blocked_epoll),
    kind("blocked-accept", 2, Generator::blocked_accept),
    kind("two-readers", 2, Generator::two_readers),
    kind("time-out", 2, Generator::time_out),
    kind("closed-under", 2, Generator::closed_under),
    kind("options", 8, Generator::options),
    kind("names", 3, Generator::names),
    kind("nonblock", 4, Generator::nonblock),
    kind("async", 1, Generator::async_signals),
    kind("duplicate", 6, Generator::duplicate),
    kind("duplicate-over", 3, Generator::duplicate_over),
    kind("close-copy", 5, Generator::close_copy),
    kind("cloexec", 2, Generator::close_on_exec),
    kind("connection", 3, Generator::another_connection),
    kind("refused", 1, Generator::refused),
    kind("fork", 4, Generator::fork),
    kind("exec", 3, Generator::exec),
    kind("stranger", 1, Generator::exec_stranger),
    kind("exit", 3, Generator::exit),
    kind("pass", 4, Generator::pass),
    kind("spawn", 3, Generator::spawn),
    kind("stop", 2, Generator::stop),
    kind("shutdown", 3, Generator::shutdown),
    kind("close", 3, Generator::close),
    kind("disconnect", 1, Generator::disconnect),
    kind("after-end", 12, Generator::after_end),
    kind("epoll-alternate", 8, Generator::epoll_alternate),
    kind("epoll-shared", 4, Generator::epoll_shared),
    kind("epoll-change-asleep", 5, Generator::epoll_change_asleep),
    kind("epoll-room", 2, Generator::epoll_room),
    kind(CHATTER, 16, Generator::chatter),
    kind("conversation", 8, Generator::conversation),
    kind("streams", 8, Generator::streams),
];

/// The kinds from this one on came later. They are for seeds from [`LATE_SEEDS`] on, so that the seeds before make what they made.
const LATE_KINDS: usize = 46;
const LATE_SEEDS: u64 = 1000;
/// The kinds from this one on bring connections to the ring in the middle of a sequence, where that takes some calls. They are for the
/// seeds from [`MIDWAY_SEEDS`] on; `run.py` knows the number, too.
const MIDWAY_KINDS: usize = 50;
const MIDWAY_SEEDS: u64 = 1_000_000_000;
/// In every sequence that has it.
const CHATTER: &str = "chatter";

/// The names of the kinds of steps that a seed may use, to leave some out.
pub(crate) fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

/// Makes the plan of a seed. Kinds whose names are in `without` are left out.
pub(crate) fn generate(seed: u64, without: &[String]) -> Plan {
    let mut random = Random::new(seed);
    let midway = seed >= MIDWAY_SEEDS;
    let kinds = match seed {
        ..LATE_SEEDS => &KINDS[..LATE_KINDS],
        LATE_SEEDS..MIDWAY_SEEDS => &KINDS[..MIDWAY_KINDS],
        _ => &KINDS[..],
    };
    let mut weights: Vec<u32> = kinds
        .iter()
        .map(|kind| kind.weight * random.pick(&[0, 0, 1, 1, 3]))
        .collect();
    for (index, kind) in kinds.iter().enumerate() {
        if index < 2 || kind.name == CHATTER {
            weights[index] = kind.weight;
        }
        if without.iter().any(|name| name == kind.name) {
            weights[index] = 0;
        }
    }
    let processes = if random.chance(15) { 1 } else { 2 };
    let mut generator = Generator {
        fresh_images: random.chance(40),
        killed: random.chance(30),
        address: [0, 0, 0].map(|_: u8| random.between(1, 250) as u8),
        random,
        model: Model::default(),
        steps: Vec::new(),
        next_slot: 0,
        next_thread: 0,
        next_conn: 0,
        waits_left: 4,
        midway,
    };
    for _ in 0..processes {
        generator.model.processes.push(model::ProcessModel {
            alive: true,
            ..Default::default()
        });
    }
    generator.run(&weights, processes);
    Plan {
        seed,
        fresh_images: generator.fresh_images,
        killed: generator.killed,
        processes,
        address: generator.address,
        patience_ms: 2000,
        limit_ms: 5000,
        steps: generator.steps,
    }
}

struct Generator {
    fresh_images: bool,
    killed: bool,
    address: [u8; 3],
    random: Random,
    model: Model,
    steps: Vec<Step>,
    next_slot: Slot,
    next_thread: Thread,
    next_conn: u8,
    /// How many more time-outs may be waited for: they cost time.
    waits_left: u32,
    /// Connections are to come to the ring while something else goes on.
    midway: bool,
}

impl Generator {
    fn run(&mut self, weights: &[u32], processes: u8) {
        self.set_up(processes);
        let count = self.random.between(8, 60);
        for _ in 0..count {
            // A kind that finds nothing to do gives way to another.
            for _ in 0..4 {
                let index = self.random.weighted(weights);
                self.settle_all();
                if (KINDS[index].make)(self) {
                    break;
                }
            }
        }
        self.finish();
    }

    /// Adds a call by a main thread.
    fn call(&mut self, at: Process, call: Call) {
        self.steps.push(Step::Do { at, call });
    }

    /// Starts a thread that makes a call; the caller must join it.
    fn start(&mut self, at: Process, call: Call) -> Thread {
        let thread = self.next_thread;
        self.next_thread += 1;
        self.model.processes[usize::from(at)].threads.push(thread);
        self.steps.push(Step::Start { at, thread, call });
        thread
    }

    /// Waits for a thread's call to return.
    fn join(&mut self, at: Process, thread: Thread) {
        self.steps.push(Step::Join { any: vec![thread] });
        self.joined(at, thread);
    }

    /// Notes that a thread has ended.
    fn joined(&mut self, at: Process, thread: Thread) {
        self.model.processes[usize::from(at)]
            .threads
            .retain(|other| *other != thread);
    }

    fn new_slot(&mut self) -> Slot {
        self.next_slot += 1;
        self.next_slot - 1
    }

    /// Whether there is room on the board for some more of everything.
    fn room(&self) -> bool {
        usize::from(self.next_slot) + 6 < SLOTS
            && usize::from(self.next_thread) + 6 < THREADS
            && self.model.processes.len() < PROCESSES
    }

    /// One who can use the end.
    fn holder(&mut self, id: EndId) -> Option<(Process, Slot)> {
        let holders = self.model.holders(id);
        self.random.pick_any(&holders)
    }

    /// An end that somebody holds.
    fn any_end(&mut self) -> Option<(EndId, Process, Slot)> {
        let ends = self.model.held_ends();
        let id = self.random.pick_any(&ends)?;
        let (at, slot) = self.holder(id)?;
        Some((id, at, slot))
    }

    /// Makes sure that what was sent to the end has come there.
    fn settle(&mut self, id: EndId) {
        let end = self.model.end(id);
        if !end.unsettled || end.frozen {
            return;
        }
        if let Some((at, slot)) = self.holder(id) {
            if self.random.chance(25) {
                self.poll_for_input(at, slot, id);
            }
            let what = Awaited::Queued;
            self.call(at, Call::Await { slot, what });
            self.model.end_mut(id).unsettled = false;
        }
    }

    /// Before bytes are received that may be on their way: they raise SIGIO unless a reader sleeps, so where somebody gets signals nobody
    /// does. When they come depends on acknowledgements.
    fn await_for_signals(&mut self, at: Process, slot: Slot) {
        if self.model.signals {
            let what = Awaited::Queued;
            self.call(at, Call::Await { slot, what });
        }
    }

    fn settle_all(&mut self) {
        let ends: Vec<EndId> = self.model.ends.keys().copied().collect();
        for id in ends {
            if !self.model.end(id).closed {
                self.settle(id);
            }
        }
    }

    /// Waits until both ends of a connection know of each other's ending.
    fn settle_states(&mut self, conn: u8) {
        for side in [0, 1] {
            let id = EndId { conn, side };
            let end = self.model.end(id);
            if end.closed {
                continue;
            }
            let what = self.model.state(id);
            if let Some((at, slot)) = self.holder(id) {
                self.call(at, Call::Await { slot, what });
            }
        }
    }

    /// Closes a slot in the model, and waits for what that does to the peer.
    fn closed_slot(&mut self, at: Process, slot: Slot) {
        if let Some(id) = self.model.drop_slot(at, slot) {
            self.settle_states(id.conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_plan_again() {
        assert_eq!(generate(7, &[]), generate(7, &[]));
        assert_ne!(generate(7, &[]).steps, generate(8, &[]).steps);
    }

    #[test]
    fn a_plan_survives_being_written_and_read() -> serde_json::Result<()> {
        for seed in 0..50 {
            let plan = generate(seed, &[]);
            let text = serde_json::to_string(&plan)?;
            assert_eq!(serde_json::from_str::<Plan>(&text)?, plan);
        }
        Ok(())
    }

    #[test]
    fn kinds_that_are_left_out_do_not_occur() {
        let without = [
            "fork".to_string(),
            "blocked-receive".to_string(),
            "pass".to_string(),
        ];
        for seed in 0..200 {
            let passes = |step: &Step| {
                matches!(
                    step,
                    Step::Do {
                        call: Call::PassTo { .. },
                        ..
                    }
                )
            };
            assert!(
                !generate(seed, &without).steps.iter().any(passes),
                "seed {seed}"
            );
        }
    }

    #[test]
    fn plans_stay_within_the_board() {
        for seed in (0..2000).chain(MIDWAY_SEEDS..MIDWAY_SEEDS + 2000) {
            let plan = generate(seed, &[]);
            let slots = plan.steps.iter().filter_map(|step| match step {
                Step::Do {
                    call: Call::Duplicate { to, .. },
                    ..
                } => Some(usize::from(*to)),
                Step::Fork { child, .. } => Some(usize::from(*child) * SLOTS / PROCESSES),
                Step::Start { thread, .. } => Some(usize::from(*thread) * SLOTS / THREADS),
                _ => None,
            });
            assert!(slots.max().unwrap_or(0) < SLOTS, "seed {seed}");
        }
    }
}
