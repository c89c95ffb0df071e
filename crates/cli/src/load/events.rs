//! `millrace load events`.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use millrace_bench::events::{self, Hash, Load};
use millrace_bench::load::stop_on_signals;

/// What is let in, and what becomes of it.
#[derive(Debug, Args)]
pub(super) struct EventsArguments {
    /// Atomic stages, one behind the other
    #[arg(long, value_name = "N", default_value_t = 1)]
    stages: usize,
    /// Cycles that each stage works for an event, about
    #[arg(long, value_name = "N", default_value_t = 0)]
    cycles: u64,
    /// How many flows there are
    #[arg(long, value_name = "N", default_value_t = 1024)]
    flows: u32,
    /// Seconds that events are let in
    #[arg(long, short, value_name = "S", default_value_t = 3.0)]
    time: f64,
    /// A flow's stages stay with one worker [default: as is measured]
    #[arg(long, conflicts_with = "apart")]
    fused: bool,
    /// A flow's stages may be several workers'
    #[arg(long)]
    apart: bool,
    /// How many workers there are
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// Processors of the workers, and then that of the thread that lets events in [default: wherever the kernel puts them]
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    processors: Vec<usize>,
    /// Events that are let in together
    #[arg(long, value_name = "N", default_value_t = 32)]
    enqueue: usize,
    /// Events that a stage gets at once, at most
    #[arg(long, value_name = "N", default_value_t = 32)]
    dequeue: usize,
    /// Events that may be in the stages, at most: the next ones are refused, and tried again
    #[arg(long, value_name = "N", default_value_t = 4096)]
    limit: usize,
    /// Find flows by the Toeplitz hash of a tuple of 12 bytes, bit by bit or by the scheduler's own tables (naive, tables) [default: they
    /// take turns]
    #[arg(long, value_name = "HOW")]
    hash: Option<Hash>,
    /// Draw the stages, with what passed from one to the next (SVG)
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Play it in virtual time, in which a stage takes so many nanoseconds for an event and each worker has a processor: what the
    /// scheduler's decisions bring, and no figure of this machine
    #[arg(long, value_name = "NS", conflicts_with_all = ["cycles", "processors", "hash", "picture"])]
    simulate: Option<u64>,
    /// Tell the figures as one JSON object
    #[arg(long)]
    json: bool,
}

impl EventsArguments {
    /// Lets them in.
    pub(super) fn load(&self) -> Result<u8> {
        let stop = stop_on_signals()?;
        ensure!(
            self.time > 0.0 && self.time <= 3_600.0,
            "events are let in for up to 3600 seconds, not {}",
            self.time
        );
        let load = Load {
            stages: self.stages,
            cycles: self.cycles,
            flows: self.flows,
            seconds: self.time,
            fused: (self.fused || self.apart).then_some(self.fused),
            workers: self.workers,
            processors: self.processors.clone(),
            enqueue: self.enqueue,
            dequeue: self.dequeue,
            limit: self.limit,
            hash: self.hash,
            picture: self.picture.clone(),
        };
        let passed = match self.simulate {
            Some(cost_ns) => events::simulate(&load, cost_ns, &stop)?,
            None => events::run(&load, &stop)?,
        };
        super::print(&passed, self.json)
    }
}
