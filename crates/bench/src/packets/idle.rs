//! A device that has nothing to do: what it uses of its processor all the same.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::drive::Generator;
use super::sink::Checks;
use crate::sys::processor_time;

/// After the last packet a device may have something to do for so long.
const SETTLE: Duration = Duration::from_secs(1);
/// Ports are asked so often for what is not packets.
const LOOK: Duration = Duration::from_millis(20);

/// What a device has used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quiet {
    /// How long no packet was sent.
    pub seconds: f64,
    /// Processor time of all its threads meanwhile.
    pub processor_s: f64,
}

impl Quiet {
    /// The share of one processor.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.processor_s / self.seconds
    }
}

impl fmt::Display for Quiet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.share() * 100.0;
        write!(
            f,
            "without a packet for {:.2} s the device used {share:.3} % of a processor",
            self.seconds
        )
    }
}

/// Sends a few packets, and then none; looks what a process uses meanwhile.
///
/// # Errors
/// As [`Generator::wait_until_it_passes`]; there is no such process; a signal.
pub fn idle(
    generator: &mut Generator,
    device: u32,
    seconds: f64,
    checks: Checks,
    stop: &AtomicBool,
) -> Result<Quiet> {
    generator.wait_until_it_passes(checks, stop)?;
    wait(generator, SETTLE, stop)?;
    let used = || {
        let pid = i32::try_from(device).ok();
        let time = pid.and_then(processor_time);
        time.with_context(|| format!("there is no process {device}"))
    };
    let (before, begun) = (used()?, Instant::now());
    wait(generator, Duration::from_secs_f64(seconds), stop)?;
    let passed = begun.elapsed();
    let used = used()?.saturating_sub(before);
    Ok(Quiet {
        seconds: passed.as_secs_f64(),
        processor_s: used.as_secs_f64(),
    })
}

fn wait(generator: &mut Generator, time: Duration, stop: &AtomicBool) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        ensure!(
            !stop.load(Ordering::Relaxed),
            "ended before the time was over"
        );
        ensure!(generator.poll(), "a connection has ended");
        std::thread::sleep(LOOK);
    }
    Ok(())
}
