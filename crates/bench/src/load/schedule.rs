//! When requests are sent.
//!
//! In an open loop a request is due at a time that was fixed before the run, whatever became of those before it, and its latency
//! counts from then. A generator that waits for answers instead leaves out just the requests that a stall would have hurt: Gil Tene's
//! *coordinated omission* ("How NOT to Measure Latency", 2013), which wrk2 was made against.

use anyhow::{Result, ensure};

/// More than any generator can do.
const HIGHEST_RATE: f64 = 1e9;

/// The order of sending.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Schedule {
    /// The next when an answer is there.
    Closed,
    /// At a fixed rate. Requests go round the connections: each has its own, and is late with them when its answers are.
    Open {
        /// Between two requests.
        interval_ns: f64,
    },
}

impl Schedule {
    pub(super) fn new(rate: Option<f64>) -> Result<Schedule> {
        let Some(rate) = rate else {
            return Ok(Schedule::Closed);
        };
        ensure!(
            rate > 0.0 && rate <= HIGHEST_RATE,
            "a rate is above 0 and at most {HIGHEST_RATE} requests a second, not {rate}"
        );
        let interval_ns = 1e9 / rate;
        Ok(Schedule::Open { interval_ns })
    }

    /// When a request is due; in a closed loop, at once.
    #[inline]
    pub(super) fn due_ns(self, number: u64) -> u64 {
        match self {
            Schedule::Closed => 0,
            Schedule::Open { interval_ns } => (number as f64 * interval_ns) as u64,
        }
    }

    /// The first request that is due at a time or later. None in a closed loop.
    pub(super) fn first_from(self, time_ns: u64) -> Option<u64> {
        let Schedule::Open { interval_ns } = self else {
            return None;
        };
        let guess = (time_ns as f64 / interval_ns) as u64;
        (guess.saturating_sub(1)..).find(|&number| self.due_ns(number) >= time_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_due_at_equal_intervals() {
        let schedule = Schedule::new(Some(3.0)).unwrap();
        let due: Vec<_> = (0..4).map(|number| schedule.due_ns(number)).collect();
        assert_eq!(due, [0, 333_333_333, 666_666_666, 1_000_000_000]);
        for time in [0, 1, 333_333_332, 333_333_333, 333_333_334, 77_000_000_000] {
            let first = schedule.first_from(time).unwrap();
            assert!(schedule.due_ns(first) >= time);
            assert!(first == 0 || schedule.due_ns(first - 1) < time);
        }
        assert!(Schedule::new(Some(0.0)).is_err());
        assert!(Schedule::new(Some(f64::NAN)).is_err());
    }
}
