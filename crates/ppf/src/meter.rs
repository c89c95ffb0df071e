//! Token buckets: how much may pass in a second, and how much at once.
//!
//! Credit is counted in billionths of a byte and of a packet, so that what a nanosecond brings is a whole number, whatever the rate:
//! nothing is rounded, and what passes over any time differs from the rate by the burst alone.

/// How much may pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limit {
    /// Bytes of users' packets in a second; 0: any number.
    pub bytes_per_second: u64,
    /// Bytes at once; no packet that is longer ever passes.
    pub burst_bytes: u64,
    /// Packets in a second; 0: any number.
    pub packets_per_second: u32,
    /// Packets at once.
    pub burst_packets: u32,
}

/// A burst is this part of a second's bytes or packets, where nobody says another.
const BURST_PARTS: u64 = 50;
/// But so many packets of the longest kind at least: what TCP sends at once.
const BURST_BYTES_MIN: u64 = 10 * 1_500;
const BURST_PACKETS_MIN: u32 = 10;
/// Rates are told in units of so many bytes in a second: 1 kbit, as in TS 29.244, 8.2.8.
pub(crate) const KBIT_BYTES: u64 = 125;
const SCALE: u64 = 1_000_000_000;

impl Limit {
    /// So many bytes in a second, and a fiftieth of them at once, but 15 000 at least.
    #[must_use]
    pub fn bytes(per_second: u64) -> Limit {
        Limit {
            bytes_per_second: per_second,
            burst_bytes: (per_second / BURST_PARTS).max(BURST_BYTES_MIN),
            ..Limit::default()
        }
    }

    /// So many packets in a second, and a fiftieth of them at once, but 10 at least.
    #[must_use]
    pub fn packets(per_second: u32) -> Limit {
        Limit {
            packets_per_second: per_second,
            burst_packets: (per_second / BURST_PARTS as u32).max(BURST_PACKETS_MIN),
            ..Limit::default()
        }
    }

    /// Bytes in a second as they are told, in kilobits: 0 for any number.
    #[must_use]
    pub fn kbit_per_second(&self) -> u64 {
        self.bytes_per_second / KBIT_BYTES
    }

    /// Whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.bytes_per_second == 0 && self.packets_per_second == 0
    }
}

/// What may pass now.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bucket {
    limit: Limit,
    bytes: u64,
    packets: u64,
    at_ns: u64,
}

impl Bucket {
    /// A full one.
    pub(crate) fn new(limit: Limit) -> Bucket {
        Bucket {
            limit,
            bytes: scaled(limit.burst_bytes),
            packets: scaled(u64::from(limit.burst_packets)),
            at_ns: 0,
        }
    }

    pub(crate) fn limit(&self) -> Limit {
        self.limit
    }

    /// Whether a packet of so many bytes may pass now; it has not yet.
    pub(crate) fn allows(&mut self, bytes: usize, now_ns: u64) -> bool {
        let limit = self.limit;
        if limit.is_none() {
            return true;
        }
        // Time that goes back brings nothing, and is not paid for twice.
        let passed = now_ns.saturating_sub(self.at_ns);
        self.at_ns = self.at_ns.max(now_ns);
        let grown = |credit: u64, rate: u64, burst: u64| {
            let more = credit.saturating_add(passed.saturating_mul(rate));
            more.min(scaled(burst))
        };
        let packet_rate = u64::from(limit.packets_per_second);
        self.bytes = grown(self.bytes, limit.bytes_per_second, limit.burst_bytes);
        self.packets = grown(self.packets, packet_rate, u64::from(limit.burst_packets));
        (limit.bytes_per_second == 0 || self.bytes >= scaled(bytes as u64))
            && (packet_rate == 0 || self.packets >= SCALE)
    }

    /// What two have in common that were one, and have let pass what they have apart from each other.
    pub(crate) fn lesser(mut self, mut other: Bucket) -> Bucket {
        let at_ns = self.at_ns.max(other.at_ns);
        self.allows(0, at_ns);
        other.allows(0, at_ns);
        self.bytes = self.bytes.min(other.bytes);
        self.packets = self.packets.min(other.packets);
        self
    }

