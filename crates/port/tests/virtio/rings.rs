//! Drivers that write what they must not: the connection ends with a reason, and the port goes on with the next one.

use std::time::Instant;

use millrace_port::vhost_user::{Config, Role, VhostUser};
use millrace_port::{Burst, Cause, Port, State};
use millrace_wire::virtio::{
    DESC_INDIRECT, DESC_NEXT, DESC_WRITE, NET_CSUM, NET_HDR_NEEDS_CSUM, NetHeader,
};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::Random;
use crate::raw::{BUFFERS, GUEST, MEMORY_BYTES, RX, Raw, SIZE, TX, server, until, why};

/// Plays something that a hostile driver does, and compares what the port says of it.
fn play(packed: bool, attack: impl Fn(&Raw, &mut VhostUser), wanted: &str) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let mut raw = Raw::new(&mut port, &path, packed);
    attack(&raw, &mut port);
    port.poll(Instant::now());
    assert_eq!(why(&port), wanted, "packed: {packed}");
    assert!(raw.is_closed());
    // Nobody else is harmed.
    let raw = Raw::new(&mut port, &path, packed);
    raw.describe(TX, 0, BUFFERS, 76, 0);
    raw.offer(TX, &[0]);
    let before = port.counters().received.packets;
    assert_eq!(port.receive(0, &mut Burst::new(4)), 1);
    assert_eq!(port.counters().received.packets, before + 1);
}

fn both(attack: impl Fn(&Raw, &mut VhostUser), wanted: &str) {
    play(false, &attack, wanted);
    play(true, &attack, wanted);
}

fn receive(port: &mut VhostUser, wanted: usize) {
    assert_eq!(port.receive(0, &mut Burst::new(64)), wanted);
    assert_eq!(
        port.receive(0, &mut Burst::new(64)),
        0,
        "nothing passes any more"
    );
    assert_eq!(port.counters().received.dropped(Cause::Malformed), 1);
}

fn transmit(port: &mut VhostUser) {
    let mut burst = Burst::new(1);
    assert!(burst.push(&[0; 64]));
    assert_eq!(port.transmit(0, &burst, 0), 0);
    assert_eq!(port.transmit(0, &burst, 0), 0);
}

#[test]
fn an_index_that_cannot_be_ends_the_connection() {
    let wanted = "the peer's index 17 is too far from ours, 0, in a ring of 16";
    let attack = |raw: &Raw, port: &mut VhostUser| {
        raw.set_index(TX, SIZE + 1);
        assert_eq!(port.receive(0, &mut Burst::new(64)), 0);
    };
    play(false, attack, wanted);
    let attack = |raw: &Raw, port: &mut VhostUser| {
        raw.set_index(RX, SIZE + 1);
        transmit(port);
    };
    play(false, attack, wanted);
}

#[test]
fn a_number_that_cannot_be_ends_the_connection() {
    let wanted = "there is no chain 16 in a ring of 16";
    let attack = |raw: &Raw, port: &mut VhostUser| {
        raw.describe(TX, 0, BUFFERS, 76, 0);
        raw.offer(TX, &[0, SIZE]);
        receive(port, 1);
    };
    play(false, attack, wanted);
    let attack = |raw: &Raw, port: &mut VhostUser| {
        raw.describe_linked(TX, 0, BUFFERS, 76, DESC_NEXT, SIZE);
        raw.offer(TX, &[0]);
        receive(port, 0);
    };
    play(false, attack, wanted);
}

#[test]
fn a_buffer_outside_of_the_memory_ends_the_connection_after_those_before() {
    let end = MEMORY_BYTES as u64;
    let outside = [
        (end - 75, 76, GUEST + end - 75),
        (end, 76, GUEST + end),
        (u64::MAX - 8, u32::MAX, u64::MAX - 8),
        (1 << 40, 76, 1 << 40),
    ];
    for (buffer, length, address) in outside {
        let wanted = format!("a buffer of {length} bytes at {address:#x} is not inside the memory");
        let attack = |raw: &Raw, port: &mut VhostUser| {
            raw.describe(TX, 0, BUFFERS, 76, 0);
            raw.describe(TX, 1, buffer, length, 0);
            raw.offer(TX, &[0, 1]);
            receive(port, 1);
        };
        both(attack, &wanted);
        let attack = |raw: &Raw, port: &mut VhostUser| {
            raw.describe(RX, 0, buffer, length, DESC_WRITE);
            raw.offer(RX, &[0]);
            transmit(port);
        };
        both(attack, &wanted);
    }
}

