//! What a peer can say wrong.

use std::fmt;
use std::io;

use millrace_wire::vhost_user::ParseError;

/// What is wrong with what a peer said.
#[derive(Debug)]
pub enum ControlError {
    /// It is no message.
    Parse(ParseError),
    /// A message that is not said then.
    Unexpected(&'static str),
    /// It does not take what was asked for.
    Refused(&'static str),
    /// More descriptors came than belong to any message.
    TooManyDescriptors,
    /// Another number of descriptors came than belong to a message.
    Descriptors(&'static str),
    /// It does not read what is sent to it.
    DoesNotRead,
    /// Features that were not offered, or without which nothing goes.
    Features(u64),
    /// There is no ring of this number.
    Queue(u32),
    /// A ring cannot have this size.
    Size(u32),
    /// A region's memory is smaller than it says, or too much of it is not used, or its addresses cannot be.
    Region {
        /// Where the driver has it.
        guest: u64,
        /// In bytes.
        bytes: u64,
    },
    /// Regions have more bytes together than is allowed.
    Memory {
        /// Of the one that is too much.
        bytes: u64,
        /// Of all, at most.
        most: u64,
    },
    /// A region's memory could be taken away while it is read: its size is not sealed.
    NotSealed,
    /// Memory cannot be mapped.
    Map(io::Error),
    /// A ring.
    Ring {
        /// Its number.
        index: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// In-flight memory is too small, too large, or has another layout.
    InFlight,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Parse(error) => write!(f, "{error}"),
            ControlError::Unexpected(name) => write!(f, "unexpected message {name}"),
            ControlError::Refused(name) => write!(f, "the peer does not take {name}"),
            ControlError::TooManyDescriptors => {
                write!(f, "a message came with too many descriptors")
            }
            ControlError::Descriptors(name) => {
                write!(
                    f,
                    "{name} came with another number of descriptors than it must"
                )
            }
            ControlError::DoesNotRead => write!(f, "the peer does not read what is sent to it"),
            ControlError::Features(features) => write!(f, "features {features:#x} cannot be"),
            ControlError::Queue(index) => write!(f, "there is no ring {index}"),
            ControlError::Size(size) => write!(f, "a ring cannot have {size} descriptors"),
            ControlError::Region { guest, bytes } => write!(
                f,
                "a region of {bytes} bytes at {guest:#x} is not backed, too large, or in another's place"
            ),
            ControlError::Memory { bytes, most } => write!(
                f,
                "with a region of {bytes} bytes there is more memory than memory_bytes_max, {most}"
            ),
            ControlError::NotSealed => {
                write!(f, "a region's memory is not sealed against shrinking")
            }
            ControlError::Map(error) => write!(f, "memory cannot be mapped: {error}"),
            ControlError::Ring { index, what } => write!(f, "ring {index} {what}"),
            ControlError::InFlight => write!(f, "in-flight memory is not as it must be"),
        }
    }
}

impl From<ParseError> for ControlError {
    fn from(error: ParseError) -> ControlError {
        ControlError::Parse(error)
    }
}
