//! The workloads, as data: what is run, and what it has to reach.

use millrace_bench::readers;

use super::probe;
use super::scenario::Bar::{AtLeast, Below, LessMore, Times};
use super::scenario::Unit::{
    BitsPerSecond, Mebibytes, Milliseconds, Nanoseconds, PerSecond, Percent,
};
use super::scenario::{Beside, Measure, Placement, Road, Scenario, Server, Side, Step, Unit};
use super::servers;

const KERNEL: Side = Side {
    label: "kernel",
    road: Road::Kernel,
    extra: "",
    beside: &[],
};
const MILLRACE: Side = Side {
    label: "Millrace",
    road: Road::Millrace,
    extra: "",
    beside: &[],
};

const NO_SERVER: Server = Server {
    command: "",
    prepare: servers::nothing,
    user: None,
};
const SOCKPERF: Server = Server {
    command: "sockperf server --tcp -i 127.0.0.1 -p {port} {extra}",
    ..NO_SERVER
};
const IPERF3: Server = Server {
    command: "iperf3 -s -B 127.0.0.1 -p {port}",
    ..NO_SERVER
};
const REDIS: Server = Server {
    command: "redis-server --port {port} --bind 127.0.0.1 --save '' --appendonly no --dir {dir}",
    ..NO_SERVER
};
const MEMCACHED: Server = Server {
    command: "memcached -l 127.0.0.1 -p {port} -U 0 -t 1",
    user: Some("nobody"),
    ..NO_SERVER
};
const NGINX: Server = Server {
    command: "nginx -p {dir} -c {dir}/nginx.conf",
    prepare: servers::nginx,
    user: Some("nobody"),
};
const POSTGRES: Server = Server {
    command: "postgres -D {dir}/data -p {port} -h 127.0.0.1 -k {dir}",
    prepare: servers::postgres,
    user: Some("postgres"),
};

/// Both roads, server and client on a processor each.
const PLAIN: Scenario = Scenario {
    name: "",
    server: NO_SERVER,
    sides: [KERNEL, MILLRACE],
    placement: Placement::Apart,
    steps: &[],
};

const fn client(
    title: &'static str,
    command: &'static str,
    read: readers::Reader,
    unit: Unit,
) -> Step {
    Step {
        title,
        measure: Measure::Client(command, read),
        unit,
        must: None,
        aim: None,
        tail: None,
    }
}

const fn redis(title: &'static str, command: &'static str) -> Step {
    client(title, command, readers::redis_benchmark, PerSecond)
}

const fn web(title: &'static str, command: &'static str) -> Step {
    client(title, command, readers::result_line, PerSecond)
}

const fn probe(title: &'static str, probe: probe::Probe, unit: Unit) -> Step {
    Step {
        title,
        measure: Measure::Probe(probe),
        unit,
        must: None,
        aim: None,
        tail: None,
    }
}

