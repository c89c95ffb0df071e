//! Captures: classic pcap and pcapng, to be read as they come and written one packet after another.
//!
//! Classic pcap as draft-ietf-opsawg-pcap has it: a header of 24 bytes, whose magic number says the byte order and the unit of time, and
//! records of 16 bytes and a packet. pcapng as draft-ietf-opsawg-pcapng has it: blocks with their length at both ends; of the blocks,
//! section headers, interfaces (with their unit of time), enhanced and simple packets are read, and all others passed over. Written is
//! little endian, with nanoseconds; of a living interface (`live`) with its name, directions and statistics.

use core::fmt;

mod live;

pub use live::{
    Direction, INTRODUCTION_BYTES_MAX, Interface, LIVE_TRAIL_BYTES_MAX, STATISTICS_BYTES,
    Statistics, emit_around_live, emit_interface, emit_introduction, emit_statistics,
    parse_statistics, set_interface,
};

/// Ethernet frames.
pub const LINK_ETHERNET: u16 = 1;
/// IPv4 and IPv6 packets.
pub const LINK_RAW: u16 = 101;

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const CLASSIC_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const OPTION_TIME_UNIT: u16 = 9;
/// Fields of an enhanced packet before its bytes, after the block's kind and length.
const ENHANCED_FIELDS: usize = 20;

/// No block or record is longer: who writes 16 MiB of one means something else.
pub const BLOCK_BYTES_MAX: usize = 16 << 20;
/// Interfaces of a section that are known, at most.
const INTERFACES_MAX: usize = 64;

/// Bytes of what precedes the first packet of a file that is written.
pub const HEADER_BYTES_MAX: usize = 64;

/// A packet of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Captured<'a> {
    /// The bytes that were captured.
    pub bytes: &'a [u8],
    /// How many the packet had.
    pub original_bytes: u32,
    /// When, in nanoseconds since 1970; none is known of a simple packet.
    pub time_ns: Option<u64>,
    /// [`LINK_ETHERNET`] or another.
    pub link: u16,
}

/// What a file's next bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// Too few, if the file goes on: so many are needed.
    Need(usize),
    /// Something that is no packet, of so many bytes.
    Other(usize),
    /// A packet, in so many bytes.
    Packet(Captured<'a>, usize),
}

/// Why bytes are no capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseError {
    /// It begins like neither format.
    Magic(u32),
    /// A section does not say its byte order.
    ByteOrder(u32),
    /// A block or record has an impossible length.
    Length(u32),
    /// A block is too short for its fields.
    Truncated(u32),
    /// A packet is of an interface that there is not.
    Interface(u32),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Magic(magic) => {
                write!(f, "a file that begins with {magic:#010x} is no capture")
            }
            ParseError::ByteOrder(word) => write!(f, "a section's byte order is {word:#010x}"),
            ParseError::Length(bytes) => write!(f, "a block of {bytes} bytes cannot be"),
            ParseError::Truncated(kind) => write!(f, "a block of kind {kind} is too short"),
            ParseError::Interface(number) => {
                write!(f, "a packet of interface {number}, which there is not")
            }
        }
    }
}

impl core::error::Error for ParseError {}

#[derive(Debug, Clone, Copy)]
enum Format {
    Unknown,
    Classic { unit_ns: u64, link: u16 },
    Blocks,
}

/// What is known of a file so far.
#[derive(Debug)]
pub struct Decoder {
    format: Format,
    big_endian: bool,
    /// Of the section's interfaces: the link, and the exponent of the unit of time.
    interfaces: [(u16, u8); INTERFACES_MAX],
    interface_count: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder {
            format: Format::Unknown,
            big_endian: false,
            interfaces: [(0, 0); INTERFACES_MAX],
            interface_count: 0,
        }
    }
}

