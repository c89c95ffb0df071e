//! Ports in memory, and a switch whose turns a test takes.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millrace_port::{Burst, Cause, Counters, Offload, Offloads, Port, State};
use millrace_switch::{Config, PortReport, Switch, SwitchReport};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// What lies at the other end of a port.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    pub(crate) to_switch: VecDeque<(Vec<u8>, Offload)>,
    pub(crate) from_switch: Vec<(Vec<u8>, Offload)>,
    /// What the peer does by itself.
    pub(crate) offloads: Offloads,
    /// Packets that it has no room for, once it has so many.
    pub(crate) room: Option<usize>,
    /// What it sends it sends again and again.
    pub(crate) is_endless: bool,
    /// How long it takes to send something there.
    pub(crate) pause: Duration,
}

/// A port whose peer is the test.
pub(crate) struct MemoryPort {
    wire: Arc<Mutex<Wire>>,
    counters: Counters,
    bell: EventFd,
}

impl MemoryPort {
    /// A port, and what lies at its other end.
    pub(crate) fn new() -> (MemoryPort, Arc<Mutex<Wire>>) {
        let wire = Arc::new(Mutex::new(Wire::default()));
        let port = MemoryPort {
            wire: wire.clone(),
            counters: Counters::default(),
            bell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap(),
        };
        (port, wire)
    }
}

impl Port for MemoryPort {
    fn poll(&mut self, _: Instant) -> &State {
        &State::Connected
    }
    fn poll_at(&self) -> Option<Instant> {
        None
    }
    fn state(&self) -> &State {
        &State::Connected
    }
    fn receive_queues(&self) -> usize {
        1
    }
    fn transmit_queues(&self) -> usize {
        1
    }
    fn receive(&mut self, _: usize, burst: &mut Burst) -> usize {
        // What a program pushes can follow only when no packet of a port is there.
        *burst = Burst::new(32);
        let mut wire = self.wire.lock().unwrap();
        while !burst.is_full()
            && let Some((packet, offload)) = wire.to_switch.pop_front()
        {
            assert!(burst.push(&packet));
            burst.set_offload(burst.len() - 1, offload);
            if wire.is_endless {
                wire.to_switch.push_back((packet.clone(), offload));
            }
            self.counters.received.pass(1, packet.len() as u64);
        }
        burst.len()
    }
    fn release(&mut self, _: usize) {}
    fn transmit(&mut self, _: usize, burst: &Burst, first: usize) -> usize {
        let pause = self.wire.lock().unwrap().pause;
        std::thread::sleep(pause);
        let mut wire = self.wire.lock().unwrap();
        let mut taken = 0;
        for packet in burst.iter().skip(first) {
            if wire.room.is_some_and(|room| wire.from_switch.len() >= room) {
                break;
            }
            assert!(
                wire.offloads.takes(&packet.offload()),
                "{:?}",
                packet.offload()
            );
            let tally = &mut self.counters.transmitted;
            tally.pass(1, packet.len() as u64);
            wire.from_switch.push((packet.to_vec(), packet.offload()));
            taken += 1;
        }
        taken
    }
    fn offloads(&self) -> Offloads {
        self.wire.lock().unwrap().offloads
    }
    fn give_up(&mut self, _: usize, burst: &Burst, first: usize) {
        let lost = burst.len() - first;
        self.counters.transmitted.drop(Cause::Full, lost as u64);
    }
    fn arm(&mut self) -> bool {
        self.wire.lock().unwrap().to_switch.is_empty()
    }
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
    fn counters(&self) -> Counters {
        self.counters
    }
}

/// A switch without threads, whose ports `memif.path = "/test"` are in memory.
pub(crate) struct Rig {
    pub(crate) switch: Switch,
    wires: Vec<(String, Arc<Mutex<Wire>>)>,
    pub(crate) now: Instant,
}

/// What a configuration says of ports comes first: the rest names them.
pub(crate) fn rig(text: &str) -> Rig {
    let config = Config::parse(text).unwrap_or_else(|what| panic!("{what}\n{text}"));
    let mut empty = config.clone();
    empty.port.clear();
    empty.flow.clear();
    empty.mirror.clear();
    let switch = Switch::inline(&empty).unwrap();
    let mut rig = Rig {
        switch,
        wires: Vec::new(),
        now: Instant::now(),
    };
    for port in config.port {
        rig.add(port);
    }
    for flow in config.flow {
        rig.switch.add_flow(flow).unwrap();
    }
    for mirror in config.mirror {
        rig.switch.add_mirror(mirror).unwrap();
    }
    rig
}

