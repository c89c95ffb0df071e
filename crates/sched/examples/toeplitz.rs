//! What a Toeplitz hash of a tuple of 12 bytes takes. `tests/sched/softrss.c` does the same by DPDK's `rte_softrss`: the sums must be
//! equal.
//!
//! `toeplitz [ROUNDS]`: 1 000 times 4 096 tuples, unless told.

#![forbid(unsafe_code)]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use millrace_sched::toeplitz::{STANDARD_KEY, Toeplitz};

const TUPLES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(1000), |word| word.parse::<u32>())?;
    let mut state = 1u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()
    };
    let mut tuples = vec![[0u8; 12]; TUPLES];
    for tuple in &mut tuples {
        tuple.as_chunks_mut::<4>().0.fill_with(&mut word);
    }
    let hash = Toeplitz::new(&STANDARD_KEY);
    let begin = Instant::now();
    let mut sum = 0u32;
    for _ in 0..rounds {
        for tuple in black_box(&tuples) {
            sum = sum.wrapping_mul(31).wrapping_add(hash.hash(tuple));
        }
    }
    let ns = begin.elapsed().as_nanos() as f64 / f64::from(rounds) / TUPLES as f64;
    println!("{ns:.3} ns {sum:08x}");
    Ok(())
}
