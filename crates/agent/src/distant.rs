//! Connections with an end in another network namespace than the agent's: between containers, or from one to the host.
//!
//! There addresses prove nothing, since whoever has a namespace chooses its addresses, and behind NAT they do not even mirror each other.
//! What the two ends of one connection share is the state of TCP: what one will send next is what the other will receive next,
//! in both directions, and both numbers began at random. So the agent reads these of ends that wait, twice, and pairs two that fit
//! each other and nobody else:
//!
//! | fact | the lie it catches |
//! |---|---|
//! | descriptor, cookie and namespace of the offer are those of a TCP socket of that process | forged or stale offers |
//! | in both directions: unacknowledged, first look ≤ next to receive, second look ≤ next to send, later | another connection |
//! | both namespaces belong to the agent's user namespace, or both programs to one user | a namespace made for the purpose |
//!
//! The looser the fit, the less it says: bytes on their way widen it. Where the addresses mirror each other, chance may fit one in 2^28
//! of those few that do; where they do not, one in 2^40 of all.
//! Initial sequence numbers are not secret to whoever can make connections with the same addresses and ports at a known time
//! (they advance with a clock, RFC 6528): that is what the third fact is for.
//!
//! What it costs is the same for each connection, however many there are. A look reads the sockets of offers, and no other descriptors of
//! their programs (`bpf`); who can fit whom is found by addresses and by order of the numbers (`fit`). Where many wait, an offer that has
//! just come is looked at together with others that have its addresses: a few times. Behind NAT nothing tells who its partner could be:
//! such ends are paired when all that wait are looked at, twice in a second. Those that have waited in vain before are looked at with a new
//! one that has their addresses; and with all that wait now and then, since behind NAT an end may be offered late, too.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use millrace_wire::Offer;
use nix::time::{ClockId, clock_gettime};
use tracing::{debug, warn};

mod fit;

use crate::bpf::{TcpSocket, TcpSockets};
use crate::offers::{ClientId, OfferKey};
use crate::proof::{Doubt, Side};
use crate::server::Server;
use fit::{End, Pairing, only_fits};

/// After an offer, how long until the first look: the other end's offer is on its way. Then twice as long, and so on…
const FIRST_WAIT: Duration = Duration::from_millis(2);
/// …until it has come so long ago: then it waits for the next look at all.
const NEW: Duration = Duration::from_millis(100);
/// From one look at all to the next.
const LOOKS_AT_ALL: Duration = Duration::from_millis(500);
/// For every moment of processor time that a look takes, so many pass until the next of its kind. What others take of the processor
/// meanwhile does not count: introductions are not to wait the longer for it.
const REST_FACTOR: u32 = 20;
/// From one look at dormant offers, too, to the next, while others wait…
const LOOKS_AT_DORMANT: Duration = Duration::from_secs(2);
/// …and so many times as long as such a look has taken. Most of these are connections to other machines.
const DORMANT_REST_FACTOR: u32 = 200;
/// Offers that one look compares: the agent serves nobody else meanwhile. Looks at all go on from look to look, and each has half of
/// what the one before had, so that two that came one soon after the other meet.
const COMPARED_MAX: usize = 4096;
/// So many are all looked at each time.
const FEW: usize = 128;
/// New offers of one client that a look compares, so that there is room for others'; more only as partners of others'.
const NEW_OF_CLIENT_MAX: usize = 512;

/// When to look, and with what.
#[derive(Debug, Default)]
pub(crate) struct Distant {
    /// `None` before it was tried, then what came of it.
    sockets: Option<Option<TcpSockets>>,
    look_at: Option<Instant>,
    wait: Duration,
    /// After a look at what is new, not before that at what is new…
    rest_until: Option<Instant>,
    /// …and after one at all, not before that at all…
    all_at: Option<Instant>,
    /// …from the offer on that began to wait with that number.
    all_from: u64,
    /// The next look at all that is at dormant offers, too, is not before that…
    dormant_at: Option<Instant>,
    /// …and begins with the offer of that number.
    dormant_from: u64,
    /// The agent's own user namespace.
    owner: u32,
}

impl Distant {
    /// Whether ends in other namespaces can be proved on this machine. The first question loads the program.
    pub(crate) fn can_prove(&mut self) -> bool {
        let loaded = self.sockets.get_or_insert_with(|| {
            TcpSockets::load()
                .inspect_err(|error| {
                    warn!("connections of other network namespaces cannot be proved (BPF iterator): {error}");
                })
                .ok()
        });
        if self.owner == 0 {
            self.owner = user_namespace().unwrap_or(0);
        }
        loaded.is_some() && self.owner != 0
    }

    /// An offer came that another one may fit.
    fn expect(&mut self, now: Instant) {
        self.wait = FIRST_WAIT;
        let soon = (now + self.wait).max(self.rest_until.unwrap_or(now));
        // Whoever comes next does not postpone it.
        self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
    }

