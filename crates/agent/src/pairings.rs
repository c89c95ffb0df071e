//! Who was introduced to whom. Pure bookkeeping, but for the mapping of the segment.
//!
//! | from | event | to |
//! |---|---|---|
//! | absent | `insert`: a segment was handed out | paired |
//! | paired | `end` (an end is withdrawn), `end_client` (its client is gone), its offer's id is used again | left |
//! | left | the same of the other end; `forget` (nobody has the segment mapped any more) | absent |
//!
//! A pairing maps its segment, and the memory is charged while anybody does: of what is left nothing is mapped here.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use millrace_shm::segment::Segment;
use millrace_wire::Offer;

use crate::offers::{ClientId, OfferKey};

/// One end, as it was proved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairedEnd {
    pub(crate) client: ClientId,
    pub(crate) offer: Offer,
    /// The number in `socket:[…]`.
    pub(crate) inode: u64,
}

impl PairedEnd {
    pub(crate) fn new(client: ClientId, offer: Offer, inode: u64) -> PairedEnd {
        PairedEnd {
            client,
            offer,
            inode,
        }
    }

    pub(crate) fn key(&self) -> OfferKey {
        (self.client, self.offer.offer_id)
    }
}

/// The two ends of a connection that got a segment.
#[derive(Debug)]
pub(crate) struct Pairing {
    pub(crate) connection_id: u64,
    /// By the direction in which they send.
    pub(crate) ends: [PairedEnd; 2],
    pub(crate) segment: Segment,
    /// Bytes of each direction's large ring that have been allocated.
    pub(crate) granted: [u32; 2],
}

/// Mappings of the agent that pairings leave for everything else: a board of each program, counters of channels' links.
const MAPPINGS_KEPT: usize = 20_000;
/// What the kernel lets a process have by default (`vm.max_map_count`), where it does not say.
const MAPPINGS_DEFAULT: usize = 65_530;

/// The pairings of which neither end has gone, and what is left of others.
#[derive(Debug)]
pub(crate) struct Pairings {
    /// So many at most.
    max: usize,
    by_id: HashMap<u64, Pairing>,
    /// The ends, one of which has gone.
    left: HashMap<u64, [PairedEnd; 2]>,
    by_offer: BTreeMap<OfferKey, u64>,
}

impl Default for Pairings {
    fn default() -> Pairings {
        let text = fs::read_to_string("/proc/sys/vm/max_map_count");
        let mappings = text.ok().and_then(|text| text.trim().parse().ok());
        let mappings: usize = mappings.unwrap_or(MAPPINGS_DEFAULT);
        Pairings {
            max: mappings.saturating_sub(MAPPINGS_KEPT),
            by_id: HashMap::new(),
            left: HashMap::new(),
            by_offer: BTreeMap::new(),
        }
    }
}

impl Pairings {
    /// Whether there may be another one. A program that finds no mapping for its board is turned away, while a connection without a pairing
    /// goes on as it is.
    pub(crate) fn has_room(&self) -> bool {
        self.by_id.len() < self.max
    }

    pub(crate) fn insert(&mut self, pairing: Pairing) {
        for end in &pairing.ends {
            self.end(end.key());
        }
        for end in &pairing.ends {
            self.by_offer.insert(end.key(), pairing.connection_id);
        }
        self.by_id.insert(pairing.connection_id, pairing);
    }

    /// The pairing that an offer led to, and the direction in which the end that offered sends.
    pub(crate) fn get(&self, key: OfferKey) -> Option<(&Pairing, usize)> {
        let pairing = self.by_id.get(self.by_offer.get(&key)?)?;
        let direction = pairing.ends.iter().position(|end| end.key() == key)?;
        Some((pairing, direction))
    }

    /// Notes that the direction in which the end that offered sends has so much of its large ring.
    pub(crate) fn grant(&mut self, key: OfferKey, bytes: u32) {
        if let Some(pairing) = self
            .by_offer
            .get(&key)
            .and_then(|id| self.by_id.get_mut(id))
            && let Some(direction) = pairing.ends.iter().position(|end| end.key() == key)
        {
            pairing.granted[direction] = bytes;
        }
    }

    /// The pairing of that number.
    pub(crate) fn by_id(&self, connection_id: u64) -> Option<&Pairing> {
        self.by_id.get(&connection_id)
    }

    /// The connection that an offer led to when its other end has gone, and the direction in which the end that offered sends.
    pub(crate) fn left(&self, key: OfferKey) -> Option<(u64, usize)> {
        let id = *self.by_offer.get(&key)?;
        let ends = self.left.get(&id)?;
        Some((id, ends.iter().position(|end| end.key() == key)?))
    }

    /// The ends of a connection, one of which has gone.
    pub(crate) fn left_by_id(&self, connection_id: u64) -> Option<&[PairedEnd; 2]> {
        self.left.get(&connection_id)
    }

