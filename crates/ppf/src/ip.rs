//! IPv4 and IPv6 headers (RFC 791, RFC 8200), and UDP's (RFC 768), read and written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Sum;
use crate::link::LinkCause;

pub(crate) const ICMP: u8 = 1;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
pub(crate) const FRAGMENT: u8 = 44;
pub(crate) const DESTINATION_OPTIONS: u8 = 60;

pub(crate) const IPV4_BYTES: usize = 20;
pub(crate) const IPV6_BYTES: usize = 40;
pub(crate) const UDP_BYTES: usize = 8;

/// Hops that a packet of ours may take.
const HOPS: u8 = 64;
/// Extension headers of an IPv6 packet that are looked through, at most.
const EXTENSIONS_MAX: usize = 4;
/// Of IPv4's third word: the packet must not be cut; others follow; where a fragment belongs.
pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
pub(crate) const MORE_FRAGMENTS: u16 = 0x2000;
pub(crate) const OFFSET_MASK: u16 = 0x1fff;

/// What a packet's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Of what follows the headers.
    pub(crate) protocol: u8,
    /// DSCP and ECN.
    pub(crate) class: u8,
    pub(crate) hops: u8,
    /// Bytes of the header, with options, but without extension headers.
    pub(crate) bytes: usize,
    /// Bytes of what follows.
    pub(crate) payload: usize,
    /// It is a part of a packet: of IPv4 only, since IPv6 says so in an extension header.
    pub(crate) is_fragment: bool,
}

impl Header {
    /// The header that bytes begin with, of a packet of which `available` bytes came.
    ///
    /// # Errors
    /// Why such a packet is to be dropped.
    #[cfg(test)]
    pub(crate) fn parse(bytes: &[u8], available: usize) -> Result<Header, LinkCause> {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => parse_ipv4(bytes, available),
            Some(6) => parse_ipv6(bytes, available),
            Some(_) => Err(LinkCause::IpHeader),
            None => Err(LinkCause::Truncated),
        }
    }

    /// The same behind extension headers, of a packet for ourselves, which begins with these bytes.
    ///
    /// # Errors
    /// When it is a fragment, or has what nobody here understands.
    #[inline]
    pub(crate) fn at_its_end(self, bytes: &[u8]) -> Result<Header, LinkCause> {
        if self.is_fragment {
            return Err(LinkCause::Fragment);
        }
        if self.source.is_ipv4() || matches!(self.protocol, UDP | ICMPV6) {
            return Ok(self);
        }
        self.behind_extensions(bytes)
    }

    fn behind_extensions(self, bytes: &[u8]) -> Result<Header, LinkCause> {
        let behind = bytes.get(self.bytes..).ok_or(LinkCause::Truncated)?;
        let (protocol, extensions) = pass_extensions(self.protocol, behind, self.payload)?;
        Ok(Header {
            protocol,
            bytes: self.bytes + extensions,
            payload: self.payload - extensions,
            ..self
        })
    }
}