impl Decoder {
    /// What the file's next bytes are; they begin where the last item ended.
    ///
    /// # Errors
    /// When they are no capture. Never panics.
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Item<'a>, ParseError> {
        match self.format {
            Format::Unknown => self.begin(bytes),
            Format::Classic { unit_ns, link } => self.record(bytes, unit_ns, link),
            Format::Blocks => self.block(bytes),
        }
    }

    fn begin<'a>(&mut self, bytes: &'a [u8]) -> Result<Item<'a>, ParseError> {
        if bytes.len() < CLASSIC_HEADER {
            return Ok(Item::Need(CLASSIC_HEADER));
        }
        let magic = word(bytes, 0, false);
        if magic == SECTION {
            self.format = Format::Blocks;
            return self.block(bytes);
        }
        let little = match magic {
            MAGIC_MICROSECONDS | MAGIC_NANOSECONDS => magic,
            other => {
                self.big_endian = true;
                other.swap_bytes()
            }
        };
        let unit_ns = match little {
            MAGIC_MICROSECONDS => 1000,
            MAGIC_NANOSECONDS => 1,
            _ => return Err(ParseError::Magic(magic)),
        };
        // The upper bits may say how long checksums are.
        let link = word(bytes, 20, self.big_endian) as u16;
        self.format = Format::Classic { unit_ns, link };
        Ok(Item::Other(CLASSIC_HEADER))
    }

    fn record<'a>(&self, bytes: &'a [u8], unit_ns: u64, link: u16) -> Result<Item<'a>, ParseError> {
        if bytes.len() < RECORD_HEADER {
            return Ok(Item::Need(RECORD_HEADER));
        }
        let field = |at| word(bytes, at, self.big_endian);
        let captured = field(8);
        if captured as usize > BLOCK_BYTES_MAX {
            return Err(ParseError::Length(captured));
        }
        let end = RECORD_HEADER + captured as usize;
        if bytes.len() < end {
            return Ok(Item::Need(end));
        }
        let time_ns = u64::from(field(0)) * 1_000_000_000 + u64::from(field(4)) * unit_ns;
        let packet = Captured {
            bytes: &bytes[RECORD_HEADER..end],
            original_bytes: field(12),
            time_ns: Some(time_ns),
            link,
        };
        Ok(Item::Packet(packet, end))
    }

    fn block<'a>(&mut self, bytes: &'a [u8]) -> Result<Item<'a>, ParseError> {
        if bytes.len() < 12 {
            return Ok(Item::Need(12));
        }
        if word(bytes, 0, false) == SECTION {
            self.big_endian = match word(bytes, 8, false) {
                BYTE_ORDER => false,
                order if order.swap_bytes() == BYTE_ORDER => true,
                order => return Err(ParseError::ByteOrder(order)),
            };
            self.interface_count = 0;
        }
        let kind = word(bytes, 0, self.big_endian);
        let length = word(bytes, 4, self.big_endian);
        let end = length as usize;
        if !(12..=BLOCK_BYTES_MAX).contains(&end) || !end.is_multiple_of(4) {
            return Err(ParseError::Length(length));
        }
        if bytes.len() < end {
            return Ok(Item::Need(end));
        }
        let body = &bytes[8..end - 4];
        match kind {
            INTERFACE => self.interface(body)?,
            ENHANCED_PACKET => return Ok(Item::Packet(self.enhanced(body)?, end)),
            SIMPLE_PACKET => return Ok(Item::Packet(self.simple(body)?, end)),
            _ => {}
        }
        Ok(Item::Other(end))
    }

    fn interface(&mut self, body: &[u8]) -> Result<(), ParseError> {
        if body.len() < 8 {
            return Err(ParseError::Truncated(INTERFACE));
        }
        // Microseconds, where nothing else is said.
        let mut unit = 6;
        let mut options = &body[8..];
        while let [a, b, c, d, rest @ ..] = options {
            let kind = half([*a, *b], self.big_endian);
            let length = usize::from(half([*c, *d], self.big_endian));
            if kind == 0 || length > rest.len() {
                break;
            }
            if (kind, length) == (OPTION_TIME_UNIT, 1) {
                unit = rest[0];
            }
            options = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
        let count = self.interface_count;
        if let Some(interface) = self.interfaces.get_mut(count) {
            *interface = (half([body[0], body[1]], self.big_endian), unit);
            self.interface_count += 1;
        }
        Ok(())
    }

    fn of_interface(&self, number: u32) -> Result<(u16, u8), ParseError> {
        let known = &self.interfaces[..self.interface_count];
        let interface = known.get(number as usize);
        interface.copied().ok_or(ParseError::Interface(number))
    }

    fn enhanced<'a>(&self, body: &'a [u8]) -> Result<Captured<'a>, ParseError> {
        let wrong = ParseError::Truncated(ENHANCED_PACKET);
        if body.len() < ENHANCED_FIELDS {
            return Err(wrong);
        }
        let field = |at| word(body, at, self.big_endian);
        let (link, unit) = self.of_interface(field(0))?;
        let time = u64::from(field(4)) << 32 | u64::from(field(8));
        let captured = field(12) as usize;
        Ok(Captured {
            bytes: body[ENHANCED_FIELDS..].get(..captured).ok_or(wrong)?,
            original_bytes: field(16),
            time_ns: Some(nanoseconds(time, unit)),
            link,
        })
    }

    fn simple<'a>(&self, body: &'a [u8]) -> Result<Captured<'a>, ParseError> {
        if body.len() < 4 {
            return Err(ParseError::Truncated(SIMPLE_PACKET));
        }
        let (link, _) = self.of_interface(0)?;
        let original_bytes = word(body, 0, self.big_endian);
        // As much as there is: the interface's limit is not told here.
        let captured = (original_bytes as usize).min(body.len() - 4);
        Ok(Captured {
            bytes: &body[4..4 + captured],
            original_bytes,
            time_ns: None,
            link,
        })
    }
}

