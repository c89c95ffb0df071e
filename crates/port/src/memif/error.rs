//! What a peer can do wrong.

use std::fmt;
use std::io;

use millrace_wire::memif::{MESSAGE_BYTES, ParseError};

/// What cannot be in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// A cursor is farther from ours than the ring has descriptors.
    Cursor {
        /// The peer's.
        says: u16,
        /// Ours.
        ours: u16,
        /// The ring's size.
        size: u16,
    },
    /// A descriptor's buffer is not inside its region.
    Place {
        /// The region's number.
        region: u16,
        /// In bytes.
        offset: u32,
        /// In bytes.
        length: u32,
    },
    /// A packet is longer than the buffer of ours that it is in.
    Length {
        /// In bytes.
        length: u32,
        /// In bytes.
        buffer: u32,
    },
    /// All descriptors of a ring say that the packet goes on.
    Endless {
        /// The ring's size.
        size: u16,
    },
    /// A packet is in more than so many buffers.
    TooManyBuffers(u32),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Cursor { says, ours, size } => write!(
                f,
                "the peer's cursor {says} is too far from ours, {ours}, in a ring of {size}"
            ),
            Malformed::Place {
                region,
                offset,
                length,
            } => write!(
                f,
                "a descriptor's {length} bytes at {offset} are not inside region {region}"
            ),
            Malformed::Length { length, buffer } => {
                write!(f, "a descriptor has {length} bytes in a buffer of {buffer}")
            }
            Malformed::Endless { size } => {
                write!(f, "a packet does not end within its ring of {size}")
            }
            Malformed::TooManyBuffers(most) => {
                write!(f, "a packet is in more than {most} buffers")
            }
        }
    }
}

/// What is wrong with what a peer said.
#[derive(Debug)]
pub enum ControlError {
    /// It is no message.
    Parse(ParseError),
    /// A message that is not said then, or not by that side.
    Unexpected(&'static str),
    /// A version that is not 2.0.
    Version(u16),
    /// Another interface than ours.
    Id(u32),
    /// Another mode than ours.
    Mode,
    /// Not the secret that was agreed on.
    Secret,
    /// A region's number is not the next, or too high.
    RegionIndex(u16),
    /// A message came without the descriptor that it needs.
    NoDescriptor(&'static str),
    /// A region's memory is smaller than it says, or there is none.
    RegionBytes(u64),
    /// Regions have more bytes together than is allowed.
    Memory {
        /// Of the one that is too much.
        bytes: u64,
        /// Of all, at most.
        most: u64,
    },
    /// A region's memory could be taken away while it is read: its size is not sealed.
    NotSealed,
    /// A region cannot be mapped.
    Map(io::Error),
    /// A ring's number is not the next, or too high.
    RingIndex(u16),
    /// A ring is not inside its region, not aligned, too large, or does not begin as a ring does.
    Ring {
        /// Its number.
        index: u16,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Somebody else is connected.
    AlreadyConnected,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Parse(error) => write!(f, "{error}"),
            ControlError::Unexpected(name) => write!(f, "unexpected message {name}"),
            ControlError::Version(version) => {
                write!(
                    f,
                    "memif version {}.{}, not 2.0",
                    version >> 8,
                    version & 255
                )
            }
            ControlError::Id(id) => write!(f, "no interface has id {id} here"),
            ControlError::Mode => write!(f, "the interface is of another mode"),
            ControlError::Secret => write!(f, "the secret is wrong"),
            ControlError::RegionIndex(index) => write!(f, "region {index} is not the next"),
            ControlError::NoDescriptor(name) => write!(f, "{name} came without a descriptor"),
            ControlError::RegionBytes(bytes) => {
                write!(f, "a region of {bytes} bytes is not backed")
            }
            ControlError::Memory { bytes, most } => write!(
                f,
                "with a region of {bytes} bytes there is more memory than memory_bytes_max, {most}"
            ),
            ControlError::NotSealed => {
                write!(f, "a region's memory is not sealed against shrinking")
            }
            ControlError::Map(error) => write!(f, "a region cannot be mapped: {error}"),
            ControlError::RingIndex(index) => write!(f, "ring {index} is not the next"),
            ControlError::Ring { index, what } => write!(f, "ring {index} {what}"),
            ControlError::AlreadyConnected => write!(f, "already connected"),
        }
    }
}

impl From<ParseError> for ControlError {
    fn from(error: ParseError) -> ControlError {
        ControlError::Parse(error)
    }
}

/// A message of more than [`MESSAGE_BYTES`] is read into a buffer of one more.
pub(super) const BUFFER_BYTES: usize = MESSAGE_BYTES + 1;
