//! Which station is where: what a switch learns from the frames that come.
//!
//! Each worker has a table of its own, and tells the others what is new. Nothing is allocated while it is used: there is room from the
//! start for as many stations as there may be.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::address::Mac;

/// A full table is looked through for what is too old at most this often.
const SWEEP_NS: u64 = 1_000_000_000;
/// A station that was heard of so short a time ago is not written down again: the table stays as it is for other processors' sake, and
/// other workers are not told each time.
pub(crate) const REFRESH_NS: u64 = 1_000_000_000;

/// A station in a VLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Station(u64);

impl Station {
    /// The address above, the VLAN below.
    #[inline]
    pub(crate) fn new(mac: Mac, vlan: u16) -> Station {
        Station(mac.0 << 16 | u64::from(vlan))
    }

    pub(crate) fn mac(self) -> Mac {
        Mac(self.0 >> 16)
    }

    pub(crate) fn vlan(self) -> u16 {
        self.0 as u16
    }
}

/// Where a station is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    port: u16,
    seen_ns: u64,
}

/// What hashes follow from. Addresses are chosen by whoever sends: one who knew the seed could choose such that all are in one place of
/// the table, and each look-up there, anybody's, would take as long as there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seed {
    word: u64,
    /// Of an unknown number, since differences of words that collide follow from it.
    factor: u64,
}

impl Seed {
    /// For what no peer fills.
    pub(crate) const FIXED: Seed = Seed {
        word: 0x9e37_79b9_7f4a_7c15,
        factor: 0xd6e8_feb8_6659_fd93,
    };

    /// One that nobody knows: what the operating system gave this thread for all its tables, and each table another one.
    pub(crate) fn random() -> Seed {
        let random = RandomState::new();
        Seed {
            word: random.hash_one(0),
            factor: random.hash_one(1) | 1,
        }
    }
}

impl BuildHasher for Seed {
    type Hasher = Mix;

    #[inline]
    fn build_hasher(&self) -> Mix {
        Mix {
            state: self.word,
            factor: self.factor,
        }
    }
}

/// Mixes words: by a product of twice the length, of which both halves count.
#[derive(Debug)]
pub(crate) struct Mix {
    state: u64,
    factor: u64,
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}

/// What became of what was to be learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Learnt {
    /// It was known, and not long ago.
    Known,
    /// It is new, or was not heard of for a while, or is at another port now: others should know.
    News,
    /// There is no room for it, or its port has as many as it may.
    NoRoom,
}

/// How much a table holds, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Stations in all.
    pub(crate) entries: usize,
    /// What was not heard of for so long is forgotten.
    pub(crate) age_ns: u64,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Table {
    places: HashMap<Station, Place, Seed>,
    /// Stations of each port, with those that are too old.
    counts: Vec<u32>,
    limits: Limits,
    swept_ns: Option<u64>,
}

impl Table {
    pub(crate) fn new(limits: Limits) -> Table {
        Table {
            places: HashMap::with_capacity_and_hasher(
                limits.entries + limits.entries / 4,
                Seed::random(),
            ),
            counts: Vec::new(),
            limits,
            swept_ns: None,
        }
    }

    /// Has room for the counts of so many ports.
    pub(crate) fn set_ports(&mut self, ports: usize) {
        self.counts.resize(ports.max(self.counts.len()), 0);
    }

    /// Where a station is.
    #[inline]
    pub(crate) fn find(&self, station: Station, now_ns: u64) -> Option<u16> {
        let place = self.places.get(&station)?;
        self.is_young(*place, now_ns).then_some(place.port)
    }

    #[inline]
    fn is_young(&self, place: Place, now_ns: u64) -> bool {
        now_ns.saturating_sub(place.seen_ns) <= self.limits.age_ns
    }

    /// Writes down that a station is at a port, which may have so many.
    #[inline]
    pub(crate) fn learn(&mut self, station: Station, port: u16, most: u32, now_ns: u64) -> Learnt {
        if let Some(place) = self.places.get(&station)
            && place.port == port
            && now_ns.saturating_sub(place.seen_ns) < REFRESH_NS.min(self.limits.age_ns / 2)
        {
            return Learnt::Known;
        }
        self.write(station, port, most, now_ns)
    }

    fn write(&mut self, station: Station, port: u16, most: u32, now_ns: u64) -> Learnt {
        let before = self.places.get(&station).map(|place| place.port);
        let moved = before != Some(port);
        if moved && self.count(port) >= most {
            self.sweep(now_ns);
            if self.count(port) >= most {
                return Learnt::NoRoom;
            }
        }
        if before.is_none() && self.places.len() >= self.limits.entries {
            self.sweep(now_ns);
            if self.places.len() >= self.limits.entries {
                return Learnt::NoRoom;
            }
        }
        // Sweeping may have forgotten it.
        let place = Place {
            port,
            seen_ns: now_ns,
        };
        if let Some(old) = self.places.insert(station, place) {
            self.counts[usize::from(old.port)] -= 1;
        }
        self.counts[usize::from(port)] += 1;
        Learnt::News
    }

    /// Stations that are known to be at a port.
    pub(crate) fn count(&self, port: u16) -> u32 {
        self.counts.get(usize::from(port)).copied().unwrap_or(0)
    }

