//! What a front end can make us do at once has a bound: messages, and descriptors of chains that are as long as its ring allows.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use millrace_port::vhost_user::{Config, Role, VhostUser};
use millrace_port::{Burst, Cause, Port};
use millrace_shm::sys::create_sealed;
use millrace_wire::vhost_user::{Region, Request, Table, VringAddress, VringState};
use millrace_wire::virtio::{DESC_AVAIL, DESC_INDIRECT, DESC_NEXT, DESC_WRITE, WRAP};

use crate::raw::{self, GUEST, RX, Raw, TX, USER, bell, server, until, why};

/// A ring whose chains can be longer than any that is meant well.
const LARGE: u16 = 8192;
const MEMORY_BYTES: usize = 1 << 20;
const DRIVER: u64 = 0x2_0000;
const DEVICE: u64 = 0x3_0000;
/// Where the one table is that all chains have.
const TABLE: u64 = 0x8_0000;
const BUFFER: u64 = 0x7_0000;

/// A driver with one large ring.
fn large(port: &mut VhostUser, path: &Path, index: u32, packed: bool) -> Raw {
    let raw = Raw {
        socket: UnixStream::connect(path).unwrap(),
        memory: create_sealed(c"large", MEMORY_BYTES, 0).unwrap(),
        packed,
        bell: bell(),
    };
    raw.say_features(0);
    let region = Region {
        bytes: MEMORY_BYTES as u64,
        ..Raw::region()
    };
    let table = Table::new(&[region]).unwrap();
    raw.say(&Request::SetMemTable(table), &[raw.memory.as_fd()]);
    let state = |number| VringState { index, number };
    let address = VringAddress {
        index,
        flags: 0,
        descriptors: USER,
        used: USER + DEVICE,
        available: USER + DRIVER,
        log: 0,
    };
    raw.say(&Request::SetVringNum(state(u32::from(LARGE))), &[]);
    if packed {
        raw.say(&Request::SetVringBase(state(u32::from(WRAP))), &[]);
    }
    raw.say(&Request::SetVringAddr(address), &[]);
    raw.say(&Request::SetVringKick(Raw::fd(index)), &[raw.bell.as_fd()]);
    raw.say_ring_enabled(index, true);
    until(port, |port| {
        port.receive_queues() + port.transmit_queues() == 1
    });
    raw
}

/// Makes all chains available, each with the same table of so many descriptors, of which the first has so many bytes, and the others none.
fn fill(raw: &Raw, chains: u16, entries: u16, bytes: u32, flags: u16) {
    for entry in 0..entries {
        let next = if entry + 1 < entries { DESC_NEXT } else { 0 };
        let length = if entry == 0 { bytes } else { 0 };
        let at = TABLE + u64::from(entry) * 16;
        raw.describe_at(at, BUFFER, length, flags | next, entry + 1);
    }
    for chain in 0..chains {
        let at = u64::from(chain) * 16;
        raw.describe_at(at, TABLE, u32::from(entries) * 16, DESC_INDIRECT, 0);
        raw.write(DRIVER + 4 + 2 * u64::from(chain), &chain.to_le_bytes());
    }
    raw.write(DRIVER + 2, &chains.to_le_bytes());
}

#[test]
fn a_packet_of_too_many_buffers_ends_the_connection() {
    for index in [RX, TX] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let mut port = server(&path);
        let raw = large(&mut port, &path, index, false);
        let flags = if index == RX { DESC_WRITE } else { 0 };
        fill(&raw, 1, 5000, 76, flags);
        let mut burst = Burst::new(1);
        if index == RX {
            assert!(burst.push(&[0; 300]));
            assert_eq!(port.transmit(0, &burst, 0), 0);
        } else {
            assert_eq!(port.receive(0, &mut burst), 0);
        }
        port.poll(Instant::now());
        assert_eq!(why(&port), "a packet is in more than 4096 buffers");
    }
}

#[test]
fn long_chains_that_are_dropped_are_looked_at_a_few_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let raw = large(&mut port, &path, TX, false);
    // Of one byte, behind the header.
    fill(&raw, 1000, 4000, 13, 0);
    let mut burst = Burst::new(32);
    let mut before = 0;
    for _ in 0..20 {
        assert_eq!(port.receive(0, &mut burst), 0);
        let dropped = port.counters().received.dropped(Cause::TooShort);
        assert!((1..10).contains(&(dropped - before)), "{dropped}");
        before = dropped;
        assert!(!port.arm(), "there are more");
    }
}

