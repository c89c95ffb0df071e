//! What a run tells: one JSON object, or a few lines for a person.

use std::fmt;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::device::Taken;
use super::drive::{Generator, Options};
use super::sink::Sink;
use crate::load::summarize;
use crate::results::Latency;

/// A generator that was later than this told its own delays.
const LATE_NS: u64 = 1_000_000;
/// And one that sent less than this share of its rate did not keep up.
const KEPT_UP: f64 = 0.99;

/// Packets that came, and should not have, or not so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// It came before; or so late that this cannot be told.
    pub doubled: u64,
    /// A later one of its flow came first. It counts as received.
    pub overtaken: u64,
    /// Its number was sent, and its bytes were others.
    pub changed: u64,
    /// It was not sent in this run.
    pub strange: u64,
}

/// The figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// As `memif-server:/run/a.sock and back`.
    pub ports: String,
    /// Lengths in bytes without the frame check sequence, as `64`, `imix`, or `62 to 1518`.
    pub sizes: String,
    /// How many flows there were.
    pub flows: u64,
    /// Packets a second that were to be sent; none: as many as the port took.
    pub asked_rate: Option<f64>,
    /// How long packets were sent.
    pub seconds: f64,
    /// Packets that were to be sent by then.
    pub sent: u64,
    /// Of those, what the port had no room for. They are lost.
    pub refused: u64,
    /// Those that came, each counted once.
    pub received: u64,
    /// Those that did not.
    pub lost: u64,
    /// Received, for each second of sending.
    pub rate: f64,
    /// Bits of those packets a second, without preamble, gap and frame check sequence.
    pub bits_per_second: f64,
    /// What was wrong.
    pub faults: Faults,
    /// Packets of the generator's earlier runs that came in this one. They were lost there.
    #[serde(default)]
    pub late: u64,
    /// From when a packet was due (without a rate: was sent) until it was taken. Empty where it was not asked for.
    pub latency: Latency,
    /// The longest that packets were sent after they were due.
    pub late_max_ns: u64,
    /// How often another program took the generator's processor.
    pub preempted: u64,
    /// How often another one took that of the device under test, if that is known: by programs that are not the device's own.
    #[serde(default)]
    pub device_preempted: u64,
    /// The share of the time that the hypervisor took of all processors.
    pub stolen: f64,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl Outcome {
    pub(super) fn new(generator: &Generator, options: &Options, sink: &Sink) -> Outcome {
        let (ports, pattern) = generator.what();
        Outcome {
            ports: ports.to_owned(),
            sizes: pattern.lengths(),
            flows: pattern.flows() as u64,
            asked_rate: options.rate,
            seconds: 0.0,
            sent: 0,
            refused: 0,
            received: sink.received,
            lost: 0,
            rate: 0.0,
            bits_per_second: sink.bytes as f64 * 8.0,
            faults: sink.faults,
            late: sink.late,
            latency: sink.latency.as_ref().map(summarize).unwrap_or_default(),
            late_max_ns: 0,
            preempted: 0,
            device_preempted: 0,
            stolen: 0.0,
            notes: pattern.note().into_iter().collect(),
        }
    }

    pub(super) fn told(&mut self, sent_ns: u64, (sent, refused): (u64, u64), late_max_ns: u64) {
        self.seconds = sent_ns.max(1) as f64 / 1e9;
        (self.sent, self.refused, self.late_max_ns) = (sent, refused, late_max_ns);
        self.lost = sent.saturating_sub(self.received);
        self.rate = self.received as f64 / self.seconds;
        self.bits_per_second /= self.seconds;
        if late_max_ns > LATE_NS {
            let late = late_max_ns as f64 / 1e6;
            self.notes.push(format!(
                "the generator sent packets up to {late:.1} ms late: latencies have that in them"
            ));
        }
        if !self.has_kept_up() {
            self.notes
                .push("the generator did not keep up with this rate".to_owned());
        }
    }

    pub(super) fn disturbed(&mut self, taken: Taken) {
        let Taken {
            own,
            device,
            stolen,
        } = taken;
        (self.preempted, self.device_preempted, self.stolen) = (own, device, stolen);
        if taken.is_disturbance() {
            self.notes.push(format!(
                "disturbed: other programs took the processor {own} times, the device's {device} times, the hypervisor {:.0} % of the time",
                stolen * 100.0
            ));
        }
    }

    /// Whether something else had the processor of the generator, or of the device.
    #[must_use]
    pub fn is_disturbed(&self) -> bool {
        let taken = Taken {
            own: self.preempted,
            device: self.device_preempted,
            stolen: self.stolen,
        };
        taken.is_disturbance()
    }

    /// Whether as many packets were sent as the rate says.
    #[must_use]
    pub fn has_kept_up(&self) -> bool {
        let asked = self.asked_rate.unwrap_or_default() * self.seconds;
        self.sent as f64 >= KEPT_UP * asked
    }

    /// Whether the rate is one at which no more than this share is lost: what was not sent has not passed.
    #[must_use]
    pub fn holds(&self, loss: f64) -> bool {
        self.has_kept_up() && self.loss() <= loss
    }

    /// Lost packets, as a share of all.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }

    /// Whether every packet that came was one that was to come, once, in order and unchanged.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults == Faults::default()
    }

    pub(super) fn ensure_sound(&self) -> Result<()> {
        ensure!(
            self.is_sound(),
            "packets did not come as they were sent:\n{self}"
        );
        Ok(())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults {
            doubled,
            overtaken,
            changed,
            strange,
        } = self.faults;
        writeln!(
            f,
            "{}: {} bytes, {} flows, {:.2} s",
            self.ports, self.sizes, self.flows, self.seconds
        )?;
        writeln!(
            f,
            "  received  {:.3} M packets/s, {:.2} Gb/s",
            self.rate / 1e6,
            self.bits_per_second / 1e9
        )?;
        write!(
            f,
            "  lost      {} of {} ({:.4} %), {} of them for want of room at the sending port",
            self.lost,
            self.sent,
            self.loss() * 100.0,
            self.refused
        )?;
        if !self.is_sound() {
            write!(
                f,
                "\n  wrong     {doubled} came twice, {overtaken} were overtaken, {changed} were changed, {strange} are strangers"
            )?;
        }
        if self.latency.count > 0 {
            let told = self.latency.percentiles.iter();
            let told: Vec<String> = told
                .map(|(percentile, ns)| format!("p{percentile} {:.1}", *ns as f64 / 1e3))
                .collect();
            write!(f, "\n  latency   {} µs", told.join(", "))?;
        }
        for note in &self.notes {
            write!(f, "\n  note      {note}")?;
        }
        Ok(())
    }
}
