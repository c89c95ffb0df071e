//! A port with faults: packets are lost, delayed, reordered, doubled and corrupted on their way through it.
//!
//! What happens to a packet is a function of the seed, the direction, the queue, and how many packets came before it there: the same seed
//! has the same faults, whatever the bursts, and a trace of a failure can be played again. Only for how long something is delayed depends
//! on when [`Port::poll`] is called, whose time is the port's.
//!
//! Packets are copied on their way, those that are held back into a store of bounded size. Nothing is allocated for a packet, but for the
//! memory of a stored one, which is kept for the next. Without faults in a direction the port's own bursts pass untouched.
//!
//! In reading order: `fate` (what is drawn), `store` (what is held back), `lane` (a queue).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::burst::Burst;
use crate::counters::{Cause, Counters};
use crate::offload::Offloads;
use crate::port::{Port, State};
pub use fate::Faults;
use fate::Plan;
use lane::{Context, Lane};

mod fate;
mod lane;
mod store;

/// Packets that are asked for, or sent, at a time.
const PIECE: usize = 64;

/// Which faults a port has.
#[derive(Debug, Clone)]
pub struct Config {
    /// What all faults follow from.
    pub seed: u64,
    /// Of packets that come.
    pub received: Faults,
    /// Of packets that go.
    pub transmitted: Faults,
    /// So many packets are held back at most, of each queue and direction. What there is no room for passes at once.
    pub held_max: usize,
    /// A packet goes on after this time, even if those that it was to be reordered behind have not come.
    pub patience: Duration,
}

impl Config {
    /// No faults, but room for 1 024 packets to be held back, and 10 ms for others to come.
    #[must_use]
    pub fn new(seed: u64) -> Config {
        Config {
            seed,
            received: Faults::NONE,
            transmitted: Faults::NONE,
            held_max: 1024,
            patience: Duration::from_millis(10),
        }
    }
}

/// What happened to the packets of one direction. Always, `offered + doubled == passed + lost + gone + held`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultCounts {
    /// Packets that came to the faults.
    pub offered: u64,
    /// That went on, doubles among them.
    pub passed: u64,
    /// That were lost.
    pub lost: u64,
    /// Doubles that were made.
    pub doubled: u64,
    /// Packets with a bit changed.
    pub corrupted: u64,
    /// That were held back for some time.
    pub delayed: u64,
    /// That were held back behind others.
    pub reordered: u64,
    /// That should have been held back, and went on since there was no room.
    pub unheld: u64,
    /// That were held back, or not looked at yet, until there was no peer for them.
    pub gone: u64,
    /// That are held back now.
    pub held: u64,
    /// Bytes of `passed`, of packets that came.
    bytes: u64,
}

impl FaultCounts {
    fn pass(&mut self, bytes: usize) {
        self.passed += 1;
        self.bytes += bytes as u64;
    }
}

/// A direction.
#[derive(Debug)]
struct Way {
    plan: Plan,
    lanes: Vec<Lane>,
    counts: FaultCounts,
}

impl Way {
    fn new(faults: &Faults, seed: u64) -> io::Result<Way> {
        Ok(Way {
            plan: Plan::new(faults, seed)?,
            lanes: Vec::new(),
            counts: FaultCounts::default(),
        })
    }

    fn lane(&mut self, queue: usize, held_max: usize) {
        while self.lanes.len() <= queue {
            self.lanes.push(Lane::new(held_max));
        }
    }

    fn next_at(&self) -> Option<Instant> {
        self.lanes
            .iter()
            .filter_map(|lane| lane.store.next_at())
            .min()
    }

    fn counts(&self) -> FaultCounts {
        let held = self.lanes.iter().map(|lane| lane.store.len() as u64);
        FaultCounts {
            held: held.sum(),
            ..self.counts
        }
    }
}

/// A port with faults.
#[derive(Debug)]
pub struct Fault<P> {
    port: P,
    received: Way,
    transmitted: Way,
    held_max: usize,
    patience: Duration,
    now: Instant,
}

