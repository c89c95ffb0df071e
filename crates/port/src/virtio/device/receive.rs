//! A queue that packets come from: the driver's transmit queue.

use millrace_wire::virtio::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, Descriptor, NET_HEADER_BYTES};

use super::{AHEAD, Queue, Ring};
use crate::burst::Burst;
use crate::counters::{Cause, Tally};
use crate::memory::Place;
use crate::offload::Offloads;
use crate::virtio::error::Malformed;
use crate::virtio::header::{self, host_offloads};
use crate::virtio::unfit;

/// A queue.
#[derive(Debug)]
pub(crate) struct Receiver<R> {
    pub(crate) queue: Queue<R>,
    /// What the driver may leave to us to do. None: headers are not even looked at.
    offloads: Option<Offloads>,
    /// Of the last packet that lay in several places.
    header: [u8; NET_HEADER_BYTES],
}

/// A packet in a chain.
enum Found {
    Nothing,
    /// Its place, and that of the header before it.
    One(Place, Place),
    /// Its places are in the queue's chain, its header beside it, and it has this length.
    Chain(u64),
}

impl<R: Ring> Receiver<R> {
    pub(crate) fn new(queue: Queue<R>) -> Receiver<R> {
        let offloads = host_offloads(queue.features);
        Receiver {
            offloads: (offloads != Offloads::default()).then_some(offloads),
            header: [0; NET_HEADER_BYTES],
            queue,
        }
    }

    /// Fills a burst. The chains of the one before were given back.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        burst: &mut Burst,
        tally: &mut Tally,
    ) -> Result<(), Malformed> {
        burst.begin(self.queue.guest.memory());
        self.queue.parts = 0;
        // As far as none is dropped: such a one takes no room.
        let room = u16::try_from(burst.room()).unwrap_or(u16::MAX);
        let there = self.queue.ring.refresh(room)?;
        self.look_ahead(there.min(room));
        let mut bytes = 0;
        let mut result = Ok(());
        while !burst.is_full() && !self.queue.is_spent() {
            let found = self.next();
            let (length, header) = match &found {
                Ok(Found::Nothing) if self.queue.ring.is_limited() => {
                    // Packets took several of the descriptors that were there.
                    match self.queue.ring.refresh(room) {
                        Ok(0) | Err(_) => break,
                        Ok(_) => continue,
                    }
                }
                Ok(Found::Nothing) => break,
                Ok(Found::One(place, header)) => {
                    let header = match self.offloads {
                        None => [0; NET_HEADER_BYTES],
                        Some(_) => {
                            let queue = &self.queue;
                            header::read(queue.guest.memory(), *header, queue.header_bytes)
                        }
                    };
                    (u64::from(place.length), header)
                }
                Ok(Found::Chain(length)) => (*length, self.header),
                Err(error) => {
                    tally.drop(Cause::Malformed, 1);
                    result = Err(*error);
                    break;
                }
            };
            let offload = header::offload(header, length, self.offloads);
            if let Some(cause) = unfit(length, offload.is_none()) {
                tally.drop(cause, 1);
                self.queue.count_drop();
                continue;
            }
            let memory = self.queue.guest.memory();
            match found {
                Ok(Found::One(place, _)) => burst.admit(memory, place),
                _ => burst.admit_chain(memory, &self.queue.chain.places, length as u32),
            }
            if !burst.admit_offload(offload.unwrap_or_default()) {
                tally.drop(Cause::Offload, 1);
                self.queue.count_drop();
                continue;
            }
            bytes += length;
        }
        tally.pass(burst.len() as u64, bytes);
        result
    }

    /// Finds the packet at the cursor, and moves beyond it.
    #[inline]
    fn next(&mut self) -> Result<Found, Malformed> {
        let Some(head) = self.queue.ring.head()? else {
            return Ok(Found::Nothing);
        };
        let header_bytes = self.queue.header_bytes;
        if head.flags & (DESC_NEXT | DESC_INDIRECT | DESC_WRITE) == 0
            && head.length >= header_bytes
            && let Some(place) = self.queue.guest.place(head.address, head.length)
        {
            self.queue.ring.take(head, 1, 0);
            let header = Place {
                length: header_bytes,
                ..place
            };
            return Ok(Found::One(place.after(header_bytes), header));
        }
        self.next_chain(head)
    }

    /// The same of a packet that lies in several places.
    #[cold]
    fn next_chain(&mut self, head: Descriptor) -> Result<Found, Malformed> {
        let queue = &mut self.queue;
        queue.chain.clear();
        queue.take_chain(head, false)?;
        let (bytes, wanted) = (queue.chain.bytes, queue.header_bytes as usize);
        if bytes < wanted as u64 {
            return Err(Malformed::Header { bytes });
        }
        // So there are bytes for all of the header, and the places for them.
        let (mut filled, mut at) = (0, 0);
        while filled < wanted {
            let place = &mut queue.chain.places[at];
            let header = &mut self.header[filled..wanted];
            let count = queue.guest.memory().read(*place, header);
            *place = place.after(count as u32);
            filled += count;
            at += usize::from(place.length == 0);
        }
        queue.chain.places.drain(..at);
        Ok(Found::Chain(bytes - wanted as u64))
    }

    #[inline]
    fn look_ahead(&self, there: u16) {
        for chain in 0..there.min(AHEAD) {
            let descriptor = self.queue.ring.ahead(chain);
            let place = self
                .queue
                .guest
                .place(descriptor.address, descriptor.length);
            if let Some(place) = place
                && place.length > self.queue.header_bytes
            {
                let memory = self.queue.guest.memory();
                memory.will_read(place.after(self.queue.header_bytes));
            }
        }
    }
}
