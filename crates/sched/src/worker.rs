//! A worker: takes what others send, does what is most urgent, and hands on.
//!
//! It is run by a thread, or by a test that plays one turn after another. Between turns nothing of it is in the midst of anything.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::balance::{Clock, Load};
use crate::event::{Event, Priority, StageId};
use crate::graph::{Handler, Kind, Out};
use crate::map::Place;
use crate::outbox::{HANDED_OVER, LENT, Outbox, RETURNED};
use crate::ring::Consumer;
use crate::shared::{Bed, Shared};
use crate::{Config, STARVATION_BATCHES};
use lending::Lending;
use moving::Flows;

mod lending;
mod moving;

pub(crate) use lending::Loans;

/// Of so many batches of a stage one is timed.
const TIMED: u64 = 16;

/// Events that wait, by priority and stage.
#[derive(Debug)]
struct Queues {
    waiting: Vec<VecDeque<Event>>,
    stages: usize,
    /// Of each priority.
    counts: [usize; 4],
    /// Batches since the last one of the lowest priority that waits.
    passed_over: usize,
}

impl Queues {
    fn new(stages: usize) -> Queues {
        Queues {
            waiting: (0..4 * stages).map(|_| VecDeque::new()).collect(),
            stages,
            counts: [0; 4],
            passed_over: 0,
        }
    }

    #[inline]
    fn push(&mut self, event: Event) {
        let priority = event.priority as usize;
        self.counts[priority] += 1;
        self.waiting[priority * self.stages + event.stage.index()].push_back(event);
    }

    fn is_empty(&self) -> bool {
        self.counts == [0; 4]
    }

    fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Whose turn it is: the most urgent, but once in a while the least; and of those, the stage that is nearest to the way out.
    fn choose(&mut self) -> Option<(usize, StageId)> {
        let urgent = self.counts.iter().position(|count| *count > 0)?;
        let least = self.counts.iter().rposition(|count| *count > 0)?;
        let priority = if urgent == least {
            self.passed_over = 0;
            urgent
        } else if self.passed_over + 1 >= STARVATION_BATCHES {
            self.passed_over = 0;
            least
        } else {
            self.passed_over += 1;
            urgent
        };
        let queues = &self.waiting[priority * self.stages..][..self.stages];
        let stage = queues.iter().rposition(|queue| !queue.is_empty())?;
        Some((priority, StageId(stage as u8)))
    }

    /// Moves a batch of them over.
    fn take(&mut self, (priority, stage): (usize, StageId), most: usize, batch: &mut Vec<Event>) {
        let queue = &mut self.waiting[priority * self.stages + stage.index()];
        let count = queue.len().min(most);
        self.counts[priority] -= count;
        batch.extend(queue.drain(..count));
    }

    /// Takes out all of a bucket, in their order.
    fn extract(&mut self, place: Place, mut each: impl FnMut(Event)) {
        let stage = place.stage();
        for priority in Priority::ALL {
            let queue = &mut self.waiting[priority as usize * self.stages + stage.index()];
            let before = queue.len();
            queue.retain(|event| {
                let stays = Place::of(stage, event.flow) != place;
                if !stays {
                    each(*event);
                }
                stays
            });
            self.counts[priority as usize] -= before - queue.len();
        }
    }
}

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
    handlers: Vec<Box<dyn Handler>>,
    queues: Queues,
    flows: Flows,
    lending: Lending,
    /// What others are to get, and has not found its way yet.
    pending: VecDeque<Event>,
    out: Out,
    batch: Vec<Event>,
    burst: usize,
    /// Batches of ordered stages are lent while more than so many events wait.
    lend_above: usize,
    work: Vec<Work>,
    drops: Vec<[u64; 256]>,
    clock: Clock,
    load: Load,
    /// Buckets that were given away.
    moves: u64,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {}", self.index)
    }
}

