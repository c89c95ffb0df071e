//! What is kept of a run: the file `results.json`, and what lies beside it.
//!
//! Times are in the unit that a field's name ends with. A reader refuses a file of another [`SCHEMA`]. Fields that a reader does not know
//! are passed over, so that fields may be added without a new schema.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::builds::Build;
use crate::packets::Width;
use crate::scenario::Extent;

mod packets;

pub use packets::{PacketLatency, PacketRate, Packets};

/// The version of the file's form.
pub const SCHEMA: u32 = 1;
/// The file's name in a directory of results.
pub const FILE: &str = "results.json";

/// A run of the suite.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of `millrace` that made them.
    pub millrace: String,
    /// When the run began, as `2026-11-22T09:30:00Z`.
    pub started: String,
    /// What was asked for.
    pub plan: Plan,
    /// The machine, a fact a line: processor, kernel, mitigations, versions of tools.
    pub machine: Vec<Fact>,
    /// The roads that were measured, the first one the baseline.
    pub roads: Vec<Road>,
    /// In the order in which they are shown.
    pub cells: Vec<Cell>,
    /// What a reader has to know before believing a figure: a busy machine, a frequency that changes, roads that are missing.
    pub warnings: Vec<String>,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The command line, program first.
    pub command: Vec<String>,
    /// Trials of a cell that count.
    pub repeats: u32,
    /// Until when cells that are not decided get more of them, in minutes from the run's beginning. None: they do not.
    #[serde(default)]
    pub minutes_max: Option<f64>,
    /// Length of a trial.
    pub seconds: f64,
    /// How narrow the range becomes in which rates are searched.
    #[serde(default)]
    pub width: Width,
    /// Orders the roads within a group of trials.
    pub seed: u64,
    /// Fewer parameters of each case.
    #[serde(default)]
    pub short: bool,
    /// Intervals without verdicts.
    pub quick: bool,
    /// Processors of server and client, as a person reads them; `none`.
    pub pinned: String,
}

impl Plan {
    /// How much of each case is measured.
    #[must_use]
    pub fn extent(&self) -> Extent {
        match (self.short, self.quick) {
            (_, true) => Extent::Quick,
            (true, _) => Extent::Short,
            _ => Extent::Whole,
        }
    }
}

/// One line about the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// As `kernel`.
    pub name: String,
    /// As `6.18.44`.
    pub value: String,
}

/// A way for bytes, as it was set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Road {
    /// As `bridge`, `millrace-bridge`.
    pub name: String,
    /// One line for a reader who does not know it.
    pub about: String,
    /// The commands that set it up, and settings that are not the system's own.
    pub settings: Vec<String>,
    /// The build of Millrace that carried it, where two were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
}

/// What a cell's figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// More is better.
    OperationsPerSecond,
    /// More is better.
    BitsPerSecond,
    /// A time, mostly a median; less is better.
    Nanoseconds,
    /// Of one processor; less is better.
    ProcessorShare,
    /// Less is better.
    Bytes,
}

impl Unit {
    /// Whether more is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::OperationsPerSecond | Unit::BitsPerSecond)
    }
}

/// A scenario with one set of parameters on one road.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// As `redis`.
    pub scenario: String,
    /// What a reader sees above its charts.
    pub title: String,
    /// Name of one of the [`Results::roads`].
    pub road: String,
    /// What is varied, as `clients` or `bytes`.
    pub parameters: BTreeMap<String, u64>,
    /// What [`Trial::value`] counts.
    pub unit: Unit,
    /// What it is in words, as `median round trip`. Empty in older files.
    #[serde(default)]
    pub figure: String,
    /// In the order in which they were made, void and failed ones among them. Trials of the same round on two roads are a pair.
    pub trials: Vec<Trial>,
}

impl Cell {
    /// The median of the trials that count. None: there is none.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        let mut values: Vec<f64> = self.counted().map(|trial| trial.value).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            count if count % 2 == 1 => Some(values[middle]),
            _ => Some(f64::midpoint(values[middle - 1], values[middle])),
        }
    }

    /// The trials that count.
    pub fn counted(&self) -> impl Iterator<Item = &Trial> {
        self.trials
            .iter()
            .filter(|trial| trial.outcome == Outcome::Counts)
    }
}

