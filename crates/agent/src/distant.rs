//! Connections with an end in another network namespace than the agent's: between containers, or from one to the host.
//!
//! There addresses prove nothing, since whoever has a namespace chooses its addresses, and behind NAT they do not even mirror each other.
//! What the two ends of one connection share is the state of TCP: what one will send next is what the other will receive next,
//! in both directions, and both numbers began at random. So the agent reads these of all ends that wait, twice, and pairs two that fit
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

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use millrace_wire::Offer;
use tracing::{debug, warn};

use crate::bpf::{TcpSocket, TcpSockets};
use crate::offers::{ClientId, OfferKey};
use crate::proof::{Doubt, Side};
use crate::server::Server;
use crate::sys;

/// After an offer, how long until the first look: the other end's offer is on its way.
const FIRST_WAIT: Duration = Duration::from_millis(2);
/// The longest wait between two looks.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// For every moment that a look takes, so many pass until the next.
const REST_FACTOR: u32 = 20;
/// Two ends that fit by chance are one in 2^64 of so many, where their addresses mirror each other…
const CHANCES_MAX_MIRRORED: u64 = 1 << 36;
/// …and where they do not.
const CHANCES_MAX: u64 = 1 << 24;
/// Offers that one look compares.
const COMPARED_MAX: usize = 2048;

/// When to look, and with what.
#[derive(Debug, Default)]
pub(crate) struct Distant {
    /// `None` before it was tried, then what came of it.
    sockets: Option<Option<TcpSockets>>,
    look_at: Option<Instant>,
    wait: Duration,
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
        self.look_at = Some(now + FIRST_WAIT);
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.look_at
    }
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
        if self.distant.look_at.is_some() || self.has_distant() {
            self.distant.expect(now);
        }
    }

    fn has_distant(&self) -> bool {
        self.offers
            .waiting()
            .any(|(_, offer)| !self.prover.is_in_reach(offer))
    }

    /// Pairs what fits, if it is time to look.
    pub(crate) fn look_for_distant(&mut self, now: Instant) {
        if self.distant.look_at.is_none_or(|at| at > now) {
            return;
        }
        self.distant.look_at = None;
        if !self.has_distant() {
            return;
        }
        for pair in self.find_distant() {
            debug!(offers = ?pair, "proved by sequence numbers");
            self.match_up(pair);
        }
        if self.has_distant() {
            let end = Instant::now();
            let rest = (end - now) * REST_FACTOR;
            self.distant.wait = (self.distant.wait * 2).min(LONGEST_WAIT);
            self.distant.look_at = Some(end + self.distant.wait.max(rest));
        }
    }

    /// The pairs of waiting offers that fit each other and nobody else, at least one of them distant.
    fn find_distant(&self) -> Vec<[OfferKey; 2]> {
        let waiting: Vec<(OfferKey, Offer)> = self
            .offers
            .waiting()
            .map(|(key, offer)| (key, *offer))
            .take(COMPARED_MAX)
            .collect();
        let looks = [self.look(&waiting), self.look(&waiting)];
        let mut partners: HashMap<OfferKey, Vec<OfferKey>> = HashMap::new();
        for (index, (first, offer)) in waiting.iter().enumerate() {
            let first_is_near = self.prover.is_in_reach(offer);
            for (second, other) in &waiting[index + 1..] {
                let both_near = first_is_near && self.prover.is_in_reach(other);
                let mirrored = offer.local == other.remote && offer.remote == other.local;
                let chances_max = if mirrored {
                    CHANCES_MAX_MIRRORED
                } else {
                    CHANCES_MAX
                };
                if !both_near
                    && self.are_allowed(*first, *second, &looks)
                    && fit(*first, *second, &looks).is_some_and(|chances| chances <= chances_max)
                {
                    partners.entry(*first).or_default().push(*second);
                    partners.entry(*second).or_default().push(*first);
                }
            }
        }
        let only = |key: &OfferKey| match partners.get(key).map(Vec::as_slice) {
            Some([partner]) => Some(*partner),
            _ => None,
        };
        waiting
            .iter()
            .filter_map(|(key, _)| Some([*key, only(key)?]))
            .filter(|[key, partner]| key < partner && only(partner) == Some(*key))
            .collect()
    }

    /// What the kernel says of the sockets of these offers now.
    fn look(&self, waiting: &[(OfferKey, Offer)]) -> Looks {
        let mut by_client: HashMap<ClientId, Vec<(OfferKey, &Offer)>> = HashMap::new();
        for (key, offer) in waiting {
            by_client.entry(key.0).or_default().push((*key, offer));
        }
        let mut looks = Looks::new();
        for (client, offers) in by_client {
            let sockets = self.sockets_of(client).unwrap_or_default();
            for (key, offer) in offers {
                let is_its = |socket: &&TcpSocket| {
                    socket.established
                        && socket.fd == offer.fd
                        && socket.cookie == offer.cookie
                        && socket.netns_cookie == offer.netns_cookie
                };
                if let Some(socket) = sockets.iter().find(is_its) {
                    looks.insert(key, *socket);
                }
            }
        }
        looks
    }

    fn sockets_of(&self, client: ClientId) -> Option<Vec<TcpSocket>> {
        let sockets = self.distant.sockets.as_ref()?.as_ref()?;
        let client = self.clients.get(&client)?;
        let process = client.process.as_ref()?;
        let pidfd = sys::pidfd_open(client.pid).ok()?;
        // It lives still, so the number meant it when it was opened.
        if !process.is_unchanged() {
            return None;
        }
        sockets.of(pidfd.as_fd()).ok()
    }

    fn are_allowed(&self, first: OfferKey, second: OfferKey, looks: &[Looks; 2]) -> bool {
        let is_own = |key| {
            looks[1]
                .get(&key)
                .is_some_and(|socket| socket.owner == self.distant.owner)
        };
        let uid = |key: OfferKey| self.clients.get(&key.0).map(|client| client.uid);
        is_own(first) && is_own(second) || uid(first).is_some() && uid(first) == uid(second)
    }

    /// Whether an offer is of another namespace than the agent's.
    pub(crate) fn is_distant(&self, key: OfferKey) -> bool {
        self.offers
            .get(key)
            .is_some_and(|offer| !self.prover.is_in_reach(offer))
    }

    /// Two ends that were proved once: they still are those sockets, and established. Returns their inodes.
    pub(crate) fn recognise_distant(&self, keys: [OfferKey; 2]) -> Result<[u64; 2], (Side, Doubt)> {
        let recognise = |key: OfferKey, side| {
            let offer = *self.offers.get(key).ok_or((side, Doubt::Process))?;
            if self.look(&[(key, offer)]).is_empty() {
                return Err((side, Doubt::Connection));
            }
            let process = self
                .clients
                .get(&key.0)
                .and_then(|client| client.process.as_ref());
            process
                .and_then(|process| process.socket_inode(offer.fd))
                .ok_or((side, Doubt::Descriptor))
        };
        Ok([
            recognise(keys[0], Side::First)?,
            recognise(keys[1], Side::Second)?,
        ])
    }
}

