//! Runs a scenario: both sides in turn, again and again, everything started anew each time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_bench::process::Program;
use millrace_bench::readers::{Latency, Reader, Reading};
use millrace_bench::sys;

use super::lab::Lab;
use super::scenario::{Bar, Measure, Road, Scenario, Step, times_better};
use super::site::{End, Site};
use crate::stats;

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) repeats: usize,
    /// Length of one run of one client.
    pub(crate) seconds: u64,
    /// Instead of the roads of the workloads' sides.
    pub(crate) roads: Option<[Road; 2]>,
}

impl Plan {
    /// Whether any side of these workloads takes our road.
    pub(crate) fn needs_millrace(self, scenarios: &[&Scenario]) -> bool {
        let sides = scenarios.iter().flat_map(|scenario| &scenario.sides);
        let mut roads = sides.map(|side| side.road);
        match self.roads {
            Some(roads) => roads.contains(&Road::Millrace),
            None => roads.any(|road| road == Road::Millrace),
        }
    }
}

/// One run of one side of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) value: f64,
    pub(crate) latency: Latency,
    /// Processor time per operation in microseconds, of the server and of the client.
    pub(crate) processor: Option<[f64; 2]>,
    /// Share of the bytes that went through shared memory, where it was looked at.
    pub(crate) ring_share: Option<f64>,
}

/// All runs of a row. A run that failed is missing on its side and has a line in `failures`.
pub(crate) struct Row {
    pub(crate) scenario: &'static Scenario,
    pub(crate) step: &'static Step,
    pub(crate) sides: [Vec<Sample>; 2],
    pub(crate) failures: Vec<String>,
    /// The last figure of each side, by which the length of the next run is set.
    pace: [Option<f64>; 2],
}

/// For programs that are told a number of operations and no time: the number for the first trial, and
/// how long a trial has to take to tell the pace.
const FIRST_COUNT: u64 = 2_000;
const TRIAL_SECONDS: f64 = 0.2;

impl Row {
    fn new(scenario: &'static Scenario, step: &'static Step) -> Self {
        Self {
            scenario,
            step,
            sides: [Vec::new(), Vec::new()],
            failures: Vec::new(),
            pace: [None; 2],
        }
    }

    fn run_client(&mut self, side: usize, load: &Load<'_>) -> Result<Sample> {
        let pace = match self.pace[side] {
            Some(pace) => pace,
            None if load.template.contains("{count}") => load.find_pace()?,
            None => 0.0,
        };
        let count = FIRST_COUNT.max((pace * load.site.seconds as f64) as u64);
        // Once: the question costs processor time, of which many short connections cost the agent most.
        let unseen = self.all(side, |sample| Some(sample.value)).is_empty();
        let sample = load.run(count, unseen)?;
        self.pace[side] = Some(sample.value);
        Ok(sample)
    }

    fn fail(&mut self, side: usize, error: &anyhow::Error) {
        if sys::interrupted() {
            return;
        }
        let failure = format!("{}: {error:#}", self.scenario.sides[side].label);
        eprintln!("{}: {failure}", self.step.title);
        self.failures.push(failure);
    }

    /// The last figures of both sides, for whoever waits.
    fn progress(&self) -> String {
        let last = [0, 1].map(|side| match self.sides[side].last() {
            Some(sample) => self.step.unit.show(sample.value),
            None => "failed".to_owned(),
        });
        let [baseline, ours] = [0, 1].map(|side| self.scenario.sides[side].label);
        format!(
            "{}: {baseline} {}, {ours} {}",
            self.step.title, last[0], last[1]
        )
    }

    /// The median of some figure of a side's runs; NaN when there is none.
    pub(crate) fn median(&self, side: usize, figure: impl Fn(&Sample) -> Option<f64>) -> f64 {
        stats::median(&self.all(side, figure))
    }

    /// Some figure of all runs of a side.
    pub(crate) fn all(&self, side: usize, figure: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        self.sides[side].iter().filter_map(figure).collect()
    }

    /// How many times better our median is.
    pub(crate) fn ratio(&self) -> f64 {
        let [baseline, ours] = [0, 1].map(|side| self.median(side, |sample| Some(sample.value)));
        times_better(self.step.unit, baseline, ours)
    }

    /// The least and the greatest ratio of the pairs of runs.
    pub(crate) fn ratio_range(&self) -> (f64, f64) {
        let [baselines, ours] = &self.sides;
        let pairs = baselines.iter().zip(ours);
        let ratios = pairs.map(|(b, o)| times_better(self.step.unit, b.value, o.value));
        stats::range(&ratios.collect::<Vec<_>>())
    }

