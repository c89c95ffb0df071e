//! From an offer to a pair: quota, the wait for the other end, proof, the question whether both want it still, the segment.
//!
//! No memory exists, and none lies in a client's socket, before the client has said in so many words that it reads: a process may be
//! asleep for ever when its message comes, while its child uses the connection.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use millrace_shm::board::{Row, state};
use millrace_shm::segment::Segment;
use millrace_wire::{Declined, End, Matched, Offer, Paired, Reason, ToClient};
use nix::sys::stat::fstat;
use tracing::{debug, warn};

use crate::clients::Client;
use crate::distant::Recognised;
use crate::offers::{ALIKE_MAX, ClientId, InsertError, OfferKey};
use crate::pairings::{PairedEnd, Pairing};
use crate::policy::Party;
use crate::proof::{Claim, Doubt, Side};
use crate::quota::Payer;
use crate::reception::TURN_MESSAGES;
use crate::roads::Absent;
use crate::segments::Refusal;
use crate::server::Server;
use crate::tenant::Tenant;

/// A segment that exists.
#[derive(Debug)]
pub(crate) struct Introduced {
    /// The programs that got it, the connecting one first.
    pub(crate) clients: [ClientId; 2],
    /// The segment's inode, by which its mappings are known.
    pub(crate) inode: u64,
    pub(crate) device: u64,
    /// What became of the end whose program was lost first, where that is known.
    pub(crate) absent: Option<Absent>,
}

