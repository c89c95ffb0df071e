//! What a peer can do wrong in a ring.

use std::fmt;

/// What cannot be in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// An index is farther from ours than the ring has entries.
    Index {
        /// The peer's.
        says: u16,
        /// Ours.
        ours: u16,
        /// The ring's size.
        size: u16,
    },
    /// There is no descriptor, or no chain, of this number.
    Number {
        /// The peer's.
        number: u32,
        /// The ring's size.
        size: u16,
    },
    /// A buffer is not inside the memory.
    Address {
        /// Where it is said to begin.
        address: u64,
        /// In bytes.
        length: u32,
    },
    /// A buffer that is for the device to read where one to write must be, or the reverse; or a table in a table.
    Flags(u16),
    /// A chain has more descriptors than the ring.
    Endless {
        /// The ring's size.
        size: u16,
    },
    /// A table of descriptors has no whole number of them, or none.
    Table(u32),
    /// A chain is too short for the header before each packet.
    Header {
        /// In bytes.
        bytes: u64,
    },
    /// More bytes than the buffer has room for are said to be in it.
    Length {
        /// In bytes.
        length: u32,
        /// In bytes.
        buffer: u32,
    },
    /// A packet is said to go on in so many buffers.
    Buffers(u16),
    /// A packet is in more buffers than so many.
    TooManyBuffers(u32),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Index { says, ours, size } => write!(
                f,
                "the peer's index {says} is too far from ours, {ours}, in a ring of {size}"
            ),
            Malformed::Number { number, size } => {
                write!(f, "there is no chain {number} in a ring of {size}")
            }
            Malformed::Address { address, length } => write!(
                f,
                "a buffer of {length} bytes at {address:#x} is not inside the memory"
            ),
            Malformed::Flags(flags) => {
                write!(f, "a descriptor has flags {flags:#x} where they cannot be")
            }
            Malformed::Endless { size } => {
                write!(f, "a chain does not end within its ring of {size}")
            }
            Malformed::Table(bytes) => {
                write!(f, "a table of descriptors has {bytes} bytes")
            }
            Malformed::Header { bytes } => {
                write!(f, "a chain of {bytes} bytes has no room for the header")
            }
            Malformed::Length { length, buffer } => {
                write!(f, "a buffer of {buffer} bytes is said to have {length}")
            }
            Malformed::Buffers(count) => {
                write!(f, "a packet is said to be in {count} buffers")
            }
            Malformed::TooManyBuffers(most) => {
                write!(f, "a packet is in more than {most} buffers")
            }
        }
    }
}