    /// How many times lower our 99.9th percentile is.
    pub(crate) fn tail_ratio(&self) -> f64 {
        let [baseline, ours] = [0, 1].map(|side| self.median(side, |sample| sample.latency.p999));
        baseline / ours
    }

    /// Whether a bar and, for the bar that must be reached, the tail's are reached.
    pub(crate) fn reaches(&self, bar: Bar) -> bool {
        let [baseline, ours] = [0, 1].map(|side| self.median(side, |sample| Some(sample.value)));
        self.failures.is_empty() && bar.reached(self.step.unit, baseline, ours)
    }

    /// Whether the row's bars that must be reached are; `None` when it has none.
    pub(crate) fn passes(&self) -> Option<bool> {
        let tail = self
            .step
            .tail
            .is_none_or(|times| self.tail_ratio() >= times);
        self.step.must.map(|bar| tail && self.reaches(bar))
    }
}

/// Measures all rows of a scenario. Only an interrupt is an error: what fails is told in the rows.
pub(crate) fn run(lab: &Lab, scenario: &'static Scenario, plan: Plan) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = scenario
        .steps
        .iter()
        .map(|step| Row::new(scenario, step))
        .collect();
    for round in 1..=plan.repeats {
        for side in [0, 1] {
            let outcome = run_side(lab, scenario, side, plan, &mut rows);
            ensure!(!sys::interrupted(), "interrupted");
            if let Err(error) = outcome {
                rows.iter_mut().for_each(|row| row.fail(side, &error));
            }
        }
        for row in &rows {
            eprintln!("  {round}/{}  {}", plan.repeats, row.progress());
        }
    }
    Ok(rows)
}

/// Starts the server of one side and measures every row on it. An error is the server's.
fn run_side(
    lab: &Lab,
    scenario: &'static Scenario,
    side: usize,
    plan: Plan,
    rows: &mut [Row],
) -> Result<()> {
    let site = Site::new(lab, scenario, side, plan)?;
    let programs = site.start_server(scenario)?;
    for row in rows {
        let outcome = match row.step.measure {
            Measure::Client(template, read) => {
                let server = programs.first().context("a client needs a server")?;
                row.run_client(
                    side,
                    &Load {
                        site: &site,
                        server,
                        template,
                        read,
                    },
                )
            }
            Measure::Probe(probe) => probe(&site).map(|reading| Sample::new(&reading, None)),
        };
        match outcome {
            Ok(sample) => row.sides[side].push(sample),
            Err(error) => row.fail(side, &error),
        }
    }
    Ok(())
}

/// A client about to be run.
struct Load<'a> {
    site: &'a Site<'a>,
    server: &'a Program,
    template: &'a str,
    read: Reader,
}

impl Load<'_> {
    /// Operations in a second, by trials of growing length.
    fn find_pace(&self) -> Result<f64> {
        let mut count = FIRST_COUNT;
        loop {
            let pace = self.run(count, false)?.value;
            if count as f64 >= TRIAL_SECONDS * pace {
                return Ok(pace);
            }
            count *= 5;
        }
    }

    /// Runs the client once, and measures the processor time of both ends around it. With `look`, the
    /// agent is asked in the middle where the bytes go.
    fn run(&self, count: u64, look: bool) -> Result<Sample> {
        let seconds = self.site.seconds;
        let before = self.server.processor().total();
        let mut client = self.site.start(End::Client, self.template, count)?;
        let busy = look && client.wait(Duration::from_secs(seconds) / 2)?.is_none();
        let ring_share = if busy { self.site.ring_share()? } else { None };
        let (text, exit) = client.finish(Duration::from_secs(20 + 10 * seconds))?;
        let server_time = self.server.processor().total().saturating_sub(before);
        let processor = Some([server_time, exit.processor.total()]);
        let reading = Reading {
            ring_share,
            ..(self.read)(&text)?
        };
        Ok(Sample::new(&reading, processor))
    }
}

impl Sample {
    fn new(reading: &Reading, processor: Option<[Duration; 2]>) -> Self {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / reading.operations;
        Self {
            value: reading.value,
            latency: reading.latency,
            processor: processor.map(|times| times.map(each)),
            ring_share: reading.ring_share,
        }
    }

    /// Processor time per operation of both ends, in microseconds.
    pub(crate) fn processor_sum(&self) -> Option<f64> {
        self.processor.map(|[server, client]| server + client)
    }
}
