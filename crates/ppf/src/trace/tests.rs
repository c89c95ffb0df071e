use millrace_port::Burst;
use millrace_wire::pcap::{Decoder, Item, parse_statistics};

use super::*;
use crate::bearer::Peer;
use crate::ethernet::{IPV4, IPV6, Mac};
use crate::ip::{Udp, Written};

const DAY: Duration = Duration::from_secs(86_400);

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn frame(from: &str, to: &str, protocol: u8, vlan: Option<u16>, body: &[u8]) -> Vec<u8> {
    let mut bytes = [0; 128];
    let (from, to) = (address(from), address(to));
    let kind = if from.is_ipv4() { IPV4 } else { IPV6 };
    let mut end = Frame::emit(&mut bytes, Mac::default(), Mac::default(), vlan, kind);
    let ip = Written::new(from, to, protocol, body.len());
    ip.emit(&mut bytes[end..]).unwrap();
    end += ip.bytes();
    [&bytes[..end], body].concat()
}

/// A message for a tunnel.
fn message(from: &str, to: &str, teid: u32) -> Vec<u8> {
    let mut datagram = vec![0; UDP_BYTES];
    Udp::emit(&mut datagram, 40_000, PORT, 8 + 8 + 4);
    datagram.extend_from_slice(&[0x30, 255, 0, 4]);
    datagram.extend_from_slice(&teid.to_be_bytes());
    datagram.extend_from_slice(b"body");
    frame(from, to, UDP, Some(7), &datagram)
}

fn relay() -> (BearerId, Bearer) {
    let peer = |at: &str, teid| Peer {
        address: address(at),
        teid,
    };
    let bearer = Bearer::new(peer("198.51.100.9", 77), peer("2001:db8::9", 88));
    (BearerId::from_number(513), bearer)
}

#[test]
fn frames_of_tunnels_are_known_by_their_numbers_each_way() {
    let (id, bearer) = relay();
    let wanted = Wanted::new(id, &bearer);
    let is = |side, frame: &[u8], direction| wanted.has(side, frame, direction);
    let [core, radio] = Side::BOTH.map(|side| id.teid(side));
    let came = message("198.51.100.9", "198.51.100.1", core);
    assert!(is(Side::Core, &came, Direction::In));
    assert!(!is(Side::Radio, &came, Direction::In) && !is(Side::Core, &came, Direction::Out));
    let left = message("2001:db8::1", "2001:db8::9", 88);
    assert!(is(Side::Radio, &left, Direction::Out));
    assert!(!is(Side::Core, &left, Direction::Out));
    // The same number of another peer's.
    let other = message("2001:db8::1", "2001:db8::8", 88);
    assert!(!is(Side::Radio, &other, Direction::Out));
    let other = message("198.51.100.9", "198.51.100.1", radio + 2);
    assert!(!is(Side::Radio, &other, Direction::In));
    for cut in 0..left.len() {
        // It may be seen or not, but nothing else happens.
        let _ = is(Side::Radio, &left[..cut], Direction::Out);
    }
    let mut part = came.clone();
    // The fragment's place, behind a tag and in IPv4.
    part[18 + 7] = 8;
    assert!(!is(Side::Core, &part, Direction::In));
}

#[test]
fn frames_of_a_user_are_known_by_its_addresses() {
    let (id, mut bearer) = relay();
    bearer.core = Peer::plain(address("10.0.0.1"));
    bearer.user_v6 = Some("2001:db8:45::".parse().unwrap());
    let wanted = Wanted::new(id, &bearer);
    let is = |side, frame: &[u8], direction| wanted.has(side, frame, direction);
    for (user, other) in [
        ("10.0.0.1", "8.8.8.8"),
        ("2001:db8:45::7", "2001:db8:88::8"),
    ] {
        let (up, down) = (
            frame(user, other, 6, None, b"x"),
            frame(other, user, 6, None, b"x"),
        );
        assert!(is(Side::Core, &up, Direction::Out) && is(Side::Core, &down, Direction::In));
        assert!(!is(Side::Core, &up, Direction::In) && !is(Side::Core, &down, Direction::Out));
        assert!(!is(Side::Radio, &up, Direction::In));
    }
}

