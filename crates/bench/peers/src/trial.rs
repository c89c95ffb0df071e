//! What is asked of both ends: one trial.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::head::HEAD_BYTES;

/// What the messages do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// One there, one back; nobody sleeps.
    RoundTrip,
    /// As many as go in one direction.
    OneWay,
    /// As many as go, of several sources to one sink.
    FanIn,
    /// As many as go; each to one of several workers.
    Work,
    /// One now and then, to a sink that sleeps.
    Waking,
}

impl Workload {
    /// All of them.
    pub(crate) const ALL: [Workload; 5] = [
        Workload::RoundTrip,
        Workload::OneWay,
        Workload::FanIn,
        Workload::Work,
        Workload::Waking,
    ];

    /// As the command line has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::RoundTrip => "round-trip",
            Workload::OneWay => "one-way",
            Workload::FanIn => "fan-in",
            Workload::Work => "work",
            Workload::Waking => "waking",
        }
    }

    /// The one with this name.
    pub(crate) fn by_name(name: &str) -> Result<Workload> {
        let names = || Workload::ALL.map(Workload::name).join(", ");
        let mut all = Workload::ALL.into_iter();
        all.find(|workload| workload.name() == name)
            .with_context(|| format!("there is no workload {name}; there are {}", names()))
    }
}

/// One trial. Times are in the unit that a field's name ends with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// How messages go.
    pub(crate) transport: String,
    /// What they do.
    pub(crate) workload: Workload,
    /// Bytes of a message.
    pub(crate) bytes: usize,
    /// Messages that are made visible at once, and taken at once.
    pub(crate) batch: usize,
    /// Messages that may be under way on a lane.
    pub(crate) depth: usize,
    /// Processes on the other side: sources of a fan-in, workers.
    pub(crate) others: usize,
    /// Between two messages that wake somebody.
    pub(crate) interval_us: u64,
    /// What is measured.
    pub(crate) seconds: f64,
    /// What goes before, and is in no figure.
    pub(crate) warm_up_seconds: f64,
    /// Apart from every other trial.
    pub(crate) name: String,
    /// Where transports that need one have their files.
    pub(crate) directory: String,
}

/// A way in one direction, from each of its sources to its sinks.
#[derive(Clone, Debug)]
pub(crate) struct Lane<'a> {
    pub(crate) trial: &'a Trial,
    /// Apart from every other lane.
    pub(crate) name: String,
    pub(crate) sources: usize,
    pub(crate) sinks: usize,
    /// A message waits for its answer: nobody sleeps, and there is one under way.
    pub(crate) spins: bool,
    /// Sinks sleep when there is nothing.
    pub(crate) sleeps: bool,
}

impl Trial {
    /// Refuses what cannot be measured.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.bytes >= HEAD_BYTES,
            "a message has {HEAD_BYTES} bytes at least"
        );
        ensure!(self.batch >= 1, "a batch has one message at least");
        ensure!(
            self.depth.is_power_of_two() && self.depth >= self.batch,
            "the depth is a power of two, and a batch at least"
        );
        ensure!(
            (1..=64).contains(&self.others),
            "there are 1 to 64 processes on the other side"
        );
        ensure!(self.seconds > 0.0, "a trial takes some time");
        Ok(())
    }

    /// From the asking process to the others.
    pub(crate) fn there(&self) -> Option<Lane<'_>> {
        match self.workload {
            Workload::RoundTrip => Some(self.lane("there", 1, 1)),
            Workload::Work => Some(self.lane("there", 1, self.others)),
            Workload::OneWay | Workload::FanIn | Workload::Waking => None,
        }
    }

    /// From the others to the asking process.
    pub(crate) fn back(&self) -> Option<Lane<'_>> {
        match self.workload {
            Workload::Work => None,
            _ => Some(self.lane("back", self.others, 1)),
        }
    }

    fn lane(&self, direction: &str, sources: usize, sinks: usize) -> Lane<'_> {
        Lane {
            trial: self,
            name: format!("{}-{direction}", self.name),
            sources,
            sinks,
            spins: self.workload == Workload::RoundTrip,
            sleeps: self.workload == Workload::Waking,
        }
    }

    /// Before anything is measured.
    pub(crate) fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up_seconds)
    }

    /// What is measured.
    pub(crate) fn measured(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// How long sources send: a little longer than anybody counts.
    pub(crate) fn sending(&self) -> Duration {
        self.warm_up() + self.measured() + Duration::from_millis(200)
    }

    /// Whoever takes longer has lost somebody.
    pub(crate) fn limit_seconds(&self) -> u32 {
        (2.0 * (self.warm_up_seconds + self.seconds) + 15.0).ceil() as u32
    }
}

impl Lane<'_> {
    /// More processes than processors.
    pub(crate) fn is_crowded(&self) -> bool {
        self.sources + self.sinks > 2
    }

    /// For transports that have one source and one sink only.
    pub(crate) fn ensure_a_pair(&self) -> Result<()> {
        if self.is_crowded() {
            bail!("{} has one source and one sink", self.trial.transport);
        }
        Ok(())
    }
}
