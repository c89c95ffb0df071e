//! A queue that packets go to: to the device.

use std::os::fd::BorrowedFd;

use millrace_wire::virtio::NET_HEADER_BYTES;

use super::{AHEAD, Queue, Ring};
use crate::burst::{Burst, Packet};
use crate::counters::{Cause, Tally};
use crate::memory::Place;
use crate::offload::{Checksum, Offload, Offloads};
use crate::port::SHORTEST;
use crate::virtio::error::Malformed;
use crate::virtio::header::{self, host_offloads};

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
    queue: Queue<R>,
    /// What may be left to the device to do.
    offloads: Offloads,
}

impl<R: Ring> Transmitter<R> {
    pub(crate) fn new(mut queue: Queue<R>) -> Transmitter<R> {
        queue.want_call(false);
        Transmitter {
            offloads: host_offloads(queue.features),
            queue,
        }
    }

    pub(crate) fn queue(&self) -> &Queue<R> {
        &self.queue
    }

    pub(crate) fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Sends packets from number `first` on; returns how many were taken. What was sent before a ring was found malformed stays sent.
    #[inline]
    pub(crate) fn transmit(
        &mut self,
        burst: &Burst,
        first: usize,
        tally: &mut Tally,
    ) -> (usize, Result<(), Malformed>) {
        if self.queue.buffers.free.len() < burst.len() - first
            && let Err(error) = self.reclaim()
        {
            return (0, Err(error));
        }
        self.look_ahead(burst.len() - first);
        let (mut taken, mut sent, mut bytes) = (0, 0, 0);
        for packet in burst.iter().skip(first) {
            let fate = if packet.len() < SHORTEST as usize {
                Fate::Dropped(Cause::TooShort)
            } else if packet.leaves_work() && !self.offloads.takes(&packet.offload()) {
                Fate::Dropped(Cause::Offload)
            } else {
                match self.send(packet) {
                    Ok(fate) => fate,
                    Err(error) => {
                        tally.pass(sent, bytes);
                        return (taken, Err(error));
                    }
                }
            };
            match fate {
                Fate::Sent => {
                    sent += 1;
                    bytes += packet.len() as u64;
                }
                Fate::Dropped(cause) => tally.drop(cause, 1),
                Fate::Kept => break,
            }
            taken += 1;
        }
        tally.pass(sent, bytes);
        (taken, Ok(()))
    }

    /// Asks for the lines that the first of so many packets will begin with.
    #[inline]
    fn look_ahead(&self, packets: usize) {
        let header_bytes = self.queue.header_bytes;
        for number in self.queue.buffers.free.iter().take(packets.min(AHEAD)) {
            let place = self.queue.buffers.place(*number);
            self.queue.memory.will_write(place.after(header_bytes));
        }
    }

    /// Lets the device have what was sent. The bell to ring, if it wants it rung.
    #[inline]
    pub(crate) fn publish(&mut self) -> Option<BorrowedFd<'_>> {
        self.queue.publish()
    }

    /// Takes back the buffers that the device is done with.
    fn reclaim(&mut self) -> Result<(), Malformed> {
        let Queue { ring, buffers, .. } = &mut self.queue;
        while let Some((number, _)) = ring.pop(&buffers.counts)? {
            buffers.put(number);
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, packet: Packet<'_>) -> Result<Fate, Malformed> {
        let queue = &mut self.queue;
        let length = queue.header_bytes + packet.len() as u32;
        if length > queue.buffers.bytes {
            return self.send_chain(packet);
        }
        let Some(number) = queue.buffers.free.pop_front() else {
            return Ok(Fate::Kept);
        };
        let place = queue.buffers.place(number);
        let place = Place { length, ..place };
        write_header(queue, place, packet);
        packet.write_to(0, &queue.memory, place.after(queue.header_bytes));
        queue.post_one(number, length, false);
        Ok(Fate::Sent)
    }

    /// The same of a packet that takes several buffers.
    #[cold]
    fn send_chain(&mut self, packet: Packet<'_>) -> Result<Fate, Malformed> {
        let length = self.queue.header_bytes as usize + packet.len();
        let count = length.div_ceil(self.queue.buffers.bytes as usize);
        if count > self.queue.buffers.counts.len() {
            return Ok(Fate::Dropped(Cause::TooLong));
        }
        if count > self.queue.buffers.free.len() {
            self.reclaim()?;
        }
        let queue = &mut self.queue;
        if count > queue.buffers.free.len() {
            return Ok(Fate::Kept);
        }
        queue.parts.clear();
        let (mut left, mut offset) = (length as u32, 0);
        for _ in 0..count {
            // There are as many.
            let Some(number) = queue.buffers.free.pop_front() else {
                return Ok(Fate::Kept);
            };
            let filled = left.min(queue.buffers.bytes);
            let part = queue.buffers.part(number, filled);
            let mut place = Place {
                length: filled,
                ..queue.buffers.place(number)
            };
            if queue.parts.is_empty() {
                write_header(queue, place, packet);
                place = place.after(queue.header_bytes);
            }
            packet.write_to(offset, &queue.memory, place);
            offset += place.length as usize;
            left -= filled;
            queue.parts.push(part);
        }
        queue.post_parts();
        Ok(Fate::Sent)
    }
}

#[inline]
fn write_header<R>(queue: &Queue<R>, place: Place, packet: Packet<'_>) {
    let offload = match packet.offload() {
        // A driver vouches for nothing: the standard has it so.
        Offload {
            checksum: Checksum::Verified,
            ..
        } => Offload::NONE,
        offload => offload,
    };
    let header = if offload == Offload::NONE {
        [0; NET_HEADER_BYTES]
    } else {
        header::emit(offload, 0).emit()
    };
    header::write(&queue.memory, place, header, queue.header_bytes);
}
