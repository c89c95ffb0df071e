//! What handlers keep of buckets goes with them.
//!
//! It goes by value, and only when no event of the bucket can come to the former owner any more: so no handler's state needs a lock, and
//! none is locked for an event. It is lost where a handler panics that has it, or that is giving it up or getting it, and where there is no
//! handler to take it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Worker;
use crate::graph::Kind;
use crate::map::Place;

impl Worker {
    /// Has the handler give up what it keeps of a bucket, and lays it down for the new owner. Whether there was something.
    pub(super) fn give_state(&mut self, place: Place) -> bool {
        let stage = place.stage().index();
        if self.shared.kinds[stage] != Kind::Atomic {
            return false;
        }
        let Some(handler) = &mut self.handlers[stage] else {
            return false;
        };
        match catch_unwind(AssertUnwindSafe(|| handler.give(place.bucket()))) {
            Ok(None) => false,
            Ok(Some(state)) => {
                self.seen().states_given.add(1);
                self.shared.states.put(place, state);
                true
            }
            Err(_) => {
                self.seen().states_lost.add(1);
                self.replace_handler(place.stage());
                false
            }
        }
    }

    /// Fetches what the former owner of a bucket laid down, and has the handler take it.
    pub(super) fn take_state(&mut self, place: Place) {
        let Some(state) = self.shared.states.fetch(place) else {
            return;
        };
        let handler = self.handlers[place.stage().index()].as_mut();
        let is_here = handler.is_some();
        let take = move || match handler {
            Some(handler) => handler.take(place.bucket(), state),
            None => drop(state),
        };
        let is_done = catch_unwind(AssertUnwindSafe(take)).is_ok();
        if is_here && is_done {
            self.seen().states_taken.add(1);
        } else {
            self.seen().states_lost.add(1);
        }
        if is_here && !is_done {
            self.replace_handler(place.stage());
        }
    }
}
