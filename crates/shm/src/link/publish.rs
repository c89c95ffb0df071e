//! The publisher's end of a link.

use std::sync::Arc;

use crate::atomic::Ordering;
use crate::link::sleep::{self, Sleeper};
use crate::link::{Descriptor, Link};

/// Descriptors in a cache line.
const SLOTS_OF_LINE: u32 = 4;
/// How many descriptors ahead their line is asked for: two lines.
const AHEAD: u32 = 2 * SLOTS_OF_LINE;

/// The subscriber's words say what cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lie;

/// What did not go as it should, in counts for onlookers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Troubles {
    /// Messages given up.
    pub dropped: u64,
    /// Those of them that were never published.
    pub skipped: u64,
    /// Messages published once more after a worker's death.
    pub redelivered: u64,
    /// Times that a message found no room, and its publisher waited or was told so.
    pub full: u64,
}

/// Puts descriptors in, and gets tickets back. What a ticket stands for, and which are out, is its owner's to know.
#[derive(Debug)]
pub struct PublishEnd {
    link: Arc<Link>,
    direction: u32,
    /// Where the next descriptor goes. Free-running.
    tail: u32,
    /// The first descriptor that is written and not to be seen yet: where, and its first word.
    first: Option<(u32, u64)>,
    /// Where the next released ticket is. Free-running.
    release_head: u32,
    messages: u64,
    bytes: u64,
    sleeper: Sleeper,
}

impl PublishEnd {
    /// The end of a fresh link.
    ///
    /// # Panics
    /// When the link has no such direction.
    #[must_use]
    pub fn new(link: Arc<Link>, direction: u32) -> PublishEnd {
        let sleeper = Sleeper::default();
        sleeper.say_awake(&link.words(direction).publisher_asleep);
        PublishEnd {
            link,
            direction,
            tail: 0,
            first: None,
            release_head: 0,
            messages: 0,
            bytes: 0,
            sleeper,
        }
    }

    /// The link.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The link, to be shared with what else uses it.
    #[must_use]
    pub fn shared(&self) -> &Arc<Link> {
        &self.link
    }

    /// Where the next descriptor goes. Free-running.
    #[must_use]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Writes a descriptor, which is seen after the next [`PublishEnd::publish`]. Its ticket is not out, and less than the link's slots: so
    /// fewer are out than there are slots, and the one at the tail has been taken.
    #[inline]
    pub fn push(&mut self, descriptor: &Descriptor) {
        let slot = self.link.slot(self.direction, self.tail);
        let [what, which] = descriptor.words(self.link.lap(self.tail));
        // Relaxed: comes before the Release of the first word, below or in `publish`.
        slot.which.store(which, Ordering::Relaxed);
        if self.first.is_none() {
            self.first = Some((self.tail, what));
        } else {
            // Release: pairs with the Acquire in `SubscribeEnd::pop`, which comes here only after the first of the batch.
            slot.what.store(what, Ordering::Release);
        }
        if self.tail.is_multiple_of(SLOTS_OF_LINE) {
            self.link
                .will_write(self.direction, self.tail.wrapping_add(AHEAD));
        }
        self.tail = self.tail.wrapping_add(1);
        self.messages += 1;
        self.bytes += u64::from(descriptor.bytes);
    }

    /// Lets the subscriber see what was pushed. True: it sleeps, and has to be woken.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let Some((position, what)) = self.first.take() else {
            return false;
        };
        // Release: pairs with the Acquire in `SubscribeEnd::pop`; the whole batch and its messages are visible after it.
        self.link
            .slot(self.direction, position)
            .what
            .store(what, Ordering::Release);
        let words = self.link.words(self.direction);
        words.messages.store(self.messages, Ordering::Relaxed);
        words.bytes.store(self.bytes, Ordering::Relaxed);
        sleep::must_ring(&words.subscriber_asleep)
    }

    /// The next ticket that the subscriber has given back. Any number: whether it was out, its owner has to check.
    #[inline]
    pub fn collect(&mut self) -> Option<u16> {
        // Acquire: pairs with the Release in `SubscribeEnd::release`; the subscriber's reads of the message come before it.
        let ticket = self.released(self.release_head, Ordering::Acquire)?;
        self.release_head = self.release_head.wrapping_add(1);
        Some(ticket)
    }

    /// Whether at least `count` tickets have come back that were not collected, of at least as many that are out.
    #[inline]
    #[must_use]
    pub fn has_back(&self, count: u32) -> bool {
        let last = self.release_head.wrapping_add(count).wrapping_sub(1);
        // Relaxed: only whether there is one; `collect` loads it again.
        count == 0 || self.released(last, Ordering::Relaxed).is_some()
    }

    /// The ticket that came back at `position`, if one has.
    #[inline]
    fn released(&self, position: u32, order: Ordering) -> Option<u16> {
        let entry = self.link.release_entry(self.direction, position);
        let entry = entry.load(order);
        let is_there = (entry >> 31 != 0) == self.link.lap(position);
        is_there.then_some((entry & 0xffff) as u16)
    }

    /// Descriptors that the subscriber says it has taken, as a free-running count. None: it says what cannot be.
    pub fn taken(&self) -> Result<u32, Lie> {
        // Acquire: pairs with the Release in `SubscribeEnd::pop` where the oldest may be taken back.
        let taken = self
            .link
            .words(self.direction)
            .taken
            .load(Ordering::Acquire);
        let seen = self.first.map_or(self.tail, |(position, _)| position);
        if seen.wrapping_sub(taken) > self.link.slots() {
            return Err(Lie);
        }
        Ok(taken)
    }

    /// Takes back the oldest descriptor that the subscriber has not taken, on a link where this is allowed; returns its position.
    ///
    /// # Errors
    /// The subscriber's count says what cannot be.
    pub fn take_back(&mut self) -> Result<Option<u32>, Lie> {
        loop {
            let oldest = self.taken()?;
            let seen = self.first.map_or(self.tail, |(position, _)| position);
            if oldest == seen {
                return Ok(None);
            }
            // AcqRel: either we have the descriptor or the subscriber, whose swap pairs with ours; Relaxed on failure, we look again.
            let swapped = self.link.words(self.direction).taken.compare_exchange(
                oldest,
                oldest.wrapping_add(1),
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if swapped.is_ok() {
                return Ok(Some(oldest));
            }
        }
    }

    /// Says, in the counters for onlookers, what did not go as it should.
    pub fn tell(&self, troubles: Troubles) {
        let words = self.link.words(self.direction);
        words.dropped.store(troubles.dropped, Ordering::Relaxed);
        words.skipped.store(troubles.skipped, Ordering::Relaxed);
        words
            .redelivered
            .store(troubles.redelivered, Ordering::Relaxed);
        words.full.store(troubles.full, Ordering::Relaxed);
    }

    /// Says how often there was no room, also where nothing is published after it.
    pub fn tell_full(&self, full: u64) {
        let words = self.link.words(self.direction);
        words.full.store(full, Ordering::Relaxed);
    }

    /// Says that the publisher sleeps until a ticket comes back. False: one has, or may have, and it must not.
    pub fn sleep(&mut self) -> bool {
        let words = self.link.words(self.direction);
        let is_there = !self.sleeper.say_asleep(&words.publisher_asleep) || self.has_back(1);
        if is_there {
            self.wake();
        }
        !is_there
    }

    /// Says that it sleeps no more.
    pub fn wake(&self) {
        let words = self.link.words(self.direction);
        self.sleeper.say_awake(&words.publisher_asleep);
    }
}
