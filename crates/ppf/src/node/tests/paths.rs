//! Peers that are asked if they live, and what they say of tunnels, where there are two workers.

use millrace_wire::gtpu::path::ErrorIndication;
use millrace_wire::gtpu::{ECHO_REQUEST, ECHO_RESPONSE, ERROR_INDICATION};

use super::*;
use crate::event::Event;
use crate::paths::{self, Supervision};

const PEERS: [(u16, Side, &str, &str); 2] = [
    (RADIO, Side::Radio, "192.0.2.9", "192.0.2.1"),
    (CORE, Side::Core, "198.51.100.9", "198.51.100.1"),
];

fn worlds() -> ([World; 2], BearerId) {
    let settings = Settings {
        supervision: Some(Supervision::default()),
        ..Settings::default()
    };
    let mut relay = None;
    let worlds = [0, 1].map(|worker| {
        let mut world = World::of(worker, 2);
        world.node = Node::with_settings(interfaces(), settings, worker, 2);
        relay = Some(bearers(&mut world.node).0);
        for (port, _, far, _) in PEERS {
            world.meet(port, far);
        }
        world.works.clear();
        world
    });
    (worlds, relay.unwrap())
}

/// What another worker has handed over is dealt with.
fn work(world: &mut World, port: u16, frame: &[u8]) {
    let mut burst = Burst::new(1);
    assert!(burst.push(frame));
    world.node.receive(port, &burst, true, &mut world.outs);
    world.collect();
}

fn long_message(kind: u8, sequence: u16, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16 + 4).to_be_bytes();
    let [high, low] = sequence.to_be_bytes();
    let start = [
        0x32, kind, length[0], length[1], 0, 0, 0, 0, high, low, 0, 0,
    ];
    [&start, body].concat()
}

#[test]
fn one_worker_asks_a_peer_and_the_answer_gets_to_it() {
    let (mut worlds, _) = worlds();
    let mut asked = Vec::new();
    for (worker, world) in worlds.iter_mut().enumerate() {
        for (port, frame) in world.poll() {
            let ethernet = Frame::parse(&frame).unwrap();
            if ethernet.kind != IPV4 {
                continue;
            }
            let (_, ip, _, message) = opened(port, &frame);
            assert_eq!((message[0], message[1]), (0x32, ECHO_REQUEST));
            let sequence = u16::from_be_bytes([message[8], message[9]]);
            asked.push((worker, port, ip.destination, sequence));
        }
    }
    assert_eq!(asked.len(), 2, "{asked:?}");
    for (worker, port, peer, sequence) in asked {
        assert_eq!(paths::asker(peer, 2), worker);
        let (_, side, far, own) = PEERS[usize::from(port)];
        let answer = long_message(ECHO_RESPONSE, sequence, &[14, 3]);
        let frame = datagram(port, far, own, &answer);
        assert!(worlds[1 - worker].come(port, &frame).is_empty());
        let handed = std::mem::take(&mut worlds[1 - worker].works);
        assert_eq!(handed, [(Whose::Worker(worker), frame.clone())]);
        let node = &mut worlds[1 - worker].node;
        assert_eq!(node.poll_event(), None, "it has asked nobody");
        work(&mut worlds[worker], port, &frame);
        let node = &mut worlds[worker].node;
        assert_eq!(node.poll_event(), Some(Event::PathUp(side, peer)));
        let path = node.function.bearers.paths();
        let mut path = path.filter(|path| path.side == side);
        let path = path.next().unwrap();
        assert_eq!((path.is_up, path.restart_counter), (Some(true), Some(3)));
        // One bearer has it on this side, or two; whose they are is the same.
        assert_eq!(path.tunnels, if side == Side::Core { 1 } else { 2 });
    }
}

