//! Packets that go on in another burst, or are changed on their way.
//!
//! What a packet goes on in stays where it is: a burst takes over places, and needs the same memory for that. A head that grows beyond
//! [`HEAD_BYTES`] leaves its end to the burst's own bytes, and one that shrinks is filled up, so that a head is always as long as it can
//! be.

use std::sync::Arc;

use super::{Burst, HEAD_BYTES, OWN, PACKET_BYTES_MAX, Packet};
use crate::memory::Place;

/// A head of at most so many bytes is copied as so many: what is behind its end is of no meaning.
const SHORT_BYTES: usize = 64;

impl Burst {
    /// Adds a packet of another burst, with what it leaves to others to do. It is good as long as it is there. False: there is no room, or
    /// packets here go on in the memory of another port; one where none does takes any.
    pub fn append(&mut self, packet: Packet<'_>) -> bool {
        if self.is_full() || !self.shares_memory(packet) {
            return false;
        }
        let first = self.pieces.len();
        for piece in packet.pieces() {
            self.adopt(packet, *piece);
        }
        let entry = &mut self.entries[self.count];
        if packet.len() <= SHORT_BYTES {
            entry.head[..SHORT_BYTES].copy_from_slice(&packet.entry.head[..SHORT_BYTES]);
        } else {
            entry.head = packet.entry.head;
        }
        entry.length = packet.entry.length;
        self.admit_pieces(first);
        if packet.entry.offload != 0 {
            self.set_offload(self.count - 1, packet.offload());
        }
        true
    }

    /// Adds a packet that begins with `lead` and goes on with `length` bytes of another one from `offset` on. False: as
    /// [`Burst::append`], or the packet would be too long.
    ///
    /// # Panics
    /// When `lead` is longer than [`HEAD_BYTES`], or the packet has fewer bytes.
    pub fn append_part(
        &mut self,
        packet: Packet<'_>,
        lead: &[u8],
        offset: usize,
        length: usize,
    ) -> bool {
        let Some(head) = self.next_head() else {
            return false;
        };
        head[..lead.len()].copy_from_slice(lead);
        self.append_behind(lead.len(), packet, offset, length)
    }

    /// Where the head of the packet is written that [`Burst::append_behind`] adds next. None: there is no room for it.
    #[inline]
    pub fn next_head(&mut self) -> Option<&mut [u8; HEAD_BYTES]> {
        let entry = self.entries.get_mut(self.count)?;
        Some(&mut entry.head)
    }

    /// Adds a packet that begins with so many bytes of [`Burst::next_head`] and goes on with `length` bytes of another one from `offset`
    /// on. False: as [`Burst::append_part`].
    ///
    /// # Panics
    /// When `lead` is more than [`HEAD_BYTES`], or the packet has fewer bytes.
    #[inline]
    pub fn append_behind(
        &mut self,
        lead: usize,
        packet: Packet<'_>,
        offset: usize,
        length: usize,
    ) -> bool {
        if let Some(body) = packet.head().get(offset..offset + length)
            && let Some(entry) = self.entries.get_mut(self.count)
            && let Some(rest) = entry.head.get_mut(lead..lead + length)
        {
            rest.copy_from_slice(body);
            entry.length = (lead + length) as u32;
            entry.pieces = 0;
            entry.offload = 0;
            self.count += 1;
            return true;
        }
        self.append_pieces_behind(lead, packet, offset, length)
    }

    /// The same of a packet that is longer than its head.
    fn append_pieces_behind(
        &mut self,
        lead: usize,
        packet: Packet<'_>,
        offset: usize,
        length: usize,
    ) -> bool {
        assert!(lead <= HEAD_BYTES && offset + length <= packet.len());
        if self.is_full() || lead + length > PACKET_BYTES_MAX || !self.shares_memory(packet) {
            return false;
        }
        let first = self.pieces.len();
        let filled = (HEAD_BYTES - lead).min(length);
        self.adopt_range(packet, offset + filled, length - filled);
        let entry = &mut self.entries[self.count];
        packet.copy_to(offset, &mut entry.head[lead..][..filled]);
        // At most `PACKET_BYTES_MAX`.
        entry.length = (lead + length) as u32;
        self.admit_pieces(first);
        true
    }

