//! virtio rings, of both kinds and from both sides, and the headers of packets in them: what [`crate::vhost_user`] and
//! [`crate::virtio_user`] have in common.
//!
//! In reading order: `guest` (where a driver's addresses are), `header` (what is said of a packet), `sys` (the rings' words), `position`
//! (in a packed ring), `device` (the end that takes chains), `driver` (the end that makes them), `inflight` (what outlives a device),
//! `error`.

use crate::burst::PACKET_BYTES_MAX;
use crate::counters::Cause;
use crate::memory::Place;
use crate::port::SHORTEST;

pub(crate) mod device;
pub(crate) mod driver;
mod error;
pub(crate) mod guest;
pub(crate) mod header;
pub(crate) mod inflight;
pub(crate) mod position;
mod sys;

pub use error::Malformed;

/// Where the areas of a ring are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    pub(crate) descriptors: Place,
    /// What the driver writes: the available ring, or its event suppression.
    pub(crate) driver: Place,
    /// What the device writes: the used ring, or its event suppression.
    pub(crate) device: Place,
}

/// A chain that a device has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// By what number the driver knows it.
    number: u16,
    /// How many of the ring's descriptors it has.
    descriptors: u16,
    /// How many bytes were written to it.
    length: u32,
}

/// Why a packet of so many bytes is not handed out. `is_wrong`: its header says what it must not.
#[inline]
fn unfit(length: u64, is_wrong: bool) -> Option<Cause> {
    if length < u64::from(SHORTEST) {
        Some(Cause::TooShort)
    } else if length > PACKET_BYTES_MAX as u64 {
        Some(Cause::TooLong)
    } else {
        is_wrong.then_some(Cause::Offload)
    }
}
