//! How much may pass: a bucket that fills at a rate, and that what passes is taken out of.

/// A second, in the unit of times.
const SECOND_NS: u64 = 1_000_000_000;
/// No bucket holds more, so that a level in billionths fits into 64 bits.
pub(crate) const BURST_MAX: u64 = 10_000_000_000;

/// A rate, and how much may pass at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    /// Of packets or of bytes. Not 0.
    pub(crate) per_second: u64,
    /// At most 10¹⁰.
    pub(crate) burst: u64,
}

/// How full a bucket is. It is made full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    rate: Rate,
    /// Billionths of what is counted.
    level: u64,
    at_ns: u64,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, now_ns: u64) -> Bucket {
        Bucket {
            rate,
            level: rate.burst * SECOND_NS,
            at_ns: now_ns,
        }
    }

    /// Lets so much pass, or says that there is not so much.
    pub(crate) fn take(&mut self, amount: u64, now_ns: u64) -> bool {
        self.fill(now_ns);
        let Some(left) = amount
            .checked_mul(SECOND_NS)
            .and_then(|wanted| self.level.checked_sub(wanted))
        else {
            return false;
        };
        self.level = left;
        true
    }

    /// Whether so much could pass.
    pub(crate) fn has(&mut self, amount: u64, now_ns: u64) -> bool {
        self.fill(now_ns);
        amount
            .checked_mul(SECOND_NS)
            .is_some_and(|wanted| wanted <= self.level)
    }

    fn fill(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        let full = self.rate.burst * SECOND_NS;
        let filled = u128::from(passed) * u128::from(self.rate.per_second);
        let level = u128::from(self.level) + filled;
        // Not more than `full`.
        self.level = level.min(u128::from(full)) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_burst_it_is_the_rate() {
        let rate = Rate {
            per_second: 1000,
            burst: 10,
        };
        let mut bucket = Bucket::new(rate, 5);
        let passed =
            |bucket: &mut Bucket, now: u64| (0..100).filter(|_| bucket.take(1, now)).count();
        assert_eq!(passed(&mut bucket, 5), 10);
        assert_eq!(passed(&mut bucket, 5 + 999_999), 0);
        assert_eq!(passed(&mut bucket, 5 + 1_000_000), 1);
        assert_eq!(passed(&mut bucket, 5 + 4_500_000), 3);
        assert_eq!(passed(&mut bucket, 5 + 60 * SECOND_NS), 10);
        // A clock that goes back gives nothing.
        assert_eq!(passed(&mut bucket, 0), 0);
    }

    #[test]
    fn over_a_long_time_exactly_the_rate_passes() {
        let rate = Rate {
            per_second: 333_333,
            burst: 3000,
        };
        let mut bucket = Bucket::new(rate, 0);
        let mut bytes = 0;
        for now in (0..SECOND_NS).step_by(7919) {
            while bucket.take(64, now) {
                bytes += 64;
            }
        }
        assert!((336_260..=336_333).contains(&bytes), "{bytes}");
    }

    #[test]
    fn the_greatest_figures_do_not_overflow() {
        let rate = Rate {
            per_second: u64::MAX,
            burst: BURST_MAX,
        };
        let mut bucket = Bucket::new(rate, 0);
        assert!(!bucket.take(u64::MAX, u64::MAX) && bucket.take(BURST_MAX, u64::MAX));
        assert!(!bucket.has(1, u64::MAX));
    }
}