#[test]
fn a_chain_without_an_end_ends_the_connection() {
    let attack = |raw: &Raw, port: &mut VhostUser| {
        for slot in 0..SIZE {
            let link = (slot + 1) % SIZE;
            raw.describe_linked(TX, slot, BUFFERS, 76, DESC_NEXT, link);
        }
        raw.offer(TX, &[0]);
        receive(port, 0);
    };
    both(attack, "a chain does not end within its ring of 16");
    let attack = |raw: &Raw, port: &mut VhostUser| {
        raw.describe_linked(RX, 0, BUFFERS, 8, DESC_NEXT | DESC_WRITE, 0);
        raw.offer(RX, &[0]);
        transmit(port);
    };
    play(false, attack, "a chain does not end within its ring of 16");
}

#[test]
fn buffers_for_the_other_side_end_the_connection() {
    let attack = |raw: &Raw, port: &mut VhostUser| {
        raw.describe(TX, 0, BUFFERS, 76, DESC_WRITE);
        raw.offer(TX, &[0]);
        receive(port, 0);
    };
    let wanted = "a descriptor has flags 0x2 where they cannot be";
    play(false, attack, wanted);
    let attack = |raw: &Raw, port: &mut VhostUser| {
        raw.describe(RX, 0, BUFFERS, 76, 0);
        raw.offer(RX, &[0]);
        transmit(port);
    };
    let wanted = "a descriptor has flags 0x0 where they cannot be";
    play(false, attack, wanted);
}

#[test]
fn tables_that_cannot_be_end_the_connection() {
    let table = BUFFERS + 0x1000;
    let with = |length: u32, flags: u16, fill: fn(&Raw, u64)| {
        move |raw: &Raw, port: &mut VhostUser| {
            fill(raw, table);
            raw.describe(TX, 0, table, length, DESC_INDIRECT | flags);
            raw.offer(TX, &[0]);
            receive(port, 0);
        }
    };
    let nothing: fn(&Raw, u64) = |_, _| {};
    both(with(17, 0, nothing), "a table of descriptors has 17 bytes");
    both(with(0, 0, nothing), "a table of descriptors has 0 bytes");
    let attack = with(16, DESC_NEXT, nothing);
    play(
        false,
        attack,
        "a descriptor has flags 0x5 where they cannot be",
    );
    let nested: fn(&Raw, u64) = |raw, at| raw.describe_at(at, BUFFERS, 16, DESC_INDIRECT, 0);
    let wanted = "a descriptor has flags 0x4 where they cannot be";
    play(false, with(16, 0, nested), wanted);
    let looping: fn(&Raw, u64) = |raw, at| raw.describe_at(at, BUFFERS, 16, DESC_NEXT, 0);
    let wanted = "a chain does not end within its ring of 16";
    play(false, with(16, 0, looping), wanted);
    let beyond: fn(&Raw, u64) = |raw, at| raw.describe_at(at, BUFFERS, 16, DESC_NEXT, 1);
    let wanted = "there is no chain 1 in a ring of 16";
    play(false, with(16, 0, beyond), wanted);
    let many: fn(&Raw, u64) = |raw, at| {
        for entry in 0..20 {
            raw.describe_at(at + entry * 16, BUFFERS, 16, DESC_NEXT, entry as u16 + 1);
        }
    };
    let wanted = "a chain does not end within its ring of 16";
    both(with(20 * 16, 0, many), wanted);
}

/// Where a frame goes was decided by its tag: nobody is asked to write a sum there.
#[test]
fn checksums_in_the_mac_header_or_in_a_tag_are_dropped() {
    const TAG: [u8; 4] = [0x81, 0, 0, 10];
    for packed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let mut config = Config::new(Role::Server, &path);
        config.offloads = true;
        let mut port = VhostUser::new(config).unwrap();
        let raw = Raw::silent(&path, packed);
        raw.say_features(NET_CSUM);
        raw.say_memory();
        raw.say_ring(TX);
        until(&mut port, |port| port.receive_queues() == 1);
        let tries = [
            (vec![], 0, 14, false),
            (vec![], 10, 0, false),
            (vec![], 14, 0, true),
            (vec![TAG], 14, 0, false),
            (vec![TAG], 18, 0, true),
            (vec![TAG, TAG], 18, 0, false),
        ];
        let good = tries.iter().filter(|one| one.3).count();
        for (slot, (tags, start, offset, _)) in tries.iter().enumerate() {
            let header = NetHeader {
                flags: NET_HDR_NEEDS_CSUM,
                checksum_start: *start,
                checksum_offset: *offset,
                ..NetHeader::default()
            };
            let at = BUFFERS + slot as u64 * 0x1000;
            raw.write(at, &header.emit());
            raw.write(at + 12 + 12, &tags.concat());
            raw.describe(TX, slot as u16, at, 12 + 200, 0);
        }
        raw.offer(TX, &[0, 1, 2, 3, 4, 5]);
        let mut burst = Burst::new(16);
        assert_eq!(port.receive(0, &mut burst), good, "packed: {packed}");
        assert!(burst.iter().all(|packet| packet.leaves_work()));
        let received = port.counters().received;
        let dropped = received.dropped(Cause::Offload);
        assert_eq!(dropped, (tries.len() - good) as u64);
        assert_eq!(received.bytes, 200 * good as u64);
    }
}

