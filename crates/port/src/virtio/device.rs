//! The device's end of a queue: it takes chains of the driver's, and gives them back in the same order.
//!
//! A ring of either kind does what [`Ring`] says; [`Queue`] adds what both directions have in common, and `receive` and `transmit` each the
//! rest. Since chains go back in order, what is taken and not yet given back is always what the ring has from its used position on: whoever
//! comes after a death begins there, and neither loses nor doubles a chain.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use millrace_wire::virtio::{DESC_INDIRECT, DESC_NEXT, DESC_WRITE, DESCRIPTOR_BYTES, Descriptor};

use super::error::Malformed;
use super::guest::Guest;
use super::header::header_bytes;
use crate::limits::{BUFFERS_MAX, BUFFERS_PER_CALL, DROP_BUFFERS};
use crate::memory::Place;

mod packed;
mod receive;
mod split;
mod transmit;

pub(crate) use packed::Packed;
pub(crate) use receive::Receiver;
pub(crate) use split::Split;
pub(crate) use transmit::Transmitter;

/// What is counted: descriptors, and places. A buffer has one of each.
const PARTS_MAX: u32 = 2 * BUFFERS_MAX;
/// The same of all packets of one call, but for the last of them.
const PARTS_PER_CALL: u32 = 2 * BUFFERS_PER_CALL;
/// As how many of them a packet counts that is dropped.
const DROP_PARTS: u32 = 2 * DROP_BUFFERS;
/// So many chains are looked at before the first is used, so that their lines come together and not one after another.
const AHEAD: u16 = 16;

/// What both kinds of ring can do.
pub(crate) trait Ring: Sized {
    /// How many descriptors it has.
    fn size(&self) -> u16;

    /// How many chains may be taken from the cursor on, at most about `most`: afterwards their descriptors are visible. Of packed rings,
    /// only descriptors can be counted, and are.
    fn refresh(&mut self, most: u16) -> Result<u16, Malformed>;

    /// Whether more may be there than `refresh` was asked for.
    fn is_limited(&self) -> bool;

    /// The first descriptor of the chain at the cursor. None: no more are there, as far as was asked.
    fn head(&mut self) -> Result<Option<Descriptor>, Malformed>;

    /// The first descriptor of a chain that comes later, if each had one.
    fn ahead(&self, chains: u16) -> Descriptor;

    /// The descriptor after one of the same chain, which says that there is one.
    fn next(&self, descriptor: Descriptor, step: u16) -> Result<Descriptor, Malformed>;

    /// The place in a table of the descriptor after this one, which is the `count`th of the chain in it. None: it was the last.
    fn next_in_table(descriptor: Descriptor, count: u16, entries: u32) -> Option<u16>;

    /// From the words of a table, whose descriptors are for the device to write or not.
    fn parse(words: [u64; 2], writes: bool) -> Descriptor;

    /// Moves beyond the chain at the cursor, of so many descriptors, of which this is the last.
    fn take(&mut self, last: Descriptor, descriptors: u16, length: u32);

    /// How many were taken and not yet given back.
    fn taken(&self) -> usize;

    /// How many descriptors those have, but for those of tables.
    fn taken_descriptors(&self) -> u16;

    /// Says how many bytes were written to one of them.
    fn wrote(&mut self, chain: usize, length: u32);

    /// Puts back those that were taken after so many.
    fn put_back(&mut self, taken: usize);

    /// Gives back all that were taken.
    fn publish(&mut self);

    /// Whether the driver wants to be notified of what was given back since it was last asked. A fence is before it.
    fn call_is_wanted(&mut self) -> bool;

    /// Whether the driver is to notify of what comes. A fence is behind it.
    fn want_kick(&mut self, wanted: bool);

    /// Whether there is more at the cursor now.
    fn has_more(&self) -> bool;

    /// Where it goes on, as GET_VRING_BASE has it.
    fn position(&self) -> u32;
}

/// A chain's buffers.
#[derive(Debug, Default)]
struct Chain {
    places: Vec<Place>,
    bytes: u64,
    /// Descriptors of the packet so far, and places.
    parts: u32,
}

impl Chain {
    /// Forgets the packet before.
    fn clear(&mut self) {
        self.places.clear();
        self.bytes = 0;
        self.parts = 0;
    }
}

/// A ring, and what is needed around it.
#[derive(Debug)]
pub(crate) struct Queue<R> {
    ring: R,
    guest: Arc<Guest>,
    header_bytes: u32,
    features: u64,
    chain: Chain,
    /// Descriptors that were looked at one by one in this call, and places of their buffers; and what was dropped.
    parts: u32,
    /// By what the driver is notified. None: it polls.
    call: Option<Arc<OwnedFd>>,
}

impl<R: Ring> Queue<R> {
    pub(crate) fn new(ring: R, guest: Arc<Guest>, features: u64) -> Queue<R> {
        Queue {
            ring,
            guest,
            header_bytes: header_bytes(features),
            features,
            chain: Chain::default(),
            parts: 0,
            call: None,
        }
    }

