//! What an extension header's content says, by its kind (TS 29.281, clause 5.2.2). Bits that are spare are not looked at.
//!
//! The two RAN containers of other systems are handed over as they are: their frames are those of TS 36.425 and TS 36.464, which nobody
//! here has to read.

use super::nr_ran;
use super::pdu_session::{self, Measures};
use super::{
    EXTENSION_LONG_PDCP, EXTENSION_LONG_PDCP_EARLIER, EXTENSION_NR_RAN, EXTENSION_PDCP,
    EXTENSION_PDU_SESSION, EXTENSION_RAN, EXTENSION_SERVICE_CLASS, EXTENSION_UDP_PORT,
    EXTENSION_XW_RAN, Extension,
};

/// A sequence number of the longer kind has so many bits.
const LONG_PDCP_MASK: u32 = (1 << 18) - 1;
/// Of the shorter kind; the highest bit of its two bytes is spare between base stations.
const PDCP_MASK: u16 = (1 << 15) - 1;

/// Contents that have a fixed length.
const FIXED_BYTES_MAX: usize = 6;

/// What an extension header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// The port that a packet came from which an error indication is about (5.2.2.1).
    UdpPort(u16),
    /// The PDCP sequence number of data that is forwarded, of 15 bits (5.2.2.2).
    Pdcp(u16),
    /// The same, of 18 bits (5.2.2.2A).
    LongPdcp(u32),
    /// What class of service a packet is of; 0 to 15 are operators' own (5.2.2.3).
    ServiceClass(u8),
    /// A container that nobody here reads (5.2.2.4).
    Ran(&'a [u8]),
    /// Another such (5.2.2.5).
    XwRan(&'a [u8]),
    /// TS 38.425 (5.2.2.6).
    NrRan(nr_ran::Frame<'a>),
    /// TS 38.415 (5.2.2.7).
    PduSession(pdu_session::Frame, Measures),
    /// Of a kind that is not known.
    Unknown(u8),
}

impl<'a> Content<'a> {
    /// What an extension header says. None: its kind is known, and its length or its content is not that kind's.
    #[must_use]
    pub fn parse(extension: &Extension<'a>) -> Option<Content<'a>> {
        let content = extension.content;
        Some(match extension.kind {
            EXTENSION_UDP_PORT => Content::UdpPort(two(content)?),
            EXTENSION_PDCP => Content::Pdcp(two(content)? & PDCP_MASK),
            EXTENSION_LONG_PDCP | EXTENSION_LONG_PDCP_EARLIER => {
                let &[high, middle, low, _, _, _] = content else {
                    return None;
                };
                let number = u32::from_be_bytes([0, high, middle, low]);
                Content::LongPdcp(number & LONG_PDCP_MASK)
            }
            EXTENSION_SERVICE_CLASS => Content::ServiceClass(two(content)?.to_be_bytes()[0]),
            EXTENSION_RAN => Content::Ran(content),
            EXTENSION_XW_RAN => Content::XwRan(content),
            EXTENSION_NR_RAN => Content::NrRan(nr_ran::Frame::parse(content)?),
            EXTENSION_PDU_SESSION => {
                let (frame, measures) = Measures::parse(content)?;
                Content::PduSession(frame, measures)
            }
            kind => Content::Unknown(kind),
        })
    }

    /// Which kind of extension header says this; of the two that say it, the newer.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Content::UdpPort(_) => EXTENSION_UDP_PORT,
            Content::Pdcp(_) => EXTENSION_PDCP,
            Content::LongPdcp(_) => EXTENSION_LONG_PDCP,
            Content::ServiceClass(_) => EXTENSION_SERVICE_CLASS,
            Content::Ran(_) => EXTENSION_RAN,
            Content::XwRan(_) => EXTENSION_XW_RAN,
            Content::NrRan(_) => EXTENSION_NR_RAN,
            Content::PduSession(..) => EXTENSION_PDU_SESSION,
            Content::Unknown(kind) => *kind,
        }
    }

    /// Writes the content, to be filled up by [`super::emit_extension`]; returns how many bytes it took. None: there is no room, a value
    /// has more bits than its field, or nobody knows how this kind is written.
    #[must_use]
    pub fn emit(&self, to: &mut [u8]) -> Option<usize> {
        let mut fixed = [0; FIXED_BYTES_MAX];
        let bytes: &[u8] = match *self {
            Content::UdpPort(port) => {
                fixed[..2].copy_from_slice(&port.to_be_bytes());
                &fixed[..2]
            }
            Content::Pdcp(number) if number <= PDCP_MASK => {
                fixed[..2].copy_from_slice(&number.to_be_bytes());
                &fixed[..2]
            }
            Content::LongPdcp(number) if number <= LONG_PDCP_MASK => {
                fixed[..3].copy_from_slice(&number.to_be_bytes()[1..]);
                &fixed
            }
            Content::ServiceClass(class) => {
                fixed[0] = class;
                &fixed[..2]
            }
            Content::Ran(content) | Content::XwRan(content) => content,
            Content::NrRan(frame) => return frame.emit(to),
            Content::PduSession(frame, measures) => return measures.emit(&frame, to),
            Content::Pdcp(_) | Content::LongPdcp(_) | Content::Unknown(_) => return None,
        };
        to.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(bytes.len())
    }
}

fn two(content: &[u8]) -> Option<u16> {
    let content = <[u8; 2]>::try_from(content).ok()?;
    Some(u16::from_be_bytes(content))
}
