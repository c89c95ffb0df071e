//! What becomes of a batch: it is handled, counted, and what it hands on goes where it belongs.
//!
//! Most often all of that is for one stage, of flows that are this worker's, and nothing is more urgent: then it is the next batch, as it
//! lies, and was in no queue.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Worker;
use super::queues::Queue;
use crate::event::{Event, StageId};
use crate::graph::Kind;
use crate::map::Place;

/// Of so many batches of a stage one is timed.
const TIMED: u64 = 16;

impl Worker {
    /// Does what waits, so many batches at most. How many events that were.
    pub(super) fn handle_waiting(&mut self, batches: usize) -> usize {
        let (mut handled, mut left) = (0, batches);
        while left > 0
            && let Some(mut queue) = self.queues.choose()
        {
            self.batch.clear();
            self.queues.take(queue, self.burst, &mut self.batch);
            loop {
                left -= 1;
                handled += self.batch.len();
                match self.handle(queue.1, left > 0) {
                    Some(next) => queue = next,
                    None => break,
                }
            }
        }
        handled
    }

    /// Does a batch. If what it hands on is to be done next, that is the batch then.
    #[inline]
    fn handle(&mut self, stage: StageId, may_go_on: bool) -> Option<Queue> {
        if self.shared.kinds[stage.index()] == Kind::Ordered && self.handle_ordered(stage) {
            return None;
        }
        self.run(stage);
        let next = self.hand_on(stage);
        if let Some(queue) = next
            && may_go_on
            && self.out.events.len() <= self.burst
            && self.queues.is_next(queue)
        {
            std::mem::swap(&mut self.batch, &mut self.out.events);
            self.out.events.clear();
            return next;
        }
        self.put_by(next);
        None
    }

    /// Puts what is in `out` into its queue, if it is of one.
    #[inline]
    fn put_by(&mut self, queue: Option<Queue>) {
        if let Some(queue) = queue {
            self.queues.extend(queue, &self.out.events);
            self.out.events.clear();
        }
    }

    /// Puts what was handed on, `from` a stage, where it belongs.
    pub(super) fn hand_on_all(&mut self, from: StageId) {
        let queue = self.hand_on(from);
        self.put_by(queue);
    }

    /// Has the batch handled, and counts that. What is to be handed on is in `out`.
    pub(super) fn run(&mut self, id: StageId) {
        let stage = id.index();
        let seen = &self.shared.seen[self.index].0.stages[stage];
        let is_timed = seen.batches.get().is_multiple_of(TIMED);
        let begin = if is_timed { self.clock.now() } else { 0 };
        self.out.waiting = self.queues.stages();
        let (batch, out) = (&self.batch, &mut self.out);
        let is_done = match &mut self.handlers[stage] {
            // What a handler left in `out` before it panicked is thrown away, and it is not called again.
            Some(handler) => catch_unwind(AssertUnwindSafe(|| handler.handle(batch, out))).is_ok(),
            None => false,
        };
        if is_timed && !batch.is_empty() {
            seen.learn_cost((self.clock.now() - begin) / batch.len() as u64);
        }
        seen.count(batch.len());
        self.load.saw(id, batch, |event| event.flow);
        if !is_done {
            self.fail(id);
        }
        if !self.out.drops.is_empty() {
            self.count_drops(stage);
        }
        self.account();
        if !self.out.timers.is_empty() {
            self.set_timers(stage);
        }
    }

    fn count_drops(&mut self, stage: usize) {
        let seen = &self.shared.seen[self.index].0.stages[stage];
        for (cause, count) in self.out.drops.drain(..) {
            self.drops[stage][usize::from(cause)] += count;
            seen.drops[usize::from(cause)].add(count);
        }
    }

    fn set_timers(&mut self, stage: usize) {
        let seen = &self.shared.seen[self.index].0.stages[stage];
        // Not when the turn began: nothing comes early.
        let now = self.clock.now();
        for (delay, event) in self.out.timers.drain(..) {
            if let Some(handed_on) = seen.handed_on.get(event.stage.index()) {
                handed_on.add(1);
            }
            self.timers.set(now.saturating_add(delay), event);
        }
    }