    /// Offers wait still after a look, at all or at what is new, that took so long.
    fn rest(&mut self, end: Instant, took: Duration, at_all: bool) {
        let rest = took * REST_FACTOR;
        if at_all {
            self.all_at = Some(end + LOOKS_AT_ALL.max(rest));
        } else {
            self.rest_until = Some(end + rest);
        }
        let all_at = self.all_at.unwrap_or(end);
        let again = (end + self.wait).max(self.rest_until.unwrap_or(end));
        let is_new = self.wait <= NEW;
        self.look_at = Some(if is_new { all_at.min(again) } else { all_at });
        self.wait *= 2;
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.look_at
    }
}

/// What this thread has had of the processors.
pub(crate) fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// The number of this process's user namespace.
fn user_namespace() -> Option<u32> {
    let link = std::fs::read_link("/proc/self/ns/user").ok()?;
    let number = link.to_str()?.strip_prefix("user:[")?.strip_suffix(']')?;
    number.parse().ok()
}

/// What one look found, by offer.
type Looks = HashMap<OfferKey, TcpSocket>;

impl Server {
    /// An offer was taken in, and has found no partner by its addresses.
    pub(crate) fn expect_distant(&mut self, now: Instant) {
        if self.offers.has_distant() {
            self.distant.expect(now);
        }
    }

    /// Pairs what fits, if it is time to look.
    pub(crate) fn look_for_distant(&mut self, now: Instant) {
        if self.distant.look_at.is_none_or(|at| at > now) {
            return;
        }
        self.distant.look_at = None;
        if !self.offers.has_distant() {
            return;
        }
        let spent = processor_time();
        let at_all = self.distant.all_at.is_none_or(|at| at <= now);
        let are_few = self.offers.waiting_count() <= FEW;
        let mut compared = if at_all || are_few {
            self.next_of_all()
        } else {
            self.new_ones(now)
        };
        let with_dormant = at_all && self.distant.dormant_at.is_none_or(|at| at <= now);
        if self.offers.has_dormant() {
            self.add_dormant(&mut compared, with_dormant);
        }
        // Somebody else whom one of them fits may be among those that are not looked at: he has not their addresses.
        let pairing = if at_all || are_few {
            Pairing::Any
        } else {
            Pairing::Mirrored
        };
        for pair in self.find_distant(&compared, pairing) {
            debug!(offers = ?pair, "proved by sequence numbers");
            self.match_up(pair);
        }
        let (end, took) = (Instant::now(), processor_time().saturating_sub(spent));
        if with_dormant {
            self.distant.dormant_at = Some(end + LOOKS_AT_DORMANT.max(took * DORMANT_REST_FACTOR));
        }
        if self.offers.has_distant() {
            self.distant.rest(end, took, at_all);
        }
    }

    /// Adds dormant offers to those that are compared: which have the addresses of one of them; and, if `others`, as many as there is room
    /// for, the next time those behind them.
    fn add_dormant(&mut self, compared: &mut Vec<(OfferKey, Offer)>, others: bool) {
        let mut seen: HashSet<OfferKey> = compared.iter().map(|(key, _)| *key).collect();
        for index in 0..compared.len() {
            let (_, offer) = compared[index];
            let room = (2 * COMPARED_MAX).saturating_sub(compared.len());
            let same = self.offers.waiting_between(&offer).take(room);
            compared.extend(same.filter(|(key, _)| seen.insert(*key)));
        }
        if !others {
            return;
        }
        let mut dormant = self.offers.dormant_from(self.distant.dormant_from);
        while compared.len() < COMPARED_MAX
            && let Some((_, key, offer)) = dormant.next()
        {
            if seen.insert(key) {
                compared.push((key, *offer));
            }
        }
        self.distant.dormant_from = dormant.next().map_or(0, |(at, _, _)| at);
    }

    /// Those of all that are to be compared next.
    fn next_of_all(&mut self) -> Vec<(OfferKey, Offer)> {
        let all = self.offers.waiting_from(self.distant.all_from);
        let compared: Vec<_> = all
            .take(COMPARED_MAX)
            .map(|(at, key, offer)| (at, (key, *offer)))
            .collect();
        let is_last = compared.len() < COMPARED_MAX;
        let half = compared.get(COMPARED_MAX / 2);
        self.distant.all_from = half.filter(|_| !is_last).map_or(0, |(at, _)| *at);
        compared.into_iter().map(|(_, offer)| offer).collect()
    }

    /// Offers that have come lately, and all that have the same two addresses, however old.
    fn new_ones(&self, now: Instant) -> Vec<(OfferKey, Offer)> {
        let mut of_client: HashMap<ClientId, usize> = HashMap::new();
        let mut seen = HashSet::new();
        let mut compared = Vec::new();
        for (key, offer) in self.offers.waiting_since(now - NEW) {
            let count = of_client.entry(key.0).or_default();
            *count += 1;
            if *count > NEW_OF_CLIENT_MAX || seen.contains(&key) {
                continue;
            }
            let same = self.offers.waiting_between(offer).take(COMPARED_MAX);
            compared.extend(same.filter(|(key, _)| seen.insert(*key)));
            if compared.len() >= COMPARED_MAX {
                break;
            }
        }
        compared
    }

