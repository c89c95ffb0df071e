//! Puts outer packets together whose fragments come: whole UDP datagrams come out, whatever the order.
//!
//! A packet whose fragments overlap is dropped with all of them, those that are still to come too (RFC 5722 for IPv6, and no host has a
//! reason for it in IPv4 either: it is how filters are deceived). Memory, packets and time have limits; when memory or places are short,
//! the packet that has waited longest goes.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::cause::{Cause, Drops};
use crate::fragment::Fragment;
use crate::mark::{CE, ECN_MASK};

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReassemblyLimits {
    /// Packets of which a part has come.
    pub packets: usize,
    /// Bytes of their parts.
    pub bytes: usize,
    /// Parts of one packet.
    pub parts: usize,
    /// None is waited for longer.
    ///
    /// RFC 8200 (4.5) has 60 s, which is from slower times: parts follow each other within milliseconds, and the number of a packet of IPv4
    /// comes again after 65 536 of them, in less than a second at 100 000 packets a second. Whoever still waits then puts together what are
    /// parts of two packets (RFC 4963), and messages in IPv4 mostly have no checksum that would tell.
    pub age_ns: u64,
}

impl Default for ReassemblyLimits {
    fn default() -> Self {
        ReassemblyLimits {
            packets: 1024,
            bytes: 4 << 20,
            parts: 64,
            age_ns: 1_000_000_000,
        }
    }
}

/// What became of a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The packet is whole: this is behind its header.
    Whole {
        /// What it is: 17 is UDP.
        protocol: u8,
        /// The traffic class, of which ECN is that of all parts (RFC 3168, 5.3).
        class: u8,
        /// Of how many parts it is.
        parts: usize,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Others are missing.
    Waits,
    /// It was dropped, and it was counted.
    Drops(Cause),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// Of IPv4; IPv6's packets are told apart by their numbers alone.
    protocol: u8,
}

#[derive(Debug)]
struct Packet {
    /// Tells it from others that had its key before.
    number: u64,
    /// Parts in the order in which they came.
    bytes: Vec<u8>,
    /// Where each begins in the packet, how long it is, and where it is in `bytes`; in the packet's order.
    parts: Vec<(usize, usize, usize)>,
    /// How long the packet is, once its last part has come.
    total: Option<usize>,
    /// Of the first part.
    class: u8,
    protocol: u8,
    /// Bits of the ECNs that came: 1 is Not-ECT, 8 is CE.
    ecns: u8,
    /// What else comes is dropped.
    is_dead: bool,
}

/// Puts packets together.
#[derive(Debug)]
pub struct Reassembler {
    limits: ReassemblyLimits,
    packets: HashMap<Key, Packet>,
    /// The oldest first, with its number and its end. Some have gone and are still in it, but never the first.
    order: VecDeque<(Key, u64, u64)>,
    numbers: u64,
    bytes: usize,
    whole: Vec<u8>,
    drops: Drops,
}

impl Reassembler {
    /// Nothing yet.
    #[must_use]
    pub fn new(limits: ReassemblyLimits) -> Reassembler {
        Reassembler {
            limits,
            packets: HashMap::new(),
            order: VecDeque::new(),
            numbers: 0,
            bytes: 0,
            whole: Vec::new(),
            drops: Drops::default(),
        }
    }

