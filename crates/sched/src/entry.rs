//! Where events come in: a port's receiver, a timer, a test.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::balance::Clock;
use crate::control::Control;
use crate::event::{Event, Priority, StageId};
use crate::outbox::Outbox;
use crate::shared::Shared;

/// An entry point: one thread's way into the graph, with a limit of its own.
#[derive(Debug)]
pub struct Entry {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u8,
    pub(crate) outbox: Outbox,
    pub(crate) clock: Clock,
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
    ///
    /// # Panics
    /// When an event is of another entry point, or for a stage that there is not.
    pub fn enter(&mut self, events: &[Event]) -> usize {
        let stages = self.shared.kinds.len();
        let may_enter =
            |event: &Event| (event.entry == self.number) & (event.stage.index() < stages);
        let may = events
            .iter()
            .fold(true, |may, event| may & may_enter(event));
        assert!(may, "an event of entry point {} that is none", self.number);
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
        self.show(&events[..entered]);
        entered
    }

    fn room(&self) -> u64 {
        let limit = self.shared.tuning.limits[usize::from(self.number)].load(Relaxed);
        // Events that were made inside count as well: then there may be more than the limit.
        limit.saturating_sub(inside(self.came, self.gone))
    }

    fn show(&self, entered: &[Event]) {
        let seen = &self.shared.entered[usize::from(self.number)].0;
        seen.refused.set(self.refused);
        for of_stage in entered.chunk_by(|one, next| one.stage == next.stage) {
            seen.entered[of_stage[0].stage.index()].add(of_stage.len() as u64);
        }
    }

    fn send(&mut self, events: &[Event]) -> usize {
        let mut sent = 0;
        while sent < events.len() {
            let left = events[sent..].iter();
            let outbox = &mut self.outbox;
            let any = self.shared.next_active(self.turn);
            // None is the entry point's own.
            let now = outbox.send(&self.shared, left, any, &mut Vec::new());
            self.turn = (any + 1) % self.shared.workers;
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
        inside(self.came, self.shared.gone_of(usize::from(self.number)))
    }

    /// How many were refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// What looks at the whole, and tunes it, from any thread.
    #[must_use]
    pub fn control(&self) -> Control {
        Control::new(self.shared.clone(), self.clock.clone())
    }
}

/// How many are inside of those that came. Workers are not read in one moment, so that more seem to have gone: then there is something.
fn inside(came: u64, gone: u64) -> u64 {
    let inside = came.wrapping_sub(gone);
    if inside > u64::MAX / 2 { 1 } else { inside }
}
