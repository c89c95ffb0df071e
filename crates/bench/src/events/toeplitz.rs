//! Toeplitz hashes: by which flows are found, and how many there are in a second of nothing else (`millrace load toeplitz`). What DPDK
//! computes of the same tuples `crates/bench/peers/softrss.c` tells in the same form.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use millrace_sched::toeplitz::{STANDARD_KEY, Toeplitz};
use serde::{Deserialize, Serialize};

/// So many have room in the caches beside each other.
const TUPLES: usize = 4096;

/// Addresses and ports of IPv4.
pub(super) type Tuple = [u8; 12];

/// How a hash is computed of a tuple, as an interface does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// Bit by bit, as specifications have it.
    Naive,
    /// By the scheduler's own tables.
    Tables,
}

impl FromStr for Hash {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Hash> {
        Ok(match text {
            "naive" => Hash::Naive,
            "tables" => Hash::Tables,
            _ => bail!("{text:?} is none of naive and tables"),
        })
    }
}

/// What was computed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hashed {
    /// Hashes a second.
    pub rate: f64,
    /// How many there were.
    pub hashes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Of the hashes of all tuples, one behind the other: of each the sum so far, 31 times, and it.
    pub sum: u32,
}

impl fmt::Display for Hashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (millions, ns) = (self.rate / 1e6, 1e9 / self.rate);
        write!(
            f,
            "{millions:.2} M hashes/s of 12 bytes, {ns:.2} ns each; their sum is {:08x}",
            self.sum
        )
    }
}

/// The hash of [`Toeplitz`] with its standard key, bit by bit.
pub(super) fn naive(tuple: &Tuple) -> u32 {
    let key = |at: usize| {
        let bits = STANDARD_KEY[at / 8..].iter().take(5);
        let bits = bits.fold(0, |bits, byte| bits << 8 | u64::from(*byte));
        (bits >> (8 - at % 8)) as u32
    };
    let is_set = |bit: &usize| tuple[bit / 8] & 0x80 >> (bit % 8) != 0;
    (0..96).filter(is_set).fold(0, |sum, bit| sum ^ key(bit))
}

/// What is hashed, the same each time.
fn tuples() -> Vec<Tuple> {
    let mut state = 1u32;
    let mut word = || {
        // Numerical Recipes, 2nd edition, 7.1.
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()
    };
    let mut tuples = vec![[0; 12]; TUPLES];
    for tuple in &mut tuples {
        tuple.as_chunks_mut::<4>().0.fill_with(&mut word);
    }
    tuples
}

/// Every tuple once; the sum of all hashes.
#[inline]
fn pass(tuples: &[Tuple], hash: impl Fn(&Tuple) -> u32) -> u32 {
    tuples.iter().fold(0u32, |sum, tuple| {
        // Nothing is known of what a packet has.
        sum.wrapping_mul(31).wrapping_add(hash(black_box(tuple)))
    })
}

/// The sum that there has to be, whoever computes the hashes.
pub(crate) fn expected_sum() -> u32 {
    pass(&tuples(), naive)
}

/// Hashes the same tuples again and again until the time is over, or `stop` is set.
///
/// # Errors
/// A time that cannot be; the same tuples had other hashes the second time.
pub fn hashes(how: Hash, seconds: f64, stop: &AtomicBool) -> Result<Hashed> {
    super::check_time(seconds)?;
    let tables = Toeplitz::new(&STANDARD_KEY);
    match how {
        Hash::Naive => timed(naive, seconds, stop),
        Hash::Tables => timed(|tuple| tables.hash(tuple), seconds, stop),
    }
}

fn timed(hash: impl Fn(&Tuple) -> u32, seconds: f64, stop: &AtomicBool) -> Result<Hashed> {
    let tuples = tuples();
    let sum = pass(&tuples, &hash);
    let (begin, mut hashes) = (Instant::now(), 0);
    loop {
        ensure!(
            pass(&tuples, &hash) == sum,
            "the same tuples have other hashes the second time"
        );
        hashes += TUPLES as u64;
        let elapsed = begin.elapsed().as_secs_f64();
        if elapsed >= seconds || stop.load(Ordering::Relaxed) {
            return Ok(Hashed {
                rate: hashes as f64 / elapsed,
                hashes,
                seconds: elapsed,
                sum,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_the_same_whoever_computes_it() {
        let tables = Toeplitz::new(&STANDARD_KEY);
        for tuple in tuples() {
            assert_eq!(naive(&tuple), tables.hash(&tuple), "{tuple:?}");
        }
        // A specification's own: 66.9.149.187:2794 to 161.142.100.80:1766.
        let tuple = [66, 9, 149, 187, 161, 142, 100, 80, 10, 234, 6, 230];
        assert_eq!(naive(&tuple), 0x51cc_c178);
        assert!("fast".parse::<Hash>().is_err());
    }

    #[test]
    fn the_sum_of_all_hashes_is_told_and_what_dpdk_has() {
        let stop = AtomicBool::new(true);
        for how in [Hash::Naive, Hash::Tables] {
            let hashed = hashes(how, 1.0, &stop).unwrap();
            assert_eq!((hashed.hashes, hashed.sum), (4096, expected_sum()));
            assert!(hashed.rate > 0.0 && hashed.to_string().contains("0d5706a3"));
        }
        // As `millrace-softrss` prints it.
        assert_eq!(expected_sum(), 223_807_139);
        assert!(hashes(Hash::Tables, 0.0, &stop).is_err());
    }
}
