//! Where events come in: a port's receiver, a timer, a test.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::balance::Clock;
use crate::control::Control;
use crate::event::{Event, Priority, StageId};
use crate::outbox::Outbox;
use crate::seen::EntrySeen;
use crate::shared::Shared;

/// Events that wait for others before they go in, at most: handing over costs as much for so many as for one.
const GATHERED: usize = 128;

/// An entry point: one thread's way into the graph, with a limit of its own.
#[derive(Debug)]
pub struct Entry {
    shared: Arc<Shared>,
    number: u8,
    outbox: Outbox,
    clock: Clock,
    /// How many ever came in, and how many of them, as last seen, have left.
    came: u64,
    gone: u64,
    /// The worker that the next events of parallel stages go to.
    turn: usize,
    refused: u64,
    /// What waits for others.
    gathered: Vec<Event>,
}

impl Entry {
    pub(crate) fn new(shared: Arc<Shared>, number: u8, outbox: Outbox, clock: Clock) -> Entry {
        Entry {
            shared,
            number,
            outbox,
            clock,
            came: 0,
            gone: 0,
            turn: 0,
            refused: 0,
            gathered: Vec::with_capacity(GATHERED),
        }
    }

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

    /// Lets events in at once, in their order, and returns how many: as many as the limit has room for. The others are the caller's still,
    /// and are counted as refused: it may wait, or drop them.
    ///
    /// # Panics
    /// When an event is of another entry point, or for a stage that there is not.
    pub fn enter(&mut self, events: &[Event]) -> usize {
        self.check(events);
        let entered = match self.flush() {
            0 => self.admit(events),
            _ => 0,
        };
        self.refused += (events.len() - entered) as u64;
        self.show_refused();
        entered
    }

    /// As [`Entry::enter`], but events may wait here until there are more of them, or until [`Entry::flush`]: handing over a few costs as
    /// much as handing over many. For those who have them one by one, and know when no more come for now. What waits when the entry point
    /// is dropped is dropped, too.
    ///
    /// # Panics
    /// As [`Entry::enter`].
    #[inline]
    pub fn gather(&mut self, events: &[Event]) -> usize {
        self.check(events);
        if events.len() <= GATHERED - self.gathered.len() {
            self.gathered.extend_from_slice(events);
            return events.len();
        }
        self.gather_more(events)
    }

    /// Where there are too many to wait.
    fn gather_more(&mut self, events: &[Event]) -> usize {
        let fills = (GATHERED - self.gathered.len()).min(events.len());
        self.gathered.extend_from_slice(&events[..fills]);
        let mut taken = fills;
        if self.flush() == 0 {
            let rest = &events[fills..];
            let at_once = rest.len() - rest.len() % GATHERED;
            let entered = self.admit(&rest[..at_once]);
            taken += entered;
            if entered == at_once {
                self.gathered.extend_from_slice(&rest[at_once..]);
                taken = events.len();
            }
        }
        self.refused += (events.len() - taken) as u64;
        self.show_refused();
        taken
    }

    /// Lets in what was gathered; returns how many events wait on, for want of room.
    pub fn flush(&mut self) -> usize {
        if !self.gathered.is_empty() {
            let mut gathered = std::mem::take(&mut self.gathered);
            let entered = self.admit(&gathered);
            gathered.drain(..entered);
            self.gathered = gathered;
        }
        self.gathered.len()
    }

    #[inline]
    fn check(&self, events: &[Event]) {
        let stages = self.shared.kinds.len();
        let may_enter =
            |event: &Event| (event.entry == self.number) & (event.stage.index() < stages);
        let may = events
            .iter()
            .fold(true, |may, event| may & may_enter(event));
        assert!(may, "an event of entry point {} that is none", self.number);
    }

    /// Sends as many as the limit has room for.
    fn admit(&mut self, events: &[Event]) -> usize {
        let mut room = self.room();
        if room < events.len() as u64 {
            self.gone = self.shared.gone_of(usize::from(self.number));
            room = self.room();
        }
        let admitted = usize::try_from(room).map_or(events.len(), |room| room.min(events.len()));
        let entered = match admitted {
            0 => 0,
            _ => self.send(&events[..admitted]),
        };
        self.came = self.came.wrapping_add(entered as u64);
        self.show(&events[..entered]);
        entered
    }

    fn room(&self) -> u64 {
        let limit = self.shared.tuning.limits[usize::from(self.number)].load(Relaxed);
        // Events that were made inside count as well: then there may be more than the limit.
        limit.saturating_sub(inside(self.came, self.gone))
    }

    fn seen(&self) -> &EntrySeen {
        &self.shared.entered[usize::from(self.number)].0
    }

    fn show_refused(&self) {
        self.seen().refused.set(self.refused);
    }

    fn show(&self, entered: &[Event]) {
        let seen = self.seen();
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

    /// How many events that came in here, or were made of them, are in the graph or wait here, as far as one can tell from outside.
    #[must_use]
    pub fn inside(&self) -> u64 {
        let inside = inside(self.came, self.shared.gone_of(usize::from(self.number)));
        inside + self.gathered.len() as u64
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