impl Worker {
    #[allow(clippy::too_many_arguments, reason = "by `build` only")]
    pub(crate) fn new(
        index: usize,
        shared: Arc<Shared>,
        input: Consumer,
        outbox: Outbox,
        handlers: Vec<Box<dyn Handler>>,
        config: &Config,
        clock: Clock,
    ) -> Worker {
        let (burst, lend_above) = (config.burst, config.lend_above);
        let stages = handlers.len();
        Worker {
            flows: Flows::new(&shared, index, stages),
            lending: Lending::default(),
            lend_above,
            index,
            shared,
            input,
            outbox,
            came: Vec::new(),
            own: Vec::new(),
            handlers,
            queues: Queues::new(stages),
            pending: VecDeque::new(),
            out: Out::default(),
            batch: Vec::with_capacity(burst),
            burst,
            work: vec![Work::default(); stages],
            drops: vec![[0; 256]; stages],
            load: Load::new(clock.now()),
            clock,
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
        names.zip(self.work.iter().copied())
    }

    /// How many events a stage dropped here, by its own causes.
    #[must_use]
    pub fn drops(&self, stage: StageId) -> &[u64; 256] {
        &self.drops[stage.index()]
    }

    /// Takes what came, does batches until nothing is left or so many were done, and hands on. Returns how many events were handled.
    pub fn turn(&mut self, batches: usize) -> usize {
        let begin = self.clock.now();
        self.receive();
        self.go_on_moving();
        let mut handled = self.handle_borrowed();
        for _ in 0..batches {
            match self.queues.choose() {
                Some(queue) => handled += self.handle(queue),
                None => break,
            }
        }
        self.send();
        let now = self.clock.now();
        if handled > 0 {
            self.load.add(now - begin);
        }
        if self.load.look(now) {
            self.balance();
        }
        handled
    }

    /// Whether there is nothing to do for it, now.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queues.is_empty()
            && self.pending.is_empty()
            && !self.flows.is_moving()
            && self.lending.borrowed.is_empty()
            && !self.input.is_ready()
    }

    /// Events that it has, in whatever state.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.queues.len() + self.pending.len() + self.flows.held() + self.lending.lent()
    }

    pub(crate) fn bed(&self) -> &Bed {
        &self.shared.beds[self.index]
    }

    fn receive(&mut self) {
        // All that there is: who sends is never kept waiting by what is done here.
        let mut came = std::mem::take(&mut self.came);
        self.input
            .take(u64::MAX, |words| came.push(Event::unpack(words)));
        for event in came.drain(..) {
            self.accept(event);
        }
        self.came = came;
    }

    /// An event came.
    #[inline]
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
            LENT => self.lending.borrowed.push_back(word.flow),
            RETURNED => self.come_back(word.flow),
            _ => {}
        }
    }

    /// Does a batch.
    fn handle(&mut self, queue: (usize, StageId)) -> usize {
        self.batch.clear();
        self.queues.take(queue, self.burst, &mut self.batch);
        let count = self.batch.len();
        if self.shared.kinds[queue.1.index()] == Kind::Ordered && self.handle_ordered(queue.1) {
            return count;
        }
        self.run(queue.1);
        self.hand_on();
        count
    }

    /// Has the batch handled, and counts that. What is to be handed on is in `out`.
    fn run(&mut self, id: StageId) {
        let stage = id.index();
        let is_timed = self.work[stage].batches.is_multiple_of(TIMED);
        let begin = if is_timed { self.clock.now() } else { 0 };
        self.handlers[stage].handle(&self.batch, &mut self.out);
        if is_timed && !self.batch.is_empty() {
            let cost = (self.clock.now() - begin) / self.batch.len() as u64;
            let Work {
                batches, cost_ns, ..
            } = &mut self.work[stage];
            // One that was interrupted is not what work costs.
            *cost_ns = match *batches {
                0 => cost,
                _ => (7 * *cost_ns + cost.min(16 * *cost_ns + 1000)) / 8,
            };
        }
        for event in &self.batch {
            self.load.saw(Place::of(id, event.flow));
        }
        self.work[stage].events += self.batch.len() as u64;
        self.work[stage].batches += 1;
        for (cause, count) in self.out.drops.drain(..) {
            self.drops[stage][usize::from(cause)] += count;
        }
        self.account();
    }

    /// Puts what was handed on where it belongs.
    fn hand_on(&mut self) {
        let mut events = std::mem::take(&mut self.out.events);
        for event in events.drain(..) {
            let is_ours = self.shared.kinds[event.stage.index()] == Kind::Parallel
                || self.flows.has(Place::of(event.stage, event.flow));
            match is_ours {
                true => self.queues.push(event),
                false => self.pending.push_back(event),
            }
        }
        self.out.events = events;
    }

    /// Counts what a batch took in, less what it handed on, for each entry point.
    fn account(&mut self) {
        let (taken, given) = (&self.batch, &self.out.events);
        let Some(entry) = taken.first().map(|event| event.entry) else {
            return;
        };
        let is_same = |event: &Event| event.entry == entry;
        if taken.iter().all(is_same) && given.iter().all(is_same) {
            let gone = (taken.len() as u64).wrapping_sub(given.len() as u64);
            if gone != 0 {
                self.shared.count_gone(self.index, entry, gone);
            }
            return;
        }
        for event in taken {
            self.shared.count_gone(self.index, event.entry, 1);
        }
        for event in given {
            self.shared.count_gone(self.index, event.entry, u64::MAX);
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
        for event in own.drain(..) {
            self.accept(event);
        }
        self.own = own;
    }
}
