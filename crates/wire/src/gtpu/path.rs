//! Messages of a path between two peers: what follows their headers (TS 29.281, clauses 7 and 8).
//!
//! Information elements below 128 have a fixed length, those above a length of two bytes; but for the list of extension headers, whose
//! length has one. Those that nobody asked for are passed over, as far as their length is known.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ParseError;

/// Recovery: a number of a byte that once counted restarts, and is 0 now (clause 8.2).
const RECOVERY: u8 = 14;
/// The tunnel that there is not (clause 8.3).
const TEID_DATA: u8 = 16;
/// By whom (clause 8.4).
const PEER_ADDRESS: u8 = 133;
/// Kinds of extension headers (clause 8.5).
const EXTENSION_TYPES: u8 = 141;
/// Of a tunnel (clause 8.7).
const TUNNEL_STATUS_INFORMATION: u8 = 230;

/// Bytes of an echo's answer.
pub const ECHO_RESPONSE_BYTES: usize = 2;
/// Bytes of what is said of a tunnel's state.
pub const TUNNEL_STATUS_BYTES: usize = 4;
/// Bytes of an error indication, at most.
pub const ERROR_INDICATION_BYTES_MAX: usize = 5 + 3 + 16;
/// Kinds of extension headers that a list names, at most.
pub const EXTENSION_TYPES_MAX: usize = 255;

/// Information elements of a message's body. An element that is cut off ends them with an error.
#[derive(Debug, Clone, Copy)]
pub struct Elements<'a> {
    rest: &'a [u8],
}

/// An information element.
pub type Element<'a> = (u8, &'a [u8]);

impl<'a> Elements<'a> {
    /// Those of a body.
    #[must_use]
    pub fn new(body: &'a [u8]) -> Elements<'a> {
        Elements { rest: body }
    }

    fn step(&mut self) -> Result<Option<Element<'a>>, ParseError> {
        let Some((&kind, rest)) = self.rest.split_first() else {
            return Ok(None);
        };
        let wrong = ParseError::Element(kind);
        let (length, rest) = match (kind, rest) {
            (RECOVERY, _) => (1, rest),
            (TEID_DATA, _) => (4, rest),
            // How long another of a fixed length is, nobody knows.
            (..128, _) => return Err(wrong),
            (EXTENSION_TYPES, [length, rest @ ..]) => (usize::from(*length), rest),
            (_, [high, low, rest @ ..]) => (usize::from(u16::from_be_bytes([*high, *low])), rest),
            _ => return Err(wrong),
        };
        let (value, rest) = rest.split_at_checked(length).ok_or(wrong)?;
        self.rest = rest;
        Ok(Some((kind, value)))
    }

    /// The first one of this kind.
    ///
    /// # Errors
    /// When there is none, or one before it is cut off.
    fn find(mut self, wanted: u8) -> Result<&'a [u8], ParseError> {
        while let Some((kind, value)) = self.step()? {
            if kind == wanted {
                return Ok(value);
            }
        }
        Err(ParseError::Element(wanted))
    }
}

/// Writes an echo's answer.
#[must_use]
pub fn emit_echo_response() -> [u8; ECHO_RESPONSE_BYTES] {
    [RECOVERY, 0]
}

/// The restart counter of an echo's answer, for who wants to see it: nobody is to act on it (clause 8.2).
#[must_use]
pub fn parse_restart_counter(body: &[u8]) -> Option<u8> {
    let counter = Elements::new(body).find(RECOVERY).ok()?;
    counter.first().copied()
}

/// A packet came for a tunnel that there is not (clause 7.3.1): whoever sent it is to end the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorIndication {
    /// The tunnel, as the packet named it.
    pub teid: u32,
    /// The address that the packet was sent to.
    pub peer: IpAddr,
}

impl ErrorIndication {
    /// What a body says.
    ///
    /// # Errors
    /// When an element is missing, cut off, or no address.
    pub fn parse(body: &[u8]) -> Result<ErrorIndication, ParseError> {
        let elements = Elements::new(body);
        let teid = elements.find(TEID_DATA)?;
        let teid = teid
            .try_into()
            .map_err(|_| ParseError::Element(TEID_DATA))?;
        let address = elements.find(PEER_ADDRESS)?;
        let peer = if let Ok(bytes) = <[u8; 4]>::try_from(address) {
            IpAddr::V4(Ipv4Addr::from(bytes))
        } else if let Ok(bytes) = <[u8; 16]>::try_from(address) {
            IpAddr::V6(Ipv6Addr::from(bytes))
        } else {
            return Err(ParseError::Element(PEER_ADDRESS));
        };
        Ok(ErrorIndication {
            teid: u32::from_be_bytes(teid),
            peer,
        })
    }

    /// Writes it; returns how many bytes it took. None: there is no room.
    #[must_use]
    pub fn emit(&self, to: &mut [u8]) -> Option<usize> {
        let (v4, v6);
        let address: &[u8] = match self.peer {
            IpAddr::V4(address) => {
                v4 = address.octets();
                &v4
            }
            IpAddr::V6(address) => {
                v6 = address.octets();
                &v6
            }
        };
        let bytes = 5 + 3 + address.len();
        let to = to.get_mut(..bytes)?;
        to[0] = TEID_DATA;
        to[1..5].copy_from_slice(&self.teid.to_be_bytes());
        // Of an address, 16 at most.
        to[5..8].copy_from_slice(&[PEER_ADDRESS, 0, address.len() as u8]);
        to[8..].copy_from_slice(address);
        Some(bytes)
    }
}

/// What a peer says of a tunnel's state (clauses 7.3.3 and 8.7): whether what is used of it is not to be charged from now on, and whether
/// it is again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelStatus {
    /// Start of a pause of charging.
    pub pause: bool,
    /// Its end.
    pub resume: bool,
}

impl TunnelStatus {
    /// What a body says.
    ///
    /// # Errors
    /// When the element is missing, cut off or empty.
    pub fn parse(body: &[u8]) -> Result<TunnelStatus, ParseError> {
        let [flags, ..] = Elements::new(body).find(TUNNEL_STATUS_INFORMATION)? else {
            return Err(ParseError::Element(TUNNEL_STATUS_INFORMATION));
        };
        Ok(TunnelStatus {
            pause: flags & 1 != 0,
            resume: flags & 2 != 0,
        })
    }

    /// Writes it.
    #[must_use]
    pub fn emit(&self) -> [u8; TUNNEL_STATUS_BYTES] {
        let flags = u8::from(self.pause) | u8::from(self.resume) << 1;
        [TUNNEL_STATUS_INFORMATION, 0, 1, flags]
    }
}

/// The kinds of extension headers that a peer says it understands (clause 7.2.3).
///
/// # Errors
/// When the list is missing or cut off.
pub fn parse_supported_extensions(body: &[u8]) -> Result<&[u8], ParseError> {
    Elements::new(body).find(EXTENSION_TYPES)
}

/// Writes such a list; returns how many bytes it took. None: there is no room, or more than [`EXTENSION_TYPES_MAX`] are in it.
#[must_use]
pub fn emit_supported_extensions(kinds: &[u8], to: &mut [u8]) -> Option<usize> {
    let length = u8::try_from(kinds.len()).ok()?;
    let to = to.get_mut(..2 + kinds.len())?;
    to[..2].copy_from_slice(&[EXTENSION_TYPES, length]);
    to[2..].copy_from_slice(kinds);
    Some(to.len())
}
