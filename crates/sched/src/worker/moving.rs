//! Buckets that go from one worker to another.
//!
//! | step | who | what |
//! |---|---|---|
//! | 1 | the owner | stops handling the bucket's events, sends those that wait to the new owner, and writes it into the table |
//! | 2 | the owner | sends on whatever still comes, until every sender was seen outside of sending, and what they had sent was taken |
//! | 3 | the owner | says so, behind all that it sent on |
//! | 4 | the new owner | handles what the old one sent on, and behind it what came straight, which it has kept until then |
//!
//! So a bucket has one worker at a time that handles it, and each sender's events keep their order. Nobody is waited for but who is in the
//! midst of sending; nothing has to be said to, or done by, anybody else.

use std::collections::HashMap;

use super::Worker;
use crate::atomic::Ordering;
use crate::event::{Event, StageId};
use crate::map::{Place, Quiet};
use crate::outbox::{HANDED_OVER, word};
use crate::shared::Shared;

/// What a worker has to do with a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Other,
    Owned,
    Leaving,
}

/// A bucket that is leaving.
#[derive(Debug)]
struct Leaving {
    place: Place,
    to: usize,
    /// Who may still send by the older table.
    quiet: Quiet,
    /// Once that is nobody: how far our ring was filled then.
    mark: Option<u64>,
}

/// What a worker knows of buckets.
#[derive(Debug)]
pub(super) struct Flows {
    states: Box<[State]>,
    leaving: Vec<Leaving>,
    /// What came straight, or was sent on, for buckets that are on their way here.
    held: HashMap<Place, Vec<Event>>,
    held_events: usize,
}

impl Flows {
    pub(super) fn new(shared: &Shared, worker: usize, stages: usize) -> Flows {
        let state = |place| match shared.owners.of(place) == worker {
            true => State::Owned,
            false => State::Other,
        };
        Flows {
            states: Place::all(stages).map(state).collect(),
            leaving: Vec::new(),
            held: HashMap::new(),
            held_events: 0,
        }
    }

    #[inline]
    pub(super) fn has(&self, place: Place) -> bool {
        self.states[place.index()] == State::Owned
    }

    pub(super) fn is_moving(&self) -> bool {
        !self.leaving.is_empty()
    }

    pub(super) fn held(&self) -> usize {
        self.held_events
    }
}

fn sent_on(event: Event) -> Event {
    Event {
        is_sent_on: true,
        ..event
    }
}

impl Worker {
    /// An event of a stage whose flows have owners came.
    #[inline]
    pub(super) fn accept_owned(&mut self, event: Event) {
        let place = Place::of(event.stage, event.flow);
        match self.flows.states[place.index()] {
            State::Owned => self.queues.push(event),
            State::Leaving => self.pending.push_back(sent_on(event)),
            State::Other => {
                // Whoever sent it saw us in the table: the bucket is on its way.
                self.flows.held.entry(place).or_default().push(event);
                self.flows.held_events += 1;
            }
        }
    }

    /// Gives a flow of a stage, and all of its bucket, to another worker. False: it is not this one's, or it is on its way already.
    ///
    /// # Panics
    /// When there is no such worker.
    pub fn give(&mut self, stage: StageId, flow: u32, to: usize) -> bool {
        assert!(to < self.shared.workers, "there is no worker {to}");
        self.give_away(Place::of(stage, flow), to)
    }

    /// Gives a bucket to another worker. False: it is not ours to give, or is on its way already.
    fn give_away(&mut self, place: Place, to: usize) -> bool {
        // What was lent comes back here.
        if to == self.index || !self.flows.has(place) || self.lending.has(place) {
            return false;
        }
        self.flows.states[place.index()] = State::Leaving;
        let pending = &mut self.pending;
        self.queues
            .extract(place, |event| pending.push_back(sent_on(event)));
        let quiet = self.shared.owners.give(place, to, &self.shared.senders);
        self.flows.leaving.push(Leaving {
            place,
            to,
            quiet,
            mark: None,
        });
        true
    }

    /// Who sleeps has no load.
    pub(crate) fn be_unloaded(&self) {
        self.shared.loads[self.index].0.store(0, Ordering::Relaxed);
    }

    /// Tells its load, and gives some of it to whoever has the least.
    pub(super) fn balance(&mut self) {
        let loads = &self.shared.loads;
        loads[self.index]
            .0
            .store(self.load.level, Ordering::Relaxed);
        let others = (0..loads.len()).filter(|worker| *worker != self.index);
        let load = |worker: usize| loads[worker].0.load(Ordering::Relaxed);
        let Some(least) = others.min_by_key(|worker| load(*worker)) else {
            return;
        };
        let costs: Vec<u64> = self.work.iter().map(|work| work.cost_ns).collect();
        let is_apart = self.shared.fusion.is_apart(&costs);
        let chosen = self.load.choose(load(least), &costs, &is_apart);
        let charged: u64 = chosen.iter().map(|chosen| chosen.load).sum();
        loads[least].0.fetch_add(charged, Ordering::Relaxed);
        let stages = self.shared.kinds.len();
        for chosen in &chosen {
            let places =
                (chosen.stage..stages).map(|stage| Place::new(StageId(stage as u8), chosen.bucket));
            let given = places.filter(|place| self.give_away(*place, least));
            self.moves += u64::from(given.count() > 0);
        }
        self.load.forget(&chosen);
    }

    /// Goes on with buckets that are leaving.
    pub(super) fn go_on_moving(&mut self) {
        let mut at = 0;
        while at < self.flows.leaving.len() {
            let leaving = &mut self.flows.leaving[at];
            if leaving.mark.is_none() && leaving.quiet.poll(&self.shared.senders) {
                leaving.mark = Some(self.input.reserved());
            }
            let is_over = leaving.mark.is_some_and(|mark| self.input.taken() >= mark);
            if !is_over {
                at += 1;
                continue;
            }
            let Leaving { place, to, .. } = self.flows.leaving.swap_remove(at);
            self.flows.states[place.index()] = State::Other;
            self.pending.push_back(word(HANDED_OVER, to, place.word()));
        }
    }

    /// A bucket has come: its former owner has sent on all that it had.
    pub(super) fn take_over(&mut self, place: Place) {
        self.flows.states[place.index()] = State::Owned;
        let held = self.flows.held.remove(&place).unwrap_or_default();
        self.flows.held_events -= held.len();
        // What was sent on is older than what came straight.
        let (older, newer): (Vec<_>, Vec<_>) = held.into_iter().partition(|event| event.is_sent_on);
        for event in older.into_iter().chain(newer) {
            self.queues.push(Event {
                is_sent_on: false,
                ..event
            });
        }
        // What was made here and has not been sent comes before what will be made.
        let queues = &mut self.queues;
        self.pending.retain(|event| {
            let stays = event.is_word() || Place::of(event.stage, event.flow) != place;
            if !stays {
                queues.push(*event);
            }
            stays
        });
    }
}