/// Every workload, in the order of the report.
pub(crate) static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "redis-1",
        server: REDIS,
        steps: &[
            redis(
                "redis SET 1 KiB, 1 client",
                "redis-benchmark -h 127.0.0.1 -p {port} -t set -d 1024 -c 1 -n {count}",
            )
            .must(Times(7.0))
            .aim(Times(10.0))
            .tail(3.0),
            redis(
                "redis GET 1 KiB, 1 client",
                "redis-benchmark -h 127.0.0.1 -p {port} -t get -d 1024 -c 1 -n {count}",
            )
            .must(Times(7.0))
            .aim(Times(10.0))
            .tail(3.0),
        ],
        ..PLAIN
    },
    Scenario {
        name: "redis-50",
        server: REDIS,
        steps: &[
            redis(
                "redis SET 1 KiB, 50 clients",
                "redis-benchmark -h 127.0.0.1 -p {port} -t set -d 1024 -c 50 -n {count}",
            )
            .must(Times(4.5))
            .aim(Times(7.0)),
            redis(
                "redis GET 1 KiB, 50 clients",
                "redis-benchmark -h 127.0.0.1 -p {port} -t get -d 1024 -c 50 -n {count}",
            )
            .must(Times(4.5))
            .aim(Times(7.0)),
        ],
        ..PLAIN
    },
    Scenario {
        name: "redis-pipeline",
        server: REDIS,
        steps: &[
            redis(
                "redis SET 1 KiB, 50 clients, pipeline 16",
                "redis-benchmark -h 127.0.0.1 -p {port} -t set -d 1024 -c 50 -P 16 -n {count}",
            )
            .must(Times(1.2))
            .aim(Times(2.0)),
            redis(
                "redis GET 1 KiB, 50 clients, pipeline 16",
                "redis-benchmark -h 127.0.0.1 -p {port} -t get -d 1024 -c 50 -P 16 -n {count}",
            )
            .must(Times(1.2))
            .aim(Times(2.0)),
        ],
        ..PLAIN
    },
    Scenario {
        name: "sockperf-ping-pong",
        server: SOCKPERF,
        steps: &[client(
            "sockperf ping-pong 64 B, p50 round trip",
            "sockperf ping-pong --tcp -i 127.0.0.1 -p {port} -m 64 -t {seconds} --mps 500000 \
             --full-rtt",
            readers::sockperf_ping_pong,
            Nanoseconds,
        )
        .must(Times(30.0))
        .aim(Below(600.0))],
        ..PLAIN
    },
    Scenario {
        name: "sockperf-spinning",
        server: SOCKPERF,
        sides: [
            Side {
                label: "kernel, both ends spinning",
                extra: "--nonblocked",
                ..KERNEL
            },
            MILLRACE,
        ],
        steps: &[client(
            "sockperf ping-pong 64 B, p50 round trip, kernel spinning",
            "sockperf ping-pong --tcp -i 127.0.0.1 -p {port} -m 64 -t {seconds} --mps 500000 \
             --full-rtt {extra}",
            readers::sockperf_ping_pong,
            Nanoseconds,
        )
        .must(Times(9.0))
        .aim(Times(12.0))],
        ..PLAIN
    },
    Scenario {
        name: "sockperf-throughput",
        server: SOCKPERF,
        steps: &[client(
            "sockperf throughput, 64 B messages",
            "sockperf throughput --tcp -i 127.0.0.1 -p {port} -m 64 -t {seconds}",
            readers::sockperf_throughput,
            PerSecond,
        )
        .must(Times(6.0))
        .aim(AtLeast(15e6))],
        ..PLAIN
    },
    Scenario {
        name: "iperf3",
        server: IPERF3,
        steps: &[client(
            "iperf3 -l 1M, one stream (operation: 1 MiB)",
            "iperf3 -c 127.0.0.1 -p {port} -l 1M -t {seconds} -J",
            readers::iperf3,
            BitsPerSecond,
        )
        .must(Times(1.8))
        .aim(Times(3.0))],
        ..PLAIN
    },
    Scenario {
        name: "memcached",
        server: MEMCACHED,
        steps: &[
            client(
                "memcached 1 KiB, 1 connection",
                "{helper} load memcached --port {port} --connections 1 --seconds {seconds}",
                readers::result_line,
                PerSecond,
            )
            .must(Times(6.0))
            .aim(Times(9.0)),
            client(
                "memcached 1 KiB, 50 connections",
                "{helper} load memcached --port {port} --connections 50 --seconds {seconds}",
                readers::result_line,
                PerSecond,
            )
            .must(Times(4.0))
            .aim(Times(7.0)),
        ],
        ..PLAIN
    },
    Scenario {
        name: "nginx",
        server: NGINX,
        steps: &[
            web(
                "nginx 64 B file, 1 connection",
                "wrk -t 1 -c 1 -d {seconds} -s {dir}/result.lua http://127.0.0.1:{port}/64",
            )
            .must(Times(5.0))
            .aim(Times(7.0)),
            web(
                "nginx 64 B file, 50 connections",
                "wrk -t 1 -c 50 -d {seconds} -s {dir}/result.lua http://127.0.0.1:{port}/64",
            )
            .must(Times(2.2))
            .aim(Times(3.5)),
        ],
        ..PLAIN
    },
    Scenario {
        name: "nginx-new-connections",
        server: NGINX,
        steps: &[web(
            "nginx 64 B file, a new connection per request, 10 at once",
            "wrk -t 1 -c 10 -d {seconds} -s {dir}/result.lua -H 'Connection: close' \
             http://127.0.0.1:{port}/64",
        )
        .must(Times(0.95))
        .aim(Times(1.0))],
        ..PLAIN
    },
    Scenario {
        name: "pgbench",
        server: POSTGRES,
        steps: &[client(
            "pgbench select-only, 1 client",
            "pgbench -h 127.0.0.1 -p {port} -U postgres -n -S -c 1 -T {seconds} postgres",
            readers::pgbench,
            PerSecond,
        )
        .must(Times(1.3))],
        ..PLAIN
    },
    Scenario {
        name: "redis-one-processor",
        server: REDIS,
        placement: Placement::Together,
        steps: &[redis(
            "redis SET 1 KiB, 1 client, both ends on one processor",
            "redis-benchmark -h 127.0.0.1 -p {port} -t set -d 1024 -c 1 -n {count}",
        )
        .must(Times(1.0))],
        ..PLAIN
    },
    Scenario {
        name: "redis-hogs",
        server: REDIS,
        sides: [
            Side {
                beside: &[Beside::Hogs],
                ..KERNEL
            },
            Side {
                beside: &[Beside::Hogs],
                ..MILLRACE
            },
        ],
        steps: &[redis(
            "redis SET 1 KiB, 50 clients, beside two processor hogs",
            "redis-benchmark -h 127.0.0.1 -p {port} -t set -d 1024 -c 50 -n {count}",
        )
        .must(Times(1.0))],
        ..PLAIN
    },
    Scenario {
        name: "redis-1000-connections",
        server: REDIS,
        sides: [
            Side {
                label: "Millrace, 10 connections alone",
                ..MILLRACE
            },
            Side {
                beside: &[Beside::Idle(990)],
                ..MILLRACE
            },
        ],
        steps: &[redis(
            "redis SET 1 KiB, 10 active of 1 000 connections, against 10 alone",
            "redis-benchmark -h 127.0.0.1 -p {port} -t set -d 1024 -c 10 -n {count}",
        )
        .must(Times(0.9))],
        ..PLAIN
    },
    Scenario {
        name: "redis-1000-connections-kernel",
        server: REDIS,
        sides: [
            Side {
                beside: &[Beside::Idle(990)],
                ..KERNEL
            },
            Side {
                beside: &[Beside::Idle(990)],
                ..MILLRACE
            },
        ],
        steps: &[redis(
            "redis SET 1 KiB, 10 active of 1 000 connections, against the kernel",
            "redis-benchmark -h 127.0.0.1 -p {port} -t set -d 1024 -c 10 -n {count}",
        )],
        ..PLAIN
    },
    Scenario {
        name: "idle-processor",
        steps: &[probe(
            "processor use of an idle pair that has talked",
            probe::idle_processor,
            Percent,
        )
        .must(Below(0.5))
        .aim(Below(0.01))],
        ..PLAIN
    },
    Scenario {
        name: "idle-memory",
        steps: &[probe(
            "memory of 10 000 idle connections that have talked",
            probe::idle_memory,
            Mebibytes,
        )
        .must(LessMore(100.0))
        .aim(LessMore(20.0))],
        ..PLAIN
    },
    Scenario {
        name: "start",
        steps: &[probe(
            "start and end of /bin/true",
            probe::start_cost,
            Milliseconds,
        )
        .must(LessMore(2.0))],
        ..PLAIN
    },
];
