//! Results as a run would leave them: three scenarios, four roads, ten rounds. One cell failed, one trial is void, one request in the
//! trace of `bridge` met a stall of 100 ms, and names contain what would be markup.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use millrace_bench::results::{
    Cell, Fact, Latency, Outcome, Plan, Processor, Results, Road, SCHEMA, Trial, Unit,
};

/// Trials of a cell.
pub(crate) const ROUNDS: u32 = 10;
/// Length of the injected stall.
const STALL_NS: u64 = 100_000_000;
const ROADS: [(&str, &str, &[&str]); 4] = [
    (
        "loopback",
        "Both programs in one network namespace, over 127.0.0.1.",
        &[],
    ),
    (
        "bridge",
        "Two namespaces joined by a bridge, as Docker does it.",
        &[
            "ip link add br0 type bridge",
            "ip link add veth0 type veth peer name eth0",
            "sysctl net.core.somaxconn=4096",
        ],
    ),
    (
        "vxlan",
        "Two bridges joined by an overlay, as Flannel does it.",
        &[
            "ip link add vx0 type vxlan id 1 dstport 4789 local 10.0.0.1 remote 10.0.0.2",
            "ip link set vx0 mtu 1450",
        ],
    ),
    (
        "millrace-bridge",
        "The bridge, with both programs under Millrace.",
        &["MILLRACE_AGENT=/run/millrace/agent.sock"],
    ),
];
/// How much longer a round trip is than on loopback.
const SLOWNESS: [f64; 4] = [1.0, 1.35, 2.1, 0.09];
const SECONDS: f64 = 5.0;

/// A sequence of numbers in [0, 1) that look random: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Writes the whole directory.
pub(crate) fn results(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    let mut random = Random(7);
    let mut cells = Vec::new();
    for clients in [1, 4, 8, 24] {
        for road in 0..ROADS.len() {
            cells.push(redis(directory, clients, road, &mut random)?);
        }
    }
    cells.extend((0..ROADS.len()).map(|road| ping_pong(road, &mut random)));
    for bytes in [64, 1024, 16_384, 262_144] {
        cells.extend((0..ROADS.len()).map(|road| throughput(bytes, road, &mut random)));
    }
    let roads = ROADS.map(|(name, about, settings)| Road {
        name: name.to_owned(),
        about: about.to_owned(),
        settings: settings
            .iter()
            .map(|setting| (*setting).to_owned())
            .collect(),
        build: None,
    });
    let results = Results {
        schema: SCHEMA,
        millrace: "0.1.0".to_owned(),
        started: "2026-11-22T09:30:00Z".to_owned(),
        plan: Plan {
            command: "millrace bench run redis ping-pong throughput --repeat 10 --time 5".split(' ').map(str::to_owned).collect(),
            repeats: ROUNDS,
            seconds: SECONDS,
            width: Default::default(),
            seed: 498,
            quick: false,
            minutes_max: None,
            short: false,
            pinned: "server 2, client 3".to_owned(),
        },
        machine: facts(),
        roads: roads.to_vec(),
        cells,
        warnings: vec![
            "These figures were invented to test the report. Nothing was measured.".to_owned(),
            "The governor is “powersave” & the frequency changed between 2.1 and 3.4 GHz <while trials ran>.".to_owned(),
        ],
    };
    results.write(directory)
}

fn facts() -> Vec<Fact> {
    let facts = [
        ("processor", "Example 9000, 8 cores at 3.4 GHz"),
        ("kernel", "6.18.44"),
        (
            "mitigations",
            "spectre_v2: Enhanced IBRS; meltdown: not affected; retbleed: not affected",
        ),
        ("governor", "powersave"),
        ("isolated processors", "2-3"),
        ("redis-server", "7.0.15"),
        ("sockperf", "3.10"),
        ("iperf3", "3.12"),
    ];
    facts
        .map(|(name, value)| Fact {
            name: name.to_owned(),
            value: value.to_owned(),
        })
        .to_vec()
}

/// Nanoseconds that one in `rarity` requests exceeds.
fn latency_at(median: f64, slowness: f64, rarity: f64) -> f64 {
    let body = median * (0.82 + 0.18 * (rarity / 2.0).min(4.0).powf(0.7));
    let tail = median * 0.14 * slowness.sqrt() * (rarity / 60.0).powf(0.42);
    body + tail
}

fn random_latency(median: f64, slowness: f64, random: &mut Random) -> u64 {
    let rarity = (1.0 - random.next()).recip();
    (latency_at(median, slowness, rarity) * (0.94 + 0.12 * random.next())) as u64
}

