//! What is kept of a bearer: one cache line that every packet needs, and the rest, which most bearers do not have.

use crate::bearer::{Flows, MeterId, Side, Thresholds, Usage};
use crate::delivery::Delivery;
use crate::hold::Queue;
use crate::meter::Bucket;
use crate::paths::PathId;

/// There is a bearer.
pub(crate) const OCCUPIED: u16 = 1 << 0;
/// Sequence numbers are handed on.
pub(crate) const NUMBERS: u16 = 1 << 1;
// Of these each side has one, the other side's being the next bit.
/// Packets pass towards it.
const GATE: u16 = 1 << 2;
/// Its far end is known.
const PEER: u16 = 1 << 4;
/// It has no tunnel.
const PLAIN: u16 = 1 << 6;
/// Without a tunnel: the user has an address of IPv6.
const USER_V6: u16 = 1 << 8;
/// The far end has said that it has no such tunnel.
const LOST: u16 = 1 << 10;
/// Without a tunnel: the user has an address of IPv4.
const USER_V4: u16 = 1 << 12;
/// No bearer is in the slot, and others may be.
pub(crate) const RESTING: u16 = 1 << 14;

const PATH_BITS: u32 = 24;
const FLOW_KEPT: u8 = 0xff;
const FLOW_REMOVED: u8 = 0xfe;
const FLOW_MAPPED: u8 = 0xfd;
const FLOW_MASK: u8 = 0x3f;
/// Of a QoS flow that is set: its container has the reflective QoS indicator.
pub(crate) const REFLECTIVE: u8 = 0x40;
/// No rest.
pub(crate) const NO_EXTRA: u32 = u32::MAX;
/// No slot.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// What every packet needs.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Hot {
    /// Of the bearer that is here, or of the next one.
    pub(crate) generation: u16,
    pub(crate) flags: u16,
    /// The far ends' numbers. Without a tunnel the user's address of IPv4.
    teid: [u32; 2],
    /// The number of a path, and above it a flow. Without a tunnel the number of the user's prefix of IPv6.
    road: [u32; 2],
    /// Where the rest is.
    pub(crate) extra: u32,
    pub(crate) usage: [Usage; 2],
    pub(crate) active_s: u32,
    /// In which second the last packet passed, of which there are so few that one may seem to be another after 18 hours.
    second: u16,
    pub(crate) marking: [u8; 2],
}

const _: () = assert!(size_of::<Hot>() == 64);

impl Hot {
    /// No bearer.
    pub(crate) fn empty(generation: u16) -> Hot {
        Hot {
            generation,
            flags: 0,
            teid: [0; 2],
            road: [u32::from(FLOW_KEPT) << PATH_BITS; 2],
            extra: NO_EXTRA,
            usage: [Usage::default(); 2],
            active_s: 0,
            second: 0,
            marking: [0; 2],
        }
    }

    /// Of a slot that rests: which ones are before and behind it in the list of all (0), and in that of its shard (1).
    pub(super) fn links_mut(&mut self, which: usize) -> &mut [u32; 2] {
        match which {
            0 => &mut self.teid,
            _ => &mut self.road,
        }
    }

    /// Of a slot that rests: so many had begun to when it did.
    pub(super) fn rest_since(&mut self, rested: u64) {
        self.usage[0].packets = rested;
    }

    pub(super) fn rests_since(&self) -> u64 {
        self.usage[0].packets
    }

    #[inline]
    fn has(&self, flag: u16, side: Side) -> bool {
        self.flags & flag << side as u16 != 0
    }

    fn set(&mut self, flag: u16, side: Side, is_set: bool) {
        let bit = flag << side as u16;
        self.flags = if is_set {
            self.flags | bit
        } else {
            self.flags & !bit
        };
    }

    #[inline]
    pub(crate) fn is_open(&self, to: Side) -> bool {
        self.has(GATE, to)
    }

    pub(crate) fn set_open(&mut self, to: Side, is_open: bool) {
        self.set(GATE, to, is_open);
    }

    #[inline]
    pub(crate) fn is_plain(&self, side: Side) -> bool {
        self.has(PLAIN, side)
    }

    pub(crate) fn has_peer(&self, side: Side) -> bool {
        self.has(PEER, side)
    }

    /// The user's address of IPv4.
    #[inline]
    pub(crate) fn user_v4(&self, side: Side) -> Option<u32> {
        self.has(USER_V4, side).then(|| self.teid(side))
    }

