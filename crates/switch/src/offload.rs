//! What one port's peer left to others to do, and the other port's peer does not do either: checksums are completed, and packets are cut
//! into segments.
//!
//! A packet's payload may lie where its sender can change it. It is read here once for its checksum and once more when it is copied to
//! where it goes: a sender that changes it between the two has a wrong checksum at the other end, and nobody else has anything.

use millrace_port::{Burst, Checksum, HEAD_BYTES, Offload, Packet, Segment, SegmentKind};

use crate::checksum::{Sum, adjusted};
use crate::parse::{self, PROTOCOL_TCP, PROTOCOL_UDP, Version, half};

/// Bytes that are summed at a time: an even number.
const STEP_BYTES: usize = 1024;
/// TCP's flags, in the second byte of their word.
const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
/// A packet is cut into so many segments at most. Linux sends no shorter ones than of 36 bytes, of which a packet of 64 KiB has 1821; one
/// that asks for segments of a byte each would cost as much as 65 536 packets.
const SEGMENTS_MAX: usize = 2048;

/// It cannot be done: what was said of the packet is not so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impossible;

/// The sum of a packet's bytes from a place on.
fn sum_from(packet: Packet<'_>, start: usize) -> Sum {
    let mut sum = Sum::default();
    let mut at = start;
    let mut buffer = [0; STEP_BYTES];
    loop {
        let count = packet.copy_to(at, &mut buffer);
        sum.add(&buffer[..count]);
        at += count;
        if count < STEP_BYTES {
            return sum;
        }
    }
}

/// What belongs in the place of a checksum. That of UDP is never 0, which would say that there is none.
fn completed(sum: Sum, protocol_is_udp: bool) -> u16 {
    match sum.complement() {
        0 if protocol_is_udp => u16::MAX,
        checksum => checksum,
    }
}

/// Completes the checksum of a packet in a burst.
///
/// # Errors
/// When its place is not in the packet's head, or not behind the MAC header and all tags: where the frame goes was decided by those.
pub fn complete(burst: &mut Burst, number: usize) -> Result<(), Impossible> {
    let packet = burst.get(number).ok_or(Impossible)?;
    let Checksum::Partial { start, offset } = packet.offload().checksum else {
        return Ok(());
    };
    let at = usize::from(start) + usize::from(offset);
    let is_inside = at + 2 <= HEAD_BYTES.min(packet.len());
    if !is_inside || !packet.offload().spares_tags(packet.head()) {
        return Err(Impossible);
    }
    let parsed = parse::Packet::parse(packet.head());
    let is_udp = parsed.is_some_and(|parsed| parsed.protocol == PROTOCOL_UDP);
    let checksum = completed(sum_from(packet, start.into()), is_udp);
    burst.head_mut(number)[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    burst.set_offload(number, Offload::NONE);
    Ok(())
}

/// A packet that is to be cut, and what each of its segments begins with.
#[derive(Debug)]
pub struct Cut<'a> {
    packet: Packet<'a>,
    head: [u8; HEAD_BYTES],
    /// Where the Internet's header begins, TCP's or UDP's, and the payload.
    network_at: usize,
    transport_at: usize,
    payload_at: usize,
    version: Version,
    is_tcp: bool,
    has_ecn: bool,
    segment_bytes: usize,
    /// Payload that is in segments already.
    done: usize,
    /// IPv4: the first segment's number.
    identification: u16,
    sequence: u32,
}

