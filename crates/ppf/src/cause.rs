//! Why a message is dropped, each cause with the clause that demands it.

use millrace_wire::gtpu::ParseError;

/// Why a message is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It is none, or its length is not its own (TS 29.281, 5.1).
    Malformed,
    /// Of another version, or GTP' (5.1).
    Version,
    /// An extension header has an impossible length (5.2.1).
    Extension,
    /// An extension header that everybody must understand is not known (5.2.1).
    Comprehension,
    /// There is no such tunnel (7.3.1).
    UnknownTeid,
    /// The tunnel is of the other side.
    WrongSide,
    /// The bearer's gate is closed.
    Gate,
    /// A kind of message that is not for this function (6.1).
    UnknownMessage,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 8] = [
        Cause::Malformed,
        Cause::Version,
        Cause::Extension,
        Cause::Comprehension,
        Cause::UnknownTeid,
        Cause::WrongSide,
        Cause::Gate,
        Cause::UnknownMessage,
    ];

    /// What it is called in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Malformed => "malformed",
            Cause::Version => "version",
            Cause::Extension => "extension",
            Cause::Comprehension => "comprehension",
            Cause::UnknownTeid => "unknown_teid",
            Cause::WrongSide => "wrong_side",
            Cause::Gate => "gate",
            Cause::UnknownMessage => "unknown_message",
        }
    }
}

impl From<ParseError> for Cause {
    fn from(error: ParseError) -> Cause {
        match error {
            ParseError::Version(_) | ParseError::Prime => Cause::Version,
            ParseError::Extension(_) => Cause::Extension,
            ParseError::Truncated | ParseError::Length(_) | ParseError::Element(_) => {
                Cause::Malformed
            }
        }
    }
}

/// How many were dropped, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops([u64; Cause::ALL.len()]);

impl Drops {
    /// Counts one.
    #[inline]
    pub fn add(&mut self, cause: Cause) {
        self.0[cause as usize] += 1;
    }

    /// How many of a cause.
    #[must_use]
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// All.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
