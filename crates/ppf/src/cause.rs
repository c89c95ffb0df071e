//! Why a message is dropped, each cause with the clause that demands it.

use millrace_wire::gtpu::ParseError;

macro_rules! causes {
    ($($(#[$comment:meta])* $cause:ident, $name:literal, $clause:literal;)*) => {
        /// Why a message is dropped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Cause {
            $($(#[$comment])* $cause,)*
        }

        impl Cause {
            /// All of them.
            pub const ALL: [Cause; [$(Cause::$cause),*].len()] = [$(Cause::$cause),*];

            /// What it is called in metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Cause::$cause => $name,)*
                }
            }

            /// What demands it.
            #[must_use]
            pub const fn clause(self) -> &'static str {
                match self {
                    $(Cause::$cause => $clause,)*
                }
            }
        }
    };
}

causes! {
    /// It is no message, or its length is not its own.
    Malformed, "malformed", "TS 29.281, 5.1";
    /// Of another version, or GTP'.
    Version, "version", "TS 29.281, 5.1";
    /// An extension header has an impossible length, or those that must be written anew are too long.
    Extension, "extension", "TS 29.281, 5.2.1";
    /// An extension header that must be understood is not known.
    Comprehension, "comprehension", "TS 29.281, 5.2.1";
    /// There is no such tunnel; the sender is told.
    UnknownTeid, "unknown_teid", "TS 29.281, 7.3.1";
    /// A user's packet for tunnel 0, which there cannot be; nobody is told.
    ZeroTeid, "zero_teid", "TS 29.281, 7.3.1";
    /// The last message of a tunnel that there is not; nobody is told.
    EndMarkerUnknown, "end_marker_unknown", "TS 29.281, 7.3.2";
    /// An error indication from or about nobody that is sent anything.
    ErrorUnknown, "error_unknown", "TS 29.281, 7.3.1";
    /// The tunnel is of the other side.
    WrongSide, "wrong_side", "TS 29.281, 4.3.1";
    /// A kind of message that is not for this function.
    UnknownMessage, "unknown_message", "TS 29.281, 6.1";
    /// The bearer's gate is closed.
    Gate, "gate", "TS 29.244, 5.4.3";
    /// More than the bearer may have.
    BearerLimit, "bearer_limit", "TS 23.501, 5.7.1.8";
    /// More than all bearers of the user may have.
    UserLimit, "user_limit", "TS 23.501, 5.7.1.8";
    /// Of a QoS flow that the bearer does not carry.
    Flow, "flow", "TS 38.415, 5.5.3.3";
    /// A message without a packet, where there is no tunnel for the message to go on by.
    Empty, "empty", "TS 29.281, 7.3";
    /// It is no packet of the Internet's, where there is no tunnel that would carry it.
    NotInternet, "not_internet", "TS 23.501, 5.6.1";
    /// It has another sender than the user.
    Spoofed, "spoofed", "TS 29.244, 5.2.1";
    /// For a user that there is not.
    UnknownUser, "unknown_user", "TS 29.244, 5.2.1";
    /// Longer than the path takes; the sender is told.
    TooBig, "too_big", "RFC 1191, RFC 4443 3.2";
    /// The tunnel met congestion, and the packet's sender would not understand it.
    Congestion, "congestion", "RFC 6040, 4.2";
    /// The bearer is paused, and has as many packets as it may.
    HeldPackets, "held_packets", "TS 29.244, 5.2.4";
    /// The bearer is paused, and has as many bytes as it may.
    HeldBytes, "held_bytes", "TS 29.244, 5.2.4";
    /// The bearer is paused, and there is no memory for more.
    HeldMemory, "held_memory", "TS 29.244, 5.2.4";
    /// It was held for too long.
    HeldAge, "held_age", "TS 29.244, 5.2.4";
    /// It was held until the bearer was taken away.
    HeldGone, "held_gone", "TS 29.244, 5.2.4";
    /// A fragment with an impossible place or length.
    Fragment, "fragment", "RFC 791, 3.2; RFC 8200, 4.5";
    /// Fragments overlap: all of the packet's are dropped.
    FragmentOverlap, "fragment_overlap", "RFC 5722, 3; RFC 8200, 4.5";
    /// A fragment came twice.
    FragmentTwice, "fragment_twice", "RFC 8200, 4.5";
    /// Others' fragments needed the memory.
    FragmentMemory, "fragment_memory", "RFC 8900, 3.6";
    /// The rest did not come.
    FragmentAge, "fragment_age", "RFC 1122, 3.3.2; RFC 8200, 4.5";
}

impl Cause {
    /// The clause that demands the cause of this name; none, if there is no such cause.
    pub(crate) fn clause_of(name: &str) -> Option<&'static str> {
        let mut all = Cause::ALL.into_iter();
        let cause = all.find(|cause| cause.name() == name)?;
        Some(cause.clause())
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drops([u64; Cause::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Drops([0; Cause::ALL.len()])
    }
}

impl Drops {
    /// Counts one.
    #[inline]
    pub fn add(&mut self, cause: Cause) {
        self.add_many(cause, 1);
    }

    /// Counts several.
    #[inline]
    pub fn add_many(&mut self, cause: Cause, count: u64) {
        self.0[cause as usize] += count;
    }

    /// Counts what another has counted.
    pub fn add_all(&mut self, others: &Drops) {
        for (own, more) in self.0.iter_mut().zip(others.0) {
            *own += more;
        }
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
