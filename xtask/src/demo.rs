//! `cargo xtask demo`: real programs over the kernel and over Millrace in turn, and one table.

use anyhow::Result;
use millrace_bench::isolate;

use crate::bench::{self, Plan};
use crate::packages;

/// Scenarios that show what Millrace is for, within five minutes.
pub(crate) const SHOWN: &[&str] = &["redis", "sockperf", "nginx", "iperf3"];
const PLAN: Plan = Plan {
    repeats: 3,
    seconds: 2,
};

/// The command.
pub(crate) fn command(arguments: &mut lexopt::Parser) -> Result<()> {
    if let Some(argument) = arguments.next()? {
        return Err(argument.unexpected().into());
    }
    packages::install_missing("demo")?;
    // Told before minutes of building.
    isolate::ensure_possible()?;
    let table = bench::demo(PLAN, SHOWN)?;
    println!("\n{table}");
    println!(
        "Medians of {} trials of {} s on each road in turn; server and client on a processor each.\n\
         `millrace run -- PROGRAM` is all that was done to the programs; `make bench-sockets` measures more.",
        PLAN.repeats, PLAN.seconds,
    );
    Ok(())
}