fn outcome_of(round: u32, wanted: u32, outcome: Outcome) -> Outcome {
    if round == wanted {
        outcome
    } else {
        Outcome::Counts
    }
}

fn commands(server: &str, client: &str) -> BTreeMap<String, String> {
    [("server", server), ("client", client)]
        .map(|(program, line)| (program.to_owned(), line.to_owned()))
        .into()
}

fn processor(operations: f64, own_ns: f64, slowness: f64, random: &mut Random) -> Processor {
    let own = operations * own_ns / 1e9 * (0.95 + 0.1 * random.next());
    let kernel = (0.35 + 0.3 * slowness).min(0.85);
    Processor {
        server_user_s: own * 0.52 * (1.0 - kernel),
        server_system_s: own * 0.52 * kernel,
        client_user_s: own * 0.48 * (1.0 - kernel),
        client_system_s: own * 0.48 * kernel,
        softirq_s: own * 0.2 * slowness.min(2.0),
        steal_s: own * 0.004,
        busy_s: own * 1.25,
        others_s: own * 0.01,
        ..Processor::default()
    }
}

fn trial(
    round: u32,
    value: f64,
    processor: Processor,
    commands: BTreeMap<String, String>,
) -> Trial {
    Trial {
        round,
        outcome: Outcome::Counts,
        commands,
        value,
        operations: value * SECONDS,
        seconds: SECONDS,
        latency: None,
        processor,
        clocks: None,
        ready_per_wake: None,
        server_ready_per_wake: None,
        idle: None,
        packets: None,
        ring_share: None,
        histogram: None,
        trace: None,
        notes: Vec::new(),
    }
}

fn redis(directory: &Path, clients: u64, road: usize, random: &mut Random) -> Result<Cell> {
    let (name, slowness) = (ROADS[road].0, SLOWNESS[road]);
    let load = clients as f64;
    let median = 23_000.0 * slowness * (1.0 + load / 9.0) / if clients > 1 { 1.4 } else { 1.0 };
    let rate = load / median * 1e9;
    let mut trials = Vec::new();
    for round in 1..=ROUNDS {
        let drift = 0.96 + 0.08 * random.next();
        let line = format!(
            "millrace load redis --clients {clients} --bytes 64 --seconds 5 --connect 10.0.0.2:{}",
            6300 + round % 2
        );
        let commands = commands(
            "taskset --cpu-list 2 redis-server --save '' --appendonly no",
            &line,
        );
        let processor = processor(rate * SECONDS, 1.6e9 / rate, slowness, random);
        let mut trial = trial(round, rate / drift, processor, commands);
        let prefix = format!("redis-{clients}-{name}-{round}");
        trial.histogram = Some(format!("{prefix}.hdr"));
        trial.latency = Some(histogram(
            &directory.join(format!("{prefix}.hdr")),
            median * drift,
            slowness,
            random,
        )?);
        if round == ROUNDS / 2 {
            trial.trace = Some(format!("{prefix}.trace.gz"));
            trace(
                &directory.join(format!("{prefix}.trace.gz")),
                median * drift,
                road,
                random,
            )?;
        }
        if clients == 8 && name == "bridge" {
            trial.outcome = outcome_of(
                round,
                3,
                Outcome::Void(
                    "12.4 % of the time was stolen by the hypervisor; 1 % is the bound".to_owned(),
                ),
            );
        }
        if name == "millrace-bridge" {
            trial.ring_share = Some(0.998);
            if clients >= 8 {
                trial
                    .notes
                    .push("the generator was the bottleneck".to_owned());
            }
        }
        trials.push(trial);
    }
    Ok(Cell {
        scenario: "redis".to_owned(),
        title: "Redis SET, closed loop".to_owned(),
        road: name.to_owned(),
        parameters: [("clients".to_owned(), clients), ("bytes".to_owned(), 64)].into(),
        unit: Unit::OperationsPerSecond,
        figure: "requests per second".to_owned(),
        trials,
    })
}

/// A histogram of 1.2 million requests, by their quantiles and not each by itself.
fn histogram(path: &Path, median: f64, slowness: f64, random: &mut Random) -> Result<Latency> {
    const COUNT: f64 = 1_200_000.0;
    let mut histogram = Histogram::<u64>::new(4)?;
    let mut beyond = COUNT;
    while beyond >= 1.0 {
        let here = (beyond * 0.01).ceil();
        let rarity = COUNT / (beyond - here / 2.0);
        let ns = latency_at(median, slowness, rarity) * (0.995 + 0.01 * random.next());
        histogram.record_n(ns as u64, here as u64)?;
        beyond -= here;
    }
    V2DeflateSerializer::new().serialize(&histogram, &mut File::create(path)?)?;
    Ok(Latency {
        count: histogram.len(),
        min_ns: histogram.min(),
        max_ns: histogram.max(),
        mean_ns: histogram.mean(),
        deviation_ns: histogram.stdev(),
        percentiles: [50.0, 90.0, 99.0, 99.9]
            .map(|p| (p, histogram.value_at_percentile(p)))
            .to_vec(),
    })
}