    /// An end that an offer led to has gone, if there is one.
    pub(crate) fn end(&mut self, key: OfferKey) {
        let Some(id) = self.by_offer.remove(&key) else {
            return;
        };
        if let Some(pairing) = self.by_id.remove(&id) {
            self.left.insert(id, pairing.ends);
        }
        let is_its = |end: &PairedEnd| self.by_offer.get(&end.key()) == Some(&id);
        if !self
            .left
            .get(&id)
            .is_some_and(|ends| ends.iter().any(is_its))
        {
            self.left.remove(&id);
        }
    }

    /// Nobody has the segment any more.
    pub(crate) fn forget(&mut self, connection_id: u64) {
        for end in self.left.remove(&connection_id).iter().flatten() {
            if self.by_offer.get(&end.key()) == Some(&connection_id) {
                self.by_offer.remove(&end.key());
            }
        }
    }

    /// The pairings of a client, and the direction in which it sends in each.
    pub(crate) fn of_client(&self, client: ClientId) -> impl Iterator<Item = (&Pairing, usize)> {
        let keys = self.by_offer.range((client, 0)..=(client, u64::MAX));
        keys.filter_map(|(&key, _)| self.get(key))
    }

    /// The ends of a client have gone.
    pub(crate) fn end_client(&mut self, client: ClientId) {
        while let Some((&key, _)) = self.by_offer.range((client, 0)..=(client, u64::MAX)).next() {
            self.end(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use millrace_wire::{Address, End, Family};

    use super::*;

    fn end(client: u64, offer_id: u64) -> PairedEnd {
        let nowhere = Address {
            ip: [0; 16],
            port: 0,
        };
        let offer = Offer {
            offer_id,
            fd: 0,
            row: 0,
            family: Family::V4,
            end: End::Active,
            local: nowhere,
            remote: nowhere,
            cookie: 0,
            netns_cookie: 0,
        };
        PairedEnd::new(ClientId(client), offer, 1)
    }

    fn pairing(connection_id: u64, ends: [PairedEnd; 2]) -> Pairing {
        let fd = millrace_shm::segment::create(4096).unwrap();
        Pairing {
            connection_id,
            ends,
            segment: Segment::attach(fd.as_fd(), 4096).unwrap(),
            granted: [0; 2],
        }
    }

    #[test]
    fn a_pairing_ends_with_either_of_its_ends() {
        let mut pairings = Pairings::default();
        let keys = [(ClientId(1), 5), (ClientId(2), 5)];
        let ends: [fn(&mut Pairings); 4] = [
            |pairings| pairings.end((ClientId(1), 5)),
            |pairings| pairings.end((ClientId(2), 5)),
            |pairings| pairings.end_client(ClientId(1)),
            |pairings| pairings.end_client(ClientId(2)),
        ];
        for finish in ends {
            pairings.insert(pairing(9, [end(1, 5), end(2, 5)]));
            let directions = keys.map(|key| pairings.get(key).unwrap().1);
            assert_eq!(directions, [0, 1]);
            finish(&mut pairings);
            assert!(keys.iter().all(|key| pairings.get(*key).is_none()));
            pairings.forget(9);
            assert!(pairings.left.is_empty() && pairings.by_offer.is_empty());
        }
    }

    #[test]
    fn who_is_left_is_known_until_it_goes_or_nobody_has_the_segment() {
        let mut pairings = Pairings::default();
        let [gone, left] = [(ClientId(1), 5), (ClientId(2), 5)];
        for by_memory in [false, true] {
            pairings.insert(pairing(9, [end(1, 5), end(2, 5)]));
            pairings.insert(pairing(10, [end(1, 6), end(1, 7)]));
            pairings.end_client(ClientId(1));
            assert!(pairings.left(gone).is_none());
            assert_eq!(pairings.left(left), Some((9, 1)));
            assert!(pairings.left_by_id(9).is_some() && pairings.left_by_id(10).is_none());
            if by_memory {
                pairings.forget(9);
            } else {
                pairings.end(left);
            }
            assert!(pairings.left.is_empty() && pairings.by_offer.is_empty());
        }
    }

    #[test]
    fn an_id_that_is_used_again_stands_for_the_new_offer() {
        let mut pairings = Pairings::default();
        pairings.insert(pairing(1, [end(1, 5), end(1, 6)]));
        pairings.insert(pairing(2, [end(1, 6), end(3, 7)]));
        assert!(pairings.get((ClientId(1), 5)).is_none());
        assert_eq!(pairings.get((ClientId(1), 6)).unwrap().0.connection_id, 2);
        assert_eq!((pairings.by_id.len(), pairings.left.len()), (1, 1));
        pairings.end_client(ClientId(3));
        pairings.end_client(ClientId(1));
        assert!(pairings.left.is_empty() && pairings.by_offer.is_empty());
    }
}
