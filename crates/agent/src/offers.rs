//! Who waits for whom: the table of offers. No I/O, and time is an argument.
//!
//! | from | event | to |
//! |---|---|---|
//! | absent | `insert` | waiting |
//! | waiting | `match_up`: the mirrored offer waits, and both are proved | matched |
//! | waiting | `expire`, ten seconds later | dormant: its client is told nothing, and whoever looks sees the reason |
//! | dormant | `match_up`: the other end has been offered at last | matched |
//! | dormant | `evict`, `evict_of`: others need the room | absent, declined |
//! | matched | `take`: its client wants the segment still | taken |
//! | taken | the other one is taken, too: `settle` | absent, paired |
//! | matched, taken | the other one is removed | waiting, for ten seconds more; it stays taken |
//! | any | `remove` (withdrawn, disproved), `remove_client` (the client is gone) | absent |
//!
//! Forbidden: two offers of one client with one id (the client is broken: `insert` refuses), and an offer that keeps
//! another one out. A tuple may be claimed by any number of offers, because a false claim must not displace a
//! true one; false ones go when the proof fails. A matched one does not expire: a program may sleep for long between two calls.
//!
//! Nor is an offer forgotten that has waited in vain. The two ends of a connection are not offered at the same time: one program may be
//! known to the agent much later than the other, or make its calls much more rarely, and neither offers twice.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

use millrace_wire::{Address, Offer};

use crate::tenant::Tenant;

/// How long an offer waits for its other end before it is said that there is none, and looked for only when others come.
pub(crate) const WAIT: Duration = Duration::from_secs(10);
/// Offers that may be dormant at a time, of everybody: some 400 bytes each. Connections to other machines are among them.
pub(crate) const DORMANT_MAX: usize = 32_768;
/// Offers of one client with the same two addresses. A connection may be made again, and in several network namespaces; each offer of the
/// other end looks at all of them.
pub(crate) const ALIKE_MAX: usize = 16;

/// The agent's number of a client; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u64);

/// An offer's name: ids are only unique within their client.
pub(crate) type OfferKey = (ClientId, u64);

/// Which offers are of the agent's own network namespace, as far as their own words go: those with its cookie, or with none, or all where
/// the kernel has no such cookies.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reach(pub(crate) Option<u64>);

impl Reach {
    pub(crate) fn has(self, offer: &Offer) -> bool {
        self.0
            .is_none_or(|own| offer.netns_cookie == own || offer.netns_cookie == 0)
    }
}

/// A connection from one of its ends: its address, and the other's.
type Ends = (Address, Address);

fn ends_of(offer: &Offer) -> Ends {
    (offer.local, offer.remote)
}

#[derive(Debug)]
struct Waiting {
    offer: Offer,
    tenant: Tenant,
    /// When it came, by number.
    arrival: u64,
    /// Its place among the deadlines, while it waits, or among the dormant.
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

/// One less.
fn count_down<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
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
    /// In the sequence in which they came.
    by_ends: HashMap<Ends, BTreeMap<u64, OfferKey>>,
    /// By age: every offer waits equally long, so the sequence of arrival is the sequence of expiry.
    deadlines: BTreeMap<u64, (Instant, OfferKey)>,
    /// Those that have waited in vain, with the numbers that they had among the deadlines…
    dormant: BTreeMap<u64, OfferKey>,
    /// …and the same by client.
    dormant_of: BTreeSet<(ClientId, u64)>,
    /// By client, and by tenant.
    counts: HashMap<ClientId, u32>,
    counts_of_tenants: HashMap<Tenant, u32>,
    sequence: u64,
    arrivals: u64,
    reach: Reach,
    /// Those whose introduction waits until that client reads, by the client.
    held_up: BTreeSet<OfferKey>,
    /// How many without a partner, waiting or dormant, are of other network namespaces.
    distant: usize,
}

impl Offers {
    pub(crate) fn new(reach: Reach) -> Offers {
        Offers {
            reach,
            ..Offers::default()
        }
    }

    /// Takes an offer in, of a client and its tenant.
    pub(crate) fn insert(
        &mut self,
        (client, tenant): (ClientId, Tenant),
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
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.waiting.insert(
            key,
            Waiting {
                offer,
                tenant,
                arrival,
                sequence: 0,
                partner: None,
                told: false,
                taken: false,
            },
        );
        self.by_ends
            .entry(ends_of(&offer))
            .or_default()
            .insert(arrival, key);
        *self.counts.entry(client).or_default() += 1;
        *self.counts_of_tenants.entry(tenant).or_default() += 1;
        self.begin_wait(key, now);
        Ok(())
    }

