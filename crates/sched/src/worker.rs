//! A worker: takes what others send, does what is most urgent, and hands on.
//!
//! It is run by a thread, or by a test that plays one turn after another. Between turns nothing of it is in the midst of anything.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::balance::{Clock, Load};
use crate::control::Control;
use crate::event::{Event, StageId};
use crate::graph::{Handler, Kind, Out};
use crate::map::Place;
use crate::outbox::{HANDED_OVER, HANDED_OVER_WITH_STATE, LENT, Outbox, RETURNED};
use crate::ring::Consumer;
use crate::seen::Seen;
use crate::shared::{Bed, Shared};
use crate::timers::Timers;
use activity::Activity;
use lending::Lending;
use moving::Flows;
use queues::Queues;

mod activity;
mod batch;
mod carrying;
mod in_place;
mod lending;
mod moving;
mod queues;

pub(crate) use lending::Loans;

/// Events that are taken out of the ring at once: few enough to stay in the nearest cache until they are looked at.
const AT_ONCE: u64 = 256;
/// Turns without work between two looks at the clock.
const IDLE_TURNS: u32 = 16;

/// What a worker did with events of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Events that were handled.
    pub events: u64,
    /// Batches that they came in.
    pub batches: u64,
    /// What an event costs, in nanoseconds, of late: one batch in sixteen is timed.
    pub cost_ns: u64,
}

