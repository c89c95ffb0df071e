//! Packets on their way from one port to another, or from a program.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::{Memory, Place};
use crate::offload::Offload;

mod edit;

/// Of each packet, so many bytes are private from the start. Headers fit: Ethernet with two tags, IPv6, UDP, and GTP-U with an inner IPv6
/// and TCP header are 22 + 40 + 8 + 16 + 40 = 126 bytes before TCP.
pub const HEAD_BYTES: usize = 128;

/// No packet is longer. What segmentation offload hands over has 64 KiB and headers.
pub const PACKET_BYTES_MAX: usize = 68 * 1024;

/// In a piece's place: it is in the burst's own memory.
const OWN: u16 = u16::MAX;

/// A packet's first bytes, and which pieces it goes on in.
///
/// On two lines and a bit: lengths are beside each other with the head's end, which short packets do not have. What is left to others to do
/// lies apart, since most packets have none of that.
#[derive(Debug, Clone)]
struct Entry {
    head: [u8; HEAD_BYTES],
    length: u32,
    first_piece: u32,
    pieces: u32,
    /// One more than its place among the burst's offloads; 0 without any.
    offload: u32,
}

/// Up to so many packets that are handled together.
///
/// A packet is its first [`HEAD_BYTES`], private and the program's to change, and pieces that go on in the memory of the port that it came
/// by; short packets have no pieces. Transmitting copies both to where the other port's peer reads: one copy for the payload. Where two
/// ports share a memory, its pieces could be handed on by their places instead: [`Burst::memory`] tells.
#[derive(Debug)]
pub struct Burst {
    entries: Box<[Entry]>,
    count: usize,
    pieces: Vec<Place>,
    offloads: Vec<Offload>,
    memory: Option<Arc<Memory>>,
    own: Vec<u8>,
}

impl Burst {
    /// Room for so many packets.
    #[must_use]
    pub fn new(packets: usize) -> Burst {
        let empty = Entry {
            head: [0; HEAD_BYTES],
            length: 0,
            first_piece: 0,
            pieces: 0,
            offload: 0,
        };
        Burst {
            entries: vec![empty; packets].into_boxed_slice(),
            count: 0,
            pieces: Vec::with_capacity(packets),
            offloads: Vec::new(),
            memory: None,
            own: Vec::new(),
        }
    }

