//! A split ring, from the device's side.

use std::sync::Arc;

use millrace_wire::virtio::{DESC_NEXT, Descriptor, RING_EVENT_IDX, RING_NO_NOTIFY, has_passed};

use super::Ring;
use crate::memory::Memory;
use crate::virtio::error::Malformed;
use crate::virtio::inflight::SplitRecord;
use crate::virtio::sys::{Available, Descriptors, Used};
use crate::virtio::{Places, Taken};

/// A split ring. Its cursors are private: what the driver says is compared with them.
#[derive(Debug)]
pub(crate) struct Split {
    descriptors: Descriptors,
    available: Available,
    used: Used,
    size: u16,
    has_events: bool,
    /// The next entry to take.
    cursor: u16,
    /// How many from there on are known to be there.
    ready: u16,
    /// The chain at the cursor, once it was looked at.
    number: u16,
    taken: Vec<Taken>,
    /// The used ring's index.
    index: u16,
    /// The same, when the driver was last asked whether it wants to be notified.
    asked: u16,
    record: Option<SplitRecord>,
}

impl Split {
    /// A ring that goes on where its used index says. None: it is not inside the memory, not aligned, or of a size that cannot be.
    pub(crate) fn new(
        memory: &Arc<Memory>,
        places: &Places,
        size: u16,
        features: u64,
        record: Option<SplitRecord>,
    ) -> Option<Split> {
        let used = Used::new(memory, places.device, size)?;
        // Everything before was given back, and nothing behind: chains go back in order.
        let index = used.index();
        if let Some(record) = &record {
            record.set_used(index);
        }
        Some(Split {
            descriptors: Descriptors::new(memory, places.descriptors, size)?,
            available: Available::new(memory, places.driver, size)?,
            used,
            size,
            has_events: features & RING_EVENT_IDX != 0,
            cursor: index,
            ready: 0,
            number: 0,
            taken: Vec::with_capacity(usize::from(size)),
            index,
            asked: index,
            record,
        })
    }
}

impl Ring for Split {
    #[inline]
    fn size(&self) -> u16 {
        self.size
    }

    #[inline]
    fn refresh(&mut self, _most: u16) -> Result<u16, Malformed> {
        let says = self.available.index();
        let count = says.wrapping_sub(self.cursor);
        // All chains that are not with us are with the driver.
        if usize::from(count) + self.taken.len() > usize::from(self.size) {
            return Err(Malformed::Index {
                says,
                ours: self.cursor,
                size: self.size,
            });
        }
        self.ready = count;
        Ok(count)
    }

    #[inline]
    fn is_limited(&self) -> bool {
        false
    }

    #[inline]
    fn head(&mut self) -> Result<Option<Descriptor>, Malformed> {
        if self.ready == 0 {
            return Ok(None);
        }
        self.number = self.available.entry(self.cursor);
        self.get(self.number).map(Some)
    }

    #[inline]
    fn ahead(&self, chains: u16) -> Descriptor {
        let number = self.available.entry(self.cursor.wrapping_add(chains));
        self.get(number).unwrap_or_default()
    }

    fn next(&self, descriptor: Descriptor, _step: u16) -> Result<Descriptor, Malformed> {
        self.get(descriptor.link)
    }

    fn next_in_table(descriptor: Descriptor, _count: u16, _entries: u32) -> Option<u16> {
        (descriptor.flags & DESC_NEXT != 0).then_some(descriptor.link)
    }

    fn parse(words: [u64; 2], _writes: bool) -> Descriptor {
        Descriptor::parse_split(words)
    }

    #[inline]
    fn take(&mut self, _last: Descriptor, descriptors: u16, length: u32) {
        self.taken.push(Taken {
            number: self.number,
            descriptors,
            length,
        });
        self.cursor = self.cursor.wrapping_add(1);
        self.ready -= 1;
    }

    #[inline]
    fn taken(&self) -> usize {
        self.taken.len()
    }

    fn taken_descriptors(&self) -> u16 {
        // Chains do not share descriptors, unless the driver does what it must not.
        self.taken
            .iter()
            .fold(0, |sum: u16, taken| sum.saturating_add(taken.descriptors))
    }

    fn wrote(&mut self, chain: usize, length: u32) {
        self.taken[chain].length = length;
    }

    fn put_back(&mut self, taken: usize) {
        // At most as many as the ring has.
        let count = (self.taken.len() - taken) as u16;
        self.taken.truncate(taken);
        self.cursor = self.cursor.wrapping_sub(count);
        self.ready += count;
    }

    #[inline]
    fn publish(&mut self) {
        for taken in &self.taken {
            self.used.set_entry(self.index, taken.number, taken.length);
            self.index = self.index.wrapping_add(1);
        }
        self.taken.clear();
        self.used.set_index(self.index);
        if let Some(record) = &self.record {
            record.set_used(self.index);
        }
    }

    #[inline]
    fn call_is_wanted(&mut self) -> bool {
        let old = std::mem::replace(&mut self.asked, self.index);
        if self.has_events {
            has_passed(self.available.event(), self.index, old)
        } else {
            self.available.flags() & RING_NO_NOTIFY == 0
        }
    }

    fn want_kick(&mut self, wanted: bool) {
        // With events the flags must be zero, and an event that is long past is as good as none: it comes again after 65 536 entries.
        if self.has_events {
            self.used.set_flags(0);
            if wanted {
                self.used.set_event(self.cursor);
            }
        } else {
            self.used.set_flags(if wanted { 0 } else { RING_NO_NOTIFY });
        }
    }

    fn has_more(&self) -> bool {
        self.available.index() != self.cursor
    }

    fn position(&self) -> u32 {
        u32::from(self.index)
    }
}

impl Split {
    #[inline]
    fn get(&self, number: u16) -> Result<Descriptor, Malformed> {
        if number >= self.size {
            return Err(Malformed::Number {
                number: u32::from(number),
                size: self.size,
            });
        }
        Ok(Descriptor::parse_split(self.descriptors.get(number)))
    }
}
