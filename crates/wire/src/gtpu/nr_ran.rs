//! What stands in the extension header "NR RAN Container": 3GPP TS 38.425 (release 17), clause 5.5.2. The node that hosts PDCP numbers what
//! it sends to the node that has the radio, and that says what became of it.
//!
//! ```text
//!   0  user data        kind (4) - DB DF RP | - (3) RO RD UD AP RT | number u24
//!                       [flush u24 (DF)] [count u8, blocks: first u24 | count u8 (DB)] [report up to u24 (RD)]
//!   1  delivery status  kind (4) HT HD FF LP | - (3) DR RR HR HX CR … | desired bytes u32
//!                       [desired rate u32] [count u8, lost: first u24 | last u24] [delivered u24] [transmitted u24] [cause u8]
//!                       [delivered again u24] [transmitted again u24] [count u8, delivered: first u24 | last u24]
//!   2  assistance       kind (4) PD AI UD DD | - (7) suggestion | [count u8, fields: kind u8 | length u8 | …]
//!                       [uplink delay u32] [downlink delay u32]
//! ```
//!
//! Spare bits and what fills a container up are not looked at.

use super::fields::{Reader, Writer};

const SEQUENCE_END: u32 = 1 << 24;
const BLOCK_BYTES: usize = 4;
const RANGE_BYTES: usize = 6;

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Beside a packet, or alone.
    UserData(UserData<'a>),
    /// What became of packets.
    Delivery(DeliveryStatus<'a>),
    /// What helps to send them well.
    Assistance(Assistance<'a>),
}

/// "DL USER DATA" (5.5.2.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UserData<'a> {
    /// Counts what is sent to this node for this bearer, in 24 bits.
    pub sequence: u32,
    /// All up to this PDCP number are to be thrown away.
    pub flush: Option<u32>,
    /// So are these.
    pub discard: Blocks<'a>,
    /// A delivery status is asked for.
    pub polls: bool,
    /// Packets that were delivered before others are to be reported.
    pub wants_out_of_sequence: bool,
    /// One is asked for once this PDCP number is delivered.
    pub report_up_to: Option<u32>,
    /// Whether there is more for this bearer on its way.
    pub has_data: bool,
    /// Assistance is asked for.
    pub polls_assistance: bool,
    /// The packet was sent before.
    pub again: bool,
}

/// "DL DATA DELIVERY STATUS" (5.5.2.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeliveryStatus<'a> {
    /// So many bytes the node wants, beyond what is counted as delivered or lost.
    pub desired_bytes: u32,
    /// So many in a second.
    pub desired_rate: Option<u32>,
    /// The last status that there will be.
    pub is_final: bool,
    /// Numbers of [`UserData::sequence`] that never came; none is another thing than an empty list.
    pub lost: Option<Ranges<'a>>,
    /// The highest PDCP number of those that were delivered in sequence.
    pub delivered: Option<u32>,
    /// The highest that was transmitted.
    pub transmitted: Option<u32>,
    /// Why it is sent: the radio link is out, is back, and others.
    pub cause: Option<u8>,
    /// As `delivered`, of those that were sent again.
    pub delivered_again: Option<u32>,
    /// As `transmitted`.
    pub transmitted_again: Option<u32>,
    /// PDCP numbers that were delivered before others.
    pub out_of_sequence: Option<Ranges<'a>>,
}

/// "ASSISTANCE INFORMATION DATA" (5.5.2.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Assistance<'a> {
    /// Whether PDCP is to send twice.
    pub duplication: Option<bool>,
    /// What the radio's quality is.
    pub fields: Option<Fields<'a>>,
    /// In the node, upwards.
    pub uplink_delay: Option<u32>,
    /// Downwards.
    pub downlink_delay: Option<u32>,
}

/// Blocks of PDCP numbers: the first of each, and how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Blocks<'a>(&'a [u8]);

/// Ranges of numbers: the first and the last of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ranges<'a>(&'a [u8]);

/// Fields of assistance: what each is of, and its content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fields<'a> {
    count: u8,
    bytes: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// Those that `bytes` are: 4 each. None: they are cut off, or more than 255.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Blocks<'a>> {
        is_list(bytes, BLOCK_BYTES).then_some(Blocks(bytes))
    }

    /// How one is written.
    #[must_use]
    pub fn emit_one(first: u32, count: u8) -> [u8; BLOCK_BYTES] {
        let [_, high, middle, low] = first.to_be_bytes();
        [high, middle, low, count]
    }

    /// Each.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u8)> + use<'a> {
        let blocks = self.0.chunks_exact(BLOCK_BYTES);
        blocks.map(|block| {
            let first = u32::from_be_bytes([0, block[0], block[1], block[2]]);
            (first, block[3])
        })
    }
}

