//! The subscriber's end of a link.

use std::sync::Arc;

use crate::atomic::Ordering;
use crate::link::sleep::{self, Sleeper};
use crate::link::{Descriptor, Link};

/// What [`SubscribeEnd::pop`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Popped {
    /// The message. Where it lies is the publisher's word: ask [`Descriptor::place`].
    pub descriptor: Descriptor,
    /// Messages that the publisher has taken back since the last pop.
    pub lost: u32,
}

/// A publisher that takes the oldest back so often while one is being taken does nothing else: there is nothing then.
const TRIES: u32 = 1024;

/// Takes descriptors out, and gives tickets back.
#[derive(Debug)]
pub struct SubscribeEnd {
    link: Arc<Link>,
    direction: u32,
    /// The publisher may take the oldest back.
    overwrites: bool,
    /// Where the next descriptor is. Free-running.
    head: u32,
    /// Where the next released ticket goes. Free-running.
    release_tail: u32,
    sleeper: Sleeper,
}

impl SubscribeEnd {
    /// The end of a fresh link.
    ///
    /// # Panics
    /// When the link has no such direction.
    #[must_use]
    pub fn new(link: Arc<Link>, direction: u32, overwrites: bool) -> SubscribeEnd {
        let sleeper = Sleeper::default();
        sleeper.say_awake(&link.words(direction).subscriber_asleep);
        SubscribeEnd {
            link,
            direction,
            overwrites,
            head: 0,
            release_tail: 0,
            sleeper,
        }
    }

    /// The link.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Messages that the publisher says it has given up without publishing them.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        // Relaxed: told before the publication of the message that asks for it, which was an Acquire.
        self.link
            .words(self.direction)
            .skipped
            .load(Ordering::Relaxed)
    }

    /// Takes the next descriptor.
    #[inline]
    pub fn pop(&mut self) -> Option<Popped> {
        if self.overwrites {
            return self.pop_in_race();
        }
        let descriptor = self.look(self.head)?;
        self.head = self.head.wrapping_add(1);
        // Release: whoever finds the count finds that the descriptor was read before.
        self.link
            .words(self.direction)
            .taken
            .store(self.head, Ordering::Release);
        Some(Popped {
            descriptor,
            lost: 0,
        })
    }

    /// Where there is more to take: the descriptor that will be taken in `ahead` turns, if that has been published. The publisher's lines
    /// are left alone where it may be writing.
    #[inline]
    pub fn peek(&self, ahead: u32) -> Option<Descriptor> {
        self.look(self.head)?;
        self.look(self.head.wrapping_add(ahead))
    }

    /// The descriptor at `position`, if it has been published.
    #[inline]
    fn look(&self, position: u32) -> Option<Descriptor> {
        let slot = self.link.slot(self.direction, position);
        // Acquire: pairs with the Release in `PublishEnd::push` and `publish`; the second word and the message are visible after it.
        let what = slot.what.load(Ordering::Acquire);
        if !Descriptor::is_of(what, self.link.lap(position)) {
            return None;
        }
        // Relaxed: ordered by the load above.
        let which = slot.which.load(Ordering::Relaxed);
        Some(Descriptor::from_words([what, which]))
    }

    /// As `pop`, while the publisher may take the oldest back: who counts it in `taken` has it. A descriptor that was written over while it
    /// was read is not counted, since its publisher had counted it before.
    fn pop_in_race(&mut self) -> Option<Popped> {
        let taken = &self.link.words(self.direction).taken;
        for _ in 0..TRIES {
            // Acquire: pairs with the publisher's swap; what it wrote over later is not of this lap.
            let oldest = taken.load(Ordering::Acquire);
            let found = self.look(oldest);
            let Some(descriptor) = found else {
                // Either nothing has been published, or it was taken back meanwhile.
                if taken.load(Ordering::Acquire) == oldest {
                    return None;
                }
                continue;
            };
            let next = oldest.wrapping_add(1);
            // AcqRel: as in `PublishEnd::take_back`; Relaxed on failure, we look again.
            let swapped = taken.compare_exchange(oldest, next, Ordering::AcqRel, Ordering::Relaxed);
            if swapped.is_ok() {
                let lost = oldest.wrapping_sub(self.head);
                self.head = next;
                return Some(Popped { descriptor, lost });
            }
        }
        None
    }

    /// Gives a ticket back: its message may be written over. True: the publisher sleeps, and has to be woken.
    #[inline]
    pub fn release(&mut self, ticket: u16) -> bool {
        self.give_back(ticket);
        sleep::must_ring(&self.link.words(self.direction).publisher_asleep)
    }

    /// As [`SubscribeEnd::release`], of many.
    #[inline]
    pub fn release_all(&mut self, tickets: &[u16]) -> bool {
        for ticket in tickets {
            self.give_back(*ticket);
        }
        sleep::must_ring(&self.link.words(self.direction).publisher_asleep)
    }

    #[inline]
    fn give_back(&mut self, ticket: u16) {
        let lap = u32::from(self.link.lap(self.release_tail)) << 31;
        let entry = self.link.release_entry(self.direction, self.release_tail);
        // Release: pairs with the Acquire in `PublishEnd::collect`; our reads of the message come before it.
        entry.store(lap | u32::from(ticket), Ordering::Release);
        self.release_tail = self.release_tail.wrapping_add(1);
        self.link
            .words(self.direction)
            .released
            .store(self.release_tail, Ordering::Relaxed);
    }

    /// Whether a descriptor waits.
    #[inline]
    #[must_use]
    pub fn has_some(&self) -> bool {
        let position = if self.overwrites {
            self.link
                .words(self.direction)
                .taken
                .load(Ordering::Acquire)
        } else {
            self.head
        };
        self.look(position).is_some()
    }

    /// Says that the subscriber sleeps until something is published. False: something has been, and it must not.
    pub fn sleep(&mut self) -> bool {
        let words = self.link.words(self.direction);
        let is_there = !self.sleeper.say_asleep(&words.subscriber_asleep) || self.has_some();
        if is_there {
            self.wake();
        }
        !is_there
    }

    /// Says that it sleeps no more.
    pub fn wake(&self) {
        let words = self.link.words(self.direction);
        self.sleeper.say_awake(&words.subscriber_asleep);
    }
}
