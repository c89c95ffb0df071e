//! What the thread that runs a worker does in place, without an event: with packets that it has received itself, of flows that are the
//! worker's own.
//!
//! No event of such a flow may be overtaken. All that others have sent for it lies in the worker's ring, and all that has come since lies
//! in its queues, or waits for what is lent: a bucket that is the worker's has no events at anybody else, since its former owner had sent
//! on all of them before it handed it over. So where nothing waits at all, nothing can be overtaken. It is asked once for a burst, and not
//! for each flow, as it is most often so where work is done in place.

use super::Worker;
use crate::event::StageId;
use crate::map::Place;

impl Worker {
    /// Whether nothing at all waits for this worker: what its thread does now for a flow of its own ([`Worker::has`]) overtakes no event
    /// that was sent before. That somebody has reserved places for events counts as an event. What is put off does not wait, nor does what
    /// an entry point has gathered: a thread that has one flushes it first, and goes on if nothing is left in it ([`crate::Entry::flush`]).
    #[inline]
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.queues.is_empty()
            && self.pending.is_empty()
            && self.lending.is_empty()
            && self.flows.held() == 0
            && self.input.is_empty()
    }

    /// Whether a flow of a stage is this worker's: none other handles it before this one's next turn. Of parallel stages none is.
    ///
    /// # Panics
    /// When there is no such stage.
    #[inline]
    #[must_use]
    pub fn has(&self, stage: StageId, flow: u32) -> bool {
        self.flows.has(Place::of(stage, flow))
    }

    /// How often buckets have come or gone: while it is the same, so is what [`Worker::has`] says.
    #[inline]
    #[must_use]
    pub fn changes(&self) -> u64 {
        let seen = self.seen();
        seen.given.get() + seen.taken.get()
    }

    /// The thread that runs this worker has done in place what a stage does, once for each of these flows, which took so long in all. It is
    /// counted as a batch is, so that the load of this worker, and of each flow, is known, and balanced. Without flows it is load all the
    /// same, as of what was only received, and handed over.
    ///
    /// # Panics
    /// When there is no such stage.
    #[inline]
    pub fn did(&mut self, stage: StageId, flows: &[u32], ns: u64) {
        self.load.add(ns);
        let Some(cost_ns) = ns.checked_div(flows.len() as u64) else {
            return;
        };
        let seen = &self.shared.seen[self.index].0.stages[stage.index()];
        seen.learn_cost(cost_ns);
        seen.count(flows.len());
        self.load.saw(stage, flows, |flow| *flow);
    }
}
