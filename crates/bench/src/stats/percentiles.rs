//! Percentiles of many samples, counted out, and which of them may be drawn.

/// Samples that must lie beyond a percentile before it is shown: with fewer, chance moves it by more than a tenth either way, as the
/// standard deviation of a count of 100 is 10.
pub const BEYOND: u64 = 100;
/// Of a tool that keeps no histogram, what a trial's percentile must have beyond it to be kept. It is shown where there are [`BEYOND`]:
/// beyond the trial's own, or, of the median over trials, beyond those of all of them together.
pub const BEYOND_IN_TRIAL: u64 = 20;

/// Whether so many samples carry a percentile (0 to 100): whether at least [`BEYOND`] lie beyond it.
#[must_use]
pub fn is_carried(count: u64, percentile: f64) -> bool {
    has_beyond(BEYOND, count, percentile)
}

/// Whether a trial of so many samples keeps it.
#[must_use]
pub fn is_carried_in_trial(count: u64, percentile: f64) -> bool {
    has_beyond(BEYOND_IN_TRIAL, count, percentile)
}

fn has_beyond(least: u64, count: u64, percentile: f64) -> bool {
    // A little slack, since 100 - 99.999 is a little less than 0.001 in binary.
    count as f64 * (100.0 - percentile) / 100.0 + 1e-6 >= least as f64
}

/// A sorted sample, kept whole. HdrHistogram's figures are held against it; who has all samples may use it in its stead.
#[derive(Clone, Debug)]
pub struct Percentiles {
    sorted: Vec<u64>,
}

impl Percentiles {
    /// Of samples in any order.
    #[must_use]
    pub fn new(samples: &[u64]) -> Percentiles {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        Percentiles { sorted }
    }

    /// The least sample that at least that many per cent (0 to 100) of the samples do not exceed; `None` of nothing.
    ///
    /// Definition 1 of Hyndman and Fan, the inverse of the empirical distribution: always a value that was measured. HdrHistogram
    /// counts in the same way.
    #[must_use]
    pub fn at(&self, percentile: f64) -> Option<u64> {
        let count = self.sorted.len();
        let rank = (percentile.clamp(0.0, 100.0) / 100.0 * count as f64).ceil() as usize;
        self.sorted.get(rank.clamp(1, count.max(1)) - 1).copied()
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::super::generator::Generator;
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_sample() {
        let percentiles = Percentiles::new(&[50, 10, 40, 20, 30]);
        let found = [0.0, 20.0, 20.1, 50.0, 99.0, 100.0].map(|at| percentiles.at(at));
        assert_eq!(found, [10, 10, 20, 30, 50, 50].map(Some));
        assert_eq!(Percentiles::new(&[]).at(50.0), None);
    }

    #[test]
    fn at_least_the_share_is_at_or_below_and_less_than_it_is_below() {
        let mut generator = Generator::new(3);
        for count in [1, 2, 3, 10, 99, 100, 101] {
            let samples: Vec<u64> = (0..count).map(|_| generator.bits() % 50).collect();
            let percentiles = Percentiles::new(&samples);
            for percentile in [0.5, 10.0, 33.3, 50.0, 90.0, 99.0, 100.0] {
                let value = percentiles.at(percentile).expect("there are samples");
                let share = |holds: &dyn Fn(u64) -> bool| {
                    samples.iter().filter(|&&sample| holds(sample)).count() as f64 * 100.0
                        / count as f64
                };
                assert!(share(&|sample| sample <= value) >= percentile - 1e-9);
                assert!(share(&|sample| sample < value) < percentile);
            }
        }
    }

    /// Round trips around 20 µs with a long tail, and one in a thousand that a stall of milliseconds met.
    fn round_trips(count: usize) -> Vec<u64> {
        let mut generator = Generator::new(4);
        let mut one = || {
            let stalled = generator.below(1000) == 0;
            let scale = if stalled { 5e6 } else { 20e3 };
            (scale * (1.0 - generator.share()).powf(-0.4)) as u64
        };
        (0..count).map(|_| one()).collect()
    }

    #[test]
    fn histograms_agree_within_their_digits() {
        let samples = round_trips(100_000);
        let percentiles = Percentiles::new(&samples);
        for (digits, error) in [(2, 1e-2), (3, 1e-3), (4, 1e-4)] {
            let mut histogram = Histogram::<u64>::new(digits).expect("a number of digits");
            samples
                .iter()
                .for_each(|&sample| histogram.record(sample).expect("in range"));
            for percentile in [1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0] {
                let exact = percentiles.at(percentile).expect("there are samples") as f64;
                let found = histogram.value_at_percentile(percentile) as f64;
                // A histogram gives the upper end of the sample's bucket.
                assert!(
                    (0.0..=exact * error).contains(&(found - exact)),
                    "{digits} digits, {percentile}: {found}, not {exact}"
                );
            }
        }
    }

    #[test]
    fn a_percentile_is_carried_by_a_hundred_samples_beyond_it() {
        assert!(is_carried(10_000_000, 99.999));
        assert!(!is_carried(9_999_999, 99.999));
        assert!(is_carried(10_000, 99.0));
        assert!(!is_carried(9_990, 99.0));
        assert!(!is_carried(u64::MAX, 100.0));
        assert!(is_carried(200, 50.0));
        assert!(is_carried_in_trial(20_000, 99.9) && !is_carried_in_trial(19_999, 99.9));
    }
}
