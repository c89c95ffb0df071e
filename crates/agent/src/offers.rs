//! Who waits for whom: the table of offers. No I/O, and time is an argument.
//!
//! | from | event | to |
//! |---|---|---|
//! | absent | `insert` | waiting |
//! | waiting | the mirrored offer is inserted, and both are proved (the caller removes both) | absent, paired |
//! | waiting | `remove` (withdrawn, disproved), `remove_client` (the client is gone) | absent |
//! | waiting | `expire`, ten seconds later | absent, declined |
//!
//! Forbidden: two offers of one client with one id (the client is broken: `insert` refuses), and an offer that keeps
//! another one out. A tuple may be claimed by any number of offers, because a false claim must not displace a
//! true one; false ones go when the proof fails.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use millrace_wire::{Address, Offer};

/// How long an offer waits for its other end.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

/// The agent's number of a client; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u64);

/// An offer's name: ids are only unique within their client.
pub(crate) type OfferKey = (ClientId, u64);

/// One connection, the same from both ends: the network namespace (as claimed) and the two addresses in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Tuple {
    netns_cookie: u64,
    low: Address,
    high: Address,
}

impl Tuple {
    fn of(offer: &Offer) -> Tuple {
        let (low, high) = (offer.local.min(offer.remote), offer.local.max(offer.remote));
        Tuple {
            netns_cookie: offer.netns_cookie,
            low,
            high,
        }
    }
}

#[derive(Debug)]
struct Waiting {
    offer: Offer,
    sequence: u64,
}

/// Why an offer was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InsertError {
    /// The client already has a waiting offer with this id.
    Duplicate,
    /// Both addresses are the same: a socket that is connected to itself has no other end.
    SelfConnected,
}

/// The offers that wait.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    waiting: BTreeMap<OfferKey, Waiting>,
    by_tuple: HashMap<Tuple, Vec<OfferKey>>,
    /// By age: every offer waits equally long, so the sequence of arrival is the sequence of expiry.
    deadlines: BTreeMap<u64, (Instant, OfferKey)>,
    counts: HashMap<ClientId, u32>,
    sequence: u64,
}

impl Offers {
    /// Takes an offer in.
    pub(crate) fn insert(
        &mut self,
        client: ClientId,
        offer: Offer,
        now: Instant,
    ) -> Result<(), InsertError> {
        let key = (client, offer.offer_id);
        if self.waiting.contains_key(&key) {
            return Err(InsertError::Duplicate);
        }
        if offer.local == offer.remote {
            return Err(InsertError::SelfConnected);
        }
        self.sequence += 1;
        self.waiting.insert(
            key,
            Waiting {
                offer,
                sequence: self.sequence,
            },
        );
        self.by_tuple
            .entry(Tuple::of(&offer))
            .or_default()
            .push(key);
        self.deadlines.insert(self.sequence, (now + WAIT, key));
        *self.counts.entry(client).or_default() += 1;
        Ok(())
    }

    /// The waiting offers that mirror this one and are of another socket, the oldest first.
    pub(crate) fn partners(&self, key: OfferKey) -> Vec<OfferKey> {
        let Some(mine) = self.get(key) else {
            return Vec::new();
        };
        let Some(same_tuple) = self.by_tuple.get(&Tuple::of(mine)) else {
            return Vec::new();
        };
        let mirrored = |other: &&OfferKey| {
            self.get(**other).is_some_and(|theirs| {
                theirs.local == mine.remote
                    && theirs.remote == mine.local
                    && theirs.cookie != mine.cookie
            })
        };
        same_tuple.iter().filter(mirrored).copied().collect()
    }

    /// The waiting offer of this name.
    pub(crate) fn get(&self, key: OfferKey) -> Option<&Offer> {
        self.waiting.get(&key).map(|waiting| &waiting.offer)
    }

    /// All waiting offers.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (OfferKey, &Offer)> {
        self.waiting
            .iter()
            .map(|(key, waiting)| (*key, &waiting.offer))
    }

    /// Takes an offer out.
    pub(crate) fn remove(&mut self, key: OfferKey) -> Option<Offer> {
        let Waiting { offer, sequence } = self.waiting.remove(&key)?;
        self.deadlines.remove(&sequence);
        let tuple = Tuple::of(&offer);
        if let Some(keys) = self.by_tuple.get_mut(&tuple) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_tuple.remove(&tuple);
            }
        }
        if let Some(count) = self.counts.get_mut(&key.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key.0);
            }
        }
        Some(offer)
    }

    /// Takes all offers of a client out.
    pub(crate) fn remove_client(&mut self, client: ClientId) {
        let keys: Vec<OfferKey> = self
            .waiting
            .range((client, 0)..=(client, u64::MAX))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            self.remove(key);
        }
    }

    /// Takes out one offer that has waited too long, if there is one. Call again until there is none.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<OfferKey> {
        let (_, &(deadline, key)) = self.deadlines.first_key_value()?;
        if deadline > now {
            return None;
        }
        self.remove(key);
        Some(key)
    }

    /// When the oldest offer will have waited too long.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines
            .first_key_value()
            .map(|(_, (deadline, _))| *deadline)
    }

    /// How many offers of this client wait.
    pub(crate) fn count_of(&self, client: ClientId) -> u32 {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// How many offers wait.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests;
