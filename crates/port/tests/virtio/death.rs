//! What the dead leave undone: a back end its driver untold, and a front end its memory mapped and its packets unread.

use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use millrace_port::{Burst, Port};
use millrace_wire::vhost_user::Request;
use nix::sys::stat::fstat;

use crate::raw::{BUFFERS, Raw, TX, bell, server, until};

/// The same driver, for the next back end.
fn again(raw: Raw, path: &Path) -> Raw {
    Raw {
        socket: UnixStream::connect(path).unwrap(),
        ..raw
    }
}

#[test]
fn a_driver_is_told_of_what_the_dead_gave_back_and_did_not_tell() {
    for packed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let mut port = server(&path);
        let raw = Raw::new(&mut port, &path, packed);
        // Whatever was told so far.
        let _ = raw.bell.read();
        drop(port);
        let mut port = server(&path);
        let raw = again(raw, &path);
        raw.say_features(0);
        raw.say_memory();
        raw.say_ring(TX);
        until(&mut port, |port| port.receive_queues() == 1);
        assert!(raw.bell.read().unwrap() > 0, "packed: {packed}");
        // QEMU gives the bell that counts only when the ring runs.
        let bell = bell();
        raw.say(&Request::SetVringCall(Raw::fd(TX)), &[bell.as_fd()]);
        raw.say_ring_enabled(TX, false);
        until(&mut port, |port| port.receive_queues() == 0);
        assert_eq!(bell.read(), Ok(1), "packed: {packed}");
    }
}

fn is_mapped(memory: &OwnedFd) -> bool {
    let inode = fstat(memory).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut lines = maps.lines().filter(|line| line.contains("memfd:"));
    lines.any(|line| line.split_whitespace().nth(4) == Some(&inode))
}

#[test]
fn memory_of_a_dead_front_end_is_not_kept_by_a_burst() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let raw = Raw::new(&mut port, &path, false);
    raw.describe(TX, 0, BUFFERS, 1012, 0);
    raw.offer(TX, &[0]);
    let mut burst = Burst::new(4);
    assert_eq!(port.receive(0, &mut burst), 1);
    let Raw { socket, memory, .. } = raw;
    drop(socket);
    until(&mut port, |port| port.receive_queues() == 0);
    // What is in hand is there still.
    assert!(is_mapped(&memory));
    assert_eq!(burst.get(0).unwrap().to_vec(), [0; 1000]);
    assert_eq!(port.receive(0, &mut burst), 0);
    assert!(!is_mapped(&memory));
}

#[test]
fn packets_of_a_dead_front_end_are_received_before_the_next_one_has_the_port() {
    for packed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let mut port = server(&path);
        let raw = Raw::new(&mut port, &path, packed);
        for chain in 0..3 {
            raw.describe(TX, chain, BUFFERS, 1012, 0);
        }
        raw.offer(TX, &[0, 1, 2]);
        let Raw { socket, memory, .. } = raw;
        drop(socket);
        // The next one knocks before the port has heard of that.
        let next = Raw::silent(&path, packed);
        let mut burst = Burst::new(2);
        let mut sent = Burst::new(1);
        assert!(sent.push(&[0; 64]));
        for count in [2, 1] {
            port.poll(Instant::now());
            assert_eq!(port.transmit(0, &sent, 0), 0, "nobody would read it");
            assert_eq!(port.receive(0, &mut burst), count, "packed: {packed}");
        }
        next.say_features(0);
        next.say_memory();
        next.say_ring(TX);
        until(&mut port, |port| port.counters().connections == 2);
        assert_eq!(port.receive(0, &mut burst), 0);
        assert!(!is_mapped(&memory));
    }
}

#[test]
fn packets_are_received_of_who_died_before_its_ring_was_seen() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let raw = Raw::silent(&path, false);
    raw.say_features(0);
    raw.say_memory();
    raw.say_ring(TX);
    raw.describe(TX, 0, BUFFERS, 1012, 0);
    raw.offer(TX, &[0]);
    drop(raw.socket);
    until(&mut port, |port| port.receive_queues() == 1);
    assert_eq!(port.receive(0, &mut Burst::new(2)), 1);
}

#[test]
fn whoever_adds_packets_for_a_dead_front_end_does_not_keep_its_port() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let raw = Raw::new(&mut port, &path, false);
    raw.describe(TX, 0, BUFFERS, 1012, 0);
    raw.offer(TX, &[0]);
    raw.socket.shutdown(Shutdown::Both).unwrap();
    let begun = Instant::now();
    let mut burst = Burst::new(1);
    // Never read, and so there for ever.
    for after_ms in [0, 99] {
        port.poll(begun + Duration::from_millis(after_ms));
        assert_eq!(port.receive_queues(), 1);
    }
    port.poll(begun + Duration::from_millis(101));
    assert_eq!(port.receive(0, &mut burst), 0);
    assert_eq!(port.receive_queues(), 0);
}
