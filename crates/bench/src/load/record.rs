//! What is kept of each answer: a histogram, and the trace. Everything is allocated before the run.

use std::io::{BufWriter, Write};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

use super::stamp::Stamps;
use crate::results::Latency;
use crate::stats::percentiles::is_carried;

/// Latencies are kept to three digits between these; a longer one counts as the longest.
const DIGITS: u8 = 3;
const SHORTEST_NS: u64 = 1;
const LONGEST_NS: u64 = 100_000_000_000;
/// Those that are told.
const PERCENTILES: [f64; 11] = [
    50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.995, 99.999,
];
/// The latency of a request without an answer.
const NONE: u64 = u64::MAX;

/// A histogram as the generators use it.
///
/// # Errors
/// None: its limits are right.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(SHORTEST_NS, LONGEST_NS, DIGITS)?)
}

/// The figures of a histogram of nanoseconds. Each is as exact as the histogram.
#[must_use]
pub fn summarize(histogram: &Histogram<u64>) -> Latency {
    if histogram.is_empty() {
        return Latency::default();
    }
    let count = histogram.len();
    let told = PERCENTILES
        .into_iter()
        .filter(|&percentile| is_carried(count, percentile));
    Latency {
        count,
        min_ns: histogram.min(),
        max_ns: histogram.max(),
        mean_ns: histogram.mean(),
        deviation_ns: histogram.stdev(),
        percentiles: told
            .map(|percentile| (percentile, histogram.value_at_percentile(percentile)))
            .collect(),
    }
}

/// Writes a histogram in HdrHistogram's V2 form, deflated.
///
/// # Errors
/// It cannot be written.
pub fn write_histogram(histogram: &Histogram<u64>, mut to: impl Write) -> Result<()> {
    V2DeflateSerializer::new()
        .serialize(histogram, &mut to)
        .context("the histogram cannot be written")?;
    Ok(to.flush()?)
}

/// Requests in sending order.
///
/// The first ones of the measured time, as many as it was made for, are kept; later ones are left out and counted.
#[derive(Clone, Debug)]
pub struct Trace {
    /// When a request was to be sent, since the run's beginning, and its latency.
    requests: Vec<(u64, u64)>,
    /// Number of the first.
    first: u64,
    begin_ns: u64,
    left_out: u64,
    /// Of each the server's times, where it tells them.
    stamps: Vec<Stamps>,
}

impl Trace {
    fn new(limit: usize, first: u64, begin_ns: u64, stamped: bool) -> Trace {
        // Not zero, so that the pages are there before the run.
        let requests = vec![(NONE, NONE); limit];
        let stamps = Stamps {
            received_ns: NONE,
            sent_ns: NONE,
        };
        Trace {
            requests,
            first,
            begin_ns,
            left_out: 0,
            stamps: vec![stamps; if stamped { limit } else { 0 }],
        }
    }

    #[inline]
    fn answered(&mut self, number: u64, intended_ns: u64, latency_ns: u64, stamps: Option<Stamps>) {
        let at = (number - self.first) as usize;
        match self.requests.get_mut(at) {
            Some(place) => *place = (intended_ns, latency_ns),
            None => self.left_out += 1,
        }
        if let (Some(place), Some(stamps)) = (self.stamps.get_mut(at), stamps) {
            *place = stamps;
        }
    }

    /// Answered requests, when each was to be sent since the run's beginning and its latency, with the server's times.
    pub(super) fn parted_mut(&mut self) -> impl Iterator<Item = (&mut (u64, u64), &Stamps)> {
        let all = self.requests.iter_mut().zip(&self.stamps);
        all.filter(|(request, _)| request.1 != NONE)
    }

    /// When each answered request was to be sent, since the beginning of what is measured, and how long its answer took; nanoseconds.
    pub fn requests(&self) -> impl Iterator<Item = (u64, u64)> {
        let answered = self.requests.iter().filter(|request| request.1 != NONE);
        answered.map(|&(intended, latency)| (intended - self.begin_ns, latency))
    }

    /// Requests that had no room.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Writes a line for each request, compressed: gzip of `intended_ns latency_ns`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, to: impl Write) -> Result<()> {
        let mut lines = BufWriter::new(GzEncoder::new(to, Compression::fast()));
        for (intended_ns, latency_ns) in self.requests() {
            writeln!(lines, "{intended_ns} {latency_ns}")?;
        }
        let encoder = lines.into_inner().map_err(|error| error.into_error())?;
        Ok(encoder.finish()?.flush()?)
    }
}

