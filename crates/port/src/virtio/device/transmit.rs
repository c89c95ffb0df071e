//! A queue that packets go to: the driver's receive queue.

use millrace_wire::virtio::{
    DESC_INDIRECT, DESC_NEXT, DESC_WRITE, NET_HEADER_BYTES, NET_MRG_RXBUF,
};

use super::{AHEAD, Queue, Ring};
use crate::burst::{Burst, Packet};
use crate::counters::{Cause, Tally};
use crate::memory::Place;
use crate::offload::{Checksum, Offload, Offloads};
use crate::port::SHORTEST;
use crate::virtio::error::Malformed;
use crate::virtio::header::{self, guest_offloads};

/// What became of a packet.
enum Fate {
    Sent,
    Dropped(Cause),
    /// There is no room now.
    Kept,
}

/// A queue.
#[derive(Debug)]
pub(crate) struct Transmitter<R> {
    pub(crate) queue: Queue<R>,
    /// What may be left to the driver to do.
    offloads: Offloads,
    is_mergeable: bool,
    /// Of the packet at hand: how much each of its chains has with those before.
    ends: Vec<u64>,
}

impl<R: Ring> Transmitter<R> {
    pub(crate) fn new(queue: Queue<R>) -> Transmitter<R> {
        Transmitter {
            offloads: guest_offloads(queue.features),
            is_mergeable: queue.features & NET_MRG_RXBUF != 0,
            ends: Vec::new(),
            queue,
        }
    }

    pub(crate) fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Sends packets from number `first` on; returns how many were taken.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        burst: &Burst,
        first: usize,
        tally: &mut Tally,
    ) -> (usize, Result<(), Malformed>) {
        self.queue.parts = 0;
        let wanted = u16::try_from(burst.len() - first).unwrap_or(u16::MAX);
        match self.queue.ring.refresh(wanted) {
            Ok(there) => self.look_ahead(there.min(wanted)),
            Err(error) => return (0, Err(error)),
        }
        let (mut taken, mut sent, mut bytes) = (0, 0, 0);
        let mut result = Ok(());
        for packet in burst.iter().skip(first) {
            let fate = if packet.len() < SHORTEST as usize {
                Ok(Fate::Dropped(Cause::TooShort))
            } else if packet.leaves_work() && !self.offloads.takes(&packet.offload()) {
                Ok(Fate::Dropped(Cause::Offload))
            } else {
                self.send(packet)
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
        (taken, result)
    }

    /// Asks for the lines that the first packets and their headers will be in.
    #[inline]
    fn look_ahead(&self, there: u16) {
        let header_bytes = self.queue.header_bytes;
        for chain in 0..there.min(AHEAD) {
            let head = self.queue.ring.ahead(chain);
            if let Some(place) = self.queue.guest.place(head.address, head.length)
                && place.length > header_bytes
            {
                self.queue.guest.memory().will_write(place);
            }
        }
    }

    /// Puts a packet in the chain at the cursor.
    #[inline]
    fn send(&mut self, packet: Packet<'_>) -> Result<Fate, Malformed> {
        let queue = &mut self.queue;
        let Some(head) = queue.ring.head()? else {
            return self.send_chains(packet);
        };
        let length = queue.header_bytes + packet.len() as u32;
        if head.flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) != DESC_WRITE
            || head.length < length
        {
            return self.send_chains(packet);
        }
        let Some(place) = queue.guest.place(head.address, length) else {
            return self.send_chains(packet);
        };
        let memory = queue.guest.memory();
        let header = header_of(packet, self.offloads, 1);
        header::write(memory, place, header, queue.header_bytes);
        packet.write_to(0, memory, place.after(queue.header_bytes));
        queue.ring.take(head, 1, length);
        Ok(Fate::Sent)
    }

    /// The same of a packet that takes several buffers, or several chains where that was agreed on.
    #[cold]
    fn send_chains(&mut self, packet: Packet<'_>) -> Result<Fate, Malformed> {
        if self.queue.is_spent() {
            return Ok(Fate::Kept);
        }
        let before = self.queue.ring.taken();
        let needed = u64::from(self.queue.header_bytes) + packet.len() as u64;
        let gathered = self.gather(needed);
        let is_all = before == 0 && self.queue.ring.taken_descriptors() == self.queue.ring.size();
        if gathered == Ok(true) {
            self.fill(packet, needed, before);
            return Ok(Fate::Sent);
        }
        self.queue.ring.put_back(before);
        gathered?;
        // There will never be more where it would have to be in one chain, or the driver has no more than a ring.
        let is_in_one = !self.is_mergeable && self.queue.chain.bytes > 0;
        Ok(if is_in_one || is_all {
            Fate::Dropped(Cause::TooLong)
        } else {
            Fate::Kept
        })
    }

    /// Takes chains until they have room for so many bytes. False: there are too few.
    fn gather(&mut self, needed: u64) -> Result<bool, Malformed> {
        let queue = &mut self.queue;
        queue.chain.clear();
        self.ends.clear();
        while queue.chain.bytes < needed {
            let mut head = queue.ring.head()?;
            if head.is_none() {
                queue.ring.refresh(u16::MAX)?;
                head = queue.ring.head()?;
            }
            let Some(head) = head else {
                return Ok(false);
            };
            queue.take_chain(head, true)?;
            let bytes = queue.chain.bytes;
            if self.ends.is_empty() && bytes < u64::from(queue.header_bytes) {
                return Err(Malformed::Header { bytes });
            }
            self.ends.push(bytes);
            if bytes < needed && !self.is_mergeable {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn fill(&mut self, packet: Packet<'_>, needed: u64, before: usize) {
        let queue = &mut self.queue;
        let memory = queue.guest.memory();
        // At most as many as the ring has.
        let header = header_of(packet, self.offloads, self.ends.len() as u16);
        let mut header = &header[..queue.header_bytes as usize];
        let mut offset = 0;
        for place in &queue.chain.places {
            let (now, later) = header.split_at(header.len().min(place.length as usize));
            memory.write(*place, now);
            header = later;
            let place = place.after(now.len() as u32);
            let left = packet.len() - offset;
            let length = left.min(place.length as usize);
            if length > 0 {
                let length = length as u32;
                packet.write_to(offset, memory, Place { length, ..place });
            }
            offset += length;
        }
        let mut begin = 0;
        for (chain, end) in self.ends.iter().enumerate() {
            let length = (*end).min(needed) - begin;
            queue.ring.wrote(before + chain, length as u32);
            begin = *end;
        }
    }
}

/// What is said of a packet to whoever has agreed to this.
#[inline]
fn said(packet: Packet<'_>, agreed: Offloads) -> Offload {
    let offload = packet.offload();
    match offload.checksum {
        // To vouch for a checksum must have been agreed on as well.
        Checksum::Verified if !agreed.checksum => Offload::NONE,
        _ => offload,
    }
}

/// The header before a packet that takes so many chains.
#[inline]
fn header_of(packet: Packet<'_>, agreed: Offloads, chains: u16) -> [u8; NET_HEADER_BYTES] {
    let offload = said(packet, agreed);
    if offload == Offload::NONE {
        let mut header = [0; NET_HEADER_BYTES];
        header[10..].copy_from_slice(&chains.to_le_bytes());
        header
    } else {
        header::emit(offload, chains).emit()
    }
}
