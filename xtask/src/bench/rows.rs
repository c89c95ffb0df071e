//! What is claimed of sockets: each row's two sides, as cells of the results, and what ours has to reach.

use millrace_bench::figures;
use millrace_bench::results::Unit;

use Bar::{AtLeast, Below, LessMore, Times};

/// The kernel's road.
pub(crate) const KERNEL: &str = "loopback";
/// Ours.
pub(crate) const MILLRACE: &str = "millrace-loopback";

const MIB: f64 = 1024.0 * 1024.0;

/// Values of a cell's parameters.
pub(crate) type Parameters = &'static [(&'static str, u64)];

/// One row of the table.
pub(crate) struct Row {
    pub(crate) title: &'static str,
    /// As the README has it; empty: it has not.
    pub(crate) short: &'static str,
    /// The baseline, then ours.
    pub(crate) sides: [Side; 2],
    pub(crate) must: Option<Bar>,
    pub(crate) aim: Option<Bar>,
    /// The 99.9th percentile of the round trips has to be this many times lower.
    pub(crate) tail: Option<f64>,
}

/// A cell of the results.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    pub(crate) scenario: &'static str,
    pub(crate) parameters: Parameters,
    pub(crate) road: &'static str,
}

/// What our side's figure has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    /// This many times better than the baseline's.
    Times(f64),
    /// At least this.
    AtLeast(f64),
    /// Below this.
    Below(f64),
    /// Above the baseline's by less than this.
    LessMore(f64),
}

/// The same cell on both roads.
const fn row(title: &'static str, scenario: &'static str, parameters: Parameters) -> Row {
    let ours = Side {
        scenario,
        parameters,
        road: MILLRACE,
    };
    let baseline = Side {
        road: KERNEL,
        ..ours
    };
    Row {
        title,
        short: "",
        sides: [baseline, ours],
        must: None,
        aim: None,
        tail: None,
    }
}

impl Row {
    const fn short(self, short: &'static str) -> Self {
        Self { short, ..self }
    }

    /// Another cell as the baseline.
    const fn against(self, baseline: Side) -> Self {
        Self {
            sides: [baseline, self.sides[1]],
            ..self
        }
    }

    const fn must(self, bar: Bar) -> Self {
        Self {
            must: Some(bar),
            ..self
        }
    }

    const fn aim(self, bar: Bar) -> Self {
        Self {
            aim: Some(bar),
            ..self
        }
    }

    const fn tail(self, times: f64) -> Self {
        Self {
            tail: Some(times),
            ..self
        }
    }
}