impl Server {
    /// A client offers one end. `Err`: the client breaks the protocol.
    pub(crate) fn handle_offer(
        &mut self,
        client: ClientId,
        offer: Offer,
        now: Instant,
    ) -> Result<(), &'static str> {
        self.metrics.offers += 1;
        let key = (client, offer.offer_id);
        if self.offers.get(key).is_some() {
            return Err("it offers with an id that is in use");
        }
        if self
            .clients
            .get(&client)
            .is_some_and(|client| client.excluded)
        {
            self.refuse_offer(client, &offer, Reason::Excluded);
        } else if !self.has_room_for_offer(client, &offer) {
            self.refuse_offer(client, &offer, Reason::Quota);
        } else if !self.prover.is_in_reach(&offer) && !self.distant.can_prove() {
            self.refuse_offer(client, &offer, Reason::Unproven);
        } else {
            match self
                .offers
                .insert((client, self.tenant_of(client)), offer, now)
            {
                Ok(()) => {
                    self.look_for_partner(key);
                    if self.offers.get(key).is_some() {
                        self.expect_distant(now);
                    }
                }
                Err(InsertError::SelfConnected) => {
                    self.refuse_offer(client, &offer, Reason::NotBothEnds);
                }
                Err(InsertError::Duplicate) => return Err("it offers with an id that is in use"),
            }
        }
        Ok(())
    }

    /// Whether a client may have one more offer: of those that have waited in vain the oldest makes room, and of those with the same ends
    /// the oldest that waits.
    fn has_room_for_offer(&mut self, client: ClientId, offer: &Offer) -> bool {
        let evicted = if self.offers.alike(client, offer) >= ALIKE_MAX {
            self.offers.evict_alike(client, offer)
        } else if self.offers.count_of(client) < self.config.quota.offers_per_client
            && self.offers.count_of_tenant(&self.tenant_of(client))
                < self.config.quota.offers_per_tenant
        {
            return true;
        } else {
            self.offers.evict_of(client)
        };
        if let Some(offer) = &evicted {
            self.give_up(client, offer);
        }
        evicted.is_some()
    }

    /// Tries the waiting offers that mirror this one until one is proved; those that are disproved go.
    pub(crate) fn look_for_partner(&mut self, key: OfferKey) {
        if self.is_distant(key) {
            return self.expect_distant(Instant::now());
        }
        for partner in self.offers.partners(key) {
            match self.prove(partner, key) {
                Ok(_) => return self.match_up([partner, key]),
                Err((Side::First, doubt)) => self.disbelieve(partner, doubt),
                Err((Side::Second, doubt)) => return self.disbelieve(key, doubt),
            }
        }
    }

    fn prove(&mut self, first: OfferKey, second: OfferKey) -> Result<[u64; 2], (Side, Doubt)> {
        let Server {
            offers,
            clients,
            prover,
            packet_rules,
            ..
        } = self;
        let claim = |key: OfferKey, side| {
            let offer = offers.get(key).ok_or((side, Doubt::Process))?;
            Ok(Claim {
                offer,
                process: clients
                    .get(&key.0)
                    .and_then(|client| client.process.as_ref()),
            })
        };
        let claims = [claim(first, Side::First)?, claim(second, Side::Second)?];
        let proved = prover.prove(claims[0], claims[1])?;
        if packet_rules
            .tracking
            .may_translate(claims.map(|claim| claim.offer))
        {
            return Err((Side::First, Doubt::Translated));
        }
        Ok(proved)
    }

    fn disbelieve(&mut self, key: OfferKey, doubt: Doubt) {
        debug!(client = key.0.0, offer = key.1, "offer not proved: {doubt}");
        let Some(removed) = self.offers.remove(key, Instant::now()) else {
            return;
        };
        self.decline(key.0, &removed.offer, Reason::Unproven);
        if let Some(left) = removed.left {
            self.look_for_partner(left);
        }
    }

    /// Tells the two ends of a connection that there is another.
    pub(crate) fn match_up(&mut self, keys: [OfferKey; 2]) {
        for (client, offer_id) in self.offers.match_up(keys) {
            self.tell(client, ToClient::Matched(Matched { offer_id }), None);
        }
        // Offers that lost their first partners may both be taken already.
        self.introduce_taken(keys[0]);
    }

    /// A client wants the segment of a connection that was matched. When its offer is no more, it has been told so.
    pub(crate) fn handle_take(&mut self, key: OfferKey) {
        self.offers.take(key);
        self.introduce_taken(key);
    }

    /// Introduces two ends that both want it, if what was proved is true still.
    fn introduce_taken(&mut self, key: OfferKey) {
        let Some(keys) = self.offers.both_taken(key) else {
            return;
        };
        // A segment is a descriptor of the agent's until it has been sent: it is made when there is room for it in both sockets.
        let reads_not = |key: &&OfferKey| {
            let client = self.clients.get(&key.0);
            client.is_some_and(Client::has_mail_waiting)
        };
        if let Some(key) = keys.iter().find(reads_not) {
            return self.offers.hold_up(*key);
        }
        let proof = if keys.iter().any(|key| self.is_distant(*key)) {
            self.recognise_distant(keys)
        } else {
            let shaped = self.packet_rules.shapes_loopback(Instant::now());
            let inodes = self.prove(keys[0], keys[1]);
            inodes.map(|inodes| inodes.map(|inode| Recognised { inode, shaped }))
        };
        match proof {
            Ok(proved) => self.introduce(keys, proved),
            Err((Side::First, doubt)) => self.disbelieve(keys[0], doubt),
            Err((Side::Second, doubt)) => self.disbelieve(keys[1], doubt),
        }
    }

    /// A client has read: goes on with what waited for that, as long as there is room.
    pub(crate) fn introduce_held_up(&mut self, client: ClientId) {
        for _ in 0..TURN_MESSAGES {
            let has_room = !self
                .clients
                .get(&client)
                .is_none_or(Client::has_mail_waiting);
            let Some(key) = has_room.then(|| self.offers.next_held_up(client)).flatten() else {
                return;
            };
            self.introduce_taken(key);
        }
    }

    /// A client gives an end up, or never wanted it.
    pub(crate) fn handle_withdraw(&mut self, key: OfferKey) {
        self.pairings.end(key);
        let Some(removed) = self.offers.remove(key, Instant::now()) else {
            return;
        };
        if removed.taken {
            let message = Declined {
                offer_id: key.1,
                reason: Reason::None,
            };
            self.tell(key.0, ToClient::Declined(message), None);
        }
        if let Some(left) = removed.left {
            self.look_for_partner(left);
        }
    }

    /// Who pays for what this client gets. Nobody has the user number of one that has gone.
    pub(crate) fn payer(&self, client: ClientId) -> Payer {
        let gone = Tenant::User(u32::MAX);
        let found = self.clients.get(&client);
        Payer {
            client,
            tenant: found.map_or(gone, |client| client.tenant),
        }
    }

    /// Makes the segment of two offers that are proved, and hands it to both.
    fn introduce(&mut self, keys: [OfferKey; 2], proved: [Recognised; 2]) {
        let [Some(first), Some(second)] = self.offers.settle(keys) else {
            return;
        };
        let ends = in_direction([
            PairedEnd::new(keys[0].0, first, proved[0].inode),
            PairedEnd::new(keys[1].0, second, proved[1].inode),
        ]);
        if let Some(reason) = self.kept_off(&ends, proved.iter().any(|end| end.shaped)) {
            return self.decline_both(&ends, reason);
        }
        let keys = [ends[0].key(), ends[1].key()];
        let payers = keys.map(|(client, _)| self.payer(client));
        let connection_id = self.next_connection_id;
        let segment = match self.segments.create_segment(connection_id, payers) {
            Ok(segment) => Rc::new(segment),
            Err(refusal) => return self.refuse(&ends, refusal),
        };
        self.next_connection_id += 1;
        self.metrics.paired += 1;
        let clients = keys.map(|key| key.0);
        let facts = fstat(&*segment);
        let (inode, device) = facts.map_or((0, 0), |facts| (facts.st_ino, facts.st_dev));
        let introduced = Introduced {
            clients,
            inode,
            device,
            absent: None,
        };
        self.introduced.insert(connection_id, introduced);
        debug!(connection = connection_id, clients = ?keys.map(|key| key.0.0), "introduced");
        let ring_bytes = self.segments.ring_bytes();
        // Without a mapping (there is a limit of them) the two get on as well, but for a recall.
        if self.pairings.has_room()
            && let Ok(segment) = Segment::attach(segment.as_fd(), ring_bytes)
        {
            segment.set_connection_id(connection_id);
            self.pairings.insert(Pairing {
                connection_id,
                ends,
                segment,
                granted: [0; 2],
            });
        }
        for ((client, offer_id), end) in keys.into_iter().zip([End::Active, End::Passive]) {
            let message = Paired {
                offer_id,
                connection_id,
                end,
                ring_bytes,
            };
            self.tell(client, ToClient::Paired(message), Some(Rc::clone(&segment)));
        }
    }

    /// Why two proved ends stay on the kernel's road, if they do. The connecting one is the first.
    fn kept_off(&self, ends: &[PairedEnd; 2], shaped: bool) -> Option<Reason> {
        let Offer { local, remote, .. } = ends[0].offer;
        if !self.may_join(ends) {
            Some(Reason::Policy)
        } else if !ends.iter().all(|end| self.may_borrow(end.client)) {
            Some(Reason::Untraceable)
        } else if shaped {
            Some(Reason::Shaped)
        } else if self.packet_rules.tracking.has_helper(&local, &remote) {
            Some(Reason::Helper)
        } else {
            None
        }
    }

    /// Whether the configuration lets the programs of two ends be joined.
    fn may_join(&self, ends: &[PairedEnd; 2]) -> bool {
        if !self.config.join.is_set() {
            return true;
        }
        let party = |end: &PairedEnd| {
            let client = self.clients.get(&end.client)?;
            let pod = self.pods.of_client(client);
            Some(Party::new(client.tenant, pod.as_deref()))
        };
        let parties = [party(&ends[0]), party(&ends[1])];
        // Who is gone needs no permission.
        let [Some(first), Some(second)] = &parties else {
            return true;
        };
        self.config.join.may_join([first, second])
    }

    fn refuse(&mut self, ends: &[PairedEnd; 2], refusal: Refusal) {
        let reason = match refusal {
            Refusal::Quota => Reason::Quota,
            Refusal::NoDescriptor => Reason::NoDescriptor,
            Refusal::NoMemory(error) => {
                if self.log_limit.allows() {
                    warn!("no memory for a segment: {error}");
                }
                Reason::NoMemory
            }
        };
        self.decline_both(ends, reason);
    }

    fn decline_both(&mut self, ends: &[PairedEnd; 2], reason: Reason) {
        for end in ends {
            self.decline(end.client, &end.offer, reason);
        }
    }

    /// Says no to an offer that was in the table.
    pub(crate) fn decline(&mut self, client: ClientId, offer: &Offer, reason: Reason) {
        let message = self.note_declined(client, offer, reason);
        self.tell(client, message, None);
    }

    /// Says no at once.
    fn refuse_offer(&mut self, client: ClientId, offer: &Offer, reason: Reason) {
        let message = self.note_declined(client, offer, reason);
        self.send(client, message, None);
    }

    fn note_declined(&mut self, client: ClientId, offer: &Offer, reason: Reason) -> ToClient {
        self.metrics.count_declined(reason);
        // A program that sleeps will read the answer late; whoever looks sees the reason now.
        if let Some(row) = self.clients.get(&client).and_then(|it| it.row(offer.row)) {
            state_reason(row, offer, reason);
        }
        ToClient::Declined(Declined {
            offer_id: offer.offer_id,
            reason,
        })
    }

    /// Says of the offers that have waited long enough that there is no other end, to whoever looks. Their clients are not told: it may
    /// be offered later.
    pub(crate) fn expire_offers(&mut self, now: Instant) {
        while let Some((client, offer)) = self.offers.expire(now) {
            self.note_declined(client, &offer, Reason::NotBothEnds);
        }
        while let Some((client, offer)) = self.offers.evict() {
            self.give_up(client, &offer);
        }
    }

    /// Nobody looks for the other end of an offer any more that was said to have none.
    fn give_up(&mut self, client: ClientId, offer: &Offer) {
        let message = Declined {
            offer_id: offer.offer_id,
            reason: Reason::NotBothEnds,
        };
        self.tell(client, ToClient::Declined(message), None);
    }
}

/// Writes the reason to the end's row, if that still is the connection which was offered.
fn state_reason(row: &Row, offer: &Offer, reason: Reason) {
    let identity = &row.identity;
    if identity.state.load(Relaxed) == state::KERNEL
        && identity.cookie.load(Relaxed) == offer.cookie
    {
        let offered = Reason::TooShort as u8;
        let _ = identity
            .reason
            .compare_exchange(offered, reason as u8, Relaxed, Relaxed);
    }
}

/// Puts the connecting end first. When both say the same (each of two ends may have connected), the lower address goes first.
fn in_direction([first, second]: [PairedEnd; 2]) -> [PairedEnd; 2] {
    let swap = match (first.offer.end, second.offer.end) {
        (End::Active, End::Passive) => false,
        (End::Passive, End::Active) => true,
        _ => first.offer.local > second.offer.local,
    };
    if swap {
        [second, first]
    } else {
        [first, second]
    }
}