impl<'a> Ranges<'a> {
    /// Those that `bytes` are: 6 each. None: they are cut off, or more than 255.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Ranges<'a>> {
        is_list(bytes, RANGE_BYTES).then_some(Ranges(bytes))
    }

    /// How one is written.
    #[must_use]
    pub fn emit_one(first: u32, last: u32) -> [u8; RANGE_BYTES] {
        let mut bytes = [0; RANGE_BYTES];
        bytes[..3].copy_from_slice(&first.to_be_bytes()[1..]);
        bytes[3..].copy_from_slice(&last.to_be_bytes()[1..]);
        bytes
    }

    /// Each.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let ranges = self.0.chunks_exact(RANGE_BYTES);
        ranges.map(|range| {
            let number =
                |at: usize| u32::from_be_bytes([0, range[at], range[at + 1], range[at + 2]]);
            (number(0), number(3))
        })
    }

    fn read(reader: &mut Reader<'a>) -> Option<Ranges<'a>> {
        let count = usize::from(reader.byte()?);
        reader.bytes(count * RANGE_BYTES).map(Ranges)
    }

    fn write(&self, writer: &mut Writer<'_>) -> Option<()> {
        writer.put(&[(self.0.len() / RANGE_BYTES) as u8])?;
        writer.put(self.0)
    }
}

fn is_list(bytes: &[u8], each: usize) -> bool {
    bytes.len().is_multiple_of(each) && bytes.len() / each <= usize::from(u8::MAX)
}

impl<'a> Fields<'a> {
    /// Those that `bytes` are. None: one is cut off, or they are more than 255.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Fields<'a>> {
        let mut reader = Reader(bytes);
        let mut count = 0u8;
        while !reader.0.is_empty() {
            count = count.checked_add(1)?;
            Fields::step(&mut reader)?;
        }
        Some(Fields { count, bytes })
    }

    /// Each.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut reader = Reader(self.bytes);
        core::iter::from_fn(move || Fields::step(&mut reader))
    }

    fn step(reader: &mut Reader<'a>) -> Option<(u8, &'a [u8])> {
        let (kind, length) = (reader.byte()?, reader.byte()?);
        Some((kind, reader.bytes(usize::from(length))?))
    }

    fn read(reader: &mut Reader<'a>) -> Option<Fields<'a>> {
        let count = reader.byte()?;
        let before = reader.0;
        for _ in 0..count {
            Fields::step(reader)?;
        }
        let bytes = &before[..before.len() - reader.0.len()];
        Some(Fields { count, bytes })
    }
}

