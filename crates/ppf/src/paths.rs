//! Paths: the pairs of our side and a peer's address that tunnels go by, and whether their peers live (TS 29.281, 7.2; TS 23.007, 20).
//!
//! | state | what comes | next |
//! |---|---|---|
//! | resting | its time | an echo request with the next number: asked |
//! | asked | an answer with its number | resting; up, if it was not |
//! | asked | T3-RESPONSE, with requests left | the same request again: asked |
//! | asked | T3-RESPONSE, with none left | resting; down, if it was not |
//!
//! Forbidden: an answer with another number, or while resting, changes nothing, since anybody can send one, and a late one says nothing of
//! now. No request begins earlier than the interval after the one before it began, whatever happens (7.2.1: 60 s, repetitions aside); so
//! what is down is asked again at the same pace. The restart counter in answers is shown to people, and nothing follows from it (8.2).
//!
//! Of several workers each knows all paths, and one asks by each ([`asker`]): a peer is not asked more often because there are more of
//! them, and whether it lives is said once.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use crate::bearer::Side;
use crate::event::{Event, Events};
use crate::table::users::Hash;

mod own;

/// How paths are supervised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supervision {
    /// Between the beginnings of two questions; the standard allows no less than 60 s.
    pub interval_ns: u64,
    /// For so long an answer is waited for (T3-RESPONSE).
    pub response_ns: u64,
    /// So many requests are sent before the peer is held for dead (N3-REQUESTS).
    pub requests: u32,
}

impl Default for Supervision {
    fn default() -> Self {
        Supervision {
            interval_ns: 60_000_000_000,
            response_ns: 3_000_000_000,
            requests: 3,
        }
    }
}

/// A path's number. It may be another path's after its last bearer has gone: whoever keeps something by it looks at the address too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathId(pub(crate) u32);

impl PathId {
    /// The number, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// So many requests are sent at a time, and so many new paths begun, at most; the next ones the next time, which is at once.
const ASKS_MAX: usize = 32;

/// Which of so many workers asks the peer of this address.
#[inline]
pub(crate) fn asker(address: IpAddr, workers: usize) -> usize {
    if workers <= 1 {
        return 0;
    }
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    // FNV-1a: addresses that follow each other are different workers'.
    let hash = match address {
        IpAddr::V4(address) => address.octets().iter().fold(0xcbf2_9ce4_8422_2325, add),
        IpAddr::V6(address) => address.octets().iter().fold(0xcbf2_9ce4_8422_2325, add),
    };
    // Less than there are workers.
    (hash % workers as u64) as usize
}

/// Paths, at most: so many bits there are for their numbers.
pub(crate) const PATHS_MAX: usize = 1 << 24;
/// So many numbers rest before one is used again.
const REST: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asking {
    /// Until then.
    Resting(u64),
    Asked {
        began_ns: u64,
        until_ns: u64,
        left: u32,
    },
}

/// A path.
#[derive(Debug)]
struct Path {
    side: Side,
    address: IpAddr,
    /// Tunnels that go by it: of bearers that are in this table, and of all that were told of.
    own: u32,
    known: u32,
    is_up: Option<bool>,
    asking: Asking,
    /// Of the last request.
    sequence: u16,
    requests: u64,
    responses: u64,
    restart_counter: Option<u8>,
}

/// A path, as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathState {
    /// Where the peer is.
    pub side: Side,
    /// Its address.
    pub address: IpAddr,
    /// Tunnels that go by it.
    pub tunnels: u32,
    /// Whether the peer answers; nobody knows, if it was not asked.
    pub is_up: Option<bool>,
    /// How often it was asked, repetitions among them.
    pub requests: u64,
    /// How often it answered in time.
    pub responses: u64,
    /// What it said last of its restarts.
    pub restart_counter: Option<u8>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    places: Vec<Path>,
    numbers: HashMap<(Side, IpAddr), u32, Hash>,
    free: std::collections::VecDeque<u32>,
    supervision: Option<Supervision>,
    /// Which worker this is, and of how many.
    worker: usize,
    workers: usize,
    /// When each that is supervised has something to do.
    due: BTreeSet<(u64, u32)>,
    /// Those that are new.
    fresh: Vec<u32>,
}

