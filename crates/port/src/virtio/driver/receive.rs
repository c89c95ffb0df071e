//! A queue that packets come from: from the device.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use millrace_wire::virtio::{NET_HEADER_BYTES, NET_MRG_RXBUF, NetHeader};

use super::{AHEAD, Queue, Ring};
use crate::burst::Burst;
use crate::counters::{Cause, Tally};
use crate::limits::DROPS_PER_CALL;
use crate::memory::Place;
use crate::offload::Offloads;
use crate::virtio::error::Malformed;
use crate::virtio::header::{self, guest_offloads};
use crate::virtio::unfit;

/// A queue.
#[derive(Debug)]
pub(crate) struct Receiver<R> {
    queue: Queue<R>,
    /// What the device may leave to us to do. None: what headers say of it is not looked at.
    offloads: Option<Offloads>,
    is_mergeable: bool,
    /// Buffers that came back, and how much is in each, which are not yet in a burst.
    arrived: VecDeque<(u16, u32)>,
    /// Buffers that are in the last burst.
    held: Vec<u16>,
    places: Vec<Place>,
}

impl<R: Ring> Receiver<R> {
    /// All buffers are the device's at once.
    pub(crate) fn new(mut queue: Queue<R>) -> Receiver<R> {
        let offloads = guest_offloads(queue.features);
        queue.want_call(false);
        let size = queue.buffers.counts.len();
        let mut receiver = Receiver {
            offloads: (offloads != Offloads::default()).then_some(offloads),
            is_mergeable: queue.features & NET_MRG_RXBUF != 0,
            arrived: VecDeque::with_capacity(size),
            held: queue.buffers.free.drain(..).collect(),
            places: Vec::with_capacity(size),
            queue,
        };
        // Whoever comes looks anyway.
        receiver.release();
        receiver
    }

    pub(crate) fn queue(&self) -> &Queue<R> {
        &self.queue
    }

    pub(crate) fn want_call(&mut self, wanted: bool) {
        self.queue.want_call(wanted);
    }

    pub(crate) fn has_more(&self) -> bool {
        self.queue.has_more() || !self.arrived.is_empty()
    }

