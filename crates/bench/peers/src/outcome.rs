//! What a trial tells.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

use crate::trial::{Trial, Workload};

/// As `millrace bench` has them.
const SHORTEST_NS: u64 = 1;
const LONGEST_NS: u64 = 100_000_000_000;
const DIGITS: u8 = 3;
const PERCENTILES: [f64; 9] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.99, 99.999];
/// What a percentile of a trial has to have beyond it to be told, as `millrace bench` has it: with fewer it is chance.
const BEYOND: f64 = 20.0;

/// The figures of a trial. Times are in the unit that a field's name ends with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) transport: String,
    pub(crate) workload: Workload,
    pub(crate) bytes: usize,
    pub(crate) batch: usize,
    pub(crate) depth: usize,
    /// Processes on the other side.
    pub(crate) others: usize,
    /// Messages (of round trips: pairs) within the measured time.
    pub(crate) messages: u64,
    /// Those of the warm-up, and those that came after it, among them.
    pub(crate) sent: u64,
    /// The measured time.
    pub(crate) seconds: f64,
    /// Messages in a second.
    pub(crate) rate: f64,
    /// Round trips, or the ways from a source to a sink that slept.
    pub(crate) latency: Option<Latency>,
    /// Of several sources or workers, what came of each within the measured time.
    pub(crate) shares: Vec<u64>,
    /// How far the one that is farthest from an equal share is from it, of that.
    pub(crate) spread: Option<f64>,
    /// What reading the clock costs; each latency contains about one reading.
    pub(crate) clock_ns: f64,
    /// What a reader should know.
    pub(crate) notes: Vec<String>,
    #[serde(skip)]
    pub(crate) histogram: Option<Histogram<u64>>,
}

/// As in the results of `millrace bench`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Latency {
    count: u64,
    min_ns: u64,
    max_ns: u64,
    mean_ns: f64,
    deviation_ns: f64,
    percentiles: Vec<(f64, u64)>,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Latency {
        let count = histogram.len();
        let is_carried = |percentile: &f64| beyond(count, *percentile) >= BEYOND;
        let carried = PERCENTILES.into_iter().filter(is_carried);
        Latency {
            count,
            min_ns: histogram.min(),
            max_ns: histogram.max(),
            mean_ns: histogram.mean(),
            deviation_ns: histogram.stdev(),
            percentiles: carried
                .map(|percentile| (percentile, histogram.value_at_percentile(percentile)))
                .collect(),
        }
    }

    /// How many were slower than a percentile.
    pub(crate) fn beyond(&self, percentile: f64) -> f64 {
        beyond(self.count, percentile)
    }

    /// A percentile, where there is enough to tell it.
    pub(crate) fn at(&self, percentile: f64) -> Option<u64> {
        let mut told = self.percentiles.iter();
        told.find(|(known, _)| *known == percentile)
            .map(|(_, ns)| *ns)
    }
}

/// With a little slack, since 100 - 99.999 is a little less than 0.001 in binary.
fn beyond(count: u64, percentile: f64) -> f64 {
    count as f64 * (100.0 - percentile) / 100.0 + 1e-6
}

/// A histogram of nanoseconds.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(SHORTEST_NS, LONGEST_NS, DIGITS)?)
}

impl Outcome {
    /// Of so many messages in so many seconds.
    pub(crate) fn new(trial: &Trial, messages: u64, sent: u64, seconds: f64) -> Outcome {
        Outcome {
            transport: trial.transport.clone(),
            workload: trial.workload,
            bytes: trial.bytes,
            batch: trial.batch,
            depth: trial.depth,
            others: trial.others,
            messages,
            sent,
            seconds,
            rate: messages as f64 / seconds,
            latency: None,
            shares: Vec::new(),
            spread: None,
            clock_ns: 0.0,
            notes: Vec::new(),
            histogram: None,
        }
    }

    pub(crate) fn with_latency(mut self, histogram: Histogram<u64>) -> Outcome {
        self.latency = Some(Latency::of(&histogram));
        self.histogram = Some(histogram);
        self
    }

    /// What came of each source, or to each worker.
    pub(crate) fn with_shares(mut self, shares: Vec<u64>) -> Outcome {
        let equal = shares.iter().sum::<u64>() as f64 / shares.len() as f64;
        let off = shares
            .iter()
            .map(|share| (*share as f64 / equal - 1.0).abs());
        if let Some(spread) = off
            .max_by(f64::total_cmp)
            .filter(|spread| spread.is_finite())
        {
            self.spread = Some(spread);
            self.notes.push(format!(
                "no message was lost; no share is farther than {:.1} % from an equal one",
                100.0 * spread
            ));
        }
        self.shares = shares;
        self
    }

    /// Keeps the histogram as HdrHistogram's libraries read it.
    pub(crate) fn write_histogram(&self, path: &Path) -> Result<()> {
        let Some(histogram) = &self.histogram else {
            return Ok(());
        };
        let mut file =
            File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
        V2DeflateSerializer::new().serialize(histogram, &mut file)?;
        Ok(())
    }
}
