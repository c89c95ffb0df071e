//! The claims, as the issues make them.

use super::Bar::{AtLeast, AtMost};
use super::Figure::{Slow, Unfair, Value, WithLoss};
use super::{Bar, Claim, Figure, Place};

const fn absolute(
    title: &'static str,
    ours: Place,
    figure: Figure,
    bar: Bar,
    aim: Option<f64>,
) -> Claim {
    Claim {
        title,
        ours,
        over: None,
        figure,
        bar,
        aim,
    }
}

const fn relative(
    title: &'static str,
    [ours, theirs]: [Place; 2],
    figure: Figure,
    bar: Bar,
    aim: Option<f64>,
) -> Claim {
    Claim {
        title,
        ours,
        over: Some(theirs),
        figure,
        bar,
        aim,
    }
}

const fn round_trip(road: &'static str, bytes: &'static [(&'static str, u64)]) -> Place {
    Place("channels/round-trip", road, bytes)
}

const SMALL: &[(&str, u64)] = &[("bytes", 64)];

pub(in crate::bench) const CHANNELS: &[Claim] = &[
    relative(
        "round trip of 64 B, over the bare ring's",
        [round_trip("channel", SMALL), round_trip("bare-ring", SMALL)],
        Value,
        AtMost(1.5),
        Some(1.2),
    ),
    relative(
        "round trip of 64 B, over iceoryx2's",
        [round_trip("channel", SMALL), round_trip("iceoryx2", SMALL)],
        Value,
        AtMost(0.25),
        None,
    ),
    relative(
        "round trip of 16 KiB, over that of 64 B",
        [
            round_trip("channel", &[("bytes", 16 << 10)]),
            round_trip("channel", SMALL),
        ],
        Value,
        AtMost(1.2),
        None,
    ),
    relative(
        "round trip of 1 MiB, over that of 64 B",
        [
            round_trip("channel", &[("bytes", 1 << 20)]),
            round_trip("channel", SMALL),
        ],
        Value,
        AtMost(1.2),
        None,
    ),
    absolute(
        "one way, 64 B",
        Place("channels/one-way", "channel", SMALL),
        Value,
        AtLeast(30e6),
        Some(50e6),
    ),
    absolute(
        "one way, 1 500 B",
        Place("channels/one-way", "channel", &[("bytes", 1500)]),
        Value,
        AtLeast(10e6),
        Some(20e6),
    ),
    absolute(
        "fan-in of 8: shares, off an equal one",
        Place("channels/fan-in", "channel", SMALL),
        Unfair,
        AtMost(10.0),
        None,
    ),
    absolute(
        "work for 4: shares, off an equal one",
        Place("channels/work", "channel", SMALL),
        Unfair,
        AtMost(10.0),
        None,
    ),
    relative(
        "waking who sleeps, over an eventfd's",
        [
            Place("channels/waking", "channel", SMALL),
            Place("channels/waking", "eventfd", SMALL),
        ],
        Value,
        AtMost(1.0),
        None,
    ),
];

const fn memif(road: &'static str) -> Place {
    Place("packets/memif", road, SMALL)
}

const fn vhost_user(road: &'static str) -> Place {
    Place("packets/vhost-user", road, SMALL)
}

pub(in crate::bench) const PACKETS: &[Claim] = &[
    relative(
        "memif, received, over testpmd's",
        [
            Place("packets/memif-receive", "memif-to-millrace", SMALL),
            Place("packets/memif-receive", "memif-to-testpmd", SMALL),
        ],
        Value,
        AtLeast(1.0),
        Some(1.3),
    ),
    relative(
        "memif without a copy, received, over testpmd's",
        [
            Place(
                "packets/memif-receive-zero-copy",
                "memif-zero-copy-to-millrace",
                SMALL,
            ),
            Place(
                "packets/memif-receive-zero-copy",
                "memif-zero-copy-to-testpmd",
                SMALL,
            ),
        ],
        Value,
        AtLeast(1.0),
        Some(1.3),
    ),
    relative(
        "vhost-user, received, over testpmd's",
        [
            Place("packets/vhost-user-receive", "virtio-to-millrace", SMALL),
            Place("packets/vhost-user-receive", "virtio-to-testpmd", SMALL),
        ],
        Value,
        AtLeast(1.0),
        Some(1.3),
    ),
    relative(
        "switch, memif to memif by a flow, without loss, over testpmd's",
        [memif("switch-memif"), memif("testpmd-memif")],
        Value,
        AtLeast(0.8),
        Some(1.0),
    ),
    relative(
        "the same, with at most 0.5 % lost",
        [memif("switch-memif"), memif("testpmd-memif")],
        WithLoss,
        AtLeast(0.8),
        Some(1.0),
    ),
    relative(
        "switch that learns, vhost-user, without loss, over OVS-DPDK's",
        [vhost_user("switch-vhost"), vhost_user("ovs-vhost")],
        Value,
        AtLeast(1.5),
        Some(2.0),
    ),
    relative(
        "the same, with at most 0.5 % lost",
        [vhost_user("switch-vhost"), vhost_user("ovs-vhost")],
        WithLoss,
        AtLeast(1.5),
        Some(2.0),
    ),
    relative(
        "its latency at half of that, p99, over OVS-DPDK's",
        [vhost_user("switch-vhost"), vhost_user("ovs-vhost")],
        Slow,
        AtMost(0.5),
        None,
    ),
    absolute(
        "ring, packets of 64 B",
        Place("packets/ring", "ring", SMALL),
        Value,
        AtLeast(20e6),
        None,
    ),
    // Shorter ones than a burst's private head are copied from it.
    absolute(
        "ring, packets of 512 B in place",
        Place("packets/ring", "ring", &[("bytes", 512)]),
        Value,
        AtLeast(20e6),
        None,
    ),
    relative(
        "AF_XDP, received and sent back, over the kernel's UDP",
        [
            Place("packets/echo", "echo-af-xdp", SMALL),
            Place("packets/echo", "echo-kernel", SMALL),
        ],
        Value,
        AtLeast(3.0),
        None,
    ),
    absolute(
        "idle switch, of a processor",
        Place("packets/idle", "switch-memif", &[]),
        Value,
        AtMost(0.01),
        Some(0.0),
    ),
];

const FEW: &[(&str, u64)] = &[("bearers", 1000)];
const MILLION: &[(&str, u64)] = &[("bearers", 1_000_000)];
const OURS: &str = "ppf-memif";

pub(in crate::bench) const PPF: &[Claim] = &[
    absolute(
        "GTP-U relay of 90 B, without loss",
        Place("ppf/relay", OURS, FEW),
        Value,
        AtLeast(5e6),
        Some(8e6),
    ),
    absolute(
        "decapsulation, 1 000 bearers",
        Place("ppf/decapsulation", OURS, FEW),
        Value,
        AtLeast(4e6),
        Some(7e6),
    ),
    absolute(
        "encapsulation, 1 000 bearers",
        Place("ppf/encapsulation", OURS, FEW),
        Value,
        AtLeast(4e6),
        Some(7e6),
    ),
    relative(
        "decapsulation, 1 000 000 bearers, over that of 1 000",
        [
            Place("ppf/decapsulation", OURS, MILLION),
            Place("ppf/decapsulation", OURS, FEW),
        ],
        Value,
        AtLeast(0.6),
        Some(0.8),
    ),
    relative(
        "encapsulation, 1 000 000 bearers, over that of 1 000",
        [
            Place("ppf/encapsulation", OURS, MILLION),
            Place("ppf/encapsulation", OURS, FEW),
        ],
        Value,
        AtLeast(0.6),
        Some(0.8),
    ),
    absolute(
        "relay's latency at half of its rate, p99",
        Place("ppf/relay", OURS, FEW),
        Slow,
        AtMost(10e3),
        Some(5e3),
    ),
    absolute(
        "idle, of a processor",
        Place("ppf/idle", OURS, &[]),
        Value,
        AtMost(0.01),
        Some(0.0),
    ),
];

const ONE: &[(&str, u64)] = &[("stages", 1)];
const FOUR: &[(&str, u64)] = &[("stages", 4)];

pub(in crate::bench) const SCHEDULER: &[Claim] = &[
    relative(
        "one stage, over event_dsw's",
        [
            Place("scheduler/stages", "scheduler", ONE),
            Place("scheduler/stages", "event-dsw", ONE),
        ],
        Value,
        AtLeast(2.0),
        Some(4.0),
    ),
    relative(
        "four stages, over event_dsw's",
        [
            Place("scheduler/stages", "scheduler", FOUR),
            Place("scheduler/stages", "event-dsw", FOUR),
        ],
        Value,
        AtLeast(3.0),
        Some(6.0),
    ),
    relative(
        "Toeplitz hash of 12 bytes, over rte_softrss's",
        [
            Place("scheduler/toeplitz", "toeplitz-tables", &[]),
            Place("scheduler/toeplitz", "rte-softrss", &[]),
        ],
        Value,
        AtLeast(4.0),
        None,
    ),
];