    /// An offer that is in the table, and has no partner, waits for one from now on.
    fn begin_wait(&mut self, key: OfferKey, now: Instant) {
        if let Some(waiting) = self.waiting.get_mut(&key) {
            self.sequence += 1;
            waiting.sequence = self.sequence;
            self.deadlines.insert(self.sequence, (now + WAIT, key));
            self.distant += usize::from(!self.reach.has(&waiting.offer));
        }
    }

    /// It has found one, or is in the table no more.
    fn end_wait(&mut self, client: ClientId, offer: &Offer, sequence: u64) {
        let was_dormant = self.dormant_of.remove(&(client, sequence));
        if was_dormant {
            self.dormant.remove(&sequence);
        }
        if self.deadlines.remove(&sequence).is_some() || was_dormant {
            self.distant -= usize::from(!self.reach.has(offer));
        }
    }

    /// The offers without a partner that mirror this one in its network namespace and are of another socket, the oldest first.
    pub(crate) fn partners(&self, key: OfferKey) -> Vec<OfferKey> {
        let Some(mine) = self.get(key) else {
            return Vec::new();
        };
        let others = self.between((mine.remote, mine.local));
        let is_partner = |other: &&OfferKey| {
            self.waiting.get(*other).is_some_and(|waiting| {
                let theirs = &waiting.offer;
                waiting.partner.is_none()
                    && theirs.cookie != mine.cookie
                    && theirs.netns_cookie == mine.netns_cookie
            })
        };
        others.filter(is_partner).copied().collect()
    }

    /// All that have these ends, the oldest first.
    fn between(&self, ends: Ends) -> impl Iterator<Item = &OfferKey> {
        self.by_ends
            .get(&ends)
            .into_iter()
            .flat_map(BTreeMap::values)
    }

