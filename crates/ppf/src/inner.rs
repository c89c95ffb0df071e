//! A user's packet, and what is said to its sender if it is too long for a tunnel: ICMP's "fragmentation needed" (RFC 1191) and ICMPv6's
//! "packet too big" (RFC 4443, 3.2).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const V4_HEADER_BYTES: usize = 20;
const V6_HEADER_BYTES: usize = 40;
const ICMP_HEADER_BYTES: usize = 8;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
/// An error message of ICMP is no longer (RFC 1812, 4.3.2.3), nor one of ICMPv6 than the least MTU (RFC 4443, 2.4 c).
const V4_ERROR_BYTES_MAX: usize = 576;
/// No link that carries IPv6 has less.
pub(crate) const V6_MTU_MIN: usize = 1280;
/// Nor one that carries IPv4.
const V4_MTU_MIN: usize = 68;
const HOPS: u8 = 64;

/// What a user's packet says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inner {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Whether it is to be told of if it is too long: nobody on its way may cut it up, it is the first of its fragments, and no error
    /// message itself.
    pub(crate) is_told_of: bool,
}

impl Inner {
    /// None: it is no packet of the Internet's, or does not say its length truly.
    #[inline]
    pub(crate) fn parse(packet: &[u8]) -> Option<Inner> {
        match packet.first()? >> 4 {
            4 => Inner::parse_v4(packet),
            6 => Inner::parse_v6(packet),
            _ => None,
        }
    }

    fn parse_v4(packet: &[u8]) -> Option<Inner> {
        let header = packet.first_chunk::<V4_HEADER_BYTES>()?;
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        let said = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header_bytes < V4_HEADER_BYTES || said != packet.len() || said < header_bytes {
            return None;
        }
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        let (may_not_be_cut, offset) = (fragment & 0x4000 != 0, fragment & 0x1fff);
        // Destination unreachable, source quench, redirect, time exceeded, parameter problem.
        let is_error =
            header[9] == ICMP && matches!(packet.get(header_bytes), Some(3..=5 | 11 | 12));
        let source = Ipv4Addr::new(header[12], header[13], header[14], header[15]);
        let destination = Ipv4Addr::new(header[16], header[17], header[18], header[19]);
        Some(Inner {
            source: source.into(),
            destination: destination.into(),
            is_told_of: may_not_be_cut
                && offset == 0
                && !is_error
                && !source.is_unspecified()
                && !source.is_multicast()
                && !destination.is_multicast()
                && !destination.is_broadcast(),
        })
    }

    fn parse_v6(packet: &[u8]) -> Option<Inner> {
        let header = packet.first_chunk::<V6_HEADER_BYTES>()?;
        let said = usize::from(u16::from_be_bytes([header[4], header[5]]));
        if said + V6_HEADER_BYTES != packet.len() {
            return None;
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&header[at..at + 16]);
            Ipv6Addr::from(octets)
        };
        let (source, destination) = (address(8), address(24));
        // Errors have kinds below 128.
        let is_error =
            header[6] == ICMP_V6 && packet.get(V6_HEADER_BYTES).is_some_and(|kind| *kind < 128);
        Some(Inner {
            source: source.into(),
            destination: destination.into(),
            // Also to who sends to many (RFC 4443, 2.4 e), and whatever is told, packets of the least MTU pass.
            is_told_of: !is_error
                && packet.len() > V6_MTU_MIN
                && !source.is_unspecified()
                && !source.is_multicast(),
        })
    }
}

/// Says to a packet's sender that it is longer than `mtu`, in the name of `from`. None: nobody is told of this one, or `from` is of another
/// family.
pub(crate) fn too_big(packet: &[u8], mtu: usize, from: Option<IpAddr>) -> Option<Vec<u8>> {
    let inner = Inner::parse(packet)?;
    if !inner.is_told_of {
        return None;
    }
    match (inner.source, from.unwrap_or(inner.destination)) {
        (IpAddr::V4(to), IpAddr::V4(from)) => Some(too_big_v4(packet, mtu, from, to)),
        (IpAddr::V6(to), IpAddr::V6(from)) => Some(too_big_v6(packet, mtu, from, to)),
        _ => None,
    }
}

