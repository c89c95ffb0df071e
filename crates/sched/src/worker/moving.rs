//! Buckets that go from one worker to another.
//!
//! | step | who | what |
//! |---|---|---|
//! | 1 | the owner | stops handling the bucket's events, sends those that wait to the new owner, and writes it into the table |
//! | 2 | the owner | sends on whatever still comes, until every sender was seen outside of sending, and what they had sent was taken |
//! | 3 | the owner | lays down what its handler kept of the bucket (`worker::carrying`) |
//! | 4 | the owner | says so, behind all that it sent on |
//! | 5 | the new owner | has its handler take that |
//! | 6 | the new owner | handles what the old one sent on, and behind it what came straight, which it has kept until then |
//!
//! Never: a bucket that is pinned moves; a bucket that is on its way, or of which something is lent, is given away; a handler is asked for
//! what it keeps while an event of the bucket may still come to it.
//!
//! So a bucket has one worker at a time that handles it, and each sender's events keep their order. Nobody is waited for but who is in the
//! midst of sending; nothing has to be said to, or done by, anybody else.

use std::collections::HashMap;

use super::Worker;
use crate::balance::Move;
use crate::event::{Event, StageId};
use crate::graph::Kind;
use crate::map::{BUCKETS, Leave, Pins, Place};
use crate::outbox::{HANDED_OVER, HANDED_OVER_WITH_STATE, word};
use crate::seen::ELEPHANTS;
use crate::shared::Shared;

/// What a worker has to do with a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Other,
    Owned,
    Leaving,
}

/// Buckets that are leaving together.
#[derive(Debug)]
struct Leaving {
    places: Vec<Place>,
    to: usize,
    leave: Leave,
}

/// What a worker knows of buckets.
#[derive(Debug)]
pub(super) struct Flows {
    states: Box<[State]>,
    owned: usize,
    /// Of each stage: how many buckets it does not have. Where that is none, no event has to be looked at.
    lacks: Box<[usize]>,
    /// How many of those are pinned.
    pinned: usize,
    leaving: Vec<Leaving>,
    /// What came straight, or was sent on, for buckets that are on their way here.
    held: HashMap<Place, Vec<Event>>,
    held_events: usize,
}

impl Flows {
    pub(super) fn new(shared: &Shared, worker: usize, stages: usize) -> Flows {
        // Events of parallel stages are whose they come to.
        let has_owners = |place: Place| shared.kinds[place.stage().index()] != Kind::Parallel;
        let is_ours = |place| has_owners(place) && shared.owners.of(place) == worker;
        let state = |place| match is_ours(place) {
            true => State::Owned,
            false => State::Other,
        };
        let states: Box<[State]> = Place::all(stages).map(state).collect();
        let lacks = |states: &[State]| states.iter().filter(|of| **of != State::Owned).count();
        let lacks: Box<[usize]> = states.chunks_exact(BUCKETS).map(lacks).collect();
        Flows {
            owned: states.len() - lacks.iter().sum::<usize>(),
            lacks,
            states,
            pinned: shared.pins.values().filter(|of| **of == worker).count(),
            leaving: Vec::new(),
            held: HashMap::new(),
            held_events: 0,
        }
    }

    #[inline]
    pub(super) fn has(&self, place: Place) -> bool {
        self.states[place.index()] == State::Owned
    }

    /// Whether it has every bucket of a stage.
    #[inline]
    pub(super) fn has_all(&self, stage: StageId) -> bool {
        self.lacks[stage.index()] == 0
    }

    fn set(&mut self, place: Place, state: State) {
        let (was, is) = (self.has(place), state == State::Owned);
        self.states[place.index()] = state;
        self.owned = self.owned + usize::from(is) - usize::from(was);
        let lacks = &mut self.lacks[place.stage().index()];
        *lacks = *lacks + usize::from(was) - usize::from(is);
    }

    /// Buckets that it has, of all stages.
    pub(super) fn owned(&self) -> usize {
        self.owned
    }

    /// Of those, how many may be another one's some time.
    pub(super) fn movable(&self) -> usize {
        self.owned - self.pinned
    }

