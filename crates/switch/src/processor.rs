//! The processor of a worker's thread.

use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Has the calling thread run on one processor.
///
/// # Errors
/// When there is none of this number, or the thread may not have it.
pub fn stay_on(processor: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor)?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

/// What the calling thread has used of processors, in nanoseconds.
#[must_use]
pub fn used_ns() -> u64 {
    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    let used = used.map(Duration::from).unwrap_or_default();
    // In 584 years.
    used.as_nanos() as u64
}