    /// It has.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(scaled(bytes as u64));
        self.packets = self.packets.saturating_sub(SCALE);
    }
}

fn scaled(count: u64) -> u64 {
    count.saturating_mul(SCALE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The same with numbers that have no bounds, and no credit kept between packets but the exact one.
    struct Model {
        limit: Limit,
        bytes: u128,
        packets: u128,
        at_ns: u128,
    }

    impl Model {
        fn allows(&mut self, bytes: usize, now_ns: u64) -> bool {
            let passed = u128::from(now_ns) - self.at_ns;
            self.at_ns = now_ns.into();
            let scale = u128::from(SCALE);
            let limit = self.limit;
            let more = self.bytes + passed * u128::from(limit.bytes_per_second);
            self.bytes = more.min(u128::from(limit.burst_bytes) * scale);
            let more = self.packets + passed * u128::from(limit.packets_per_second);
            self.packets = more.min(u128::from(limit.burst_packets) * scale);
            let needed = bytes as u128 * scale;
            let fits = (limit.bytes_per_second == 0 || self.bytes >= needed)
                && (limit.packets_per_second == 0 || self.packets >= scale);
            if fits {
                self.bytes -= needed.min(self.bytes);
                self.packets -= scale.min(self.packets);
            }
            fits
        }
    }

    fn random_limit(random: &mut Random) -> Limit {
        let magnitude = 10 + random.below(24);
        Limit {
            bytes_per_second: random.below(4) * random.below(1 << magnitude),
            burst_bytes: random.below(1 << 18),
            packets_per_second: (random.below(4) * random.below(2_000_000)) as u32,
            burst_packets: random.below(100) as u32,
        }
    }

    #[test]
    fn it_lets_pass_what_the_model_lets_pass() {
        let mut random = Random(1);
        for _ in 0..200 {
            let limit = random_limit(&mut random);
            let scale = u128::from(SCALE);
            let (mut bucket, mut now_ns) = (Bucket::new(limit), 0);
            let mut model = Model {
                limit,
                bytes: u128::from(limit.burst_bytes) * scale,
                packets: u128::from(limit.burst_packets) * scale,
                at_ns: 0,
            };
            for _ in 0..500 {
                let magnitude = random.below(33);
                now_ns += random.below(1 << magnitude);
                let bytes = random.below(9000) as usize;
                let allowed = bucket.allows(bytes, now_ns);
                assert_eq!(allowed, model.allows(bytes, now_ns), "{limit:?}");
                if allowed {
                    bucket.take(bytes);
                }
            }
        }
    }

    #[test]
    fn rates_are_met_to_a_thousandth_whatever_is_offered() {
        let mut random = Random(2);
        for rate in [8_000, 125_000, 12_500_000, 1_250_000_000, 12_500_000_000] {
            let limit = Limit {
                burst_bytes: BURST_BYTES_MIN,
                ..Limit::bytes(rate)
            };
            let mut bucket = Bucket::new(limit);
            // Twice as much as may pass is offered, in packets of all lengths, until far more than the burst did.
            let (mut now_ns, mut passed, mut offered) = (0u64, 0u64, 0u64);
            let enough = 2_000 * limit.burst_bytes;
            while passed < enough {
                let bytes = 40 + random.below(1_460);
                offered += bytes;
                now_ns = (u128::from(offered) * 500_000_000 / u128::from(rate)) as u64;
                if bucket.allows(bytes as usize, now_ns) {
                    bucket.take(bytes as usize);
                    passed += bytes;
                }
            }
            let wanted = (u128::from(rate) * u128::from(now_ns) / u128::from(SCALE)) as u64;
            let difference = passed.abs_diff(wanted) * 1000;
            assert!(difference <= wanted, "{rate}: {passed} and not {wanted}");
        }
    }

    #[test]
    fn time_that_goes_back_brings_nothing() {
        let mut bucket = Bucket::new(Limit::bytes(1_000));
        assert!(bucket.allows(15_000, 5_000_000_000));
        bucket.take(15_000);
        for now_ns in [0, 4_000_000_000, 5_000_000_000] {
            assert!(!bucket.allows(100, now_ns));
        }
        assert!(bucket.allows(100, 5_100_000_000));
    }
}
