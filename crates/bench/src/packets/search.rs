//! The highest rates at which at most given shares are lost.
//!
//! The range between a rate that held and one that did not is halved until it is narrow; what is found is verified by longer runs, and
//! taken back when one fails. That is the throughput of RFC 2544, section 26.1, where nothing may be lost, and what MLRsearch finds with a
//! share of half a per cent beside it, which terms it calls the non-drop and the partial-drop rate: what the search for one share has found
//! out narrows the range for the next. Where something else had the processor of the generator, or of the device, a run that lost
//! more than may be lost says nothing, and is repeated; one that lost no more shows that the rate passes all the same.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::drive::{Generator, Latencies, Options};
use super::outcome::Outcome;
use super::place::Place;
use super::sink::Checks;
use super::width::Width;

#[cfg(test)]
mod tests;

/// A disturbed run is repeated so often before it counts all the same, and in a whole search so many are: on a busy machine it is to end.
const REPEATS: u32 = 5;
const REPEATS_ALL: u32 = 30;
/// As long as no rate has held, the next one is so much of the last.
const FIRST_STEP: f64 = 0.8;
/// A rate that was not verified is taken back so many widths, but by no more than this; so often, and from then on farther each time.
const BACK_WIDTHS: f64 = 3.0;
const BACK_MOST: f64 = 0.03;
const BACK_EVENLY: u32 = 4;
/// A verifying run is so many times as long as others.
const VERIFIED_TIMES: f64 = 3.0;
/// From this share of its own limit on, the generator may be what limits.
const NEAR_OWN: f64 = 0.8;
/// No rate below this is looked for, in packets a second.
const LOWEST_RATE: f64 = 1_000.0;

/// What is looked for.
#[derive(Clone, Debug)]
pub struct Goal {
    /// The shares that may be lost, rising: a rate is found for each.
    pub losses: Vec<f64>,
    /// How narrow the range is in the end.
    pub width: Width,
    /// At which shares of the first rate that was found latencies are measured.
    pub latency_at: Vec<f64>,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No more was lost than may be.
    Held,
    /// More was, or the generator did not keep up with the rate.
    Lost,
}

/// A run of the search.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// The share that could be lost.
    pub loss: f64,
    /// Packets a second.
    pub rate: f64,
    /// Whether what was found is verified.
    pub is_verifying: bool,
    /// What became of it.
    pub verdict: Verdict,
    /// Its figures.
    pub outcome: Outcome,
}

/// The rate of one share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The share that could be lost.
    pub loss: f64,
    /// The highest rate that was verified, in packets a second; zero: none was.
    pub rate: f64,
}

/// What was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Limit {
    /// The rates, in the order in which they were asked for.
    pub found: Vec<Found>,
    /// What the generator brings to itself, in packets a second: no device can be found faster. Zero: by such a port it cannot.
    pub own: f64,
    /// What came when packets were sent as fast as the port took them, and how much of them was lost.
    pub most: Outcome,
    /// All runs, in their order.
    pub steps: Vec<Step>,
    /// How many of the runs count although they were disturbed, because those made in their place were, too.
    pub disturbed: u64,
    /// Latencies at shares of the first rate, as they were asked for.
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

impl Limit {
    /// The first rate: without loss, where that was asked for first.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.found.first().map_or(0.0, |found| found.rate)
    }

    /// What a reader should know of it.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let highest = self.found.iter().map(|found| found.rate);
        let is_near = self.own > 0.0 && highest.fold(0.0, f64::max) > NEAR_OWN * self.own;
        let near = is_near.then(|| "the generator is the limit, or nearly so".to_owned());
        let disturbed = (self.disturbed > 0).then(|| {
            "some runs of the search count although they were disturbed: the rate may be too low"
                .to_owned()
        });
        let slow = self.steps.iter().any(|step| !step.outcome.has_kept_up());
        let slow = slow.then(|| "the generator did not keep up with some rates".to_owned());
        near.into_iter().chain(disturbed).chain(slow).collect()
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.most)?;
        for Found { loss, rate } in &self.found {
            let (share, millions) = (loss * 100.0, rate / 1e6);
            if *rate > 0.0 {
                write!(f, "\n{millions:.3} M packets/s with at most {share} % lost")?;
            } else {
                write!(f, "\nno rate was found at which at most {share} % is lost")?;
            }
        }
        write!(
            f,
            "\n{} runs and those of latencies, {} of them disturbed but counted",
            self.steps.len(),
            self.disturbed
        )?;
        if self.own > 0.0 {
            let millions = self.own / 1e6;
            write!(f, "; the generator itself can do {millions:.3} M packets/s")?;
        }
        for note in self.notes() {
            write!(f, "\n  note      {note}")?;
        }
        for At { share, outcome } in &self.latencies {
            let first = self.found.first().map_or(0.0, |found| found.loss * 100.0);
            let share = share * 100.0;
            write!(
                f,
                "\nat {share:.0} % of the rate with at most {first} % lost, {outcome}"
            )?;
        }
        Ok(())
    }
}

/// A search under way.
struct Search<'a> {
    generator: &'a mut Generator,
    options: &'a Options,
    stop: &'a AtomicBool,
    limit: Limit,
    /// Disturbed runs that may still be repeated.
    repeats: u32,
}