    /// The number of the user's prefix of IPv6.
    #[inline]
    pub(crate) fn user_v6(&self, side: Side) -> Option<u32> {
        self.has(USER_V6, side).then(|| self.path(side).0)
    }

    /// Marks a tunnel as one that the far end has not; whether it was not marked.
    pub(crate) fn lose(&mut self, side: Side) -> bool {
        let is_new = !self.has(LOST, side);
        self.set(LOST, side, true);
        is_new
    }

    /// Marks it as one that the far end may lose, again.
    pub(super) fn forget_loss(&mut self, side: Side) {
        self.set(LOST, side, false);
    }

    #[inline]
    pub(crate) fn teid(&self, side: Side) -> u32 {
        self.teid[side as usize]
    }

    #[inline]
    pub(crate) fn path(&self, side: Side) -> PathId {
        PathId(self.road[side as usize] & ((1 << PATH_BITS) - 1))
    }

    pub(crate) fn clear_peer(&mut self, side: Side) {
        for flag in [PEER, PLAIN, USER_V4, USER_V6, LOST] {
            self.set(flag, side, false);
        }
    }

    pub(crate) fn set_tunnel(&mut self, side: Side, path: PathId, teid: u32) {
        self.clear_peer(side);
        self.set(PEER, side, true);
        self.teid[side as usize] = teid;
        self.set_number(side, path.0);
    }

    /// No tunnel: addresses of the user's.
    pub(crate) fn set_user(&mut self, side: Side, v4: Option<u32>, v6: Option<u32>) {
        self.clear_peer(side);
        self.set(PEER, side, true);
        self.set(PLAIN, side, true);
        self.set(USER_V4, side, v4.is_some());
        self.set(USER_V6, side, v6.is_some());
        self.teid[side as usize] = v4.unwrap_or(0);
        self.set_number(side, v6.unwrap_or(0));
    }

    pub(super) fn set_number(&mut self, side: Side, number: u32) {
        let road = &mut self.road[side as usize];
        *road = *road >> PATH_BITS << PATH_BITS | number;
    }

    #[inline]
    pub(crate) fn flow(&self, to: Side) -> Flow {
        match (self.road[to as usize] >> PATH_BITS) as u8 {
            FLOW_KEPT => Flow::Kept,
            FLOW_REMOVED => Flow::Removed,
            FLOW_MAPPED => Flow::Mapped,
            flow => Flow::Set(flow),
        }
    }

    pub(crate) fn set_flow(&mut self, to: Side, flows: &Flows, is_reflective: bool) {
        let byte = match flows {
            Flows::Kept => FLOW_KEPT,
            Flows::Removed => FLOW_REMOVED,
            Flows::Mapped(_) => FLOW_MAPPED,
            Flows::Set(flow) if is_reflective => flow & FLOW_MASK | REFLECTIVE,
            Flows::Set(flow) => flow & FLOW_MASK,
        };
        let road = &mut self.road[to as usize];
        *road = *road & ((1 << PATH_BITS) - 1) | u32::from(byte) << PATH_BITS;
    }

    /// Counts a packet.
    #[inline]
    pub(crate) fn count(&mut self, to: Side, bytes: usize, now_ns: u64) {
        let usage = &mut self.usage[to as usize];
        usage.packets += 1;
        usage.bytes += bytes as u64;
        let second = (now_ns / 1_000_000_000) as u16;
        if second != self.second || self.active_s == 0 {
            self.second = second;
            self.active_s = self.active_s.saturating_add(1);
        }
    }
}

/// What is done with the QoS flow of what goes to a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Kept,
    Removed,
    /// With [`REFLECTIVE`], or without.
    Set(u8),
    Mapped,
}

pub(crate) type Map = Box<[Option<u8>; 64]>;

/// What few bearers have.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) buckets: [Bucket; 2],
    pub(crate) user: Option<MeterId>,
    pub(crate) thresholds: Thresholds,
    /// At the last report.
    pub(crate) reported: [Usage; 2],
    pub(crate) reported_s: u32,
    pub(crate) maps: [Option<Map>; 2],
    /// Of a QoS flow that is set towards the radio network.
    pub(crate) paging_policy: Option<u8>,
    pub(crate) paused: [bool; 2],
    pub(crate) queues: [Queue; 2],
    pub(crate) delivery: Option<Box<Delivery>>,
}

/// What limits a user's bearers together.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) buckets: [Bucket; 2],
    pub(crate) bearers: u32,
    /// Of the first of them.
    pub(crate) shard: u32,
}