    /// What was dropped: fragments, and of those that were kept, each.
    #[must_use]
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Packets of which a part has come.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.packets.len()
    }

    /// Parts that have come of those packets.
    #[must_use]
    pub fn waiting_parts(&self) -> usize {
        self.packets.values().map(|packet| packet.parts.len()).sum()
    }

    /// Counts a part that cannot be one.
    pub(crate) fn refuse(&mut self, cause: Cause) {
        self.drops.add(cause);
    }

    /// Takes a fragment.
    pub fn handle_fragment(&mut self, fragment: &Fragment<'_>, now_ns: u64) -> Outcome<'_> {
        self.handle_timeout(now_ns);
        // One that is all of its packet has nothing to do with others of its number (RFC 6946).
        if fragment.at == 0 && !fragment.has_more {
            self.whole.clear();
            self.whole.extend_from_slice(fragment.payload);
            return Outcome::Whole {
                protocol: fragment.protocol,
                class: fragment.class,
                parts: 1,
                bytes: &self.whole,
            };
        }
        let key = Key {
            source: fragment.source,
            destination: fragment.destination,
            identification: fragment.identification,
            protocol: match fragment.source {
                IpAddr::V4(_) => fragment.protocol,
                IpAddr::V6(_) => 0,
            },
        };
        if fragment.payload.len() > self.limits.bytes || self.limits.packets == 0 {
            return self.drop(Cause::FragmentMemory);
        }
        self.make_room(&key, fragment.payload.len());
        self.begin(key, now_ns);
        let Some(packet) = self.packets.get_mut(&key) else {
            return self.drop(Cause::FragmentMemory);
        };
        match packet.take(fragment, self.limits.parts) {
            Ok(is_whole) => {
                self.bytes += fragment.payload.len();
                if is_whole {
                    self.finish(&key)
                } else {
                    Outcome::Waits
                }
            }
            Err(cause) => {
                if cause != Cause::FragmentTwice {
                    self.kill(&key, cause);
                }
                self.drop(cause)
            }
        }
    }

    fn drop(&mut self, cause: Cause) -> Outcome<'static> {
        self.drops.add(cause);
        Outcome::Drops(cause)
    }

    /// Forgets what has waited for too long.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        while let Some((key, number, expires_ns)) = self.order.front().copied() {
            if expires_ns > now_ns && self.is_there(&key, number) {
                break;
            }
            self.order.pop_front();
            if self.is_there(&key, number) {
                self.forget(&key, Cause::FragmentAge);
            }
        }
    }

    /// Whether the packet of this number is still the one with this key.
    fn is_there(&self, key: &Key, number: u64) -> bool {
        let packet = self.packets.get(key);
        packet.is_some_and(|packet| packet.number == number)
    }

    /// When that has something to do.
    #[must_use]
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.order.front().map(|(.., expires_ns)| *expires_ns)
    }

    /// Lets the oldest go until there is a place for a packet and room for a part of it; all the same if it is that packet.
    fn make_room(&mut self, key: &Key, bytes: usize) {
        while self.bytes + bytes > self.limits.bytes
            || (self.packets.len() >= self.limits.packets && !self.packets.contains_key(key))
        {
            let Some((oldest, number, _)) = self.order.pop_front() else {
                return;
            };
            if self.is_there(&oldest, number) {
                self.forget(&oldest, Cause::FragmentMemory);
            }
        }
        self.pass_gone();
    }

    /// Has the first one in the order be one that there is.
    fn pass_gone(&mut self) {
        while let Some((key, number, _)) = self.order.front() {
            if self.is_there(key, *number) {
                break;
            }
            self.order.pop_front();
        }
    }

    fn begin(&mut self, key: Key, now_ns: u64) {
        if self.packets.contains_key(&key) {
            return;
        }
        self.numbers += 1;
        let expires_ns = now_ns.saturating_add(self.limits.age_ns);
        let packet = Packet {
            number: self.numbers,
            bytes: Vec::new(),
            parts: Vec::new(),
            total: None,
            class: 0,
            protocol: 0,
            ecns: 0,
            is_dead: false,
        };
        self.packets.insert(key, packet);
        self.order.push_back((key, self.numbers, expires_ns));
        // Those that have gone do not gather.
        if self.order.len() > 2 * self.limits.packets {
            let packets = &self.packets;
            self.order.retain(|(key, number, _)| {
                packets
                    .get(key)
                    .is_some_and(|packet| packet.number == *number)
            });
        }
    }

    /// Drops a packet's parts, and those that will come.
    fn kill(&mut self, key: &Key, cause: Cause) {
        if let Some(packet) = self.packets.get_mut(key) {
            self.bytes -= packet.bytes.len();
            self.drops.add_many(cause, packet.parts.len() as u64);
            packet.bytes = Vec::new();
            packet.parts = Vec::new();
            packet.is_dead = true;
        }
    }

    fn forget(&mut self, key: &Key, cause: Cause) {
        if let Some(packet) = self.packets.remove(key) {
            self.bytes -= packet.bytes.len();
            self.drops.add_many(cause, packet.parts.len() as u64);
        }
    }

    fn finish(&mut self, key: &Key) -> Outcome<'_> {
        let Some(packet) = self.packets.remove(key) else {
            return Outcome::Waits;
        };
        self.bytes -= packet.bytes.len();
        self.pass_gone();
        let Some(ecn) = packet.ecn() else {
            self.drops
                .add_many(Cause::Congestion, packet.parts.len() as u64);
            return Outcome::Drops(Cause::Congestion);
        };
        self.whole.clear();
        for (_, length, from) in &packet.parts {
            self.whole
                .extend_from_slice(&packet.bytes[*from..from + length]);
        }
        Outcome::Whole {
            protocol: packet.protocol,
            class: packet.class & !ECN_MASK | ecn,
            parts: packet.parts.len(),
            bytes: &self.whole,
        }
    }
}

