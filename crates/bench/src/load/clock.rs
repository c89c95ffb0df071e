//! Time since a run's beginning.

use super::sys;

/// Batches of reads that are timed to find out what one costs, and reads in each.
const BATCHES: u32 = 50;
const READS: u32 = 400;

/// Nanoseconds since it was made. On Linux a read is a few instructions in user space (`clock_gettime` in the vDSO).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// When that was, by the machine's monotonic clock.
    pub(super) origin_ns: u64,
}

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock::at(0)
    }

    /// One that shows `now_ns` now.
    pub(crate) fn at(now_ns: u64) -> Clock {
        Clock {
            origin_ns: sys::monotonic_ns() - now_ns,
        }
    }

    /// A run of 584 years would overflow.
    #[inline]
    pub(crate) fn now(self) -> u64 {
        sys::monotonic_ns() - self.origin_ns
    }
}

/// What one read costs, in nanoseconds, when nothing interrupts it. Each latency contains about one such read; it is told, and
/// subtracted nowhere.
pub(super) fn read_cost_ns() -> f64 {
    let clock = Clock::start();
    let mut least_ns = u64::MAX;
    for _ in 0..BATCHES {
        let before_ns = clock.now();
        for _ in 1..READS {
            std::hint::black_box(clock.now());
        }
        least_ns = least_ns.min(clock.now() - before_ns);
    }
    least_ns as f64 / f64::from(READS)
}
