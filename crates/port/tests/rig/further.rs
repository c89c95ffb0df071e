//! Rings, TAP interfaces, and what wraps ports.

use std::fs;
use std::process::Command;

use millrace_port::Port;
use millrace_port::af_xdp::{self, AfXdp, Take};
use millrace_port::fault::{self, Fault};
use millrace_port::memif::{Mode, Role};
use millrace_port::ring::{self, Ring, Side};
use millrace_port::tap::{self, Tap};
use millrace_port::trace::{self, Trace};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use super::{Kind, make_memif};

/// What joins two ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A memif, whose ports have faults that are possible and never come.
    Faulty,
    /// A memif, whose ports are traced.
    Traced,
    /// A channel each way, and an agent.
    Ring,
    /// A pair of interfaces, at each of which is a queue. Neither end sees what becomes of the other.
    AfXdp,
    /// The kernel, between two TAP interfaces. As above.
    Tap,
}

impl Way {
    /// Whether it is through the kernel.
    pub(super) fn is_apart(self) -> bool {
        matches!(self, Way::AfXdp | Way::Tap)
    }
}

const fn kind(name: &'static str, log2_ring_size: u8, queues: u16) -> Kind {
    Kind {
        name,
        sender: Role::Client,
        mode: Mode::Ethernet,
        log2_ring_size,
        buffer_bytes: 2048,
        queues,
        file: None,
        virtio: None,
    }
}

/// The last ones put their thread into a network namespace of its own.
static KINDS: &[(Way, Kind)] = &[
    (Way::Faulty, kind("memif with faults", 10, 2)),
    (Way::Traced, kind("memif, traced", 10, 1)),
    (Way::Ring, kind("ring", 10, 1)),
    (Way::Ring, kind("ring, short", 6, 1)),
    (Way::AfXdp, kind("af_xdp", 13, 1)),
    (Way::Tap, kind("tap", 13, 1)),
];

pub(super) fn kinds() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().map(|(_, kind)| kind)
}

/// How one of these is joined. None: it is another.
pub(super) fn way_of(kind: &Kind) -> Option<Way> {
    let mut all = KINDS.iter();
    let found = all.find(|(_, own)| std::ptr::eq(own, kind));
    found.map(|(way, _)| *way)
}

/// Puts this thread into a network namespace in which nobody speaks unasked. False, and a line that says so, where there is none to be had.
pub(super) fn is_apart(kind: &Kind) -> bool {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        eprintln!("skipped, {}: no network namespace here: {error}", kind.name);
        return false;
    }
    fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    true
}

pub(super) fn make(kind: &Kind, place: &TempDir, sends: bool) -> Box<dyn Port + Send> {
    match way_of(kind) {
        None => Box::new(make_memif(kind, place, sends)),
        Some(Way::Faulty) => {
            let mut faults = fault::Config::new(1);
            // One packet of some hundred millions, and none of the first.
            faults.received.loss = 3e-9;
            faults.transmitted = faults.received.clone();
            Box::new(Fault::new(make_memif(kind, place, sends), &faults).unwrap())
        }
        Some(Way::Traced) => {
            let mut port = Trace::new(make_memif(kind, place, sends));
            let config = trace::Config::new("rig");
            port.begin(config, std::io::sink()).unwrap();
            Box::new(port)
        }
        Some(Way::Ring) => {
            let side = if sends { Side::First } else { Side::Second };
            let mut config = ring::Config::new("rig", side);
            config.agent = Some(place.path().join("agent.sock"));
            config.slots = 1 << kind.log2_ring_size;
            Box::new(Ring::new(&config).unwrap())
        }
        Some(Way::AfXdp) => {
            let name = if sends { "from" } else { "to" };
            if sends {
                run(
                    "ip",
                    "link add from mtu 28658 type veth peer name to mtu 28658",
                );
                run("ip", "link set from up");
                run("ip", "link set to up");
            }
            let mut config = af_xdp::Config::new(name);
            config.ring_size = 1 << kind.log2_ring_size;
            config.several_frames = true;
            config.take = if sends { Vec::new() } else { vec![Take::All] };
            Box::new(AfXdp::open(&config).unwrap())
        }
        Some(Way::Tap) => {
            let name = if sends { "from" } else { "to" };
            let port = Tap::open(&tap::Config::new(name)).unwrap();
            let up = format!("link set {name} txqueuelen 10000 mtu 65521 up");
            run("ip", &up);
            if !sends {
                join_taps();
            }
            Box::new(port)
        }
    }
}

fn run(program: &str, words: &str) {
    let status = Command::new(program).args(words.split(' ')).status();
    assert!(status.unwrap().success(), "{program} {words}");
}

/// Has the kernel take what comes by one of two interfaces to the other.
fn join_taps() {
    run("tc", "qdisc add dev from clsact");
    let onward = "action mirred egress redirect dev to";
    run(
        "tc",
        &format!("filter add dev from ingress protocol all u32 match u32 0 0 {onward}"),
    );
}
