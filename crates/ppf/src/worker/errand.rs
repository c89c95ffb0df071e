//! What is done at a bearer by whichever worker has it: told by events of its shard, so that it is done once, and in the order in which it
//! was asked for, wherever the shard moves meanwhile.

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_sched::{Control, Entry, Event, StageId};

use crate::bearer::{Bearer, BearerId, SHARDS};
use crate::report::Passed;

/// Of an event's value: it is an errand, and no packet.
pub(crate) const ERRAND: u64 = 1 << 63;
/// Errands that may be under way: more than what is done at once has, which is two for each shard at most.
pub(crate) const ROOM: usize = 4096;
const AT_ONCE: usize = 2 * SHARDS;
const _: () = assert!(AT_ONCE <= ROOM);
/// So long is waited for room, and as long between two looks.
const PATIENCE: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_micros(50);

/// A bearer that changes: how it was, and how it is to be.
pub(crate) type Changed = (BearerId, Box<(Bearer, Bearer)>);

/// What is to be done at bearers of one shard.
pub(crate) enum Errand {
    /// Have these, or have them be so.
    Put(Vec<(BearerId, Bearer)>),
    /// Have these be otherwise than they were, and send so many end markers to where their tunnels led.
    Change(Vec<Changed>, u32),
    /// Have these no more, and say what passed by them.
    Remove(Vec<BearerId>, Sender<Vec<(BearerId, Passed)>>),
    /// Say what passed by these.
    Usage(Vec<BearerId>, Sender<Vec<(BearerId, Passed)>>),
}

/// Things of bearers, by shard.
pub(crate) fn by_shard<T>(
    things: impl IntoIterator<Item = T>,
    id: impl Fn(&T) -> BearerId,
) -> HashMap<u32, Vec<T>> {
    let mut shards: HashMap<u32, Vec<T>> = HashMap::new();
    for thing in things {
        shards.entry(id(&thing).shard()).or_default().push(thing);
    }
    shards
}

/// Errands that are under way, by what their events say.
#[derive(Default)]
pub(crate) struct Errands(Mutex<UnderWay>);

#[derive(Default)]
struct UnderWay {
    last: u64,
    errands: HashMap<u64, Errand>,
    /// Nobody does any more.
    is_over: bool,
}

impl std::fmt::Debug for Errands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} errands", self.lock().errands.len())
    }
}

impl Errands {
    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        // It is whole between two statements that can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, errand: Errand) -> u64 {
        let mut under_way = self.lock();
        under_way.last += 1;
        let number = under_way.last;
        if !under_way.is_over {
            under_way.errands.insert(number, errand);
        }
        ERRAND | number
    }

    /// The errand of an event.
    pub(crate) fn take(&self, value: u64) -> Option<Errand> {
        self.lock().errands.remove(&(value & !ERRAND))
    }

    /// Workers have ended: who waits for an answer need not wait any more.
    pub(crate) fn end(&self) {
        let mut under_way = self.lock();
        under_way.is_over = true;
        under_way.errands.clear();
    }

    fn is_over(&self) -> bool {
        self.lock().is_over
    }
}

/// Workers stand still, or are very busy: there is no room for more errands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Busy;

/// The way of errands into the graph, in their order.
#[derive(Debug)]
pub(crate) struct Way {
    entry: Entry,
    stage: StageId,
    errands: Arc<Errands>,
    patience: Duration,
    /// What found no room although there was to be some: it goes before all others.
    waiting: Vec<Event>,
}

impl Way {
    /// To a stage, by its entry point.
    pub(crate) fn new(entry: Entry, stage: StageId, errands: Arc<Errands>) -> Way {
        Way {
            entry,
            stage,
            errands,
            patience: PATIENCE,
            waiting: Vec::new(),
        }
    }

    /// What looks at the graph.
    pub(crate) fn control(&self) -> Control {
        self.entry.control()
    }

    /// Waits for room for so many errands, or for all that a change can have. Whoever changes something does so first: where there is no
    /// room nothing has changed, and what has changed workers learn.
    pub(crate) fn reserve(&mut self, errands: usize) -> Result<(), Busy> {
        let wanted = errands.min(AT_ONCE) as u64;
        let until = Instant::now() + self.patience;
        while !self.flush() || self.entry.inside() + wanted > ROOM as u64 {
            if self.errands.is_over() {
                break;
            }
            if Instant::now() >= until {
                tracing::error!("workers have no room for {wanted} errands more");
                return Err(Busy);
            }
            thread::sleep(MOMENT);
        }
        Ok(())
    }

    /// Has errands be done, by shard, behind those before, for which there is room. Should others have taken it meanwhile they wait here,
    /// and are never given up.
    pub(crate) fn send(&mut self, errands: impl IntoIterator<Item = (u32, Errand)>) {
        if self.errands.is_over() {
            return;
        }
        for (shard, errand) in errands {
            let value = self.errands.add(errand);
            self.waiting
                .push(self.entry.event(self.stage, shard, value));
        }
        let until = Instant::now() + self.patience;
        while !self.flush() && !self.errands.is_over() && Instant::now() < until {
            thread::sleep(MOMENT);
        }
    }

    /// Lets in what waits; whether nothing does any more.
    pub(crate) fn flush(&mut self) -> bool {
        while !self.waiting.is_empty() {
            // More than the limit are never let in at once.
            let most = self.waiting.len().min(ROOM);
            match self.entry.enter(&self.waiting[..most]) {
                0 => return false,
                entered => drop(self.waiting.drain(..entered)),
            }
        }
        true
    }

    /// Waits less, where a test has nobody who would make room.
    #[cfg(test)]
    pub(crate) fn wait_for(&mut self, patience: Duration) {
        self.patience = patience;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::stages;

    #[test]
    fn what_found_no_room_goes_before_all_others() {
        // Nobody takes anything out.
        let (_parts, entry, stages) = stages::build(2, &[0, 1]).unwrap();
        let errands = Arc::<Errands>::default();
        let mut way = Way::new(entry, stages.bearer, errands.clone());
        way.wait_for(Duration::ZERO);
        let put = |shards: std::ops::Range<u32>| shards.map(|shard| (shard, Errand::Put(vec![])));
        assert_eq!(way.reserve(5), Ok(()));
        assert!(way.control().set_limit(2, 3));
        way.send(put(0..5));
        assert_eq!((way.waiting.len(), way.entry.inside()), (2, 3));
        assert_eq!(way.reserve(1), Err(Busy));
        way.send(put(5..6));
        let shards: Vec<u32> = way.waiting.iter().map(|event| event.flow).collect();
        assert_eq!(shards, [3, 4, 5]);
        assert!(way.control().set_limit(2, ROOM));
        assert_eq!((way.reserve(1), way.entry.inside()), (Ok(()), 6));
        assert_eq!(errands.lock().errands.len(), 6, "none is given up");
        assert_eq!(way.reserve(usize::MAX), Ok(()));
        way.send(put(0..1024).chain(put(0..1024)).chain(put(0..1024)));
        assert_eq!(way.reserve(usize::MAX), Err(Busy));
        errands.end();
        assert_eq!(way.reserve(usize::MAX), Ok(()), "nobody waits for the dead");
    }
}
