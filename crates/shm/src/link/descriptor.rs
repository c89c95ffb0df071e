//! One message's descriptor, as two words.

/// Messages begin at multiples of this many bytes of their pool.
pub const LINE_BYTES: usize = 64;
/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 1 << 24;

/// Marks of a descriptor.
pub mod flags {
    /// Another subscriber of the group may have had the message already.
    pub const REDELIVERED: u8 = 1;
    /// Messages before this one were given up.
    pub const GAP: u8 = 2;
    /// Of a reply: there is none.
    pub const NO_REPLY: u8 = 4;
    /// All that there are.
    pub(super) const ALL: u8 = 7;
}

/// Where a message is, and which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Where it begins in the pool, in units of [`LINE_BYTES`].
    pub line: u32,
    /// Its length in bytes, at most [`MESSAGE_BYTES_MAX`].
    pub bytes: u32,
    /// See [`flags`].
    pub flags: u8,
    /// What the subscriber gives back.
    pub ticket: u16,
    /// The publisher's count of its messages, modulo 2^48.
    pub sequence: u64,
}

// The first word: lap 1, flags 3, spare 9, bytes 25, line 26; the second: ticket 16, sequence 48.
const LAP: u64 = 1 << 63;
const FLAGS_SHIFT: u32 = 60;
const BYTES_SHIFT: u32 = 26;
const BYTES_MASK: u64 = (1 << 25) - 1;
const LINE_MASK: u64 = (1 << 26) - 1;
const TICKET_SHIFT: u32 = 48;
pub(super) const SEQUENCE_MASK: u64 = (1 << 48) - 1;

impl Descriptor {
    /// The two words, of a lap whose bit is `lap`.
    #[inline]
    pub(super) fn words(&self, lap: bool) -> [u64; 2] {
        let what = (u64::from(lap) * LAP)
            | (u64::from(self.flags & flags::ALL) << FLAGS_SHIFT)
            | ((u64::from(self.bytes) & BYTES_MASK) << BYTES_SHIFT)
            | (u64::from(self.line) & LINE_MASK);
        [
            what,
            (u64::from(self.ticket) << TICKET_SHIFT) | (self.sequence & SEQUENCE_MASK),
        ]
    }

    /// Whether a first word is of the lap whose bit is `lap`.
    #[inline]
    pub(super) fn is_of(what: u64, lap: bool) -> bool {
        (what & LAP != 0) == lap
    }

    /// From two words; any are a descriptor.
    #[inline]
    pub(super) fn from_words([what, which]: [u64; 2]) -> Descriptor {
        Descriptor {
            line: (what & LINE_MASK) as u32,
            bytes: ((what >> BYTES_SHIFT) & BYTES_MASK) as u32,
            flags: (what >> FLAGS_SHIFT) as u8 & flags::ALL,
            ticket: (which >> TICKET_SHIFT) as u16,
            sequence: which & SEQUENCE_MASK,
        }
    }

    /// Where the message lies in a pool of `pool_bytes` bytes: its first byte and its length. None: not in there.
    #[must_use]
    #[inline]
    pub fn place(&self, pool_bytes: usize) -> Option<(usize, usize)> {
        let (start, bytes) = (self.line as usize * LINE_BYTES, self.bytes as usize);
        let is_inside = bytes <= MESSAGE_BYTES_MAX && start + bytes <= pool_bytes;
        is_inside.then_some((start, bytes))
    }
}
