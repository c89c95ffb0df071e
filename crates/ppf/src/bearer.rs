//! Bearers: what joins a tunnel on one side and one on the other.
//!
//! A bearer's number and its TEIDs say where it is, so that nothing is searched for:
//!
//! ```text
//!   TEID      slot (22) | generation (9) | side (1)
//!   number    slot (22) | generation (9)
//! ```
//!
//! A slot that is used again has another generation: what is still sent to the bearer that was there before is of no tunnel. Generations
//! begin at 1, so that no TEID is 0.

use std::fmt;
use std::net::IpAddr;

/// Where a packet comes from, or goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The core network, or the central unit: N9, N3 of a base station, F1-U.
    Core,
    /// The radio network, or the distributed unit.
    Radio,
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Side {
        match self {
            Side::Core => Side::Radio,
            Side::Radio => Side::Core,
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

/// A tunnel's far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// By what number it knows the tunnel.
    pub teid: u32,
}

/// What passed, towards one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Users' packets.
    pub packets: u64,
    /// Their bytes, without outer headers.
    pub bytes: u64,
}

/// A bearer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    /// Towards the core network.
    pub core: Peer,
    /// Towards the radio network.
    pub radio: Peer,
    /// Whether packets pass towards the core network, and towards the radio network.
    pub gates: [bool; 2],
    /// What passed towards either.
    pub usage: [Usage; 2],
}

impl Bearer {
    /// One whose gates are open.
    #[must_use]
    pub fn new(core: Peer, radio: Peer) -> Bearer {
        Bearer {
            core,
            radio,
            gates: [true; 2],
            usage: [Usage::default(); 2],
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BearerId(u32);

const GENERATION_BITS: u32 = 9;
const GENERATIONS: u32 = 1 << GENERATION_BITS;
/// Bearers of a table, at most.
pub const BEARERS_MAX: usize = 1 << (31 - GENERATION_BITS);

impl BearerId {
    fn new(slot: usize, generation: u32) -> BearerId {
        BearerId((slot as u32) << GENERATION_BITS | generation)
    }

    fn slot(self) -> usize {
        (self.0 >> GENERATION_BITS) as usize
    }

    fn generation(self) -> u32 {
        self.0 % GENERATIONS
    }

    /// By what number a peer of this side is to name the tunnel.
    #[must_use]
    pub fn teid(self, side: Side) -> u32 {
        self.0 << 1 | side as u32
    }

    /// The number, and the side that it is for, of a TEID.
    #[must_use]
    pub fn of(teid: u32) -> (BearerId, Side) {
        (BearerId(teid >> 1), Side::of(teid))
    }
}

impl fmt::Display for BearerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// So many slots rest at least, before one is used again.
const REST_MIN: usize = 64;

#[derive(Debug)]
struct Slot {
    /// Of the bearer that is here, or of the next one.
    generation: u32,
    bearer: Option<Bearer>,
}

/// All bearers.
#[derive(Debug, Default)]
pub struct Table {
    slots: Vec<Slot>,
    /// Slots without a bearer, the one that has been so for longest first: its generation is the least likely to be known still.
    free: std::collections::VecDeque<u32>,
}

impl Table {
    /// None yet.
    #[must_use]
    pub fn new() -> Table {
        Table::default()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a bearer. None: there are [`BEARERS_MAX`].
    pub fn add(&mut self, bearer: Bearer) -> Option<BearerId> {
        // Slots rest while there are others: late packets come to nobody then.
        let rest = (self.slots.len() / 8).max(REST_MIN);
        let slot = if self.free.len() > rest || self.slots.len() == BEARERS_MAX {
            self.free.pop_front()? as usize
        } else {
            self.slots.push(Slot {
                generation: 1,
                bearer: None,
            });
            self.slots.len() - 1
        };
        let place = &mut self.slots[slot];
        place.bearer = Some(bearer);
        Some(BearerId::new(slot, place.generation))
    }

    /// A bearer, if there is one of this number.
    #[inline]
    #[must_use]
    pub fn get(&self, id: BearerId) -> Option<&Bearer> {
        let slot = self.slots.get(id.slot())?;
        slot.bearer
            .as_ref()
            .filter(|_| slot.generation == id.generation())
    }

    /// The same, to be changed.
    #[inline]
    pub fn get_mut(&mut self, id: BearerId) -> Option<&mut Bearer> {
        let slot = self.slots.get_mut(id.slot())?;
        slot.bearer
            .as_mut()
            .filter(|_| slot.generation == id.generation())
    }

    /// Takes a bearer away.
    pub fn remove(&mut self, id: BearerId) -> Option<Bearer> {
        self.get(id)?;
        let slot = &mut self.slots[id.slot()];
        slot.generation = slot.generation % (GENERATIONS - 1) + 1;
        self.free.push_back(id.slot() as u32);
        slot.bearer.take()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (BearerId, &Bearer)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(number, slot)| {
            let bearer = slot.bearer.as_ref()?;
            Some((BearerId::new(number, slot.generation), bearer))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn bearer(number: u32) -> Bearer {
        let peer = |teid| Peer {
            address: IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number)),
            teid,
        };
        Bearer::new(peer(number), peer(!number))
    }

    #[test]
    fn a_bearer_is_found_by_both_of_its_teids_until_it_is_gone() {
        let mut table = Table::new();
        let ids: Vec<_> = (0..100)
            .map(|number| table.add(bearer(number)).unwrap())
            .collect();
        for (number, id) in (0..).zip(&ids) {
            for side in [Side::Core, Side::Radio] {
                assert_ne!(id.teid(side), 0);
                assert_eq!(BearerId::of(id.teid(side)), (*id, side));
            }
            assert_eq!(table.get(*id), Some(&bearer(number)));
        }
        assert_eq!(table.remove(ids[7]), Some(bearer(7)));
        assert_eq!(
            (table.remove(ids[7]), table.get(ids[7]), table.len()),
            (None, None, 99)
        );
        assert_eq!(table.iter().count(), 99);
    }

    #[test]
    fn a_slot_that_is_used_again_is_of_another_generation() {
        let mut table = Table::new();
        let mut seen = std::collections::HashSet::new();
        for number in 0..5000 {
            let id = table.add(bearer(number)).unwrap();
            if number >= 16 {
                assert!(table.remove(id).is_some());
            }
            assert!(seen.insert(id), "{number}: {id} again");
            assert_ne!(id.generation(), 0);
        }
        assert!(table.slots.len() < 100, "{}", table.slots.len());
    }
}
