//! Messages that come back with the times at which the server received and sent them.
//!
//! | bytes | what it is |
//! |---|---|
//! | 0 to 3 | [`MESSAGE`], or [`WHO`]: the answer's contents are then what the server's clock is known by |
//! | 4 to 7 | length of all of it |
//! | 8 to 15 | in an answer: when the message was received, in nanoseconds of the server's monotonic clock |
//! | 16 to 23 | in an answer: when it was sent |
//! | from 24 on | contents, which come back |
//!
//! Numbers are little-endian.

use std::ops::{Range, RangeInclusive};

/// What a message begins with.
pub(super) const MESSAGE: u32 = u32::from_le_bytes(*b"MRM1");
/// The same of one that asks whose clock it is.
pub(super) const WHO: u32 = u32::from_le_bytes(*b"MRW1");
pub(super) const HEAD_BYTES: usize = 24;
/// Lengths that a message may have. A server keeps the beginnings of no longer ones.
pub(super) const LENGTHS: RangeInclusive<usize> = HEAD_BYTES..=64 << 10;

/// When a server received a message, and when it sent the answer, by its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamps {
    pub(super) received_ns: u64,
    pub(super) sent_ns: u64,
}

/// What stands before a message's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: u32,
    /// Of the whole message.
    pub(super) bytes: usize,
    pub(super) stamps: Stamps,
}

impl Head {
    pub(super) fn parse(bytes: &[u8; HEAD_BYTES]) -> Head {
        let number = |place: Range<usize>| {
            let digits = bytes[place].iter().rev();
            digits.fold(0, |number, digit| number << 8 | u64::from(*digit))
        };
        Head {
            kind: number(0..4) as u32,
            bytes: number(4..8) as usize,
            stamps: Stamps {
                received_ns: number(8..16),
                sent_ns: number(16..24),
            },
        }
    }

    pub(super) fn emit(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&self.kind.to_le_bytes());
        // Longer than LENGTHS none is made.
        bytes[4..8].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.stamps.received_ns.to_le_bytes());
        bytes[16..].copy_from_slice(&self.stamps.sent_ns.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_of_emit_is_identity() {
        let head = Head {
            kind: WHO,
            bytes: 65_536,
            stamps: Stamps {
                received_ns: 0x0102_0304_0506_0708,
                sent_ns: u64::MAX - 1,
            },
        };
        let bytes = head.emit();
        assert_eq!(Head::parse(&bytes), head);
        assert_eq!(&bytes[..8], b"MRW1\0\0\x01\0");
    }
}