    /// Adds a private copy of a packet of another burst, with what it leaves to others to do. Where it came from is not needed any more.
    /// False: there is no room.
    pub fn append_copy(&mut self, packet: Packet<'_>) -> bool {
        if self.is_full() {
            return false;
        }
        let first = self.pieces.len();
        let rest = packet.len().saturating_sub(HEAD_BYTES);
        if rest > 0 {
            let filled = self.own.len();
            self.own.resize(filled + rest, 0);
            packet.copy_to(HEAD_BYTES, &mut self.own[filled..]);
            self.pieces.push(Place {
                region: OWN,
                offset: filled as u32,
                length: rest as u32,
            });
        }
        let entry = &mut self.entries[self.count];
        entry.head = packet.entry.head;
        entry.length = packet.entry.length;
        self.admit_pieces(first);
        if packet.entry.offload != 0 {
            self.set_offload(self.count - 1, packet.offload());
        }
        true
    }

    /// Forgets the packets from number `count` on.
    pub fn truncate(&mut self, count: usize) {
        if count == 0 {
            // What is empty is tied to no memory.
            return self.clear();
        }
        self.count = self.count.min(count);
    }

    /// Whether something is said of any packet by [`Burst::set_offload`].
    #[must_use]
    #[inline]
    pub fn has_offloads(&self) -> bool {
        !self.offloads.is_empty()
    }

    /// Puts bytes into a packet's head, before the byte at `at`. False: it would be too long.
    ///
    /// # Panics
    /// When there are fewer packets, the packet is shorter, or the bytes would not all be in the head.
    pub fn insert(&mut self, number: usize, at: usize, bytes: &[u8]) -> bool {
        let entry = &mut self.entries[..self.count][number];
        let (length, grown) = (entry.length as usize, bytes.len());
        if length + grown > PACKET_BYTES_MAX {
            return false;
        }
        let private = length.min(HEAD_BYTES);
        assert!(at <= private && at + grown <= HEAD_BYTES);
        let spilt = (private + grown).saturating_sub(HEAD_BYTES);
        let mut end = [0; HEAD_BYTES];
        end[..spilt].copy_from_slice(&entry.head[private - spilt..private]);
        entry.head.copy_within(at..private - spilt, at + grown);
        entry.head[at..at + grown].copy_from_slice(bytes);
        entry.length = (length + grown) as u32;
        if spilt > 0 {
            self.prepend_own(number, &end[..spilt]);
        }
        true
    }

    /// Takes `count` bytes out of a packet's head, from the byte at `at` on.
    ///
    /// # Panics
    /// When there are fewer packets, or those bytes are not all in the head.
    pub fn remove(&mut self, number: usize, at: usize, count: usize) {
        let entry = &mut self.entries[..self.count][number];
        let private = (entry.length as usize).min(HEAD_BYTES);
        assert!(at + count <= private);
        entry.head.copy_within(at + count..private, at);
        entry.length -= count as u32;
        self.fill_up(number, private - count);
    }

