//! What packets leave to others: whatever is said of whatever packet, the work is done right, or cannot be done.

use millrace_port::{Burst, Checksum, Offload, PACKET_BYTES_MAX, Segment, SegmentKind};
use millrace_switch::{Cut, Packet, Version, complete};

use crate::Choices;

/// Reads what is left to do, and a packet's first bytes.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let checksum = Checksum::Partial {
        start: choices.byte().into(),
        offset: (choices.byte() % 32).into(),
    };
    let kind = [SegmentKind::Tcp4, SegmentKind::Tcp6, SegmentKind::Udp];
    let segment = match choices.byte() % 4 {
        3 => None,
        number => Some(Segment {
            kind: kind[usize::from(number)],
            has_ecn: choices.byte().is_multiple_of(2),
            bytes: choices.size() as u16,
            header_bytes: choices.byte().into(),
        }),
    };
    let payload = choices.size() * 4;
    let mut packet = choices.0.to_vec();
    packet.extend((0..payload).map(|at| at as u8));
    let offload = Offload { checksum, segment };
    if packet.len() < 14 || packet.len() > PACKET_BYTES_MAX || !offload.fits(packet.len()) {
        return;
    }
    let mut burst = Burst::new(1);
    assert!(burst.push(&packet));
    burst.set_offload(0, offload);
    match segment {
        None => completes(burst, &packet),
        Some(segment) => cuts(&burst, &packet, segment),
    }
}

fn completes(mut burst: Burst, packet: &[u8]) {
    let Some(offload) = burst.get(0).map(|packet| packet.offload()) else {
        return;
    };
    let Checksum::Partial { start, offset } = offload.checksum else {
        return;
    };
    if complete(&mut burst, 0).is_err() {
        return;
    }
    let done = burst.get(0).expect("it is there");
    assert!(!done.leaves_work());
    let at = usize::from(start) + usize::from(offset);
    let mut expected = packet.to_vec();
    expected[at..at + 2].copy_from_slice(&done.to_vec()[at..at + 2]);
    assert_eq!(done.to_vec(), expected, "nothing but the checksum changes");
}

/// The sum in ones' complement, of which a right checksum makes all ones.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    sum as u16
}

fn cuts(burst: &Burst, packet: &[u8], segment: Segment) {
    let Some(mut cut) = burst
        .get(0)
        .and_then(|packet| Cut::new(packet, segment).ok())
    else {
        return;
    };
    let wanted = cut.count();
    let (mut count, mut payload) = (0, Vec::new());
    let mut room = Burst::new(16);
    while let Some(is_added) = cut.next(&mut room) {
        if !is_added {
            count += take(&mut room, &mut payload, segment);
        }
    }
    count += take(&mut room, &mut payload, segment);
    assert_eq!(count, wanted, "as many segments as were said");
    assert!(packet.ends_with(&payload), "all of the payload, in order");
}

/// Checks segments, and adds their payload; returns how many there are.
fn take(room: &mut Burst, payload: &mut Vec<u8>, segment: Segment) -> usize {
    for one in room.iter() {
        let bytes = one.to_vec();
        let headers = Packet::parse(&bytes).expect("a packet of the Internet");
        let is_udp = segment.kind == SegmentKind::Udp;
        let transport = &bytes[headers.payload_at..];
        let addresses = match headers.version {
            Version::V4 => {
                let header = &bytes[headers.at..headers.payload_at];
                assert_eq!(sum(&[header]), 0xffff, "the header's checksum");
                &header[12..20]
            }
            Version::V6 => &bytes[headers.at + 8..headers.at + 40],
        };
        let protocol = if is_udp { 17 } else { 6 };
        let length = (transport.len() as u32).to_be_bytes();
        let pseudo: [&[u8]; 3] = [addresses, &[0, protocol], &length];
        let [first, second, third] = pseudo;
        assert_eq!(
            sum(&[first, second, third, transport]),
            0xffff,
            "the checksum"
        );
        let at = if is_udp {
            8
        } else {
            usize::from(transport[12] >> 4) * 4
        };
        assert!(transport.len() - at <= usize::from(segment.bytes));
        payload.extend_from_slice(&transport[at..]);
    }
    let count = room.len();
    room.clear();
    count
}
