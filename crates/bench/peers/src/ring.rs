//! A ring of one producer and one consumer, as small as it can be: a cursor of each in a cache line of its own, and slots.
//!
//! Both ends trust each other. There is no owner, no death, no policy, and nobody is woken.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};

use crate::head::{HEAD_BYTES, Head};
use crate::sys::Mapping;

/// Two lines each, as processors fetch them in pairs.
const LINE: usize = 128;
const SLOTS_AT: usize = 2 * LINE;

/// The memory of a ring; rings can stand behind each other.
pub(crate) fn ring_bytes(bytes: usize, depth: usize) -> usize {
    (SLOTS_AT + stride(bytes) * depth).next_multiple_of(sys_page())
}

/// The distance of two slots: whole cache lines.
fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(HEAD_BYTES)
}

fn sys_page() -> usize {
    rustix::param::page_size()
}

/// What both ends know of a ring.
struct Place {
    mapping: Mapping,
    stride: usize,
    mask: u64,
}

impl Place {
    fn new(mapping: Mapping, bytes: usize, depth: usize) -> Result<Place> {
        ensure!(depth.is_power_of_two(), "the depth is a power of two");
        ensure!(
            ring_bytes(bytes, depth) <= mapping.bytes(),
            "the memory is too small"
        );
        Ok(Place {
            mapping,
            stride: stride(bytes),
            mask: depth as u64 - 1,
        })
    }

    /// How many messages were published: the producer's cursor.
    #[inline]
    fn published(&self) -> &AtomicU64 {
        self.mapping.word(0)
    }

    /// How many were released: the consumer's.
    #[inline]
    fn released(&self) -> &AtomicU64 {
        self.mapping.word(LINE)
    }

    /// Where the head of a message is.
    #[inline]
    fn slot(&self, number: u64) -> usize {
        SLOTS_AT + (number & self.mask) as usize * self.stride
    }
}

/// The producer's end.
pub(crate) struct Producer {
    place: Place,
    next: u64,
    /// What it last saw of the consumer's cursor.
    released: u64,
}

/// The consumer's end.
pub(crate) struct Consumer {
    place: Place,
    next: u64,
    /// What it last saw of the producer's cursor.
    published: u64,
}

impl Producer {
    pub(crate) fn attach(mapping: Mapping, bytes: usize, depth: usize) -> Result<Producer> {
        Ok(Producer {
            place: Place::new(mapping, bytes, depth)?,
            next: 0,
            released: 0,
        })
    }

    /// False: the ring is full.
    #[inline]
    pub(crate) fn push(&mut self, head: &Head) -> bool {
        if self.next - self.released > self.place.mask {
            // Acquire: pairs with the Release in `Consumer::pop`; the consumer has read the slot.
            self.released = self.place.released().load(Ordering::Acquire);
            if self.next - self.released > self.place.mask {
                return false;
            }
        }
        self.place
            .mapping
            .write_head(self.place.slot(self.next), head);
        self.next += 1;
        true
    }

    #[inline]
    pub(crate) fn publish(&mut self) {
        // Release: pairs with the Acquire in `Consumer::pop`; the slots are visible after it.
        self.place.published().store(self.next, Ordering::Release);
    }
}

impl Consumer {
    pub(crate) fn attach(mapping: Mapping, bytes: usize, depth: usize) -> Result<Consumer> {
        Ok(Consumer {
            place: Place::new(mapping, bytes, depth)?,
            next: 0,
            published: 0,
        })
    }

    /// Hands over what there is, so many messages at most, and gives the slots back.
    #[inline]
    pub(crate) fn pop(&mut self, most: usize, take: &mut impl FnMut(&Head)) -> usize {
        if self.published == self.next {
            // Acquire: pairs with the Release in `Producer::publish`; the slots up to it can be read.
            self.published = self.place.published().load(Ordering::Acquire);
        }
        let taken = (self.published - self.next).min(most as u64);
        if taken == 0 {
            return 0;
        }
        for number in self.next..self.next + taken {
            take(&self.place.mapping.read_head(self.place.slot(number)));
        }
        self.next += taken;
        // Release: pairs with the Acquire in `Producer::push`; the slots were read before.
        self.place.released().store(self.next, Ordering::Release);
        taken as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn messages_come_out_in_order_and_a_full_ring_takes_no_more() {
        let bytes = ring_bytes(100, 4);
        let memory = sys::memory(bytes).unwrap();
        let mapping = || Mapping::of(&memory, 0, bytes).unwrap();
        let mut producer = Producer::attach(mapping(), 100, 4).unwrap();
        let mut consumer = Consumer::attach(mapping(), 100, 4).unwrap();
        let mut expected = 0;
        for number in 0..4 {
            assert!(producer.push(&Head::new(number, 0, 0)));
        }
        assert!(!producer.push(&Head::new(4, 0, 0)));
        let mut pop = |consumer: &mut Consumer, most| {
            consumer.pop(most, &mut |head| {
                assert_eq!((head.number(), head.is_whole()), (expected, true));
                expected += 1;
            })
        };
        assert_eq!(pop(&mut consumer, 9), 0, "nothing is published");
        producer.publish();
        assert_eq!(pop(&mut consumer, 3), 3);
        assert!(producer.push(&Head::new(4, 0, 0)));
        producer.publish();
        assert_eq!(pop(&mut consumer, 9), 1);
        assert_eq!(pop(&mut consumer, 9), 1);
    }
}
