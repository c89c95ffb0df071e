//! What is done at a bearer by whichever worker has it: told by events of its shard, so that it is done once, and in the order in which it
//! was asked for, wherever the shard moves meanwhile.

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use millrace_sched::{Entry, StageId};

use crate::bearer::{Bearer, BearerId};
use crate::report::Passed;

/// Of an event's value: it is an errand, and no packet.
pub(crate) const ERRAND: u64 = 1 << 63;
/// Errands that may be under way.
pub(crate) const ROOM: usize = 4096;
/// So long is waited for room.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is to be done at bearers of one shard.
pub(crate) enum Errand {
    /// Have these, or have them be so.
    Put(Vec<(BearerId, Bearer)>),
    /// Have one be otherwise than it was, and send so many end markers to where its tunnels led.
    Change(BearerId, Box<(Bearer, Bearer)>, u32),
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

    /// Has errands be done, by shard, behind those before. There is room unless workers are busy, and then it is waited for; what none is
    /// found for is given up, and nobody gets an answer.
    pub(crate) fn send(
        &self,
        entry: &mut Entry,
        stage: StageId,
        errands: impl IntoIterator<Item = (u32, Errand)>,
    ) {
        let errands = errands.into_iter();
        let events = errands.map(|(shard, errand)| entry.event(stage, shard, self.add(errand)));
        let events: Vec<_> = events.collect();
        let (mut sent, until) = (0, Instant::now() + PATIENCE);
        while sent < events.len() && Instant::now() < until && !self.is_over() {
            // More than the limit are never let in at once.
            let most = events.len().min(sent + ROOM);
            match entry.enter(&events[sent..most]) {
                0 => thread::sleep(Duration::from_micros(50)),
                entered => sent += entered,
            }
        }
        if sent < events.len() && !self.is_over() {
            let left = events.len() - sent;
            tracing::error!(
                "workers stand still: {left} errands were given up, and bearers may not be as they were asked for"
            );
        }
        for event in &events[sent..] {
            self.take(event.value);
        }
    }
}
