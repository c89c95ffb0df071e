//! So many of something in a second.

use std::time::Instant;

/// Above this, nothing is limited: numbers stay below 2^64.
const PER_S_MAX: u64 = 10_000_000_000;
/// Of what a second brings, this part may come at once.
const BURST: u64 = 10;
const SECOND_NS: u64 = 1_000_000_000;

/// A token bucket, in billionths of what is counted.
#[derive(Debug)]
pub(super) struct Limit {
    per_s: Option<u64>,
    level: u64,
    most: u64,
    at: Option<Instant>,
}

impl Limit {
    /// `least` of them may always come at once. None: there is no limit.
    pub(super) fn new(per_s: Option<u64>, least: u64) -> Limit {
        let per_s = per_s.filter(|per_s| *per_s < PER_S_MAX);
        let most = (per_s.unwrap_or(0) / BURST).max(least) * SECOND_NS;
        Limit {
            per_s,
            level: most,
            most,
            at: None,
        }
    }

    /// Whether there are so many now.
    pub(super) fn has(&mut self, now: Instant, count: u64) -> bool {
        let Some(per_s) = self.per_s else {
            return true;
        };
        let since = self.at.map_or(0, |at| {
            let since = now.saturating_duration_since(at).as_nanos();
            // After a second it is full anyway.
            u64::try_from(since).unwrap_or(SECOND_NS).min(SECOND_NS)
        });
        self.at = Some(now);
        self.level = (self.level + since * per_s).min(self.most);
        self.level >= count * SECOND_NS
    }

    /// Takes them.
    pub(super) fn take(&mut self, count: u64) {
        self.level = self.level.saturating_sub(count * SECOND_NS);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn in_the_long_run_no_more_than_allowed_pass() {
        let begin = Instant::now();
        for per_s in [1, 7, 1000, 1_000_000] {
            let mut limit = Limit::new(Some(per_s), 1);
            let mut passed = 0;
            for turn in 0..20_000u64 {
                let now = begin + Duration::from_micros(turn * 500);
                for _ in 0..3 {
                    if limit.has(now, 1) {
                        limit.take(1);
                        passed += 1;
                    }
                }
            }
            // Ten seconds, and what may come at once; it is not asked for more than this.
            let most = (per_s * 10 + (per_s / 10).max(1)).min(60_000);
            assert!(
                passed <= most && passed + 1 >= most.min(per_s * 10),
                "{passed} {per_s}"
            );
        }
    }

    #[test]
    fn without_a_limit_everything_passes() {
        let mut limit = Limit::new(None, 1);
        assert!(limit.has(Instant::now(), u64::MAX));
        limit.take(1);
        assert!(limit.has(Instant::now(), 5));
    }
}