/// Of a packet that begins with these bytes, from whom it is and to whom. None: it is none of IP.
#[inline]
pub(crate) fn addresses(bytes: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match bytes.first()? >> 4 {
        4 => {
            let header = bytes.first_chunk::<IPV4_BYTES>()?;
            let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
            let pair = (Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
            Some((pair.0.into(), pair.1.into()))
        }
        6 => {
            let header = bytes.first_chunk::<IPV6_BYTES>()?;
            let (mut source, mut destination) = ([0; 16], [0; 16]);
            source.copy_from_slice(&header[8..24]);
            destination.copy_from_slice(&header[24..40]);
            Some((source.into(), destination.into()))
        }
        _ => None,
    }
}

#[inline]
pub(crate) fn parse_ipv4(bytes: &[u8], available: usize) -> Result<Header, LinkCause> {
    let (header, _) = bytes
        .split_first_chunk::<IPV4_BYTES>()
        .ok_or(LinkCause::Truncated)?;
    let length = usize::from(header[0] & 0xf) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if length < IPV4_BYTES || total < length {
        return Err(LinkCause::IpHeader);
    }
    if total > available || length > bytes.len() {
        return Err(LinkCause::Truncated);
    }
    let mut sum = Sum::default();
    // Most have no options: a sum of so many bytes needs no loop.
    sum.add(header);
    sum.add(&bytes[IPV4_BYTES..length]);
    if sum.folded() != 0xffff {
        return Err(LinkCause::IpChecksum);
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    let address = |at: usize| {
        let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        IpAddr::V4(Ipv4Addr::from(bytes))
    };
    Ok(Header {
        source: address(12),
        destination: address(16),
        protocol: header[9],
        class: header[1],
        hops: header[8],
        bytes: length,
        payload: total - length,
        is_fragment: fragment & (MORE_FRAGMENTS | OFFSET_MASK) != 0,
    })
}

#[inline]
pub(crate) fn parse_ipv6(bytes: &[u8], available: usize) -> Result<Header, LinkCause> {
    let (header, _) = bytes
        .split_first_chunk::<IPV6_BYTES>()
        .ok_or(LinkCause::Truncated)?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if IPV6_BYTES + length > available {
        return Err(LinkCause::Truncated);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    Ok(Header {
        source: address(8),
        destination: address(24),
        protocol: header[6],
        class: header[0] << 4 | header[1] >> 4,
        hops: header[7],
        bytes: IPV6_BYTES,
        payload: length,
        is_fragment: false,
    })
}

/// The protocol behind extension headers, and how many bytes these have.
fn pass_extensions(first: u8, bytes: &[u8], length: usize) -> Result<(u8, usize), LinkCause> {
    let (mut kind, mut at) = (first, 0);
    for _ in 0..EXTENSIONS_MAX {
        match kind {
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => {}
            FRAGMENT => return Err(LinkCause::Fragment),
            _ => return Ok((kind, at)),
        }
        let &[next, units, _, left, ..] = bytes.get(at..).unwrap_or_default() else {
            return Err(LinkCause::Truncated);
        };
        // Who is on the way of a routing header sends it on, which is not for this function.
        if kind == ROUTING && left != 0 {
            return Err(LinkCause::Protocol);
        }
        at += 8 + usize::from(units) * 8;
        if at > length {
            return Err(LinkCause::IpHeader);
        }
        kind = next;
    }
    Err(LinkCause::Protocol)
}

/// What a header that is written says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    /// DSCP and ECN.
    pub(crate) class: u8,
    pub(crate) hops: u8,
    /// Bytes behind it.
    pub(crate) payload: usize,
}

impl Written {
    /// Of a packet with as many hops before it as ours have.
    pub(crate) fn new(
        source: IpAddr,
        destination: IpAddr,
        protocol: u8,
        payload: usize,
    ) -> Written {
        Written {
            source,
            destination,
            protocol,
            class: 0,
            hops: HOPS,
            payload,
        }
    }

    /// How many bytes it takes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        match self.destination {
            IpAddr::V4(_) => IPV4_BYTES,
            IpAddr::V6(_) => IPV6_BYTES,
        }
    }

    /// Writes it, for which there is room. None: it would be too long for its length field, or its two addresses are of two families.
    #[inline]
    pub(crate) fn emit(&self, to: &mut [u8]) -> Option<()> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let total = u16::try_from(IPV4_BYTES + self.payload).ok()?;
                let to = to.first_chunk_mut::<IPV4_BYTES>()?;
                to[0] = 0x45;
                to[1] = self.class;
                to[2..4].copy_from_slice(&total.to_be_bytes());
                // What is cut gets another number; otherwise it says nothing (RFC 6864, 4.1).
                to[4..6].fill(0);
                to[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
                to[8] = self.hops;
                to[9] = self.protocol;
                to[10..12].fill(0);
                to[12..16].copy_from_slice(&source.octets());
                to[16..20].copy_from_slice(&destination.octets());
                let mut sum = Sum::default();
                sum.add(to);
                to[10..12].copy_from_slice(&sum.complement().to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let length = u16::try_from(self.payload).ok()?;
                let to = to.first_chunk_mut::<IPV6_BYTES>()?;
                to[0] = 0x60 | self.class >> 4;
                to[1] = self.class << 4;
                to[2..4].fill(0);
                to[4..6].copy_from_slice(&length.to_be_bytes());
                to[6] = self.protocol;
                to[7] = self.hops;
                to[8..24].copy_from_slice(&source.octets());
                to[24..40].copy_from_slice(&destination.octets());
            }
            _ => return None,
        }
        Some(())
    }

    /// The sum of what stands before a packet of a protocol in its checksum (RFC 768; RFC 8200, 8.1).
    #[inline]
    pub(crate) fn pseudo_sum(&self) -> Sum {
        pseudo_sum(self.source, self.destination, self.protocol, self.payload)
    }
}

/// See [`Written::pseudo_sum`].
pub(crate) fn pseudo_sum(source: IpAddr, destination: IpAddr, protocol: u8, bytes: usize) -> Sum {
    let mut sum = Sum::default();
    sum.add_address(source);
    sum.add_address(destination);
    sum.add_word(u16::from(protocol));
    // At most 16 bits, as IP's own length is.
    sum.add_word(bytes as u16);
    sum
}

/// UDP's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Udp {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    /// Bytes with the header.
    pub(crate) length: usize,
    /// 0: there is none.
    pub(crate) checksum: u16,
}

impl Udp {
    /// The header that bytes begin with, of `available` bytes that came.
    #[inline]
    pub(crate) fn parse(bytes: &[u8], available: usize) -> Result<Udp, LinkCause> {
        let Some((&[s0, s1, d0, d1, l0, l1, c0, c1], _)) = bytes.split_first_chunk::<UDP_BYTES>()
        else {
            return Err(LinkCause::Truncated);
        };
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        if length < UDP_BYTES || length > available {
            return Err(LinkCause::UdpLength);
        }
        Ok(Udp {
            source: u16::from_be_bytes([s0, s1]),
            destination: u16::from_be_bytes([d0, d1]),
            length,
            checksum: u16::from_be_bytes([c0, c1]),
        })
    }

