//! What stands in the extension header "PDU Session Container": 3GPP TS 38.415 (release 17), clause 5.5.2.
//!
//! ```text
//!   downlink   kind 0 (4) | QMP SNP MSNP spare   PPP RQI QFI (6)   [PPI (3) spare (5)] [times …]
//!   uplink     kind 1 (4) | QMP DD UD SNP        ND NI QFI (6)     [times …]
//! ```
//!
//! and the optional fields, each there if its flag says so, in this order:
//!
//! ```text
//!   downlink   sending time u64 (QMP) | sequence u24 (SNP) | multicast sequence u32 (MSNP)
//!   uplink     times 3 u64 (QMP) | delays u32 (DD), u32 (UD) | sequence u24 (SNP) | delay u32 (ND) | new elements (NI)
//! ```
//!
//! A function that relays a frame hands it on as it came, and reads a [`Frame`] of it at most. [`Measures`] are for those who measure
//! delays and losses. Times are NTP's: seconds since 1900 in the upper half, and their fraction in the lower (clause 5.5.3).

use super::fields::{Reader, Writer};

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the user.
    Downlink,
    /// From the user.
    Uplink,
}

/// A frame, as far as it says how a packet is to be treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Which way.
    pub direction: Direction,
    /// QoS flow identifier, 0 to 63.
    pub qfi: u8,
    /// Downlink: the user is to answer with the same QoS (reflective QoS indicator).
    pub reflective: bool,
    /// Downlink: paging policy, 0 to 7.
    pub paging_policy: Option<u8>,
}

/// Bytes of a frame that is written, at most.
pub const FRAME_BYTES_MAX: usize = 6;
/// Of one without a paging policy.
pub const FRAME_BYTES: usize = 2;

const PPP: u8 = 1 << 7;
const RQI: u8 = 1 << 6;
const QFI_MASK: u8 = 0x3f;

impl Frame {
    /// What an extension header's content says. None: it is too short, or of a kind that there is not.
    #[inline]
    #[must_use]
    pub fn parse(content: &[u8]) -> Option<Frame> {
        let &[first, second, ..] = content else {
            return None;
        };
        let direction = match first >> 4 {
            0 => Direction::Downlink,
            1 => Direction::Uplink,
            _ => return None,
        };
        let is_down = direction == Direction::Downlink;
        let paging_policy = match is_down && second & PPP != 0 {
            true => Some(content.get(2)? >> 5),
            false => None,
        };
        Some(Frame {
            direction,
            qfi: second & QFI_MASK,
            reflective: is_down && second & RQI != 0,
            paging_policy,
        })
    }

    /// The content of an extension header, and how many bytes of it count.
    #[inline]
    #[must_use]
    pub fn emit(&self) -> ([u8; FRAME_BYTES_MAX], usize) {
        let mut bytes = [0; FRAME_BYTES_MAX];
        bytes[1] = self.qfi & QFI_MASK;
        match (self.direction, self.paging_policy) {
            (Direction::Uplink, _) => {
                bytes[0] = 1 << 4;
                return (bytes, FRAME_BYTES);
            }
            (Direction::Downlink, policy) => {
                if self.reflective {
                    bytes[1] |= RQI;
                }
                let Some(policy) = policy else {
                    return (bytes, FRAME_BYTES);
                };
                bytes[1] |= PPP;
                bytes[2] = policy << 5;
            }
        }
        (bytes, FRAME_BYTES_MAX)
    }
}

const QMP: u8 = 1 << 3;
const DOWNLINK_SNP: u8 = 1 << 2;
const DOWNLINK_MSNP: u8 = 1 << 1;
const UPLINK_DD: u8 = 1 << 2;
const UPLINK_UD: u8 = 1 << 1;
const UPLINK_SNP: u8 = 1 << 0;
const UPLINK_ND: u8 = 1 << 7;
const UPLINK_NI: u8 = 1 << 6;
/// Of the new elements' flags: what follows says whether the delay in PDCP is in the uplink's.
const NEW_D1: u8 = 1 << 0;
const SEQUENCE_END: u32 = 1 << 24;

/// Bytes of a frame with all that it can have, at most.
pub const FRAME_WITH_MEASURES_BYTES_MAX: usize = 2 + 24 + 8 + 3 + 4 + 2;

/// Times that an uplink's frame has of a downlink's one which it answers, and its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// When that was sent.
    pub sent: u64,
    /// When it was received.
    pub received: u64,
    /// When this is sent.
    pub sending: u64,
}

/// What a frame has besides [`Frame`]: of delays and losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measures {
    /// To the user.
    Downlink {
        /// When it was sent; the uplink is to answer with its [`Times`].
        sending: Option<u64>,
        /// Counts the packets of the QoS flow, in 24 bits.
        sequence: Option<u32>,
        /// The same of a multicast session.
        multicast: Option<u32>,
    },
    /// From the user.
    Uplink {
        /// For the delay to the base station and back.
        times: Option<Times>,
        /// In the base station, downwards.
        downlink_delay: Option<u32>,
        /// Upwards.
        uplink_delay: Option<u32>,
        /// Counts the packets of the QoS flow, in 24 bits.
        sequence: Option<u32>,
        /// Between base station and core network.
        network_delay: Option<u32>,
        /// Whether the delay in PDCP is in `uplink_delay`.
        has_pdcp_delay: Option<bool>,
    },
}

