//! Random choices that stay the same for a seed, whatever version of whatever crate is there: kept seeds
//! depend on it.

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        let span = u64::from(high.saturating_sub(low)) + 1;
        low + (self.next() % span) as u32
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.between(1, 100) <= percent
    }

    /// One of the items; there must be one.
    pub(crate) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        let index = self.between(0, items.len() as u32 - 1);
        items[index as usize].clone()
    }

    /// One of the items, or `None` where there is none.
    pub(crate) fn pick_any<T: Clone>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| self.pick(items))
    }

    /// An index, each with the probability that its weight has among all; some weight must be above 0.
    pub(crate) fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u32 = weights.iter().sum();
        let mut left = self.between(0, total.max(1) - 1);
        for (index, weight) in weights.iter().enumerate() {
            if left < *weight {
                return index;
            }
            left -= weight;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_keeps_its_numbers() {
        let mut random = Random::new(1);
        let numbers: Vec<u32> = (0..4).map(|_| random.between(0, 999)).collect();
        assert_eq!(numbers, [139, 229, 230, 780]);
    }

    #[test]
    fn only_items_with_weight_are_chosen() {
        let mut random = Random::new(2);
        assert!((0..100).all(|_| random.weighted(&[0, 3, 0]) == 1));
    }
}