fn too_big_v4(packet: &[u8], mtu: usize, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let room = V4_ERROR_BYTES_MAX - V4_HEADER_BYTES - ICMP_HEADER_BYTES;
    let quoted = &packet[..packet.len().min(room)];
    let mtu = mtu.clamp(V4_MTU_MIN, usize::from(u16::MAX)) as u16;
    let mut message = vec![3, 4, 0, 0, 0, 0, 0, 0];
    message[6..].copy_from_slice(&mtu.to_be_bytes());
    message.extend_from_slice(quoted);
    let sum = checksum(0, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let length = (V4_HEADER_BYTES + message.len()) as u16;
    let mut bytes = vec![0; V4_HEADER_BYTES];
    bytes[0] = 0x45;
    // Its class is that of routing, as RFC 1812 (4.3.2.5) has it.
    bytes[1] = 0xc0;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes[8] = HOPS;
    bytes[9] = ICMP;
    bytes[12..16].copy_from_slice(&from.octets());
    bytes[16..20].copy_from_slice(&to.octets());
    let sum = checksum(0, &bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend_from_slice(&message);
    bytes
}

fn too_big_v6(packet: &[u8], mtu: usize, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let room = V6_MTU_MIN - V6_HEADER_BYTES - ICMP_HEADER_BYTES;
    let quoted = &packet[..packet.len().min(room)];
    let mut message = vec![2, 0, 0, 0, 0, 0, 0, 0];
    message[4..].copy_from_slice(&(mtu.max(V6_MTU_MIN) as u32).to_be_bytes());
    message.extend_from_slice(quoted);
    let mut pseudo = Vec::with_capacity(40);
    pseudo.extend_from_slice(&from.octets());
    pseudo.extend_from_slice(&to.octets());
    pseudo.extend_from_slice(&(message.len() as u32).to_be_bytes());
    pseudo.extend_from_slice(&[0, 0, 0, ICMP_V6]);
    let sum = checksum(sum_of(0, &pseudo), &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut bytes = vec![0; 8];
    bytes[0] = 0x60;
    bytes[4..6].copy_from_slice(&(message.len() as u16).to_be_bytes());
    bytes[6] = ICMP_V6;
    bytes[7] = HOPS;
    bytes.extend_from_slice(&pseudo[..32]);
    bytes.extend_from_slice(&message);
    bytes
}

/// The Internet's checksum (RFC 1071) of bytes, and of what was summed before.
pub(crate) fn checksum(before: u32, bytes: &[u8]) -> u16 {
    let mut sum = sum_of(before, bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Of an even number of bytes, or of the last ones. They are a packet's: 32 bits hold their sum.
fn sum_of(before: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    words.fold(before, |sum, word| {
        let low = word.get(1).copied().unwrap_or(0);
        sum + u32::from(u16::from_be_bytes([word[0], low]))
    })
}

#[cfg(test)]
pub(crate) fn v4_packet(from: [u8; 4], to: [u8; 4], class: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, class, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet.extend_from_slice(&from);
    packet.extend_from_slice(&to);
    let length = (packet.len() + body.len()) as u16;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    let sum = checksum(0, &packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(body);
    packet
}

#[cfg(test)]
pub(crate) fn v6_packet(from: u8, to: u8, class: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60 | class >> 4, class << 4, 0, 0, 0, 0, 17, 64];
    packet[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
    for last in [from, to] {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, u16::from(last), 0, 0, 0, 1);
        packet.extend_from_slice(&address.octets());
    }
    packet.extend_from_slice(body);
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_are_told_as_their_family_has_it() {
        let v4 = v4_packet([192, 0, 2, 1], [192, 0, 2, 2], 0, &[7; 1400]);
        let told = too_big(&v4, 1300, None).unwrap();
        assert_eq!(told.len(), 576);
        assert_eq!((checksum(0, &told[..20]), checksum(0, &told[20..])), (0, 0));
        assert_eq!(told[20..28], [3, 4, told[22], told[23], 0, 0, 5, 20]);
        assert_eq!(told[28..], v4[..548]);
        let said = Inner::parse(&told).unwrap();
        assert_eq!(
            (said.source, said.destination),
            (IpAddr::from([192, 0, 2, 2]), IpAddr::from([192, 0, 2, 1]))
        );
        // What is an error itself is told of to nobody.
        assert!(!said.is_told_of);

        let v6 = v6_packet(1, 2, 0, &[7; 1400]);
        let told = too_big(&v6, 1300, None).unwrap();
        assert_eq!(told.len(), 1280);
        let mut pseudo = told[8..40].to_vec();
        pseudo.extend_from_slice(&1240u32.to_be_bytes());
        pseudo.extend_from_slice(&[0, 0, 0, 58]);
        assert_eq!(checksum(sum_of(0, &pseudo), &told[40..]), 0);
        assert_eq!(told[44..48], 1300u32.to_be_bytes());
        assert_eq!(told[48..], v6[..1232]);
        assert!(!Inner::parse(&told).unwrap().is_told_of);
    }

    #[test]
    fn nobody_is_told_of_what_may_be_cut_or_was() {
        let mut packet = v4_packet([192, 0, 2, 1], [192, 0, 2, 2], 0, &[7; 1400]);
        for fragment in [0x0000u16, 0x4001, 0x2000] {
            packet[6..8].copy_from_slice(&fragment.to_be_bytes());
            assert_eq!(too_big(&packet, 1300, None), None, "{fragment:x}");
        }
        assert_eq!(too_big(&v6_packet(1, 2, 0, &[7; 1240]), 1000, None), None);
        assert_eq!(too_big(b"any other bytes", 10, None), None);
        let v4 = v4_packet([192, 0, 2, 1], [192, 0, 2, 2], 0, &[7; 1400]);
        assert_eq!(too_big(&v4, 1300, Some(Ipv6Addr::LOCALHOST.into())), None);
    }
}