#[test]
fn a_chain_without_room_for_the_header_ends_the_connection() {
    let attack = |raw: &Raw, port: &mut VhostUser| {
        raw.describe(TX, 0, BUFFERS, 11, 0);
        raw.offer(TX, &[0]);
        receive(port, 0);
    };
    both(attack, "a chain of 11 bytes has no room for the header");
    let attack = |raw: &Raw, port: &mut VhostUser| {
        raw.describe(RX, 0, BUFFERS, 4, DESC_WRITE);
        raw.offer(RX, &[0]);
        transmit(port);
    };
    both(attack, "a chain of 4 bytes has no room for the header");
}

#[test]
fn packets_that_cannot_be_are_dropped_for_a_cause() {
    for packed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let mut port = server(&path);
        let raw = Raw::new(&mut port, &path, packed);
        raw.describe(TX, 0, BUFFERS, 12, 0);
        raw.describe(TX, 1, BUFFERS, 12 + 13, 0);
        raw.describe(TX, 2, BUFFERS, 12 + 14, 0);
        raw.offer(TX, &[0, 1, 2]);
        assert_eq!(port.receive(0, &mut Burst::new(4)), 1);
        let received = port.counters().received;
        assert_eq!((received.packets, received.bytes), (1, 14));
        assert_eq!(received.dropped(Cause::TooShort), 2);
    }
}

/// One thing that a driver could do, mostly near what is right.
fn scribble(raw: &Raw, random: &mut Random) {
    let ring = random.below(2) as u32;
    let slot = random.below(u64::from(SIZE)) as u16;
    match random.below(10) {
        0..4 => {
            let right = if ring == RX { DESC_WRITE } else { 0 };
            let mut flags = right | if random.below(4) == 0 { DESC_NEXT } else { 0 };
            if random.below(200) == 0 {
                flags ^= 1 << random.below(16);
            }
            let link = random.below(u64::from(SIZE)) as u16;
            let buffer = BUFFERS + random.below(48_900);
            raw.describe_linked(ring, slot, buffer, random.below(300) as u32, flags, link);
        }
        4..9 => raw.offer(ring, &[slot]),
        _ if random.below(10) > 0 => {}
        _ => {
            let offset = random.below(MEMORY_BYTES as u64 - 8);
            raw.write(offset, &random.next().to_le_bytes());
        }
    }
}

#[test]
fn whatever_a_driver_scribbles_the_port_goes_on_and_counts_right() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let mut handed_out = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let raw = Raw::new(&mut port, &path, seed % 2 == 1);
        for slot in 0..SIZE {
            raw.describe(TX, slot, BUFFERS, 100, 0);
            raw.describe(RX, slot, BUFFERS, 200, DESC_WRITE);
        }
        let mut burst = Burst::new(8);
        for _ in 0..200 {
            scribble(&raw, &mut random);
            handed_out += port.receive(0, &mut burst) as u64;
            let bytes: usize = burst.iter().map(|packet| packet.to_vec().len()).sum();
            assert_eq!(
                bytes,
                burst.iter().map(|packet| packet.len()).sum::<usize>()
            );
            port.transmit(0, &burst, 0);
        }
        assert_eq!(port.counters().received.packets, handed_out, "seed {seed}");
        drop(raw);
        until(&mut port, |port| {
            matches!(port.state(), State::Connecting(Some(_)))
        });
    }
    assert!(handed_out > 1_000, "{handed_out}");
}

#[test]
fn a_bell_that_is_full_and_would_wait_holds_nobody_up() {
    for packed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let mut port = server(&path);
        let raw = Raw::new(&mut port, &path, packed);
        // It was rung when the rings started.
        assert!(raw.bell.read().unwrap() > 0);
        fcntl(&raw.bell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        raw.bell.write(u64::MAX - 1).unwrap();
        raw.describe(TX, 0, BUFFERS, 76, 0);
        raw.offer(TX, &[0]);
        let before = port.counters().wakes;
        assert_eq!(port.receive(0, &mut Burst::new(4)), 1);
        assert_eq!(port.counters().wakes, before + 1);
    }
}
