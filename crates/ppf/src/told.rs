//! Events of all workers in one order: numbered, the last of them kept, for whoever asks or waits.
//!
//! A worker hands over what it has once in a millisecond, and before it sleeps. While packets come it never waits for who reads: what it
//! cannot hand over now it keeps until the next time. Where nobody reads, the oldest go first, and are counted.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::event::Event;
use crate::observed::{EventList, EventReport};

/// Events that are kept.
const KEPT_MAX: usize = 16_384;
/// Events of a worker that are taken in at once: some microseconds.
const PIECE: usize = 256;
/// Askers that wait at a time.
const WAITERS_MAX: usize = 8;

/// An event, and when it was handed over.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) number: u64,
    pub(crate) time_ms: u64,
    pub(crate) worker: usize,
    pub(crate) event: Event,
}

#[derive(Debug, Default)]
struct Log {
    kept: VecDeque<Told>,
    /// The number of the next one.
    next: u64,
    waiters: usize,
    is_over: bool,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct EventLog {
    log: Mutex<Log>,
    came: Condvar,
    began_ms: u64,
}

/// As many wait as may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Crowded;

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

impl Default for EventLog {
    fn default() -> EventLog {
        EventLog {
            log: Mutex::default(),
            came: Condvar::new(),
            began_ms: now_ms(),
        }
    }
}

impl Log {
    /// The number of the oldest one that is kept, or of the next one.
    fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    fn push(&mut self, time_ms: u64, worker: usize, event: Event) {
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Told {
            number: self.next,
            time_ms,
            worker,
            event,
        });
        self.next += 1;
    }
}

impl EventLog {
    fn lock(&self) -> MutexGuard<'_, Log> {
        // It is whole between two statements that can panic.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what a worker has, or a part of it. Nothing, if somebody reads now and the worker is not patient.
    pub(crate) fn put(
        &self,
        worker: usize,
        is_patient: bool,
        mut next: impl FnMut() -> Option<Event>,
    ) {
        let mut log = match self.log.try_lock() {
            Ok(log) => log,
            Err(TryLockError::Poisoned(log)) => log.into_inner(),
            Err(TryLockError::WouldBlock) if !is_patient => return,
            Err(TryLockError::WouldBlock) => self.lock(),
        };
        let time_ms = now_ms();
        for _ in 0..PIECE {
            match next() {
                Some(event) => log.push(time_ms, worker, event),
                None => break,
            }
        }
        let is_waited_for = log.waiters > 0;
        drop(log);
        if is_waited_for {
            self.came.notify_all();
        }
    }

    /// Those from a number on, or from the oldest, at most so many. Where there is none yet it is waited for, so long.
    ///
    /// # Errors
    /// When as many wait as may.
    pub(crate) fn read(
        &self,
        from: Option<u64>,
        most: usize,
        wait: Duration,
    ) -> Result<EventList, Crowded> {
        let until = Instant::now() + wait;
        let mut log = self.lock();
        // A number that there was not yet is another process's.
        let from = from.filter(|from| *from <= log.next);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let wanted = from.unwrap_or_else(|| log.first());
            if wanted < log.next || left.is_zero() || log.is_over {
                return Ok(self.list(log, wanted, most));
            }
            if log.waiters == WAITERS_MAX {
                return Err(Crowded);
            }
            log.waiters += 1;
            let waited = self.came.wait_timeout(log, left);
            log = waited.unwrap_or_else(PoisonError::into_inner).0;
            log.waiters -= 1;
        }
    }

    fn list(&self, log: MutexGuard<'_, Log>, wanted: u64, most: usize) -> EventList {
        let first = log.first();
        // Not more than are kept.
        let at = wanted.saturating_sub(first) as usize;
        let end = at.saturating_add(most).min(log.kept.len());
        let told: Vec<Told> = log.kept.range(at..end).cloned().collect();
        drop(log);
        let missed = first.saturating_sub(wanted);
        EventList {
            began_ms: self.began_ms,
            next: wanted + missed + told.len() as u64,
            missed,
            events: told.into_iter().map(EventReport::from).collect(),
        }
    }

    /// How many there were, and how many of them are not kept any more.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let log = self.lock();
        (log.next, log.first())
    }

    /// Whoever waits goes home.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bearer::{BearerId, Side};

    fn put(log: &EventLog, events: std::ops::Range<u32>) {
        let mut events = events.map(|id| Event::Lost(BearerId::from_number(id), Side::Core));
        while events.len() > 0 {
            log.put(0, true, || events.next());
        }
    }

    fn numbers(list: &EventList) -> Vec<u64> {
        list.events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn events_are_read_from_a_number_on() {
        let log = EventLog::default();
        put(&log, 0..5);
        let all = log.read(None, 3, Duration::ZERO).unwrap();
        assert_eq!((numbers(&all), all.next, all.missed), (vec![0, 1, 2], 3, 0));
        let rest = log.read(Some(all.next), 100, Duration::ZERO).unwrap();
        assert_eq!((numbers(&rest), rest.next), (vec![3, 4], 5));
        assert_eq!(rest.events[1].bearer, Some(4));
        let none = log.read(Some(5), 100, Duration::ZERO).unwrap();
        assert_eq!((numbers(&none), none.next), (vec![], 5));
        // Of another process, which had more.
        let other = log.read(Some(77), 100, Duration::ZERO).unwrap();
        assert_eq!((other.events.len(), other.next), (5, 5));
    }

    #[test]
    fn the_oldest_go_first_and_are_counted() {
        let log = EventLog::default();
        let count = KEPT_MAX as u32 + 10;
        put(&log, 0..count);
        assert_eq!(log.counts(), (count.into(), 10));
        let list = log.read(Some(4), 2, Duration::ZERO).unwrap();
        assert_eq!((numbers(&list), list.missed), (vec![10, 11], 6));
        assert_eq!(list.next, 12);
        let list = log.read(None, 1, Duration::ZERO).unwrap();
        assert_eq!((numbers(&list), list.missed), (vec![10], 0));
    }

    #[test]
    fn who_waits_is_woken_by_an_event_and_at_the_end() {
        let log = Arc::new(EventLog::default());
        for is_event in [true, false] {
            let reader = log.clone();
            let from = log.counts().0;
            let patience = Duration::from_secs(600);
            let waits = std::thread::spawn(move || reader.read(Some(from), 10, patience));
            while log.lock().waiters == 0 {
                std::thread::yield_now();
            }
            if is_event {
                put(&log, 7..8);
            } else {
                log.end();
            }
            let list = waits.join().unwrap().unwrap();
            assert_eq!(list.events.len(), usize::from(is_event));
        }
    }

    #[test]
    fn a_worker_in_a_hurry_keeps_what_it_has_while_somebody_reads() {
        let log = EventLog::default();
        let reads = log.lock();
        log.put(0, false, || panic!("it is taken nothing from"));
        drop(reads);
        put(&log, 0..1);
        assert_eq!(log.counts(), (1, 0));
    }

    #[test]
    fn no_more_wait_than_may() {
        let log = EventLog::default();
        log.lock().waiters = WAITERS_MAX;
        let wait = Duration::from_secs(600);
        assert_eq!(log.read(None, 1, wait), Err(Crowded));
        put(&log, 0..1);
        assert!(log.read(None, 1, wait).is_ok(), "what is there is given");
    }
}
