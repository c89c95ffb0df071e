//! Seeded chance, so that whoever has the results computes the same intervals again.

/// SplitMix64: 64 bits of state, every number once in its period of 2^64.
///
/// Of G. L. Steele, D. Lea and C. H. Flood, *Fast splittable pseudorandom number generators* (OOPSLA 2014), with the constants of
/// S. Vigna's `splitmix64.c`. It passes the BigCrush tests, and a comparison draws some millions of numbers at most.
#[derive(Clone, Debug)]
pub struct Generator {
    state: u64,
}

impl Generator {
    /// A generator whose numbers the seed decides.
    #[must_use]
    pub fn new(seed: u64) -> Generator {
        Generator { state: seed }
    }

    /// 64 bits of chance.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..end`, all alike but for a part in 2^64 / `end`; 0 when there is none.
    ///
    /// The upper half of a product, as D. Lemire has it in *Fast random integer generation in an interval* (2019), without its rejection:
    /// what is drawn from here are places in samples of some dozens.
    pub fn below(&mut self, end: usize) -> usize {
        let product = u128::from(self.bits()) * end as u128;
        (product >> 64) as usize
    }

    /// From 0 to 1, without 1: the 53 upper bits, which is what an `f64` holds.
    pub fn share(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_published_generator() {
        let mut generator = Generator::new(1_234_567);
        let found: Vec<u64> = (0..5).map(|_| generator.bits()).collect();
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(found, published);
    }

    #[test]
    fn places_are_drawn_evenly_and_stay_below_the_end() {
        let mut generator = Generator::new(1);
        let mut counts = [0_i32; 7];
        for _ in 0..70_000 {
            counts[generator.below(7)] += 1;
        }
        // The standard deviation is 93.
        assert!(counts.iter().all(|count| (count - 10_000).abs() < 400));
        assert_eq!(generator.below(1), 0);
        assert_eq!(generator.below(0), 0);
    }

    #[test]
    fn shares_fill_zero_to_one_evenly() {
        let mut generator = Generator::new(2);
        let shares: Vec<f64> = (0..10_000).map(|_| generator.share()).collect();
        assert!(shares.iter().all(|share| (0.0..1.0).contains(share)));
        let mean = shares.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
