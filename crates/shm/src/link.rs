//! The link: what one publisher and one subscriber of a channel share.
//!
//! Layout (`docs/shm-abi.md`): a header page with the words of each direction, then per direction a ring of descriptors, which the
//! publisher writes, and a ring of released tickets, which the subscriber writes. The messages themselves lie in a [`crate::pool`].
//!
//! Each entry of both rings says by a bit in it whether it is of this lap, so whoever waits for it looks at one cache line only.
//! A descriptor's *ticket* is what the subscriber gives back when it has read the message, in whatever order. At most as many messages as
//! the ring has slots are outstanding, so neither ring is ever written over before it was read. What a ticket stands for is private
//! knowledge of the publisher.

#[cfg(not(loom))]
use std::io;
#[cfg(not(loom))]
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use crate::withheld::{Withheld, between_forks};
#[cfg(not(loom))]
use crate::{Mapping, sys};

mod descriptor;
mod publish;
mod sleep;
mod subscribe;

pub use descriptor::{Descriptor, LINE_BYTES, MESSAGE_BYTES_MAX, flags};
pub use publish::{Lie, PublishEnd, Troubles};
pub use subscribe::{Popped, SubscribeEnd};

/// Layout version, negotiated through the control protocol.
pub const LINK_VERSION: u16 = 1;
/// Smallest and largest count of slots. Powers of two between them are allowed.
pub const SLOTS_MIN: u32 = 2;
/// See [`SLOTS_MIN`].
pub const SLOTS_MAX: u32 = 32_768;
/// Bytes before the first direction's rings.
pub const HEADER_BYTES: usize = 4096;

const DIRECTIONS_OFFSET: usize = 512;

/// The words of one direction. Each group of them has one writer and cache lines of its own.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct LinkWords {
    /// Publisher, hints: messages and bytes published, messages given up, messages published once more after a worker's death, and of
    /// those given up the ones that were never published.
    pub messages: AtomicU64,
    /// See [`LinkWords::messages`].
    pub bytes: AtomicU64,
    /// See [`LinkWords::messages`].
    pub dropped: AtomicU64,
    /// See [`LinkWords::messages`].
    pub redelivered: AtomicU64,
    /// See [`LinkWords::messages`].
    pub skipped: AtomicU64,
    /// Publisher, a hint: times that a message found no room here, and its publisher waited or was told so.
    pub full: AtomicU64,
    padding_publisher: [u64; 10],
    /// Publisher: whether it sleeps until something is released; see `sleep.rs`.
    pub publisher_asleep: AtomicU32,
    padding_publisher_asleep: [u32; 31],
    /// Subscriber: free-running count of descriptors taken. Where the oldest may be taken back, the publisher counts here too.
    pub taken: AtomicU32,
    /// Subscriber, a hint: tickets given back.
    pub released: AtomicU32,
    padding_subscriber: [u32; 30],
    /// Subscriber: whether it sleeps until something is published; see `sleep.rs`.
    pub subscriber_asleep: AtomicU32,
    padding_subscriber_asleep: [u32; 31],
}

// Loom's words are of other sizes.
const _: () = assert!(cfg!(loom) || size_of::<LinkWords>() == 512);
const _: () = assert!(cfg!(loom) || std::mem::offset_of!(LinkWords, full) == 40);
const _: () = assert!(cfg!(loom) || std::mem::offset_of!(LinkWords, publisher_asleep) == 128);
const _: () = assert!(cfg!(loom) || std::mem::offset_of!(LinkWords, taken) == 256);
const _: () = assert!(cfg!(loom) || std::mem::offset_of!(LinkWords, subscriber_asleep) == 384);
const _: () = assert!(cfg!(loom) || DIRECTIONS_OFFSET + 2 * size_of::<LinkWords>() <= HEADER_BYTES);

/// One entry of the ring of descriptors.
#[repr(C)]
#[derive(Debug, Default)]
struct Slot {
    /// What and where; written last.
    what: AtomicU64,
    /// Ticket and sequence.
    which: AtomicU64,
}

const _: () = assert!(cfg!(loom) || size_of::<Slot>() == 16);

/// Whether a link can have so many slots.
#[must_use]
pub fn is_slot_count(slots: u32) -> bool {
    slots.is_power_of_two() && (SLOTS_MIN..=SLOTS_MAX).contains(&slots)
}

/// Bytes of one direction's rings.
fn direction_bytes(slots: u32) -> usize {
    (slots as usize * (size_of::<Slot>() + size_of::<AtomicU32>())).next_multiple_of(4096)
}

/// Size of a whole link with one or two directions.
#[must_use]
pub fn link_bytes(slots: u32, directions: u32) -> usize {
    HEADER_BYTES + directions as usize * direction_bytes(slots)
}

/// Agent: makes a link of fixed size that nobody can reopen by another name. All of it is allocated.
///
/// # Errors
/// `InvalidInput` for a count of slots that [`is_slot_count`] refuses, or other than one or two directions; else what the kernel says.
#[cfg(not(loom))]
pub fn create(slots: u32, directions: u32) -> io::Result<OwnedFd> {
    if !is_slot_count(slots) || !(1..=2).contains(&directions) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let bytes = link_bytes(slots, directions);
    sys::create_sealed(c"millrace-link", bytes, bytes)
}

/// A mapping of a link.
#[derive(Debug)]
pub struct Link {
    #[cfg(not(loom))]
    mapping: Withheld<Mapping>,
    #[cfg(loom)]
    model: Vec<(LinkWords, Vec<Slot>, Vec<AtomicU32>)>,
    slots: u32,
    directions: u32,
}

