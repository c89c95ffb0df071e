//! How many packets a second a node deals with, from bursts in memory to bursts in memory: relay, and into and out of tunnels, by number of
//! bearers. Ports are not in it, and neither is time that others had the processor for.
//!
//!     cargo run --release --package millrace-ppf --example node [BEARERS…] [relay|decapsulate|encapsulate…] [rounds=COUNT]
//!
//! Bursts are played for a second, or so many times: by the difference between two counts, what one packet takes is what `valgrind
//! --tool=callgrind` counts.

#![forbid(unsafe_code)]

mod frames;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use millrace_port::Burst;
use millrace_ppf::{BURST, Bearer, BearerId, Interface, Mac, Node, Outs, Registry, Side};
use millrace_ppf::{BearerSpec, FarEnd};

use frames::{CORE, INNER_BYTES, RADIO, frame, in_tunnel, ipv4, user};

/// Bursts that are played again and again, at most.
const BURSTS_MAX: usize = 4096;

fn interface(name: &str, side: Side, own: [u8; 4]) -> Interface {
    Interface {
        name: name.to_owned(),
        side,
        mac: Mac::of_name(name),
        vlan: None,
        addresses: vec![
            format!("{}/24", Ipv4Addr::from(own))
                .parse()
                .expect("a network"),
        ],
        routes: Vec::new(),
        mtu: 1500,
        udp_zero: false,
    }
}

/// Stations at .9 of both networks are known.
fn meet(node: &mut Node, outs: &mut Outs) {
    node.set_time(1);
    for (port, name, own) in [(0, "radio", RADIO), (1, "core", CORE)] {
        let [a, b, c, _] = own;
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 9, a, b, c, 9];
        arp.extend_from_slice(&Mac::of_name(name).0);
        arp.extend_from_slice(&own);
        let frame = [&Mac::of_name(name).0[..], &[2, 0, 0, 0, 0, 9, 8, 6], &arp].concat();
        let mut burst = Burst::new(1);
        assert!(burst.push(&frame));
        node.receive(port, &burst, false, outs);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (settings, words): (Vec<_>, Vec<_>) = words
        .into_iter()
        .partition(|word| word.starts_with("rounds="));
    let rounds = settings.last().map(|said| {
        let count = said["rounds=".len()..].parse();
        count.expect("a count of rounds")
    });
    let counts: Vec<u32> = words.iter().filter_map(|word| word.parse().ok()).collect();
    let is_wanted =
        |what: &str| counts.len() == words.len() || words.iter().any(|word| word == what);
    let counts = match counts.as_slice() {
        [] => &[1, 1000, 100_000, 1_000_000],
        counts => counts,
    };
    for &count in counts {
        let all = ["relay", "decapsulate", "encapsulate"].into_iter();
        for what in all.filter(|what| is_wanted(what)) {
            let (rate, bytes) = measure(what, count, rounds);
            println!(
                "{count:>8} bearers  {what:<12} {:6.2} M packets/s  {bytes} bytes of memory for each bearer",
                rate / 1e6
            );
        }
    }
}

/// How long this thread has had a processor.
fn processor_ns() -> u64 {
    let said = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = said.split(' ').next().and_then(|first| first.parse().ok());
    first.unwrap_or(0)
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0_u64) * 4096
}

fn measure(what: &str, count: u32, rounds: Option<u64>) -> (f64, u64) {
    let before = resident();
    let interfaces = vec![
        interface("radio", Side::Radio, RADIO),
        interface("core", Side::Core, CORE),
    ];
    let (mut node, mut outs) = (Node::new(interfaces, 0, 1), Outs::new(2));
    let mut registry = Registry::new();
    let peer = |own: [u8; 4], teid| FarEnd::Tunnel(IpAddr::from([own[0], own[1], own[2], 9]), teid);
    let specs: Vec<BearerSpec> = (1..=count)
        .map(|number| {
            let core = match what {
                "relay" => peer(CORE, number),
                _ => FarEnd::User(user(number).into()),
            };
            BearerSpec::new(core, peer(RADIO, number))
        })
        .collect();
    let added = registry.add(&specs).expect("nothing is kept");
    let ids: Vec<BearerId> = added.into_iter().flatten().collect();
    for (id, spec) in ids.iter().zip(&specs) {
        let bearer: Bearer = spec.bearer();
        node.put(*id, bearer);
    }
    let memory = resident().saturating_sub(before) / u64::from(count);
    // A packet for each station, so that it is asked for; then it answers.
    let bursts = bursts(what, &ids);
    let port = u16::from(what == "encapsulate");
    node.receive(port, &bursts[0], false, &mut outs);
    meet(&mut node, &mut outs);
    let (mut packets, mut left) = (0, 0);
    let (began, ran) = (Instant::now(), processor_ns());
    let mut played = 0;
    while rounds.map_or(began.elapsed() < Duration::from_secs(1), |rounds| {
        played < rounds
    }) {
        played += 1;
        for burst in &bursts {
            node.receive(port, burst, false, &mut outs);
            for out in &mut outs.ports {
                left += out.len();
                out.clear();
            }
            packets += burst.len();
        }
    }
    let took = Duration::from_nanos(processor_ns() - ran);
    assert!(left >= packets, "{left} of {packets} left");
    (packets as f64 / took.as_secs_f64(), memory)
}

/// Bursts for bearers in an order that looks random.
fn bursts(what: &str, ids: &[BearerId]) -> Vec<Burst> {
    let mut bursts = Vec::new();
    let mut at = 0_usize;
    while bursts.len() * BURST < ids.len().max(BURST) && bursts.len() < BURSTS_MAX {
        let mut burst = Burst::new(BURST);
        for _ in 0..BURST {
            at = (at + 1_618_033) % ids.len();
            let (id, user) = (ids[at], user(at as u32 + 1));
            let far = Ipv4Addr::from_bits(Ipv4Addr::from(CORE).to_bits() + 8);
            let bytes = match what {
                "encapsulate" => frame("core", &ipv4(far, user, 17, &[0; INNER_BYTES - 20])),
                _ => {
                    let inner = ipv4(user, far, 17, &[0; INNER_BYTES - 20]);
                    frame("radio", &in_tunnel(RADIO, id.teid(Side::Radio), &inner))
                }
            };
            assert!(burst.push(&bytes));
        }
        bursts.push(burst);
    }
    bursts
}
