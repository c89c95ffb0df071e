//! Direct flows: frames that go where somebody said, and not where stations were heard.
//!
//! What a frame's headers say is put into one key of a fixed size. A flow has a mask and a value: the frame is the flow's when its key,
//! masked, is the value. Flows of one mask are looked up together, by hash, and masks in the order of the highest priority that any of
//! their flows has: a search ends where no later one can be higher.

use std::collections::HashMap;

use crate::parse::{self, Frame, Packet};
use crate::table::Seed;

/// In a key, the tag's bit that says drop-eligible says instead that there is a tag.
const TAGGED: u16 = 0x1000;
const IS_IP: u64 = 1;
const HAS_PORTS: u64 = 2;

/// What the headers of a frame say: addresses, then types and numbers, then those of the Internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Key([u64; 8]);

/// A field of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    EthernetSource,
    EthernetDestination,
    EtherType,
    /// Priority, "is there", and number.
    Tag,
    Protocol,
    TrafficClass,
    IpSource,
    IpDestination,
    SourcePort,
    DestinationPort,
}

impl Key {
    /// Of a frame with these first bytes.
    pub(crate) fn of(head: &[u8], frame: &Frame) -> Key {
        let mut key = Key::default();
        key.set(Field::EthernetDestination, frame.destination.0.into());
        key.set(Field::EthernetSource, frame.source.0.into());
        if let Some(tag) = frame.tag {
            key.set(Field::Tag, u128::from(tag | TAGGED));
        }
        if let Some((ether_type, _)) = parse::payload(head) {
            key.set(Field::EtherType, ether_type.into());
        }
        if let Some(packet) = Packet::parse(head) {
            key.set_ip();
            key.set(Field::Protocol, packet.protocol.into());
            key.set(Field::TrafficClass, packet.traffic_class.into());
            let of = |[high, low]: [u64; 2]| u128::from(high) << 64 | u128::from(low);
            key.set(Field::IpSource, of(packet.source));
            key.set(Field::IpDestination, of(packet.destination));
            if let Some((source, destination)) = packet.ports {
                key.set_ports();
                key.set(Field::SourcePort, source.into());
                key.set(Field::DestinationPort, destination.into());
            }
        }
        key
    }

    /// Sets bits of a field; higher ones than it has are of no meaning.
    pub(crate) fn set(&mut self, field: Field, value: u128) {
        let low = value as u64;
        match field {
            Field::EthernetDestination => self.0[0] |= low,
            Field::EthernetSource => self.0[1] |= low,
            Field::EtherType => self.0[2] |= low << 48,
            Field::Tag => self.0[2] |= (low & 0xffff) << 32,
            Field::Protocol => self.0[2] |= (low & 0xff) << 24,
            Field::TrafficClass => self.0[2] |= (low & 0xff) << 16,
            Field::IpSource => {
                self.0[3] |= (value >> 64) as u64;
                self.0[4] |= low;
            }
            Field::IpDestination => {
                self.0[5] |= (value >> 64) as u64;
                self.0[6] |= low;
            }
            Field::SourcePort => self.0[7] |= (low & 0xffff) << 16,
            Field::DestinationPort => self.0[7] |= low & 0xffff,
        }
    }

    /// Says that there are headers of the Internet.
    pub(crate) fn set_ip(&mut self) {
        self.0[2] |= IS_IP;
    }

    /// Says that there are ports.
    pub(crate) fn set_ports(&mut self) {
        self.0[2] |= HAS_PORTS;
    }

    fn masked(&self, mask: &Key) -> Key {
        let mut key = *self;
        for (word, mask) in key.0.iter_mut().zip(mask.0) {
            *word &= mask;
        }
        key
    }
}

/// Which frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub(crate) struct Match {
    mask: Key,
    value: Key,
}

impl Match {
    /// All frames.
    pub(crate) const ALL: Match = Match {
        mask: Key([0; 8]),
        value: Key([0; 8]),
    };

    /// Asks for bits of a field as well.
    pub(crate) fn and(&mut self, field: Field, value: u128, mask: u128) {
        self.mask.set(field, mask);
        self.value.set(field, value & mask);
        if !matches!(
            field,
            Field::EthernetDestination | Field::EthernetSource | Field::EtherType | Field::Tag
        ) {
            self.mask.set_ip();
            self.value.set_ip();
        }
        if matches!(field, Field::SourcePort | Field::DestinationPort) {
            self.mask.set_ports();
            self.value.set_ports();
        }
    }

    /// Asks for a VLAN, or for no tag.
    pub(crate) fn and_vlan(&mut self, vlan: u16) {
        if vlan == 0 {
            self.and(Field::Tag, 0, TAGGED.into());
        } else {
            let mask = TAGGED | parse::VLAN_MASK;
            self.and(Field::Tag, u128::from(vlan | TAGGED), mask.into());
        }
    }