impl Link {
    /// Maps a link that the agent handed out. Children have zeros in its place.
    ///
    /// # Errors
    /// `InvalidData` when the descriptor's size does not fit or could still change; else what the kernel says.
    #[cfg(not(loom))]
    pub fn attach(fd: BorrowedFd<'_>, slots: u32, directions: u32) -> io::Result<Link> {
        let bytes = link_bytes(slots, directions);
        let fits = is_slot_count(slots) && (1..=2).contains(&directions);
        if !fits || !sys::is_sealed_with_size(fd.as_raw_fd(), bytes) {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mapping = between_forks(|| Mapping::new(fd, bytes).map(Withheld::new))?;
        Ok(Link {
            mapping,
            slots,
            directions,
        })
    }

    /// A link for models.
    #[cfg(loom)]
    #[must_use]
    pub fn of_model(slots: u32) -> Link {
        let ring = (0..slots).map(|_| Slot::default()).collect();
        let releases = (0..slots).map(|_| AtomicU32::default()).collect();
        Link {
            model: vec![(LinkWords::default(), ring, releases)],
            slots,
            directions: 1,
        }
    }

    /// For models: the calling thread's operations on the first word of a descriptor go wrong from now on.
    #[cfg(loom)]
    pub fn break_slot(&self, direction: u32, position: u32, fault: crate::model::Fault) {
        self.slot(direction, position).what.break_here(fault);
    }

    /// For models: the calling thread's operations on an entry of the ring of releases go wrong from now on.
    #[cfg(loom)]
    pub fn break_release(&self, direction: u32, position: u32, fault: crate::model::Fault) {
        self.release_entry(direction, position).break_here(fault);
    }

    /// Messages that may be outstanding in each direction.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The words of `direction`.
    ///
    /// # Panics
    /// When the link has no such direction.
    #[must_use]
    #[inline]
    pub fn words(&self, direction: u32) -> &LinkWords {
        assert!(direction < self.directions);
        #[cfg(loom)]
        return &self.model[direction as usize].0;
        #[cfg(not(loom))]
        {
            let offset = DIRECTIONS_OFFSET + direction as usize * size_of::<LinkWords>();
            // SAFETY: inside the header page (asserted above), which is mapped as long as `self`, and 128-aligned, as the page is.
            let place = unsafe { self.mapping.base().add(offset) };
            // SAFETY: atomics and padding only, so that the peer's writes are races that atomics allow.
            unsafe { place.cast::<LinkWords>().as_ref() }
        }
    }

    #[inline]
    fn slot(&self, direction: u32, position: u32) -> &Slot {
        let index = (position & (self.slots - 1)) as usize;
        #[cfg(loom)]
        return &self.model[direction as usize].1[index];
        #[cfg(not(loom))]
        {
            let ring = HEADER_BYTES + direction as usize * direction_bytes(self.slots);
            // SAFETY: `direction` is one that the link has (each end's constructor has asked for its words), and the index is masked.
            let place = unsafe { self.mapping.base().add(ring + index * size_of::<Slot>()) };
            // SAFETY: two atomics, 16-aligned, mapped as long as `self`.
            unsafe { place.cast::<Slot>().as_ref() }
        }
    }

    /// Asks for the line of a descriptor that will be written soon. Its subscriber has read there last.
    #[inline]
    fn will_write(&self, direction: u32, position: u32) {
        #[cfg(not(loom))]
        sys::will_write(std::ptr::from_ref(self.slot(direction, position)).cast());
        #[cfg(loom)]
        let _ = (direction, position);
    }

    #[inline]
    fn release_entry(&self, direction: u32, position: u32) -> &AtomicU32 {
        let index = (position & (self.slots - 1)) as usize;
        #[cfg(loom)]
        return &self.model[direction as usize].2[index];
        #[cfg(not(loom))]
        {
            let ring = HEADER_BYTES
                + direction as usize * direction_bytes(self.slots)
                + self.slots as usize * size_of::<Slot>();
            // SAFETY: as in `slot`; the ring of releases follows that of descriptors, and `direction_bytes` counts both.
            let place = unsafe { self.mapping.base().add(ring + index * size_of::<u32>()) };
            // SAFETY: an atomic, 4-aligned, mapped as long as `self`.
            unsafe { place.cast::<AtomicU32>().as_ref() }
        }
    }

    /// What entries of the lap that `position` is in have in their topmost bit. Zeroed memory is of no lap.
    #[inline]
    fn lap(&self, position: u32) -> bool {
        position & self.slots == 0
    }
}

/// What an end says of its link, or the memory of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages published.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Messages given up.
    pub dropped: u64,
    /// Messages published once more after a worker's death.
    pub redelivered: u64,
    /// Times that a message found no room, and its publisher waited or was told so.
    pub full: u64,
    /// Messages that the subscriber has not taken.
    pub queued: u32,
    /// Messages that it has taken and not given back.
    pub held: u32,
}

impl Link {
    /// What both ends say of `direction`. Hints: either may lie.
    #[must_use]
    pub fn counters(&self, direction: u32) -> Counters {
        let words = self.words(direction);
        let messages = words.messages.load(Ordering::Relaxed);
        let taken = words.taken.load(Ordering::Relaxed);
        let released = words.released.load(Ordering::Relaxed);
        let within = |count: u32| if count <= self.slots { count } else { 0 };
        Counters {
            messages,
            bytes: words.bytes.load(Ordering::Relaxed),
            dropped: words.dropped.load(Ordering::Relaxed),
            redelivered: words.redelivered.load(Ordering::Relaxed),
            full: words.full.load(Ordering::Relaxed),
            // The publisher's count, modulo what the subscriber's has.
            queued: within((messages as u32).wrapping_sub(taken)),
            held: within(taken.wrapping_sub(released)),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
