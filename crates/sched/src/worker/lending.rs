//! Ordered stages: a batch may be handled by another worker, and what it hands on is put where it belongs when it comes back.
//!
//! A flow has its owner as at an atomic stage, who takes batches in order. While many events wait there, batches are lent to workers with
//! less to do; a batch that the owner handles itself meanwhile waits in the same line. What a batch hands on is let go once no batch before
//! it with an event of the same bucket is away: so the order of each flow is that in which its events came, and no flow waits for another
//! one's batch. A bucket of which something is away does not move.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::Worker;
use crate::atomic::Ordering;
use crate::event::{Event, StageId};
use crate::map::Place;
use crate::outbox::{LENT, RETURNED, word};

/// Batches of a worker that are away, at most.
const LOANS_MAX: usize = 16;
/// Who has more load than this, in thousandths, is lent nothing.
const FREE: u64 = 500;

/// A batch that is lent.
#[derive(Debug, Default)]
struct Loan {
    owner: usize,
    stage: Option<StageId>,
    events: Vec<Event>,
    /// What it hands on.
    out: Vec<Event>,
}

/// Where an owner's loans lie. Each is locked by whoever has it, so that nobody ever waits.
#[derive(Debug, Default)]
pub(crate) struct Loans([Mutex<Loan>; LOANS_MAX]);

/// A batch in line.
#[derive(Debug)]
struct Away {
    /// Its loan; none: it was handled here.
    loan: Option<u32>,
    stage: StageId,
    places: Vec<Place>,
    /// What it hands on, once that is known.
    out: Option<Vec<Event>>,
}

/// What a worker has lent and borrowed.
#[derive(Debug, Default)]
pub(super) struct Lending {
    line: VecDeque<Away>,
    /// Loans that are in use, by bits.
    used: u32,
    /// Of others, in the order that they came: an owner's number and its loan's, in one.
    pub(super) borrowed: VecDeque<u32>,
    turn: usize,
}

impl Lending {
    /// Whether nothing is away, and nothing of others is here.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty() && self.borrowed.is_empty()
    }

    /// Whether something of a bucket is away.
    pub(super) fn has(&self, place: Place) -> bool {
        self.line.iter().any(|away| away.places.contains(&place))
    }

    /// Events that are away, or have come back and wait: of those that are away, as many as were lent.
    pub(super) fn lent(&self) -> usize {
        self.line.iter().map(|away| away.places.len()).sum()
    }
}

impl Worker {
    /// Lends the batch, or handles it and puts what it hands on into line. False: neither is needed.
    pub(super) fn handle_ordered(&mut self, stage: StageId) -> bool {
        let helper = self.find_helper();
        if helper.is_none() && self.lending.line.is_empty() {
            return false;
        }
        let places = self.batch.iter().map(|event| Place::of(stage, event.flow));
        let places: Vec<_> = places.collect();
        if let Some(helper) = helper {
            self.lend(stage, places, helper);
            return true;
        }
        if !places.iter().any(|place| self.lending.has(*place)) {
            return false;
        }
        self.run(stage);
        self.lending.line.push_back(Away {
            loan: None,
            stage,
            places,
            out: Some(std::mem::take(&mut self.out.events)),
        });
        true
    }

    /// Who has less to do, if there is much to do here.
    fn find_helper(&mut self) -> Option<usize> {
        // What is lent would stay.
        if self.activity.is_leaving() {
            return None;
        }
        let workers = self.shared.workers;
        let lend_above = self.shared.tuning.lend_above.load(Ordering::Relaxed);
        if self.queues.len() <= lend_above || self.lending.used.count_ones() as usize == LOANS_MAX {
            return None;
        }
        self.lending.turn += 1;
        let load = |worker: &usize| self.shared.load(*worker, self.out.now_ns);
        // Who is not active is called up by load, and not by a loan.
        let active = self.shared.active() & !(1 << self.index);
        let others = (0..workers).map(|step| (self.lending.turn + step) % workers);
        let least = others
            .filter(|other| active >> other & 1 != 0)
            .min_by_key(load)?;
        (load(&least) <= FREE).then_some(least)
    }

    fn lend(&mut self, stage: StageId, places: Vec<Place>, helper: usize) {
        let number = (!self.lending.used).trailing_zeros();
        self.lending.used |= 1 << number;
        let mut loan = self.loan(self.index, number);
        loan.owner = self.index;
        loan.stage = Some(stage);
        loan.events.clear();
        loan.events.extend_from_slice(&self.batch);
        drop(loan);
        self.lending.line.push_back(Away {
            loan: Some(number),
            stage,
            places,
            out: None,
        });
        let name = (self.index * LOANS_MAX) as u32 + number;
        self.pending.push_back(word(LENT, helper, name));
    }

    fn loan(&self, owner: usize, number: u32) -> std::sync::MutexGuard<'_, Loan> {
        let loan = &self.shared.loans[owner].0[number as usize];
        loan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles what was borrowed.
    pub(super) fn handle_borrowed(&mut self) -> usize {
        let mut handled = 0;
        while let Some(name) = self.lending.borrowed.pop_front() {
            let (owner, number) = (name as usize / LOANS_MAX, name % LOANS_MAX as u32);
            let mut loan = self.loan(owner, number);
            let Some(stage) = loan.stage else {
                continue;
            };
            let events = std::mem::take(&mut loan.events);
            drop(loan);
            self.batch.clear();
            self.batch.extend_from_slice(&events);
            self.run(stage);
            let out = std::mem::take(&mut self.out.events);
            let mut loan = self.loan(owner, number);
            loan.events = events;
            loan.out = out;
            drop(loan);
            self.pending.push_back(word(RETURNED, owner, number));
            handled += self.batch.len();
            self.seen().borrowed.add(1);
        }
        handled
    }

    /// A loan has come back: it, and what waited for it, goes on.
    pub(super) fn come_back(&mut self, number: u32) {
        let out = std::mem::take(&mut self.loan(self.index, number).out);
        self.lending.used &= !(1 << number);
        let line = &mut self.lending.line;
        if let Some(away) = line.iter_mut().find(|away| away.loan == Some(number)) {
            (away.loan, away.out) = (None, Some(out));
        }
        let mut at = 0;
        while at < self.lending.line.len() {
            let line = &self.lending.line;
            let away = &line[at];
            let waits = |before: &Away| {
                away.places
                    .iter()
                    .any(|place| before.places.contains(place))
            };
            if away.out.is_none() || line.iter().take(at).any(waits) {
                at += 1;
                continue;
            }
            if let Some(Away {
                out: Some(out),
                stage,
                ..
            }) = self.lending.line.remove(at)
            {
                self.out.events = out;
                self.hand_on_all(stage);
            }
        }
    }
}
