//! What a front end may do while packets pass: rings stop and go on, memory comes and goes, and no packet is lost or comes twice.

use std::io::Read;
use std::os::fd::AsFd;
use std::time::Instant;

use millrace_port::{Burst, Port, State};
use millrace_wire::vhost_user::{
    Answer, HEADER_BYTES, Header, PROTOCOL_CONFIGURE_MEM_SLOTS, PROTOCOL_REPLY_ACK, Request, Table,
    VringState,
};

use crate::raw::{BUFFERS, Raw, TX, server, until};

/// The next answer.
fn answer(raw: &mut Raw) -> Answer {
    let mut bytes = [0; HEADER_BYTES];
    raw.socket.read_exact(&mut bytes).unwrap();
    let header = Header::parse(bytes).unwrap();
    let mut payload = vec![0; header.bytes as usize];
    raw.socket.read_exact(&mut payload).unwrap();
    Answer::parse(header, &payload).unwrap()
}

/// A frame with a number, at a buffer of its own.
fn put(raw: &Raw, number: u16, length: u32) {
    let buffer = BUFFERS + u64::from(number) * 1024;
    let bytes: Vec<u8> = (0..length).map(|_| number as u8).collect();
    raw.write(buffer + 12, &bytes);
    raw.describe(TX, number, buffer, length + 12, 0);
    raw.offer(TX, &[number]);
}

fn numbers(burst: &Burst) -> Vec<u8> {
    burst.iter().map(|packet| packet.head()[0]).collect()
}

fn state(number: u32) -> VringState {
    VringState { index: TX, number }
}

#[test]
fn a_ring_that_stops_goes_on_where_it_was() {
    for (packed, length) in [(false, 64), (true, 64), (false, 500), (true, 500)] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let mut port = server(&path);
        let mut raw = Raw::new(&mut port, &path, packed);
        for number in 0..4 {
            put(&raw, number, length);
        }
        let mut burst = Burst::new(3);
        assert_eq!(port.receive(0, &mut burst), 3);
        raw.say(&Request::GetVringBase(state(0)), &[]);
        port.poll(Instant::now());
        let wanted = if packed { 0x8003_8003 } else { 3 };
        assert_eq!(answer(&mut raw), Answer::State(state(wanted)));
        assert_eq!((port.receive_queues(), port.receive(0, &mut burst)), (0, 0));
        put(&raw, 4, length);
        raw.say(&Request::SetVringBase(state(wanted)), &[]);
        raw.say(&Request::SetVringKick(Raw::fd(TX)), &[raw.bell.as_fd()]);
        until(&mut port, |port| port.receive_queues() == 1);
        let mut burst = Burst::new(8);
        assert_eq!(port.receive(0, &mut burst), 2);
        assert_eq!(numbers(&burst), [3, 4], "packed: {packed}");
        assert_eq!(port.counters().received.packets, 5);
    }
}

#[test]
fn a_back_end_that_comes_after_another_goes_on_where_it_was() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let raw = Raw::new(&mut port, &path, false);
    for number in 0..6 {
        put(&raw, number, 500);
    }
    let mut burst = Burst::new(2);
    assert_eq!(port.receive(0, &mut burst), 2);
    assert_eq!(port.receive(0, &mut burst), 2);
    // The second burst was not given back when it died.
    drop(port);
    assert_eq!(raw.used(TX), 2);
    let mut port = server(&path);
    let raw = Raw {
        socket: std::os::unix::net::UnixStream::connect(&path).unwrap(),
        ..raw
    };
    raw.say_features(0);
    raw.say_memory();
    raw.say_ring(TX);
    until(&mut port, |port| port.receive_queues() == 1);
    let mut burst = Burst::new(8);
    assert_eq!(port.receive(0, &mut burst), 4);
    assert_eq!(numbers(&burst), [2, 3, 4, 5]);
}

#[test]
fn memory_comes_and_goes_while_packets_pass() {
    for packed in [false, true] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vhost.sock");
        let mut port = server(&path);
        let mut raw = Raw::silent(&path, packed);
        raw.say_features(0);
        let protocol = PROTOCOL_CONFIGURE_MEM_SLOTS | PROTOCOL_REPLY_ACK;
        raw.say(&Request::SetProtocolFeatures(protocol), &[]);
        raw.say(&Request::AddMemReg(Raw::region()), &[raw.memory.as_fd()]);
        raw.say_ring(TX);
        until(&mut port, |port| port.receive_queues() == 1);
        put(&raw, 0, 500);
        put(&raw, 1, 500);
        let mut held = Burst::new(1);
        assert_eq!(port.receive(0, &mut held), 1);
        // Another region, and back to one, with a burst in hand.
        let other = Raw::silent(&path, packed);
        let mut region = Raw::region();
        region.guest += 1 << 32;
        region.user += 1 << 32;
        let fds = [other.memory.as_fd()];
        raw.say_bytes(Request::AddMemReg(region).emit(true).bytes(), &fds);
        raw.say_bytes(Request::RemMemReg(region).emit(true).bytes(), &[]);
        let table = Request::SetMemTable(Table::new(&[Raw::region()]).unwrap());
        raw.say_bytes(table.emit(true).bytes(), &[raw.memory.as_fd()]);
        port.poll(Instant::now());
        for _ in 0..3 {
            assert_eq!(answer(&mut raw), Answer::Number(0));
        }
        assert_eq!(held.get(0).unwrap().to_vec(), [0; 500]);
        let mut burst = Burst::new(8);
        assert_eq!(port.receive(0, &mut burst), 1);
        assert_eq!(burst.get(0).unwrap().to_vec(), [1; 500]);
    }
}

#[test]
fn a_ring_that_is_disabled_keeps_what_is_in_it() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let raw = Raw::new(&mut port, &path, false);
    put(&raw, 0, 64);
    raw.say(&Request::SetVringEnable(state(0)), &[]);
    until(&mut port, |port| port.receive_queues() == 0);
    assert_eq!(port.receive(0, &mut Burst::new(8)), 0);
    assert!(
        matches!(port.state(), State::Connected),
        "the other ring runs"
    );
    raw.say(&Request::SetVringEnable(state(1)), &[]);
    until(&mut port, |port| port.receive_queues() == 1);
    assert_eq!(port.receive(0, &mut Burst::new(8)), 1);
}

#[test]
fn a_failure_is_answered_before_the_connection_ends() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("vhost.sock");
    let mut port = server(&path);
    let mut raw = Raw::silent(&path, false);
    raw.say_features(0);
    raw.say(&Request::SetProtocolFeatures(PROTOCOL_REPLY_ACK), &[]);
    let table = Request::SetMemTable(Table::new(&[Raw::region()]).unwrap());
    raw.say_bytes(table.emit(true).bytes(), &[raw.bell.as_fd()]);
    port.poll(Instant::now());
    assert_eq!(answer(&mut raw), Answer::Number(1));
    assert!(raw.is_closed());
}