/// Takes each request and each answer of a run.
pub(super) struct Recorder {
    pub(super) latency: Histogram<u64>,
    pub(super) first_byte: Histogram<u64>,
    pub(super) connect: Histogram<u64>,
    pub(super) trace: Option<Trace>,
    /// Requests that were to be sent before are warm-up.
    begin_ns: u64,
    /// Answers that came later are not in the rate.
    pub(super) end_ns: u64,
    /// Number of the first request that counts, once it is known.
    first: Option<u64>,
    /// Answers within the time.
    pub(super) operations: u64,
    /// Requests that count and were sent.
    pub(super) sent: u64,
}

impl Recorder {
    pub(super) fn new(
        begin_ns: u64,
        end_ns: u64,
        first: Option<u64>,
        trace_limit: Option<usize>,
        stamped: bool,
    ) -> Result<Recorder> {
        let first_number = first.unwrap_or_default();
        let trace = |limit| Trace::new(limit, first_number, begin_ns, stamped);
        Ok(Recorder {
            latency: histogram()?,
            first_byte: histogram()?,
            connect: histogram()?,
            trace: trace_limit.map(trace),
            begin_ns,
            end_ns,
            first,
            operations: 0,
            sent: 0,
        })
    }

    #[inline]
    pub(super) fn counts(&self, intended_ns: u64) -> bool {
        intended_ns >= self.begin_ns
    }

    #[inline]
    pub(super) fn sent(&mut self, number: u64, intended_ns: u64) {
        if !self.counts(intended_ns) {
            return;
        }
        self.sent += 1;
        if self.first.is_none() {
            // In a closed loop numbers rise with time, so that this is the least.
            self.first = Some(number);
            if let Some(trace) = &mut self.trace {
                trace.first = number;
            }
        }
    }

    #[inline]
    pub(super) fn answered(
        &mut self,
        number: u64,
        intended_ns: u64,
        now_ns: u64,
        stamps: Option<Stamps>,
    ) {
        if now_ns >= self.begin_ns && now_ns < self.end_ns {
            self.operations += 1;
        }
        if !self.counts(intended_ns) {
            return;
        }
        let latency_ns = now_ns.saturating_sub(intended_ns);
        self.latency.saturating_record(latency_ns);
        if let Some(trace) = &mut self.trace {
            trace.answered(number, intended_ns, latency_ns, stamps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::content::mix;

    #[test]
    fn a_percentile_needs_a_hundred_round_trips_beyond_it() {
        let told = |count: u64| {
            let mut histogram = histogram().unwrap();
            histogram.record_n(1000, count).unwrap();
            summarize(&histogram).percentiles.last().map(|last| last.0)
        };
        assert_eq!(told(0), None);
        assert_eq!(told(199), None);
        assert_eq!(told(200), Some(50.0));
        assert_eq!(told(9_999), Some(95.0));
        assert_eq!(told(10_000), Some(99.0));
        assert_eq!(told(9_999_999), Some(99.995));
        assert_eq!(told(10_000_000), Some(99.999));
    }

    #[test]
    fn percentiles_agree_with_a_sorted_list() {
        let mut histogram = histogram().unwrap();
        // Three decades, and a tail.
        let mut sorted: Vec<u64> = (0..100_000)
            .map(|number| 1000 + (1 << (mix(1, number) % 20)) + mix(2, number) % 50_000)
            .collect();
        for &value in &sorted {
            histogram.saturating_record(value);
        }
        sorted.sort_unstable();
        let latency = summarize(&histogram);
        assert_eq!(latency.percentiles.len(), 7);
        for (percentile, value) in latency.percentiles {
            let rank = (percentile / 100.0 * sorted.len() as f64).ceil() as usize;
            let exact = sorted[rank - 1];
            let error = value.abs_diff(exact) as f64 / exact as f64;
            assert!(error <= 1e-3, "p{percentile}: {value} for {exact}");
        }
        let mean = sorted.iter().sum::<u64>() as f64 / sorted.len() as f64;
        assert!((latency.mean_ns / mean - 1.0).abs() < 1e-3);
    }

    #[test]
    fn a_trace_keeps_the_first_requests_and_counts_the_rest() {
        let mut recorder = Recorder::new(100, 200, None, Some(2), false).unwrap();
        for (number, intended) in [(6, 90), (7, 100), (8, 110), (9, 120)] {
            recorder.sent(number, intended);
        }
        for (number, intended, now) in [(8, 110, 150), (6, 90, 151), (7, 100, 160), (9, 120, 300)] {
            recorder.answered(number, intended, now, None);
        }
        let trace = recorder.trace.unwrap();
        assert_eq!(trace.requests().collect::<Vec<_>>(), [(0, 60), (10, 40)]);
        assert_eq!(trace.left_out(), 1);
        assert_eq!(recorder.latency.len(), 3);
        assert_eq!(recorder.operations, 3);
    }
}
