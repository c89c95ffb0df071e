//! Many seeds on two roads, by several workers.

use crate::generate::generate;
use crate::plan::Plan;
use crate::run::{Difference, Road, compare};
use anyhow::Result;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often a difference is tried again, to tell how often it comes.
const REPEATS: usize = 3;
/// How often the plain kernel is asked whether it never does what was seen under the library. What another thread or process has just done
/// is noticed a moment earlier or later, on either road, and some of these moments are rare.
const PLAIN_RUNS_MAX: usize = 300;
/// How often progress is told.
const PROGRESS: Duration = Duration::from_secs(15);

/// What is to be done.
pub(crate) struct Campaign {
    pub(crate) under: Road,
    /// The command prefix as it was given, to be told how to replay.
    pub(crate) under_text: String,
    pub(crate) seeds: Range<u64>,
    pub(crate) time: Option<Duration>,
    pub(crate) jobs: usize,
    pub(crate) without: Vec<String>,
    pub(crate) max_failures: usize,
}

/// Plans to run: each has a name to be told by.
pub(crate) trait Source: Sync {
    /// The next plan, and its name; `None` at the end.
    fn next(&self) -> Option<(String, Plan)>;
}

/// The seeds of a campaign.
struct Seeds<'a> {
    campaign: &'a Campaign,
    next: AtomicU64,
    end: Option<Instant>,
}

impl Source for Seeds<'_> {
    fn next(&self) -> Option<(String, Plan)> {
        if self.end.is_some_and(|end| Instant::now() > end) {
            return None;
        }
        // Relaxed: a counter that orders nothing else.
        let seed = self.next.fetch_add(1, Relaxed);
        let within = seed < self.campaign.seeds.end;
        within.then(|| (seed.to_string(), generate(seed, &self.campaign.without)))
    }
}

/// Runs the campaign's seeds; returns how many differed.
pub(crate) fn run_seeds(campaign: &Campaign) -> Result<usize> {
    let seeds = Seeds {
        campaign,
        next: AtomicU64::new(campaign.seeds.start),
        end: campaign.time.map(|time| Instant::now() + time),
    };
    run(campaign, &seeds)
}

/// What the workers share.
struct Tally {
    start: Instant,
    done: AtomicUsize,
    failures: AtomicUsize,
    /// When progress was told last; also keeps the workers' output apart.
    told: Mutex<Instant>,
}

/// Runs all plans of the source; returns how many differed.
pub(crate) fn run(campaign: &Campaign, source: &dyn Source) -> Result<usize> {
    let start = Instant::now();
    let tally = Tally {
        start,
        done: AtomicUsize::new(0),
        failures: AtomicUsize::new(0),
        told: Mutex::new(start),
    };
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..campaign.jobs)
            .map(|_| scope.spawn(|| work(campaign, source, &tally)))
            .collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            worker
                .join()
                .unwrap_or_else(|_| anyhow::bail!("a worker panicked"))
        };
        workers.into_iter().map(join).collect()
    });
    results.into_iter().collect::<Result<()>>()?;
    tell_progress(&tally);
    Ok(tally.failures.into_inner())
}

fn work(campaign: &Campaign, source: &dyn Source, tally: &Tally) -> Result<()> {
    while tally.failures.load(Relaxed) < campaign.max_failures {
        let Some((name, plan)) = source.next() else {
            break;
        };
        if let Some(seen) = differs(campaign, &plan)? {
            let report = match plain_runs_until(&plan, &seen.trace)? {
                Some(runs) => {
                    format!("sequence {name}: the plain kernel does the same in 1 of {runs} runs")
                }
                None => {
                    tally.failures.fetch_add(1, Relaxed);
                    report(campaign, &name, &plan, &seen.difference)?
                }
            };
            let _apart = tally.told.lock();
            println!("{report}");
        }
        tally.done.fetch_add(1, Relaxed);
        if let Ok(mut told) = tally.told.try_lock()
            && told.elapsed() > PROGRESS
        {
            *told = Instant::now();
            tell_progress(tally);
        }
    }
    Ok(())
}

/// What was seen under the library, and not before it on the plain kernel.
struct Seen {
    trace: Vec<String>,
    difference: Difference,
}

fn differs(campaign: &Campaign, plan: &Plan) -> Result<Option<Seen>> {
    let plain = Road::default().run(plan)?;
    let trace = campaign.under.run(plan)?;
    let difference = compare(&plain, &trace);
    Ok(difference.map(|difference| Seen { trace, difference }))
}

/// After how many runs the plain kernel has shown this trace. None: in none of so many.
fn plain_runs_until(plan: &Plan, trace: &[String]) -> Result<Option<usize>> {
    for run in 1..=PLAIN_RUNS_MAX {
        if Road::default().run(plan)? == trace {
            return Ok(Some(run));
        }
    }
    Ok(None)
}

/// A difference in words, with how often it came when tried again, and how to see it again.
fn report(campaign: &Campaign, name: &str, plan: &Plan, found: &Difference) -> Result<String> {
    let reference = Road::default().run(plan)?;
    let (mut again, mut unstable) = (0, 0);
    for _ in 0..REPEATS {
        unstable += usize::from(compare(&reference, &Road::default().run(plan)?).is_some());
        again += usize::from(compare(&reference, &campaign.under.run(plan)?).is_some());
    }
    let mut text = format!("sequence {name} differs:\n");
    for line in &found.before {
        text.push_str(&format!("         {line}\n"));
    }
    text.push_str(&format!(
        "  plain: {}\n  under: {}\n",
        found.plain, found.under
    ));
    text.push_str(&format!("  again in {again} of {REPEATS} runs"));
    if unstable > 0 {
        text.push_str(&format!(
            "; the plain kernel alone differs in {unstable} of {REPEATS}"
        ));
    }
    let without = if campaign.without.is_empty() {
        String::new()
    } else {
        format!(" --without {}", campaign.without.join(","))
    };
    let under = &campaign.under_text;
    text.push_str(&format!(
        "\n  to see it small: sequences --minimize {name}{without} --under '{under}'\n"
    ));
    Ok(text)
}

fn tell_progress(tally: &Tally) {
    let (done, failures) = (tally.done.load(Relaxed), tally.failures.load(Relaxed));
    let seconds = tally.start.elapsed().as_secs_f64();
    let rate = done as f64 / seconds.max(0.001);
    eprintln!("{done} sequences, {failures} differ, {seconds:.0} s, {rate:.1} per second");
}
