//! Calls that run beside others at full speed, in random pieces. What they tell does not depend on how they meet.

use super::{Slot, Until};
use serde::{Deserialize, Serialize};

/// Who streams, and how: the pieces and the forms of the calls follow from the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manner {
    pub(crate) slot: Slot,
    pub(crate) seed: u32,
    /// No piece is longer.
    pub(crate) piece: u32,
    /// Whether descriptors are opened on the way: pipes, files, a set.
    pub(crate) opens: bool,
}

/// A loop of many calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Stream {
    /// Sends so many bytes; `ends` shuts the direction down after them.
    Pour {
        manner: Manner,
        bytes: u32,
        ends: bool,
    },
    Drain {
        manner: Manner,
        until: Until,
    },
    /// Sends and receives messages in turn. The other end has the same seed.
    Converse {
        manner: Manner,
        first: bool,
        rounds: u8,
    },
}