    /// Asks for a priority in the tag.
    pub(crate) fn and_priority(&mut self, priority: u8) {
        let value = u16::from(priority) << 13 | TAGGED;
        self.and(Field::Tag, value.into(), u128::from(0xe000 | TAGGED));
    }
}

/// Flows of one mask.
#[derive(Debug)]
struct Group {
    mask: Key,
    highest: u32,
    flows: HashMap<Key, Found, Seed>,
}

/// A flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    priority: u32,
    flow: u16,
}

/// The flows of one port.
#[derive(Debug, Default)]
pub(crate) struct Table {
    groups: Vec<Group>,
}

impl Table {
    /// Of flows with their priorities and numbers. Of two that are the same, the one of higher priority counts, and then the first.
    pub(crate) fn new(flows: impl Iterator<Item = (Match, u32, u16)>) -> Table {
        let mut groups: Vec<Group> = Vec::new();
        for (wanted, priority, flow) in flows {
            let at = groups.iter().position(|group| group.mask == wanted.mask);
            let at = at.unwrap_or_else(|| {
                groups.push(Group {
                    mask: wanted.mask,
                    highest: 0,
                    flows: HashMap::with_hasher(Seed::FIXED),
                });
                groups.len() - 1
            });
            let group = &mut groups[at];
            group.highest = group.highest.max(priority);
            let found = Found { priority, flow };
            let kept = group.flows.entry(wanted.value).or_insert(found);
            if kept.priority < priority {
                *kept = found;
            }
        }
        groups.sort_by_key(|group| std::cmp::Reverse(group.highest));
        Table { groups }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The flow that all frames are of, whatever they are, if there is one that no other is above.
    pub(crate) fn of_all(&self) -> Option<u16> {
        let group = self.groups.first()?;
        let found = group.flows.get(&Key::default())?;
        (group.mask == Key::default()).then_some(found.flow)
    }

    /// The flow of highest priority that a frame is of.
    pub(crate) fn find(&self, key: &Key) -> Option<u16> {
        let mut best: Option<Found> = None;
        for group in &self.groups {
            if best.is_some_and(|best| best.priority >= group.highest) {
                break;
            }
            let found = group.flows.get(&key.masked(&group.mask));
            if let Some(found) = found
                && best.is_none_or(|best| best.priority < found.priority)
            {
                best = Some(*found);
            }
        }
        best.map(|found| found.flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *state >> 33
    }

    #[test]
    fn a_search_finds_what_looking_at_each_finds() {
        let mut state = 1;
        for _ in 0..300 {
            let flows: Vec<(Match, u32, u16)> = (0..20)
                .map(|flow| {
                    let mut wanted = Match::ALL;
                    let bits = random(&mut state);
                    if bits & 1 == 1 {
                        wanted.and(Field::DestinationPort, u128::from(bits >> 8 & 3), 3);
                    }
                    if bits & 2 == 2 {
                        wanted.and(Field::IpSource, u128::from(bits >> 12 & 3), 2);
                    }
                    if bits & 4 == 4 {
                        wanted.and_vlan((bits >> 16 & 3) as u16);
                    }
                    (wanted, (bits >> 20 & 7) as u32, flow)
                })
                .collect();
            let table = Table::new(flows.iter().copied());
            for _ in 0..50 {
                let bits = random(&mut state);
                let mut key = Key::default();
                if bits & 1 == 1 {
                    key.set_ip();
                    key.set(Field::IpSource, u128::from(bits >> 4 & 3));
                }
                if bits & 3 == 3 {
                    key.set_ports();
                    key.set(Field::DestinationPort, u128::from(bits >> 8 & 3));
                }
                if bits & 4 == 4 {
                    let tag = (bits >> 12 & 3) as u16 | TAGGED;
                    key.set(Field::Tag, tag.into());
                }
                let fits = |flow: &&(Match, u32, u16)| key.masked(&flow.0.mask) == flow.0.value;
                let highest = flows.iter().filter(fits).map(|flow| flow.1).max();
                let found = table.find(&key).map(|flow| flows[usize::from(flow)]);
                assert_eq!(found.map(|flow| flow.1), highest);
                assert!(found.iter().all(|flow| fits(&flow)));
            }
        }
    }

    #[test]
    fn a_flow_of_all_frames_is_known_unless_another_is_above() {
        let mut some = Match::ALL;
        some.and(Field::Protocol, 6, 0xff);
        let table = |priority| Table::new([(Match::ALL, 5, 1), (some, priority, 2)].into_iter());
        assert_eq!(table(4).of_all(), Some(1));
        assert_eq!(table(6).of_all(), None);
        assert_eq!(Table::default().of_all(), None);
    }

    #[test]
    fn a_port_is_not_found_where_there_is_none() {
        let mut wanted = Match::ALL;
        wanted.and(Field::SourcePort, 0, 0xffff);
        let table = Table::new([(wanted, 1, 0)].into_iter());
        let head = [0; 60];
        let frame = Frame::parse(&head).unwrap();
        assert_eq!(table.find(&Key::of(&head, &frame)), None);
    }
}
