//! The highest rate at which at most a given share is lost.
//!
//! The range between a rate that held and one that did not is halved until it is narrow; what is found is verified by longer runs, and
//! taken back a little when one fails. That is the throughput of RFC 2544, section 26.1, where nothing may be lost, and what MLRsearch
//! (RFC 9411 has its terms: non-drop rate, partial-drop rate) finds with a share of half a per cent. A run in which something else had
//! the generator's processor says nothing, and is repeated.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::drive::{Generator, Options};
use super::outcome::Outcome;

/// A disturbed run is repeated so often before it counts all the same.
const REPEATS: u32 = 5;
/// As long as no rate has held, the next one is so much of the last.
const FIRST_STEP: f64 = 0.8;
/// How far a rate that was not verified is taken back, and how often.
const BACK: f64 = 0.97;
const BACK_MAX: u32 = 8;
/// A verifying run is so many times as long as others.
const VERIFIED_TIMES: f64 = 3.0;
/// From this share of its own limit on, the generator may be what limits.
const NEAR_OWN: f64 = 0.8;
/// No rate below this is looked for, in packets a second.
const LOWEST_RATE: f64 = 1_000.0;

/// What is looked for.
#[derive(Clone, Debug)]
pub struct Goal {
    /// The share that may be lost.
    pub loss: f64,
    /// How narrow the range is in the end, as a share of the rate.
    pub width: f64,
    /// At which shares of the rate that was found latencies are measured.
    pub latency_at: Vec<f64>,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No more was lost than may be.
    Held,
    /// More was.
    Lost,
}

/// A run of the search.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Packets a second.
    pub rate: f64,
    /// What became of it.
    pub verdict: Verdict,
    /// Its figures.
    pub outcome: Outcome,
}

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// The share that could be lost.
    pub loss: f64,
    /// The highest rate that was verified, in packets a second; zero: none was.
    pub rate: f64,
    /// What the generator brings to itself, in packets a second: no device can be found faster.
    pub own: f64,
    /// What came when packets were sent as fast as the port took them, and how much of them was lost.
    pub most: Outcome,
    /// All runs, in their order.
    pub steps: Vec<Step>,
    /// Latencies at shares of the rate, as they were asked for.
    pub latencies: Vec<At>,
}

/// Latencies at a share of the rate that was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct At {
    /// From 0 to 1.
    pub share: f64,
    /// The figures.
    pub outcome: Outcome,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.most)?;
        let share = self.loss * 100.0;
        if self.rate == 0.0 {
            return write!(
                f,
                "no rate was found at which at most {share} % is lost, in {} runs",
                self.steps.len()
            );
        }
        write!(
            f,
            "{:.3} M packets/s with at most {share} % lost, found by {} runs; the generator itself can do {:.3}",
            self.rate / 1e6,
            self.steps.len(),
            self.own / 1e6
        )?;
        if self.rate > NEAR_OWN * self.own {
            write!(f, "\n  note      the generator is the limit, or nearly so")?;
        }
        for At { share, outcome } in &self.latencies {
            write!(f, "\nat {:.0} % of that, {outcome}", share * 100.0)?;
        }
        Ok(())
    }
}

