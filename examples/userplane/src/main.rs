//! A user plane in three stages, each a program of its own that may run in a container of its own: a balancer distributes packets by flow
//! to workers, which change them and forward them to a collector, which checks what arrives.
//!
//! In reading order: `packet` (what is in a message), `balancer`, `worker`, `collector` with its `ledger`; `capture` (files of packets),
//! `stop` (signals).

#![forbid(unsafe_code)]

mod balancer;
mod capture;
mod collector;
mod ledger;
mod packet;
mod stop;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use millrace_channel::Channel;
use nix::time::{ClockId, clock_gettime};

/// A load balancer, its workers and a collector, which exchange packets over channels of Millrace.
///
/// Start an agent (`millrace agent`), and then, each in a terminal or container of its own:
///
///     userplane capture --flows 64 --packets 10000 packets.pcap
///     userplane collector --packets 1000000 --repeats
///     userplane worker
///     userplane worker
///     userplane balancer --redeliver --times 100 packets.pcap
///
/// Kill workers with any signal and start others while it runs: the collector says at the end what became of it.
#[derive(Debug, Parser)]
#[command(name = "userplane", verbatim_doc_comment, max_term_width = 100)]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Capture(capture::Options),
    Balancer(balancer::Options),
    Worker(worker::Options),
    Collector(collector::Options),
}

/// What all who use channels can be told.
#[derive(Debug, Args)]
struct ChannelOptions {
    /// What the names of both channels begin with: NAME/packets from the balancer, NAME/forwarded to the collector.
    #[arg(long, value_name = "NAME", default_value = "userplane")]
    name: String,
    /// Memory for one's own messages, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 8)]
    pool: u64,
    /// Messages that may be outstanding between two programs: a power of two. A worker that is killed has so many at most.
    #[arg(long, value_name = "COUNT", default_value_t = 1024)]
    slots: u32,
}

/// How long a stage waits for another before it looks whether it is to stop.
const PATIENCE: Duration = Duration::from_millis(200);

impl ChannelOptions {
    /// From the balancer to the workers.
    fn packets(&self) -> Channel {
        self.channel("packets")
    }

    /// From the workers to the collector.
    fn forwarded(&self) -> Channel {
        // There is one collector: whatever holds it up, nothing may be lost.
        self.channel("forwarded").patience(None)
    }

    fn channel(&self, stage: &str) -> Channel {
        Channel::new(&format!("{}/{stage}", self.name))
            .pool_bytes(self.pool << 20)
            .slots(self.slots)
            .timeout(PATIENCE)
    }
}

/// Nanoseconds of a clock that all programs of a machine share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

fn main() -> anyhow::Result<ExitCode> {
    match Options::parse().what {
        What::Capture(options) => capture::write(&options)?,
        What::Balancer(options) => balancer::run(&options)?,
        What::Worker(options) => worker::run(&options)?,
        What::Collector(options) => return collector::run(&options),
    }
    Ok(ExitCode::SUCCESS)
}
