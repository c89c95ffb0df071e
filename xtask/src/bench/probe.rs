//! Figures that no public program measures.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use millrace_bench::process::Program;
use millrace_bench::readers::{Latency, Reading};
use millrace_bench::{machine, sys};

use super::scenario::Road;
use super::site::Site;
use crate::stats;

/// Measures one side once.
pub(crate) type Probe = fn(&Site<'_>) -> Result<Reading>;

const ECHO: &str = "{helper} load echo --port {port}";
/// Long enough for what follows a connection's last byte (closing a ring, an agent's time-outs).
const SETTLING: Duration = Duration::from_secs(2);

/// Processor time of a server and a client that are silent, and of the agent, in per cent of one
/// processor.
pub(crate) fn idle_processor(site: &Site<'_>) -> Result<Reading> {
    let server = site.serve(ECHO)?;
    let client = site.open_idle(1)?;
    pause(SETTLING)?;
    let agent = || {
        site.lab
            .agent()
            .map_or(Duration::ZERO, |agent| agent.processor().total())
    };
    let used = || server.processor().total() + client.processor().total() + agent();
    let (start, before) = (Instant::now(), used());
    pause(Duration::from_secs(site.seconds))?;
    let share = (used() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    let ring_share = site.ring_share()?;
    Ok(Reading {
        value: share * 100.0,
        ring_share,
        ..Reading::default()
    })
}

/// Memory that 10 000 connections take: of both programs, of the agent, and of the kernel.
pub(crate) fn idle_memory(site: &Site<'_>) -> Result<Reading> {
    const CONNECTIONS: usize = 10_000;
    let limit = sys::raise_descriptor_limit();
    ensure!(
        limit > CONNECTIONS as u64 + 100,
        "{CONNECTIONS} connections need more descriptors than the limit of {limit}"
    );
    // What programs share is looked up for the whole machine.
    let memory = |program: &Program| {
        let memory = program.memory();
        (memory.private + memory.tables) >> 10
    };
    let agent = || site.lab.agent().map_or(0, memory);
    let before = shared_memory() + agent();
    let server = site.serve(ECHO)?;
    let client = site.open_idle(CONNECTIONS)?;
    pause(SETTLING)?;
    let after = shared_memory() + agent() + memory(&server) + memory(&client);
    let value = (after as f64 - before as f64) / 1024.0;
    let ring_share = site.ring_share()?;
    Ok(Reading {
        value,
        ring_share,
        ..Reading::default()
    })
}

/// Time from starting `/bin/true` to having collected it, in milliseconds.
pub(crate) fn start_cost(site: &Site<'_>) -> Result<Reading> {
    const STARTS: usize = 300;
    let mut milliseconds = Vec::with_capacity(STARTS);
    for _ in 0..STARTS {
        let mut command = Command::new("/bin/true");
        site.lab.set_road(&mut command, site.road);
        if site.road == Road::Millrace {
            command.env("LD_PRELOAD", site.lab.library());
        }
        command.stdin(Stdio::null());
        let start = Instant::now();
        let status = command.status()?;
        milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
        ensure!(status.success(), "/bin/true failed");
        ensure!(!sys::interrupted(), "interrupted");
    }
    let nanoseconds = |share| Some(stats::percentile(&milliseconds, share) * 1e6);
    Ok(Reading {
        value: stats::median(&milliseconds),
        latency: Latency {
            p50: nanoseconds(0.5),
            p99: nanoseconds(0.99),
            p999: None,
        },
        ..Reading::default()
    })
}

/// KiB of shared memory and of what the kernel keeps for itself, in the whole machine: no process is
/// charged with them.
fn shared_memory() -> u64 {
    machine::meminfo(&["Shmem", "SUnreclaim"])
}

fn pause(time: Duration) -> Result<()> {
    std::thread::sleep(time);
    ensure!(!sys::interrupted(), "interrupted");
    Ok(())
}
