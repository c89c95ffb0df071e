//! The road to a worker: a ring of words in pairs, of many producers and one consumer.
//!
//! One for all who send to a worker, and not one for each, since what is sent later because of something that was sent before must come
//! later: a flow's events, made by one worker and after a move by another one, go to the same third. Whoever has reserved places fills them
//! at once; the highest bit of a pair says in which turn that was.

use std::sync::Arc;

use crate::atomic::{Apart, AtomicU64, Ordering};

/// Words that are sent have this bit free.
pub(crate) const TURN_BIT: u64 = 1 << 63;

type Slot = [AtomicU64; 2];

/// Pairs in a cache line.
const PAIRS_OF_LINE: u64 = 4;
/// How many pairs ahead of the one that is taken a line is asked for.
const AHEAD: u64 = 8 * PAIRS_OF_LINE;

#[derive(Debug)]
struct Inner {
    slots: Box<[Slot]>,
    /// How many places were reserved, and how many were taken; each runs freely.
    reserved: Apart<AtomicU64>,
    taken: Apart<AtomicU64>,
}

/// A producer's end.
#[derive(Debug, Clone)]
pub(crate) struct Producer {
    inner: Arc<Inner>,
    /// What was last seen of the consumer's.
    taken: u64,
}

/// The consumer's end.
#[derive(Debug)]
pub(crate) struct Consumer {
    inner: Arc<Inner>,
    taken: u64,
}

/// A ring with room for so many pairs, a power of two.
pub(crate) fn ring(room: usize) -> (Producer, Consumer) {
    assert!(room.is_power_of_two());
    let slot = |_| [AtomicU64::new(0), AtomicU64::new(0)];
    let inner = Arc::new(Inner {
        slots: (0..room).map(slot).collect(),
        reserved: Apart(AtomicU64::new(0)),
        taken: Apart(AtomicU64::new(0)),
    });
    let consumer = Consumer {
        inner: inner.clone(),
        taken: 0,
    };
    (Producer { inner, taken: 0 }, consumer)
}

impl Inner {
    fn room(&self) -> u64 {
        self.slots.len() as u64
    }

    #[inline]
    fn slot(&self, at: u64) -> &Slot {
        // A power of two.
        &self.slots[at as usize & (self.slots.len() - 1)]
    }

    /// Asks for the line of a place, which will be read.
    #[inline]
    fn will_read(&self, at: u64) {
        millrace_shm::sys::will_read(std::ptr::from_ref(self.slot(at)).cast());
    }

    /// The mark of a place, by how many times the ring has been filled.
    #[inline]
    fn mark(&self, at: u64) -> u64 {
        match at & self.room() {
            0 => TURN_BIT,
            _ => 0,
        }
    }
}

impl Producer {
    /// How many places there are now, if nobody else takes them; or fewer, but not less than what is wanted, if there are as many.
    #[inline]
    pub(crate) fn room(&mut self, wanted: u64) -> u64 {
        let reserved = self.inner.reserved.0.load(Ordering::Relaxed);
        self.room_after(reserved, wanted)
    }

    /// The same when so many were reserved.
    #[inline]
    fn room_after(&mut self, reserved: u64, wanted: u64) -> u64 {
        // What is older than what is known of the consumer is nobody's number any more.
        let room = |taken: u64| {
            self.inner
                .room()
                .saturating_sub(reserved.saturating_sub(taken))
        };
        let known = room(self.taken);
        if known >= wanted {
            return known;
        }
        // Acquire: pairs with the consumer's release; it has read the places.
        let taken = self.inner.taken.0.load(Ordering::Acquire);
        let now = room(taken);
        self.taken = taken;
        now
    }

    /// Reserves so many places at most; each is to be filled. The first of them, and how many they are.
    #[inline]
    pub(crate) fn reserve(&mut self, most: u64) -> (u64, u64) {
        let mut first = self.inner.reserved.0.load(Ordering::Relaxed);
        loop {
            let count = self.room_after(first, most).min(most);
            if count == 0 {
                return (first, 0);
            }
            // AcqRel: who reserves later saw all that we saw.
            let reserved = self.inner.reserved.0.compare_exchange_weak(
                first,
                first + count,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            match reserved {
                Ok(_) => return (first, count),
                Err(now) => first = now,
            }
        }
    }

    /// Fills a place.
    #[inline]
    pub(crate) fn fill(&self, at: u64, [first, second]: [u64; 2]) {
        let slot = self.inner.slot(at);
        slot[1].store(second, Ordering::Relaxed);
        // Release: pairs with the consumer's acquire; the other word is visible after it.
        slot[0].store(first & !TURN_BIT | self.inner.mark(at), Ordering::Release);
    }
}

impl Consumer {
    /// Whether a pair is there.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        let first = self.inner.slot(self.taken)[0].load(Ordering::Acquire);
        first & TURN_BIT == self.inner.mark(self.taken)
    }

    /// How many places there are.
    pub(crate) fn room(&self) -> u64 {
        self.inner.room()
    }

    /// Whether nothing is there, and nobody has reserved a place.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.reserved() == self.taken
    }

    /// How many places were ever reserved.
    #[inline]
    pub(crate) fn reserved(&self) -> u64 {
        // Acquire: pairs with `Producer::reserve`.
        self.inner.reserved.0.load(Ordering::Acquire)
    }

    /// How many were ever taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes so many at most.
    #[inline]
    pub(crate) fn take(&mut self, most: u64, mut each: impl FnMut([u64; 2])) {
        let begin = self.taken;
        while self.taken - begin < most {
            let slot = self.inner.slot(self.taken);
            // Acquire: pairs with the producer's release.
            let first = slot[0].load(Ordering::Acquire);
            if first & TURN_BIT != self.inner.mark(self.taken) {
                break;
            }
            if self.taken.is_multiple_of(PAIRS_OF_LINE) {
                self.inner.will_read(self.taken + AHEAD);
            }
            each([first & !TURN_BIT, slot[1].load(Ordering::Relaxed)]);
            self.taken += 1;
        }
        if self.taken != begin {
            // Release: pairs with the producers' acquire; the places were read before.
            self.inner.taken.0.store(self.taken, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pairs_come_in_the_order_of_their_places_and_a_full_ring_has_none() {
        let (mut producer, mut consumer) = ring(4);
        let mut other = producer.clone();
        let mut next = 0;
        for turn in 0..5u64 {
            let (first, count) = producer.reserve(3);
            assert_eq!((first, count), (turn * 4, 3));
            let (last, count) = other.reserve(3);
            assert_eq!((last, count), (turn * 4 + 3, 1));
            assert_eq!(producer.reserve(1).1, 0);
            other.fill(last, [last, 7]);
            assert!(!consumer.is_ready(), "the places before it are not filled");
            assert!(!consumer.is_empty(), "they are reserved");
            for at in first..first + 3 {
                producer.fill(at, [at, 7]);
            }
            for most in [3, 9] {
                consumer.take(most, |pair| {
                    assert_eq!(pair, [next, 7]);
                    next += 1;
                });
            }
        }
        assert_eq!((next, consumer.taken(), consumer.reserved()), (20, 20, 20));
        assert!(consumer.is_empty());
    }
}
