//! Seeded disorder for tests: switches between roads at any call and any byte.

use std::sync::atomic::{AtomicU64, Ordering};

/// A source of decisions; switched off when its seed is zero.
#[derive(Debug)]
pub struct Chaos(AtomicU64);

impl Chaos {
    /// `seed` zero means that [`Chaos::strikes`] is always false.
    #[must_use]
    pub const fn new(seed: u64) -> Chaos {
        Chaos(AtomicU64::new(seed))
    }

    /// Sets the seed.
    pub fn reseed(&self, seed: u64) {
        self.0.store(seed, Ordering::Relaxed);
    }

    /// Whether anything is random at all.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// True once in `one_in` times, when on.
    #[inline]
    pub fn strikes(&self, one_in: u64) -> bool {
        self.is_on() && self.next().is_multiple_of(one_in)
    }

    /// `bytes`, or when on sometimes a smaller number of at least one.
    #[inline]
    pub fn cut(&self, bytes: u32) -> u32 {
        if bytes > 1 && self.strikes(3) {
            1 + (self.next() % u64::from(bytes)) as u32
        } else {
            bytes
        }
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn next(&self) -> u64 {
        let step = 0x9e37_79b9_7f4a_7c15;
        let state = self.0.fetch_add(step, Ordering::Relaxed).wrapping_add(step);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
