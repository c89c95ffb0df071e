//! Keys and values of a store. Each connection has keys of its own, so that what a read has to find is known exactly: the value of
//! the last write on the same connection.

use anyhow::{Result, ensure};

use super::content::{Contents, Variant, mix};
use super::protocol::Ticket;

/// `key:` and twelve digits, as `redis-benchmark` names them.
pub(super) const KEY_BYTES: usize = 16;
/// A ticket is whether it is a write, the key, and from bit 0 the variant of the value.
const WRITE: u64 = 1 << 63;
const KEY_SHIFT: u32 = 16;
const MAX_KEYS: u64 = 1 << 32;
/// Numbers that no request has, for what is written before the run.
const BEFORE_THE_RUN: u64 = 1 << 63;

/// A workload of reads and writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Keyed {
    /// How many keys there are.
    pub keys: u64,
    /// Length of each value.
    pub bytes: usize,
    /// Share of writes, from 0 to 1.
    pub set_share: f64,
}

/// One request of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) write: bool,
    pub(super) key: u64,
    /// Of the value that is written, or has to be found.
    pub(super) variant: Variant,
}

impl Operation {
    pub(super) fn ticket(self) -> Ticket {
        let write = if self.write { WRITE } else { 0 };
        write | self.key << KEY_SHIFT | u64::from(self.variant)
    }

    pub(super) fn of(ticket: Ticket) -> Operation {
        Operation {
            write: ticket & WRITE != 0,
            key: (ticket & !WRITE) >> KEY_SHIFT,
            variant: ticket as Variant,
        }
    }
}

pub(super) struct Keys {
    contents: Contents,
    /// The value that each key has, when the requests so far are done.
    values: Vec<Variant>,
    connections: u64,
    seed: u64,
    /// Of 2³² draws, those below are writes.
    writes: u64,
}

impl Keys {
    pub(super) fn new(keyed: &Keyed, connections: usize, seed: u64) -> Result<Keys> {
        ensure!(
            keyed.keys >= connections as u64,
            "{} keys are too few for {connections} connections: each has keys of its own, so that every answer can be checked",
            keyed.keys
        );
        ensure!(
            keyed.keys <= MAX_KEYS,
            "{} keys are too many: {MAX_KEYS} are the limit",
            keyed.keys
        );
        ensure!(
            (0.0..=1.0).contains(&keyed.set_share),
            "the share of writes is between 0 and 1, not {}",
            keyed.set_share
        );
        let values = (0..keyed.keys).map(|key| Contents::variant(BEFORE_THE_RUN + key));
        Ok(Keys {
            contents: Contents::new(seed, keyed.bytes),
            values: values.collect(),
            connections: connections as u64,
            seed,
            writes: (keyed.set_share * (1_u64 << 32) as f64) as u64,
        })
    }

    /// Writes before the run; none are needed where nothing is read.
    pub(super) fn preparations(&self) -> u64 {
        if self.writes < 1 << 32 {
            self.values.len() as u64
        } else {
            0
        }
    }

    pub(super) fn preparation(&self, key: u64) -> Operation {
        Operation {
            write: true,
            key,
            variant: self.values[key as usize],
        }
    }

    /// The operation of a request, and from now on the value of its key.
    #[inline]
    pub(super) fn draw(&mut self, number: u64, connection: usize) -> Operation {
        let random = mix(self.seed, number);
        let write = random >> 32 < self.writes;
        let connection = connection as u64;
        let count = self.values.len() as u64;
        let own = count / self.connections + u64::from(connection < count % self.connections);
        let key = connection + (((random & 0xffff_ffff) * own) >> 32) * self.connections;
        let value = &mut self.values[key as usize];
        if write {
            *value = Contents::variant(number);
        }
        Operation {
            write,
            key,
            variant: *value,
        }
    }

    #[inline]
    pub(super) fn value(&self, operation: Operation) -> &[u8] {
        self.contents.get(operation.variant)
    }
}

/// The name of a key.
#[inline]
pub(super) fn name(mut key: u64) -> [u8; KEY_BYTES] {
    let mut name = *b"key:000000000000";
    for digit in name[4..].iter_mut().rev() {
        if key == 0 {
            break;
        }
        *digit = b'0' + (key % 10) as u8;
        key /= 10;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_reads_what_it_wrote_last_and_touches_no_key_of_another() {
        let keyed = Keyed {
            keys: 10,
            bytes: 8,
            set_share: 0.5,
        };
        let mut keys = Keys::new(&keyed, 3, 1).unwrap();
        let mut model: Vec<_> = (0..10).map(|key| keys.preparation(key).variant).collect();
        let (mut writes, mut touched) = (0, [0; 10]);
        for number in 0..3000 {
            let operation = keys.draw(number, number as usize % 3);
            assert_eq!(operation.key % 3, number % 3);
            touched[operation.key as usize] += 1;
            if operation.write {
                writes += 1;
                model[operation.key as usize] = Contents::variant(number);
            }
            assert_eq!(operation.variant, model[operation.key as usize]);
            assert_eq!(Operation::of(operation.ticket()), operation);
        }
        assert!((1350..1650).contains(&writes), "{writes}");
        assert!(touched.iter().all(|&count| count > 150), "{touched:?}");
    }

    #[test]
    fn shares_of_none_and_all_are_exact() {
        for (share, write) in [(0.0, false), (1.0, true)] {
            let keyed = Keyed {
                keys: 4,
                bytes: 1,
                set_share: share,
            };
            let mut keys = Keys::new(&keyed, 1, 9).unwrap();
            assert!((0..1000).all(|number| keys.draw(number, 0).write == write));
            assert_eq!(keys.preparations(), if write { 0 } else { 4 });
        }
    }

    #[test]
    fn names_have_one_length() {
        assert_eq!(&name(0), b"key:000000000000");
        assert_eq!(&name(4_294_967_296), b"key:004294967296");
    }
}
