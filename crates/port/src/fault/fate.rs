//! What becomes of a packet: a function of the seed, the queue and the packet's number, and of nothing else.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Which faults happen to the packets of one direction, and how often: probabilities from 0 to 1.
#[derive(Debug, Clone)]
pub struct Faults {
    /// A packet is gone.
    pub loss: f64,
    /// It comes twice, one behind the other.
    pub duplication: f64,
    /// A bit of it is another one. Its checksum is not mended; one that is still to be summed will be right all the same.
    pub corruption: f64,
    /// It is held back for some time.
    pub delay: f64,
    /// For how long.
    pub delay_time: RangeInclusive<Duration>,
    /// It is held back until some packets behind it have passed.
    pub reorder: f64,
    /// At most so many.
    pub reorder_distance: u32,
}

impl Faults {
    /// None. With these, nothing is copied.
    pub const NONE: Faults = Faults {
        loss: 0.0,
        duplication: 0.0,
        corruption: 0.0,
        delay: 0.0,
        delay_time: Duration::ZERO..=Duration::ZERO,
        reorder: 0.0,
        reorder_distance: 1,
    };
}

impl Default for Faults {
    fn default() -> Faults {
        Faults::NONE
    }
}

/// For how long a packet is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    Not,
    For(Duration),
    /// Until so many behind it have come.
    Behind(u32),
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) is_lost: bool,
    pub(super) is_doubled: bool,
    /// Which bit changes: this one, modulo as many as there are.
    pub(super) corrupts: Option<u64>,
    pub(super) hold: Hold,
}

/// A probability as a part of 2^32.
#[derive(Debug, Clone, Copy)]
struct Chance(u64);

impl Chance {
    fn new(probability: f64) -> io::Result<Chance> {
        if !(0.0..=1.0).contains(&probability) {
            let what = format!("{probability} is no probability");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(Chance((probability * 4_294_967_296.0) as u64))
    }

    fn hits(self, random: u64) -> bool {
        random >> 32 < self.0
    }
}

/// [`Faults`], ready to be drawn.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    loss: Chance,
    duplication: Chance,
    corruption: Chance,
    delay: Chance,
    /// The least, and how much more there can be, in nanoseconds.
    delay_ns: (u64, u64),
    reorder: Chance,
    reorder_distance: u32,
    seed: u64,
}

impl Plan {
    /// `seed` is another one for each direction.
    pub(super) fn new(faults: &Faults, seed: u64) -> io::Result<Plan> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what);
        // Of 500 years, no more.
        let ns = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2);
        let (least, most) = (ns(faults.delay_time.start()), ns(faults.delay_time.end()));
        let more = most.checked_sub(least);
        let more = more.ok_or_else(|| invalid("the longest delay is shorter than the shortest"))?;
        if faults.reorder_distance == 0 {
            return Err(invalid("a packet is reordered behind at least one other"));
        }
        Ok(Plan {
            loss: Chance::new(faults.loss)?,
            duplication: Chance::new(faults.duplication)?,
            corruption: Chance::new(faults.corruption)?,
            delay: Chance::new(faults.delay)?,
            delay_ns: (least, more),
            reorder: Chance::new(faults.reorder)?,
            reorder_distance: faults.reorder_distance,
            seed,
        })
    }

    /// Whether nothing ever happens.
    pub(super) fn is_idle(&self) -> bool {
        let chances = [
            self.loss,
            self.duplication,
            self.corruption,
            self.delay,
            self.reorder,
        ];
        chances.iter().all(|chance| chance.0 == 0)
    }

    /// What becomes of a packet of a queue. As many numbers are drawn whatever comes out: a probability that is changed moves no other
    /// fault.
    pub(super) fn fate(&self, queue: u32, number: u64) -> Fate {
        let mut state = mix(self.seed ^ mix(u64::from(queue) << 48 ^ number));
        let mut draw = || {
            state = state.wrapping_add(GOLDEN);
            mix(state)
        };
        let is_lost = self.loss.hits(draw());
        let is_doubled = self.duplication.hits(draw());
        let is_corrupted = self.corruption.hits(draw());
        let bit = draw();
        let is_delayed = self.delay.hits(draw());
        let (least, more) = self.delay_ns;
        let delay_ns = least + draw() % more.saturating_add(1).max(1);
        let is_reordered = self.reorder.hits(draw());
        let distance = 1 + draw() % u64::from(self.reorder_distance);
        let hold = if is_delayed {
            Hold::For(Duration::from_nanos(delay_ns))
        } else if is_reordered {
            // At most a number of 32 bits.
            Hold::Behind(distance as u32)
        } else {
            Hold::Not
        };
        Fate {
            is_lost,
            is_doubled,
            corrupts: is_corrupted.then_some(bit),
            hold,
        }
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(mut value: u64) -> u64 {
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(faults: Faults) -> Plan {
        Plan::new(&faults, 7).unwrap()
    }

    #[test]
    fn faults_are_as_frequent_as_asked_for() {
        let plan = plan(Faults {
            loss: 0.1,
            duplication: 0.02,
            corruption: 0.5,
            delay: 0.3,
            delay_time: Duration::from_micros(5)..=Duration::from_micros(9),
            reorder: 1.0,
            reorder_distance: 3,
        });
        let count = 200_000;
        let fates: Vec<Fate> = (0..count).map(|number| plan.fate(0, number)).collect();
        let part = |is: fn(&Fate) -> bool| {
            fates.iter().filter(|fate| is(fate)).count() as f64 / count as f64
        };
        let near = |is: fn(&Fate) -> bool, wanted: f64| {
            let is = part(is);
            assert!((is - wanted).abs() < 0.01, "{is} of {wanted}");
        };
        near(|fate| fate.is_lost, 0.1);
        near(|fate| fate.is_doubled, 0.02);
        near(|fate| fate.corrupts.is_some(), 0.5);
        near(|fate| matches!(fate.hold, Hold::For(_)), 0.3);
        near(|fate| fate.hold == Hold::Behind(2), 0.7 / 3.0);
        near(|fate| fate.hold == Hold::Not, 0.0);
        for fate in &fates {
            if let Hold::For(time) = fate.hold {
                assert!((5_000..=9_000).contains(&time.as_nanos()));
            }
        }
    }

    #[test]
    fn a_probability_that_is_changed_moves_no_other_fault() {
        let some = Faults {
            loss: 0.2,
            ..Faults::NONE
        };
        let more = Faults {
            delay: 0.9,
            duplication: 0.4,
            ..some.clone()
        };
        let (some, more) = (plan(some), plan(more));
        for number in 0..1000 {
            assert_eq!(some.fate(3, number).is_lost, more.fate(3, number).is_lost);
        }
    }

    #[test]
    fn what_is_no_probability_and_no_range_is_refused() {
        let refused = |faults: Faults| assert!(Plan::new(&faults, 0).is_err(), "{faults:?}");
        for loss in [-0.1, 1.1, f64::NAN] {
            refused(Faults {
                loss,
                ..Faults::NONE
            });
        }
        refused(Faults {
            delay_time: Duration::from_secs(2)..=Duration::from_secs(1),
            ..Faults::NONE
        });
        refused(Faults {
            reorder_distance: 0,
            ..Faults::NONE
        });
        assert!(plan(Faults::NONE).is_idle());
    }
}