impl<'a> Frame<'a> {
    /// What an extension header's content says. None: it is too short, or of a kind that there is not.
    #[must_use]
    pub fn parse(content: &'a [u8]) -> Option<Frame<'a>> {
        let mut reader = Reader(content);
        let flags = [reader.byte()?, reader.byte()?];
        match flags[0] >> 4 {
            0 => UserData::parse(flags, &mut reader).map(Frame::UserData),
            1 => DeliveryStatus::parse(flags, &mut reader).map(Frame::Delivery),
            2 => Assistance::parse(flags, &mut reader).map(Frame::Assistance),
            _ => None,
        }
    }

    /// Writes it; returns how many bytes it took. None: there is no room, or a number has too many bits.
    #[must_use]
    pub fn emit(&self, to: &mut [u8]) -> Option<usize> {
        let mut writer = Writer::new(to);
        match self {
            Frame::UserData(frame) => frame.emit(&mut writer)?,
            Frame::Delivery(frame) => frame.emit(&mut writer)?,
            Frame::Assistance(frame) => frame.emit(&mut writer)?,
        }
        Some(writer.count)
    }
}

fn has(flags: u8, bit: u32) -> bool {
    flags >> bit & 1 != 0
}

fn bit(is_set: bool, bit: u32) -> u8 {
    u8::from(is_set) << bit
}

/// Writes a sequence number, if there is one.
fn put(writer: &mut Writer<'_>, sequence: Option<u32>) -> Option<()> {
    match sequence {
        Some(number) if number < SEQUENCE_END => writer.three(number),
        Some(_) => None,
        None => Some(()),
    }
}

impl<'a> UserData<'a> {
    fn parse([first, second]: [u8; 2], reader: &mut Reader<'a>) -> Option<UserData<'a>> {
        Some(UserData {
            polls: has(first, 0),
            wants_out_of_sequence: has(second, 4),
            has_data: has(second, 2),
            polls_assistance: has(second, 1),
            again: has(second, 0),
            sequence: reader.three()?,
            flush: reader.when(has(first, 1), Reader::three)?,
            discard: if has(first, 2) {
                let count = usize::from(reader.byte()?);
                Blocks(reader.bytes(count * BLOCK_BYTES)?)
            } else {
                Blocks::default()
            },
            report_up_to: reader.when(has(second, 3), Reader::three)?,
        })
    }

    fn emit(&self, writer: &mut Writer<'_>) -> Option<()> {
        let discards = !self.discard.0.is_empty();
        let first = bit(discards, 2) | bit(self.flush.is_some(), 1) | bit(self.polls, 0);
        let second = bit(self.wants_out_of_sequence, 4)
            | bit(self.report_up_to.is_some(), 3)
            | bit(self.has_data, 2)
            | bit(self.polls_assistance, 1)
            | bit(self.again, 0);
        writer.put(&[first, second])?;
        put(writer, Some(self.sequence))?;
        put(writer, self.flush)?;
        if discards {
            writer.put(&[(self.discard.0.len() / BLOCK_BYTES) as u8])?;
            writer.put(self.discard.0)?;
        }
        put(writer, self.report_up_to)
    }
}

impl<'a> DeliveryStatus<'a> {
    fn parse([first, second]: [u8; 2], reader: &mut Reader<'a>) -> Option<DeliveryStatus<'a>> {
        Some(DeliveryStatus {
            is_final: has(first, 1),
            desired_bytes: reader.four()?,
            desired_rate: reader.when(has(second, 3), Reader::four)?,
            lost: reader.when(has(first, 0), Ranges::read)?,
            delivered: reader.when(has(first, 2), Reader::three)?,
            transmitted: reader.when(has(first, 3), Reader::three)?,
            cause: reader.when(has(second, 0), Reader::byte)?,
            delivered_again: reader.when(has(second, 1), Reader::three)?,
            transmitted_again: reader.when(has(second, 2), Reader::three)?,
            out_of_sequence: reader.when(has(second, 4), Ranges::read)?,
        })
    }

    fn emit(&self, writer: &mut Writer<'_>) -> Option<()> {
        let first = 1 << 4
            | bit(self.transmitted.is_some(), 3)
            | bit(self.delivered.is_some(), 2)
            | bit(self.is_final, 1)
            | bit(self.lost.is_some(), 0);
        let second = bit(self.out_of_sequence.is_some(), 4)
            | bit(self.desired_rate.is_some(), 3)
            | bit(self.transmitted_again.is_some(), 2)
            | bit(self.delivered_again.is_some(), 1)
            | bit(self.cause.is_some(), 0);
        writer.put(&[first, second])?;
        writer.four(self.desired_bytes)?;
        self.desired_rate
            .map_or(Some(()), |rate| writer.four(rate))?;
        self.lost.map_or(Some(()), |lost| lost.write(writer))?;
        put(writer, self.delivered)?;
        put(writer, self.transmitted)?;
        self.cause.map_or(Some(()), |cause| writer.put(&[cause]))?;
        put(writer, self.delivered_again)?;
        put(writer, self.transmitted_again)?;
        self.out_of_sequence
            .map_or(Some(()), |ranges| ranges.write(writer))
    }
}

impl<'a> Assistance<'a> {
    fn parse([first, second]: [u8; 2], reader: &mut Reader<'a>) -> Option<Assistance<'a>> {
        Some(Assistance {
            duplication: has(first, 3).then_some(has(second, 0)),
            fields: reader.when(has(first, 2), Fields::read)?,
            uplink_delay: reader.when(has(first, 1), Reader::four)?,
            downlink_delay: reader.when(has(first, 0), Reader::four)?,
        })
    }

    fn emit(&self, writer: &mut Writer<'_>) -> Option<()> {
        let first = 2 << 4
            | bit(self.duplication.is_some(), 3)
            | bit(self.fields.is_some(), 2)
            | bit(self.uplink_delay.is_some(), 1)
            | bit(self.downlink_delay.is_some(), 0);
        writer.put(&[first, u8::from(self.duplication == Some(true))])?;
        if let Some(fields) = self.fields {
            writer.put(&[fields.count])?;
            writer.put(fields.bytes)?;
        }
        self.uplink_delay
            .map_or(Some(()), |delay| writer.four(delay))?;
        self.downlink_delay
            .map_or(Some(()), |delay| writer.four(delay))
    }
}
