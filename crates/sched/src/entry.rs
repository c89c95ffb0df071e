//! Where events come in: a port's receiver, a timer, a test.

use std::sync::Arc;

use crate::event::{Event, Priority, StageId};
use crate::outbox::Outbox;
use crate::shared::Shared;

/// An entry point: one thread's way into the graph, with a limit of its own.
#[derive(Debug)]
pub struct Entry {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u8,
    pub(crate) outbox: Outbox,
    pub(crate) limit: u64,
    /// How many ever came in, and how many of them, as last seen, have left.
    pub(crate) came: u64,
    pub(crate) gone: u64,
    /// The worker that the next events of parallel stages go to.
    pub(crate) turn: usize,
    pub(crate) refused: u64,
}

impl Entry {
    /// An event that may come in here, and not by another entry point.
    #[inline]
    #[must_use]
    pub fn event(&self, stage: StageId, flow: u32, value: u64) -> Event {
        Event {
            flow,
            value,
            stage,
            priority: Priority::Normal,
            entry: self.number,
            is_sent_on: false,
        }
    }

    /// Lets events in, in their order, and returns how many: as many as the limit has room for. The others are the caller's still, and are
    /// counted as refused: it may wait, or drop them.
    pub fn enter(&mut self, events: &[Event]) -> usize {
        let mut room = self.room();
        if room < events.len() as u64 {
            self.gone = self.shared.gone_of(usize::from(self.number));
            room = self.room();
        }
        let admitted = usize::try_from(room).map_or(events.len(), |room| room.min(events.len()));
        let entered = if admitted == 0 {
            0
        } else {
            self.send(&events[..admitted])
        };
        self.came = self.came.wrapping_add(entered as u64);
        self.refused += (events.len() - entered) as u64;
        entered
    }

    fn room(&self) -> u64 {
        let inside = self.came.wrapping_sub(self.gone);
        // Events that were made inside count as well: then there may be more than the limit.
        self.limit.saturating_sub(inside)
    }

    fn send(&mut self, events: &[Event]) -> usize {
        let mut sent = 0;
        while sent < events.len() {
            let left = events[sent..].iter();
            let outbox = &mut self.outbox;
            // None is the entry point's own.
            let now = outbox.send(&self.shared, left, self.turn, &mut Vec::new());
            self.turn = (self.turn + 1) % self.shared.workers;
            // There is room for all that the limit lets in, but for what workers send meanwhile.
            if now == 0 {
                break;
            }
            sent += now;
        }
        sent
    }

    /// How many events that came in here, or were made of them, are in the graph, as far as one can tell from outside.
    #[must_use]
    pub fn inside(&self) -> u64 {
        self.came
            .wrapping_sub(self.shared.gone_of(usize::from(self.number)))
    }

    /// How many were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }
}
