//! Fragments of outer packets: what one says of itself (RFC 791, 3.2; RFC 8200, 4.5), and where a packet is to be cut.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cause::Cause;

const V4_HEADER_BYTES: usize = 20;
const V6_HEADER_BYTES: usize = 40;
/// IPv6's header of a fragment.
pub(crate) const FRAGMENT_HEADER_BYTES: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
/// Extension headers before a fragment's, at most.
const HEADERS_MAX: usize = 4;
/// What a packet that is put together may have behind its header.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 65_535;
/// Places are told in units of so many bytes.
pub(crate) const UNIT: usize = 8;

/// A part of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Who sent it.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// What the whole carries: 17 is UDP.
    pub protocol: u8,
    /// Which packet it is of.
    pub identification: u32,
    /// Where it begins in that, in bytes.
    pub at: usize,
    /// Whether there is more behind it.
    pub has_more: bool,
    /// The header's traffic class.
    pub class: u8,
    /// The part.
    pub payload: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// What an IPv4 or IPv6 packet is a part of. None: it is whole. Bytes behind its length are not looked at.
    ///
    /// # Errors
    /// When it is cut off, or a part that cannot be: of a length that is no multiple of 8 bytes though there is more behind it, empty, or
    /// beyond what a packet can have.
    pub fn parse(packet: &'a [u8]) -> Result<Option<Fragment<'a>>, Cause> {
        let fragment = match packet.first().map(|first| first >> 4) {
            Some(4) => Fragment::parse_v4(packet)?,
            Some(6) => Fragment::parse_v6(packet)?,
            _ => return Err(Cause::Malformed),
        };
        if let Some(fragment) = &fragment {
            let length = fragment.payload.len();
            let is_cut_wrongly = fragment.has_more && length % UNIT != 0;
            if length == 0 || is_cut_wrongly || fragment.at + length > PAYLOAD_BYTES_MAX {
                return Err(Cause::Fragment);
            }
        }
        Ok(fragment)
    }

    fn parse_v4(packet: &'a [u8]) -> Result<Option<Fragment<'a>>, Cause> {
        let header = packet
            .first_chunk::<V4_HEADER_BYTES>()
            .ok_or(Cause::Malformed)?;
        let two = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        let payload = packet.get(header_bytes..usize::from(two(2)));
        let payload = payload.filter(|_| header_bytes >= V4_HEADER_BYTES);
        let payload = payload.ok_or(Cause::Malformed)?;
        let (has_more, at) = (two(6) & 0x2000 != 0, usize::from(two(6) & 0x1fff) * UNIT);
        if !has_more && at == 0 {
            return Ok(None);
        }
        // The whole has its header's bytes in its length as well.
        if V4_HEADER_BYTES + at + payload.len() > PAYLOAD_BYTES_MAX {
            return Err(Cause::Fragment);
        }
        let address =
            |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
        Ok(Some(Fragment {
            source: address(12).into(),
            destination: address(16).into(),
            protocol: header[9],
            identification: two(4).into(),
            at,
            has_more,
            class: header[1],
            payload,
        }))
    }

    fn parse_v6(packet: &'a [u8]) -> Result<Option<Fragment<'a>>, Cause> {
        let header = packet
            .first_chunk::<V6_HEADER_BYTES>()
            .ok_or(Cause::Malformed)?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let mut rest = packet
            .get(V6_HEADER_BYTES..V6_HEADER_BYTES + length)
            .ok_or(Cause::Malformed)?;
        let mut kind = header[6];
        for _ in 0..HEADERS_MAX {
            if !matches!(kind, HOP_BY_HOP | ROUTING | DESTINATION) {
                break;
            }
            let &[next, units, ..] = rest else {
                return Err(Cause::Malformed);
            };
            kind = next;
            rest = rest
                .get((usize::from(units) + 1) * 8..)
                .ok_or(Cause::Malformed)?;
        }
        if kind != FRAGMENT {
            return Ok(None);
        }
        let (fragment, payload) = rest
            .split_first_chunk::<FRAGMENT_HEADER_BYTES>()
            .ok_or(Cause::Malformed)?;
        let place = u16::from_be_bytes([fragment[2], fragment[3]]);
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&header[at..at + 16]);
            Ipv6Addr::from(octets)
        };
        Ok(Some(Fragment {
            source: address(8).into(),
            destination: address(24).into(),
            protocol: fragment[0],
            identification: u32::from_be_bytes([
                fragment[4],
                fragment[5],
                fragment[6],
                fragment[7],
            ]),
            at: usize::from(place >> 3) * UNIT,
            has_more: place & 1 != 0,
            class: header[0] << 4 | header[1] >> 4,
            payload,
        }))
    }
}

/// A part of a packet that is to be cut: where it begins behind the packet's header, how many bytes it has, whether there is more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub at: usize,
    /// How many bytes it has.
    pub bytes: usize,
    /// Whether there is more.
    pub has_more: bool,
}

/// Where a packet with so many bytes behind its header of IPv4 or IPv6 is to be cut, so that no part with its headers is longer than `mtu`.
/// None at all: `mtu` has no room for any part.
pub fn pieces(payload_bytes: usize, is_v6: bool, mtu: usize) -> impl Iterator<Item = Piece> {
    let header = if is_v6 {
        V6_HEADER_BYTES
    } else {
        V4_HEADER_BYTES
    };
    let is_whole = header + payload_bytes <= mtu;
    let own = if is_v6 && !is_whole {
        FRAGMENT_HEADER_BYTES
    } else {
        0
    };
    let room = mtu.saturating_sub(header + own);
    let part = if is_whole {
        payload_bytes.max(1)
    } else {
        room / UNIT * UNIT
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= payload_bytes || part == 0 {
            return None;
        }
        // The last one may use what is no multiple.
        let left = payload_bytes - at;
        let bytes = if left <= room || is_whole { left } else { part };
        let piece = Piece {
            at,
            bytes,
            has_more: bytes < left,
        };
        at += bytes;
        Some(piece)
    })
}

/// Writes IPv6's header of a fragment.
#[must_use]
pub fn emit_v6_fragment_header(protocol: u8, identification: u32, piece: &Piece) -> [u8; 8] {
    // Places of pieces are multiples of 8 below 65 536.
    let place = piece.at as u16 | u16::from(piece.has_more);
    let mut bytes = [protocol, 0, 0, 0, 0, 0, 0, 0];
    bytes[2..4].copy_from_slice(&place.to_be_bytes());
    bytes[4..].copy_from_slice(&identification.to_be_bytes());
    bytes
}

/// The two bytes of IPv4's header that say where a fragment is.
#[must_use]
pub fn emit_v4_fragment_place(piece: &Piece) -> [u8; 2] {
    let place = (piece.at / UNIT) as u16 | u16::from(piece.has_more) << 13;
    place.to_be_bytes()
}
