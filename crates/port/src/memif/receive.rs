//! A queue that packets come from: the server's end of a ring from client to server, or the client's of one to it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use millrace_wire::memif::{Descriptor, FLAG_NEXT};

use super::error::Malformed;
use super::sys::Ring;
use crate::burst::{Burst, PACKET_BYTES_MAX};
use crate::counters::{Cause, Tally};
use crate::limits::{BUFFERS_MAX, BUFFERS_PER_CALL, DROP_BUFFERS};
use crate::memory::{Memory, Place, stride};

/// So many buffers are looked at before the first is used, so that their lines come together and not one after another.
pub(super) const AHEAD: u16 = 32;

/// Whose buffers a ring's descriptors are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Buffers {
    /// The peer's: a descriptor says where, and is checked.
    Peer,
    /// Ours, one for each descriptor, whatever the descriptor says.
    Own {
        /// Where those of this ring begin in region 0.
        first: u32,
        /// The size of each.
        bytes: u32,
    },
}

impl Buffers {
    /// The buffer of our own at a cursor.
    #[inline]
    pub(super) fn own(first: u32, bytes: u32, slot: u16) -> Place {
        Place {
            region: 0,
            offset: first + u32::from(slot) * stride(bytes),
            length: bytes,
        }
    }
}

/// A packet in a ring.
enum Found {
    /// None is there, or not all of it.
    Nothing,
    One(Place),
    /// Its places are in `Receiver::chain`.
    Chain(u64),
}

/// A queue.
#[derive(Debug)]
pub(super) struct Receiver {
    ring: Ring,
    memory: Arc<Memory>,
    buffers: Buffers,
    /// Where the next packet begins. Private, as is everything here: what the peer says is compared with it.
    cursor: u16,
    /// Up to where descriptors were given back.
    released: u16,
    /// Up to where packets' lines were asked for.
    asked: u16,
    chain: Vec<Place>,
    /// Descriptors of chains that were looked at in this call, and what was dropped.
    looks: u32,
    /// By what the peer wakes us.
    bell: OwnedFd,
}