    /// Gives the buffers of the last burst again, empty. The bell to ring, if the device wants it rung.
    #[inline]
    pub(crate) fn release(&mut self) -> Option<BorrowedFd<'_>> {
        for number in &self.held {
            let bytes = self.queue.buffers.bytes;
            self.queue.post_one(*number, bytes, true);
        }
        self.held.clear();
        self.queue.publish()
    }

    /// Fills a burst. The buffers of the one before were released.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        burst: &mut Burst,
        tally: &mut Tally,
    ) -> Result<(), Malformed> {
        burst.begin(&self.queue.memory);
        let mut bytes = 0;
        let result = self.fill(burst, &mut bytes, tally);
        tally.pass(burst.len() as u64, bytes);
        if result.is_err() {
            tally.drop(Cause::Malformed, 1);
        }
        result
    }

    #[inline]
    fn fill(
        &mut self,
        burst: &mut Burst,
        bytes: &mut u64,
        tally: &mut Tally,
    ) -> Result<(), Malformed> {
        self.collect(burst.room())?;
        self.look_ahead();
        let mut drops = 0;
        while !burst.is_full() && drops < DROPS_PER_CALL {
            if self.arrived.is_empty() {
                // Packets may have taken several of those that were there.
                self.collect(burst.room())?;
            }
            let Some((number, length)) = self.arrived.front().copied() else {
                break;
            };
            let place = self.queue.buffers.place(number);
            let header_bytes = self.queue.header_bytes;
            if length < header_bytes {
                return Err(Malformed::Header {
                    bytes: u64::from(length),
                });
            }
            // Its line is not wanted where nothing is said there.
            let head = match self.is_mergeable || self.offloads.is_some() {
                true => header::read(&self.queue.memory, place, header_bytes),
                false => [0; NET_HEADER_BYTES],
            };
            let count = match self.is_mergeable {
                true => NetHeader::parse(head).buffers,
                false => 1,
            };
            if count == 0 || usize::from(count) > self.queue.buffers.counts.len() {
                return Err(Malformed::Buffers(count));
            }
            if usize::from(count) > self.arrived.len() {
                self.collect(usize::from(count))?;
                if usize::from(count) > self.arrived.len() {
                    // The rest is still to come.
                    break;
                }
            }
            let place = Place { length, ..place }.after(header_bytes);
            let length = match count {
                1 => self.take_one(place),
                _ => self.gather(place, count),
            };
            let offload = header::offload(head, length, self.offloads);
            if let Some(cause) = unfit(length, offload.is_none()) {
                tally.drop(cause, 1);
                drops += 1;
                continue;
            }
            if count == 1 {
                burst.admit(&self.queue.memory, place);
            } else {
                burst.admit_chain(&self.queue.memory, &self.places, length as u32);
            }
            if !burst.admit_offload(offload.unwrap_or_default()) {
                tally.drop(Cause::Offload, 1);
                drops += 1;
                continue;
            }
            *bytes += length;
        }
        Ok(())
    }

    /// The device has gone: what is there of a packet whose rest it did not bring is given again, empty, by the next `release`. Whole
    /// packets that it brought stay.
    pub(crate) fn cut_off(&mut self) -> Result<(), Malformed> {
        let size = self.queue.buffers.counts.len();
        self.collect(size)?;
        let mut whole = 0;
        while whole < self.arrived.len() {
            let (number, _) = self.arrived[whole];
            let place = self.queue.buffers.place(number);
            let head = header::read(&self.queue.memory, place, self.queue.header_bytes);
            let count = match self.is_mergeable {
                true => usize::from(NetHeader::parse(head).buffers.max(1)),
                false => 1,
            };
            if whole + count > self.arrived.len() {
                break;
            }
            whole += count;
        }
        let rest = self.arrived.drain(whole..);
        self.held.extend(rest.map(|(number, _)| number));
        Ok(())
    }

    /// Takes over what came back, until there are so many buffers.
    #[inline]
    fn collect(&mut self, wanted: usize) -> Result<(), Malformed> {
        let Queue { ring, buffers, .. } = &mut self.queue;
        while self.arrived.len() < wanted {
            let Some((number, length)) = ring.pop(&buffers.counts)? else {
                break;
            };
            buffers.counts[usize::from(number)] = 0;
            if length > buffers.bytes {
                return Err(Malformed::Length {
                    length,
                    buffer: buffers.bytes,
                });
            }
            self.arrived.push_back((number, length));
        }
        Ok(())
    }

    /// Takes the buffer in front, in which all of a packet is.
    #[inline]
    fn take_one(&mut self, place: Place) -> u64 {
        self.held
            .extend(self.arrived.pop_front().map(|(number, _)| number));
        u64::from(place.length)
    }

    /// Puts the places of a packet of so many buffers together, of which the first is known; returns how many bytes they have.
    fn gather(&mut self, first: Place, count: u16) -> u64 {
        self.places.clear();
        self.places.push(first);
        let mut bytes = u64::from(first.length);
        for at in 0..count {
            // There are as many.
            let Some((number, length)) = self.arrived.pop_front() else {
                break;
            };
            self.held.push(number);
            if at > 0 {
                let place = self.queue.buffers.place(number);
                self.places.push(Place { length, ..place });
                bytes += u64::from(length);
            }
        }
        bytes
    }

    /// Asks for the lines that the first packets and their headers begin with.
    #[inline]
    fn look_ahead(&self) {
        for (number, _) in self.arrived.iter().take(AHEAD) {
            let place = self.queue.buffers.place(*number);
            self.queue.memory.will_read(place);
        }
    }
}
