//! A switch with its threads, between memif ports, which are at the other end in this process.

mod rig;

use std::path::Path;
use std::time::{Duration, Instant};

use millrace_port::memif::{self, Memif, Role};
use millrace_port::pcap::{Format, Link, Pcap};
use millrace_port::{Burst, Offload, Port, State};
use millrace_switch::{Config, Switch, SwitchReport};
use rig::{MemoryPort, Wire, frame};

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Packets that are under way at most: no ring is full.
const WINDOW: u32 = 256;

fn memif_port(place: &Path, name: &str, rest: &str) -> String {
    let path = place.join(name);
    format!(
        "[[port]]\nname = \"{name}\"\nmemif.path = \"{}\"\n{rest}\n",
        path.display()
    )
}

fn start(text: &str) -> Switch {
    let config = Config::parse(text).unwrap_or_else(|what| panic!("{what}\n{text}"));
    Switch::start(&config).unwrap()
}

/// The peer of a port of the switch.
struct Peer(Memif);

impl Peer {
    fn new(place: &Path, name: &str) -> Peer {
        let mut peer =
            Peer(Memif::new(memif::Config::new(Role::Client, place.join(name))).unwrap());
        wait(|| matches!(peer.0.poll(Instant::now()), State::Connected));
        peer
    }

    fn send(&mut self, frame: &[u8]) {
        let mut burst = Burst::new(1);
        assert!(burst.push(frame));
        wait(|| self.0.transmit(0, &burst, 0) == 1);
    }

    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut burst = Burst::new(32);
        self.0.receive(0, &mut burst);
        burst.iter().map(|packet| packet.to_vec()).collect()
    }

    fn receive_one(&mut self) -> Vec<u8> {
        let mut frames = Vec::new();
        wait(|| {
            frames = self.receive();
            !frames.is_empty()
        });
        frames.remove(0)
    }
}

fn wait(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(
            begin.elapsed() < PATIENCE,
            "what was waited for did not come"
        );
        std::thread::yield_now();
    }
}

/// Sends numbered frames from one peer to another; all arrive, in order. `meanwhile` happens now and then.
fn pass(from: &mut Peer, to: &mut Peer, count: u32, mut meanwhile: impl FnMut(u32)) {
    let (mut sent, mut arrived) = (0, 0);
    let begin = Instant::now();
    while arrived < count {
        if sent < count && sent - arrived < WINDOW {
            from.send(&frame(2, 1, None, sent));
            sent += 1;
            if sent.is_multiple_of(500) {
                meanwhile(sent);
            }
        }
        for got in to.receive() {
            assert_eq!(got, frame(2, 1, None, arrived));
            arrived += 1;
        }
        assert!(begin.elapsed() < PATIENCE, "{sent} sent, {arrived} arrived");
    }
}

/// Has the switch know both peers.
fn introduce(one: &mut Peer, other: &mut Peer) {
    one.send(&frame(255, 1, None, 0));
    other.receive_one();
    other.send(&frame(1, 2, None, 0));
    one.receive_one();
}

fn packets(report: &SwitchReport, name: &str) -> (u64, u64) {
    let port = report.ports.iter().find(|port| port.name == name).unwrap();
    (
        port.counters.received_packets,
        port.counters.transmitted_packets,
    )
}

#[test]
fn between_two_peers_all_arrive_in_order_by_one_worker_and_by_two() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for (workers, rest) in [("", ""), ("processors = [0, 1]\n", "worker = 1")] {
        if !workers.is_empty() && processors < 2 {
            println!("skipped: two workers need two processors");
            continue;
        }
        let place = tempfile::tempdir().unwrap();
        let text = memif_port(place.path(), "a", "") + &memif_port(place.path(), "b", rest);
        let mut switch = start(&format!("{workers}{text}"));
        let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(place.path(), name));
        introduce(&mut a, &mut b);
        pass(&mut a, &mut b, 20_000, |_| {});
        let report = switch.report().unwrap();
        assert_eq!(packets(&report, "a"), (20_001, 1));
        assert_eq!(packets(&report, "b"), (1, 20_001));
        assert!(
            report
                .ports
                .iter()
                .all(|port| port.counters.drops.is_empty())
        );
    }
}

#[test]
fn changes_meanwhile_cost_no_packet() {
    let place = tempfile::tempdir().unwrap();
    let text = memif_port(place.path(), "a", "") + &memif_port(place.path(), "b", "");
    let mut switch = start(&text);
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(place.path(), name));
    introduce(&mut a, &mut b);
    let capture = place.path().join("capture");
    pass(&mut a, &mut b, 20_000, |sent| {
        let parse = |text: String| Config::parse(&text).unwrap();
        if (sent / 500).is_multiple_of(2) {
            let more = parse(memif_port(place.path(), "c", "vlan.access = 9"));
            switch.add_port(more.port[0].clone()).unwrap();
            let flow = "[[flow]]\nname = \"f\"\nin = \"a\"\nout = [\"b\"]\n".to_owned();
            switch.add_flow(parse(flow).flow.remove(0)).unwrap();
            let mirror = format!("[[mirror]]\nname = \"m\"\nfile = \"{}\"", capture.display());
            switch.add_mirror(parse(mirror).mirror.remove(0)).unwrap();
        } else if sent > 500 {
            switch.remove_mirror("m").unwrap();
            switch.remove_flow("f").unwrap();
            switch.remove_port("c").unwrap();
        }
    });
    let report = switch.report().unwrap();
    assert_eq!(packets(&report, "b").1, 20_001);
}

