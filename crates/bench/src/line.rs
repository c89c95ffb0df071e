//! How long a cache line takes from one processor to another and back.
//!
//! In a virtual machine this changes: the hypervisor moves its processors, now to two threads of one core, now to two dies, and everything
//! that passes messages is several times faster or slower with it. No file of the kernel tells that; asking the processors does, in a
//! millisecond.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::sys;

/// The median of so many batches is told, which an interrupt in one of them does not move.
const BATCHES: usize = 15;
const BATCH: u32 = 100;
/// Fewer say nothing: somebody else had one of the processors.
const LEAST_BATCHES: usize = 5;
const LIMIT: Duration = Duration::from_millis(10);
/// An asker that gives up says so by this number.
const END: u32 = u32::MAX;
/// Spins between looks at the clock.
const PATIENCE: u32 = 10_000;

/// A word that has a cache line, and the one that is fetched with it, for itself.
#[repr(align(128))]
struct Line(AtomicU32);

/// Nanoseconds there and back, from the second of these processors to the first; None where they are one, or have something else to do.
pub(crate) fn round_trip_ns([server, client]: [usize; 2]) -> Option<f64> {
    if server == client {
        return None;
    }
    let line = Line(AtomicU32::new(0));
    let begun = Instant::now();
    let mut batches = std::thread::scope(|scope| {
        scope.spawn(|| {
            if sys::run_on(server) {
                answer(&line.0);
            }
        });
        let asker = scope.spawn(|| {
            let batches = if sys::run_on(client) {
                ask(&line.0, begun)
            } else {
                Vec::new()
            };
            // Release: pairs with the Acquire in `answer`, which ends by it.
            line.0.store(END, Ordering::Release);
            batches
        });
        asker.join().unwrap_or_default()
    });
    batches.sort_by(f64::total_cmp);
    (batches.len() >= LEAST_BATCHES).then(|| batches[batches.len() / 2])
}

/// Makes odd numbers even until it is told to end. `END` is odd, and is not answered.
fn answer(line: &AtomicU32) {
    loop {
        // Acquire: pairs with the Release in `ask`.
        match line.load(Ordering::Acquire) {
            END => return,
            // Release: pairs with the Acquire in `ask`. By exchange, so that an end that came meanwhile is not overwritten.
            odd if odd % 2 == 1 => {
                let _ = line.compare_exchange(odd, odd + 1, Ordering::Release, Ordering::Relaxed);
            }
            _ => spin_loop(),
        }
    }
}

/// What a round trip took in each batch. Stops early when its time is up.
fn ask(line: &AtomicU32, begun: Instant) -> Vec<f64> {
    let mut number = 0;
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..BATCH {
            // Release: pairs with the Acquire in `answer`.
            line.store(number + 1, Ordering::Release);
            number += 2;
            let mut spins = 0_u32;
            // Acquire: pairs with the Release in `answer`.
            while line.load(Ordering::Acquire) != number {
                spin_loop();
                spins += 1;
                if spins.is_multiple_of(PATIENCE) && begun.elapsed() > LIMIT {
                    return batches;
                }
            }
        }
        batches.push(start.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::allowed_processors;

    #[test]
    fn a_line_goes_between_two_processors_or_it_is_not_told() {
        let all = allowed_processors();
        assert_eq!(round_trip_ns([all[0]; 2]), None);
        assert_eq!(round_trip_ns([all[0], 100_000]), None);
        if let [first, second, ..] = all[..] {
            let told = round_trip_ns([first, second]);
            assert!(told.is_none_or(|ns| ns > 1.0), "{told:?}");
        }
    }

    #[test]
    fn a_thread_that_answers_is_heard_wherever_it_runs() {
        let line = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| answer(&line));
            let deadline = Instant::now() + Duration::from_secs(10);
            while line.load(Ordering::Acquire) != 2 && Instant::now() < deadline {
                let _ = line.compare_exchange(0, 1, Ordering::Release, Ordering::Relaxed);
                std::thread::yield_now();
            }
            assert_eq!(line.load(Ordering::Acquire), 2);
            line.store(END, Ordering::Release);
        });
    }
}