impl<P: Port> Fault<P> {
    /// Puts faults before a port.
    ///
    /// # Errors
    /// `InvalidInput` for what is no probability, or no range.
    pub fn new(port: P, config: &Config) -> io::Result<Fault<P>> {
        Ok(Fault {
            port,
            received: Way::new(&config.received, config.seed)?,
            // Any other one.
            transmitted: Way::new(&config.transmitted, !config.seed)?,
            held_max: config.held_max,
            patience: config.patience,
            now: Instant::now(),
        })
    }

    /// What happened to packets that came.
    #[must_use]
    pub fn received(&self) -> FaultCounts {
        self.received.counts()
    }

    /// What happened to packets that went.
    #[must_use]
    pub fn transmitted(&self) -> FaultCounts {
        self.transmitted.counts()
    }

    /// The port itself.
    pub fn inner(&self) -> &P {
        &self.port
    }

    /// The port itself: what is done with it passes by the faults.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// The port without the faults; what is held back is lost.
    pub fn into_inner(self) -> P {
        self.port
    }
}

fn context<'a>(plan: &'a Plan, queue: usize, now: Instant, patience: Duration) -> Context<'a> {
    Context {
        plan,
        queue,
        now,
        patience,
    }
}

impl<P: Port> Port for Fault<P> {
    fn poll(&mut self, now: Instant) -> &State {
        self.now = now;
        self.port.poll(now);
        if self.port.receive_queues() == 0 {
            let way = &mut self.received;
            let gone: u64 = way.lanes.iter_mut().map(Lane::forget).sum();
            way.counts.offered += gone;
            way.counts.gone += gone;
        }
        let way = &mut self.transmitted;
        for (queue, lane) in way.lanes.iter_mut().enumerate() {
            let context = context(&way.plan, queue, now, self.patience);
            lane.flush(&context, &mut self.port, &mut way.counts);
        }
        self.port.state()
    }

    fn poll_at(&self) -> Option<Instant> {
        let times = [
            self.port.poll_at(),
            self.received.next_at(),
            self.transmitted.next_at(),
        ];
        times.into_iter().flatten().min()
    }

    fn state(&self) -> &State {
        self.port.state()
    }

    fn receive_queues(&self) -> usize {
        self.port.receive_queues()
    }

    fn transmit_queues(&self) -> usize {
        self.port.transmit_queues()
    }

    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        let way = &mut self.received;
        if way.plan.is_idle() {
            return self.port.receive(queue, burst);
        }
        burst.clear();
        if queue >= self.port.receive_queues().max(way.lanes.len()) {
            return 0;
        }
        way.lane(queue, self.held_max);
        let context = context(&way.plan, queue, self.now, self.patience);
        way.lanes[queue].receive(&context, &mut self.port, burst, &mut way.counts);
        burst.len()
    }

    fn release(&mut self, queue: usize) {
        // Otherwise what came was copied, or is still to be looked at.
        if self.received.plan.is_idle() {
            self.port.release(queue);
        }
    }

    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        let way = &mut self.transmitted;
        if way.plan.is_idle() {
            return self.port.transmit(queue, burst, first);
        }
        if queue >= self.port.transmit_queues() {
            return 0;
        }
        way.lane(queue, self.held_max);
        let context = context(&way.plan, queue, self.now, self.patience);
        way.lanes[queue].transmit(&context, &mut self.port, burst, first, &mut way.counts)
    }

    fn offloads(&self) -> Offloads {
        self.port.offloads()
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        self.port.give_up(queue, burst, first);
    }

    fn arm(&mut self) -> bool {
        let has_more = self
            .received
            .lanes
            .iter()
            .any(|lane| lane.has_more(self.now));
        !has_more && self.port.arm()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }

    /// Those of the port; of packets that come, what was handed on. What was lost here was dropped by [`Cause::Fault`].
    fn counters(&self) -> Counters {
        let mut counters = self.port.counters();
        let received = &self.received.counts;
        if !self.received.plan.is_idle() {
            counters.received.packets = received.passed;
            counters.received.bytes = received.bytes;
        }
        counters.received.drop(Cause::Fault, received.lost);
        counters.received.drop(Cause::NoPeer, received.gone);
        let lost = self.transmitted.counts.lost;
        counters.transmitted.drop(Cause::Fault, lost);
        counters
    }
}
