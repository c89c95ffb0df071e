//! Clients for whose locks was waited in vain.
//!
//! A recall needs the lock of the other end's half, and its client can hold that for as long as it likes: whoever becomes another program
//! then, or closes, would wait for each of its connections. So there is a second of waiting for a client in all, and a tenth of the time
//! after that. A recall for which nobody waits is tried once.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::offers::ClientId;

/// So long for a client's locks is waited in all.
const WAITED_MAX: Duration = Duration::from_secs(1);
/// One part of so many of the time that passes is forgotten.
const SHARE: u32 = 10;

#[derive(Debug, Default)]
pub(super) struct Stubborn {
    /// How long was waited for each in vain, and when that was last noted.
    waited: HashMap<ClientId, (Duration, Instant)>,
}

impl Stubborn {
    /// Whether nobody waits for this client now.
    pub(super) fn is(&self, client: ClientId, now: Instant) -> bool {
        self.waited(client, now) >= WAITED_MAX
    }

    pub(super) fn note(&mut self, client: ClientId, waited: Duration, now: Instant) {
        let waited = self.waited(client, now) + waited;
        self.waited
            .retain(|_, it| left_of(*it, now) > Duration::ZERO);
        self.waited.insert(client, (waited, now));
    }

    fn waited(&self, client: ClientId, now: Instant) -> Duration {
        let found = self.waited.get(&client);
        found.map_or(Duration::ZERO, |it| left_of(*it, now))
    }
}

fn left_of((waited, at): (Duration, Instant), now: Instant) -> Duration {
    waited.saturating_sub(now.saturating_duration_since(at) / SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_waited_for_a_second_and_a_tenth_of_the_time() {
        let mut stubborn = Stubborn::default();
        let (start, client) = (Instant::now(), ClientId(3));
        for part in 1..=4 {
            assert!(!stubborn.is(client, start));
            stubborn.note(client, WAITED_MAX / 4, start);
            assert_eq!(stubborn.is(client, start), part == 4);
        }
        assert!(!stubborn.is(ClientId(4), start));
        let later = start + WAITED_MAX;
        assert!(!stubborn.is(client, later));
        stubborn.note(client, WAITED_MAX / 10, later);
        assert!(stubborn.is(client, later));
        stubborn.note(ClientId(4), WAITED_MAX, later + WAITED_MAX * SHARE);
        assert_eq!(stubborn.waited.len(), 1, "what is over is forgotten");
    }
}