/// Whether a trial counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It does.
    Counts,
    /// It was disturbed, and was or will be repeated: by what.
    Void(String),
    /// A program was missing, failed, or said nothing that could be read: what it said.
    Failed(String),
}

/// One run of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trial {
    /// From 1.
    pub round: u32,
    /// Whether it counts. Where it does not, figures may be zero.
    pub outcome: Outcome,
    /// The command lines that made it, by program: `server`, `client`, and others.
    pub commands: BTreeMap<String, String>,
    /// The figure, in the cell's unit.
    pub value: f64,
    /// What processor time is divided by.
    pub operations: f64,
    /// How long was measured.
    pub seconds: f64,
    /// Where the load generator tells it.
    pub latency: Option<Latency>,
    /// Where it is of one way, and times were taken at both ends.
    #[serde(default)]
    pub clocks: Option<Clocks>,
    /// What it took.
    pub processor: Processor,
    /// Connections that were ready for each wake-up of the generator, where it tells that.
    #[serde(default)]
    pub ready_per_wake: Option<f64>,
    /// The same of the server: descriptors, from before the client started until after it ended.
    #[serde(default)]
    pub server_ready_per_wake: Option<f64>,
    /// Where nothing is asked: what the connections cost.
    #[serde(default)]
    pub idle: Option<Idle>,
    /// Where a device forwards packets: the highest rates, and latencies below them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<Packets>,
    /// Of the bytes, those that took shared memory; between 0 and 1.
    pub ring_share: Option<f64>,
    /// A histogram of all round trips in nanoseconds: a file beside this one, in HdrHistogram's V2 form, deflated.
    pub histogram: Option<String>,
    /// Each request: a file beside this one, gzip of lines `intended_ns latency_ns` in sending order. The first is when the request was to
    /// be sent (in a closed loop: was sent), from the trial's beginning; the second from then to the last byte of its answer.
    pub trace: Option<String>,
    /// What a reader should know of this trial, as that the generator was the bottleneck.
    pub notes: Vec<String>,
}

impl Trial {
    /// One of which nothing is known yet.
    #[must_use]
    pub fn begun(round: u32) -> Trial {
        Trial {
            round,
            outcome: Outcome::Counts,
            commands: BTreeMap::new(),
            value: 0.0,
            operations: 0.0,
            seconds: 0.0,
            latency: None,
            clocks: None,
            processor: Processor::default(),
            ready_per_wake: None,
            server_ready_per_wake: None,
            idle: None,
            packets: None,
            ring_share: None,
            histogram: None,
            trace: None,
            notes: Vec::new(),
        }
    }
}

/// Round trips in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Round trips measured.
    pub count: u64,
    /// The shortest. What a tool does not tell of these is 0.
    pub min_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// Their standard deviation.
    pub deviation_ns: f64,
    /// Pairs of a percentile between 0 and 100 and its value in nanoseconds, rising. As many as the generator tells; a percentile with
    /// few round trips beyond it is not among them (`stats::percentiles`).
    pub percentiles: Vec<(f64, u64)>,
}

/// The clocks of the two ends of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clocks {
    /// Both ends read the same clock: nothing is estimated, and nothing is in error.
    pub one_clock: bool,
    /// How far the server's was ahead before the trial; of one clock, none.
    pub before: Option<Estimate>,
    /// The same after it.
    pub after: Option<Estimate>,
    /// By how many millionths the server's was faster; of one clock, 0.
    pub drift_ppm: f64,
    /// That is no farther from the truth than this.
    pub drift_error_ppm: f64,
}

/// How far the server's clock was ahead of the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// When, by the client's clock.
    pub at_ns: u64,
    /// The server's time less the client's.
    pub offset_ns: i64,
    /// It is no farther from the truth than this: half of the best probe's round trip.
    pub error_ns: u64,
    /// How many probes it is the best of.
    pub probes: u64,
}

