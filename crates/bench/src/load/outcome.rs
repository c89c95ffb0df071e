//! What a run tells: one JSON object, or a few lines for a person.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::one_way::Ways;
use super::protocol::Protocol;
use super::record::summarize;
use super::run::Run;
use super::{Measured, Waiting};
use crate::results::Latency;

/// From this share on, a closed loop is as slow as its generator.
const BOTTLENECK: f64 = 0.95;
/// A busy generator that ran for less than this share of the time had no processor of its own.
const UNDISTURBED: f64 = 0.9;
/// An open loop has kept up when it reached this share of its rate, or was behind no longer than this at its end.
const KEPT_UP: f64 = 0.99;
const BEHIND_NS: u64 = 10_000_000;
/// An open loop whose generator was later than this tells its own delays.
const LATE_NS: u64 = 1_000_000;

/// The figures of a run. Times are in the unit that a field's name ends with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// As `redis`.
    pub protocol: String,
    /// Of the server.
    pub address: String,
    /// How many connections there were at once.
    pub connections: u64,
    /// Requests of a connection that could be unanswered at once.
    pub pipeline: u64,
    /// How answers were waited for: `epoll`, `blocking` or `spin`.
    pub waiting: String,
    /// Requests a second that an open loop was to send; none in a closed loop.
    pub asked_rate: Option<f64>,
    /// Answers that came within the measured time.
    pub operations: u64,
    /// Requests that were sent at all, those of the warm-up among them: what the processor time of a whole run is divided by.
    pub sent: u64,
    /// The measured time, without the warm-up.
    pub seconds: f64,
    /// Operations a second.
    pub rate: f64,
    /// Of the requests that were to be sent within the measured time, also where their answers came after it: from when each was to be
    /// sent (in a closed loop: was sent) to the last byte of its answer; of [`super::Workload::OneWay`], until the server had received it.
    pub latency: Latency,
    /// Of that, what else is known of the two ways.
    #[serde(default)]
    pub one_way: Option<Ways>,
    /// With a connection for each request: from when it was to be sent to the first byte of its answer.
    pub first_byte: Option<Latency>,
    /// With a connection for each request: until it was established.
    pub connect: Option<Latency>,
    /// Requests that were sent within the measured time and not answered until two seconds after it. They are in no other figure.
    pub unanswered: u64,
    /// Requests that were due within the measured time and not even sent by then. They are in no other figure.
    pub unsent: u64,
    /// In an open loop, at the end of the measured time: how long a request was due that was not sent. The server (or the generator) does
    /// not keep up where this grows with the time.
    pub behind_ns: u64,
    /// In an open loop: the longest that a request was sent late though its connection was free, which is the generator's own doing.
    pub late_max_ns: u64,
    /// Connections that the server ended when it owed nothing, and that were opened anew.
    pub reconnections: u64,
    /// Processor time of the generator's thread in the measured time, in programs.
    pub user_s: f64,
    /// The same in the kernel.
    pub system_s: f64,
    /// The share of the measured time in which the generator did not wait. Near 1 in a closed loop, the generator was the bottleneck.
    pub generator_busy: f64,
    /// Connections with an event, for each time that there was one.
    pub ready_per_wake: f64,
    /// What reading the clock costs. Each latency contains about one reading; nothing is subtracted.
    pub clock_ns: f64,
    /// Answers that the trace had no room for: the last ones.
    pub trace_left_out: u64,
    /// A signal ended it before its time.
    pub interrupted: bool,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl<P: Protocol> Run<'_, P> {
    /// What was measured.
    pub(super) fn finish(self) -> Result<Measured> {
        let mut outcome = self.outcome();
        ensure!(
            outcome.operations > 0 || outcome.latency.count > 0,
            if outcome.interrupted {
                "ended before anything was measured".to_owned()
            } else {
                format!("{} answered nothing in the measured time", outcome.address)
            }
        );
        outcome.notes = outcome.find_notes();
        Ok(Measured {
            outcome,
            histogram: self.recorder.latency,
            trace: self.recorder.trace,
            origin_ns: self.clock.origin_ns,
        })
    }

    fn outcome(&self) -> Outcome {
        let (target, recorder) = (self.target, &self.recorder);
        let seconds = self.end_ns.saturating_sub(self.begin_ns) as f64 / 1e9;
        let (user_s, system_s) = self.meter.used.unwrap_or_default();
        let closes = self.protocol.closes();
        Outcome {
            protocol: target.protocol.to_owned(),
            address: target.address.to_string(),
            connections: target.options.connections as u64,
            pipeline: target.options.pipeline as u64,
            waiting: match target.options.waiting {
                Waiting::Epoll => "epoll",
                Waiting::Blocking => "blocking",
                Waiting::Spin => "spin",
            }
            .to_owned(),
            asked_rate: target.options.rate,
            operations: recorder.operations,
            sent: self.sent,
            seconds,
            rate: recorder.operations as f64 / seconds.max(1e-9),
            latency: summarize(&recorder.latency),
            one_way: None,
            first_byte: closes.then(|| summarize(&recorder.first_byte)),
            connect: closes.then(|| summarize(&recorder.connect)),
            unanswered: recorder.sent - recorder.latency.len(),
            unsent: self.due_measured().saturating_sub(recorder.sent),
            behind_ns: self.behind_ns,
            late_max_ns: self.late_max_ns,
            reconnections: self.reconnections,
            user_s,
            system_s,
            generator_busy: self.meter.busy(),
            ready_per_wake: self.meter.ready as f64 / self.meter.wakes.max(1) as f64,
            clock_ns: self.clock_ns,
            trace_left_out: recorder.trace.as_ref().map_or(0, |trace| trace.left_out()),
            interrupted: target.stop.load(std::sync::atomic::Ordering::Relaxed),
            notes: Vec::new(),
        }
    }
}

