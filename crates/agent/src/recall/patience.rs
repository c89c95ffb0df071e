//! How long recalls may hold the agent up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::tenant::Tenant;

/// How long a recall waits for room in the sender's kernel socket, or for a call that sleeps there.
pub(super) const WAIT: Duration = Duration::from_millis(50);
/// How long it waits when recalls have held the agent up lately, and for a lock; less does not count as holding up.
pub(super) const SHORT_WAIT: Duration = Duration::from_millis(1);
/// For every moment that a tenant's recall held the agent up, so many pass until one of its may wait again.
const REST_FACTOR: u32 = 4;
/// No longer than this, which is enough for the longest of its waits: what held the agent up so long was not its own waiting.
const REST_MAX: Duration = Duration::from_millis(2200);
/// So long a tenant has no recalls on whose socket a worker was stuck.
const STOP: Duration = Duration::from_secs(60);
/// So long something is waited for without giving the processor away: it comes from another one.
const SPIN: Duration = Duration::from_micros(200);
/// Until it is looked for again then: who is to do it may need this processor.
const PAUSE: Duration = Duration::from_micros(50);

/// Lets the recalls of a tenant wait long in a fifth of the time at most. One tenant's rest is none of another's.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    rests: HashMap<Tenant, Instant>,
    stops: HashMap<Tenant, Instant>,
}

impl Patience {
    pub(super) fn at(&self, tenant: Tenant, now: Instant) -> Duration {
        match self.rests_until(tenant, now) {
            Some(_) => SHORT_WAIT,
            None => WAIT,
        }
    }

    /// Until when its recalls do not wait.
    pub(super) fn rests_until(&self, tenant: Tenant, now: Instant) -> Option<Instant> {
        self.rests
            .get(&tenant)
            .copied()
            .filter(|until| now < *until)
    }

    /// From now on it has no recalls for a while: what held the agent up was not its waiting, and may do so again.
    pub(super) fn stop(&mut self, tenant: Tenant, now: Instant) {
        self.stops.retain(|_, until| now < *until);
        self.stops.insert(tenant, now + STOP);
    }

    pub(super) fn is_stopped(&self, tenant: Tenant, now: Instant) -> bool {
        self.stops.get(&tenant).is_some_and(|until| now < *until)
    }

    pub(super) fn spend(&mut self, tenant: Tenant, now: Instant, spent: Duration) {
        if spent > SHORT_WAIT {
            self.rests.retain(|_, until| now < *until);
            let until = self.rests.entry(tenant).or_insert(now);
            *until = (*until).max(now + (spent * REST_FACTOR).min(REST_MAX));
        }
    }
}

/// Lets a moment pass, for one who has waited `since` then for what another is about to do.
pub(super) fn pause(since: Instant) {
    if since.elapsed() < SPIN {
        std::thread::yield_now();
    } else {
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_socket_held_a_worker_up_has_no_recalls_for_a_while() {
        let mut patience = Patience::default();
        let (start, tenant) = (Instant::now(), Tenant::User(1));
        patience.stop(tenant, start);
        assert!(patience.is_stopped(tenant, start));
        assert!(!patience.is_stopped(Tenant::User(2), start));
        assert!(!patience.is_stopped(tenant, start + STOP));
        patience.stop(Tenant::User(2), start + STOP);
        assert_eq!(patience.stops.len(), 1, "others' are forgotten in time");
    }
}