#[test]
fn whose_tunnel_a_peer_has_lost_is_found_by_its_worker() {
    let (mut worlds, relay) = worlds();
    let owner = owner(relay);
    let lost = ErrorIndication {
        teid: 77,
        peer: address("198.51.100.9"),
    };
    let mut body = [0; 32];
    let length = lost.emit(&mut body).unwrap();
    let message = long_message(ERROR_INDICATION, 0, &body[..length]);
    let frame = datagram(CORE, "198.51.100.9", "198.51.100.1", &message);
    let other = &mut worlds[1 - owner];
    let counted = |world: &World| {
        let counts = &world.node.counts()[usize::from(CORE)];
        (counts.made, counts.consumed)
    };
    let (made, consumed) = counted(other);
    assert!(other.come(CORE, &frame).is_empty());
    let handed = std::mem::take(&mut other.works);
    assert_eq!(handed, [(Whose::Others, frame.clone())]);
    assert_eq!(counted(other), (made + 1, consumed + 1));
    work(&mut worlds[owner], CORE, &frame);
    for (worker, world) in worlds.iter_mut().enumerate() {
        world.poll();
        let event = (worker == owner).then_some(Event::Lost(relay, Side::Core));
        assert_eq!(world.node.poll_event(), event);
    }
}

#[test]
fn a_peer_whose_bearers_have_gone_is_asked_no_more() {
    let (mut worlds, relay) = worlds();
    let bearer = Bearer::new(tunnel("198.51.100.9", 77), tunnel("192.0.2.9", 88));
    let moved = Bearer::new(tunnel("198.51.100.8", 77), tunnel("192.0.2.9", 88));
    for world in &mut worlds {
        world.node.forget(relay, &bearer);
        put(&mut world.node, relay, moved.clone());
    }
    let peers = |worlds: &[World]| {
        let paths = worlds.iter().flat_map(|world| {
            let bearers = &world.node.function.bearers;
            bearers.paths().map(|path| path.address).collect::<Vec<_>>()
        });
        let mut peers: Vec<IpAddr> = paths.collect();
        peers.sort();
        peers
    };
    let both = [address("192.0.2.9"), address("198.51.100.8")];
    assert_eq!(peers(&worlds), both);
    for world in &mut worlds {
        world.node.forget(relay, &moved);
        world.node.remove(relay);
    }
    assert_eq!(peers(&worlds), both[..1]);
}

/// A bearer is changed: all know of it, and whoever has it does that.
fn change(worlds: &mut [World], id: BearerId, before: &Bearer, after: &Bearer) {
    for world in worlds {
        world.node.know_instead(id, before, after);
        if world.node.function.bearers.contains(id) {
            world.node.put(id, after.clone());
        }
    }
}

/// How often a peer was asked by each worker that asks it, at this time, and how many tunnels go there.
fn asked(worlds: &mut [World], peer: IpAddr, second: u64) -> Vec<(u64, u32)> {
    let mut asked = Vec::new();
    for world in worlds {
        world.node.set_time(second * 1_000_000_000);
        world.poll();
        let paths = world.node.function.bearers.paths();
        let paths = paths.filter(|path| path.address == peer);
        asked.extend(paths.map(|path| (path.requests, path.tunnels)));
    }
    asked
}

#[test]
fn a_peer_is_asked_as_before_when_its_only_bearer_is_changed() {
    let (mut worlds, relay) = worlds();
    let mut before = Bearer::new(tunnel("198.51.100.9", 77), tunnel("192.0.2.9", 88));
    // One is asked by the worker that has the bearer, and one by the other.
    for asker in [0, 1] {
        let mut peers = (20..30).map(|last| IpAddr::from([198, 51, 100, last]));
        let peer = peers.find(|peer| paths::asker(*peer, 2) == asker).unwrap();
        let second = 100 * (1 + asker as u64);
        let mut bearer = before.clone();
        bearer.core.address = peer;
        change(&mut worlds, relay, &before, &bearer);
        assert_eq!(asked(&mut worlds, peer, second), [(1, 1)]);
        assert_eq!(asked(&mut worlds, peer, second + 3), [(2, 1)], "again");
        let gone = before.core.address;
        assert_eq!(asked(&mut worlds, gone, second + 3), []);
        let mut shut = bearer.clone();
        shut.gates = [false; 2];
        change(&mut worlds, relay, &bearer, &shut);
        assert_eq!(asked(&mut worlds, peer, second + 4), [(2, 1)], "as before");
        before = shut;
    }
}
