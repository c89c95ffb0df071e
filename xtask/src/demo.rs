//! `cargo xtask demo`: real programs over the kernel and over Millrace in turn, and one table.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::bench::{self, Lab, Plan, Road, SCENARIOS};
use crate::packages;

/// Workloads of the benchmarks that show what Millrace is for, within five minutes.
const SHOWN: &[&str] = &[
    "redis-1",
    "redis-50",
    "sockperf-ping-pong",
    "sockperf-throughput",
    "nginx",
    "iperf3",
];

/// From then on each workload runs only once on each road: five minutes are promised.
const HURRY: Duration = Duration::from_secs(180);

/// The command. With `--roads kernel,kernel` it tries itself out without Millrace.
pub(crate) fn command(arguments: &mut lexopt::Parser) -> Result<()> {
    use lexopt::prelude::{Long, ValueExt};
    let mut plan = Plan {
        repeats: 3,
        seconds: 2,
        roads: None,
    };
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("roads") => plan.roads = Some(arguments.value()?.parse_with(bench::parse_roads)?),
            other => return Err(other.unexpected().into()),
        }
    }
    let start = Instant::now();
    packages::install_missing("demo")?;
    let with_millrace = plan
        .roads
        .is_none_or(|roads| roads.contains(&Road::Millrace));
    let lab = Lab::open(with_millrace)?;
    let mut rows = Vec::new();
    for scenario in SCENARIOS
        .iter()
        .filter(|scenario| SHOWN.contains(&scenario.name))
    {
        eprintln!("{}, after {} s", scenario.name, start.elapsed().as_secs());
        if start.elapsed() > HURRY {
            plan.repeats = 1;
        }
        rows.extend(bench::run(&lab, scenario, plan)?);
    }
    drop(lab);
    println!("\n{}", bench::table(&rows));
    println!(
        "Medians of up to three runs of {} s on each road in turn; server and client on a processor each.\n\
         `millrace run -- PROGRAM` is all that was done to the programs; `make bench-sockets` measures more.",
        plan.seconds,
    );
    Ok(())
}