/// What a capture has: ports, ways, frames. And its statistics.
fn read(bytes: &[u8]) -> (Vec<(u32, Vec<u8>)>, Statistics) {
    let mut decoder = Decoder::default();
    let (mut at, mut found) = (0, Vec::new());
    let mut statistics = None;
    while at < bytes.len() {
        let rest = &bytes[at..];
        match decoder.next(rest).unwrap() {
            Item::Need(more) => panic!("{more} bytes are needed at {at}"),
            Item::Other(bytes) => {
                statistics = rest[..bytes].first_chunk().and_then(parse_statistics);
                at += bytes;
            }
            Item::Packet(packet, bytes) => {
                let port = u32::from_le_bytes(*rest[8..].first_chunk().unwrap());
                found.push((port, packet.bytes.to_vec()));
                at += bytes;
            }
        }
    }
    (found, statistics.expect("they come last"))
}

fn started(count: u64, time: Duration) -> (Capture, Vec<Tap>) {
    let (id, bearer) = relay();
    let ports = vec![
        ("n3\n".to_owned(), Side::Radio),
        ("n6".to_owned(), Side::Core),
    ];
    let wish = Wish {
        id,
        bearer: &bearer,
        ports,
        count,
        time,
    };
    let bells = (0..2).map(|_| Arc::new(Bell::new().unwrap())).collect();
    begin(&wish, bells)
}

fn show(tap: &mut Tap, port: u16, frame: &[u8], direction: Direction) {
    let mut burst = Burst::new(1);
    assert!(burst.push(frame));
    let taps = std::slice::from_mut(tap);
    see(taps, port, burst.iter(), Instant::now(), direction);
}

#[test]
fn frames_of_all_workers_are_in_one_capture_until_there_are_enough() {
    let (capture, mut taps) = started(3, DAY);
    let came = message("198.51.100.9", "198.51.100.1", relay().0.teid(Side::Core));
    let left = message("2001:db8::1", "2001:db8::9", 88);
    show(&mut taps[1], 1, &came, Direction::In);
    show(&mut taps[1], 1, &left, Direction::In);
    show(&mut taps[0], 0, &left, Direction::Out);
    for _ in 0..5 {
        show(&mut taps[1], 1, &came, Direction::In);
    }
    // A worker that is idle hands over what it has; and that the trace is over it sees then, or later.
    mind(&mut taps, Instant::now(), true);
    let reader = std::thread::spawn(move || capture.collect::<Vec<_>>().concat());
    while !taps.is_empty() {
        mind(&mut taps, Instant::now(), true);
        std::thread::yield_now();
    }
    let bytes = reader.join().unwrap();
    let (mut found, statistics) = read(&bytes);
    found.sort();
    assert_eq!(found, [(0, left), (1, came.clone()), (1, came)]);
    assert_eq!((statistics.delivered, statistics.dropped), (3, 0));
    let text = String::from_utf8_lossy(&bytes[..200]);
    assert!(
        text.contains("n3\\n") && text.contains("bearer 513"),
        "{text}"
    );
}

#[test]
fn what_finds_no_room_is_counted_and_passes() {
    let (capture, mut taps) = started(u64::MAX, Duration::ZERO);
    let frame = message("2001:db8::1", "2001:db8::9", 88);
    let fit = BLOCK_BYTES / (frame.len() + AROUND_BYTES) * BLOCKS;
    let count = fit as u64 * 2;
    for _ in 0..count {
        show(&mut taps[0], 0, &frame, Direction::Out);
    }
    drop(taps);
    let pieces: Vec<Vec<u8>> = capture.collect();
    let (found, statistics) = read(&pieces.concat());
    assert_eq!(found.len() as u64, statistics.delivered);
    assert_eq!(statistics.delivered + statistics.dropped, count);
    assert!(found.len() >= fit && statistics.dropped > 0);
}

#[test]
fn when_nobody_looks_any_more_workers_stop() {
    let (capture, mut taps) = started(u64::MAX, DAY);
    drop(capture);
    mind(&mut taps, Instant::now(), false);
    assert!(taps.is_empty());
}
