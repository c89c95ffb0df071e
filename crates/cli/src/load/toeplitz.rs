//! `millrace load toeplitz`.

use anyhow::{Result, ensure};
use clap::Args;
use millrace_bench::events::{self, Hash};
use millrace_bench::load::stop_on_signals;

/// How hashes are computed, and for how long.
#[derive(Debug, Args)]
pub(super) struct ToeplitzArguments {
    /// Bit by bit, or by the scheduler's own tables (naive, tables)
    #[arg(value_name = "HOW")]
    how: Hash,
    /// Seconds to go on
    #[arg(long, short, value_name = "S", default_value_t = 3.0)]
    time: f64,
    /// Tell the figures as one JSON object
    #[arg(long)]
    json: bool,
}

impl ToeplitzArguments {
    /// Computes them.
    pub(super) fn load(&self) -> Result<u8> {
        ensure!(
            self.time > 0.0 && self.time <= 3_600.0,
            "hashes are computed for up to 3600 seconds, not {}",
            self.time
        );
        let stop = stop_on_signals()?;
        super::print(&events::hashes(self.how, self.time, &stop)?, self.json)
    }
}