/// Whether two sockets can have been, in two looks, the two ends of one connection: of 2^64 pairs of numbers so many would fit, too.
fn fit(first: OfferKey, second: OfferKey, looks: &[Looks; 2]) -> Option<u64> {
    let seen = |key: OfferKey| Some([*looks[0].get(&key)?, *looks[1].get(&key)?]);
    let (first, second) = (seen(first)?, seen(second)?);
    let (there, back) = (chances(first, second)?, chances(second, first)?);
    (first[0].cookie != second[0].cookie).then(|| there.saturating_mul(back))
}

/// How many values the receiver's next number could have had, if it can be this sender's; each argument is what two looks saw.
fn chances(sender: [TcpSocket; 2], receiver: [TcpSocket; 2]) -> Option<u64> {
    let low = sender[0].send_unacknowledged;
    let high = sender[1].send_next;
    let is_behind = |a: u32, b: u32| b.wrapping_sub(a).cast_signed() >= 0;
    let fits =
        is_behind(low, receiver[1].receive_next) && is_behind(receiver[0].receive_next, high);
    let moved = receiver[1]
        .receive_next
        .wrapping_sub(receiver[0].receive_next);
    fits.then(|| u64::from(high.wrapping_sub(low)) + u64::from(moved) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(cookie: u64, send: [u32; 2], receive_next: u32) -> TcpSocket {
        TcpSocket {
            fd: 3,
            established: true,
            cookie,
            netns_cookie: 1,
            owner: 1,
            send_unacknowledged: send[0],
            send_next: send[1],
            receive_next,
        }
    }

    const A: OfferKey = (ClientId(1), 1);
    const B: OfferKey = (ClientId(2), 1);

    /// What two looks at two ends say, whichever is named first.
    fn of_both(first: [TcpSocket; 2], second: [TcpSocket; 2]) -> Option<u64> {
        let looks = [0, 1].map(|look| Looks::from([(A, first[look]), (B, second[look])]));
        assert_eq!(fit(A, B, &looks), fit(B, A, &looks));
        fit(A, B, &looks)
    }

    #[test]
    fn ends_at_rest_fit_exactly() {
        let near = socket(1, [100, 100], 900);
        assert_eq!(of_both([near; 2], [socket(2, [900, 900], 100); 2]), Some(1));
        for wrong in [
            socket(2, [900, 900], 101),
            socket(2, [900, 900], 99),
            socket(2, [899, 899], 100),
            socket(2, [901, 901], 100),
            socket(1, [900, 900], 100),
        ] {
            assert_eq!(of_both([near; 2], [wrong; 2]), None, "{wrong:?}");
        }
    }

    #[test]
    fn bytes_on_their_way_and_the_wrap_are_allowed_for() {
        let start = u32::MAX - 5;
        let sender = [
            socket(1, [start, start.wrapping_add(3000)], 7),
            socket(1, [start.wrapping_add(1000), start.wrapping_add(4000)], 7),
        ];
        let receiver = [
            socket(2, [7, 7], start.wrapping_add(2000)),
            socket(2, [7, 7], start.wrapping_add(2500)),
        ];
        assert_eq!(of_both(sender, receiver), Some(4000 + 500 + 1));
        let ahead = socket(2, [7, 7], start.wrapping_add(5000));
        assert_eq!(of_both(sender, [ahead; 2]), None);
    }

    #[test]
    fn a_fit_that_says_little_is_none() {
        let wide = |cookie, other: u32| socket(cookie, [0, 1 << 13], other);
        assert!(of_both([wide(1, 50); 2], [wide(2, 50); 2]).unwrap() > CHANCES_MAX);
        let (wide, narrow) = (socket(1, [0, 1 << 30], 50), socket(2, [50, 50], 9));
        assert!(of_both([wide; 2], [narrow; 2]).unwrap() > CHANCES_MAX);
    }
}
