//! Cut and completed here, against what a simple model makes of the same bytes.

use super::*;

/// A TCP or UDP packet in IPv4 or IPv6, with payload and no checksums.
fn packet(version: Version, is_tcp: bool, options: usize, payload: usize) -> (Vec<u8>, usize) {
    let mut bytes = vec![0; 12];
    let transport = if is_tcp { 20 + options } else { 8 } + payload;
    match version {
        Version::V4 => {
            bytes.extend([0x08, 0, 0x45, 0x02]);
            bytes.extend(((20 + transport) as u16).to_be_bytes());
            bytes.extend([0xff, 0xfe, 0x40, 0, 64, if is_tcp { 6 } else { 17 }, 0, 0]);
            bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        }
        Version::V6 => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((transport as u16).to_be_bytes());
            bytes.extend([if is_tcp { 6 } else { 17 }, 64]);
            bytes.extend((0..32).map(|at| at * 3));
        }
    }
    let start = bytes.len();
    bytes.extend([0x12, 0x34, 0, 80]);
    if is_tcp {
        bytes.extend(0xffff_ff00u32.to_be_bytes());
        bytes.extend([0, 0, 0, 1]);
        bytes.extend([((20 + options) / 4 * 16) as u8, 0x99, 1, 0, 0, 0, 0, 0]);
        bytes.extend(vec![1; options]);
    } else {
        bytes.extend(((8 + payload) as u16).to_be_bytes());
        bytes.extend([0, 0]);
    }
    bytes.extend((0..payload).map(|at| (at * 31 + 7) as u8));
    (bytes, start)
}

/// Whether the checksums are right, computed byte by byte: of IPv4's header, and of TCP's or UDP's.
fn is_right(bytes: &[u8]) -> bool {
    let packet = parse::Packet::parse(bytes).unwrap();
    let sum = |parts: &[&[u8]]| {
        let bytes = parts.concat();
        let mut sum: u32 = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    };
    let header = &bytes[packet.at..packet.payload_at];
    let addresses = match packet.version {
        Version::V4 => &header[12..20],
        Version::V6 => &header[8..40],
    };
    let carried = &bytes[packet.payload_at..];
    assert_eq!(packet.length, bytes.len() - packet.at);
    let length = (carried.len() as u32).to_be_bytes();
    let protocol = [0, packet.protocol];
    let header_is_right = packet.version == Version::V6 || sum(&[header]) == 0xffff;
    header_is_right && sum(&[addresses, &length, &protocol, carried]) == 0xffff
}

fn segment(kind: SegmentKind, bytes: u16) -> Segment {
    Segment {
        kind,
        has_ecn: true,
        bytes,
        header_bytes: 0,
    }
}

#[test]
fn a_checksum_is_completed_where_it_belongs() {
    for version in [Version::V4, Version::V6] {
        for (is_tcp, offset) in [(true, 16), (false, 6)] {
            for payload in [0, 1, 2, 73, 74, 75, 500, 1023, 1024, 1025, 1460] {
                let (mut bytes, start) = packet(version, is_tcp, 0, payload);
                // What a stack leaves there: the sum of the pseudo-header.
                let mut sum = Sum::default();
                let addresses = match version {
                    Version::V4 => 26..34,
                    Version::V6 => 22..54,
                };
                sum.add(&bytes[addresses]);
                sum.add_word(if is_tcp { 6 } else { 17 });
                sum.add_word((bytes.len() - start) as u16);
                bytes[start + offset..start + offset + 2]
                    .copy_from_slice(&sum.folded().to_be_bytes());
                if version == Version::V4 {
                    set_header_checksum(&mut bytes);
                }
                let mut burst = Burst::new(1);
                burst.push(&bytes);
                let checksum = Checksum::Partial {
                    start: start as u16,
                    offset: offset as u16,
                };
                let offload = Offload {
                    checksum,
                    segment: None,
                };
                burst.set_offload(0, offload);
                complete(&mut burst, 0).unwrap();
                let done = burst.get(0).unwrap();
                assert!(
                    !done.leaves_work() && is_right(&done.to_vec()),
                    "{version:?} {payload}"
                );
            }
        }
    }
}

fn set_header_checksum(bytes: &mut [u8]) {
    bytes[24..26].fill(0);
    let mut sum = Sum::default();
    sum.add(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.complement().to_be_bytes());
}