impl Outcome {
    /// The share of the measured time in which the generator ran on a processor.
    fn processor_share(&self) -> f64 {
        (self.user_s + self.system_s) / self.seconds.max(1e-9)
    }

    fn find_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.interrupted {
            notes.push("ended by a signal before its time".to_owned());
        }
        let busy = 100.0 * self.generator_busy;
        match self.asked_rate {
            None if self.generator_busy > BOTTLENECK => {
                notes.push(format!(
                    "the generator was the bottleneck: it was busy {busy:.0} % of the time, and a faster server would not show"
                ));
                let share = self.processor_share();
                if share < UNDISTURBED {
                    let share = 100.0 * share;
                    notes.push(format!("the generator had a processor only {share:.0} % of the time: others used it, too"));
                }
            }
            Some(rate) if self.rate < KEPT_UP * rate && self.behind_ns > BEHIND_NS => {
                notes.push(format!(
                    "did not keep up: {:.0} requests a second of {rate:.0}; sending was {} behind at the end (generator busy {busy:.0} %)",
                    self.rate,
                    Time(self.behind_ns as f64)
                ));
            }
            _ => {}
        }
        if self.latency.count == 0 {
            notes.push("no latency: all answers were to requests of the warm-up".to_owned());
        }
        if self.late_max_ns > LATE_NS {
            notes.push(format!(
                "the generator itself sent a request {} late: latencies contain its own delays",
                Time(self.late_max_ns as f64)
            ));
        }
        let counts = [
            (self.unsent, "requests were due and never sent"),
            (self.unanswered, "requests were never answered"),
            (
                self.reconnections,
                "connections were ended by the server and opened anew",
            ),
            (
                self.trace_left_out,
                "answers, the last ones, are not in the trace: --trace-max gives it more room",
            ),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        notes.extend(counts.map(|(count, what)| format!("{count} {what}")));
        notes
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.connections == 1 { "" } else { "s" };
        write!(
            formatter,
            "{} {}: {} connection{plural}",
            self.protocol, self.address, self.connections
        )?;
        if self.pipeline > 1 {
            write!(formatter, ", pipeline {}", self.pipeline)?;
        }
        match self.asked_rate {
            Some(rate) => writeln!(formatter, ", open loop at {rate:.0}/s, {}", self.waiting)?,
            None => writeln!(formatter, ", closed loop, {}", self.waiting)?,
        }
        writeln!(
            formatter,
            "  {} answers in {:.3} s, every byte checked: {:.0}/s",
            self.operations, self.seconds, self.rate
        )?;
        match &self.one_way {
            None => show(formatter, "latency", &self.latency)?,
            Some(ways) => {
                show(formatter, "way there", &self.latency)?;
                show(formatter, "way back", &ways.back)?;
                show(formatter, "round trip", &ways.round_trip)?;
                writeln!(formatter, "  {}", ways.clocks)?;
            }
        }
        for (name, latency) in [("first byte", &self.first_byte), ("connect", &self.connect)] {
            if let Some(latency) = latency {
                show(formatter, name, latency)?;
            }
        }
        write!(
            formatter,
            "  generator: busy {:.1} %, {:.2} s user, {:.2} s system; a clock read costs {:.0} ns, subtracted nowhere",
            100.0 * self.generator_busy,
            self.user_s,
            self.system_s,
            self.clock_ns
        )?;
        for note in &self.notes {
            write!(formatter, "\n  note: {note}")?;
        }
        Ok(())
    }
}

/// A line of figures, and one of percentiles.
fn show(formatter: &mut fmt::Formatter<'_>, name: &str, latency: &Latency) -> fmt::Result {
    writeln!(
        formatter,
        "  {name}: min {}, mean {}, deviation {}, max {} ({} requests)",
        Time(latency.min_ns as f64),
        Time(latency.mean_ns),
        Time(latency.deviation_ns),
        Time(latency.max_ns as f64),
        latency.count
    )?;
    if latency.percentiles.is_empty() {
        return writeln!(formatter, "    too few for percentiles");
    }
    let percentile =
        |(percentile, value): &(f64, u64)| format!("p{percentile} {}", Time(*value as f64));
    let told: Vec<_> = latency.percentiles.iter().map(percentile).collect();
    writeln!(formatter, "    {}", told.join("  "))
}

/// Nanoseconds as a person reads them, in four digits.
struct Time(f64);

impl fmt::Display for Time {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            ns if ns < 1e3 => (ns, "ns"),
            ns if ns < 1e6 => (ns / 1e3, "µs"),
            ns if ns < 1e9 => (ns / 1e6, "ms"),
            ns => (ns / 1e9, "s"),
        };
        let digits = match value {
            value if value < 10.0 => 3,
            value if value < 100.0 => 2,
            _ => 1,
        };
        write!(formatter, "{value:.digits$} {unit}")
    }
}