impl Packet {
    /// Takes a part; whether the packet is whole now.
    fn take(&mut self, fragment: &Fragment<'_>, parts_max: usize) -> Result<bool, Cause> {
        if self.is_dead {
            return Err(Cause::FragmentOverlap);
        }
        let (at, length) = (fragment.at, fragment.payload.len());
        let end = at + length;
        let place = self.parts.partition_point(|part| part.0 < at);
        if let Some(&(first, bytes, from)) = self.parts.get(place)
            && (first, bytes) == (at, length)
        {
            // Exactly the same is no overlap, but a network that doubles packets.
            let is_last = self.total == Some(end);
            let is_same = self.bytes[from..from + bytes] == *fragment.payload;
            if is_same && is_last != fragment.has_more {
                return Err(Cause::FragmentTwice);
            }
            return Err(Cause::FragmentOverlap);
        }
        let before = place
            .checked_sub(1)
            .and_then(|before| self.parts.get(before));
        let overlaps = before.is_some_and(|part| part.0 + part.1 > at)
            || self.parts.get(place).is_some_and(|part| part.0 < end);
        let last = self.parts.last().map_or(0, |part| part.0 + part.1);
        // The last part says how long all is.
        let is_beyond = self
            .total
            .is_some_and(|total| end > total || (!fragment.has_more && end != total));
        if overlaps || is_beyond || (!fragment.has_more && last > end) {
            return Err(Cause::FragmentOverlap);
        }
        if self.parts.len() >= parts_max {
            return Err(Cause::FragmentMemory);
        }
        self.parts.insert(place, (at, length, self.bytes.len()));
        self.bytes.extend_from_slice(fragment.payload);
        self.ecns |= 1 << (fragment.class & ECN_MASK);
        if at == 0 {
            (self.class, self.protocol) = (fragment.class, fragment.protocol);
        }
        if !fragment.has_more {
            self.total = Some(end);
        }
        // No part overlaps another: as many bytes as the packet has are the packet.
        Ok(self.total == Some(self.bytes.len()))
    }

    /// None: parts met congestion, and others could not say so.
    fn ecn(&self) -> Option<u8> {
        let (not_ect, ce) = (self.ecns & 1 != 0, self.ecns & 1 << CE != 0);
        match (not_ect, ce) {
            (true, true) => None,
            (false, true) => Some(CE),
            (true, false) => Some(0),
            (false, false) => Some(self.class & ECN_MASK),
        }
    }
}

#[cfg(test)]
mod tests;
