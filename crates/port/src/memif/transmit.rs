//! A queue that packets go to: the client's end of a ring from client to server, or the server's of one to the client.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use millrace_wire::memif::{Descriptor, FLAG_NEXT};

use super::error::Malformed;
use super::receive::{AHEAD, Buffers};
use super::sys::Ring;
use crate::burst::{Burst, Packet};
use crate::counters::{Cause, Tally};
use crate::limits::{BUFFERS_MAX, BUFFERS_PER_CALL};
use crate::memory::{Memory, Place};

/// What became of a packet.
enum Fate {
    Sent,
    Dropped(Cause),
    /// There is no room now.
    Kept,
}

/// A queue.
#[derive(Debug)]
pub(super) struct Transmitter {
    ring: Ring,
    memory: Arc<Memory>,
    buffers: Buffers,
    /// Where the next packet goes. Private.
    cursor: u16,
    chain: Vec<Place>,
    /// Buffers that were looked at one by one in this call.
    looks: u32,
    /// By what the peer is woken.
    bell: OwnedFd,
}

impl Transmitter {
    pub(super) fn new(ring: Ring, buffers: Buffers, bell: OwnedFd) -> Transmitter {
        let memory = ring.memory().clone();
        Transmitter {
            chain: Vec::with_capacity(usize::from(ring.size())),
            ring,
            memory,
            buffers,
            cursor: 0,
            looks: 0,
            bell,
        }
    }

    /// How many descriptors may be filled, if what the peer says can be.
    #[inline]
    fn room(&self) -> Result<u16, Malformed> {
        let size = self.ring.size();
        let (says, room) = match self.buffers {
            Buffers::Peer => {
                let head = self.ring.head();
                (head, head.wrapping_sub(self.cursor))
            }
            Buffers::Own { .. } => {
                let tail = self.ring.tail();
                (tail, size.wrapping_sub(self.cursor.wrapping_sub(tail)))
            }
        };
        if room > size {
            return Err(Malformed::Cursor {
                says,
                ours: self.cursor,
                size,
            });
        }
        Ok(room)
    }

    /// The empty buffer at a cursor.
    #[inline]
    fn buffer(&self, cursor: u16) -> Result<Place, Malformed> {
        let place = match self.buffers {
            Buffers::Own { first, bytes } => {
                return Ok(Buffers::own(first, bytes, cursor & (self.ring.size() - 1)));
            }
            Buffers::Peer => {
                let descriptor = self.ring.descriptor(cursor);
                Place {
                    region: descriptor.region,
                    offset: descriptor.offset,
                    length: descriptor.length,
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

    /// Sends packets from number `first` on; returns how many were taken.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        burst: &Burst,
        first: usize,
        shortest: usize,
        tally: &mut Tally,
    ) -> (usize, Result<(), Malformed>) {
        let begin = self.cursor;
        self.looks = 0;
        let mut room = match self.room() {
            Ok(room) => room,
            Err(error) => return (0, Err(error)),
        };
        self.look_ahead(burst.iter().skip(first).take(room.into()));
        let (mut taken, mut sent, mut bytes) = (0, 0, 0);
        let mut result = Ok(());
        for packet in burst.iter().skip(first) {
            let fate = if packet.len() < shortest {
                Ok(Fate::Dropped(Cause::TooShort))
            } else if packet.leaves_work() {
                // A descriptor has no place to say so.
                Ok(Fate::Dropped(Cause::Offload))
            } else {
                self.send(packet, &mut room)
            };
            match fate {
                Ok(Fate::Sent) => {
                    sent += 1;
                    bytes += packet.len() as u64;
                }
                Ok(Fate::Dropped(cause)) => tally.drop(cause, 1),
                Ok(Fate::Kept) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            taken += 1;
        }
        tally.pass(sent, bytes);
        if self.cursor != begin {
            self.publish();
        }
        (taken, result)
    }

    /// Asks for the lines that the first of these packets will have.
    #[inline]
    fn look_ahead<'a>(&self, packets: impl Iterator<Item = Packet<'a>>) {
        for (index, packet) in (0..AHEAD).zip(packets) {
            // One that cannot be is found when it is its turn.
            if let Ok(buffer) = self.buffer(self.cursor.wrapping_add(index)) {
                let length = buffer.length.min(packet.len() as u32);
                self.memory.will_write(Place { length, ..buffer });
            }
        }
    }

    /// Puts a packet at the cursor, and moves beyond it.
    #[inline]
    fn send(&mut self, packet: Packet<'_>, room: &mut u16) -> Result<Fate, Malformed> {
        if *room == 0 {
            return Ok(Fate::Kept);
        }
        let buffer = self.buffer(self.cursor)?;
        let length = packet.len() as u32;
        if length > buffer.length {
            return self.send_chain(packet, room);
        }
        let place = Place { length, ..buffer };
        packet.write_to(0, &self.memory, place);
        self.describe(self.cursor, place, 0);
        self.cursor = self.cursor.wrapping_add(1);
        *room -= 1;
        Ok(Fate::Sent)
    }

    /// The same of a packet that takes several buffers.
    fn send_chain(&mut self, packet: Packet<'_>, room: &mut u16) -> Result<Fate, Malformed> {
        if self.looks >= BUFFERS_PER_CALL {
            return Ok(Fate::Kept);
        }
        self.chain.clear();
        let mut left = packet.len() as u32;
        for index in 0..*room {
            // A peer's buffers may have no bytes.
            if u32::from(index) >= BUFFERS_MAX {
                return Err(Malformed::TooManyBuffers(BUFFERS_MAX));
            }
            self.looks += 1;
            let buffer = self.buffer(self.cursor.wrapping_add(index))?;
            let length = left.min(buffer.length);
            self.chain.push(Place { length, ..buffer });
            left -= length;
            if left == 0 {
                break;
            }
        }
        if left > 0 {
            // An empty ring has no more room than this.
            let never = *room == self.ring.size();
            return Ok(if never {
                Fate::Dropped(Cause::TooLong)
            } else {
                Fate::Kept
            });
        }
        let mut offset = 0;
        let last = self.chain.len() - 1;
        for (index, place) in self.chain.iter().enumerate() {
            packet.write_to(offset, &self.memory, *place);
            offset += place.length as usize;
            let flags = if index == last { 0 } else { FLAG_NEXT };
            self.describe(self.cursor, *place, flags);
            self.cursor = self.cursor.wrapping_add(1);
        }
        // At most as many as there was room for.
        *room -= self.chain.len() as u16;
        Ok(Fate::Sent)
    }

    #[inline]
    fn describe(&self, cursor: u16, place: Place, flags: u16) {
        let descriptor = Descriptor {
            flags,
            region: place.region,
            length: place.length,
            offset: place.offset,
            metadata: 0,
        };
        self.ring.set_descriptor(cursor, descriptor);
    }

    #[inline]
    fn publish(&self) {
        match self.buffers {
            Buffers::Own { .. } => self.ring.set_head(self.cursor),
            Buffers::Peer => self.ring.set_tail(self.cursor),
        }
    }

    /// The bell to ring after publishing, if the peer wants it rung.
    #[inline]
    pub(super) fn wanted_bell(&self) -> Option<&OwnedFd> {
        self.ring.interrupt_is_wanted().then_some(&self.bell)
    }
}
