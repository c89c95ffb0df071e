//! Blocks of pcapng that a capture of a living interface has beside packets: what the interface is called, which way a packet went, and
//! what was not captured.

use super::{BYTE_ORDER, ENHANCED_PACKET, INTERFACE, LEAD_BYTES_MAX, OPTION_TIME_UNIT, SECTION};

const STATISTICS: u32 = 5;

const OPTION_END: u16 = 0;
/// Of an interface.
const OPTION_NAME: u16 = 2;
const OPTION_FILTER: u16 = 11;
/// Of a packet.
const OPTION_FLAGS: u16 = 2;
/// Of statistics, and those behind it up to packets that were delivered.
const OPTION_START: u16 = 2;

/// An interface's name, and what its packets were filtered by, are not longer.
const NAME_BYTES_MAX: usize = 64;
const FILTER_BYTES_MAX: usize = 252;
/// Bytes of what precedes the first packet.
pub const INTRODUCTION_BYTES_MAX: usize =
    28 + 16 + 4 + NAME_BYTES_MAX + 4 + 1 + FILTER_BYTES_MAX + 3 + 8 + 4 + 4;
/// Bytes behind a packet: three of padding, its direction, the end of options, the block's length.
pub const LIVE_TRAIL_BYTES_MAX: usize = 3 + 8 + 4 + 4;
/// Bytes of statistics.
pub const STATISTICS_BYTES: usize = 112;

/// An interface of a capture.
#[derive(Debug, Clone, Copy)]
pub struct Interface<'a> {
    /// [`super::LINK_ETHERNET`] or another.
    pub link: u16,
    /// So many bytes of each packet are captured.
    pub snap_bytes: u32,
    /// What it is called; what is longer than 64 bytes is cut.
    pub name: &'a str,
    /// Which packets are captured, in words; what is longer than 252 bytes is cut. Empty: all.
    pub filter: &'a str,
}

/// Which way a packet went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// It was received.
    In,
    /// It was transmitted.
    Out,
}

/// What came of an interface's packets, from one time to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// In nanoseconds since 1970.
    pub start_ns: u64,
    /// In nanoseconds since 1970.
    pub end_ns: u64,
    /// Packets that passed.
    pub received: u64,
    /// Lost by the interface itself.
    pub lost: u64,
    /// That the filter let pass.
    pub accepted: u64,
    /// That it let pass, and that were not captured all the same.
    pub dropped: u64,
    /// That were captured.
    pub delivered: u64,
}