impl Paths {
    pub(crate) fn supervise(&mut self, supervision: Option<Supervision>) {
        self.supervision = supervision;
        self.due.clear();
        self.fresh.clear();
        if supervision.is_some() {
            let numbers = 0..self.places.len() as u32;
            self.fresh = numbers.filter(|number| self.is_own(*number)).collect();
        }
    }

    /// Has only those be asked that are this worker's, of so many workers. Before there are any.
    pub(crate) fn share(&mut self, worker: usize, workers: usize) {
        (self.worker, self.workers) = (worker, workers);
    }

    /// Whether this worker asks by a path.
    fn is_own(&self, number: u32) -> bool {
        asker(self.places[number as usize].address, self.workers) == self.worker
    }

    /// The path to an address, which nobody uses if it was not there. None: there are too many.
    fn open(&mut self, side: Side, address: IpAddr) -> Option<PathId> {
        if let Some(path) = self.find(side, address) {
            return Some(path);
        }
        let path = Path::new(side, address);
        let number = if self.free.len() > REST || self.places.len() == PATHS_MAX {
            let number = self.free.pop_front()?;
            self.places[number as usize] = path;
            number
        } else {
            self.places.push(path);
            (self.places.len() - 1) as u32
        };
        self.numbers.insert((side, address), number);
        if self.supervision.is_some() && self.is_own(number) {
            self.fresh.push(number);
        }
        Some(PathId(number))
    }

    /// Forgets a path that nobody uses.
    fn close(&mut self, path: PathId) {
        let Some(place) = self.places.get(path.index()) else {
            return;
        };
        if !place.is_used() && self.numbers.remove(&(place.side, place.address)).is_some() {
            self.due.remove(&(place.asking.due_ns(), path.0));
            self.free.push_back(path.0);
        }
    }

    #[inline]
    pub(crate) fn address(&self, path: PathId) -> Option<IpAddr> {
        self.places.get(path.index()).map(|path| path.address)
    }

    pub(crate) fn find(&self, side: Side, address: IpAddr) -> Option<PathId> {
        self.numbers.get(&(side, address)).copied().map(PathId)
    }

