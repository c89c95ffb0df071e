//! Headers of frames: any bytes are good, and what is found lies inside.

use millrace_switch::{Frame, Packet, Version, payload, too_big};

/// Reads `bytes` as the switch reads the first bytes of a frame.
pub fn run(bytes: &[u8]) {
    let frame = Frame::parse(bytes);
    assert!(frame.is_none() || bytes.len() >= 14);
    if let Some((_, at)) = payload(bytes) {
        assert!(at <= bytes.len() && at >= 14);
    }
    let Some(packet) = Packet::parse(bytes) else {
        return;
    };
    let header_bytes = match packet.version {
        Version::V4 => 20,
        Version::V6 => 40,
    };
    assert!(
        packet.at + header_bytes <= bytes.len() && packet.payload_at >= packet.at + header_bytes
    );
    if let Some((source, destination)) = packet.ports {
        let there = &bytes[packet.payload_at..packet.payload_at + 4];
        assert_eq!(there[..2], source.to_be_bytes());
        assert_eq!(there[2..], destination.to_be_bytes());
    }
    // Fewer bytes say the same, or nothing: neither another place nor another protocol of the Internet.
    let less = Packet::parse(&bytes[..bytes.len() - 1]);
    assert!(less.is_none_or(|less| (less.at, less.version) == (packet.at, packet.version)));
    if let Some(frame) = frame {
        for mtu in [0, 1280, u16::MAX] {
            check_answer(bytes, &frame, packet.version, mtu);
        }
    }
}

/// Who is told that a packet is too long is told by a packet of its own kind, in one part, to where it came from, whose checksum is right.
fn check_answer(bytes: &[u8], frame: &Frame, version: Version, mtu: u16) {
    let Some(answer) = too_big(bytes, frame, mtu) else {
        return;
    };
    let answer = answer.as_bytes();
    let back = Frame::parse(answer).expect("an answer is a frame");
    assert_eq!((back.destination, back.tag), (frame.source, frame.tag));
    let packet = Packet::parse(answer).expect("an answer has a packet");
    assert!(packet.version == version && !packet.fragment);
    let end = packet.at
        + match version {
            Version::V4 => usize::from(u16::from_be_bytes([
                answer[packet.at + 2],
                answer[packet.at + 3],
            ])),
            Version::V6 => {
                40 + usize::from(u16::from_be_bytes([
                    answer[packet.at + 4],
                    answer[packet.at + 5],
                ]))
            }
        };
    assert_eq!(end, answer.len());
    if version == Version::V4 {
        assert_eq!(sum(&answer[packet.at..packet.at + 20]), 0xffff);
        assert_eq!(sum(&answer[packet.at + 20..]), 0xffff);
    }
}

fn sum(bytes: &[u8]) -> u32 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    (sum & 0xffff) + (sum >> 16)
}