    /// The pairs of these offers that fit each other and nobody else, at least one of them distant.
    fn find_distant(
        &mut self,
        compared: &[(OfferKey, Offer)],
        pairing: Pairing,
    ) -> Vec<[OfferKey; 2]> {
        let looks = [self.look(compared), self.look(compared)];
        let end = |(key, offer): &(OfferKey, Offer)| {
            let seen = [*looks[0].get(key)?, *looks[1].get(key)?];
            Some(End {
                key: *key,
                local: offer.local,
                remote: offer.remote,
                is_near: self.prover.is_in_reach(offer),
                is_own: seen[1].owner == self.distant.owner,
                tenant: self.clients.get(&key.0)?.tenant,
                seen,
            })
        };
        let ends: Vec<End> = compared.iter().filter_map(end).collect();
        only_fits(&ends, pairing)
    }

    /// What the kernel says of the sockets of these offers now.
    fn look(&mut self, offers: &[(OfferKey, Offer)]) -> Looks {
        let mut by_client: HashMap<ClientId, Vec<&(OfferKey, Offer)>> = HashMap::new();
        for offer in offers {
            by_client.entry(offer.0.0).or_default().push(offer);
        }
        let mut looks = Looks::new();
        for (client, offers) in by_client {
            let descriptors: Vec<i32> = offers.iter().map(|(_, offer)| offer.fd).collect();
            self.metrics.distant_looks += 1;
            self.metrics.distant_sockets += descriptors.len() as u64;
            let found = self.sockets_of(client, &descriptors).unwrap_or_default();
            let sockets: HashMap<i32, TcpSocket> = found
                .into_iter()
                .map(|socket| (socket.fd, socket))
                .collect();
            for (key, offer) in offers {
                let is_its = |socket: &&TcpSocket| {
                    socket.established
                        && socket.cookie == offer.cookie
                        && socket.netns_cookie == offer.netns_cookie
                };
                if let Some(socket) = sockets.get(&offer.fd).filter(is_its) {
                    looks.insert(*key, *socket);
                }
            }
        }
        looks
    }

    fn sockets_of(&self, client: ClientId, descriptors: &[i32]) -> Option<Vec<TcpSocket>> {
        let sockets = self.distant.sockets.as_ref()?.as_ref()?;
        let client = self.clients.get(&client)?;
        let process = client.process.as_ref()?;
        let found = sockets.of(client.pid, descriptors).ok()?;
        // It lives still, so the number has meant it all the time.
        process.is_unchanged().then_some(found)
    }

    /// Whether an offer is of another namespace than the agent's.
    pub(crate) fn is_distant(&self, key: OfferKey) -> bool {
        self.offers
            .get(key)
            .is_some_and(|offer| !self.prover.is_in_reach(offer))
    }

    /// Two ends that were proved once: they still are those sockets, and established.
    pub(crate) fn recognise_distant(
        &mut self,
        keys: [OfferKey; 2],
    ) -> Result<[Recognised; 2], (Side, Doubt)> {
        let mut recognise = |key: OfferKey, side| {
            let offer = *self.offers.get(key).ok_or((side, Doubt::Process))?;
            let seen = self.look(&[(key, offer)]);
            let socket = seen.get(&key).ok_or((side, Doubt::Connection))?;
            let process = self
                .clients
                .get(&key.0)
                .and_then(|client| client.process.as_ref());
            let inode = process.and_then(|process| process.socket_inode(offer.fd));
            Ok(Recognised {
                inode: inode.ok_or((side, Doubt::Descriptor))?,
                shaped: socket.shaped,
            })
        };
        Ok([
            recognise(keys[0], Side::First)?,
            recognise(keys[1], Side::Second)?,
        ])
    }
}

/// An end that is still what it was when it was proved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recognised {
    /// The number in `socket:[…]`.
    pub(crate) inode: u64,
    /// Its packets are shaped.
    pub(crate) shaped: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_offers_does_not_postpone_a_look() {
        let (mut distant, start) = (Distant::default(), Instant::now());
        for offer in 0..10 {
            distant.expect(start + Duration::from_millis(offer));
        }
        assert_eq!(distant.next_deadline(), Some(start + FIRST_WAIT));
    }

    #[test]
    fn looks_rest_for_as_long_as_they_are_dear_and_one_kind_does_not_keep_the_other() {
        let (mut distant, start) = (Distant::default(), Instant::now());
        let dear = Duration::from_millis(100);
        distant.expect(start);
        distant.rest(start, dear, true);
        assert_eq!(distant.all_at, Some(start + dear * REST_FACTOR));
        assert_eq!(distant.next_deadline(), Some(start + FIRST_WAIT));
        distant.rest(start, dear / 10, false);
        let rested = start + dear / 10 * REST_FACTOR;
        assert_eq!(distant.next_deadline(), Some(rested));
        distant.expect(start);
        assert_eq!(distant.next_deadline(), Some(rested));
        // When nothing new has come for a while, there are looks at all only.
        for _ in 0..10 {
            distant.rest(start, Duration::ZERO, false);
        }
        assert_eq!(distant.next_deadline(), distant.all_at);
    }
}