    fn sweep(&mut self, now_ns: u64) {
        if self
            .swept_ns
            .is_some_and(|swept| now_ns.saturating_sub(swept) < SWEEP_NS)
        {
            return;
        }
        self.swept_ns = Some(now_ns);
        let limits = self.limits;
        self.retain(|place| now_ns.saturating_sub(place.seen_ns) <= limits.age_ns);
    }

    fn retain(&mut self, holds: impl Fn(&Place) -> bool) {
        let counts = &mut self.counts;
        self.places.retain(|_, place| {
            let kept = holds(place);
            if !kept {
                counts[usize::from(place.port)] -= 1;
            }
            kept
        });
    }

    /// Forgets the stations of a port.
    pub(crate) fn forget_port(&mut self, port: u16) {
        if self.count(port) > 0 {
            self.retain(|place| place.port != port);
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.counts.fill(0);
    }

    /// Those that are not too old, with their ports and for how long nothing was heard of them.
    pub(crate) fn list(&self, now_ns: u64) -> Vec<(Station, u16, u64)> {
        self.places
            .iter()
            .filter(|(_, place)| self.is_young(**place, now_ns))
            .map(|(station, place)| {
                let silent_ns = now_ns.saturating_sub(place.seen_ns);
                (*station, place.port, silent_ns)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn table(entries: usize) -> Table {
        let mut table = Table::new(Limits {
            entries,
            age_ns: 300 * SECOND_NS,
        });
        table.set_ports(4);
        table
    }

    fn station(number: u64) -> Station {
        Station::new(Mac(0x0200_0000_0000 + number), (number % 3) as u16)
    }

    #[test]
    fn stations_are_forgotten_when_they_are_silent() {
        let mut table = table(16);
        assert_eq!(table.learn(station(1), 2, 10, 0), Learnt::News);
        assert_eq!(table.learn(station(1), 2, 10, 5), Learnt::Known);
        assert_eq!(table.find(station(1), 300 * SECOND_NS), Some(2));
        assert_eq!(table.find(station(1), 300 * SECOND_NS + 1), None);
        assert_eq!(table.find(station(2), 0), None);
        assert_eq!((station(7).mac().0 & 0xff, station(7).vlan()), (7, 1));
    }

    #[test]
    fn a_station_that_moves_is_where_it_was_heard_last() {
        let mut table = table(16);
        table.learn(station(1), 2, 10, 0);
        assert_eq!(table.learn(station(1), 3, 10, 1), Learnt::News);
        assert_eq!(table.find(station(1), 1), Some(3));
        assert_eq!((table.count(2), table.count(3)), (0, 1));
    }

    #[test]
    fn limits_hold_for_a_port_and_for_all() {
        let mut table = table(8);
        for number in 0..5 {
            let expected = if number < 3 {
                Learnt::News
            } else {
                Learnt::NoRoom
            };
            assert_eq!(table.learn(station(number), 0, 3, 0), expected);
        }
        for number in 10..17 {
            let expected = if number < 15 {
                Learnt::News
            } else {
                Learnt::NoRoom
            };
            assert_eq!(table.learn(station(number), 1, 100, 0), expected);
        }
        // One that is known stays so, and may move when there is room at the other port.
        assert_eq!(table.learn(station(0), 1, 100, 0), Learnt::News);
        // The old make room.
        let late = 400 * SECOND_NS;
        assert_eq!(table.learn(station(50), 1, 100, late), Learnt::News);
        assert_eq!((table.count(0), table.count(1)), (0, 1));
        assert_eq!(table.list(late).len(), 1);
    }

    #[test]
    fn who_knows_the_program_cannot_choose_stations_of_one_place() {
        let place = |seed: &Seed, number| seed.hash_one(station(number)) & 0xfff;
        let chosen = (0..).filter(|number| place(&Seed::FIXED, *number) == 0);
        let chosen: Vec<u64> = chosen.take(256).collect();
        let places = |table: &Table| -> Vec<u64> {
            let places = chosen.iter().map(|one| place(table.places.hasher(), *one));
            places.collect()
        };
        let (one, other) = (places(&table(16)), places(&table(16)));
        let different: BTreeSet<&u64> = one.iter().collect();
        // 248 of 256, by chance.
        assert!(different.len() > 192, "{} places", different.len());
        assert_ne!(one, other, "two tables have one seed");
    }

    #[test]
    fn it_is_as_a_map_that_is_aged() {
        let mut table = table(64);
        let mut model: BTreeMap<u64, (u16, u64)> = BTreeMap::new();
        let mut state = 7u64;
        let mut now = 0;
        for _ in 0..20_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (number, port) = (state >> 40 & 31, (state >> 50 & 3) as u16);
            now += (state >> 60) * SECOND_NS;
            match state >> 33 & 15 {
                0 => {
                    table.forget_port(port);
                    model.retain(|_, place| place.0 != port);
                }
                1..=9 => {
                    let known = table.learn(station(number), port, 100, now) == Learnt::Known;
                    if !known {
                        model.insert(number, (port, now));
                    }
                }
                _ => {
                    let place = model.get(&number);
                    let young = place.filter(|place| now - place.1 <= 300 * SECOND_NS);
                    assert_eq!(table.find(station(number), now), young.map(|place| place.0));
                }
            }
            let counted: u32 = (0..4).map(|port| table.count(port)).sum();
            assert_eq!(counted as usize, table.places.len());
        }
    }
}