    /// Makes two offers without partners each other's; returns those whose clients have not heard of a match.
    pub(crate) fn match_up(&mut self, keys: [OfferKey; 2]) -> Vec<OfferKey> {
        let mut untold = Vec::new();
        for (key, partner) in [(keys[0], keys[1]), (keys[1], keys[0])] {
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.partner = Some(partner);
                if !std::mem::replace(&mut waiting.told, true) {
                    untold.push(key);
                }
                let (offer, sequence) = (waiting.offer, waiting.sequence);
                self.end_wait(key.0, &offer, sequence);
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

    /// The introduction of an offer that is taken waits until its client reads.
    pub(crate) fn hold_up(&mut self, key: OfferKey) {
        self.held_up.insert(key);
    }

    /// One whose introduction has waited for this client, which reads now. Call again until there is none.
    pub(crate) fn next_held_up(&mut self, client: ClientId) -> Option<OfferKey> {
        let key = *self.of(client).next()?;
        self.held_up.take(&key)
    }

    /// Whether introductions wait until this client reads.
    pub(crate) fn is_held_up(&self, client: ClientId) -> bool {
        self.of(client).next().is_some()
    }

    fn of(&self, client: ClientId) -> impl Iterator<Item = &OfferKey> {
        self.held_up.range((client, 0)..=(client, u64::MAX))
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

    /// Offers that wait for a partner, in the sequence in which they began to, from that number on.
    pub(crate) fn waiting_from(
        &self,
        sequence: u64,
    ) -> impl DoubleEndedIterator<Item = (u64, OfferKey, &Offer)> {
        self.deadlines
            .range(sequence..)
            .filter_map(|(sequence, (_, key))| Some((*sequence, *key, self.get(*key)?)))
    }

    /// Dormant offers, in the sequence in which they began to wait, from that number on.
    pub(crate) fn dormant_from(
        &self,
        sequence: u64,
    ) -> impl Iterator<Item = (u64, OfferKey, &Offer)> {
        self.dormant
            .range(sequence..)
            .filter_map(|(sequence, key)| Some((*sequence, *key, self.get(*key)?)))
    }

    /// Offers that wait for a partner since that moment or later, the latest first.
    pub(crate) fn waiting_since(&self, since: Instant) -> impl Iterator<Item = (OfferKey, &Offer)> {
        self.deadlines
            .values()
            .rev()
            .take_while(move |(deadline, _)| *deadline > since + WAIT)
            .filter_map(|(_, key)| Some((*key, self.get(*key)?)))
    }

    /// Offers without a partner, also dormant ones, that have the same two addresses as this one, which is among them, in whatever
    /// network namespace.
    pub(crate) fn waiting_between(&self, offer: &Offer) -> impl Iterator<Item = (OfferKey, Offer)> {
        let (local, remote) = ends_of(offer);
        let all = self
            .between((local, remote))
            .chain(self.between((remote, local)));
        all.filter_map(|key| {
            let waiting = self.waiting.get(key)?;
            waiting.partner.is_none().then_some((*key, waiting.offer))
        })
    }

    /// How many offers wait for a partner.
    pub(crate) fn waiting_count(&self) -> usize {
        self.deadlines.len()
    }

    /// Whether there are offers that have waited in vain.
    pub(crate) fn has_dormant(&self) -> bool {
        !self.dormant.is_empty()
    }

    /// Whether an offer waits whose partner, or which itself, may be of another network namespace.
    pub(crate) fn has_distant(&self) -> bool {
        self.distant > 0 && !self.deadlines.is_empty()
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
        waiting.partner = None;
        self.begin_wait(key, now);
        true
    }

    fn take_out(&mut self, key: OfferKey) -> Option<Waiting> {
        let waiting = self.waiting.remove(&key)?;
        self.held_up.remove(&key);
        self.end_wait(key.0, &waiting.offer, waiting.sequence);
        let ends = ends_of(&waiting.offer);
        if let Some(keys) = self.by_ends.get_mut(&ends) {
            keys.remove(&waiting.arrival);
            if keys.is_empty() {
                self.by_ends.remove(&ends);
            }
        }
        count_down(&mut self.counts, &key.0);
        count_down(&mut self.counts_of_tenants, &waiting.tenant);
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

    /// One offer that has waited too long, if there is one, and is dormant from now on. Call again until there is none.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<(ClientId, Offer)> {
        let (&sequence, &(deadline, key)) = self.deadlines.first_key_value()?;
        if deadline > now {
            return None;
        }
        self.deadlines.remove(&sequence);
        self.dormant.insert(sequence, key);
        self.dormant_of.insert((key.0, sequence));
        self.get(key).map(|offer| (key.0, *offer))
    }

    /// Takes the oldest of the dormant out, if there are too many. Call again until there are not.
    pub(crate) fn evict(&mut self) -> Option<(ClientId, Offer)> {
        let is_crowded = self.dormant.len() > DORMANT_MAX;
        let (_, &key) = self.dormant.first_key_value().filter(|_| is_crowded)?;
        self.take_out(key).map(|waiting| (key.0, waiting.offer))
    }

    /// Takes the oldest of a client's dormant offers out, if it has any.
    pub(crate) fn evict_of(&mut self, client: ClientId) -> Option<Offer> {
        let (_, sequence) = self.dormant_of.range((client, 0)..).next()?;
        let key = *self.dormant.get(sequence).filter(|key| key.0 == client)?;
        self.take_out(key).map(|waiting| waiting.offer)
    }

    /// How many offers of a client have the same ends as this one.
    pub(crate) fn alike(&self, client: ClientId, offer: &Offer) -> usize {
        let all = self.between(ends_of(offer));
        all.filter(|key| key.0 == client).count()
    }

    /// Takes the oldest of these that has no partner out, if there is one.
    pub(crate) fn evict_alike(&mut self, client: ClientId, offer: &Offer) -> Option<Offer> {
        let is_alone =
            |key: &OfferKey| self.waiting.get(key).is_some_and(|it| it.partner.is_none());
        let found = self
            .between(ends_of(offer))
            .find(|key| key.0 == client && is_alone(key))
            .copied();
        let key = found?;
        self.take_out(key).map(|waiting| waiting.offer)
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

    /// How many offers of all clients of this tenant there are.
    pub(crate) fn count_of_tenant(&self, tenant: &Tenant) -> u32 {
        self.counts_of_tenants.get(tenant).copied().unwrap_or(0)
    }

    /// How many offers there are that wait or are matched.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len() - self.dormant.len()
    }
}

#[cfg(test)]
mod tests;