impl Receiver {
    pub(super) fn new(ring: Ring, buffers: Buffers, bell: OwnedFd) -> Receiver {
        let memory = ring.memory().clone();
        let mut receiver = Receiver {
            chain: Vec::with_capacity(usize::from(ring.size())),
            ring,
            memory,
            buffers,
            cursor: 0,
            looks: 0,
            released: 0,
            asked: 0,
            bell,
        };
        receiver.ring.want_interrupt(false);
        if let Buffers::Own { .. } = buffers {
            receiver.released = 0u16.wrapping_sub(receiver.ring.size());
            receiver.release();
        }
        receiver
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    pub(super) fn want_interrupt(&self, wanted: bool) {
        self.ring.want_interrupt(wanted);
    }

    /// Whether the peer says that there is more.
    pub(super) fn has_more(&self) -> bool {
        self.published() != self.cursor
    }

    #[inline]
    fn published(&self) -> u16 {
        match self.buffers {
            Buffers::Peer => self.ring.head(),
            Buffers::Own { .. } => self.ring.tail(),
        }
    }

    /// How many descriptors are there to read, if that can be.
    #[inline]
    fn available(&self) -> Result<u16, Malformed> {
        let says = self.published();
        let count = says.wrapping_sub(self.cursor);
        // Of our own buffers, all that are not with us are with the peer.
        if count > self.ring.size() {
            return Err(Malformed::Cursor {
                says,
                ours: self.cursor,
                size: self.ring.size(),
            });
        }
        Ok(count)
    }

    /// Where the packet's part is that a descriptor tells of.
    #[inline]
    fn place(&self, cursor: u16, descriptor: Descriptor) -> Result<Place, Malformed> {
        let place = match self.buffers {
            Buffers::Peer => Place {
                region: descriptor.region,
                offset: descriptor.offset,
                length: descriptor.length,
            },
            Buffers::Own { first, bytes } => {
                let slot = cursor & (self.ring.size() - 1);
                let buffer = Buffers::own(first, bytes, slot);
                if descriptor.length > bytes {
                    return Err(Malformed::Length {
                        length: descriptor.length,
                        buffer: bytes,
                    });
                }
                Place {
                    length: descriptor.length,
                    ..buffer
                }
            }
        };
        if !self.memory.contains(place) {
            return Err(Malformed::Place {
                region: place.region,
                offset: place.offset,
                length: place.length,
            });
        }
        Ok(place)
    }

    /// Finds the packet at the cursor, of so many descriptors that are there, and moves beyond it.
    #[inline]
    fn next(&mut self, available: &mut u16) -> Result<Found, Malformed> {
        if *available == 0 {
            return Ok(Found::Nothing);
        }
        let descriptor = self.ring.descriptor(self.cursor);
        if descriptor.flags & FLAG_NEXT != 0 {
            return self.next_chain(available);
        }
        let place = self.place(self.cursor, descriptor)?;
        self.cursor = self.cursor.wrapping_add(1);
        *available -= 1;
        Ok(Found::One(place))
    }

    fn next_chain(&mut self, available: &mut u16) -> Result<Found, Malformed> {
        self.chain.clear();
        let mut bytes = 0;
        for index in 0..*available {
            let cursor = self.cursor.wrapping_add(index);
            let descriptor = self.ring.descriptor(cursor);
            let place = self.place(cursor, descriptor)?;
            bytes += u64::from(place.length);
            self.chain.push(place);
            self.looks += 1;
            if descriptor.flags & FLAG_NEXT == 0 {
                self.cursor = cursor.wrapping_add(1);
                *available -= index + 1;
                return Ok(Found::Chain(bytes));
            }
            if u32::from(index) + 1 >= BUFFERS_MAX {
                return Err(Malformed::TooManyBuffers(BUFFERS_MAX));
            }
        }
        if *available == self.ring.size() {
            return Err(Malformed::Endless { size: *available });
        }
        // The peer has published the beginning of a packet only: the rest is still to come.
        *available = 0;
        Ok(Found::Nothing)
    }

    /// Fills a burst with packets of at least `shortest` bytes.
    #[inline]
    pub(super) fn receive(
        &mut self,
        burst: &mut Burst,
        shortest: u32,
        tally: &mut Tally,
    ) -> Result<(), Malformed> {
        self.release();
        self.looks = 0;
        burst.begin(&self.memory);
        let mut available = self.available()?;
        self.look_ahead(available);
        let mut bytes = 0;
        let mut result = Ok(());
        while !burst.is_full() && self.looks < BUFFERS_PER_CALL {
            match self.next(&mut available) {
                Ok(Found::Nothing) => break,
                Ok(Found::One(place)) if place.length < shortest => {
                    self.drop(Cause::TooShort, tally);
                }
                Ok(Found::One(place)) if place.length as usize <= PACKET_BYTES_MAX => {
                    bytes += u64::from(place.length);
                    burst.admit(&self.memory, place);
                }
                Ok(Found::Chain(length)) if length < u64::from(shortest) => {
                    self.drop(Cause::TooShort, tally);
                }
                Ok(Found::Chain(length)) if length <= PACKET_BYTES_MAX as u64 => {
                    bytes += length;
                    burst.admit_chain(&self.memory, &self.chain, length as u32);
                }
                Ok(_) => self.drop(Cause::TooLong, tally),
                Err(error) => {
                    tally.drop(Cause::Malformed, 1);
                    result = Err(error);
                    break;
                }
            }
        }
        tally.pass(burst.len() as u64, bytes);
        if burst.is_private() {
            self.release();
        }
        // They come while whoever called deals with these.
        self.look_ahead(available);
        result
    }

    /// Counts a packet that is dropped: it takes no room in a burst.
    #[cold]
    fn drop(&mut self, cause: Cause, tally: &mut Tally) {
        tally.drop(cause, 1);
        self.looks += DROP_BUFFERS;
    }

    /// Asks for the first lines of the packets that come next, where it has not done so, so that they come together and not one after
    /// another.
    #[inline]
    fn look_ahead(&mut self, available: u16) {
        let asked = self.asked.wrapping_sub(self.cursor);
        let first = if asked <= AHEAD { asked } else { 0 };
        let end = available.min(AHEAD).max(first);
        for index in first..end {
            let cursor = self.cursor.wrapping_add(index);
            // One that cannot be is found when it is its turn.
            if let Ok(place) = self.place(cursor, self.ring.descriptor(cursor)) {
                self.memory.will_read(place);
            }
        }
        self.asked = self.cursor.wrapping_add(end);
    }

    /// Gives back the descriptors before the cursor.
    #[inline]
    pub(super) fn release(&mut self) {
        if self.released == self.cursor {
            return;
        }
        match self.buffers {
            Buffers::Peer => self.ring.set_tail(self.cursor),
            Buffers::Own { first, bytes } => self.refill(first, bytes),
        }
        self.released = self.cursor;
    }

    /// Gives the buffers again, empty.
    fn refill(&self, first: u32, bytes: u32) {
        let size = self.ring.size();
        let mut cursor = self.released;
        while cursor != self.cursor {
            // The slot of a buffer a turn before is that of its successor.
            let buffer = Buffers::own(first, bytes, cursor & (size - 1));
            let descriptor = Descriptor {
                region: buffer.region,
                offset: buffer.offset,
                length: buffer.length,
                ..Descriptor::default()
            };
            self.ring.set_descriptor(cursor, descriptor);
            cursor = cursor.wrapping_add(1);
        }
        self.ring.set_head(self.cursor.wrapping_add(size));
    }
}
