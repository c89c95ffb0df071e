//! A split ring, from the driver's side.

use std::sync::Arc;

use millrace_wire::virtio::{
    DESC_NEXT, DESC_WRITE, Descriptor, RING_EVENT_IDX, RING_NO_NOTIFY, has_passed,
};

use super::{Part, Ring};
use crate::memory::Memory;
use crate::virtio::Places;
use crate::virtio::error::Malformed;
use crate::virtio::sys::{Available, Descriptors, Used};

/// A split ring. Its cursors are private.
#[derive(Debug)]
pub(crate) struct Split {
    descriptors: Descriptors,
    available: Available,
    used: Used,
    size: u16,
    has_events: bool,
    /// The available ring's index, with what is not published.
    given: u16,
    /// The same, when the device was last asked whether it wants to be notified.
    asked: u16,
    /// The next used entry.
    taken: u16,
    /// Up to where there are some.
    known: u16,
}

impl Ring for Split {
    fn new(memory: &Arc<Memory>, places: &Places, size: u16, features: u64) -> Option<Split> {
        Some(Split {
            descriptors: Descriptors::new(memory, places.descriptors, size)?,
            available: Available::new(memory, places.driver, size)?,
            used: Used::new(memory, places.device, size)?,
            size,
            has_events: features & RING_EVENT_IDX != 0,
            given: 0,
            asked: 0,
            taken: 0,
            known: 0,
        })
    }

    #[inline]
    fn post(&mut self, parts: &[Part], writes: bool) {
        let write = if writes { DESC_WRITE } else { 0 };
        for (at, part) in parts.iter().enumerate() {
            let next = parts.get(at + 1);
            let descriptor = Descriptor {
                address: part.address,
                length: part.length,
                flags: write | if next.is_some() { DESC_NEXT } else { 0 },
                link: next.map_or(0, |next| next.number),
            };
            self.descriptors.set(part.number, descriptor.emit_split());
        }
        self.available.set_entry(self.given, parts[0].number);
        self.given = self.given.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) {
        self.available.set_index(self.given);
    }

    #[inline]
    fn pop(&mut self, counts: &[u16]) -> Result<Option<(u16, u32)>, Malformed> {
        if self.taken == self.known {
            let says = self.used.index();
            let there = says.wrapping_sub(self.taken);
            if there > self.given.wrapping_sub(self.taken) {
                return Err(Malformed::Index {
                    says,
                    ours: self.taken,
                    size: self.size,
                });
            }
            self.known = says;
            if there == 0 {
                return Ok(None);
            }
        }
        let (number, length) = self.used.entry(self.taken);
        let wrong = Malformed::Number {
            number,
            size: self.size,
        };
        let count = usize::try_from(number).ok().and_then(|at| counts.get(at));
        if count.is_none_or(|count| *count == 0) {
            return Err(wrong);
        }
        self.taken = self.taken.wrapping_add(1);
        // Less than the ring's size.
        Ok(Some((number as u16, length)))
    }

    fn has_more(&self) -> bool {
        self.used.index() != self.taken
    }

    #[inline]
    fn kick_is_wanted(&mut self) -> bool {
        let old = std::mem::replace(&mut self.asked, self.given);
        if self.has_events {
            has_passed(self.used.event(), self.given, old)
        } else {
            self.used.flags() & RING_NO_NOTIFY == 0
        }
    }

    fn want_call(&mut self, wanted: bool) {
        // With events, one that is long past is as good as none.
        if self.has_events {
            self.available.set_flags(0);
            if wanted {
                self.available.set_event(self.taken);
            }
        } else {
            let flags = if wanted { 0 } else { RING_NO_NOTIFY };
            self.available.set_flags(flags);
        }
    }

    fn base(&self) -> u32 {
        u32::from(self.used.index())
    }
}
