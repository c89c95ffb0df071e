//! Which bearer has a user, by the user's address, on a side without tunnels.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;

use crate::bearer::BearerId;

/// A multiplication whose halves are folded. Who adds users is trusted, and who asks for users that there are not finds short lists.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let wide = u128::from(self.0 ^ number ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = wide as u64 ^ (wide >> 64) as u64;
    }
}

pub(crate) type Hash = BuildHasherDefault<Mix>;

/// Bearers by addresses of IPv4: one word each, of which half are empty, so that a search seldom reads more than one line of memory. The
/// standard map reads two.
#[derive(Debug, Default)]
struct Addresses {
    /// An address, and below it a bearer's number, which is never 0. Their count is a power of two.
    words: Vec<u64>,
    count: usize,
}

impl Addresses {
    /// Where an address is looked for first. Multiplied by the golden ratio (Knuth, The Art of Computer Programming, 6.4), whose upper bits
    /// tell neighbours apart.
    #[inline]
    fn home(&self, address: u32) -> usize {
        let bits = self.words.len().trailing_zeros();
        (u64::from(address.wrapping_mul(0x9e37_79b1)) << bits >> 32) as usize
    }

    /// Where an address is, or would be. None: there are no words.
    #[inline]
    fn place(&self, address: u32) -> Option<usize> {
        if self.words.is_empty() {
            return None;
        }
        let mut at = self.home(address);
        loop {
            let word = *self.words.get(at)?;
            if word == 0 || (word >> 32) as u32 == address {
                return Some(at);
            }
            at = (at + 1) % self.words.len();
        }
    }

    #[inline]
    fn get(&self, address: u32) -> Option<BearerId> {
        let word = self.words[self.place(address)?];
        (word != 0).then(|| BearerId::from_number(word as u32))
    }

    /// Reads what [`Addresses::get`] would read first.
    #[inline]
    fn touch(&self, address: u32) -> u32 {
        if self.words.is_empty() {
            return 0;
        }
        let word = self.words.get(self.home(address));
        word.map_or(0, |word| *word as u32)
    }

    fn insert(&mut self, address: u32, bearer: BearerId) {
        if (self.count + 1) * 2 > self.words.len() {
            let words = vec![0; (self.words.len() * 2).max(16)];
            for word in std::mem::replace(&mut self.words, words) {
                if word != 0
                    && let Some(place) = self.place((word >> 32) as u32)
                {
                    self.words[place] = word;
                }
            }
        }
        if let Some(place) = self.place(address) {
            self.count += usize::from(self.words[place] == 0);
            self.words[place] = u64::from(address) << 32 | u64::from(bearer.number());
        }
    }

    /// Takes an address away, and moves those that stand behind it only because it was there.
    fn remove(&mut self, address: u32) {
        let Some(mut hole) = self.place(address).filter(|place| self.words[*place] != 0) else {
            return;
        };
        let count = self.words.len();
        let behind = |at: usize, of: usize| (at + count - of) % count;
        let mut at = hole;
        loop {
            at = (at + 1) % count;
            let word = self.words[at];
            if word == 0 {
                break;
            }
            if behind(at, self.home((word >> 32) as u32)) >= behind(at, hole) {
                self.words[hole] = word;
                hole = at;
            }
        }
        self.words[hole] = 0;
        self.count -= 1;
    }
}

/// Users of a side.
#[derive(Debug, Default)]
pub(crate) struct Users {
    v4: Addresses,
    /// By prefixes of 64 bits, of which each user has one.
    v6: HashMap<u64, BearerId, Hash>,
}

/// An address as it is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    V4(u32),
    V6(u64),
}

impl User {
    #[inline]
    pub(crate) fn of(address: IpAddr) -> User {
        match address {
            IpAddr::V4(address) => User::V4(address.to_bits()),
            IpAddr::V6(address) => User::V6((address.to_bits() >> 64) as u64),
        }
    }
}

impl Users {
    #[inline]
    pub(crate) fn find(&self, user: User) -> Option<BearerId> {
        match user {
            User::V4(address) => self.v4.get(address),
            User::V6(prefix) => self.v6.get(&prefix).copied(),
        }
    }

    /// Reads what a search for a user begins with, and nothing else: as for [`crate::Table::touch`].
    #[inline]
    pub(crate) fn touch(&self, user: User) -> u32 {
        match user {
            User::V4(address) => self.v4.touch(address),
            // The map shows no places, and has read the user's when it has found it.
            User::V6(_) => self.find(user).map_or(0, BearerId::number),
        }
    }

    /// Whoever had the address before has it no more.
    pub(crate) fn insert(&mut self, user: User, bearer: BearerId) {
        match user {
            User::V4(address) => self.v4.insert(address, bearer),
            User::V6(prefix) => drop(self.v6.insert(prefix, bearer)),
        }
    }

    /// Takes an address away, if it is still this bearer's.
    pub(crate) fn remove(&mut self, user: User, bearer: BearerId) {
        if self.find(user) == Some(bearer) {
            match user {
                User::V4(address) => self.v4.remove(address),
                User::V6(prefix) => drop(self.v6.remove(&prefix)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn addresses_are_found_as_in_a_map() {
        for seed in 1..20 {
            let mut random = Random(seed);
            let (mut addresses, mut model) = (Addresses::default(), HashMap::new());
            for _ in 0..5_000 {
                // Neighbours, and some that have the same home.
                let address = (random.below(300) as u32) << (random.below(3) * 12);
                if random.below(3) == 0 {
                    addresses.remove(address);
                    model.remove(&address);
                } else {
                    let bearer = BearerId::from_number(1 + random.below(1 << 30) as u32);
                    addresses.insert(address, bearer);
                    model.insert(address, bearer);
                }
                let any = (random.below(300) as u32) << (random.below(3) * 12);
                assert_eq!(addresses.get(any), model.get(&any).copied());
                assert_eq!(addresses.count, model.len());
            }
            assert!(
                model
                    .iter()
                    .all(|(address, bearer)| addresses.get(*address) == Some(*bearer))
            );
        }
        assert_eq!(Addresses::default().get(0), None);
    }
}
