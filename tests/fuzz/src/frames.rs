//! Headers of frames: any bytes are good, and what is found lies inside.

use millrace_switch::{Frame, Packet, Version, payload};

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
}
