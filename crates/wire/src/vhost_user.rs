//! vhost-user: how a front end shares its virtio rings with a back end of another process.
//!
//! Messages go over a stream socket of the Unix domain: a header of [`HEADER_BYTES`], and a payload that its size is in. Descriptors come
//! with a message's first byte. The front end asks; the back end answers where an answer is due, or where it was asked for one. Facts from
//! "Vhost-user Protocol" of QEMU (`docs/interop/vhost-user.rst`).
//!
//! ```text
//!   0         4         8         12
//!   | request | flags   | size    | payload …
//! ```
//!
//! In-flight memory is the back end's, which the front end keeps over a back end's death: which chains it has taken and not yet given back.

use core::fmt;

/// Of every message.
pub const HEADER_BYTES: usize = 12;
/// Of the protocol, the only one.
const VERSION: u32 = 1;

/// Regions in one message, and descriptors with it.
pub const REGIONS_MAX: usize = 8;
const REGION_BYTES: usize = 32;
/// No message of ours is longer; the longest is a table of memory.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + 8 + REGIONS_MAX * REGION_BYTES;

/// Among virtio's features: protocol features are negotiated, and rings are enabled one by one.
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;

/// Protocol features: the number of queues can be asked for.
pub const PROTOCOL_MQ: u64 = 1 << 0;
/// A message can ask for an answer that tells of success.
pub const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
/// The front end keeps in-flight memory.
pub const PROTOCOL_INFLIGHT_SHMFD: u64 = 1 << 12;
/// Regions can be added and removed one by one.
pub const PROTOCOL_CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

/// The number of a ring, and another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VringState {
    /// The ring's number: even to the driver, odd from it.
    pub index: u32,
    /// A size, a position, or whether it is enabled.
    pub number: u32,
}

/// Where a ring lies, by the front end's own addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VringAddress {
    /// The ring's number.
    pub index: u32,
    /// Whether it is logged, for migration.
    pub flags: u32,
    /// Descriptors.
    pub descriptors: u64,
    /// Split: the used ring. Packed: the device's event suppression.
    pub used: u64,
    /// Split: the available ring. Packed: the driver's event suppression.
    pub available: u64,
    /// For migration.
    pub log: u64,
}

/// A ring that a descriptor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VringFd {
    /// The ring's number.
    pub index: u8,
    /// Whether a descriptor comes with the message.
    pub has_fd: bool,
}

/// A region of the front end's memory, whose descriptor comes with the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Region {
    /// Where it is for the driver: descriptors' addresses.
    pub guest: u64,
    /// Its size.
    pub bytes: u64,
    /// Where it is for the front end: rings' addresses.
    pub user: u64,
    /// Where it begins in the descriptor's memory.
    pub offset: u64,
}

/// All regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Table {
    regions: [Region; REGIONS_MAX],
    count: usize,
}

impl Table {
    /// Of regions. None: they are more than [`REGIONS_MAX`].
    #[must_use]
    pub fn new(regions: &[Region]) -> Option<Table> {
        let mut table = Table::default();
        table
            .regions
            .get_mut(..regions.len())?
            .copy_from_slice(regions);
        table.count = regions.len();
        Some(table)
    }

    /// They.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions[..self.count]
    }
}

/// Of in-flight memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inflight {
    /// Its size.
    pub bytes: u64,
    /// Where it begins in the descriptor's memory.
    pub offset: u64,
    /// How many rings.
    pub queues: u16,
    /// How many descriptors each has.
    pub size: u16,
}

/// What a front end says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "messages are few, and there is no allocation here"
)]
pub enum Request {
    /// Which features are there? Answered by a number.
    GetFeatures,
    /// These are on.
    SetFeatures(u64),
    /// A session begins.
    SetOwner,
    /// Of no use any more.
    ResetOwner,
    /// The memory, with a descriptor for each region. Instead of what was there.
    SetMemTable(Table),
    /// A ring's size.
    SetVringNum(VringState),
    /// A ring's place.
    SetVringAddr(VringAddress),
    /// Where a ring goes on: split, the index; packed, position and wrap counter of the driver, and perhaps of the device.
    SetVringBase(VringState),
    /// A ring stops. Answered by where it goes on.
    GetVringBase(VringState),
    /// The descriptor by which the back end is notified. The ring starts.
    SetVringKick(VringFd),
    /// The descriptor by which the driver is notified.
    SetVringCall(VringFd),
    /// The descriptor by which the front end hears of errors.
    SetVringErr(VringFd),
    /// Which protocol features are there? Answered by a number.
    GetProtocolFeatures,
    /// These are on.
    SetProtocolFeatures(u64),
    /// How many pairs of queues are there at most? Answered by a number.
    GetQueueNum,
    /// A ring is enabled, or disabled.
    SetVringEnable(VringState),
    /// Make in-flight memory. Answered by the same, with a descriptor.
    GetInflightFd(Inflight),
    /// This is the in-flight memory, with its descriptor.
    SetInflightFd(Inflight),
    /// How many regions may there be? Answered by a number.
    GetMaxMemSlots,
    /// One more region, with its descriptor.
    AddMemReg(Region),
    /// One region less.
    RemMemReg(Region),
}

/// What a back end answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// A number; 0 for success, where nothing else is asked for.
    Number(u64),
    /// A ring's position.
    State(VringState),
    /// In-flight memory, with its descriptor.
    Inflight(Inflight),
}

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// Another version than 1.
    Version(u32),
    /// An answer where a request was due, or the reverse.
    Direction,
    /// There is no request of this number, or none that was negotiated.
    Request(u32),
    /// A payload has another size than such a message has.
    Size {
        /// The request's number.
        request: u32,
        /// In bytes.
        bytes: u32,
    },
    /// A table of more regions than there may be.
    Regions(u32),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Version(version) => {
                write!(f, "a message of version {version}, not {VERSION}")
            }
            ParseError::Direction => write!(f, "an answer where a request was due, or the reverse"),
            ParseError::Request(request) => write!(f, "a message of unknown kind {request}"),
            ParseError::Size { request, bytes } => {
                write!(f, "a message of kind {request} with {bytes} bytes")
            }
            ParseError::Regions(count) => {
                write!(f, "a table of {count} regions, more than {REGIONS_MAX}")
            }
        }
    }
}

impl core::error::Error for ParseError {}

/// What is before each payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which request it is, or is the answer to.
    pub request: u32,
    /// Whether it is an answer.
    pub is_reply: bool,
    /// Whether it asks for an answer that tells of success.
    pub needs_reply: bool,
    /// Of the payload.
    pub bytes: u32,
}

mod codec;
pub mod inflight;

pub use codec::Emitted;

#[cfg(test)]
mod tests;
