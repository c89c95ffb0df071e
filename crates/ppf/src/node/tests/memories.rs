//! Packets that lie in the memories of several peers, and leave by one port.

use std::time::{Duration, Instant};

use millrace_port::memif::{Config, Memif, Role};
use millrace_port::{Port, State};
use millrace_wire::gtpu::Message;

use super::*;
use crate::bearer::Flows;

/// Where packets come from: a peer, and the port that has its memory.
struct Source {
    peer: Memif,
    port: Memif,
    _place: tempfile::TempDir,
}

impl Source {
    fn new() -> Source {
        let place = tempfile::tempdir().unwrap();
        let make = |role| Memif::new(Config::new(role, place.path().join("memif.sock"))).unwrap();
        let (mut port, mut peer) = (make(Role::Server), make(Role::Client));
        let until = Instant::now() + Duration::from_secs(30);
        while [&mut port, &mut peer]
            .map(|end| !matches!(end.poll(Instant::now()), State::Connected))
            .contains(&true)
        {
            assert!(Instant::now() < until, "they do not meet");
            std::thread::yield_now();
        }
        Source {
            peer,
            port,
            _place: place,
        }
    }

    /// Frames as they come by the port, where they lie in the peer's memory.
    fn burst(&mut self, frames: &[Vec<u8>]) -> Burst {
        let mut sent = Burst::new(frames.len());
        assert!(frames.iter().all(|frame| sent.push(frame)));
        assert_eq!(self.peer.transmit(0, &sent, 0), frames.len());
        let mut burst = Burst::new(frames.len());
        assert_eq!(self.port.receive(0, &mut burst), frames.len());
        burst
    }
}

/// A world in which both peers' packets go to one station, with a QoS flow's container, and one more of whose station nobody knows.
fn world() -> (World, [BearerId; 2]) {
    let mut world = World::new();
    let (id, _) = bearers(&mut world.node);
    let mut bearer = Bearer::new(tunnel("198.51.100.9", 77), tunnel("192.0.2.9", 88));
    bearer.flows = [Flows::Set(5), Flows::Set(5)];
    world.node.put(id, bearer);
    let far = BearerId::of(0xc02).0;
    let bearer = Bearer::new(tunnel("198.51.100.8", 78), tunnel("192.0.2.9", 89));
    world.node.put(far, bearer);
    world.meet(CORE, "198.51.100.9");
    (world, [id, far])
}

/// A message of a bearer with each of these users' packets.
fn messages(id: BearerId, users: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let message = |user: &Vec<u8>| {
        let message = g_pdu(id.teid(Side::Radio), user);
        datagram(RADIO, "192.0.2.9", "192.0.2.1", &message)
    };
    users.iter().map(message).collect()
}

/// Users' packets of so many bytes.
fn users(bytes: &[usize]) -> Vec<Vec<u8>> {
    let user = |bytes: &usize| inner("10.0.0.1", "8.8.8.8", bytes - 20);
    bytes.iter().map(user).collect()
}

impl World {
    /// A burst comes, and is sent as a worker does it, which clears what is not empty; returns the users' packets that left.
    fn relay(&mut self, burst: &Burst) -> Vec<Vec<u8>> {
        let done = self.node.receive(RADIO, burst, false, &mut self.outs);
        assert_eq!(done, burst.len());
        let out = &mut self.outs.ports[usize::from(CORE)];
        let left = out.iter().map(|packet| {
            let frame = packet.to_vec();
            let (.., message) = opened(CORE, &frame);
            Message::parse(message).unwrap().body.to_vec()
        });
        let left = left.collect();
        if !out.is_empty() {
            out.clear();
        }
        left
    }
}

#[test]
fn a_burst_leaves_whole_behind_one_of_another_memory() {
    for has_express in [true, false] {
        let mut sources = [Source::new(), Source::new()];
        let (mut world, [id, _]) = world();
        world.node.has_express = has_express;
        // All of the first of them is in its frame's head, and not in that of the frame that leaves.
        for bytes in [&[900, 900][..], &[73, 900, 400, 73, 900], &[73], &[900]] {
            for source in &mut sources {
                let users = users(bytes);
                let burst = source.burst(&messages(id, &users));
                assert_eq!(world.relay(&burst), users);
            }
        }
        assert_eq!(world.dropped(RADIO, LinkCause::NoRoom), 0);
    }
}

#[test]
fn what_waits_for_a_station_does_not_tie_a_port_to_its_memory() {
    let mut sources = [Source::new(), Source::new()];
    let (mut world, ids) = world();
    let users = users(&[900, 400]);
    let [far, near] = [1, 0].map(|which| messages(ids[which], &users));
    assert!(world.relay(&sources[0].burst(&far)).is_empty());
    assert_eq!(world.relay(&sources[1].burst(&near)), users);
    assert_eq!(world.hear(CORE, "198.51.100.8").len(), 2, "they waited");
}

#[test]
fn a_question_leaves_beside_what_the_function_sends_by_itself() {
    let mut source = Source::new();
    let (mut world, [near, far]) = world();
    let long = users(&[900]);
    assert_eq!(world.relay(&source.burst(&messages(near, &long))), long);
    assert!(world.relay(&source.burst(&messages(far, &long))).is_empty());
    assert!(world.node.function.end_marker(near, Side::Core));
    let left = world.poll();
    let kinds = left
        .iter()
        .map(|(_, frame)| Frame::parse(frame).unwrap().kind);
    assert_eq!(kinds.collect::<Vec<_>>(), [IPV4, ARP]);
    let (given, taken) = world.books();
    assert_eq!(given, taken + 1 + left.len() as u64 + 1, "one waits");
}