    /// Whether a packet's pieces can be pieces here, and sees to that where this burst is free to.
    fn shares_memory(&mut self, packet: Packet<'_>) -> bool {
        let Some(memory) = &packet.burst.memory else {
            return true;
        };
        if packet.pieces().is_empty() {
            return true;
        }
        let is_same = self
            .memory
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, memory));
        if !is_same {
            // What lies in this burst's own bytes is tied to no memory, whatever was used before.
            if self.has_places() {
                return false;
            }
            self.memory = Some(memory.clone());
        }
        true
    }

    /// Makes a piece of another burst's packet the last one here.
    fn adopt(&mut self, packet: Packet<'_>, piece: Place) {
        if piece.region == OWN {
            self.push_own(packet.own(piece));
        } else {
            self.pieces.push(piece);
        }
    }

    /// The same of some bytes, in as many pieces as they have.
    fn adopt_range(&mut self, packet: Packet<'_>, offset: usize, mut length: usize) {
        let head = &packet.entry.head[..HEAD_BYTES.min(packet.len())];
        let mut skip = offset.saturating_sub(HEAD_BYTES);
        if offset < head.len() && length > 0 {
            let count = (head.len() - offset).min(length);
            self.push_own(&head[offset..offset + count]);
            length -= count;
        }
        for piece in packet.pieces() {
            if length == 0 {
                break;
            }
            let bytes = piece.length as usize;
            if skip >= bytes {
                skip -= bytes;
                continue;
            }
            let mut part = piece.after(skip as u32);
            skip = 0;
            part.length = part.length.min(length as u32);
            length -= part.length as usize;
            self.adopt(packet, part);
        }
    }

    /// Counts the entry whose head and length are there, with the pieces from number `first` on.
    fn admit_pieces(&mut self, first: usize) {
        let entry = &mut self.entries[self.count];
        entry.first_piece = first as u32;
        entry.pieces = (self.pieces.len() - first) as u32;
        entry.offload = 0;
        self.count += 1;
    }

    fn push_own(&mut self, bytes: &[u8]) {
        let piece = Place {
            region: OWN,
            // At most 68 KiB for each of the burst's packets: far from 32 bits.
            offset: self.own.len() as u32,
            length: bytes.len() as u32,
        };
        self.own.extend_from_slice(bytes);
        self.pieces.push(piece);
    }

    /// Has a packet go on in these bytes before its pieces, which move to the end of all.
    fn prepend_own(&mut self, number: usize, bytes: &[u8]) {
        let (first, count) = {
            let entry = &self.entries[number];
            (entry.first_piece as usize, entry.pieces as usize)
        };
        let moved = self.pieces.len();
        self.push_own(bytes);
        if count > 0 {
            self.pieces.extend_from_within(first..first + count);
        }
        let entry = &mut self.entries[number];
        entry.first_piece = moved as u32;
        entry.pieces = (self.pieces.len() - moved) as u32;
    }

    /// Moves bytes from a packet's pieces to its head, of which so many are there, until that is as long as it can be.
    fn fill_up(&mut self, number: usize, mut filled: usize) {
        let entry = &mut self.entries[number];
        while filled < HEAD_BYTES && entry.pieces > 0 {
            let piece = &mut self.pieces[entry.first_piece as usize];
            let target = &mut entry.head[filled..];
            let count = target.len().min(piece.length as usize);
            match &self.memory {
                Some(memory) if piece.region != OWN => {
                    memory.read(*piece, target);
                }
                _ => {
                    let own = &self.own[piece.offset as usize..][..count];
                    target[..count].copy_from_slice(own);
                }
            }
            filled += count;
            *piece = piece.after(count as u32);
            if piece.length == 0 {
                entry.first_piece += 1;
                entry.pieces -= 1;
            }
        }
    }
}

