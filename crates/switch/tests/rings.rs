//! A ring as a port of a switch with its threads: the agent brings the switch and a program together.

#[path = "../../port/tests/rig/agent.rs"]
mod agent;
mod rig;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent::Running;
use millrace_port::memif::{self, Memif, Role};
use millrace_port::ring::{self, Ring, Side};
use millrace_port::{Burst, Port, State};
use millrace_switch::{Config, Switch};
use rig::frame;
use tempfile::TempDir;

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Packets that are under way at most: no ring is full.
const WINDOW: u32 = 256;

fn socket(place: &TempDir) -> PathBuf {
    place.path().join("agent.sock")
}

/// A switch with a memif `m` and a ring `r`.
fn config(place: &TempDir) -> Config {
    let memif = place.path().join("m.sock");
    let (memif, agent) = (memif.display(), socket(place));
    let agent = agent.display();
    let text = format!(
        "[[port]]\nname = \"m\"\nmemif.path = \"{memif}\"\n\
         [[port]]\nname = \"r\"\nring = {{ name = \"tests/r\", side = \"second\", agent = \"{agent}\", slots = 512 }}\n"
    );
    Config::parse(&text).unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "in vain: until {what}");
        std::thread::yield_now();
    }
}

fn connected(port: &mut dyn Port) {
    until("it is connected", || {
        matches!(port.poll(Instant::now()), State::Connected)
    });
}

/// Sends numbered frames from one to another; all arrive, in order.
fn pass(from: (&mut dyn Port, u8), to: (&mut dyn Port, u8), count: u32) {
    let ((from, source), (to, target)) = (from, to);
    let (mut one, mut burst) = (Burst::new(1), Burst::new(32));
    let (mut sent, mut arrived) = (0, 0);
    until("all have arrived", || {
        if sent < count && sent - arrived < WINDOW {
            one.clear();
            assert!(one.push(&frame(target, source, None, sent)));
            sent += from.transmit(0, &one, 0) as u32;
        }
        to.receive(0, &mut burst);
        for packet in burst.iter() {
            assert_eq!(packet.to_vec(), frame(target, source, None, arrived));
            arrived += 1;
        }
        arrived == count
    });
}

fn state(switch: &mut Switch, name: &str) -> String {
    let report = switch.report().unwrap();
    let port = report.ports.into_iter().find(|port| port.name == name);
    port.unwrap().state
}

#[test]
fn packets_pass_each_way_and_the_next_program_finds_the_port_as_it_was() {
    let place = tempfile::tempdir().unwrap();
    let agent = Running::start(&socket(&place));
    let mut switch = Switch::start(&config(&place)).unwrap();
    let path = place.path().join("m.sock");
    let mut memif = Memif::new(memif::Config::new(Role::Client, path)).unwrap();
    connected(&mut memif);
    let mut there = ring::Config::new("tests/r", Side::First);
    there.agent = Some(socket(&place));
    for life in 1..=2 {
        let mut ring = Ring::new(&there).unwrap();
        connected(&mut ring);
        until("the switch has seen it", || {
            state(&mut switch, "r") == "connected"
        });
        pass((&mut ring, 2), (&mut memif, 1), 10_000);
        pass((&mut memif, 1), (&mut ring, 2), 10_000);
        let report = switch.report().unwrap();
        let port = report.ports.iter().find(|port| port.name == "r").unwrap();
        assert_eq!(port.kind, "ring");
        let counters = &port.counters;
        let passed = (counters.received_packets, counters.transmitted_packets);
        assert_eq!(passed, (10_000 * life, 10_000 * life), "{counters:?}");
        assert_eq!((counters.connections, counters.drops.len()), (life, 0));
        drop(ring);
        until("the switch misses it", || {
            state(&mut switch, "r") == "connecting: the peer has gone"
        });
    }
    drop((switch, memif, agent));
}

#[test]
fn without_an_agent_there_is_no_such_port() {
    let place = tempfile::tempdir().unwrap();
    let refused = Switch::start(&config(&place)).unwrap_err();
    assert!(
        refused.contains("port \"r\"") && refused.contains("no agent answers"),
        "{refused}"
    );
}
