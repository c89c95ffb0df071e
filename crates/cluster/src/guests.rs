//! What each address may take of the server, so that whoever takes too much is in nobody's way but their own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections at a time: an API server keeps a few, and has more when many pods are made at once.
const CONNECTIONS_OF_ONE: usize = 128;
const CONNECTIONS: usize = 1024;
/// Bytes of questions that are not answered yet. A pod's are some tens of KiB; an API server takes none of more than 3 MiB.
const BYTES_OF_ONE: usize = 16 << 20;
/// Of all addresses: a pod with 128 MiB has room for these twice, since what grows takes up to twice what it needs. Beyond it an address
/// has what a usual question needs.
const BYTES: usize = 32 << 20;
const BYTES_ALWAYS: usize = 64 << 10;

/// What an address has at the moment.
#[derive(Debug, Default)]
struct Share {
    connections: usize,
    bytes: usize,
}

/// Whoever is connected.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guests(Arc<Mutex<HashMap<IpAddr, Share>>>);

/// A connection; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Guest {
    guests: Guests,
    address: IpAddr,
}

/// Bytes of a question; given back when they are dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    guest: &'a Guest,
    bytes: usize,
}

impl Guests {
    /// Lets one in, where there is room.
    pub(crate) fn enter(&self, address: IpAddr) -> Option<Guest> {
        let mut shares = self.lock();
        let all: usize = shares.values().map(|share| share.connections).sum();
        let own = shares.get(&address).map_or(0, |share| share.connections);
        if all >= CONNECTIONS || own >= CONNECTIONS_OF_ONE {
            return None;
        }
        shares.entry(address).or_default().connections += 1;
        let guests = self.clone();
        Some(Guest { guests, address })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Share>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Guest {
    /// Room for a question that has not come yet.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held {
            guest: self,
            bytes: 0,
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut shares = self.guests.lock();
        if let Some(share) = shares.get_mut(&self.address) {
            share.connections -= 1;
            if share.connections == 0 {
                shares.remove(&self.address);
            }
        }
    }
}

impl Held<'_> {
    /// Takes room for more; false where there is none.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let mut shares = self.guest.guests.lock();
        let all: usize = shares.values().map(|share| share.bytes).sum();
        let Some(share) = shares.get_mut(&self.guest.address) else {
            return false;
        };
        let own = share.bytes + bytes;
        if own > BYTES_OF_ONE || own > BYTES_ALWAYS && all + bytes > BYTES {
            return false;
        }
        share.bytes += bytes;
        self.bytes += bytes;
        true
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(share) = self.guest.guests.lock().get_mut(&self.guest.address) {
            share.bytes -= self.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_and_no_more() {
        let guests = Guests::default();
        let address = |last| IpAddr::from([10, 0, 0, last]);
        let mut all: Vec<Guest> = (0..CONNECTIONS_OF_ONE)
            .map(|_| guests.enter(address(1)).unwrap())
            .collect();
        assert!(guests.enter(address(1)).is_none());
        let other = guests.enter(address(2)).unwrap();
        let (mut first, mut second) = (all[0].hold(), all[1].hold());
        assert!(first.grow(BYTES_OF_ONE) && !second.grow(1) && !first.grow(1));
        assert!(other.hold().grow(BYTES_OF_ONE));
        drop(first);
        assert!(second.grow(BYTES_OF_ONE));
        drop(second);
        all.clear();
        assert!(guests.enter(address(1)).is_some());
        drop(other);
        assert!(guests.lock().is_empty());
    }

    #[test]
    fn all_together_have_no_more_than_the_server_has() {
        let guests = Guests::default();
        let all: Vec<Guest> = (0..CONNECTIONS)
            .map(|index| guests.enter(IpAddr::from([10, 0, 0, u8::try_from(index % 100).unwrap()])))
            .map(Option::unwrap)
            .collect();
        assert!(guests.enter(IpAddr::from([10, 0, 1, 0])).is_none());
        drop(all);
        assert!(guests.enter(IpAddr::from([10, 0, 1, 0])).is_some());
    }

    #[test]
    fn all_together_hold_no_more_than_there_is_and_a_usual_question_passes() {
        let guests = Guests::default();
        let enter = |last| guests.enter(IpAddr::from([10, 0, 0, last])).unwrap();
        let all: Vec<Guest> = (0..BYTES / BYTES_OF_ONE)
            .map(|last| enter(u8::try_from(last).unwrap()))
            .collect();
        let mut held: Vec<Held<'_>> = all.iter().map(Guest::hold).collect();
        assert!(held.iter_mut().all(|held| held.grow(BYTES_OF_ONE)));
        let other = enter(100);
        let mut question = other.hold();
        assert!(question.grow(BYTES_ALWAYS) && !question.grow(1));
        held.clear();
        assert!(question.grow(1));
    }
}
