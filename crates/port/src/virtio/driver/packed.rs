//! A packed ring, from the driver's side.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_wire::virtio::{
    DESC_AVAIL, DESC_NEXT, DESC_USED, DESC_WRITE, Descriptor, EVENT_DESCRIPTOR, EVENT_DISABLE,
    EVENT_ENABLE, WRAP, has_passed,
};

use super::{Part, Ring};
use crate::memory::Memory;
use crate::virtio::Places;
use crate::virtio::error::Malformed;
use crate::virtio::position::Position;
use crate::virtio::sys::{Descriptors, Event};

/// A packed ring. Its cursors are private.
#[derive(Debug)]
pub(crate) struct Packed {
    descriptors: Descriptors,
    driver: Event,
    device: Event,
    size: u16,
    /// Where the next chain goes.
    given: Position,
    /// The same, when the device was last asked whether it wants to be notified.
    asked: u16,
    /// The first descriptor of what is not published, and its second word: written last, it makes all of it available.
    first: Option<(u16, u64)>,
    /// Where the next chain comes back.
    taken: Position,
}

impl Ring for Packed {
    fn new(memory: &Arc<Memory>, places: &Places, size: u16, _features: u64) -> Option<Packed> {
        Some(Packed {
            descriptors: Descriptors::new(memory, places.descriptors, size)?,
            driver: Event::new(memory, places.driver)?,
            device: Event::new(memory, places.device)?,
            size,
            given: Position::BEGIN,
            asked: 0,
            first: None,
            taken: Position::BEGIN,
        })
    }

    #[inline]
    fn post(&mut self, parts: &[Part], writes: bool) {
        let write = if writes { DESC_WRITE } else { 0 };
        let id = parts[0].number;
        for (at, part) in parts.iter().enumerate() {
            let next = if at + 1 < parts.len() { DESC_NEXT } else { 0 };
            let turn = if self.given.wrap {
                DESC_AVAIL
            } else {
                DESC_USED
            };
            let descriptor = Descriptor {
                address: part.address,
                length: part.length,
                flags: write | next | turn,
                link: id,
            };
            let [address, second] = descriptor.emit_packed();
            let slot = self.given.slot;
            self.descriptors.set_first(slot, address);
            if self.first.is_none() {
                self.first = Some((slot, second));
            } else {
                // Relaxed: the device comes to it by the first one.
                self.descriptors.set_second(slot, second, Ordering::Relaxed);
            }
            self.given = self.given.after(1, self.size);
        }
    }

    #[inline]
    fn publish(&mut self) {
        if let Some((slot, second)) = self.first.take() {
            // Release: pairs with the device's acquire of the same flags; the others, and buffers, are visible after it.
            self.descriptors.set_second(slot, second, Ordering::Release);
        }
    }

    #[inline]
    fn pop(&mut self, counts: &[u16]) -> Result<Option<(u16, u32)>, Malformed> {
        // Acquire: pairs with the device's release of the same flags; bytes in buffers are visible after it.
        let word = self.descriptors.second(self.taken.slot, Ordering::Acquire);
        let descriptor = Descriptor::parse_packed([0, word]);
        if !self.taken.is_used(descriptor.flags) {
            return Ok(None);
        }
        let number = descriptor.link;
        let count = counts.get(usize::from(number)).copied().unwrap_or_default();
        if count == 0 {
            return Err(Malformed::Number {
                number: u32::from(number),
                size: self.size,
            });
        }
        self.taken = self.taken.after(count, self.size);
        Ok(Some((number, descriptor.length)))
    }

    fn has_more(&self) -> bool {
        let word = self.descriptors.second(self.taken.slot, Ordering::Acquire);
        self.taken.is_used((word >> 48) as u16)
    }

    #[inline]
    fn kick_is_wanted(&mut self) -> bool {
        let new = self.given.slot;
        let mut old = std::mem::replace(&mut self.asked, new);
        let (at, flags) = self.device.get();
        if flags & 3 != EVENT_DESCRIPTOR {
            return flags & 3 != EVENT_DISABLE;
        }
        // Positions of one turn before are below zero.
        let mut event = at & !WRAP;
        if new <= old {
            old = old.wrapping_sub(self.size);
        }
        if self.given.wrap != (at & WRAP != 0) {
            event = event.wrapping_sub(self.size);
        }
        has_passed(event, new, old)
    }

    fn want_call(&mut self, wanted: bool) {
        let flags = if wanted { EVENT_ENABLE } else { EVENT_DISABLE };
        self.driver.set(0, flags);
    }

    fn base(&self) -> u32 {
        let word = u32::from(self.taken.word());
        word | word << 16
    }
}
