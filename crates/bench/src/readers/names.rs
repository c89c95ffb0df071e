//! Where figures come from, by the names that scenarios have for it.

use super::{
    Idle, Reader, events, idle_memory, idle_processor, iperf3, millrace_load,
    millrace_load_first_byte, millrace_load_median, millrace_peers, millrace_peers_median, packets,
    pgbench, redis_benchmark, result_line, sockperf_ping_pong, sockperf_throughput,
};

/// Where a case's figure comes from.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// From what the client prints until it ends.
    Printed(Reader),
    /// From what is seen of all programs while the client's connections are silent. The client goes on until it is told to end, and prints
    /// the line of `millrace load idle` when they are.
    Seen(fn(&Idle) -> f64),
}

/// A source by its name, and what its figure is in words.
type Named = (&'static str, Figure, &'static str);

const BY_NAME: &[Named] = &[
    (
        "redis-benchmark",
        Figure::Printed(redis_benchmark),
        "requests per second",
    ),
    (
        "sockperf-ping-pong",
        Figure::Printed(sockperf_ping_pong),
        "median round trip",
    ),
    (
        "sockperf-throughput",
        Figure::Printed(sockperf_throughput),
        "messages per second",
    ),
    ("iperf3", Figure::Printed(iperf3), "bits per second"),
    (
        "pgbench",
        Figure::Printed(pgbench),
        "transactions per second",
    ),
    (
        "millrace-load",
        Figure::Printed(millrace_load),
        "requests per second",
    ),
    (
        "millrace-load-median",
        Figure::Printed(millrace_load_median),
        "median latency",
    ),
    (
        "millrace-load-first-byte",
        Figure::Printed(millrace_load_first_byte),
        "median time to the first byte of an answer, its connection included",
    ),
    (
        "millrace-peers",
        Figure::Printed(millrace_peers),
        "messages per second",
    ),
    (
        "millrace-peers-median",
        Figure::Printed(millrace_peers_median),
        "median time of a message",
    ),
    (
        "millrace-load-packets",
        Figure::Printed(packets::found),
        "packets without loss per second",
    ),
    (
        "millrace-load-packets-median",
        Figure::Printed(packets::timed),
        "median time from when a packet was due",
    ),
    (
        "packets-received",
        Figure::Printed(packets::received),
        "packets received per second",
    ),
    (
        "millrace-load-packets-idle",
        Figure::Printed(packets::idle),
        "share of one processor, of the device",
    ),
    (
        "events-passed",
        Figure::Printed(events::passed),
        "events per second",
    ),
    (
        "toeplitz-hashes",
        Figure::Printed(events::hashed),
        "hashes per second",
    ),
    (
        "result-line",
        Figure::Printed(result_line),
        "requests per second",
    ),
    (
        "idle-memory",
        Figure::Seen(idle_memory),
        "memory for each connection",
    ),
    (
        "idle-processor",
        Figure::Seen(idle_processor),
        "share of one processor, of all programs",
    ),
];

/// Where a figure comes from, by the name that scenarios have for it.
#[must_use]
pub fn by_name(name: &str) -> Option<Figure> {
    named(name).map(|(_, figure, _)| *figure)
}

/// What that figure is in words, where a case has none of its own.
#[must_use]
pub fn says(name: &str) -> Option<&'static str> {
    named(name).map(|(_, _, says)| *says)
}

fn named(name: &str) -> Option<&'static Named> {
    BY_NAME.iter().find(|(known, ..)| *known == name)
}

/// All these names.
pub fn names() -> impl Iterator<Item = &'static str> {
    BY_NAME.iter().map(|(name, ..)| *name)
}
