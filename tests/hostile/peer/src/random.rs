//! Seeded disorder.

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

    /// Below `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Once in `one_in` times.
    pub(crate) fn strikes(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A number that somebody may have forgotten: extremes, powers of two, those beside them, and any.
    pub(crate) fn odd(&mut self) -> u64 {
        let power = 1u64 << self.below(64);
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => power,
            3 => power - 1,
            4 => power.wrapping_neg(),
            5 => self.next() & 0xff,
            6 => self.next() & 0xffff_ffff,
            _ => self.next(),
        }
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}
