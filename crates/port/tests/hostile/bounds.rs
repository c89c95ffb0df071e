//! What a client can make us do at once has a bound, however large its rings are.

use super::*;

/// The largest ring that there is.
const LOG2_LARGE: u8 = 14;
const LARGE: u16 = 1 << LOG2_LARGE;

/// A client whose rings are the largest, and a port for it.
fn large() -> (tempfile::TempDir, Memif, Raw) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let raw = Raw::sized(&mut port, &path, LOG2_LARGE, 1 << 20);
    (place, port, raw)
}

/// Gives so many descriptors, all but the last of each so many with `FLAG_NEXT`, and each of so many bytes.
fn give(raw: &Raw, ring: usize, count: u16, chain: u16, bytes: u32) {
    for slot in 0..count {
        let flags = if (slot + 1) % chain == 0 {
            0
        } else {
            FLAG_NEXT
        };
        raw.describe(ring, slot.into(), flags, 0, BUFFERS, bytes);
    }
    raw.set(ring, RING_HEAD, count);
}

#[test]
fn packets_that_are_dropped_are_taken_a_few_at_a_time() {
    for (chain, bytes, most) in [(1, 13, 256), (1, 0, 256), (4, 3, 256), (4096, 0, 2)] {
        let (_place, mut port, raw) = large();
        give(&raw, 0, LARGE, chain, bytes);
        let mut burst = Burst::new(32);
        let mut before = 0;
        while before < u64::from(LARGE / chain) {
            assert!(!port.arm(), "there are more");
            assert_eq!(port.receive(0, &mut burst), 0);
            let dropped = port.counters().received.dropped(Cause::TooShort);
            let more = dropped - before;
            assert!((1..=most).contains(&more), "{more} of {chain}");
            before = dropped;
        }
        assert!(port.arm());
        assert_eq!(raw.tail(0), LARGE);
        raw.describe(0, 0, 0, 0, BUFFERS, 64);
        raw.set(0, RING_HEAD, LARGE + 1);
        assert_eq!(port.receive(0, &mut burst), 1);
    }
}

#[test]
fn packets_of_many_buffers_are_taken_a_few_at_a_time() {
    let (_place, mut port, raw) = large();
    give(&raw, 0, LARGE, 1024, 1);
    let mut burst = Burst::new(32);
    for _ in 0..2 {
        assert_eq!(port.receive(0, &mut burst), 8);
        assert!(burst.iter().all(|packet| packet.len() == 1024));
    }
    assert_eq!(port.receive(0, &mut burst), 0);
}

#[test]
fn a_packet_of_too_many_buffers_ends_the_connection() {
    // Whether its end is there or not.
    for (count, chain) in [(4097, 4097), (4096, LARGE)] {
        let (_place, mut port, raw) = large();
        give(&raw, 0, count, chain, 1);
        assert_eq!(port.receive(0, &mut Burst::new(32)), 0);
        port.poll(Instant::now());
        assert_eq!(why(&port), "a packet is in more than 4096 buffers");
    }
}

#[test]
fn buffers_without_room_are_looked_at_a_few_at_a_time() {
    let mut burst = Burst::new(32);
    while burst.push(&[0; 64]) {}
    let (_place, mut port, raw) = large();
    give(&raw, 1, LARGE, 1, 0);
    assert_eq!(port.transmit(0, &burst, 0), 0);
    port.poll(Instant::now());
    assert_eq!(why(&port), "a packet is in more than 4096 buffers");

    // A ring that has no more than a packet may take: it is told of each packet that there will never be room.
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("memif.sock");
    let mut port = server(&path);
    let raw = Raw::sized(&mut port, &path, 12, 1 << 20);
    give(&raw, 1, 4096, 1, 0);
    assert_eq!(port.transmit(0, &burst, 0), 2);
    assert_eq!(port.transmit(0, &burst, 2), 2);
    let transmitted = port.counters().transmitted;
    assert_eq!(transmitted.dropped(Cause::TooLong), 4);
}