    /// How many packets are in it.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there is no room for another.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count == self.entries.len()
    }

    /// For how many more there is room.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.entries.len() - self.count
    }

    /// Forgets all packets.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
        self.pieces.clear();
        self.offloads.clear();
        self.own.clear();
    }

    /// Adds a copy of a program's packet. False: there is no room, it is longer than [`PACKET_BYTES_MAX`], or packets here go on in the
    /// memory of a port.
    pub fn push(&mut self, packet: &[u8]) -> bool {
        if self.count == 0 {
            self.memory = None;
        }
        let is_of_port = self.memory.is_some() && self.has_places();
        if self.is_full() || packet.len() > PACKET_BYTES_MAX || is_of_port {
            return false;
        }
        let (head, rest) = packet.split_at(packet.len().min(HEAD_BYTES));
        let first_piece = self.pieces.len();
        if !rest.is_empty() {
            let piece = Place {
                region: OWN,
                // At most 68 KiB for each of the burst's packets: far from 32 bits.
                offset: self.own.len() as u32,
                length: rest.len() as u32,
            };
            self.own.extend_from_slice(rest);
            self.pieces.push(piece);
        }
        let entry = &mut self.entries[self.count];
        entry.head[..head.len()].copy_from_slice(head);
        entry.length = packet.len() as u32;
        entry.first_piece = first_piece as u32;
        entry.pieces = (self.pieces.len() - first_piece) as u32;
        entry.offload = 0;
        self.count += 1;
        true
    }

    /// A packet. None: there are fewer.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<Packet<'_>> {
        let entry = self.entries[..self.count].get(number)?;
        Some(Packet { burst: self, entry })
    }

    /// The packets.
    pub fn iter(&self) -> impl Iterator<Item = Packet<'_>> {
        let entries = self.entries[..self.count].iter();
        entries.map(|entry| Packet { burst: self, entry })
    }

    /// The private first bytes of a packet, to change them.
    ///
    /// # Panics
    /// When there are fewer packets.
    pub fn head_mut(&mut self, number: usize) -> &mut [u8] {
        let entry = &mut self.entries[..self.count][number];
        let bytes = HEAD_BYTES.min(entry.length as usize);
        &mut entry.head[..bytes]
    }

    /// Says what a packet leaves to others to do; instead of what was said before.
    ///
    /// # Panics
    /// When there are fewer packets.
    pub fn set_offload(&mut self, number: usize, offload: Offload) {
        let entry = &mut self.entries[..self.count][number];
        match entry.offload as usize {
            0 if offload == Offload::NONE => {}
            0 => {
                self.offloads.push(offload);
                // No more than packets, unless the burst is of 2^32.
                entry.offload = self.offloads.len() as u32;
            }
            place => self.offloads[place - 1] = offload,
        }
    }

    /// Writes bytes of a packet in place, from `offset` on. False: it has not so many, or they lie where only others may write.
    pub fn write(&mut self, number: usize, offset: usize, bytes: &[u8]) -> bool {
        let Some(entry) = self.entries[..self.count].get_mut(number) else {
            return false;
        };
        let length = entry.length as usize;
        let end = offset.checked_add(bytes.len());
        let own_only = self.memory.as_ref().is_none_or(|memory| memory.is_pool());
        if end.is_none_or(|end| end > length || end > HEAD_BYTES && !own_only) {
            return false;
        }
        let in_head = HEAD_BYTES.saturating_sub(offset).min(bytes.len());
        let (front, mut rest) = bytes.split_at(in_head);
        entry.head[offset.min(HEAD_BYTES)..][..in_head].copy_from_slice(front);
        if rest.is_empty() {
            return true;
        }
        let mut skip = offset.saturating_sub(HEAD_BYTES) as u32;
        let first = entry.first_piece as usize;
        for piece in &self.pieces[first..first + entry.pieces as usize] {
            if skip >= piece.length {
                skip -= piece.length;
                continue;
            }
            let place = piece.after(skip);
            skip = 0;
            let (now, later) = rest.split_at(rest.len().min(place.length as usize));
            match &self.memory {
                Some(memory) if place.region != OWN => memory.write(place, now),
                _ => self.own[place.offset as usize..][..now.len()].copy_from_slice(now),
            }
            rest = later;
        }
        true
    }

    /// The memory that the packets go on in, if they came by a port.
    #[must_use]
    pub fn memory(&self) -> Option<&Arc<Memory>> {
        self.memory.as_ref()
    }

    /// Begins anew, with packets in this memory.
    #[inline]
    pub(crate) fn begin(&mut self, memory: &Arc<Memory>) {
        self.clear();
        // Reference counts are written by an atomic operation: not for each burst of the same connection.
        if !self
            .memory
            .as_ref()
            .is_some_and(|own| Arc::ptr_eq(own, memory))
        {
            self.memory = Some(memory.clone());
        }
    }

    /// Begins anew, with packets of a program's. A peer's memory that packets lay in is held no longer.
    pub fn forget(&mut self) {
        self.clear();
        self.memory = None;
    }

    /// Adds a packet that lies in one place of the memory. There is room.
    #[inline]
    pub(crate) fn admit(&mut self, memory: &Memory, place: Place) {
        let entry = &mut self.entries[self.count];
        memory.read_head(place, &mut entry.head);
        if let Some(rest) = entry.lie_at(place, self.pieces.len()) {
            self.pieces.push(rest);
        }
        self.count += 1;
    }

    /// Adds one that is to be written there: what is there is not read. There is room.
    #[inline]
    pub(crate) fn admit_blank(&mut self, place: Place) {
        let entry = &mut self.entries[self.count];
        entry.head = [0; HEAD_BYTES];
        if let Some(rest) = entry.lie_at(place, self.pieces.len()) {
            self.pieces.push(rest);
        }
        self.count += 1;
    }

    /// Adds a packet that lies in several places, which have `length` bytes together. There is room.
    pub(crate) fn admit_chain(&mut self, memory: &Memory, chain: &[Place], length: u32) {
        let entry = &mut self.entries[self.count];
        let mut filled = 0;
        entry.length = length;
        entry.offload = 0;
        entry.first_piece = self.pieces.len() as u32;
        for place in chain {
            let count = memory.read(*place, &mut entry.head[filled..]);
            filled += count;
            if place.length as usize > count {
                self.pieces.push(place.after(count as u32));
            }
        }
        entry.pieces = self.pieces.len() as u32 - entry.first_piece;
        self.count += 1;
    }

    /// Says what the packet that was admitted last leaves to others, as its peer has it. False: it cannot be, and the packet is not here.
    #[inline]
    pub(crate) fn admit_offload(&mut self, offload: Offload) -> bool {
        if offload == Offload::NONE {
            return true;
        }
        let last = self.count - 1;
        let is_good = self
            .get(last)
            .is_some_and(|packet| offload.spares_tags(packet.head()));
        if is_good {
            self.set_offload(last, offload);
        } else {
            self.truncate(last);
        }
        is_good
    }

    /// Whether something here lies in a memory, and not in the burst's own bytes.
    pub(crate) fn has_places(&self) -> bool {
        self.pieces.iter().any(|piece| piece.region != OWN)
    }

    /// Whether all packets are private: nothing of them lies in the peer's memory.
    #[inline]
    pub(crate) fn is_private(&self) -> bool {
        self.pieces.is_empty()
    }
}

impl Entry {
    /// It is in one place, with so many pieces before it; what of it is behind its head.
    #[inline]
    fn lie_at(&mut self, place: Place, pieces: usize) -> Option<Place> {
        self.length = place.length;
        self.offload = 0;
        let is_longer = place.length as usize > HEAD_BYTES;
        self.pieces = is_longer.into();
        self.first_piece = pieces as u32;
        is_longer.then(|| place.after(HEAD_BYTES as u32))
    }
}

