//! The bytes of a stream: position and seed decide each, and no two places within a megabyte look alike.

use std::sync::OnceLock;

/// A prime, so that a shift by a power of two, as a mistake with a ring makes, never goes unseen.
const PERIOD: usize = 1_048_573;
/// Bytes that are looked for in the pattern to say what a wrong byte was.
const NEEDLE: usize = 16;

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut random = Random::new(0x6d69_6c6c);
        let mut bytes = Vec::with_capacity(PERIOD + 8);
        while bytes.len() < PERIOD {
            bytes.extend_from_slice(&random.next().to_le_bytes());
        }
        bytes.truncate(PERIOD);
        bytes
    })
}

/// One direction of one connection.
#[derive(Clone, Copy)]
pub(crate) struct Pattern {
    offset: u64,
}

/// Where a stream was wrong, and what was there instead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wrong {
    pub(crate) position: u64,
    /// How far ahead of where they belong (or behind, modulo the period) the bytes are. None: they are no part of the stream.
    pub(crate) ahead: Option<u64>,
}

impl Pattern {
    pub(crate) fn new(seed: u64, direction: u64) -> Pattern {
        Pattern {
            offset: Random::new(seed ^ (direction << 63)).next() % PERIOD as u64,
        }
    }

    fn place(self, position: u64) -> usize {
        ((position + self.offset) % PERIOD as u64) as usize
    }

    /// Writes the stream's bytes from `position` on.
    pub(crate) fn fill(self, position: u64, target: &mut [u8]) {
        let mut done = 0;
        while done < target.len() {
            let from = self.place(position + done as u64);
            let part = (target.len() - done).min(PERIOD - from);
            target[done..done + part].copy_from_slice(&table()[from..from + part]);
            done += part;
        }
    }

    /// Compares bytes that came at `position` with what they must be.
    pub(crate) fn check(self, position: u64, got: &[u8]) -> Result<(), Wrong> {
        let mut done = 0;
        while done < got.len() {
            let from = self.place(position + done as u64);
            let part = (got.len() - done).min(PERIOD - from);
            if got[done..done + part] != table()[from..from + part] {
                let same = got[done..]
                    .iter()
                    .zip(&table()[from..])
                    .take_while(|(a, b)| a == b)
                    .count();
                let at = done + same;
                return Err(Wrong {
                    position: position + at as u64,
                    ahead: self.shift(position + at as u64, &got[at..]),
                });
            }
            done += part;
        }
        Ok(())
    }

    fn shift(self, position: u64, got: &[u8]) -> Option<u64> {
        let needle = got.get(..NEEDLE)?;
        let found = table()
            .windows(NEEDLE)
            .position(|window| window == needle)?;
        Some(((found + PERIOD - self.place(position)) % PERIOD) as u64)
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// From 1 to `max`, small numbers as likely as large ones of any magnitude.
    pub(crate) fn size(&mut self, max: usize) -> usize {
        let bits = u64::from(usize::BITS - max.leading_zeros());
        let limit = 1u64 << (self.next() % (bits + 1));
        ((1 + self.next() % limit) as usize).min(max)
    }
}