    fn may_move(&self, place: Place, pins: &Pins) -> bool {
        self.has(place) && !pins.contains_key(&place)
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

    /// Whether it has a bucket that may be another one's some time.
    pub(super) fn may_move(&self, place: Place) -> bool {
        self.flows.may_move(place, &self.shared.pins)
    }

    /// Gives a flow of a stage, and all of its bucket, to another worker. False: it is not this one's, it is pinned, something of it is
    /// lent, or it is on its way already.
    ///
    /// # Panics
    /// When there is no such worker.
    pub fn give(&mut self, stage: StageId, flow: u32, to: usize) -> bool {
        assert!(to < self.shared.workers, "there is no worker {to}");
        self.give_away(&[Place::of(stage, flow)], to) > 0
    }

    /// Gives buckets to another worker, but those that are not ours to give, are pinned, are on their way already, or of which something is
    /// lent. How many are given: those of several stages that stand beside each other are one.
    pub(super) fn give_away(&mut self, places: &[Place], to: usize) -> usize {
        let may_go = |place: &&Place| self.may_move(**place);
        let places: Vec<Place> = places.iter().filter(may_go).copied().collect();
        // What was lent comes back here, and what goes together stays so: the rest of it would never find it again.
        let group = |place: &Place| self.shared.fusion.group(place.stage().index());
        let are_together =
            |one: &Place, next: &Place| one.bucket() == next.bucket() && group(one) == group(next);
        let parts = places.chunk_by(are_together);
        let parts = parts.filter(|part| !part.iter().any(|place| self.lending.has(*place)));
        let places = parts.flatten().copied().collect::<Vec<Place>>();
        if to == self.index || places.is_empty() {
            return 0;
        }
        let mut stages = 0u64;
        for place in &places {
            self.flows.set(*place, State::Leaving);
            stages |= 1 << place.stage().index();
        }
        while stages != 0 {
            let stage = StageId(stages.trailing_zeros() as u8);
            stages &= stages - 1;
            // Of what left before nothing is there any more.
            let states = &self.flows.states;
            let is_leaving =
                |event: &Event| states[Place::of(stage, event.flow).index()] == State::Leaving;
            let pending = &mut self.pending;
            self.queues
                .extract(stage, is_leaving, |event| pending.push_back(sent_on(event)));
        }
        let leave = self.shared.owners.give(&places, to, &self.shared.senders);
        self.seen().given.add(places.len() as u64);
        let buckets = places.chunk_by(|one, next| one.bucket() == next.bucket());
        let count = buckets.count();
        self.flows.leaving.push(Leaving { places, to, leave });
        count
    }

    /// Tells its load, and gives some of it to whoever has the least.
    pub(super) fn balance(&mut self, now: u64) {
        let shared = self.shared.clone();
        let told = &shared.loads[self.index].0;
        self.load.charge(told.take_charge());
        told.tell(self.load.level, self.load.steady());
        let costs: Vec<u64> = self
            .seen()
            .stages
            .iter()
            .map(|stage| stage.cost_ns.get())
            .collect();
        self.show_elephants(&costs);
        let active = shared.active() & !(1 << self.index);
        let others = (0..shared.workers).filter(|worker| active >> worker & 1 != 0);
        let load = |worker: &usize| shared.loads[*worker].0.steady(now);
        let Some(least) = others.min_by_key(load) else {
            return;
        };
        let stages = shared.fusion.of_each(&costs);
        let (flows, lending, pins) = (&self.flows, &self.lending, &shared.pins);
        let may_move = |place| flows.may_move(place, pins);
        let may_go = |part: &Move| !part.places().any(|place| lending.has(place));
        let chosen = self
            .load
            .choose(load(&least), &costs, &stages, may_move, may_go);
        if chosen.is_empty() {
            return;
        }
        let charged: u64 = chosen.iter().map(|chosen| chosen.load).sum();
        shared.loads[least].0.charge(charged);
        let places: Vec<Place> = chosen.iter().flat_map(Move::places).collect();
        self.moves += self.give_away(&places, least) as u64;
        self.load.give(&chosen);
    }

    fn show_elephants(&mut self, costs: &[u64]) {
        if let Some(elephants) = self.load.elephants(costs) {
            for at in 0..ELEPHANTS {
                let shown = elephants.get(at).map_or(0, |elephant| elephant.pack());
                self.seen().elephants[at].set(shown);
            }
        }
    }

    /// Goes on with buckets that are leaving.
    pub(super) fn go_on_moving(&mut self) {
        if self.activity.is_leaving() {
            self.go_on_leaving();
        }
        let mut at = 0;
        while at < self.flows.leaving.len() {
            let leaving = &mut self.flows.leaving[at];
            if !leaving.leave.is_over(&self.shared.senders, &self.input) {
                at += 1;
                continue;
            }
            let Leaving { places, to, .. } = self.flows.leaving.swap_remove(at);
            for place in places {
                self.flows.set(place, State::Other);
                let what = match self.give_state(place) {
                    true => HANDED_OVER_WITH_STATE,
                    false => HANDED_OVER,
                };
                self.pending.push_back(word(what, to, place.word()));
            }
        }
    }

    /// A bucket has come: its former owner has sent on all that it had. What its handler kept has been taken.
    pub(super) fn take_over(&mut self, place: Place) {
        self.flows.set(place, State::Owned);
        self.seen().taken.add(1);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{Config, Graph, Out, build_in_virtual_time};

    #[test]
    fn a_bucket_is_handed_over_behind_all_that_came_for_it() {
        let handled = Arc::new(Mutex::new(Vec::new()));
        let mut graph = Graph::new();
        let sink = handled.clone();
        let stage = graph.stage("only", Kind::Atomic, move |worker| {
            let sink = sink.clone();
            move |events: &[Event], _: &mut Out| {
                let values = events.iter().map(|event| (worker, event.value));
                sink.lock().unwrap().extend(values);
            }
        });
        let now = Arc::new(AtomicU64::new(0));
        let built = build_in_virtual_time(&graph, &Config::new(2), &now);
        let (mut workers, mut entries) = built.unwrap();
        let is_first_s = |flow: &u32| workers[0].flows.has(Place::of(stage, *flow));
        let flow = (0..).find(is_first_s).unwrap();
        let [first, second] = [1, 2].map(|value| entries[0].event(stage, flow, value));
        // It lies in the ring still when the bucket is given away, and nobody is sending.
        assert_eq!(entries[0].enter(&[first]), 1);
        assert!(workers[0].give(stage, flow, 1));
        workers[0].go_on_moving();
        workers[0].send();
        assert_eq!(entries[0].enter(&[second]), 1);
        workers[1].turn(8);
        assert_eq!(*handled.lock().unwrap(), [], "the second came first");
        for _ in 0..3 {
            workers.iter_mut().for_each(|worker| {
                worker.turn(8);
            });
        }
        assert_eq!(*handled.lock().unwrap(), [(1, 1), (1, 2)]);
        assert_eq!(entries[0].inside(), 0);
    }

    #[test]
    fn who_has_got_every_bucket_of_a_stage_has_all_until_one_leaves() {
        let mut graph = Graph::new();
        let stage = graph.stage("only", Kind::Atomic, |_| |_: &[Event], _: &mut Out| {});
        let now = Arc::new(AtomicU64::new(0));
        let built = build_in_virtual_time(&graph, &Config::new(2), &now);
        let (mut workers, _entries) = built.unwrap();
        let all: Vec<Place> = Place::all(1).collect();
        assert!(!workers[0].flows.has_all(stage));
        assert!(workers[1].give_away(&all, 0) > 0);
        while !workers.iter().all(Worker::is_idle) {
            workers.iter_mut().for_each(|worker| {
                worker.turn(8);
            });
        }
        let flows = &workers[0].flows;
        assert!(flows.has_all(stage) && all.iter().all(|place| flows.has(*place)));
        assert_eq!((flows.owned(), workers[1].flows.owned()), (BUCKETS, 0));
        assert!(workers[0].give(stage, 5, 1));
        assert!(!workers[0].flows.has_all(stage));
        assert_eq!(workers[0].flows.owned(), BUCKETS - 1);
    }
}