    /// Those that this worker asks by.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PathState> {
        self.iter_from(0).map(|(_, path)| path)
    }

    /// The same from a number on, with their numbers.
    pub(crate) fn iter_from(&self, number: usize) -> impl Iterator<Item = (usize, PathState)> {
        let places = self.places.iter().enumerate().skip(number);
        let own = places
            .filter(|(_, path)| path.is_used() && asker(path.address, self.workers) == self.worker);
        own.map(|(number, path)| {
            let state = PathState {
                side: path.side,
                address: path.address,
                tunnels: path.tunnels(self.workers),
                is_up: path.is_up,
                requests: path.requests,
                responses: path.responses,
                restart_counter: path.restart_counter,
            };
            (number, state)
        })
    }

    /// An answer came, with such a restart counter.
    pub(crate) fn handle_response(
        &mut self,
        side: Side,
        address: IpAddr,
        (sequence, restart_counter): (Option<u16>, Option<u8>),
        events: &mut Events,
    ) {
        let (Some(number), Some(supervision)) =
            (self.numbers.get(&(side, address)), self.supervision)
        else {
            return;
        };
        let (number, path) = (*number, &mut self.places[*number as usize]);
        let Asking::Asked { began_ns, .. } = path.asking else {
            return;
        };
        if sequence != Some(path.sequence) {
            return;
        }
        self.due.remove(&(path.asking.due_ns(), number));
        path.asking = Asking::Resting(began_ns.saturating_add(supervision.interval_ns));
        self.due.insert((path.asking.due_ns(), number));
        path.responses += 1;
        path.restart_counter = restart_counter.or(path.restart_counter);
        if path.is_up.replace(true) != Some(true) {
            events.push(Event::PathUp(side, address));
        }
    }

    /// What is due: sends requests, each to a side's address with a number; so many that whoever sends them has room.
    pub(crate) fn handle_timeout(
        &mut self,
        now_ns: u64,
        events: &mut Events,
        mut send: impl FnMut(Side, IpAddr, u16),
    ) {
        let Some(supervision) = self.supervision else {
            self.fresh.clear();
            return;
        };
        let rest = self.fresh.len().saturating_sub(ASKS_MAX);
        for number in self.fresh.drain(rest..) {
            let path = &mut self.places[number as usize];
            // The number may be another path's by now, of another worker's peer.
            if path.is_used() && asker(path.address, self.workers) == self.worker {
                path.asking = Asking::Resting(now_ns);
                self.due.insert((now_ns, number));
            }
        }
        for _ in 0..ASKS_MAX {
            let Some(&(due_ns, number)) = self.due.first().filter(|due| due.0 <= now_ns) else {
                break;
            };
            self.due.remove(&(due_ns, number));
            let path = &mut self.places[number as usize];
            let asks = match path.asking {
                Asking::Resting(_) => path.ask(now_ns, &supervision),
                Asking::Asked { .. } => path.wait(now_ns, &supervision, events),
            };
            self.due.insert((path.asking.due_ns(), number));
            if asks {
                path.requests += 1;
                send(path.side, path.address, path.sequence);
            }
        }
    }

    pub(crate) fn next_timeout_ns(&self) -> Option<u64> {
        if self.supervision.is_some() && !self.fresh.is_empty() {
            return Some(0);
        }
        self.due.first().map(|due| due.0)
    }
}

impl Asking {
    fn due_ns(&self) -> u64 {
        match *self {
            Asking::Resting(until_ns) | Asking::Asked { until_ns, .. } => until_ns,
        }
    }
}

impl Path {
    /// Its rest is over. Whether a request is to be sent.
    fn ask(&mut self, now_ns: u64, supervision: &Supervision) -> bool {
        self.sequence = self.sequence.wrapping_add(1);
        self.asking = Asking::Asked {
            began_ns: now_ns,
            until_ns: now_ns.saturating_add(supervision.response_ns.max(1)),
            left: supervision.requests.saturating_sub(1),
        };
        true
    }

