//! A packed ring, from the device's side.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use millrace_wire::virtio::{
    DESC_AVAIL, DESC_USED, DESC_WRITE, Descriptor, EVENT_DESCRIPTOR, EVENT_DISABLE, EVENT_ENABLE,
    WRAP, has_passed,
};

use super::Ring;
use crate::memory::Memory;
use crate::virtio::error::Malformed;
use crate::virtio::inflight::PackedRecord;
use crate::virtio::position::Position;
use crate::virtio::sys::{Descriptors, Event};
use crate::virtio::{Places, Taken};

/// A packed ring. Its cursors are private.
#[derive(Debug)]
pub(crate) struct Packed {
    descriptors: Descriptors,
    driver: Event,
    device: Event,
    size: u16,
    /// The next descriptor to take.
    cursor: Position,
    /// How many from there on are known to be available.
    ready: u16,
    /// Whether no more than that were looked for.
    limited: bool,
    taken: Vec<Taken>,
    /// How many descriptors those have: chains do not share any, so that these are no more than the ring's.
    taken_descriptors: u16,
    /// Where the next chain is given back.
    used: Position,
    /// The same, when the driver was last asked whether it wants to be notified.
    asked: u16,
    record: Option<PackedRecord>,
}

impl Packed {
    /// A ring that goes on at a position, or where its record says. None: as for split ones, but that any size is good.
    pub(crate) fn new(
        memory: &Arc<Memory>,
        places: &Places,
        size: u16,
        position: u16,
        record: Option<PackedRecord>,
    ) -> Option<Packed> {
        let descriptors = Descriptors::new(memory, places.descriptors, size)?;
        let flags = |slot: u16| (descriptors.second(slot, Ordering::Acquire) >> 48) as u16;
        let give = |position: Position, taken, order| {
            let word = Packed::used_word(position, taken);
            descriptors.set_second(position.slot, word, order);
        };
        let used = match &record {
            Some(record) => record.begin(Position::from_word(position), size, flags, give)?,
            None => Position::from_word(position),
        };
        if used.slot >= size {
            return None;
        }
        Some(Packed {
            driver: Event::new(memory, places.driver)?,
            device: Event::new(memory, places.device)?,
            descriptors,
            size,
            cursor: used,
            ready: 0,
            limited: false,
            taken: Vec::with_capacity(usize::from(size)),
            taken_descriptors: 0,
            used,
            asked: used.slot,
            record,
        })
    }

    #[inline]
    fn is_available(&self, position: Position) -> bool {
        // Relaxed: whoever goes by it has a fence behind.
        let flags = (self.descriptors.second(position.slot, Ordering::Relaxed) >> 48) as u16;
        position.is_available(flags)
    }

    #[inline]
    fn get(&self, slot: u16) -> Descriptor {
        Descriptor::parse_packed(self.descriptors.get(slot))
    }

    /// A chain that is given back at a position, as the driver finds it.
    #[inline]
    fn used_word(position: Position, taken: Taken) -> u64 {
        let wrap = if position.wrap {
            DESC_AVAIL | DESC_USED
        } else {
            0
        };
        let written = if taken.length > 0 { DESC_WRITE } else { 0 };
        let descriptor = Descriptor {
            address: 0,
            length: taken.length,
            flags: wrap | written,
            link: taken.number,
        };
        descriptor.emit_packed()[1]
    }

    /// The first one last: the driver sees all or none, and does not come for each of them.
    #[inline]
    fn publish_together(&mut self) {
        let begin = self.used;
        let mut first = 0;
        for (number, taken) in self.taken.iter().enumerate() {
            let word = Packed::used_word(self.used, *taken);
            if number == 0 {
                first = word;
            } else {
                // Relaxed: the driver looks at the first one's flags before.
                let slot = self.used.slot;
                self.descriptors.set_second(slot, word, Ordering::Relaxed);
            }
            self.used = self.used.after(taken.descriptors, self.size);
        }
        // Release: pairs with the driver's acquire of the same flags; the others, and bytes in buffers, are visible after it.
        self.descriptors
            .set_second(begin.slot, first, Ordering::Release);
    }

