//! What the dead leave undone: a back end its driver untold, and a front end its memory mapped.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

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
