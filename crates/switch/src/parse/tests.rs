//! Frames built by hand, and any bytes at all.

use super::*;

const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

fn v4(flags: u16, options: usize, protocol: u8) -> Vec<u8> {
    let header_bytes = 20 + options;
    let mut packet = vec![0; header_bytes + 8];
    packet[0] = 0x40 | (header_bytes / 4) as u8;
    packet[1] = 0x2e;
    packet[2..4].copy_from_slice(&((header_bytes + 8) as u16).to_be_bytes());
    packet[6..8].copy_from_slice(&flags.to_be_bytes());
    packet[9] = protocol;
    packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    packet[header_bytes..header_bytes + 4].copy_from_slice(&[0x12, 0x34, 0, 80]);
    packet
}

fn framed(tags: &[[u8; 4]], ether_type: u16, packet: &[u8]) -> Vec<u8> {
    let ether_type = ether_type.to_be_bytes();
    [&ADDRESSES, &tags.concat()[..], &ether_type, packet].concat()
}

#[test]
fn a_mac_header_with_and_without_a_tag() {
    let frame = Frame::parse(&framed(&[], 0x88b5, &[])).unwrap();
    assert_eq!(frame.destination.to_string(), "02:00:00:00:00:01");
    assert_eq!((frame.source.0, frame.tag), (0x0200_0000_0002, None));
    let tagged = framed(&[[0x81, 0, 0xa0, 10]], 0x88b5, &[]);
    assert_eq!(Frame::parse(&tagged).unwrap().tag, Some(0xa00a));
    assert_eq!(Frame::parse(&tagged[..17]), None);
    assert_eq!(Frame::parse(&tagged[..13]), None);
    let provider = framed(&[[0x88, 0xa8, 0, 10]], 0x88b5, &[]);
    assert_eq!(Frame::parse(&provider).unwrap().tag, None);
    assert_eq!(payload(&provider), Some((0x88b5, 18)));
}

#[test]
fn ipv4_behind_tags() {
    for tags in [
        vec![],
        vec![[0x81, 0, 0, 1]],
        vec![[0x88, 0xa8, 0, 1], [0x81, 0, 0, 2]],
    ] {
        let at = 14 + 4 * tags.len();
        let packet = Packet::parse(&framed(&tags, TYPE_IPV4, &v4(0x4000, 4, 6))).unwrap();
        assert_eq!((packet.at, packet.payload_at), (at, at + 24));
        assert_eq!((packet.protocol, packet.traffic_class), (6, 0x2e));
        assert_eq!(packet.source, [0, 0x0a00_0001]);
        assert_eq!(packet.destination, [0, 0x0a00_0002]);
        assert_eq!(packet.ports, Some((0x1234, 80)));
        assert!(packet.whole && !packet.fragment && packet.length == 32);
    }
}

#[test]
fn later_fragments_have_no_ports() {
    let first = Packet::parse(&framed(&[], TYPE_IPV4, &v4(0x2000, 0, 17))).unwrap();
    assert!(first.fragment && !first.whole && first.ports.is_some());
    let later = Packet::parse(&framed(&[], TYPE_IPV4, &v4(0x2010, 0, 17))).unwrap();
    assert!(later.fragment && later.ports.is_none());
}

#[test]
fn what_cannot_be_a_header_is_none() {
    let mut short = v4(0, 0, 6);
    short[0] = 0x44;
    assert_eq!(Packet::parse(&framed(&[], TYPE_IPV4, &short)), None);
    let mut long = v4(0, 0, 6);
    long[2..4].copy_from_slice(&[0, 19]);
    assert_eq!(Packet::parse(&framed(&[], TYPE_IPV4, &long)), None);
    assert_eq!(Packet::parse(&framed(&[], TYPE_IPV6, &v4(0, 0, 6))), None);
    assert_eq!(Packet::parse(&framed(&[], 0x0806, &v4(0, 0, 6))), None);
}

#[test]
fn ipv6_behind_extension_headers() {
    let mut packet = vec![0; 40];
    packet[..8].copy_from_slice(&[0x62, 0xe0, 0, 0, 0, 28, 0, 64]);
    packet[8] = 0xfd;
    packet[39] = 2;
    // Hop by hop of 8 bytes, a fragment that is the first, TCP's ports.
    packet.extend([44, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend([6, 0, 0, 1, 0, 0, 0, 9]);
    packet.extend([0x12, 0x34, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0]);
    let parsed = Packet::parse(&framed(&[], TYPE_IPV6, &packet)).unwrap();
    assert_eq!((parsed.protocol, parsed.payload_at), (6, 14 + 56));
    assert_eq!((parsed.traffic_class, parsed.length), (0x2e, 68));
    assert_eq!(parsed.ports, Some((0x1234, 80)));
    assert!(parsed.fragment && parsed.source[0] >> 56 == 0xfd && parsed.destination[1] == 2);
    packet[51] = 8;
    let later = Packet::parse(&framed(&[], TYPE_IPV6, &packet)).unwrap();
    assert_eq!(later.ports, None);
}

/// A generator of bytes that a seed determines.
fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn any_bytes_are_good_and_what_is_found_lies_where_it_says() {
    let types: [&[u8]; 5] = [
        &[8, 0, 0x45],
        &[0x86, 0xdd, 0x60],
        &[0x81, 0],
        &[0x88, 0xa8],
        &[],
    ];
    for seed in 0..20_000 {
        let mut bytes = random(seed, (seed % 129) as usize);
        // Often enough a type that is known, behind none or one tag.
        for at in [12, 16] {
            let known = types[(seed as usize / 3 + at) % types.len()];
            if bytes.len() >= at + known.len() {
                bytes[at..at + known.len()].copy_from_slice(known);
            }
        }
        let frame = Frame::parse(&bytes);
        assert_eq!(
            frame.is_some(),
            bytes.len() >= 14 && frame_fits(&bytes),
            "seed {seed}"
        );
        if let Some(packet) = Packet::parse(&bytes) {
            assert!(packet.at + 20 <= bytes.len() && packet.payload_at > packet.at);
            if let Some((source, _)) = packet.ports {
                assert_eq!(half(&bytes, packet.payload_at), Some(source), "seed {seed}");
            }
            // A shorter copy says the same, or less.
            let less = Packet::parse(&bytes[..bytes.len() - 1]);
            assert!(less.is_none_or(|less| less.version == packet.version && less.at == packet.at));
        }
    }
}

fn frame_fits(bytes: &[u8]) -> bool {
    half(bytes, 12) != Some(TYPE_VLAN) || bytes.len() >= 18
}