    /// The same, but if all of it belongs into one queue, that is returned, and it is left in `out`.
    #[inline]
    fn hand_on(&mut self, from: StageId) -> Option<Queue> {
        let events = &self.out.events;
        let first = events.first()?;
        let queue = (first.priority, first.stage);
        // Without a way out of the loop: events are looked at side by side.
        let has = |all, event: &Event| all & self.flows.has(Place::of(queue.1, event.flow));
        let are_ours = || {
            self.has_every_flow(queue.1)
                || queue.1.index() < self.shared.kinds.len() && events.iter().fold(true, has)
        };
        if !(Event::are_of_one_queue(events) && are_ours()) {
            self.hand_on_each(Some(from));
            return None;
        }
        let seen = &self.shared.seen[self.index].0.stages[from.index()];
        seen.handed_on[queue.1.index()].add(events.len() as u64);
        Some(queue)
    }

    /// The same for each event by itself; into its queue, or to whom it belongs.
    pub(super) fn hand_on_each(&mut self, from: Option<StageId>) {
        let mut events = std::mem::take(&mut self.out.events);
        for event in events.drain(..) {
            let stage = event.stage.index();
            let Some(kind) = self.shared.kinds.get(stage) else {
                // A stage that there is not: the handler's mistake, whose event is lost as if it had panicked.
                self.lose(from.unwrap_or(StageId(0)), &[event]);
                continue;
            };
            let is_ours =
                *kind == Kind::Parallel || self.flows.has(Place::of(event.stage, event.flow));
            if let Some(from) = from {
                let seen = &self.shared.seen[self.index].0.stages[from.index()];
                seen.handed_on[stage].add(1);
            }
            match is_ours {
                true => self.queues.push(event),
                false => self.pending.push_back(event),
            }
        }
        self.out.events = events;
    }

    /// Counts what a batch took in, less what it handed on, for each entry point.
    fn account(&mut self) {
        let given = self.out.events.len() + self.out.timers.len();
        if let [gone] = &mut self.gone[..] {
            *gone = gone.wrapping_add((self.batch.len() as u64).wrapping_sub(given as u64));
            return;
        }
        for event in &self.batch {
            let gone = &mut self.gone[usize::from(event.entry)];
            *gone = gone.wrapping_add(1);
        }
        let timers = self.out.timers.iter().map(|(_, event)| event);
        for event in self.out.events.iter().chain(timers) {
            let gone = &mut self.gone[usize::from(event.entry)];
            *gone = gone.wrapping_sub(1);
        }
    }

    /// Events of a stage are lost.
    fn lose(&mut self, stage: StageId, events: &[Event]) {
        let seen = &self.shared.seen[self.index].0.stages[stage.index()];
        seen.lost.add(events.len() as u64);
        for event in events {
            let gone = &mut self.gone[usize::from(event.entry)];
            *gone = gone.wrapping_add(1);
        }
    }

    /// A handler panicked, or there is none: its batch is lost.
    #[cold]
    fn fail(&mut self, id: StageId) {
        self.out.events.clear();
        self.out.drops.clear();
        self.out.timers.clear();
        let seen = &self.seen().stages[id.index()];
        seen.lost.add(self.batch.len() as u64);
        self.replace_handler(id);
    }

    /// Another handler takes the place of one that panicked, and others get its flows for a while.
    #[cold]
    pub(super) fn replace_handler(&mut self, id: StageId) {
        let stage = id.index();
        self.seen().panics.add(1);
        let broken = self.handlers[stage].take();
        // Both may panic as well. Without a handler the next batch ends here, and another one is asked for.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(broken)));
        let make = || self.shared.makers.0[stage](self.index);
        self.handlers[stage] = catch_unwind(AssertUnwindSafe(make)).ok();
        self.fall_ill();
    }
}