/// Every row, in the order of the tables.
pub(crate) static ROWS: &[Row] = &[
    row("redis SET 1 KiB, 1 client", "redis/set", &[("clients", 1)])
        .short("redis SET 1 KiB, 1 client")
        .must(Times(7.0))
        .aim(Times(10.0))
        .tail(3.0),
    row("redis GET 1 KiB, 1 client", "redis/get", &[("clients", 1)])
        .must(Times(7.0))
        .aim(Times(10.0))
        .tail(3.0),
    row(
        "redis SET 1 KiB, 50 clients",
        "redis/set",
        &[("clients", 50)],
    )
    .short("redis SET 1 KiB, 50 clients")
    .must(Times(4.5))
    .aim(Times(7.0)),
    row(
        "redis GET 1 KiB, 50 clients",
        "redis/get",
        &[("clients", 50)],
    )
    .must(Times(4.5))
    .aim(Times(7.0)),
    row(
        "redis SET 1 KiB, 50 clients, pipeline 16",
        "redis/set-pipelined",
        &[("clients", 50)],
    )
    .short("redis SET 1 KiB, 50 clients, pipeline 16")
    .must(Times(1.2))
    .aim(Times(2.0)),
    row(
        "redis GET 1 KiB, 50 clients, pipeline 16",
        "redis/get-pipelined",
        &[("clients", 50)],
    )
    .must(Times(1.2))
    .aim(Times(2.0)),
    row(
        "sockperf ping-pong 64 B, p50 round trip",
        "sockperf/ping-pong",
        &[("bytes", 64)],
    )
    .short("sockperf ping-pong 64 B, median round trip")
    .must(Times(30.0))
    .aim(Below(600.0)),
    row(
        "sockperf ping-pong 64 B, p50 round trip, kernel spinning",
        "sockperf/ping-pong",
        &[("bytes", 64)],
    )
    .against(Side {
        scenario: "sockperf-spinning/ping-pong",
        parameters: &[("bytes", 64)],
        road: KERNEL,
    })
    .must(Times(9.0))
    .aim(Times(12.0)),
    row(
        "sockperf throughput, 64 B messages",
        "sockperf/throughput",
        &[("bytes", 64)],
    )
    .short("sockperf throughput, 64 B messages")
    .must(Times(6.0))
    .aim(AtLeast(15e6)),
    row(
        "iperf3 -l 1M, one stream (operation: 1 MiB)",
        "iperf3/upload",
        &[("streams", 1)],
    )
    .short("iperf3, one stream")
    .must(Times(1.8))
    .aim(Times(3.0)),
    row(
        "memcached 1 KiB, 1 connection",
        "memcached/cache",
        &[("clients", 1)],
    )
    .short("memcached 1 KiB, 1 connection")
    .must(Times(6.0))
    .aim(Times(9.0)),
    row(
        "memcached 1 KiB, 50 connections",
        "memcached/cache",
        &[("clients", 50)],
    )
    .short("memcached 1 KiB, 50 connections")
    .must(Times(4.0))
    .aim(Times(7.0)),
    row(
        "nginx 64 B file, 1 connection",
        "nginx/keep-alive",
        &[("clients", 1)],
    )
    .must(Times(5.0))
    .aim(Times(7.0)),
    row(
        "nginx 64 B file, 50 connections",
        "nginx/keep-alive",
        &[("clients", 50)],
    )
    .short("nginx 64 B file, 50 connections")
    .must(Times(2.2))
    .aim(Times(3.5)),
    row(
        "nginx 64 B file, a new connection per request, 10 at once",
        "nginx/new-connections",
        &[("clients", 10)],
    )
    .short("a new connection for each HTTP request")
    .must(Times(0.95))
    .aim(Times(1.0)),
    row(
        "pgbench select-only, 1 client",
        "pgbench/select",
        &[("clients", 1)],
    )
    .short("pgbench select-only, 1 client")
    .must(Times(1.3)),
    row(
        "redis SET 1 KiB, 1 client, both ends on one processor",
        "redis-one-processor/set",
        &[("clients", 1)],
    )
    .short("redis SET 1 KiB, 1 client, both ends on one processor")
    .must(Times(1.0)),
    row(
        "redis SET 1 KiB, 50 clients, beside two processor hogs",
        "redis/hogs",
        &[("clients", 50)],
    )
    .short("redis SET 1 KiB, 50 clients, beside two processor hogs")
    .must(Times(1.0)),
    row(
        "redis SET 1 KiB, 10 active of 1 000 connections, against 10 alone",
        "redis-idle/set",
        TEN_OF_THOUSAND,
    )
    .against(Side {
        scenario: "redis-idle/set",
        parameters: &[("clients", 10), ("idle", 0)],
        road: MILLRACE,
    })
    .must(Times(0.9)),
    row(
        "redis SET 1 KiB, 10 active of 1 000 connections, against the kernel",
        "redis-idle/set",
        TEN_OF_THOUSAND,
    ),
    row(
        "processor use of an idle pair that has talked",
        "idle/processor",
        &[("connections", 1)],
    )
    .must(Below(0.005))
    .aim(Below(0.0001)),
    row(
        "memory of 10 000 idle connections that have talked",
        "idle/memory",
        &[("connections", 10_000)],
    )
    .short("memory of 10 000 idle connections")
    .must(LessMore(100.0 * MIB))
    .aim(LessMore(20.0 * MIB)),
    row("start and end of /bin/true", "start/true", &[]).must(LessMore(2e6)),
];

const TEN_OF_THOUSAND: Parameters = &[("clients", 10), ("idle", 990)];

impl Bar {
    /// Whether the medians of both sides, or how many times better ours is, reach the bar.
    pub(crate) fn reached(self, baseline: f64, ours: f64, ratio: f64) -> bool {
        match self {
            Times(times) => ratio >= times,
            AtLeast(value) => ours >= value,
            Below(value) => ours < value,
            LessMore(value) => ours - baseline < value,
        }
    }

    /// The bar in words.
    pub(crate) fn show(self, unit: Unit) -> String {
        match self {
            Times(times) => format!("{times}×"),
            AtLeast(value) => format!("≥ {}", figures::show(unit, value)),
            Below(value) => format!("< {}", figures::show(unit, value)),
            LessMore(value) => format!("< {} more", figures::show(unit, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_look_at_the_ratio_and_at_nothing_else() {
        assert!(Times(7.0).reached(0.0, 0.0, 7.0));
        assert!(!Times(7.0).reached(30e3, 300e3, 6.99));
        assert!(!Times(7.0).reached(30e3, 300e3, f64::NAN));
    }

    #[test]
    fn absolute_bars_look_at_ours_and_differences_at_both() {
        assert!(Below(0.005).reached(0.0, 0.001, f64::NAN));
        assert!(LessMore(2e6).reached(1e6, 2.9e6, f64::NAN));
        assert!(!LessMore(2e6).reached(1e6, 3.1e6, f64::NAN));
        assert!(AtLeast(15e6).reached(0.0, 15e6, f64::NAN));
    }
}