/// A packet of a burst.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    burst: &'a Burst,
    entry: &'a Entry,
}

impl<'a> Packet<'a> {
    /// Length in bytes.
    #[must_use]
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no packet is empty")]
    pub fn len(&self) -> usize {
        self.entry.length as usize
    }

    /// Its first bytes, at most [`HEAD_BYTES`], which do not change.
    #[must_use]
    #[inline]
    pub fn head(&self) -> &'a [u8] {
        &self.entry.head[..HEAD_BYTES.min(self.len())]
    }

    /// What it leaves to others to do.
    #[must_use]
    #[inline]
    pub fn offload(&self) -> Offload {
        match self.entry.offload as usize {
            0 => Offload::NONE,
            place => self.burst.offloads[place - 1],
        }
    }

    /// Whether there is work for whoever sends it on.
    #[must_use]
    #[inline]
    pub fn leaves_work(&self) -> bool {
        self.entry.offload != 0 && self.offload().is_work()
    }

    /// A copy of it. What comes after the head is what lies there now.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::new();
        self.append_to(&mut copy);
        copy
    }

    /// Copies it to the end of what is there, as [`Packet::to_vec`] does.
    pub fn append_to(&self, copy: &mut Vec<u8>) {
        self.append_first(self.len(), copy);
    }

    /// The same of its first bytes; it has so many.
    pub(crate) fn append_first(&self, bytes: usize, copy: &mut Vec<u8>) {
        let end = copy.len() + bytes;
        copy.extend_from_slice(&self.head()[..bytes.min(self.head().len())]);
        for piece in self.pieces() {
            let filled = copy.len();
            if filled == end {
                break;
            }
            copy.resize(end.min(filled + piece.length as usize), 0);
            self.read(*piece, &mut copy[filled..]);
        }
    }

    fn pieces(&self) -> &'a [Place] {
        let first = self.entry.first_piece as usize;
        match self.entry.pieces as usize {
            0 => &[],
            count => &self.burst.pieces[first..first + count],
        }
    }

    /// Where it begins in this memory, if all of it but its head lies there in one piece, with room for the head before it.
    pub(crate) fn offset_in(&self, memory: &Arc<Memory>) -> Option<u32> {
        let [piece] = self.pieces() else {
            return None;
        };
        let is_there = self.burst.memory.as_ref();
        let is_there = is_there.is_some_and(|own| Arc::ptr_eq(own, memory)) && piece.region != OWN;
        piece
            .offset
            .checked_sub(HEAD_BYTES as u32)
            .filter(|_| is_there)
    }

    /// In how many parts its bytes lie.
    pub(crate) fn part_count(&self) -> usize {
        1 + self.pieces().len()
    }

    /// Where its bytes lie, part by part, as long as the burst is borrowed.
    pub(crate) fn parts(self) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        let head = self.head();
        let pieces = self.pieces().iter().map(move |piece| {
            let start = match &self.burst.memory {
                Some(memory) if piece.region != OWN => memory.start(*piece),
                _ => NonNull::from(self.own(*piece)).cast(),
            };
            (start, piece.length as usize)
        });
        std::iter::once((NonNull::from(head).cast(), head.len())).chain(pieces)
    }

    fn own(&self, piece: Place) -> &'a [u8] {
        &self.burst.own[piece.offset as usize..][..piece.length as usize]
    }

    fn read(&self, piece: Place, target: &mut [u8]) {
        match &self.burst.memory {
            Some(memory) if piece.region != OWN => drop(memory.read(piece, target)),
            _ => target.copy_from_slice(&self.own(piece)[..target.len()]),
        }
    }

    /// Copies the packet's bytes from `offset` on to a place, which it fills.
    #[inline]
    pub(crate) fn write_to(&self, offset: usize, memory: &Memory, place: Place) {
        let length = place.length as usize;
        if offset + length <= HEAD_BYTES {
            memory.write(place, &self.entry.head[offset..offset + length]);
        } else {
            self.write_pieces_to(offset, memory, place);
        }
    }

    fn write_pieces_to(&self, offset: usize, memory: &Memory, mut place: Place) {
        let mut skip = (offset as u32).saturating_sub(HEAD_BYTES as u32);
        if offset < HEAD_BYTES {
            memory.write(place, &self.entry.head[offset..]);
            place = place.after((HEAD_BYTES - offset) as u32);
        }
        for piece in self.pieces() {
            if skip >= piece.length {
                skip -= piece.length;
                continue;
            }
            let mut from = piece.after(skip);
            skip = 0;
            from.length = from.length.min(place.length);
            match &self.burst.memory {
                Some(source) if from.region != OWN => memory.write_from(place, source, from),
                _ => memory.write(place, self.own(from)),
            }
            place = place.after(from.length);
            if place.length == 0 {
                break;
            }
        }
    }
}
