//! What looks at a scheduler, and tunes it, while it runs: from any thread, without being noticed by those who work.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::balance::Clock;
use crate::shared::{Shared, nanoseconds};
use crate::snapshot::Snapshot;
use crate::{BURST_MAX, LIMIT_MAX};

/// A view of a scheduler. It may be cloned, and outlive it.
#[derive(Debug, Clone)]
pub struct Control {
    shared: Arc<Shared>,
    clock: Clock,
}

impl Control {
    pub(crate) fn new(shared: Arc<Shared>, clock: Clock) -> Control {
        Control { shared, clock }
    }

    /// All figures, as they are now. Each is right, and they are not of one moment: workers go on meanwhile. What is not counted as it
    /// happens, as what waits, is up to a quarter of a millisecond old.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::take(&self.shared, self.clock.now())
    }

    /// How many events of an entry point may be in the graph, from now on: `new_event_threshold` in Eventdev's words. At least one, and at
    /// most 2^24. False: there is no such entry point.
    #[must_use]
    pub fn set_limit(&self, entry: usize, limit: usize) -> bool {
        let limit = limit.clamp(1, LIMIT_MAX) as u64;
        let known = self.shared.tuning.limits.get(entry);
        known.map(|known| known.store(limit, Relaxed)).is_some()
    }

    /// How many events a handler gets at once, at most, from each worker's next turn on: 1 to 1024.
    pub fn set_burst(&self, burst: usize) {
        let burst = burst.clamp(1, BURST_MAX);
        self.shared.tuning.burst.store(burst, Relaxed);
    }

    /// While more events than so many wait at a worker, batches of ordered stages go to workers with less to do.
    pub fn set_lend_above(&self, events: usize) {
        self.shared.tuning.lend_above.store(events, Relaxed);
    }

    /// How long an event may wait; none: all workers are active, whatever waits.
    pub fn set_latency(&self, latency: Option<Duration>) {
        let latency = nanoseconds(latency);
        self.shared.tuning.latency_ns.store(latency, Relaxed);
    }

    /// How many workers are active now: the others have no flows, and sleep.
    #[must_use]
    pub fn active(&self) -> usize {
        self.shared.active().count_ones() as usize
    }
}