#[test]
fn packets_that_are_dropped_are_taken_a_few_at_a_time() {
    for packed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let mut port = server(&path);
        let raw = large(&mut port, &path, TX, packed);
        for slot in 0..LARGE {
            // Of one byte, behind the header, but for the last.
            let bytes = if slot + 1 == LARGE { 76 } else { 13 };
            let flags = if packed { DESC_AVAIL } else { 0 };
            raw.describe_at(u64::from(slot) * 16, BUFFER, bytes, flags, slot);
            if !packed {
                raw.write(DRIVER + 4 + 2 * u64::from(slot), &slot.to_le_bytes());
            }
        }
        if !packed {
            raw.write(DRIVER + 2, &LARGE.to_le_bytes());
        }
        let mut burst = Burst::new(32);
        let mut before = 0;
        loop {
            assert!(!port.arm(), "there are more");
            let count = port.receive(0, &mut burst);
            let dropped = port.counters().received.dropped(Cause::TooShort);
            let more = dropped - before;
            assert!(more <= 256, "{more}");
            before = dropped;
            if count > 0 {
                break;
            }
            assert!(more > 0);
        }
        assert_eq!((burst.len(), before), (1, u64::from(LARGE) - 1));
        assert!(port.arm());
    }
}

#[test]
fn chains_without_room_hold_nobody_up() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let raw = large(&mut port, &path, RX, false);
    // Each has room for the header, so that a packet takes as many as there may be: a descriptor and a place in the table, and the table.
    fill(&raw, 4000, 1, 12, DESC_WRITE);
    let mut burst = Burst::new(32);
    while burst.push(&[0; 60_000]) {}
    assert_eq!(port.transmit(0, &burst, 0), 0);
    port.poll(Instant::now());
    assert_eq!(why(&port), "a packet is in more than 4096 buffers");
}

#[test]
fn messages_without_an_end_are_heard_a_few_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let raw = Raw::silent(&path, false);
    for _ in 0..150 {
        raw.say(&Request::SetOwner, &[]);
    }
    raw.say(&Request::SetFeatures(1 << 60), &[]);
    let wrong = "features 0x1000000000000000 cannot be";
    port.poll(Instant::now());
    assert_ne!(why(&port), wrong);
    until(&mut port, |port| why(port) == wrong);
}

#[test]
fn a_peer_brings_as_much_memory_as_it_may() {
    let place = tempfile::tempdir().unwrap();
    let mut config = Config::new(Role::Server, place.path().join("vhost.sock"));
    config.memory_bytes_max = 3 * 4096;
    let mut port = VhostUser::new(config.clone()).unwrap();
    let raw = Raw::silent(&config.path, false);
    raw.say_features(0);
    let region = |number: u64| Region {
        guest: GUEST + number * 8192,
        user: USER + number * 8192,
        bytes: 8192,
        offset: 0,
    };
    let fds = vec![raw.memory.as_fd(); 2];
    let regions = Table::new(&[region(0), region(1)]).unwrap();
    raw.say(&Request::SetMemTable(regions), &fds);
    until(&mut port, |port| {
        why(port) == "with a region of 8192 bytes there is more memory than memory_bytes_max, 12288"
    });
}

#[test]
fn regions_take_addresses_for_twice_the_memory_at_most() {
    let place = tempfile::tempdir().unwrap();
    let mut config = Config::new(Role::Server, place.path().join("vhost.sock"));
    config.memory_bytes_max = raw::MEMORY_BYTES as u64;
    for (count, is_taken) in [(2, true), (3, false)] {
        let mut port = VhostUser::new(config.clone()).unwrap();
        let raw = Raw::silent(&config.path, false);
        raw.say_features(0);
        // Each is the end of its file, all of which is mapped.
        let regions: Vec<_> = (0..count)
            .map(|number| Region {
                guest: GUEST + number * 4096,
                user: USER + number * 4096,
                bytes: 4096,
                offset: config.memory_bytes_max - 4096,
            })
            .collect();
        let fds = vec![raw.memory.as_fd(); regions.len()];
        raw.say(&Request::SetMemTable(Table::new(&regions).unwrap()), &fds);
        port.poll(Instant::now());
        port.poll(Instant::now());
        let wrong = why(&port).starts_with("a region of 4096 bytes at 0x102000 is not backed");
        assert_eq!(wrong, !is_taken, "{}", why(&port));
    }
}
