//! Ethernet, IPv4, IPv6 and UDP around messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_ppf::{emit_v4_fragment_place, emit_v6_fragment_header, pieces};
use millrace_wire::gtpu::PORT;

const MTU: usize = 1500;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;

/// A UDP datagram.
pub(crate) struct Datagram<'a> {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) from_port: u16,
    pub(crate) to_port: u16,
    pub(crate) class: u8,
    pub(crate) bytes: &'a [u8],
}

/// A frame's packet of the Internet's.
pub(crate) fn packet(frame: &[u8]) -> Option<&[u8]> {
    match frame.get(12..14)? {
        [0x08, 0x00] | [0x86, 0xdd] => frame.get(14..),
        _ => None,
    }
}

/// A packet's datagram, without extension headers and options.
pub(crate) fn whole(packet: &[u8]) -> Option<Datagram<'_>> {
    if packet.first()? >> 4 == 4 {
        let header = packet.first_chunk::<20>()?;
        let address =
            |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header[9] != UDP || header[0] != 0x45 {
            return None;
        }
        return udp(
            (address(12).into(), address(16).into()),
            header[1],
            packet.get(20..length)?,
        );
    }
    let header = packet.first_chunk::<40>()?;
    let address =
        |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).unwrap_or([0; 16]));
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[6] != UDP {
        return None;
    }
    let class = header[0] << 4 | header[1] >> 4;
    udp(
        (address(8).into(), address(24).into()),
        class,
        packet.get(40..40 + length)?,
    )
}

/// What is behind a header of IPv4 or IPv6, as a datagram.
pub(crate) fn udp((from, to): (IpAddr, IpAddr), class: u8, bytes: &[u8]) -> Option<Datagram<'_>> {
    let two = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    Some(Datagram {
        from,
        to,
        from_port: two(0)?,
        to_port: two(2)?,
        class,
        bytes: bytes.get(8..usize::from(two(4)?))?,
    })
}

fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    words.fold(0, |sum, word| {
        let low = word.get(1).copied().unwrap_or(0);
        sum + u32::from(u16::from_be_bytes([word[0], low]))
    })
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Frames that carry a message: several if it is longer than Ethernet takes.
pub(crate) fn emit(
    from: IpAddr,
    to: IpAddr,
    class: u8,
    identification: u32,
    message: &[u8],
) -> Vec<Vec<u8>> {
    let length = (8 + message.len()) as u16;
    let mut datagram = [
        PORT.to_be_bytes(),
        PORT.to_be_bytes(),
        length.to_be_bytes(),
        [0; 2],
    ]
    .concat();
    datagram.extend_from_slice(message);
    let ends = [octets(from), octets(to)].concat();
    // Of IPv4 it may be missing, and often is; of IPv6 it may not but by agreement (RFC 6935).
    if from.is_ipv6() {
        let pseudo = sum(&ends) + u32::from(length) + u32::from(UDP);
        let sum = match folded(pseudo + sum(&datagram)) {
            0 => 0xffff,
            sum => sum,
        };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    }
    let cuts = pieces(datagram.len(), from.is_ipv6(), MTU);
    let frames = cuts.map(|piece| {
        let part = &datagram[piece.at..piece.at + piece.bytes];
        let is_whole = piece.bytes == datagram.len();
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if from.is_ipv6() {
            frame.extend_from_slice(&[0x86, 0xdd, 0x60 | class >> 4, class << 4, 0, 0]);
            let header = emit_v6_fragment_header(UDP, identification, &piece);
            let header: &[u8] = if is_whole { &[] } else { &header };
            frame.extend_from_slice(&((header.len() + part.len()) as u16).to_be_bytes());
            frame.extend_from_slice(&[if is_whole { UDP } else { FRAGMENT }, 64]);
            frame.extend_from_slice(&ends);
            frame.extend_from_slice(header);
        } else {
            let mut header = vec![0x45, class, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0];
            header.extend_from_slice(&ends);
            header[2..4].copy_from_slice(&((20 + part.len()) as u16).to_be_bytes());
            header[4..6].copy_from_slice(&(identification as u16).to_be_bytes());
            header[6..8].copy_from_slice(&emit_v4_fragment_place(&piece));
            let sum = folded(sum(&header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend_from_slice(&[0x08, 0x00]);
            frame.extend_from_slice(&header);
        }
        frame.extend_from_slice(part);
        frame
    });
    frames.collect()
}