    /// Notes what is about to be given back, for whoever comes after a death in the midst of it.
    fn note(&self, record: &PackedRecord) {
        let mut position = self.used;
        for taken in &self.taken {
            record.note(position.slot, *taken);
            position = position.after(taken.descriptors, self.size);
        }
        record.intend(self.used, position);
    }
}

impl Ring for Packed {
    #[inline]
    fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    fn refresh(&mut self, most: u16) -> Result<u16, Malformed> {
        let most = most.min(self.size - self.taken_descriptors());
        let mut position = self.cursor;
        let mut count = 0;
        while count < most && self.is_available(position) {
            position = position.after(1, self.size);
            count += 1;
        }
        // Acquire: pairs with the driver's release of the flags; descriptors and buffers are visible after it, those further ones of the
        // last chain as well, whose flags were written before those of its first.
        fence(Ordering::Acquire);
        self.ready = count;
        self.limited = count == most && most > 0;
        Ok(count)
    }

    #[inline]
    fn is_limited(&self) -> bool {
        self.limited
    }

    #[inline]
    fn head(&mut self) -> Result<Option<Descriptor>, Malformed> {
        if self.ready == 0 {
            return Ok(None);
        }
        Ok(Some(self.get(self.cursor.slot)))
    }

    #[inline]
    fn ahead(&self, chains: u16) -> Descriptor {
        self.get(self.cursor.after(chains, self.size).slot)
    }

    fn next(&self, _descriptor: Descriptor, step: u16) -> Result<Descriptor, Malformed> {
        if step >= self.size - self.taken_descriptors() {
            return Err(Malformed::Endless { size: self.size });
        }
        Ok(self.get(self.cursor.after(step, self.size).slot))
    }

    fn next_in_table(_descriptor: Descriptor, count: u16, entries: u32) -> Option<u16> {
        (u32::from(count) < entries).then_some(count)
    }

    fn parse(words: [u64; 2], writes: bool) -> Descriptor {
        // No flag has a meaning in a table but for the direction, and that DPDK 22.11 has wrong in tables to the device.
        Descriptor {
            flags: if writes { DESC_WRITE } else { 0 },
            ..Descriptor::parse_packed(words)
        }
    }

    #[inline]
    fn take(&mut self, last: Descriptor, descriptors: u16, length: u32) {
        self.taken.push(Taken {
            number: last.link,
            descriptors,
            length,
        });
        self.taken_descriptors += descriptors;
        self.cursor = self.cursor.after(descriptors, self.size);
        self.ready = self.ready.saturating_sub(descriptors);
    }

    #[inline]
    fn taken(&self) -> usize {
        self.taken.len()
    }

    fn taken_descriptors(&self) -> u16 {
        self.taken_descriptors
    }

    fn wrote(&mut self, chain: usize, length: u32) {
        self.taken[chain].length = length;
    }

    fn put_back(&mut self, taken: usize) {
        for taken in self.taken.drain(taken..) {
            self.taken_descriptors -= taken.descriptors;
        }
        self.cursor = self.used.after(self.taken_descriptors, self.size);
        // They are looked at again.
        self.ready = 0;
    }

    #[inline]
    fn publish(&mut self) {
        if let Some(record) = &self.record {
            self.note(record);
        }
        self.publish_together();
        if let Some(record) = &self.record {
            record.settle(self.used);
        }
        self.taken.clear();
        self.taken_descriptors = 0;
    }

    #[inline]
    fn call_is_wanted(&mut self) -> bool {
        let new = self.used.slot;
        let mut old = std::mem::replace(&mut self.asked, new);
        let (at, flags) = self.driver.get();
        if flags & 3 != EVENT_DESCRIPTOR {
            return flags & 3 != EVENT_DISABLE;
        }
        // Positions of one turn before are below zero.
        let mut event = at & !WRAP;
        if new <= old {
            old = old.wrapping_sub(self.size);
        }
        if self.used.wrap != (at & WRAP != 0) {
            event = event.wrapping_sub(self.size);
        }
        has_passed(event, new, old)
    }

    fn want_kick(&mut self, wanted: bool) {
        self.device
            .set(0, if wanted { EVENT_ENABLE } else { EVENT_DISABLE });
    }

    fn has_more(&self) -> bool {
        self.taken_descriptors() < self.size && self.is_available(self.cursor)
    }

    fn position(&self) -> u32 {
        let word = u32::from(self.used.word());
        word | word << 16
    }
}