/// A time in an interface's unit: a negative power of ten, or with the highest bit, of two.
fn nanoseconds(time: u64, unit: u8) -> u64 {
    let per_second = match unit {
        0x80..=0xff => 1u128 << (unit & 0x7f).min(100),
        exponent => 10u128.pow(u32::from(exponent.min(30))),
    };
    // Beyond 2554, whoever wrote it meant something else.
    u64::try_from(u128::from(time) * 1_000_000_000 / per_second).unwrap_or(u64::MAX)
}

fn word(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    if big_endian {
        u32::from_be_bytes(word)
    } else {
        u32::from_le_bytes(word)
    }
}

fn half(bytes: [u8; 2], big_endian: bool) -> u16 {
    if big_endian {
        u16::from_be_bytes(bytes)
    } else {
        u16::from_le_bytes(bytes)
    }
}

/// What a file begins with, in either format; returns its length.
#[must_use]
pub fn emit_header(blocks: bool, link: u16, buffer: &mut [u8; HEADER_BYTES_MAX]) -> usize {
    let link = u32::from(link);
    let classic = [MAGIC_NANOSECONDS, 2 | 4 << 16, 0, 0, 262_144, link];
    // The length of the section is not known: all ones. The unit of time is a billionth.
    let unit = OPTION_TIME_UNIT as u32 | 1 << 16;
    let sections = [
        SECTION,
        28,
        BYTE_ORDER,
        1,
        u32::MAX,
        u32::MAX,
        28,
        INTERFACE,
        32,
        link,
        0,
        unit,
        9,
        0,
        32,
    ];
    let words: &[u32] = if blocks { &sections } else { &classic };
    for (to, word) in buffer.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    words.len() * 4
}

/// Bytes before a packet that is written.
pub const LEAD_BYTES_MAX: usize = 28;
/// Bytes behind it.
pub const TRAIL_BYTES_MAX: usize = 8;

/// What is written before and behind a packet of so many bytes, in either format; returns their lengths.
#[must_use]
pub fn emit_around(
    blocks: bool,
    bytes: u32,
    time_ns: u64,
    lead: &mut [u8; LEAD_BYTES_MAX],
    trail: &mut [u8; TRAIL_BYTES_MAX],
) -> (usize, usize) {
    let padding = bytes.wrapping_neg() as usize % 4;
    let total = bytes + LEAD_BYTES_MAX as u32 + padding as u32 + 4;
    let (seconds, rest) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let classic = [seconds as u32, rest as u32, bytes, bytes];
    let enhanced = [
        ENHANCED_PACKET,
        total,
        0,
        (time_ns >> 32) as u32,
        time_ns as u32,
        bytes,
        bytes,
    ];
    let words: &[u32] = if blocks { &enhanced } else { &classic };
    for (to, word) in lead.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    if !blocks {
        return (RECORD_HEADER, 0);
    }
    trail[..padding].fill(0);
    trail[padding..padding + 4].copy_from_slice(&total.to_le_bytes());
    (LEAD_BYTES_MAX, padding + 4)
}

#[cfg(test)]
mod tests;