impl<'a> Cut<'a> {
    /// How to cut a packet. What its sender said of headers is a hint: they are read again here.
    ///
    /// # Errors
    /// When its headers are of another kind than its sender says, are not whole in the packet's head, or leave it too many segments.
    pub fn new(packet: Packet<'a>, segment: Segment) -> Result<Cut<'a>, Impossible> {
        let head = packet.head();
        let parsed = parse::Packet::parse(head).ok_or(Impossible)?;
        let is_tcp = segment.kind != SegmentKind::Udp;
        let fits = match segment.kind {
            SegmentKind::Tcp4 => parsed.version == Version::V4 && parsed.protocol == PROTOCOL_TCP,
            SegmentKind::Tcp6 => parsed.version == Version::V6 && parsed.protocol == PROTOCOL_TCP,
            SegmentKind::Udp => parsed.protocol == PROTOCOL_UDP,
        };
        let transport_at = parsed.payload_at;
        let header_bytes = if is_tcp {
            usize::from(*head.get(transport_at + 12).ok_or(Impossible)? >> 4) * 4
        } else {
            8
        };
        let payload_at = transport_at + header_bytes;
        let has_headers = payload_at <= head.len() && header_bytes >= if is_tcp { 20 } else { 8 };
        if !fits || parsed.fragment || !has_headers || segment.bytes == 0 {
            return Err(Impossible);
        }
        let payload = packet.len() - payload_at;
        if payload > SEGMENTS_MAX * usize::from(segment.bytes) {
            return Err(Impossible);
        }
        let mut own = [0; HEAD_BYTES];
        own[..head.len()].copy_from_slice(head);
        let sequence = half(head, transport_at + 4).zip(half(head, transport_at + 6));
        let (high, low) = sequence.ok_or(Impossible)?;
        Ok(Cut {
            packet,
            head: own,
            network_at: parsed.at,
            transport_at,
            payload_at,
            version: parsed.version,
            is_tcp,
            has_ecn: segment.has_ecn,
            segment_bytes: segment.bytes.into(),
            done: 0,
            identification: half(head, parsed.at + 4).ok_or(Impossible)?,
            sequence: u32::from(high) << 16 | u32::from(low),
        })
    }

    /// Bytes of the longest segment, from its header of the Internet on.
    pub(crate) fn network_bytes(&self) -> usize {
        let payload = self.packet.len() - self.payload_at;
        self.payload_at - self.network_at + self.segment_bytes.min(payload)
    }

    /// How many segments there will be.
    #[must_use]
    pub fn count(&self) -> usize {
        let payload = self.packet.len() - self.payload_at;
        payload.div_ceil(self.segment_bytes).max(1)
    }

    /// Adds the next segment to a burst. None: there are no more; false: there is no room, and it is still to come.
    pub fn next(&mut self, burst: &mut Burst) -> Option<bool> {
        let payload = self.packet.len() - self.payload_at;
        if self.done > 0 && self.done >= payload || self.done == usize::MAX {
            return None;
        }
        let length = self.segment_bytes.min(payload - self.done);
        let is_last = self.done + length == payload;
        let mut lead = [0; HEAD_BYTES];
        lead.copy_from_slice(&self.head);
        let lead = &mut lead[..self.payload_at];
        self.amend(lead, length, is_last);
        if !burst.append_part(self.packet, lead, self.payload_at + self.done, length) {
            return Some(false);
        }
        let number = burst.len() - 1;
        let checksum_at = self.transport_at + if self.is_tcp { 16 } else { 6 };
        if let Some(segment) = burst.get(number) {
            let mut sum = sum_from(segment, self.transport_at);
            self.add_pseudo_header(&mut sum, burst.get(number).map_or(0, |one| one.len()));
            let checksum = completed(sum, !self.is_tcp);
            burst.head_mut(number)[checksum_at..checksum_at + 2]
                .copy_from_slice(&checksum.to_be_bytes());
        }
        // A packet without payload is one segment.
        self.done = if payload == 0 {
            usize::MAX
        } else {
            self.done + length
        };
        Some(true)
    }

    /// Makes the packet's headers those of a segment; its checksum is 0.
    fn amend(&self, lead: &mut [u8], length: usize, is_last: bool) {
        let index = self.done / self.segment_bytes;
        let network_bytes = self.payload_at - self.network_at + length;
        // Segments have at most 64 KiB of payload, or the packet had a wrong length to begin with.
        let put = |lead: &mut [u8], at: usize, value: u16| {
            lead[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        let at = self.network_at;
        match self.version {
            Version::V4 => {
                put(lead, at + 2, network_bytes as u16);
                put(lead, at + 4, self.identification.wrapping_add(index as u16));
                put(lead, at + 10, 0);
                let header_bytes = usize::from(lead[at] & 0xf) * 4;
                let mut sum = Sum::default();
                sum.add(&lead[at..at + header_bytes]);
                put(lead, at + 10, sum.complement());
            }
            Version::V6 => put(lead, at + 4, (network_bytes - 40) as u16),
        }
        let at = self.transport_at;
        if self.is_tcp {
            let sequence = self.sequence.wrapping_add(self.done as u32);
            lead[at + 4..at + 8].copy_from_slice(&sequence.to_be_bytes());
            if !is_last {
                lead[at + 13] &= !(FIN | PSH);
            }
            if self.done > 0 && self.has_ecn {
                lead[at + 13] &= !CWR;
            }
            put(lead, at + 16, 0);
        } else {
            put(lead, at + 4, (8 + length) as u16);
            put(lead, at + 6, 0);
        }
    }

    fn add_pseudo_header(&self, sum: &mut Sum, segment_bytes: usize) {
        let at = self.network_at;
        let addresses = match self.version {
            Version::V4 => at + 12..at + 20,
            Version::V6 => at + 8..at + 40,
        };
        sum.add(&self.head[addresses]);
        let protocol = if self.is_tcp {
            PROTOCOL_TCP
        } else {
            PROTOCOL_UDP
        };
        sum.add_word(protocol.into());
        sum.add_word((segment_bytes - self.transport_at) as u16);
    }
}

/// What a packet leaves to others, when so many bytes were put in (or taken out, below 0) before its header of the Internet. None: where
/// its checksum begins then, no number says.
pub(crate) fn shifted(offload: Offload, by: i32) -> Option<Offload> {
    let shift = |value: u16| u16::try_from(i32::from(value) + by).ok();
    let checksum = match offload.checksum {
        Checksum::Partial { start, offset } => Checksum::Partial {
            start: shift(start)?,
            offset,
        },
        other => other,
    };
    // A hint, which may be 0.
    let segment = offload.segment.map(|segment| Segment {
        header_bytes: shift(segment.header_bytes).unwrap_or(0),
        ..segment
    });
    Some(Offload { checksum, segment })
}

/// Changes one byte of an IPv4 header that begins at `at`, and its checksum with it.
pub(crate) fn set_ipv4_byte(bytes: &mut [u8], at: usize, offset: usize, value: u8) {
    let word_at = at + (offset & !1);
    let (Some(before), Some(checksum)) = (half(bytes, word_at), half(bytes, at + 10)) else {
        return;
    };
    bytes[at + offset] = value;
    if let Some(after) = half(bytes, word_at) {
        let checksum = adjusted(checksum, before, after);
        bytes[at + 10..at + 12].copy_from_slice(&checksum.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
