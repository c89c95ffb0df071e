//! Time: the processor's counter for round trips, the kernel's clock between processes.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

pub(crate) use crate::sys::ticks;

/// How long the counter is held against the kernel's clock.
const CALIBRATION: Duration = Duration::from_millis(50);
const READINGS: u32 = 10_000;

/// The processor's counter, and how long its tick is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    ns_per_tick: f64,
}

impl Clock {
    /// Measures it.
    pub(crate) fn calibrated() -> Clock {
        let (begun, first) = (Instant::now(), ticks());
        while begun.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        let (elapsed, last) = (begun.elapsed(), ticks());
        Clock {
            ns_per_tick: elapsed.as_nanos() as f64 / (last - first).max(1) as f64,
        }
    }

    /// Nanoseconds between two readings.
    #[inline]
    pub(crate) fn ns(self, from: u64, to: u64) -> f64 {
        to.saturating_sub(from) as f64 * self.ns_per_tick
    }

    /// Ticks of a time.
    pub(crate) fn ticks_of(self, time: Duration) -> u64 {
        (time.as_nanos() as f64 / self.ns_per_tick) as u64
    }

    /// What a reading costs.
    pub(crate) fn cost_ns(self) -> f64 {
        let first = ticks();
        for _ in 1..READINGS {
            std::hint::black_box(ticks());
        }
        self.ns(first, ticks()) / f64::from(READINGS)
    }
}

/// CLOCK_MONOTONIC: the same on all processors.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