#[test]
fn segments_are_right_and_together_what_was_cut() {
    for version in [Version::V4, Version::V6] {
        for (is_tcp, options) in [(true, 0), (true, 12), (false, 0)] {
            for (payload, bytes) in [
                (0, 100),
                (1, 100),
                (100, 100),
                (101, 100),
                (9000, 1448),
                (60_000, 1448),
            ] {
                let (whole, start) = packet(version, is_tcp, options, payload);
                let kind = match (is_tcp, version) {
                    (false, _) => SegmentKind::Udp,
                    (true, Version::V4) => SegmentKind::Tcp4,
                    (true, Version::V6) => SegmentKind::Tcp6,
                };
                check_cut(
                    &whole,
                    start,
                    segment(kind, bytes),
                    is_tcp,
                    options,
                    payload,
                );
            }
        }
    }
}

fn check_cut(
    whole: &[u8],
    start: usize,
    how: Segment,
    is_tcp: bool,
    options: usize,
    payload: usize,
) {
    let mut burst = Burst::new(1);
    assert!(burst.push(whole));
    let mut cut = Cut::new(burst.get(0).unwrap(), how).unwrap();
    let (count, longest) = (cut.count(), cut.network_bytes());
    let mut segments = Vec::new();
    let mut out = Burst::new(3);
    while let Some(added) = cut.next(&mut out) {
        if !added {
            segments.extend(out.iter().map(|packet| packet.to_vec()));
            out.clear();
        }
    }
    segments.extend(out.iter().map(|packet| packet.to_vec()));
    assert_eq!(segments.len(), count);
    let header_bytes = start + if is_tcp { 20 + options } else { 8 };
    let mut joined: Vec<u8> = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        assert!(is_right(segment), "{how:?} {payload}, segment {index}");
        assert!(segment.len() - 14 <= longest);
        if is_tcp {
            let sequence = u32::from_be_bytes(*segment[start + 4..].first_chunk().unwrap());
            assert_eq!(sequence, 0xffff_ff00u32.wrapping_add(joined.len() as u32));
            let (flags, is_last) = (segment[start + 13], index == count - 1);
            assert_eq!(flags & (FIN | PSH) != 0, is_last);
            assert_eq!(flags & CWR != 0, index == 0);
        }
        if segment[12] == 0x08 {
            let number = half(segment, 18).unwrap();
            assert_eq!(number, 0xfffeu16.wrapping_add(index as u16));
        }
        joined.extend(&segment[header_bytes..]);
    }
    assert_eq!(joined, whole[header_bytes..]);
}

#[test]
fn a_checksum_is_not_written_to_the_mac_header_or_a_tag() {
    let (plain, _) = packet(Version::V4, true, 0, 300);
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0, 0, 10]);
    for (bytes, first) in [(plain, 14), (tagged, 18)] {
        for (start, offset) in [(0, first), (first - 4, 0), (first - 1, 1), (first, 0)] {
            let mut burst = Burst::new(1);
            burst.push(&bytes);
            let checksum = Checksum::Partial { start, offset };
            burst.set_offload(
                0,
                Offload {
                    checksum,
                    segment: None,
                },
            );
            let done = complete(&mut burst, 0);
            assert_eq!(done.is_ok(), start == first, "{start}");
            let before = usize::from(first);
            assert_eq!(burst.head_mut(0)[..before], bytes[..before], "{start}");
        }
    }
}

#[test]
fn what_is_said_wrongly_is_not_done() {
    let (whole, _) = packet(Version::V4, true, 0, 300);
    let mut burst = Burst::new(1);
    burst.push(&whole);
    let packet = burst.get(0).unwrap();
    for kind in [SegmentKind::Tcp6, SegmentKind::Udp] {
        assert_eq!(Cut::new(packet, segment(kind, 100)).err(), Some(Impossible));
    }
    assert!(Cut::new(packet, segment(SegmentKind::Tcp4, 0)).is_err());
    // As many segments as there may be, and one more.
    for (payload, is_good) in [(2048, true), (2049, false)] {
        let (whole, _) = self::packet(Version::V4, true, 0, payload);
        let mut burst = Burst::new(1);
        burst.push(&whole);
        let cut = Cut::new(burst.get(0).unwrap(), segment(SegmentKind::Tcp4, 1));
        assert_eq!(cut.is_ok(), is_good);
    }
    let checksum = Checksum::Partial {
        start: 126,
        offset: 1,
    };
    let offload = Offload {
        checksum,
        segment: None,
    };
    burst.set_offload(0, offload);
    assert_eq!(complete(&mut burst, 0), Err(Impossible));
}

#[test]
fn an_ipv4_header_with_another_byte_is_still_right() {
    let (mut bytes, _) = packet(Version::V4, false, 0, 10);
    set_header_checksum(&mut bytes);
    set_ipv4_byte(&mut bytes, 14, 1, 0x03);
    let mut sum = Sum::default();
    sum.add(&bytes[14..34]);
    assert_eq!((bytes[15], sum.folded()), (3, 0xffff));
}