/// A worker.
pub struct Worker {
    index: usize,
    shared: Arc<Shared>,
    input: Consumer,
    outbox: Outbox,
    /// What has just come, and what was to be sent and is its own.
    came: Vec<Event>,
    own: Vec<Event>,
    /// None: it panicked, and so did what makes another one.
    handlers: Vec<Option<Box<dyn Handler>>>,
    queues: Queues,
    flows: Flows,
    lending: Lending,
    activity: Activity,
    timers: Timers,
    /// What others are to get, and has not found its way yet.
    pending: VecDeque<Event>,
    out: Out,
    batch: Vec<Event>,
    burst: usize,
    /// Of each entry point: events that left in this turn, less those that were made.
    gone: Box<[u64]>,
    drops: Vec<[u64; 256]>,
    clock: Clock,
    load: Load,
    idle_turns: u32,
    /// Buckets that were given away.
    moves: u64,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {}", self.index)
    }
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        shared: Arc<Shared>,
        input: Consumer,
        outbox: Outbox,
        clock: Clock,
    ) -> Worker {
        let makers = shared.makers.0.iter();
        let handlers: Vec<_> = makers.map(|make| Some(make(index))).collect();
        let stages = handlers.len();
        let burst = shared.tuning.burst.load(Relaxed);
        let now = clock.now();
        Worker {
            flows: Flows::new(&shared, index, stages),
            lending: Lending::default(),
            activity: Activity::default(),
            timers: Timers::new(now),
            gone: vec![0; shared.entries].into(),
            index,
            shared,
            input,
            outbox,
            came: Vec::with_capacity(AT_ONCE as usize),
            own: Vec::new(),
            handlers,
            queues: Queues::new(stages),
            pending: VecDeque::new(),
            out: Out {
                events: Vec::with_capacity(burst),
                ..Out::default()
            },
            batch: Vec::with_capacity(burst),
            burst,
            drops: vec![[0; 256]; stages],
            load: Load::new(now),
            clock,
            idle_turns: 0,
            moves: 0,
        }
    }

    /// How many buckets it has given to others.
    #[must_use]
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// The share of time that it works, in thousandths.
    #[must_use]
    pub fn load(&self) -> u64 {
        self.load.level
    }

    /// Its number, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// What it did at each stage, with the stage's name.
    pub fn work(&self) -> impl ExactSizeIterator<Item = (&str, Work)> {
        let names = self.shared.names.iter().map(String::as_str);
        names.zip(self.seen().stages.iter().map(|seen| Work {
            events: seen.events.get(),
            batches: seen.batches.get(),
            cost_ns: seen.cost_ns.get(),
        }))
    }

    /// How many events a stage dropped here, by its own causes.
    #[must_use]
    pub fn drops(&self, stage: StageId) -> &[u64; 256] {
        &self.drops[stage.index()]
    }

    /// What looks at the whole, and tunes it, from any thread.
    #[must_use]
    pub fn control(&self) -> Control {
        Control::new(self.shared.clone(), self.clock.clone())
    }

    /// Takes what came, does batches until nothing is left or so many were done, and hands on. Returns how many events were handled.
    pub fn turn(&mut self, batches: usize) -> usize {
        let has_work = self.input.is_ready()
            || !self.queues.is_empty()
            || !self.lending.borrowed.is_empty()
            || self.timers.len() > 0;
        if !has_work {
            self.turn_without_work();
            return 0;
        }
        let begin = self.clock.now();
        self.out.now_ns = begin;
        self.burst = self.shared.tuning.burst.load(Relaxed);
        self.receive();
        self.go_on_moving();
        self.watch_latency(begin);
        self.expire(begin);
        let handled = self.handle_borrowed() + self.handle_waiting(batches);
        self.count_gone();
        self.send();
        let now = self.clock.now();
        if handled > 0 {
            self.load.add(now - begin);
        }
        self.look_around(now);
        handled
    }

    /// What is left to do then; the clock is asked now and then, and when much was done in place.
    fn turn_without_work(&mut self) {
        self.go_on_moving();
        self.send();
        self.idle_turns = self.idle_turns.wrapping_add(1);
        if self.idle_turns.is_multiple_of(IDLE_TURNS) || self.load.is_due() {
            self.look_around(self.clock.now());
        }
    }

    /// Now and then: its load, and who may have some of it.
    fn look_around(&mut self, now: u64) {
        if let Some(is_time_to_move) = self.load.look(now) {
            self.show();
            if is_time_to_move {
                self.follow_load(now);
                self.balance(now);
            }
        }
    }

    /// Whether there is nothing to do for it, now.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queues.is_empty()
            && self.pending.is_empty()
            && !self.flows.is_moving()
            && !self.activity.is_leaving()
            && self.lending.borrowed.is_empty()
            && !self.input.is_ready()
    }

    /// When the next event comes that was put off, in nanoseconds since the graph was built, if there is one; perhaps later.
    #[must_use]
    pub fn next_timer_ns(&self) -> Option<u64> {
        self.timers.next_ns()
    }

    /// Events that it has, in whatever state.
    #[must_use]
    pub fn backlog(&self) -> usize {
        let waiting = self.queues.len() + self.pending.len() + self.timers.len();
        waiting + self.flows.held() + self.lending.lent()
    }

    pub(crate) fn bed(&self) -> &Bed {
        &self.shared.beds[self.index]
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What time it is, in nanoseconds since the graph was built.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.clock.now()
    }

    pub(crate) fn seen(&self) -> &Seen {
        &self.shared.seen[self.index].0
    }

    /// Whether all events of a stage are done here; no stage: none.
    #[inline]
    fn has_every_flow(&self, stage: StageId) -> bool {
        match self.shared.kinds.get(stage.index()) {
            Some(Kind::Parallel) => true,
            Some(_) => self.flows.has_all(stage),
            None => false,
        }
    }

    fn receive(&mut self) {
        // All that there is: who sends is never kept waiting by what is done here.
        let mut left = self.input.room();
        while left > 0 && self.input.is_ready() {
            let mut came = std::mem::take(&mut self.came);
            let most = left.min(AT_ONCE);
            self.input
                .take(most, |words| came.push(Event::unpack(words)));
            left -= came.len() as u64;
            self.seen().received.add(came.len() as u64);
            self.accept_all(&came);
            came.clear();
            self.came = came;
        }
    }

    /// Events came: those of one queue that are ours, one after another, at once.
    fn accept_all(&mut self, events: &[Event]) {
        if let Some(first) = events.first()
            && self.has_every_flow(first.stage)
            && Event::are_of_one_queue(events)
        {
            return self.queues.extend((first.priority, first.stage), events);
        }
        let mut rest = events;
        while let Some(first) = rest.first() {
            let queue = (first.priority, first.stage);
            let is_of_it = |event: &Event| (event.priority, event.stage) == queue;
            let ours = match self.shared.kinds.get(queue.1.index()) {
                Some(Kind::Parallel) => rest.iter().position(|event| !is_of_it(event)),
                Some(_) => rest.iter().position(|event| {
                    !(is_of_it(event) & self.flows.has(Place::of(queue.1, event.flow)))
                }),
                None => Some(0),
            };
            let (ours, others) = rest.split_at(ours.unwrap_or(rest.len()));
            if ours.is_empty() {
                self.accept(*first);
                rest = &others[1..];
            } else {
                self.queues.extend(queue, ours);
                rest = others;
            }
        }
    }

    /// An event came.
    fn accept(&mut self, event: Event) {
        if event.is_word() {
            self.obey(event);
        } else if self.shared.kinds[event.stage.index()] == Kind::Parallel {
            self.queues.push(event);
        } else {
            self.accept_owned(event);
        }
    }

    fn obey(&mut self, word: Event) {
        match word.stage {
            HANDED_OVER => self.take_over(Place::from_word(word.flow)),
            HANDED_OVER_WITH_STATE => {
                self.take_state(Place::from_word(word.flow));
                self.take_over(Place::from_word(word.flow));
            }
            LENT => self.lending.borrowed.push_back(word.flow),
            RETURNED => self.come_back(word.flow),
            _ => {}
        }
    }

    /// Puts what was put off, and is due, where it belongs.
    fn expire(&mut self, now: u64) {
        if self.timers.len() > 0 {
            self.timers.expire(now, &mut self.out.events);
            self.hand_on_each(None);
        }
    }

    /// Tells entry points how many of their events have left: before what was made of them is anybody's.
    fn count_gone(&mut self) {
        for (entry, gone) in self.gone.iter_mut().enumerate() {
            if *gone != 0 {
                self.shared.count_gone(self.index, entry, *gone);
                *gone = 0;
            }
        }
    }

    /// Sends what others are to get, as far as there is room: the rest waits here, in its order, and fails nobody.
    fn send(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut own = std::mem::take(&mut self.own);
        let pending = self.pending.iter();
        let sent = self
            .outbox
            .send(&self.shared, pending, self.index, &mut own);
        self.pending.drain(..sent);
        self.seen().sent.add((sent - own.len()) as u64);
        for event in own.drain(..) {
            self.accept(event);
        }
        self.own = own;
    }

    /// Shows what is not counted as it happens.
    pub(crate) fn show(&self) {
        let seen = self.seen();
        for (number, stage) in seen.stages.iter().enumerate() {
            let waiting = self.queues.at_stage(StageId(number as u8)) as u64;
            stage.waiting.set(waiting);
            stage.waiting_max.raise(waiting);
        }
        seen.load.set(self.load.level);
        seen.pending.set(self.pending.len() as u64);
        seen.held.set(self.flows.held() as u64);
        seen.lent.set(self.lending.lent() as u64);
        seen.timers.set(self.timers.len() as u64);
        seen.owned.set(self.flows.owned() as u64);
    }
}
