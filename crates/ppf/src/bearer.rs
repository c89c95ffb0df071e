//! Bearers: what joins a tunnel on one side and one on the other, and how what passes is treated.
//!
//! A bearer's number and its TEIDs say where it is, so that nothing is searched for:
//!
//! ```text
//!   TEID      slot (22) | generation (9) | side (1)
//!   number    slot (22) | generation (9)
//! ```
//!
//! Bearers whose slots leave the same rest when they are divided by 1024 are a shard: they are one worker's.
//!
//! A slot that is used again has another generation: what is still sent to the bearer that was there before is of no tunnel. Generations
//! begin at 1, so that no TEID is 0.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::mark::Marking;
use crate::meter::Limit;

/// Where a packet comes from, or goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The core network, or the central unit: N9, N3 of a base station, F1-U.
    Core,
    /// The radio network, or the distributed unit.
    Radio,
}

impl Side {
    /// Both, in the order of arrays that have one for each.
    pub const BOTH: [Side; 2] = [Side::Core, Side::Radio];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::Core => Side::Radio,
            Side::Radio => Side::Core,
        }
    }

    /// A word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Side::Core => "core",
            Side::Radio => "radio",
        }
    }

    fn of(bit: u32) -> Side {
        if bit & 1 == 0 {
            Side::Core
        } else {
            Side::Radio
        }
    }
}

/// A tunnel's far end; or, with 0 for its TEID, no tunnel: on this side are the user's packets as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its address; without a tunnel the user's, of which of IPv6 the upper half counts. Of two addresses it is that of IPv4.
    pub address: IpAddr,
    /// By what number it knows the tunnel.
    pub teid: u32,
}

impl Peer {
    /// No tunnel: a user's packets, as they are.
    #[must_use]
    pub fn plain(user: IpAddr) -> Peer {
        Peer {
            address: user,
            teid: 0,
        }
    }

    /// Whether there is no tunnel.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.teid == 0
    }
}

/// What passed, towards one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Users' packets.
    pub packets: u64,
    /// Their bytes, without outer headers.
    pub bytes: u64,
}

/// Which QoS flow a packet is of that goes to a side, as its PDU Session Container says (TS 38.415).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Flows {
    /// That which it came with; none, if it came with none.
    #[default]
    Kept,
    /// None: it goes without a container.
    Removed,
    /// This one, 0 to 63.
    Set(u8),
    /// By the one that it came with; what has no place in the map, or came with none, is dropped.
    Mapped(Box<[Option<u8>; 64]>),
}

/// From how much on a report is due, of both directions together; 0 is never. Each report begins it anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// Users' packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Seconds in which any passed.
    pub seconds: u32,
}

impl Thresholds {
    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Thresholds::default()
    }
}

/// The number of what limits all of a user's bearers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MeterId(pub(crate) u32);

/// A bearer. Arrays have a place for what goes towards either side, that of the core network first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// Towards the core network.
    pub core: Peer,
    /// Towards the radio network.
    pub radio: Peer,
    /// The user's other address, of IPv6, on a side without a tunnel.
    pub user_v6: Option<Ipv6Addr>,
    /// Whether packets pass.
    pub gates: [bool; 2],
    /// What passed.
    pub usage: [Usage; 2],
    /// Seconds in which any packet passed.
    pub active_s: u32,
    /// Packets are held until this ends.
    pub paused: [bool; 2],
    /// Of which QoS flow packets are.
    pub flows: [Flows; 2],
    /// Users are to answer with the same QoS: containers towards the radio network that are written for [`Flows::Set`] say so (RQI).
    pub reflective: bool,
    /// These say this paging policy, 0 to 7 (PPI).
    pub paging_policy: Option<u8>,
    /// Which DSCP outer headers have.
    pub marking: [Marking; 2],
    /// How much may pass.
    pub limits: [Limit; 2],
    /// What limits all of this user's bearers together, if anything.
    pub user: Option<MeterId>,
    /// When reports are due.
    pub thresholds: Thresholds,
    /// Sequence and N-PDU numbers are handed on: data is forwarded between systems during a handover (TS 29.281, 5.1).
    pub forwards_numbers: bool,
    /// What became of packets is followed (TS 38.425).
    pub follows_delivery: bool,
}

impl Bearer {
    /// One whose gates are open, and that has nothing more.
    #[must_use]
    pub fn new(core: Peer, radio: Peer) -> Bearer {
        Bearer {
            core,
            radio,
            user_v6: None,
            gates: [true; 2],
            usage: [Usage::default(); 2],
            active_s: 0,
            paused: [false; 2],
            flows: [Flows::Kept, Flows::Kept],
            reflective: false,
            paging_policy: None,
            marking: [Marking::default(); 2],
            limits: [Limit::default(); 2],
            user: None,
            thresholds: Thresholds::default(),
            forwards_numbers: false,
            follows_delivery: false,
        }
    }

    /// The far end on a side.
    #[must_use]
    pub fn peer(&self, side: Side) -> Peer {
        match side {
            Side::Core => self.core,
            Side::Radio => self.radio,
        }
    }
}

/// A bearer's number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BearerId(u32);

const GENERATION_BITS: u32 = 9;
/// How many generations there are, with the one that none has.
pub(crate) const GENERATIONS: u32 = 1 << GENERATION_BITS;
/// Bearers of a table, at most.
pub const BEARERS_MAX: usize = 1 << (31 - GENERATION_BITS);
/// Into so many parts bearers are divided, by their slots: each is one worker's at a time, with all that is known of its bearers.
pub(crate) const SHARDS: usize = 1024;

impl BearerId {
    pub(crate) fn new(slot: usize, generation: u32) -> BearerId {
        BearerId((slot as u32) << GENERATION_BITS | generation)
    }

    #[inline]
    pub(crate) fn slot(self) -> usize {
        (self.0 >> GENERATION_BITS) as usize
    }

    /// Which shard it is of.
    #[inline]
    pub(crate) fn shard(self) -> u32 {
        (self.0 >> GENERATION_BITS) % SHARDS as u32
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        self.0 % GENERATIONS
    }

    /// By what number a peer of this side is to name the tunnel.
    #[inline]
    #[must_use]
    pub fn teid(self, side: Side) -> u32 {
        self.0 << 1 | side as u32
    }

    /// The number, and the side that it is for, of a TEID.
    #[inline]
    #[must_use]
    pub fn of(teid: u32) -> (BearerId, Side) {
        (BearerId(teid >> 1), Side::of(teid))
    }

    /// The number as it is written down.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// What was written down. It need not be of a bearer that there is.
    #[must_use]
    pub fn from_number(number: u32) -> BearerId {
        BearerId(number & (u32::MAX >> 1))
    }

    /// The same. None: it can be nobody's.
    #[must_use]
    pub fn checked(number: u32) -> Option<BearerId> {
        let id = BearerId(number);
        (number >> 31 == 0 && id.generation() != 0).then_some(id)
    }

    /// The next bearer in the same slot.
    pub(crate) fn next(self) -> BearerId {
        let generation = self.generation() % (GENERATIONS - 1) + 1;
        BearerId::new(self.slot(), generation)
    }
}

impl fmt::Display for BearerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
