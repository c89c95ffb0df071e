//! What becomes of a packet at its bearer: gates, limits, the queue of those that wait, and what is counted.

use super::Table;
use super::hot::{Extra, NO_EXTRA};
use crate::bearer::{BearerId, Side, Usage};
use crate::cause::Cause;
use crate::event::{Due, Event, Report};
use crate::hold::{Held, Queue};

/// Whether a packet passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Passes,
    /// It is to be held.
    Waits,
    Drops(Cause),
}

impl Table {
    /// Whether a user's packet of so many bytes passes towards a side now. What passes or waits was charged, and what passes was counted.
    #[inline]
    pub(crate) fn admit(&mut self, id: BearerId, to: Side, bytes: usize, now_ns: u64) -> Admission {
        let Some(hot) = self.hot_mut(id) else {
            return Admission::Drops(Cause::UnknownTeid);
        };
        if !hot.is_open(to) {
            return Admission::Drops(Cause::Gate);
        }
        let extra = hot.extra;
        if extra == NO_EXTRA {
            hot.count(to, bytes, now_ns);
            return Admission::Passes;
        }
        let admission = self.admit_extra(extra, to, bytes, now_ns);
        if admission == Admission::Passes {
            self.account(id, to, bytes, now_ns);
        }
        admission
    }

    fn admit_extra(&mut self, extra: u32, to: Side, bytes: usize, now_ns: u64) -> Admission {
        let Some(extra) = self.extras.get_mut(extra) else {
            return Admission::Passes;
        };
        let bucket = &mut extra.buckets[to as usize];
        if !bucket.allows(bytes, now_ns) {
            return Admission::Drops(Cause::BearerLimit);
        }
        // Neither is charged for what the other refuses.
        if let Some(meter) = extra.user.and_then(|user| self.meters.get_mut(user.0)) {
            let all = &mut meter.buckets[to as usize];
            if !all.allows(bytes, now_ns) {
                return Admission::Drops(Cause::UserLimit);
            }
            all.take(bytes);
        }
        bucket.take(bytes);
        if extra.waits(to) {
            Admission::Waits
        } else {
            Admission::Passes
        }
    }

    /// Whether what is no user's packet has to wait behind those.
    pub(crate) fn waits(&self, id: BearerId, to: Side) -> bool {
        self.extra(id).is_some_and(|extra| extra.waits(to))
    }

    /// Holds a packet.
    pub(crate) fn hold(&mut self, held: Held, bytes: &[u8]) -> Result<(), Cause> {
        let (id, to) = (held.bearer, held.to);
        let extra = match self.hot(id) {
            Some(hot) => hot.extra,
            None => return Err(Cause::UnknownTeid),
        };
        let Some(extra) = self.extras.get_mut(extra) else {
            return Err(Cause::HeldMemory);
        };
        let queue = &mut extra.queues[to as usize];
        let was_empty = queue.is_empty();
        self.pool.push(queue, held, bytes)?;
        if was_empty {
            self.events.push(Event::FirstHeld(id, to));
        }
        Ok(())
    }

    /// Counts a user's packet that passes, and reports if that is due.
    #[inline]
    pub(crate) fn account(&mut self, id: BearerId, to: Side, bytes: usize, now_ns: u64) {
        let Some(hot) = self.hot_mut(id) else {
            return;
        };
        hot.count(to, bytes, now_ns);
        if hot.extra != NO_EXTRA {
            self.report(id);
        }
    }

    fn report(&mut self, bearer: BearerId) {
        let Some(&hot) = self.hot(bearer) else {
            return;
        };
        let Some(extra) = self.extras.get_mut(hot.extra) else {
            return;
        };
        let since = |side: usize| Usage {
            packets: hot.usage[side]
                .packets
                .saturating_sub(extra.reported[side].packets),
            bytes: hot.usage[side]
                .bytes
                .saturating_sub(extra.reported[side].bytes),
        };
        let usage = [since(0), since(1)];
        let active_s = hot.active_s.saturating_sub(extra.reported_s);
        let wanted = extra.thresholds;
        let reached = |threshold: u64, count: u64| threshold != 0 && count >= threshold;
        let due = if reached(wanted.bytes, usage[0].bytes + usage[1].bytes) {
            Due::Bytes
        } else if reached(wanted.packets, usage[0].packets + usage[1].packets) {
            Due::Packets
        } else if reached(wanted.seconds.into(), active_s.into()) {
            Due::Seconds
        } else {
            return;
        };
        (extra.reported, extra.reported_s) = (hot.usage, hot.active_s);
        self.events.push(Event::Usage(Report {
            bearer,
            usage,
            active_s,
            due,
        }));
    }

    /// Gives out the next packet of a bearer that waits no more.
    pub(crate) fn release(&mut self, to: &mut Vec<u8>) -> Option<Held> {
        while let Some(&(id, side)) = self.releasing.front() {
            let extra = self.hot(id).map(|hot| hot.extra);
            let extra = extra.and_then(|extra| self.extras.get_mut(extra));
            // It may have gone, or wait again.
            if let Some(extra) = extra.filter(|extra| !extra.paused[side as usize])
                && let Some(held) = self.pool.pop(&mut extra.queues[side as usize], to)
            {
                self.pool.counts.released += 1;
                self.settle(id);
                return Some(held);
            }
            self.releasing.pop_front();
        }
        None
    }

    /// Drops what was held for too long.
    pub(crate) fn drop_old(&mut self, now_ns: u64) {
        let mut bytes = Vec::new();
        while let Some(old) = self.pool.too_old(now_ns) {
            let extra = self.hot(old.bearer).map(|hot| hot.extra);
            let Some(extra) = extra.and_then(|extra| self.extras.get_mut(extra)) else {
                // A bearer that has gone has taken its packets with it.
                debug_assert!(false, "a packet of no bearer");
                return;
            };
            let queue = &mut extra.queues[old.to as usize];
            if self.pool.pop(queue, &mut bytes).is_none() {
                debug_assert!(false, "a packet in no queue");
                return;
            }
            self.drops[old.to.other() as usize].add(Cause::HeldAge);
            self.settle(old.bearer);
        }
    }

    /// Takes what a bearer has beside its line away, if that was only packets which wait no more: those that come take the short way again.
    pub(super) fn settle(&mut self, id: BearerId) {
        let is_empty = |extra: &Extra| extra.queues.iter().all(Queue::is_empty);
        if self.extra(id).is_some_and(is_empty)
            && let Some(bearer) = self.get(id)
        {
            self.store_extra(id, &bearer);
        }
    }
}

impl Extra {
    pub(crate) fn waits(&self, to: Side) -> bool {
        self.paused[to as usize] || !self.queues[to as usize].is_empty()
    }
}
