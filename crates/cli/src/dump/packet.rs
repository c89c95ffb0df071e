//! Packets as TCP would have sent them: an IPv4 or IPv6 header, a TCP header without options, and the bytes.

use std::net::{IpAddr, SocketAddr};

/// Most bytes in one packet: what an IPv4 packet can hold.
pub(super) const PAYLOAD_MAX: usize = 65_495;

const TCP_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const ACKNOWLEDGE_AND_PUSH: u8 = 0x18;
const HOPS: u8 = 64;

/// The packet from `from` to `to` that carries `payload`, of [`PAYLOAD_MAX`] bytes at most.
pub(super) fn build(
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    acknowledged: u32,
    payload: &[u8],
) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(TCP_BYTES + payload.len());
    tcp.extend(from.port().to_be_bytes());
    tcp.extend(to.port().to_be_bytes());
    tcp.extend(sequence.to_be_bytes());
    tcp.extend(acknowledged.to_be_bytes());
    tcp.extend([(TCP_BYTES as u8 / 4) << 4, ACKNOWLEDGE_AND_PUSH]);
    tcp.extend(u16::MAX.to_be_bytes());
    tcp.extend([0; 4]);
    tcp.extend(payload);
    let length = tcp.len() as u16;

    let (addresses, mut packet) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let mut header = vec![0x45, 0];
            header.extend((length + 20).to_be_bytes());
            // No fragments.
            header.extend([0, 0, 0x40, 0, HOPS, PROTOCOL_TCP, 0, 0]);
            header.extend(&addresses);
            let sum = checksum(&[&header]);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            (addresses, header)
        }
        (from, to) => {
            let [from, to] = [from, to].map(|ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            });
            let addresses = [from, to].concat();
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([PROTOCOL_TCP, HOPS]);
            header.extend(&addresses);
            (addresses, header)
        }
    };
    let pseudo = [0, PROTOCOL_TCP, (length >> 8) as u8, length as u8];
    let sum = checksum(&[&addresses, &pseudo, &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    packet.extend(tcp);
    packet
}

/// The Internet checksum (RFC 1071). All parts but the last have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u64 = words
        .map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_their_fields_and_their_sums() {
        let ends: [SocketAddr; 2] = ["10.0.0.1:4000", "10.0.0.2:80"].map(|it| it.parse().unwrap());
        let packet = build(ends[0], ends[1], 0x0102_0304, 5, b"abc");
        assert_eq!(packet.len(), 43);
        assert_eq!(
            checksum(&[&packet[..20]]),
            0,
            "a header with its sum sums up to nothing"
        );
        let pseudo = [&packet[12..20], &[0, 6, 0, 23][..], &packet[20..]];
        assert_eq!(checksum(&pseudo), 0);
        assert_eq!(packet[20..32], [15, 160, 0, 80, 1, 2, 3, 4, 0, 0, 0, 5]);
        assert_eq!(&packet[40..], b"abc");
    }

    #[test]
    fn six_has_its_own_header() {
        let ends: [SocketAddr; 2] = ["[::1]:4000", "[::2]:80"].map(|it| it.parse().unwrap());
        let payload = vec![7; PAYLOAD_MAX];
        let packet = build(ends[0], ends[1], 1, 1, &payload);
        assert_eq!(
            (packet[0], packet[6], packet.len()),
            (0x60, 6, 60 + PAYLOAD_MAX)
        );
        let length = [0, 6, packet[4], packet[5]];
        assert_eq!(checksum(&[&packet[8..40], &length, &packet[40..]]), 0);
    }
}
