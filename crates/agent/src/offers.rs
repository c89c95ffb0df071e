//! Who waits for whom: the table of offers. No I/O, and time is an argument.
//!
//! | from | event | to |
//! |---|---|---|
//! | absent | `insert` | waiting |
//! | waiting | `match_up`: the mirrored offer waits, and both are proved | matched |
//! | waiting | `expire`, ten seconds later | absent, declined |
//! | matched | `take`: its client wants the segment still | taken |
//! | taken | the other one is taken, too: `settle` | absent, paired |
//! | matched, taken | the other one is removed | waiting, for ten seconds more; it stays taken |
//! | any | `remove` (withdrawn, disproved), `remove_client` (the client is gone) | absent |
//!
//! Forbidden: two offers of one client with one id (the client is broken: `insert` refuses), and an offer that keeps
//! another one out. A tuple may be claimed by any number of offers, because a false claim must not displace a
//! true one; false ones go when the proof fails. A matched one does not expire: a program may sleep for long between two calls.

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
    /// Its place among the deadlines, while it waits.
    sequence: u64,
    partner: Option<OfferKey>,
    /// Its client has heard of a match.
    told: bool,
    taken: bool,
}

/// What became of an offer that was taken out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) offer: Offer,
    /// Its client has been waiting for the segment.
    pub(crate) taken: bool,
    /// The offer that it was matched with, which waits again.
    pub(crate) left: Option<OfferKey>,
}

/// Why an offer was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InsertError {
    /// The client already has a waiting offer with this id.
    Duplicate,
    /// Both addresses are the same: a socket that is connected to itself has no other end.
    SelfConnected,
}

/// The offers that wait or are matched.
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
                partner: None,
                told: false,
                taken: false,
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

    /// The offers without a partner that mirror this one and are of another socket, the oldest first.
    pub(crate) fn partners(&self, key: OfferKey) -> Vec<OfferKey> {
        let Some(mine) = self.get(key) else {
            return Vec::new();
        };
        let Some(same_tuple) = self.by_tuple.get(&Tuple::of(mine)) else {
            return Vec::new();
        };
        let mirrored = |other: &&OfferKey| {
            self.waiting.get(*other).is_some_and(|waiting| {
                let theirs = &waiting.offer;
                waiting.partner.is_none()
                    && theirs.local == mine.remote
                    && theirs.remote == mine.local
                    && theirs.cookie != mine.cookie
            })
        };
        same_tuple.iter().filter(mirrored).copied().collect()
    }

    /// Makes two offers without partners each other's; returns those whose clients have not heard of a match.
    pub(crate) fn match_up(&mut self, keys: [OfferKey; 2]) -> Vec<OfferKey> {
        let mut untold = Vec::new();
        for (key, partner) in [(keys[0], keys[1]), (keys[1], keys[0])] {
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.partner = Some(partner);
                self.deadlines.remove(&waiting.sequence);
                if !std::mem::replace(&mut waiting.told, true) {
                    untold.push(key);
                }
            }
        }
        untold
    }

    /// The client of an offer wants the segment still. What was never matched cannot be taken.
    pub(crate) fn take(&mut self, key: OfferKey) {
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.taken = waiting.told;
        }
    }

    /// The offer and its partner, when both are taken.
    pub(crate) fn both_taken(&self, key: OfferKey) -> Option<[OfferKey; 2]> {
        let waiting = self.waiting.get(&key)?;
        let partner = waiting.partner?;
        let taken = waiting.taken && self.waiting.get(&partner)?.taken;
        taken.then_some([key, partner])
    }

    /// Takes two partners out.
    pub(crate) fn settle(&mut self, keys: [OfferKey; 2]) -> [Option<Offer>; 2] {
        for key in keys {
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.partner = None;
            }
        }
        keys.map(|key| self.take_out(key).map(|waiting| waiting.offer))
    }

    /// The offer of this name.
    pub(crate) fn get(&self, key: OfferKey) -> Option<&Offer> {
        self.waiting.get(&key).map(|waiting| &waiting.offer)
    }

    /// All offers without a partner.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (OfferKey, &Offer)> {
        self.waiting
            .iter()
            .filter(|(_, waiting)| waiting.partner.is_none())
            .map(|(key, waiting)| (*key, &waiting.offer))
    }

    /// Takes an offer out; the one that it was matched with waits again.
    pub(crate) fn remove(&mut self, key: OfferKey, now: Instant) -> Option<Removed> {
        let Waiting {
            offer,
            taken,
            partner,
            ..
        } = self.take_out(key)?;
        let left = partner.filter(|partner| self.wait_again(*partner, now));
        Some(Removed { offer, taken, left })
    }

    fn wait_again(&mut self, key: OfferKey, now: Instant) -> bool {
        let Some(waiting) = self.waiting.get_mut(&key) else {
            return false;
        };
        self.sequence += 1;
        waiting.partner = None;
        waiting.sequence = self.sequence;
        self.deadlines.insert(self.sequence, (now + WAIT, key));
        true
    }

    fn take_out(&mut self, key: OfferKey) -> Option<Waiting> {
        let waiting = self.waiting.remove(&key)?;
        self.deadlines.remove(&waiting.sequence);
        let tuple = Tuple::of(&waiting.offer);
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
        Some(waiting)
    }

    /// Takes all offers of a client out; returns those of others that wait again.
    pub(crate) fn remove_client(&mut self, client: ClientId, now: Instant) -> Vec<OfferKey> {
        let keys: Vec<OfferKey> = self
            .waiting
            .range((client, 0)..=(client, u64::MAX))
            .map(|(key, _)| *key)
            .collect();
        let mut left: Vec<OfferKey> = keys
            .into_iter()
            .filter_map(|key| self.remove(key, now)?.left)
            .collect();
        left.retain(|key| key.0 != client);
        left
    }

    /// Takes out one offer that has waited too long, if there is one. Call again until there is none.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<(ClientId, Offer)> {
        let (_, &(deadline, key)) = self.deadlines.first_key_value()?;
        if deadline > now {
            return None;
        }
        self.take_out(key).map(|waiting| (key.0, waiting.offer))
    }

    /// When the oldest offer will have waited too long.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines
            .first_key_value()
            .map(|(_, (deadline, _))| *deadline)
    }

    /// How many offers of this client there are.
    pub(crate) fn count_of(&self, client: ClientId) -> u32 {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// How many offers there are, matched ones included.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests;