/// Requests at a steady rate. On the bridge nothing is answered for [`STALL_NS`]; on the overlay something else runs four times a second.
fn trace(path: &Path, median: f64, road: usize, random: &mut Random) -> Result<()> {
    const COUNT: u64 = 40_000;
    let interval_ns = (SECONDS * 1e9) as u64 / COUNT;
    let stall_ns = 2_000_000_000..2_000_000_000 + STALL_NS;
    let mut text = String::new();
    for at_ns in (0..COUNT).map(|index| index * interval_ns) {
        let mut took_ns = random_latency(median, SLOWNESS[road], random);
        if ROADS[road].0 == "bridge" && stall_ns.contains(&at_ns) {
            took_ns += stall_ns.end - at_ns;
        }
        if ROADS[road].0 == "vxlan" && at_ns % 250_000_000 < 6_000_000 {
            took_ns *= 5;
        }
        text.push_str(&format!("{at_ns} {took_ns}\n"));
    }
    let mut file = GzEncoder::new(File::create(path)?, Compression::fast());
    file.write_all(text.as_bytes())?;
    file.finish()?;
    Ok(())
}

/// A tool that tells percentiles and keeps no histogram.
fn ping_pong(road: usize, random: &mut Random) -> Cell {
    let slowness = SLOWNESS[road];
    let trials = (1..=ROUNDS).map(|round| {
        let median = 11_000.0 * slowness * (0.97 + 0.06 * random.next());
        let commands = commands(
            "sockperf server --tcp --ip 10.0.0.2",
            "sockperf ping-pong --tcp --ip 10.0.0.2 --msg-size 64 --time 5",
        );
        let operations = SECONDS * 1e9 / (2.0 * median);
        let mut trial = trial(
            round,
            median,
            processor(operations, median * 1.8, slowness, random),
            commands,
        );
        trial.operations = operations;
        let at = |p: f64| (p, latency_at(median, slowness, 100.0 / (100.0 - p)) as u64);
        let count = operations as u64;
        let told = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 99.999].map(at);
        let carried = told
            .into_iter()
            .filter(|(p, _)| operations * (100.0 - p) / 100.0 >= 100.0);
        trial.latency = Some(Latency {
            count,
            min_ns: (median * 0.8) as u64,
            max_ns: (median * 40.0) as u64,
            mean_ns: median * 1.05,
            deviation_ns: median * 0.3,
            percentiles: carried.collect(),
        });
        trial
    });
    Cell {
        scenario: "ping-pong".to_owned(),
        title: "Ping-pong of 64 B with sockperf".to_owned(),
        road: ROADS[road].0.to_owned(),
        parameters: BTreeMap::new(),
        unit: Unit::Nanoseconds,
        figure: "median round trip".to_owned(),
        trials: trials.collect(),
    }
}

/// A tool that tells a rate and nothing of latency. On the overlay it cannot send the smallest messages.
fn throughput(bytes: u64, road: usize, random: &mut Random) -> Cell {
    let (name, slowness) = (ROADS[road].0, SLOWNESS[road]);
    let size = bytes as f64;
    let speed = 8e9 * size / (350.0 * slowness.sqrt() + size / (3.4 + 3.0 / (0.2 + slowness)));
    let trials = (1..=ROUNDS).map(|round| {
        let value = speed * (0.93 + 0.14 * random.next());
        let commands = commands("iperf3 --server", &format!("iperf3 --client 10.0.0.2 --length {bytes} --time 5"));
        let operations = value / 8.0 / size * SECONDS;
        let took = processor(operations, 60.0 + 500.0 * slowness + size * 0.2, slowness, random);
        let mut trial = trial(round, value, took, commands);
        trial.operations = operations;
        if name == "vxlan" && bytes == 64 {
            let said = "iperf3: error - unable to send <control> message: Bad file descriptor <script>alert(1)</script>";
            trial.outcome = Outcome::Failed(said.to_owned());
        }
        trial
    });
    Cell {
        scenario: "throughput".to_owned(),
        title: "Throughput of one stream with iperf3".to_owned(),
        road: name.to_owned(),
        parameters: [("bytes".to_owned(), bytes)].into(),
        unit: Unit::BitsPerSecond,
        figure: "bits per second".to_owned(),
        trials: trials.collect(),
    }
}
