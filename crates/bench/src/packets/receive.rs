//! The sink alone: takes what somebody else sends by a port, and counts it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use millrace_port::{Burst, Port, State, Tally};
use serde::{Deserialize, Serialize};

use super::drive::{TURNS_BETWEEN_POLLS, connected, end_of};
use super::pattern::BURST_MAX;
use super::place::Place;
use crate::account::Reading;
use crate::load::{Clock, preempted};

/// Packets come for so long before any is counted: whoever sends has begun by then.
const WARM_UP_NS: u64 = 1_000_000_000;
/// Whoever sends nothing until then sends nothing.
const FIRST_LIMIT: Duration = Duration::from_secs(10);
/// The clock is looked at once in so many turns.
const TURNS_BETWEEN_LOOKS: u32 = 16;

/// What came by a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// As `memif-server:/run/a.sock`.
    pub port: String,
    /// How long packets were counted, behind a second that was not.
    pub seconds: f64,
    /// Packets that came.
    pub packets: u64,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
    /// Packets that the port had to drop, from its beginning on.
    pub drops: u64,
    /// Packets a second, of one second after the other.
    pub rates: Vec<f64>,
    /// How often another program took the processor.
    pub preempted: u64,
    /// The share of the time that the hypervisor took of all processors.
    pub stolen: f64,
}

impl Received {
    /// Packets a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.packets as f64 / self.seconds
    }
}

impl fmt::Display for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bytes as f64 * 8.0 / self.seconds;
        write!(
            f,
            "{}: received {:.3} M packets/s, {:.2} Gb/s, of {:.0} bytes each, for {:.2} s; dropped {}",
            self.port,
            self.rate() / 1e6,
            bits / 1e9,
            self.bytes as f64 / self.packets.max(1) as f64,
            self.seconds,
            self.drops
        )?;
        if self.preempted > 0 {
            write!(
                f,
                "\n  note      other programs took the processor {} times",
                self.preempted
            )?;
        }
        Ok(())
    }
}

/// A port, and what has come by it so far.
struct Inlet {
    place: String,
    port: Box<dyn Port>,
    burst: Burst,
    turns: u32,
}

/// Takes what comes by a port for so many seconds, once packets come. Leaves early when `stop` is set.
///
/// # Errors
/// What the port says; nobody connects, or sends, within ten seconds; the connection ends.
pub fn receive(place: &Place, seconds: f64, stop: &AtomicBool) -> Result<Received> {
    let mut inlet = Inlet {
        place: place.to_string(),
        port: place.open()?,
        burst: Burst::new(BURST_MAX),
        turns: 0,
    };
    inlet.wait_for_packets(stop)?;
    let clock = Clock::start();
    inlet.take_until(clock, WARM_UP_NS, stop)?;
    let intervals = seconds.ceil().max(1.0);
    let interval_ns = (seconds / intervals * 1e9) as u64;
    let (account, switches) = (Reading::now(None), preempted());
    let begun = inlet.so_far();
    let begun_ns = clock.now();
    let (mut before, mut before_ns) = (begun, begun_ns);
    let mut rates = Vec::new();
    for number in 1..=intervals as u64 {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        inlet.take_until(clock, begun_ns + number * interval_ns, stop)?;
        let (now, now_ns) = (inlet.so_far(), clock.now());
        let passed_s = (now_ns - before_ns) as f64 / 1e9;
        rates.push((now.packets - before.packets) as f64 / passed_s);
        (before, before_ns) = (now, now_ns);
    }
    let seconds = (before_ns - begun_ns).max(1) as f64 / 1e9;
    Ok(Received {
        port: inlet.place,
        seconds,
        packets: before.packets - begun.packets,
        bytes: before.bytes - begun.bytes,
        drops: before.drops(),
        rates,
        preempted: preempted() - switches,
        stolen: Reading::now(None).since(&account).steal_s / seconds,
    })
}

impl Inlet {
    fn so_far(&self) -> Tally {
        self.port.counters().received
    }

    fn wait_for_packets(&mut self, stop: &AtomicBool) -> Result<()> {
        let port = &mut self.port;
        connected(&self.place, stop, || {
            matches!(port.poll(Instant::now()), State::Connected)
        })?;
        let begun = Instant::now();
        while self.so_far().packets == 0 {
            self.turn()?;
            ensure!(!stop.load(Ordering::Relaxed), "ended before a packet came");
            ensure!(
                begun.elapsed() < FIRST_LIMIT,
                "{}: connected, and no packet has come within {} s",
                self.place,
                FIRST_LIMIT.as_secs()
            );
        }
        Ok(())
    }

    fn take_until(&mut self, clock: Clock, end_ns: u64, stop: &AtomicBool) -> Result<()> {
        while clock.now() < end_ns && !stop.load(Ordering::Relaxed) {
            for _ in 0..TURNS_BETWEEN_LOOKS {
                self.turn()?;
            }
        }
        Ok(())
    }

    #[inline]
    fn turn(&mut self) -> Result<()> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_BETWEEN_POLLS)
            && !matches!(self.port.poll(Instant::now()), State::Connected)
        {
            let why = end_of(self.port.as_ref()).unwrap_or_default();
            bail!("{}: the connection has ended: {why}", self.place);
        }
        for queue in 0..self.port.receive_queues() {
            self.port.receive(queue, &mut self.burst);
        }
        Ok(())
    }
}
