//! How events get from a sender to the workers whose they are: many at once, one reservation for each worker.

use crate::event::{Event, Priority, StageId};
use crate::graph::Kind;
use crate::map::Place;
use crate::ring::Producer;
use crate::shared::Shared;

/// Stages of what workers say to each other, to the worker that is the event's value: a bucket has been handed over;
pub(crate) const HANDED_OVER: StageId = StageId(u8::MAX);
/// the same, and what the former owner's handler kept of it lies ready;
pub(crate) const HANDED_OVER_WITH_STATE: StageId = StageId(u8::MAX - 4);
/// a batch is lent;
pub(crate) const LENT: StageId = StageId(u8::MAX - 1);
/// it comes back.
pub(crate) const RETURNED: StageId = StageId(u8::MAX - 2);
/// Of places that were reserved and not needed.
pub(crate) const NOTHING: StageId = StageId(u8::MAX - 3);

/// Events of one sending, at most.
const AT_ONCE: usize = 256;

/// A sender's ends of the rings.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Its number among senders.
    sender: usize,
    /// To each worker; none to itself.
    rings: Vec<Option<Producer>>,
    /// Of what is being sent: whose each event is.
    owners: Box<[u8; AT_ONCE]>,
    /// Of each worker: how many are its, how many there was room for, and then the places for them.
    counts: Vec<u64>,
    rooms: Vec<u64>,
    places: Vec<(u64, u64)>,
}

impl Outbox {
    pub(crate) fn new(sender: usize, rings: Vec<Option<Producer>>) -> Outbox {
        Outbox {
            sender,
            owners: Box::new([0; AT_ONCE]),
            counts: vec![0; rings.len()],
            rooms: vec![0; rings.len()],
            places: Vec::with_capacity(rings.len()),
            rings,
        }
    }

    /// Sends events in their order, up to the first that there is no room for; returns how many. Those of parallel stages go to worker
    /// `any`. What is the sender's own is put into `own`.
    #[inline]
    pub(crate) fn send<'a>(
        &mut self,
        shared: &Shared,
        events: impl Iterator<Item = &'a Event> + Clone,
        any: usize,
        own: &mut Vec<Event>,
    ) -> usize {
        let events = events.take(AT_ONCE);
        shared.senders[self.sender].begin();
        let known = self.look_up(shared, events.clone(), any);
        let touched = self.reserve();
        let sent = self.fill(events, known, own);
        shared.senders[self.sender].end();
        if touched != 0 {
            shared.wake(touched);
        }
        sent
    }

    /// Whose each event is, up to the first that there is no room for; how many that are.
    #[inline]
    fn look_up<'a>(
        &mut self,
        shared: &Shared,
        events: impl Iterator<Item = &'a Event>,
        any: usize,
    ) -> usize {
        self.counts.fill(0);
        let mut known = 0;
        for (event, place) in events.zip(self.owners.iter_mut()) {
            let owner = match shared.kinds.get(event.stage.index()) {
                Some(Kind::Parallel) => any,
                Some(_) => shared.owners.of(Place::of(event.stage, event.flow)),
                // A word to a worker.
                None => event.value as usize,
            };
            if self.counts[owner] == 0 {
                let room = |ring: &mut Producer| ring.room(AT_ONCE as u64);
                self.rooms[owner] = self.rings[owner].as_mut().map_or(u64::MAX, room);
            }
            // What comes later stays, too: it may be of the same flow, whose bucket has moved since the look at this one.
            if self.counts[owner] == self.rooms[owner] {
                break;
            }
            *place = owner as u8;
            self.counts[owner] += 1;
            known += 1;
        }
        known
    }

    /// Reserves places for them; to whom, by bits.
    #[inline]
    fn reserve(&mut self) -> u64 {
        self.places.clear();
        let mut touched = 0;
        for (worker, ring) in self.rings.iter_mut().enumerate() {
            let count = self.counts[worker];
            self.places.push(match ring {
                Some(ring) if count > 0 => {
                    touched |= 1 << worker;
                    ring.reserve(count)
                }
                Some(_) => (0, 0),
                // Its own, for which there is always room.
                None => (0, count),
            });
        }
        touched
    }

    /// Fills the places, in order, up to the first event that got none: how many that are.
    #[inline]
    fn fill<'a>(
        &mut self,
        mut events: impl Iterator<Item = &'a Event>,
        known: usize,
        own: &mut Vec<Event>,
    ) -> usize {
        let owners = &self.owners[..known];
        // Most often all are one worker's.
        if let Some(owner) = owners.first().map(|owner| usize::from(*owner))
            && self.counts[owner] == known as u64
            && let Some(ring) = &self.rings[owner]
        {
            let (at, count) = self.places[owner];
            for (at, event) in (at..at + count).zip(events) {
                ring.fill(at, event.pack());
            }
            return count as usize;
        }
        let mut sent = 0;
        for owner in owners {
            let owner = usize::from(*owner);
            let (at, left) = &mut self.places[owner];
            // Somebody else was faster. The places that were got for what comes later, and stays, are filled with nothing.
            if *left == 0 {
                break;
            }
            let Some(event) = events.next() else {
                break;
            };
            match &self.rings[owner] {
                Some(ring) => ring.fill(*at, event.pack()),
                None => own.push(*event),
            }
            (*at, *left) = (*at + 1, *left - 1);
            sent += 1;
        }
        for (ring, (at, left)) in self.rings.iter().zip(&self.places) {
            if let Some(ring) = ring {
                (*at..*at + *left).for_each(|at| ring.fill(at, nothing().pack()));
            }
        }
        sent
    }
}

fn nothing() -> Event {
    word(NOTHING, 0, 0)
}

/// What is said to a worker, with a number.
pub(crate) fn word(what: StageId, to: usize, number: u32) -> Event {
    Event {
        flow: number,
        value: to as u64,
        stage: what,
        priority: Priority::Highest,
        entry: 0,
        is_sent_on: false,
    }
}
