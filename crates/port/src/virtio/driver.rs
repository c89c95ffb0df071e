//! The driver's end of a queue: it makes chains of its own buffers, and gets them back in any order.
//!
//! Each descriptor has a buffer of fixed place. What the device writes into descriptors is never read but for a chain's number and a
//! length, and both are compared with what was given.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::Places;
use super::error::Malformed;
use super::guest::Guest;
use super::header::header_bytes;
use crate::memory::{Memory, Place, stride};

mod packed;
mod receive;
mod split;
mod transmit;

pub(crate) use packed::Packed;
pub(crate) use receive::Receiver;
pub(crate) use split::Split;
pub(crate) use transmit::Transmitter;

/// So many buffers are looked at before the first is used, so that their lines come together and not one after another.
const AHEAD: usize = 16;

/// A descriptor of a chain that is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Of the buffer.
    number: u16,
    address: u64,
    length: u32,
}

/// What both kinds of ring can do.
pub(crate) trait Ring: Sized {
    /// A ring that nobody has used yet. None: it is not inside the memory, not aligned, or of a size that cannot be.
    fn new(memory: &Arc<Memory>, places: &Places, size: u16, features: u64) -> Option<Self>;

    /// Makes a chain. There are as many descriptors free.
    fn post(&mut self, parts: &[Part], writes: bool);

    /// Lets the device have what was posted.
    fn publish(&mut self);

    /// The number of the next chain that came back, and how many bytes the device wrote to it. `counts`: how many descriptors each has
    /// that is with the device.
    fn pop(&mut self, counts: &[u16]) -> Result<Option<(u16, u32)>, Malformed>;

    /// Whether one has come back.
    fn has_more(&self) -> bool;

    /// Whether the device wants to be notified of what was published since it was last asked. A fence is before it.
    fn kick_is_wanted(&mut self) -> bool;

    /// Whether the device is to notify of what comes. A fence is behind it.
    fn want_call(&mut self, wanted: bool);

    /// Where a device goes on, as SET_VRING_BASE has it.
    fn base(&self) -> u32;
}

/// The buffers of a queue.
#[derive(Debug)]
struct Buffers {
    /// Where the first is, in bytes and for the device.
    offset: u32,
    address: u64,
    /// Of each.
    bytes: u32,
    free: VecDeque<u16>,
    /// How many buffers a chain has that is with the device, by its number, which is its first buffer's.
    counts: Box<[u16]>,
    /// The next buffer of a chain.
    next: Box<[u16]>,
}

impl Buffers {
    #[inline]
    fn place(&self, number: u16) -> Place {
        Place {
            region: 0,
            offset: self.offset + u32::from(number) * stride(self.bytes),
            length: self.bytes,
        }
    }

    #[inline]
    fn part(&self, number: u16, length: u32) -> Part {
        Part {
            number,
            address: self.address + u64::from(number) * u64::from(stride(self.bytes)),
            length,
        }
    }

    /// A chain came back.
    #[inline]
    fn put(&mut self, number: u16) {
        let mut buffer = number;
        for _ in 0..std::mem::take(&mut self.counts[usize::from(number)]) {
            self.free.push_back(buffer);
            buffer = self.next[usize::from(buffer)];
        }
    }
}

/// Where a queue lies in the front end's memory, and how large it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) places: Places,
    pub(crate) size: u16,
    /// Where the buffers begin, in region 0.
    pub(crate) buffers: u32,
    /// Where they begin for the device.
    pub(crate) address: u64,
    pub(crate) buffer_bytes: u32,
}

/// A ring, and what is needed around it.
#[derive(Debug)]
pub(crate) struct Queue<R> {
    ring: R,
    memory: Arc<Memory>,
    buffers: Buffers,
    parts: Vec<Part>,
    header_bytes: u32,
    features: u64,
    /// By what the device is notified.
    kick: Arc<OwnedFd>,
    is_posted: bool,
}

impl<R: Ring> Queue<R> {
    /// None: it is not inside.
    pub(crate) fn new(
        guest: &Guest,
        extent: &Extent,
        features: u64,
        kick: Arc<OwnedFd>,
    ) -> Option<Queue<R>> {
        let memory = guest.memory().clone();
        let size = extent.size;
        let all = Place {
            region: 0,
            offset: extent.buffers,
            length: stride(extent.buffer_bytes).checked_mul(u32::from(size))?,
        };
        if !memory.contains(all) {
            return None;
        }
        Some(Queue {
            ring: R::new(&memory, &extent.places, size, features)?,
            memory,
            buffers: Buffers {
                offset: extent.buffers,
                address: extent.address,
                bytes: extent.buffer_bytes,
                free: (0..size).collect(),
                counts: vec![0; usize::from(size)].into_boxed_slice(),
                next: vec![0; usize::from(size)].into_boxed_slice(),
            },
            parts: Vec::with_capacity(usize::from(size)),
            header_bytes: header_bytes(features),
            features,
            kick,
            is_posted: false,
        })
    }

    pub(crate) fn want_call(&mut self, wanted: bool) {
        self.ring.want_call(wanted);
        // SeqCst: pairs with the device's fence between what it gives back and its look at what we want.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn has_more(&self) -> bool {
        self.ring.has_more()
    }

    pub(crate) fn base(&self) -> u32 {
        self.ring.base()
    }

    /// A chain of one buffer.
    #[inline]
    fn post_one(&mut self, number: u16, length: u32, writes: bool) {
        let part = self.buffers.part(number, length);
        self.buffers.counts[usize::from(number)] = 1;
        self.ring.post(&[part], writes);
        self.is_posted = true;
    }

    /// A chain of what is in `parts`.
    fn post_parts(&mut self) {
        for pair in self.parts.windows(2) {
            self.buffers.next[usize::from(pair[0].number)] = pair[1].number;
        }
        let first = usize::from(self.parts[0].number);
        // As many as there are buffers, at most.
        self.buffers.counts[first] = self.parts.len() as u16;
        self.ring.post(&self.parts, false);
        self.is_posted = true;
    }

    /// Lets the device have what was posted. The bell to ring, if it wants it rung.
    #[inline]
    fn publish(&mut self) -> Option<BorrowedFd<'_>> {
        if !std::mem::take(&mut self.is_posted) {
            return None;
        }
        self.ring.publish();
        // SeqCst: pairs with the device's fence between saying that it wants a kick and its look at what is there.
        fence(Ordering::SeqCst);
        self.ring.kick_is_wanted().then(|| self.kick.as_fd())
    }
}
