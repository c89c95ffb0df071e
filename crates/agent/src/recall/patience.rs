//! How long recalls may hold the agent up.

use std::time::{Duration, Instant};

/// How long a recall waits for room in the sender's kernel socket, or for a call that sleeps there.
pub(super) const WAIT: Duration = Duration::from_millis(50);
/// How long it waits when recalls have held the agent up lately, and for a lock; less does not count as holding up.
pub(super) const SHORT_WAIT: Duration = Duration::from_millis(1);
/// For every moment that a recall held the agent up, so many pass until one may wait again.
const REST_FACTOR: u32 = 9;

/// Lets recalls wait long in a tenth of the time at most, whoever asks for them.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    rests_until: Option<Instant>,
}

impl Patience {
    pub(super) fn at(&self, now: Instant) -> Duration {
        match self.rests_until {
            Some(until) if now < until => SHORT_WAIT,
            _ => WAIT,
        }
    }

    pub(super) fn spend(&mut self, now: Instant, spent: Duration) {
        if spent > SHORT_WAIT {
            let until = now + spent * REST_FACTOR;
            self.rests_until = self.rests_until.max(Some(until));
        }
    }
}