impl Measures {
    /// None of them.
    #[must_use]
    pub fn none(direction: Direction) -> Measures {
        match direction {
            Direction::Downlink => Measures::Downlink {
                sending: None,
                sequence: None,
                multicast: None,
            },
            Direction::Uplink => Measures::Uplink {
                times: None,
                downlink_delay: None,
                uplink_delay: None,
                sequence: None,
                network_delay: None,
                has_pdcp_delay: None,
            },
        }
    }

    /// All that an extension header's content says. None: it is too short, or of a kind that there is not. New elements that are not known
    /// are passed over, with what is behind them.
    #[must_use]
    pub fn parse(content: &[u8]) -> Option<(Frame, Measures)> {
        let frame = Frame::parse(content)?;
        let mut reader = Reader(content);
        let (first, second) = (reader.byte()?, reader.byte()?);
        let measures = match frame.direction {
            Direction::Downlink => {
                reader.when(second & PPP != 0, Reader::byte)?;
                Measures::Downlink {
                    sending: reader.when(first & QMP != 0, Reader::eight)?,
                    sequence: reader.when(first & DOWNLINK_SNP != 0, Reader::three)?,
                    multicast: reader.when(first & DOWNLINK_MSNP != 0, Reader::four)?,
                }
            }
            Direction::Uplink => Measures::Uplink {
                times: reader.when(first & QMP != 0, |reader| {
                    Some(Times {
                        sent: reader.eight()?,
                        received: reader.eight()?,
                        sending: reader.eight()?,
                    })
                })?,
                downlink_delay: reader.when(first & UPLINK_DD != 0, Reader::four)?,
                uplink_delay: reader.when(first & UPLINK_UD != 0, Reader::four)?,
                sequence: reader.when(first & UPLINK_SNP != 0, Reader::three)?,
                network_delay: reader.when(second & UPLINK_ND != 0, Reader::four)?,
                has_pdcp_delay: match reader.when(second & UPLINK_NI != 0, Reader::byte)? {
                    Some(flags) if flags & NEW_D1 != 0 => Some(reader.byte()? & 1 != 0),
                    _ => None,
                },
            },
        };
        Some((frame, measures))
    }

    /// Writes a frame with them; returns how many bytes it took. None: there is no room, they are of another direction, or a number has too
    /// many bits.
    #[must_use]
    pub fn emit(&self, frame: &Frame, to: &mut [u8]) -> Option<usize> {
        let (bytes, count) = frame.emit();
        // Without a paging policy's filling.
        let count = count.min(FRAME_BYTES + usize::from(frame.paging_policy.is_some()));
        let mut writer = Writer::new(to);
        writer.put(&bytes[..count])?;
        let fits = |sequence: Option<u32>| sequence.is_none_or(|number| number < SEQUENCE_END);
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let (first, second) = match *self {
            Measures::Downlink {
                sending,
                sequence,
                multicast,
            } if frame.direction == Direction::Downlink && fits(sequence) => {
                sending.map_or(Some(()), |time| writer.eight(time))?;
                sequence.map_or(Some(()), |number| writer.three(number))?;
                multicast.map_or(Some(()), |number| writer.four(number))?;
                let first = flag(sending.is_some(), QMP)
                    | flag(sequence.is_some(), DOWNLINK_SNP)
                    | flag(multicast.is_some(), DOWNLINK_MSNP);
                (first, 0)
            }
            Measures::Uplink {
                times,
                downlink_delay,
                uplink_delay,
                sequence,
                network_delay,
                has_pdcp_delay,
            } if frame.direction == Direction::Uplink && fits(sequence) => {
                if let Some(times) = times {
                    writer.eight(times.sent)?;
                    writer.eight(times.received)?;
                    writer.eight(times.sending)?;
                }
                downlink_delay.map_or(Some(()), |delay| writer.four(delay))?;
                uplink_delay.map_or(Some(()), |delay| writer.four(delay))?;
                sequence.map_or(Some(()), |number| writer.three(number))?;
                network_delay.map_or(Some(()), |delay| writer.four(delay))?;
                has_pdcp_delay.map_or(Some(()), |has| writer.put(&[NEW_D1, u8::from(has)]))?;
                let first = flag(times.is_some(), QMP)
                    | flag(downlink_delay.is_some(), UPLINK_DD)
                    | flag(uplink_delay.is_some(), UPLINK_UD)
                    | flag(sequence.is_some(), UPLINK_SNP);
                let second = flag(network_delay.is_some(), UPLINK_ND)
                    | flag(has_pdcp_delay.is_some(), UPLINK_NI);
                (first, second)
            }
            _ => return None,
        };
        let count = writer.count;
        to[0] |= first;
        to[1] |= second;
        Some(count)
    }
}