impl Packet<'_> {
    /// Copies its bytes from `offset` on, until it or `target` ends; returns how many. What comes after the head is what lies there now.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) -> usize {
        let head = self.head();
        let mut filled = 0;
        if offset < head.len() {
            filled = (head.len() - offset).min(target.len());
            target[..filled].copy_from_slice(&head[offset..offset + filled]);
        }
        let mut skip = offset.saturating_sub(HEAD_BYTES);
        for piece in self.pieces() {
            if filled == target.len() {
                break;
            }
            let bytes = piece.length as usize;
            if skip >= bytes {
                skip -= bytes;
                continue;
            }
            let mut part = piece.after(skip as u32);
            skip = 0;
            let count = (part.length as usize).min(target.len() - filled);
            part.length = count as u32;
            self.read(part, &mut target[filled..filled + count]);
            filled += count;
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use millrace_shm::Mapping;

    use super::*;
    use crate::memory::Memory;

    fn bytes(length: usize, seed: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + seed) as u8).collect()
    }

    fn lengths() -> impl Iterator<Item = usize> {
        [14, 60, 63, 64, 65, 120, 124, 127, 128, 129, 132, 200, 1514].into_iter()
    }

    #[test]
    fn what_is_inserted_and_removed_is_as_in_a_vector() {
        let mut burst = Burst::new(64);
        let mut model = Vec::new();
        for length in lengths() {
            assert!(burst.push(&bytes(length, length)));
            model.push(bytes(length, length));
        }
        for round in 0..40 {
            for (number, expected) in model.iter_mut().enumerate() {
                let at = (round * 5 + number) % 14;
                let tag = bytes(4, round);
                if round % 3 < 2 {
                    assert!(burst.insert(number, at, &tag));
                    expected.splice(at..at, tag);
                } else if expected.len() > 24 {
                    burst.remove(number, at, 5);
                    expected.drain(at..at + 5);
                }
                let packet = burst.get(number).unwrap();
                assert_eq!(packet.to_vec(), *expected, "round {round}");
                assert_eq!(packet.head(), &expected[..expected.len().min(HEAD_BYTES)]);
            }
        }
    }

    #[test]
    fn packets_go_on_in_another_burst_as_they_are() {
        let (mut from, mut to) = (Burst::new(64), Burst::new(64));
        for length in lengths() {
            assert!(from.push(&bytes(length, 1)));
        }
        assert!(from.insert(3, 12, &[1, 2, 3, 4]));
        for packet in from.iter() {
            assert!(to.append(packet));
        }
        let mut kept = Burst::new(64);
        for packet in from.iter() {
            assert!(kept.append_copy(packet));
        }
        let copies = |burst: &Burst| {
            burst
                .iter()
                .map(|packet| packet.to_vec())
                .collect::<Vec<_>>()
        };
        assert_eq!(copies(&from), copies(&to));
        assert_eq!(copies(&from), copies(&kept));
        let mut full = Burst::new(1);
        assert!(full.append(from.get(0).unwrap()) && !full.append(from.get(0).unwrap()));
    }

    #[test]
    fn parts_begin_anywhere() {
        let whole = bytes(700, 3);
        let (mut from, mut to) = (Burst::new(1), Burst::new(1));
        assert!(from.push(&whole));
        assert!(from.insert(0, 0, &[9; 20]));
        let expected: Vec<u8> = [vec![9; 20], whole].concat();
        for offset in [0, 1, 54, 127, 128, 129, 147, 148, 149, 500, 720] {
            for length in [0, 1, 73, 74, 75, 128, 220] {
                if offset + length > expected.len() {
                    continue;
                }
                for lead in [0, 54, 128] {
                    let lead = bytes(lead, 5);
                    to.clear();
                    let packet = from.get(0).unwrap();
                    assert!(to.append_part(packet, &lead, offset, length));
                    let wanted = [&lead[..], &expected[offset..offset + length]].concat();
                    assert_eq!(to.get(0).unwrap().to_vec(), wanted, "{offset} {length}");
                    let mut copy = vec![0; length];
                    assert_eq!(packet.copy_to(offset, &mut copy), length);
                    assert_eq!(copy, expected[offset..offset + length]);
                }
            }
        }
    }

    /// A burst that came by a port: packets of these lengths, in a memory of its own.
    fn received(lengths: &[usize], seed: usize) -> Burst {
        let memory = Arc::new(Memory::new(vec![Mapping::private(1 << 14).unwrap()]));
        let mut burst = Burst::new(lengths.len());
        burst.begin(&memory);
        for (at, length) in (0..).zip(lengths) {
            let place = Place {
                region: 0,
                offset: at * 2048,
                length: *length as u32,
            };
            memory.write(place, &bytes(*length, seed));
            burst.admit(&memory, place);
        }
        burst
    }

    #[test]
    fn only_what_lies_in_a_memory_ties_a_burst_to_it() {
        let (one, other) = (received(&[1000, 1000], 1), received(&[100, 1000], 2));
        let mut to = Burst::new(8);
        let lead = bytes(60, 3);
        assert!(to.append(one.get(0).unwrap()));
        assert!(!to.append(other.get(1).unwrap()), "of two memories");
        to.clear();
        // The first one's end does not fit into the head.
        assert!(to.append_part(other.get(0).unwrap(), &lead, 0, 100));
        assert!(to.push(&bytes(300, 4)));
        assert!(to.append_part(other.get(1).unwrap(), &lead, 0, 1000));
        assert!(!to.append(one.get(0).unwrap()) && !to.push(&bytes(300, 4)));
        let [short, long] = [100, 1000].map(|length| [&lead[..], &bytes(length, 2)].concat());
        let wanted = [short, bytes(300, 4), long];
        assert!(to.iter().map(|packet| packet.to_vec()).eq(wanted));
        to.truncate(0);
        assert!(to.append(one.get(1).unwrap()));
        assert_eq!(to.get(0).unwrap().to_vec(), bytes(1000, 1));
    }
}
