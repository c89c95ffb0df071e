//! What handlers keep of a bucket, on its way with the bucket to another worker.
//!
//! A slot for each bucket of a stage. The former owner fills it before it says that the bucket is handed over, and the new one empties it
//! when it has been told: so each is locked by whoever has it, and nobody ever waits. A stage whose handlers keep nothing has no slots.

use std::any::Any;
use std::fmt;
use std::sync::{OnceLock, PoisonError};

use crate::atomic::Mutex;
use crate::map::{BUCKETS, Place};

/// What a handler keeps of a bucket, as another worker's handler of the same stage gets it.
pub type State = Box<dyn Any + Send>;

type Slots = Box<[Mutex<Option<State>>]>;

/// Of each stage, made when something is given there for the first time.
pub(crate) struct States(Box<[OnceLock<Slots>]>);

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "states of {} stages", self.0.len())
    }
}

impl States {
    pub(crate) fn new(stages: usize) -> States {
        States((0..stages).map(|_| OnceLock::new()).collect())
    }

    /// Lays it down for the new owner, which is told of it.
    pub(crate) fn put(&self, place: Place, state: State) {
        let made = || (0..BUCKETS).map(|_| Mutex::new(None)).collect();
        let slots = self.0[place.stage().index()].get_or_init(made);
        let slot = &slots[place.bucket()];
        let before = slot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(state);
        // A bucket is on one way at a time.
        debug_assert!(before.is_none(), "a state was never fetched");
    }

    /// Fetches it.
    pub(crate) fn fetch(&self, place: Place) -> Option<State> {
        let slots = self.0[place.stage().index()].get()?;
        let slot = &slots[place.bucket()];
        slot.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::event::StageId;

    #[test]
    fn what_is_laid_down_is_fetched_once() {
        let states = States::new(2);
        let [one, other] = [0, 1].map(|stage| Place::new(StageId(stage), 7));
        assert!(states.fetch(one).is_none());
        states.put(one, Box::new(5));
        assert!(states.fetch(other).is_none() && states.0[1].get().is_none());
        let fetched = states.fetch(one).and_then(|state| state.downcast().ok());
        assert_eq!(fetched, Some(Box::new(5)));
        assert!(states.fetch(one).is_none());
    }
}