#[test]
fn a_switch_with_nothing_to_do_sleeps_and_is_woken() {
    let place = tempfile::tempdir().unwrap();
    let text = memif_port(place.path(), "a", "") + &memif_port(place.path(), "b", "");
    let mut switch = start(&text);
    let [mut a, mut b] = ["a", "b"].map(|name| Peer::new(place.path(), name));
    introduce(&mut a, &mut b);
    let mut turns = || -> u64 {
        let report = switch.report().unwrap();
        report.workers.iter().map(|worker| worker.turns).sum()
    };
    // Until it sleeps: from one look to the next, there are the turns only that looking takes.
    wait(|| {
        let before = turns();
        std::thread::sleep(Duration::from_millis(100));
        turns() - before < 100
    });
    for serial in 0..50 {
        std::thread::sleep(Duration::from_millis(2));
        a.send(&frame(2, 1, None, serial));
        assert_eq!(b.receive_one(), frame(2, 1, None, serial));
    }
}

#[test]
fn a_peer_that_goes_is_forgotten_and_the_next_one_is_served() {
    let place = tempfile::tempdir().unwrap();
    let text = ["a", "b", "c"]
        .map(|name| memif_port(place.path(), name, ""))
        .concat();
    let mut switch = start(&text);
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| Peer::new(place.path(), name));
    introduce(&mut a, &mut b);
    c.receive_one();
    drop(b);
    wait(|| switch.stations().unwrap().len() == 1);
    let mut b = Peer::new(place.path(), "b");
    // What is for the one that was there is looked for everywhere again.
    a.send(&frame(2, 1, None, 7));
    assert_eq!(
        (b.receive_one(), c.receive_one()),
        (frame(2, 1, None, 7), frame(2, 1, None, 7))
    );
}

#[test]
fn what_waits_at_a_port_that_is_added_is_served_by_the_plan_that_names_it() {
    let mut switch = start("processors = []\n");
    for number in 0..50 {
        let name = format!("p{number}");
        let (port, wire) = MemoryPort::new();
        let waiting = (frame(255, number, None, 1), Offload::NONE);
        wire.lock().unwrap().to_switch.push_back(waiting);
        let config = Config::parse(&rig::port(&name, "")).unwrap().port.remove(0);
        switch.attach(config, Box::new(port)).unwrap();
        wait(|| packets(&switch.report().unwrap(), &name).0 == 1);
        let port = switch.report().unwrap().ports.pop().unwrap();
        let mut causes = port.counters.drops.iter().map(|drop| drop.cause.as_str());
        assert!(causes.all(|cause| cause != "no_port"), "{port:?}");
    }
}

#[test]
fn no_packet_passes_before_all_that_was_configured_is_in_place() {
    let place = tempfile::tempdir().unwrap();
    let [from, to] = ["from.pcap", "to.pcap"].map(|name| place.path().join(name));
    let count = 5_000;
    let mut writer = Pcap::write(&from, Format::Pcap, Link::Ethernet).unwrap();
    let mut burst = Burst::new(1);
    for serial in 0..count {
        burst.clear();
        assert!(burst.push(&frame(255, 1, None, serial)));
        assert_eq!(writer.transmit(0, &burst, 0), 1);
    }
    drop(writer);
    let mut text = format!("[[port]]\nname = \"from\"\npcap.read = {from:?}\n");
    text += &format!("[[port]]\nname = \"to\"\npcap.write = {to:?}\n");
    text += "[[flow]]\nname = \"none\"\ndrop = true\n";
    let mut switch = start(&text);
    wait(|| switch.report().unwrap().flows[0].packets == u64::from(count));
    assert_eq!(
        packets(&switch.report().unwrap(), "from"),
        (count.into(), 0)
    );
    assert_eq!(packets(&switch.report().unwrap(), "to"), (0, 0));
}

#[test]
fn who_is_sent_more_than_it_can_send_on_serves_its_own_ports_and_answers() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: two workers need two processors");
        return;
    }
    let mut switch = start("processors = [0, 1]\n");
    let mut add = |name: &str, rest: &str, wire: Wire| {
        let (port, ours) = MemoryPort::new();
        *ours.lock().unwrap() = wire;
        let config = Config::parse(&rig::port(name, rest)).unwrap();
        let config = config.port[0].clone();
        switch.attach(config, Box::new(port)).unwrap();
        ours
    };
    let slow = Wire {
        pause: Duration::from_millis(5),
        ..Wire::default()
    };
    let slow = add("slow", "worker = 1\nvlan.access = 1", slow);
    let own = add("own", "worker = 1\nvlan.access = 2", Wire::default());
    let beside = add("beside", "worker = 1\nvlan.access = 2", Wire::default());
    let waiting = (frame(255, 1, None, 0), Offload::NONE);
    let fast = Wire {
        to_switch: std::iter::repeat_n(waiting, 32).collect(),
        is_endless: true,
        ..Wire::default()
    };
    let fast = add("fast", "worker = 0\nvlan.access = 1", fast);
    wait(|| slow.lock().unwrap().from_switch.len() > 100);
    let waiting = (frame(255, 2, None, 1), Offload::NONE);
    own.lock().unwrap().to_switch.push_back(waiting);
    let report = switch.report();
    if report.is_ok() {
        wait(|| beside.lock().unwrap().from_switch.len() == 1);
    }
    let changed = switch.remove_port("own");
    // What does not end would keep the worker from its own end as well.
    fast.lock().unwrap().to_switch.clear();
    assert!(report.is_ok() && changed.is_ok(), "{report:?} {changed:?}");
}