/// Searches. `tell` is told of each step.
///
/// # Errors
/// As [`Generator::run`]; packets that come changed, twice or out of order.
pub fn search(
    generator: &mut Generator,
    options: &Options,
    goal: &Goal,
    stop: &AtomicBool,
    mut tell: impl FnMut(&Step),
) -> Result<Limit> {
    let at_most = Options {
        rate: None,
        ..options.clone()
    };
    let mut itself = Generator::of_itself(generator.what().1.clone(), stop)?;
    let own = itself.run(&at_most, stop)?.rate;
    drop(itself);
    let most = generator.run(&at_most, stop)?;
    let mut limit = Limit {
        own,
        loss: goal.loss,
        rate: 0.0,
        most,
        steps: Vec::new(),
        latencies: Vec::new(),
    };
    let mut attempt = |rate: f64, seconds: f64, limit: &mut Limit| {
        let options = Options {
            rate: Some(rate),
            seconds,
            ..options.clone()
        };
        let outcome = undisturbed(generator, &options, stop)?;
        let verdict = if outcome.loss() <= goal.loss {
            Verdict::Held
        } else {
            Verdict::Lost
        };
        let step = Step {
            rate,
            verdict,
            outcome,
        };
        tell(&step);
        limit.steps.push(step);
        Ok(verdict == Verdict::Held)
    };
    let most = limit.most.rate;
    let found = narrow(most, goal.width, |rate, is_verifying| {
        let times = if is_verifying { VERIFIED_TIMES } else { 1.0 };
        attempt(rate, options.seconds * times, &mut limit)
    })?;
    limit.rate = found;
    if found > 0.0 {
        for &share in &goal.latency_at {
            let options = Options {
                rate: Some(share * found),
                latency: true,
                ..options.clone()
            };
            let outcome = undisturbed(generator, &options, stop)?;
            limit.latencies.push(At { share, outcome });
        }
    }
    Ok(limit)
}

/// The highest rate that holds, also when it is verified; zero where none does. `most`: nothing above it can pass. `attempt`: whether a
/// rate holds, and whether it is one to verify.
fn narrow(
    most: f64,
    width: f64,
    mut attempt: impl FnMut(f64, bool) -> Result<bool>,
) -> Result<f64> {
    let (mut held, mut lost) = (0.0, most);
    if attempt(most, false)? {
        held = most;
    }
    while lost - held > width * lost && lost >= LOWEST_RATE {
        // Where nothing has held yet, it is not looked for near zero first.
        let next = if held == 0.0 {
            lost * FIRST_STEP
        } else {
            f64::midpoint(held, lost)
        };
        if attempt(next, false)? {
            held = next;
        } else {
            lost = next;
        }
    }
    for _ in 0..BACK_MAX {
        if held < LOWEST_RATE {
            break;
        }
        if attempt(held, true)? {
            return Ok(held);
        }
        held *= BACK;
    }
    Ok(0.0)
}

/// A run that nothing disturbed, or the last one of several.
fn undisturbed(generator: &mut Generator, options: &Options, stop: &AtomicBool) -> Result<Outcome> {
    let mut outcome = generator.run(options, stop)?;
    for _ in 1..REPEATS {
        ensure!(
            !stop.load(Ordering::Relaxed),
            "ended before the rate was found"
        );
        if !outcome.is_disturbed() {
            break;
        }
        outcome = generator.run(options, stop)?;
    }
    ensure!(
        outcome.is_sound(),
        "packets did not come as they were sent:\n{outcome}"
    );
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found where rates up to `limit` hold, and when they are verified those up to `verified`.
    fn found(most: f64, limit: f64, verified: f64) -> (f64, u32) {
        let mut runs = 0;
        let rate = narrow(most, 0.01, |rate, is_verifying| {
            runs += 1;
            Ok(rate <= if is_verifying { verified } else { limit })
        });
        (rate.unwrap(), runs)
    }

    #[test]
    fn the_highest_rate_that_holds_is_found() {
        for limit in [2_000.0, 123_456.0, 9.0e6, 9.95e6] {
            let (rate, runs) = found(1e7, limit, limit);
            assert!(rate <= limit && rate > limit * 0.985, "{rate} of {limit}");
            assert!(runs < 60, "{runs}");
        }
        assert_eq!(found(1e7, 2e7, 2e7), (1e7, 2), "all that can be offered");
        let (rate, _) = found(1e7, 5e6, 4.5e6);
        assert!(rate <= 4.5e6 && rate > 4.5e6 * 0.95, "{rate} is taken back");
        assert_eq!(found(1e7, 0.0, 0.0).0, 0.0);
        assert_eq!(found(1e7, 1e6, 0.0).0, 0.0, "none is verified");
    }
}