/// A `[[port]]` in memory.
pub(crate) fn port(name: &str, rest: &str) -> String {
    format!("[[port]]\nname = \"{name}\"\nmemif.path = \"/test\"\n{rest}\n")
}

impl Rig {
    pub(crate) fn add(&mut self, config: millrace_switch::PortConfig) {
        let is_memory = config
            .memif
            .as_ref()
            .is_some_and(|one| one.path.ends_with("test"));
        if !is_memory {
            return self.switch.add_port(config).unwrap();
        }
        let (port, wire) = MemoryPort::new();
        self.wires.push((config.name.clone(), wire));
        self.switch.attach(config, Box::new(port)).unwrap();
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.switch.remove_port(name).unwrap();
        self.wires.retain(|wire| wire.0 != name);
    }

    pub(crate) fn wire(&self, name: &str) -> std::sync::MutexGuard<'_, Wire> {
        let wire = self.wires.iter().find(|wire| wire.0 == name);
        wire.unwrap().1.lock().unwrap()
    }

    /// A frame comes by a port, and is dealt with.
    pub(crate) fn inject(&mut self, name: &str, frame: &[u8]) {
        self.inject_with(name, frame, Offload::NONE);
        self.settle();
    }

    pub(crate) fn inject_with(&mut self, name: &str, frame: &[u8], offload: Offload) {
        self.wire(name)
            .to_switch
            .push_back((frame.to_vec(), offload));
    }

    /// Turns until nothing is left to do.
    pub(crate) fn settle(&mut self) {
        while self.switch.turn(self.now) {}
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// All that has left, as (port, frame), in the order of ports.
    pub(crate) fn collect(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut left = Vec::new();
        for (name, wire) in &self.wires {
            let frames = std::mem::take(&mut wire.lock().unwrap().from_switch);
            left.extend(frames.into_iter().map(|frame| (name.clone(), frame.0)));
        }
        left
    }

    /// Where a frame that comes by a port goes, as it is.
    pub(crate) fn ways(&mut self, name: &str, frame: &[u8]) -> Vec<String> {
        self.inject(name, frame);
        let left = self.collect();
        for (port, copy) in &left {
            assert_eq!(copy, frame, "at {port}");
        }
        left.into_iter().map(|frame| frame.0).collect()
    }

    pub(crate) fn report(&mut self) -> SwitchReport {
        self.switch.report().unwrap()
    }

    pub(crate) fn port(&mut self, name: &str) -> PortReport {
        let report = self.report();
        let port = report.ports.into_iter().find(|port| port.name == name);
        port.unwrap()
    }

    /// Packets that were dropped at a port for a cause.
    pub(crate) fn dropped(&mut self, name: &str, cause: &str) -> u64 {
        let port = self.port(name);
        let drops = port
            .counters
            .drops
            .iter()
            .filter(|drop| drop.cause == cause);
        drops.map(|drop| drop.packets).sum()
    }

    /// What came and was made is what left and was dropped, exactly.
    pub(crate) fn check_sums(&mut self) {
        let report = self.report();
        let (mut came, mut went) = (0, 0);
        for port in &report.ports {
            let counters = &port.counters;
            came += counters.entered + counters.made;
            went += counters.transmitted_packets
                + counters.dropped("transmit")
                + counters.dropped("switch");
        }
        for mirror in &report.mirrors {
            let lost: u64 = mirror.drops.iter().map(|drop| drop.packets).sum();
            went += mirror.packets + lost;
        }
        assert_eq!(came, went, "{report:#?}");
    }
}

/// A frame between stations of these numbers; 0 is nobody, 255 everybody, 200 to 254 groups.
pub(crate) fn frame(to: u8, from: u8, tag: Option<u16>, serial: u32) -> Vec<u8> {
    let mut bytes = mac(to).to_vec();
    bytes.extend(mac(from));
    if let Some(tag) = tag {
        bytes.extend([0x81, 0]);
        bytes.extend(tag.to_be_bytes());
    }
    bytes.extend([0x88, 0xb5]);
    bytes.extend(serial.to_be_bytes());
    bytes.resize(60 + tag.map_or(0, |_| 4), 0);
    bytes
}

pub(crate) fn mac(number: u8) -> [u8; 6] {
    match number {
        0 => [0; 6],
        255 => [0xff; 6],
        200.. => [0x01, 0x00, 0x5e, 0, 0, number],
        _ => [2, 0, 0, 0, 0, number],
    }
}

/// A generator that a seed determines.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }
}
