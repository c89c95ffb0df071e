//! How events get from a sender to the workers whose they are: many at once, one reservation for each worker.

use crate::event::{Event, Priority, StageId};
use crate::graph::Kind;
use crate::map::Place;
use crate::ring::Producer;
use crate::shared::Shared;

/// Stages of what workers say to each other, to the worker that is the event's value: a bucket has been handed over;
pub(crate) const HANDED_OVER: StageId = StageId(u8::MAX);
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
    owners: Vec<u8>,
    /// Of each worker: how many are its, how many there was room for, and then the places for them.
    counts: Vec<u64>,
    rooms: Vec<u64>,
    places: Vec<(u64, u64)>,
}

impl Outbox {
    pub(crate) fn new(sender: usize, rings: Vec<Option<Producer>>) -> Outbox {
        Outbox {
            sender,
            owners: Vec::with_capacity(AT_ONCE),
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
        self.owners.clear();
        self.counts.fill(0);
        shared.senders[self.sender].begin();
        for event in events.clone() {
            let owner = match event.stage {
                HANDED_OVER | LENT | RETURNED => event.value as usize,
                stage if shared.kinds[stage.index()] == Kind::Parallel => any,
                stage => shared.owners.of(Place::of(stage, event.flow)),
            };
            if self.counts[owner] == 0 {
                let room = |ring: &mut Producer| ring.room(AT_ONCE as u64);
                self.rooms[owner] = self.rings[owner].as_mut().map_or(u64::MAX, room);
            }
            // What comes later stays, too: it may be of the same flow, whose bucket has moved since the look at this one.
            if self.counts[owner] == self.rooms[owner] {
                break;
            }
            self.owners.push(owner as u8);
            self.counts[owner] += 1;
        }
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
        let mut sent = 0;
        for (event, owner) in events.zip(&self.owners) {
            let owner = usize::from(*owner);
            let (at, left) = &mut self.places[owner];
            // Somebody else was faster. The places that were got for what comes later, and stays, are filled with nothing.
            if *left == 0 {
                break;
            }
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
        shared.senders[self.sender].end();
        shared.wake(touched);
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