    /// Counts a packet that is dropped: it takes no room in a burst.
    #[cold]
    fn count_drop(&mut self) {
        self.parts = self.parts.saturating_add(DROP_PARTS);
    }

    /// Whether this call has looked at so many descriptors that the rest is for the next one.
    #[inline]
    fn is_spent(&self) -> bool {
        self.parts >= PARTS_PER_CALL
    }

    pub(crate) fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        self.call = call;
    }

    pub(crate) fn want_kick(&mut self, wanted: bool) {
        self.ring.want_kick(wanted);
        // SeqCst: pairs with the driver's fence between its index, or flags, and its look at what we want: either it sees what we want, or
        // we see what it wrote.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn has_more(&self) -> bool {
        self.ring.has_more()
    }

    pub(crate) fn position(&self) -> u32 {
        self.ring.position()
    }

    /// Gives back all chains that were taken. The bell to ring, if the driver wants it rung.
    #[inline]
    pub(crate) fn give_back(&mut self) -> Option<BorrowedFd<'_>> {
        if self.ring.taken() == 0 {
            return None;
        }
        self.ring.publish();
        // SeqCst: pairs with the driver's fence between saying that it wants a call and its look at what is used.
        fence(Ordering::SeqCst);
        // Asked each time: what the driver says is about what was given back since.
        let is_wanted = self.ring.call_is_wanted();
        let call = self.call.as_ref()?;
        is_wanted.then(|| call.as_fd())
    }

    /// Collects the buffers of the chain at the cursor, which begins with `head`, and moves beyond it. All are for the device to write, or
    /// all for it to read. They are added to those of the packet's chains before.
    fn take_chain(&mut self, head: Descriptor, writes: bool) -> Result<(), Malformed> {
        let size = self.ring.size();
        let (mut descriptor, mut steps, mut count) = (head, 1, 0);
        loop {
            if descriptor.flags & DESC_INDIRECT != 0 {
                if descriptor.flags & DESC_NEXT != 0 {
                    return Err(Malformed::Flags(descriptor.flags));
                }
                self.count_parts(1)?;
                self.add_table(descriptor, writes, &mut count)?;
            } else {
                self.add_buffer(descriptor, writes)?;
                count += 1;
            }
            if descriptor.flags & DESC_NEXT == 0 {
                break;
            }
            if count >= size || steps >= size {
                return Err(Malformed::Endless { size });
            }
            descriptor = self.ring.next(descriptor, steps)?;
            steps += 1;
        }
        self.ring.take(descriptor, steps, 0);
        Ok(())
    }

    fn add_buffer(&mut self, descriptor: Descriptor, writes: bool) -> Result<(), Malformed> {
        if (descriptor.flags & DESC_WRITE != 0) != writes {
            return Err(Malformed::Flags(descriptor.flags));
        }
        let (address, length) = (descriptor.address, descriptor.length);
        let before = self.chain.places.len();
        self.guest.places(address, length, &mut self.chain.places)?;
        self.chain.bytes += u64::from(length);
        // Fewer than there are windows.
        self.count_parts(1 + (self.chain.places.len() - before) as u32)
    }

    fn count_parts(&mut self, parts: u32) -> Result<(), Malformed> {
        self.parts = self.parts.saturating_add(parts);
        self.chain.parts += parts;
        if self.chain.parts > PARTS_MAX {
            return Err(Malformed::TooManyBuffers(BUFFERS_MAX));
        }
        Ok(())
    }

    /// The same of all in a table. Each descriptor of it is copied out once.
    fn add_table(
        &mut self,
        table: Descriptor,
        writes: bool,
        count: &mut u16,
    ) -> Result<(), Malformed> {
        let size = self.ring.size();
        let (address, bytes) = (table.address, table.length);
        let entries = bytes / DESCRIPTOR_BYTES as u32;
        if entries == 0 || !bytes.is_multiple_of(DESCRIPTOR_BYTES as u32) {
            return Err(Malformed::Table(bytes));
        }
        let mut at = 0u16;
        let mut number = 0;
        loop {
            if u32::from(at) >= entries {
                return Err(Malformed::Number {
                    number: u32::from(at),
                    size,
                });
            }
            let entry = address.wrapping_add(u64::from(at) * DESCRIPTOR_BYTES as u64);
            let wrong = Malformed::Address {
                address: entry,
                length: DESCRIPTOR_BYTES as u32,
            };
            let place = self.guest.place(entry, DESCRIPTOR_BYTES as u32);
            let mut words = [0; DESCRIPTOR_BYTES];
            self.guest.memory().read(place.ok_or(wrong)?, &mut words);
            let (low, high) = words.split_at(8);
            let word = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
            let descriptor = R::parse([word(low), word(high)], writes);
            if descriptor.flags & DESC_INDIRECT != 0 {
                return Err(Malformed::Flags(descriptor.flags));
            }
            self.add_buffer(descriptor, writes)?;
            *count += 1;
            number += 1;
            match R::next_in_table(descriptor, number, entries) {
                None => return Ok(()),
                Some(_) if *count >= size => return Err(Malformed::Endless { size }),
                Some(next) => at = next,
            }
        }
    }
}