/// Puts one thing behind the other. Everything has room: lengths are bounded above.
struct Out<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl Out<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.buffer[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn word(&mut self, word: u32) {
        self.bytes(&word.to_le_bytes());
    }

    fn pad(&mut self) {
        let padding = self.at.wrapping_neg() % 4;
        self.bytes(&[0; 3][..padding]);
    }

    fn option(&mut self, kind: u16, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        // At most 253.
        self.word(u32::from(kind) | (length as u32) << 16);
        parts.iter().for_each(|part| self.bytes(part));
        self.pad();
    }

    /// A number in two words, the upper one first.
    fn time(&mut self, kind: u16, time_ns: u64) {
        let upper = ((time_ns >> 32) as u32).to_le_bytes();
        self.option(kind, &[&upper, &(time_ns as u32).to_le_bytes()]);
    }

    /// Ends a block that began at a place.
    fn end(&mut self, start: usize) {
        let length = (self.at + 4 - start) as u32;
        self.word(length);
        self.buffer[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    }
}

fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// What a capture begins with that has one interface; returns its length.
#[must_use]
pub fn emit_introduction(
    interface: &Interface<'_>,
    buffer: &mut [u8; INTRODUCTION_BYTES_MAX],
) -> usize {
    let mut out = Out { buffer, at: 0 };
    // Version 1.0; the length of the section is not known, which is all ones.
    for word in [SECTION, 28, BYTE_ORDER, 1, u32::MAX, u32::MAX, 28] {
        out.word(word);
    }
    put_interface(interface, &mut out);
    out.at
}

/// A further interface, behind the introduction and before packets; returns its length. They have numbers in their order, the first 0.
#[must_use]
pub fn emit_interface(
    interface: &Interface<'_>,
    buffer: &mut [u8; INTRODUCTION_BYTES_MAX],
) -> usize {
    let mut out = Out { buffer, at: 0 };
    put_interface(interface, &mut out);
    out.at
}

fn put_interface(interface: &Interface<'_>, out: &mut Out<'_>) {
    let start = out.at;
    for word in [INTERFACE, 0, interface.link.into(), interface.snap_bytes] {
        out.word(word);
    }
    out.option(
        OPTION_NAME,
        &[cut(interface.name, NAME_BYTES_MAX).as_bytes()],
    );
    if !interface.filter.is_empty() {
        // Zero: it is text.
        let filter = cut(interface.filter, FILTER_BYTES_MAX);
        out.option(OPTION_FILTER, &[&[0], filter.as_bytes()]);
    }
    // The unit of time is a billionth.
    out.option(OPTION_TIME_UNIT, &[&[9]]);
    out.option(OPTION_END, &[]);
    out.end(start);
}

/// What is written before and behind so many bytes of a longer packet; returns the length of what is behind.
#[must_use]
pub fn emit_around_live(
    (bytes, original_bytes): (u32, u32),
    time_ns: u64,
    direction: Direction,
    lead: &mut [u8; LEAD_BYTES_MAX],
    trail: &mut [u8; LIVE_TRAIL_BYTES_MAX],
) -> usize {
    let padding = bytes.wrapping_neg() as usize % 4;
    let total = LEAD_BYTES_MAX as u32 + bytes + padding as u32 + 8 + 4 + 4;
    let mut out = Out {
        buffer: lead,
        at: 0,
    };
    let (upper, lower) = ((time_ns >> 32) as u32, time_ns as u32);
    for word in [
        ENHANCED_PACKET,
        total,
        0,
        upper,
        lower,
        bytes,
        original_bytes,
    ] {
        out.word(word);
    }
    let flags = match direction {
        Direction::In => 1u32,
        Direction::Out => 2,
    };
    let mut out = Out {
        buffer: trail,
        at: 0,
    };
    out.bytes(&[0; 3][..padding]);
    out.word(u32::from(OPTION_FLAGS) | 4 << 16);
    out.word(flags);
    out.word(OPTION_END.into());
    out.word(total);
    out.at
}

/// Has what is written before a packet, of the first interface, be of another one.
pub fn set_interface(lead: &mut [u8; LEAD_BYTES_MAX], number: u32) {
    lead[8..12].copy_from_slice(&number.to_le_bytes());
}

/// Reads statistics as [`emit_statistics`] writes them. None: it is another block.
#[must_use]
pub fn parse_statistics(block: &[u8; STATISTICS_BYTES]) -> Option<Statistics> {
    let word = |at: usize| {
        let bytes = block.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let long = |at: usize| {
        let bytes = block.get(at..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    };
    let time = |at: usize| Some(u64::from(word(at)?) << 32 | u64::from(word(at + 4)?));
    let is_it = word(0)? == STATISTICS && word(4)? == STATISTICS_BYTES as u32;
    // Behind the block's head are options of eight bytes, with four before each.
    let option = |number: usize| 20 + 12 * number + 4;
    let count = |number: usize| long(option(2 + number));
    let statistics = Statistics {
        start_ns: time(option(0))?,
        end_ns: time(option(1))?,
        received: count(0)?,
        lost: count(1)?,
        accepted: count(2)?,
        dropped: count(3)?,
        delivered: count(4)?,
    };
    is_it.then_some(statistics)
}

/// Statistics of the first interface.
pub fn emit_statistics(statistics: &Statistics, buffer: &mut [u8; STATISTICS_BYTES]) {
    let mut out = Out { buffer, at: 0 };
    let end_ns = statistics.end_ns;
    for word in [STATISTICS, 0, 0, (end_ns >> 32) as u32, end_ns as u32] {
        out.word(word);
    }
    out.time(OPTION_START, statistics.start_ns);
    out.time(OPTION_START + 1, end_ns);
    let counts = [
        statistics.received,
        statistics.lost,
        statistics.accepted,
        statistics.dropped,
        statistics.delivered,
    ];
    for (kind, count) in (OPTION_START + 2..).zip(counts) {
        out.option(kind, &[&count.to_le_bytes()]);
    }
    out.option(OPTION_END, &[]);
    out.end(0);
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, Item, LINK_ETHERNET};
    use super::*;
    extern crate alloc;
    use alloc::vec::Vec;

    fn introduction(name: &str, filter: &str) -> Vec<u8> {
        let interface = Interface {
            link: LINK_ETHERNET,
            snap_bytes: 96,
            name,
            filter,
        };
        let mut buffer = [0; INTRODUCTION_BYTES_MAX];
        let length = emit_introduction(&interface, &mut buffer);
        buffer[..length].to_vec()
    }

    #[test]
    fn packets_are_read_back_with_what_they_had() {
        let mut file = introduction("memif0", "in port 2152");
        for length in 0..9 {
            let (mut lead, mut trail) = ([0; LEAD_BYTES_MAX], [0; LIVE_TRAIL_BYTES_MAX]);
            let time_ns = (5 << 32) + u64::from(length);
            let lengths = (length, length + 1000);
            let behind = emit_around_live(lengths, time_ns, Direction::Out, &mut lead, &mut trail);
            file.extend_from_slice(&lead);
            file.extend((0..length).map(|byte| byte as u8));
            file.extend_from_slice(&trail[..behind]);
        }
        let mut statistics = [0; STATISTICS_BYTES];
        emit_statistics(&Statistics::default(), &mut statistics);
        file.extend_from_slice(&statistics);
        let mut decoder = Decoder::default();
        let (mut at, mut found) = (0, 0);
        while at < file.len() {
            match decoder.next(&file[at..]).unwrap() {
                Item::Need(bytes) => panic!("{bytes} are needed at {at}"),
                Item::Other(bytes) => at += bytes,
                Item::Packet(packet, bytes) => {
                    assert_eq!(packet.bytes.len(), found);
                    assert_eq!(packet.original_bytes as usize, found + 1000);
                    assert_eq!(packet.time_ns, Some((5 << 32) + found as u64));
                    at += bytes;
                    found += 1;
                }
            }
        }
        assert_eq!((at, found), (file.len(), 9));
    }

    #[test]
    fn packets_of_several_interfaces_are_read_back() {
        let mut file = introduction("n3", "");
        let second = Interface {
            link: super::super::LINK_RAW,
            snap_bytes: 96,
            name: "n6",
            filter: "",
        };
        let mut buffer = [0; INTRODUCTION_BYTES_MAX];
        let length = emit_interface(&second, &mut buffer);
        file.extend_from_slice(&buffer[..length]);
        for number in [1, 0] {
            let (mut lead, mut trail) = ([0; LEAD_BYTES_MAX], [0; LIVE_TRAIL_BYTES_MAX]);
            let behind = emit_around_live((4, 4), 7, Direction::In, &mut lead, &mut trail);
            set_interface(&mut lead, number);
            file.extend_from_slice(&lead);
            file.extend_from_slice(&[1; 4]);
            file.extend_from_slice(&trail[..behind]);
        }
        let mut decoder = Decoder::default();
        let (mut at, mut links) = (0, Vec::new());
        while at < file.len() {
            match decoder.next(&file[at..]).unwrap() {
                Item::Need(bytes) => panic!("{bytes} are needed at {at}"),
                Item::Other(bytes) => at += bytes,
                Item::Packet(packet, bytes) => {
                    links.push(packet.link);
                    at += bytes;
                }
            }
        }
        assert_eq!(links, [super::super::LINK_RAW, LINK_ETHERNET]);
    }

    #[test]
    fn statistics_are_read_as_they_are_written() {
        let written = Statistics {
            start_ns: 5 << 32 | 1,
            end_ns: 6 << 32 | 2,
            received: 3,
            lost: 4,
            accepted: u64::MAX,
            dropped: 6,
            delivered: 1 << 40,
        };
        let mut block = [0; STATISTICS_BYTES];
        emit_statistics(&written, &mut block);
        assert_eq!(parse_statistics(&block), Some(written));
        block[0] += 1;
        assert_eq!(parse_statistics(&block), None);
    }

    #[test]
    fn names_of_any_length_have_room() {
        let long = "ä".repeat(300);
        for length in 0..300 {
            let name: alloc::string::String = long.chars().take(length).collect();
            let bytes = introduction(&name, &name);
            let length = u32::from_le_bytes([bytes[32], bytes[33], bytes[34], bytes[35]]);
            assert_eq!(bytes.len(), 28 + length as usize);
        }
    }
}