    /// No answer came in time. Whether the request is to be sent again.
    fn wait(&mut self, now_ns: u64, supervision: &Supervision, events: &mut Events) -> bool {
        let Asking::Asked { began_ns, left, .. } = self.asking else {
            return false;
        };
        if let Some(left) = left.checked_sub(1) {
            self.asking = Asking::Asked {
                began_ns,
                until_ns: now_ns.saturating_add(supervision.response_ns.max(1)),
                left,
            };
            return true;
        }
        let next_ns = began_ns.saturating_add(supervision.interval_ns);
        self.asking = Asking::Resting(next_ns.max(now_ns.saturating_add(1)));
        if self.is_up.replace(false) != Some(false) {
            events.push(Event::PathDown(self.side, self.address));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    struct Rig {
        paths: Paths,
        events: Events,
        sent: Vec<(u64, u16)>,
    }

    impl Rig {
        fn run(&mut self, until_s: u64) {
            while let Some(due_ns) = self
                .paths
                .next_timeout_ns()
                .filter(|due| *due <= until_s * SECOND)
            {
                let sent = &mut self.sent;
                self.paths
                    .handle_timeout(due_ns, &mut self.events, |_, _, sequence| {
                        sent.push((due_ns / SECOND, sequence));
                    });
            }
        }

        fn answer(&mut self, sequence: u16) {
            self.paths.handle_response(
                Side::Radio,
                peer(),
                (Some(sequence), Some(7)),
                &mut self.events,
            );
        }
    }

    fn peer() -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9))
    }

    fn rig() -> Rig {
        let mut paths = Paths::default();
        paths.supervise(Some(Supervision::default()));
        paths.acquire(Side::Radio, peer()).unwrap();
        Rig {
            paths,
            events: Events::default(),
            sent: Vec::new(),
        }
    }

    #[test]
    fn a_peer_that_answers_is_asked_once_a_minute() {
        let mut rig = rig();
        for minute in 0..4 {
            rig.run(minute * 60 + 1);
            rig.answer(minute as u16 + 1);
        }
        assert_eq!(rig.sent, [(0, 1), (60, 2), (120, 3), (180, 4)]);
        assert_eq!(rig.events.pop(), Some(Event::PathUp(Side::Radio, peer())));
        assert_eq!(rig.events.pop(), None);
        let path = rig.paths.iter().next().unwrap();
        assert_eq!((path.requests, path.responses), (4, 4));
        assert_eq!(path.restart_counter, Some(7));
    }

    #[test]
    fn many_peers_are_asked_a_few_at_a_time_and_each_by_one_worker() {
        let mut asked = std::collections::HashMap::new();
        for worker in 0..3 {
            let mut paths = Paths::default();
            paths.share(worker, 3);
            paths.supervise(Some(Supervision::default()));
            for number in 0..1000 {
                let address = Ipv4Addr::from_bits(0xc000_0200 + number);
                paths.acquire(Side::Core, address.into()).unwrap();
            }
            let mut events = Events::default();
            while paths.next_timeout_ns().is_some_and(|due| due <= SECOND) {
                let mut sent = 0;
                paths.handle_timeout(SECOND, &mut events, |_, address, _| {
                    *asked.entry(address).or_insert(0) += 1;
                    sent += 1;
                });
                assert!(sent <= ASKS_MAX);
            }
            let own = paths.iter().count();
            assert!((250..420).contains(&own), "{own} of 1000");
        }
        assert_eq!(asked.len(), 1000);
        assert!(asked.values().all(|count| *count == 1));
    }

    #[test]
    fn without_supervision_nothing_is_kept_to_be_asked() {
        let mut paths = Paths::default();
        for _ in 0..10 {
            let path = paths.acquire(Side::Radio, peer()).unwrap();
            paths.release(path);
        }
        assert!(paths.fresh.is_empty() && paths.next_timeout_ns().is_none());
    }

    #[test]
    fn one_that_does_not_is_asked_again_with_the_same_number_and_is_down() {
        let mut rig = rig();
        rig.run(59);
        assert_eq!(rig.sent, [(0, 1), (3, 1), (6, 1)]);
        assert_eq!(rig.events.pop(), Some(Event::PathDown(Side::Radio, peer())));
        // A late answer is none.
        rig.answer(1);
        assert_eq!(rig.events.pop(), None);
        rig.run(62);
        rig.answer(1);
        assert_eq!(rig.events.pop(), None);
        rig.answer(2);
        assert_eq!(rig.events.pop(), Some(Event::PathUp(Side::Radio, peer())));
        rig.run(119);
        assert_eq!(rig.sent.last(), Some(&(60, 2)));
    }

    #[test]
    fn without_tunnels_nobody_is_asked() {
        let mut rig = rig();
        rig.run(0);
        let path = rig.paths.acquire(Side::Radio, peer()).unwrap();
        rig.paths.release(path);
        rig.run(8);
        assert_eq!(rig.sent.len(), 3);
        rig.paths.release(path);
        rig.run(1_000);
        assert_eq!((rig.sent.len(), rig.paths.next_timeout_ns()), (3, None));
        assert_eq!(rig.paths.iter().count(), 0);
    }
}