/// Seconds of processor time during a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Processor {
    /// In the server's programs.
    pub server_user_s: f64,
    /// In the kernel for them.
    pub server_system_s: f64,
    /// In the client.
    pub client_user_s: f64,
    /// In the kernel for it.
    pub client_system_s: f64,
    /// In software interrupts, on all processors.
    pub softirq_s: f64,
    /// Taken by the hypervisor, on all processors.
    pub steal_s: f64,
    /// On all processors, of anything.
    pub busy_s: f64,
    /// By programs that are none of the run's, on the processors of server and client. 0 where these are not pinned, and in older files.
    #[serde(default)]
    pub others_s: f64,
    /// How long a cache line took from one of them to the other and back, just before. None: they are one, or not pinned, or had something
    /// else to do; and in older files.
    #[serde(default)]
    pub line_ns: Option<f64>,
    /// How fast these processors were, the slowest and the fastest that was seen, in MHz. None: the machine does not tell.
    #[serde(default)]
    pub megahertz: Option<[f64; 2]>,
    /// How often these processors were slowed for their heat.
    #[serde(default)]
    pub slowed_for_heat: u64,
}

/// What connections cost on which nothing happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Idle {
    /// How many there were.
    pub connections: u64,
    /// How long they were looked at.
    pub seconds: f64,
    /// In the server's programs.
    pub server: Share,
    /// In the client.
    pub client: Share,
    /// In Millrace's agent, where there is one.
    pub agent: Share,
    /// Memory more that the kernel has for sockets, files, and what epoll knows of them. It is that of the whole machine, so that it
    /// contains what others did meanwhile; none for few connections, where that would be most of it, and without root, who alone may see
    /// it.
    pub kernel_bytes: Option<i64>,
}

/// The part of one program in [`Idle`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Seconds of processor time while nothing happened.
    pub processor_s: f64,
    /// Memory more than it had without connections: its proportional set size without files (a page that several programs share counts
    /// once in all of them together), and its page tables.
    pub memory_bytes: i64,
}

impl Idle {
    /// Processor time of all programs.
    #[must_use]
    pub fn processor_s(&self) -> f64 {
        self.shares().map(|share| share.processor_s).sum()
    }

    /// Memory of all programs and the kernel.
    #[must_use]
    pub fn memory_bytes(&self) -> i64 {
        let programs: i64 = self.shares().map(|share| share.memory_bytes).sum();
        programs + self.kernel_bytes.unwrap_or_default()
    }

    fn shares(&self) -> impl Iterator<Item = &Share> {
        [&self.server, &self.client, &self.agent].into_iter()
    }
}

impl Results {
    /// Reads a directory of results.
    ///
    /// # Errors
    /// The file is missing, is no results file, or is of another schema.
    pub fn read(directory: &Path) -> Result<Results> {
        let path = directory.join(FILE);
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "{} cannot be read: is this a directory that `millrace bench run --out` made?",
                path.display()
            )
        })?;
        let found: serde_json::Value = serde_json::from_str(&text)
            .with_context(|| format!("{} is not JSON", path.display()))?;
        let schema = found["schema"].as_u64();
        ensure!(
            schema == Some(u64::from(SCHEMA)),
            "{} is of schema {}, and this millrace reads schema {SCHEMA}",
            path.display(),
            schema.map_or("unknown".to_owned(), |schema| schema.to_string()),
        );
        serde_json::from_value(found)
            .with_context(|| format!("{} is not as it should be", path.display()))
    }

    /// Writes them into a directory, so that at every instant there is a whole file.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn write(&self, directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        let fresh = directory.join("results.json.new");
        let write = || {
            let mut file = fs::File::create(&fresh)?;
            file.write_all(serde_json::to_string_pretty(self)?.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            anyhow::Ok(fs::rename(&fresh, &path)?)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// The cell of the same scenario and parameters on another road.
    #[must_use]
    pub fn on_road(&self, cell: &Cell, road: &str) -> Option<&Cell> {
        self.cells.iter().find(|other| {
            other.road == road
                && other.scenario == cell.scenario
                && other.parameters == cell.parameters
        })
    }
}
