//! What the headers of a frame say, as far as they are in its first bytes. Any bytes are good: what makes no sense is not there.

use crate::address::Mac;

/// A MAC header without a tag.
pub(crate) const HEADER_BYTES: usize = 14;
/// A tag of a VLAN (IEEE 802.1Q): its type, and what it says.
pub(crate) const TAG_BYTES: usize = 4;
/// Where the first tag is, if there is one.
pub(crate) const TAG_AT: usize = 12;

pub(crate) const TYPE_VLAN: u16 = 0x8100;
const TYPE_PROVIDER: u16 = 0x88a8;
pub(crate) const TYPE_IPV4: u16 = 0x0800;
pub(crate) const TYPE_IPV6: u16 = 0x86dd;

pub(crate) const PROTOCOL_ICMP: u8 = 1;
pub(crate) const PROTOCOL_TCP: u8 = 6;
pub(crate) const PROTOCOL_UDP: u8 = 17;
pub(crate) const PROTOCOL_ICMPV6: u8 = 58;
const PROTOCOL_SCTP: u8 = 132;
/// A VLAN's number in a tag.
pub(crate) const VLAN_MASK: u16 = 0x0fff;
/// More headers between IPv6 and what it carries are not looked behind.
const EXTENSIONS_MAX: usize = 8;

/// Two bytes at a place, if they are there.
#[inline]
pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*word))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_be_bytes(*word))
}

/// A MAC header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// To whom.
    pub destination: Mac,
    /// From whom.
    pub source: Mac,
    /// What the first tag says, if there is one of type 0x8100: priority and VLAN. Other types of tags are payload.
    pub tag: Option<u16>,
}

impl Frame {
    /// None: it is too short for its header.
    #[must_use]
    #[inline]
    pub fn parse(head: &[u8]) -> Option<Frame> {
        let addresses: &[u8; 12] = head.first_chunk()?;
        let (destination, source) = addresses.split_at(6);
        let ether_type = half(head, TAG_AT)?;
        let tag = if ether_type == TYPE_VLAN {
            // There is a type behind it, too.
            half(head, TAG_AT + TAG_BYTES)?;
            Some(half(head, TAG_AT + 2)?)
        } else {
            None
        };
        Some(Frame {
            destination: Mac::read(destination.first_chunk()?),
            source: Mac::read(source.first_chunk()?),
            tag,
        })
    }
}

/// Which protocol of the Internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Headers of the Internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// Which.
    pub version: Version,
    /// Where its header begins in the frame.
    pub at: usize,
    /// Where what it carries begins, which may be behind what is at hand.
    pub payload_at: usize,
    /// Of what it carries. For IPv6 that is behind all extension headers that are at hand.
    pub protocol: u8,
    /// Type of service, or traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// From whom; IPv4's in the low 32 bits.
    pub source: [u64; 2],
    /// To whom.
    pub destination: [u64; 2],
    /// Bytes from `at` to the packet's end, as it says itself.
    pub length: usize,
    /// Whether it must not be cut: IPv4's flag, and IPv6 always.
    pub whole: bool,
    /// Whether it is a fragment, or the first one.
    pub fragment: bool,
    /// Ports of TCP, UDP or SCTP, if it is no later fragment: from, and to.
    pub ports: Option<(u16, u16)>,
}

/// The type of what a frame carries, and where that begins: behind all tags, of which there are at most three.
#[must_use]
pub fn payload(head: &[u8]) -> Option<(u16, usize)> {
    let mut at = TAG_AT;
    for _ in 0..3 {
        let ether_type = half(head, at)?;
        if !matches!(ether_type, TYPE_VLAN | TYPE_PROVIDER) {
            return Some((ether_type, at + 2));
        }
        at += TAG_BYTES;
    }
    Some((half(head, at)?, at + 2))
}

impl Packet {
    /// None: it is none of the Internet, or not with a whole header.
    #[must_use]
    pub fn parse(head: &[u8]) -> Option<Packet> {
        match payload(head)? {
            (TYPE_IPV4, at) => Packet::parse_v4(head, at),
            (TYPE_IPV6, at) => Packet::parse_v6(head, at),
            _ => None,
        }
    }

    /// RFC 791, section 3.1.
    fn parse_v4(head: &[u8], at: usize) -> Option<Packet> {
        let header: &[u8; 20] = head.get(at..)?.first_chunk()?;
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        let length = usize::from(half(header, 2)?);
        if header[0] >> 4 != 4 || header_bytes < 20 || length < header_bytes {
            return None;
        }
        let flags = half(header, 6)?;
        let addresses = long(header, 12)?;
        let payload_at = at + header_bytes;
        let protocol = header[9];
        let is_later = flags & 0x1fff != 0;
        Some(Packet {
            version: Version::V4,
            at,
            payload_at,
            protocol,
            traffic_class: header[1],
            source: [0, addresses >> 32],
            destination: [0, addresses & 0xffff_ffff],
            length,
            whole: flags & 0x4000 != 0,
            fragment: flags & 0x3fff != 0,
            ports: ports(head, payload_at, protocol).filter(|_| !is_later),
        })
    }

    /// RFC 8200, section 3, and its extension headers.
    fn parse_v6(head: &[u8], at: usize) -> Option<Packet> {
        let header: &[u8; 40] = head.get(at..)?.first_chunk()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let (mut protocol, mut payload_at) = (header[6], at + 40);
        let (mut fragment, mut is_later) = (false, false);
        for _ in 0..EXTENSIONS_MAX {
            let Some([next, length, ..]) = head.get(payload_at..payload_at + 8) else {
                break;
            };
            let bytes = match protocol {
                // Hop by hop, routing, destination options.
                0 | 43 | 60 => (usize::from(*length) + 1) * 8,
                // Fragment.
                44 => {
                    fragment = true;
                    is_later = half(head, payload_at + 2)? & 0xfff8 != 0;
                    8
                }
                // Authentication.
                51 => (usize::from(*length) + 2) * 4,
                _ => break,
            };
            protocol = *next;
            payload_at += bytes;
            if is_later {
                break;
            }
        }
        Some(Packet {
            version: Version::V6,
            at,
            payload_at,
            protocol,
            traffic_class: header[0] << 4 | header[1] >> 4,
            source: [long(header, 8)?, long(header, 16)?],
            destination: [long(header, 24)?, long(header, 32)?],
            length: 40 + usize::from(half(header, 4)?),
            whole: true,
            fragment,
            ports: ports(head, payload_at, protocol).filter(|_| !is_later),
        })
    }
}

fn ports(head: &[u8], at: usize, protocol: u8) -> Option<(u16, u16)> {
    if !matches!(protocol, PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_SCTP) {
        return None;
    }
    Some((half(head, at)?, half(head, at + 2)?))
}

#[cfg(test)]
mod tests;