/// Searches, by the ports of `generator`, which sends by `from`. `tell` is told of each step.
///
/// # Errors
/// As [`Generator::run`]; no packet passes; packets that come changed, twice or out of order.
pub fn search(
    generator: &mut Generator,
    from: &Place,
    options: &Options,
    goal: &Goal,
    stop: &AtomicBool,
    mut tell: impl FnMut(&Step),
) -> Result<Limit> {
    let at_most = Options {
        rate: None,
        ..options.clone()
    };
    // To itself they come as they were sent.
    let straight = Options {
        checks: Checks {
            is_turned: false,
            ..options.checks
        },
        ..at_most.clone()
    };
    let own = match Generator::of_itself(from, generator.what().1.clone(), stop)? {
        Some(mut itself) => itself.run(&straight, stop)?.rate,
        None => 0.0,
    };
    generator.wait_until_it_passes(options.checks, stop)?;
    let most = generator.run(&at_most, stop)?;
    let mut search = Search {
        generator,
        options,
        stop,
        limit: Limit {
            found: Vec::new(),
            own,
            most,
            steps: Vec::new(),
            disturbed: 0,
            latencies: Vec::new(),
        },
        repeats: REPEATS_ALL,
    };
    for &loss in &goal.losses {
        let range = Range::known(&search.limit, loss);
        let rate = narrow(range, goal.width, |rate, is_verifying| {
            let step = search.attempt(loss, rate, is_verifying)?;
            tell(step);
            Ok(step.verdict == Verdict::Held)
        })?;
        // Where less was lost, no more than this was.
        let before = search.limit.found.iter().map(|found| found.rate);
        let rate = before.fold(rate, f64::max);
        search.limit.found.push(Found { loss, rate });
    }
    let rate = search.limit.rate();
    let shares = goal.latency_at.iter().filter(|_| rate > 0.0);
    for &share in shares {
        let options = Options {
            rate: Some(share * rate),
            latency: Latencies::Undisturbed,
            ..options.clone()
        };
        let outcome = search.generator.run(&options, stop)?;
        search.limit.disturbed += u64::from(outcome.is_disturbed());
        outcome.ensure_sound()?;
        search.limit.latencies.push(At { share, outcome });
    }
    Ok(search.limit)
}

impl Search<'_> {
    /// One run of the search.
    fn attempt(&mut self, loss: f64, rate: f64, is_verifying: bool) -> Result<&Step> {
        let times = if is_verifying { VERIFIED_TIMES } else { 1.0 };
        let options = Options {
            rate: Some(rate),
            seconds: self.options.seconds * times,
            ..self.options.clone()
        };
        let outcome = self.undisturbed(&options, loss)?;
        let verdict = if outcome.holds(loss) {
            Verdict::Held
        } else {
            Verdict::Lost
        };
        let steps = &mut self.limit.steps;
        steps.push(Step {
            loss,
            rate,
            is_verifying,
            verdict,
            outcome,
        });
        Ok(&steps[steps.len() - 1])
    }

    /// A run that nothing disturbed, or that held all the same where no more than `loss` may be lost, or the last one of several.
    fn undisturbed(&mut self, options: &Options, loss: f64) -> Result<Outcome> {
        let says_nothing = |outcome: &Outcome| outcome.is_disturbed() && !outcome.holds(loss);
        let mut outcome = self.generator.run(options, self.stop)?;
        for _ in 1..REPEATS {
            ensure!(
                !self.stop.load(Ordering::Relaxed),
                "ended before the rate was found"
            );
            if !says_nothing(&outcome) || self.repeats == 0 {
                break;
            }
            self.repeats -= 1;
            outcome = self.generator.run(options, self.stop)?;
        }
        outcome.ensure_sound()?;
        self.limit.disturbed += u64::from(says_nothing(&outcome));
        Ok(outcome)
    }
}

/// Where a rate is looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    /// A rate that held; zero: none is known.
    held: f64,
    /// The lowest that did not, if one is known.
    lost: Option<f64>,
    /// Nothing above it can pass.
    most: f64,
}

impl Range {
    /// What the runs so far say of a share.
    fn known(limit: &Limit, loss: f64) -> Range {
        let steps = || limit.steps.iter();
        let lost = steps().filter(|step| !step.outcome.holds(loss));
        let lost = lost.map(|step| step.rate).reduce(f64::min);
        let below = |rate: &f64| lost.is_none_or(|lost| *rate < lost);
        let held = steps().filter(|step| step.outcome.holds(loss));
        let held = held.map(|step| step.rate).filter(below);
        Range {
            held: held.fold(0.0, f64::max),
            lost,
            most: limit.most.rate,
        }
    }
}

/// The highest rate that holds, also when it is verified; zero where none does. `attempt`: whether a rate holds, and whether it is one to
/// verify.
fn narrow(
    range: Range,
    width: Width,
    mut attempt: impl FnMut(f64, bool) -> Result<bool>,
) -> Result<f64> {
    let (mut held, mut lost) = (range.held, range.lost.unwrap_or(range.most));
    if range.lost.is_none() && attempt(range.most, false)? {
        held = range.most;
    }
    while (held == 0.0 || lost - held > width.of(lost)) && lost >= LOWEST_RATE {
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
    let back = BACK_WIDTHS * width.of(lost) / lost;
    let mut back = 1.0 - back.min(BACK_MOST);
    let mut failed = 0;
    while held >= LOWEST_RATE {
        if attempt(held, true)? {
            return Ok(held);
        }
        held *= back;
        failed += 1;
        if failed >= BACK_EVENLY {
            back *= back;
        }
    }
    Ok(0.0)
}