    /// Writes one without a checksum, for which there is room.
    #[inline]
    pub(crate) fn emit(to: &mut [u8], source: u16, destination: u16, length: u16) {
        to[..2].copy_from_slice(&source.to_be_bytes());
        to[2..4].copy_from_slice(&destination.to_be_bytes());
        to[4..6].copy_from_slice(&length.to_be_bytes());
        to[6..8].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs() -> [(IpAddr, IpAddr); 2] {
        [
            ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()),
            (
                "2001:db8::1".parse().unwrap(),
                "2001:db8::2".parse().unwrap(),
            ),
        ]
    }

    #[test]
    fn a_header_is_parsed_as_it_was_written() {
        for (source, destination) in pairs() {
            let mut written = Written::new(source, destination, UDP, 50);
            written.class = 0xb9;
            let mut bytes = [0; 90];
            written.emit(&mut bytes).unwrap();
            let length = written.bytes();
            let header = Header::parse(&bytes, length + 50).unwrap();
            let wanted = Header {
                source,
                destination,
                protocol: UDP,
                class: 0xb9,
                hops: 64,
                bytes: length,
                payload: 50,
                is_fragment: false,
            };
            assert_eq!(header, wanted);
            assert_eq!(header.at_its_end(&bytes), Ok(wanted));
            assert_eq!(addresses(&bytes), Some((source, destination)));
            let short = Header::parse(&bytes, length + 49);
            assert_eq!(short, Err(LinkCause::Truncated));
            for cut in 0..length {
                assert!(Header::parse(&bytes[..cut], length + 50).is_err());
            }
        }
    }

    #[test]
    fn what_cannot_be_has_a_cause() {
        let (source, destination) = pairs()[0];
        let mut bytes = [0; 60];
        let written = Written::new(source, destination, UDP, 30);
        written.emit(&mut bytes).unwrap();
        let changed = |at: usize, to: u8, whole: bool| {
            let mut bytes = bytes;
            bytes[at] = to;
            if whole {
                bytes[10..12].fill(0);
                let mut sum = Sum::default();
                sum.add(&bytes[..20]);
                bytes[10..12].copy_from_slice(&sum.complement().to_be_bytes());
            }
            let header = Header::parse(&bytes, 60)?;
            header.at_its_end(&bytes).map(|header| header.payload)
        };
        assert_eq!(changed(8, 9, false), Err(LinkCause::IpChecksum));
        assert_eq!(changed(0, 0x44, true), Err(LinkCause::IpHeader));
        assert_eq!(changed(0, 0x55, true), Err(LinkCause::IpHeader));
        assert_eq!(changed(3, 19, true), Err(LinkCause::IpHeader));
        assert_eq!(changed(3, 200, true), Err(LinkCause::Truncated));
        assert_eq!(changed(6, 0x20, true), Err(LinkCause::Fragment));
        assert_eq!(changed(7, 1, true), Err(LinkCause::Fragment));
        assert_eq!(changed(6, 0x40, true), Ok(30));
        let mixed = Written::new(source, pairs()[1].0, UDP, 0);
        assert_eq!(mixed.emit(&mut bytes), None);
    }

    #[test]
    fn extension_headers_are_passed_over() {
        let (source, destination) = pairs()[1];
        let mut bytes = [0; 100];
        let mut written = Written::new(source, destination, HOP_BY_HOP, 60);
        written.emit(&mut bytes).unwrap();
        bytes[40..44].copy_from_slice(&[DESTINATION_OPTIONS, 0, 1, 4]);
        bytes[48..52].copy_from_slice(&[UDP, 1, 1, 12]);
        let parse = |bytes: &[u8]| Header::parse(bytes, 100)?.at_its_end(bytes);
        let header = parse(&bytes).unwrap();
        assert_eq!(
            (header.protocol, header.bytes, header.payload),
            (UDP, 64, 36)
        );
        bytes[41] = 200;
        assert_eq!(parse(&bytes), Err(LinkCause::IpHeader));
        written.protocol = FRAGMENT;
        written.emit(&mut bytes).unwrap();
        assert_eq!(parse(&bytes), Err(LinkCause::Fragment));
    }

    #[test]
    fn udp_says_how_long_it_is() {
        let mut bytes = [0; 20];
        Udp::emit(&mut bytes, 2152, 2153, 20);
        let udp = Udp::parse(&bytes, 20).unwrap();
        assert_eq!((udp.source, udp.destination, udp.length), (2152, 2153, 20));
        assert_eq!(Udp::parse(&bytes, 19), Err(LinkCause::UdpLength));
        Udp::emit(&mut bytes, 2152, 2153, 7);
        assert_eq!(Udp::parse(&bytes, 20), Err(LinkCause::UdpLength));
    }
}
