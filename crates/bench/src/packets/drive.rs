//! The loop: sends what is due, takes what has come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;
use millrace_port::{Burst, Port, State};

use super::outcome::Outcome;
use super::pattern::{BURST_MAX, Made, Pattern};
use super::place::Place;
use super::sink::{Checks, Sink};
use crate::account::Reading;
use crate::load::{Clock, histogram, preempted};

/// Who does not connect until then does not come.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Packets that come later than this after the last one are lost.
const DRAIN_NS: u64 = 50_000_000;
/// Ports are asked for what is not packets once in so many turns.
const TURNS_BETWEEN_POLLS: u32 = 64;
/// Packets that are sent together may be due so far apart.
const TOGETHER_NS: f64 = 4_000.0;
const HIGHEST_RATE: f64 = 1e9;

/// How a run is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Packets a second. None: as many as the port takes.
    pub rate: Option<f64>,
    /// How long packets are sent.
    pub seconds: f64,
    /// What is checked of each.
    pub checks: Checks,
    /// Whether latencies are kept, which takes time for each packet.
    pub latency: bool,
}

/// Ports, and what is sent by them.
pub struct Generator {
    places: String,
    from: Box<dyn Port>,
    /// None: packets come back to where they were sent from.
    to: Option<Box<dyn Port>>,
    pattern: Pattern,
    runs: u32,
    latency: Option<Histogram<u64>>,
}

/// A run under way.
struct Run {
    made: Made,
    sink: Sink,
    clock: Clock,
    number: u32,
    rate: Option<f64>,
    sent: u64,
    refused: u64,
    late_max_ns: u64,
    received: Burst,
    turns: u32,
}

impl Generator {
    /// Opens the ports, and waits until both are connected.
    ///
    /// # Errors
    /// What a port says; nobody connects within ten seconds; a signal.
    pub fn open(
        from: &Place,
        to: Option<&Place>,
        pattern: Pattern,
        stop: &AtomicBool,
    ) -> Result<Generator> {
        let places = match to {
            Some(to) => format!("{from} to {to}"),
            None => format!("{from} and back"),
        };
        let mut generator = Generator {
            places,
            from: from.open()?,
            to: to.map(Place::open).transpose()?,
            pattern,
            runs: 0,
            latency: None,
        };
        generator.connect(stop)?;
        Ok(generator)
    }

    /// One whose packets go to itself, to find what it can do at most.
    ///
    /// # Errors
    /// As [`Generator::open`].
    pub fn of_itself(pattern: Pattern, stop: &AtomicBool) -> Result<Generator> {
        let path = std::env::temp_dir().join(format!("millrace-load-{}", std::process::id()));
        let place = |role: &str| format!("memif-{role}:{}", path.display()).parse();
        let (from, to) = (place("server")?, place("client")?);
        Generator::open(&from, Some(&to), pattern, stop)
    }

    fn connect(&mut self, stop: &AtomicBool) -> Result<()> {
        let begun = Instant::now();
        while !self.poll() {
            ensure!(
                !stop.load(Ordering::Relaxed),
                "ended before the ports were connected"
            );
            ensure!(
                begun.elapsed() < CONNECT_LIMIT,
                "nobody has connected with {} within {} s",
                self.places,
                CONNECT_LIMIT.as_secs()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whether all ports are connected, once they have done what they must.
    fn poll(&mut self) -> bool {
        let now = Instant::now();
        let mut all = true;
        for port in [Some(&mut self.from), self.to.as_mut()]
            .into_iter()
            .flatten()
        {
            all &= matches!(port.poll(now), State::Connected);
        }
        all
    }

    /// The latencies of the last run, in nanoseconds, if they were kept.
    #[must_use]
    pub fn latency(&self) -> Option<&Histogram<u64>> {
        self.latency.as_ref()
    }

    /// What is sent, and by which ports.
    pub(super) fn what(&self) -> (&str, &Pattern) {
        (&self.places, &self.pattern)
    }

    /// Sends for as long as is asked, and takes what comes until nothing comes any more. Leaves early when `stop` is set.
    ///
    /// # Errors
    /// Options that cannot be; a connection that ends.
    pub fn run(&mut self, options: &Options, stop: &AtomicBool) -> Result<Outcome> {
        self.connect(stop)?;
        let mut run = self.begin(options)?;
        let (before, switches) = (Reading::now(None), preempted());
        run.clock = Clock::start();
        let end_ns = (options.seconds * 1e9) as u64;
        let mut now_ns = 0;
        while now_ns < end_ns && !stop.load(Ordering::Relaxed) {
            self.send(&mut run, now_ns);
            self.take(&mut run)?;
            now_ns = run.clock.now();
        }
        let mut last = run.sink.received;
        let mut last_ns = now_ns;
        let drained_from_ns = now_ns;
        while run.sink.received < run.sent - run.refused && run.clock.now() - last_ns < DRAIN_NS {
            self.take(&mut run)?;
            if run.sink.received != last {
                last = run.sink.received;
                last_ns = run.clock.now();
            }
        }
        let switches = preempted() - switches;
        let stolen = Reading::now(None).since(&before).steal_s / (run.clock.now() as f64 / 1e9);
        let mut outcome = Outcome::new(self, options, &run.sink);
        self.latency = run.sink.latency;
        outcome.told(drained_from_ns, (run.sent, run.refused), run.late_max_ns);
        outcome.disturbed(switches, stolen);
        Ok(outcome)
    }

    fn begin(&mut self, options: &Options) -> Result<Run> {
        let mut together = BURST_MAX;
        if let Some(rate) = options.rate {
            ensure!(
                rate > 0.0 && rate <= HIGHEST_RATE,
                "a rate is above 0 and at most {HIGHEST_RATE} packets a second, not {rate}"
            );
            while together > 1 && together as f64 * 1e9 / rate > TOGETHER_NS {
                together /= 2;
            }
        }
        self.runs += 1;
        let made = self.pattern.make(together)?;
        let latency = options.latency.then(histogram).transpose()?;
        // Not the number alone: packets of another generator are strangers, too.
        let number = std::process::id() << 12 | self.runs & 0xfff;
        Ok(Run {
            sink: Sink::new(number, made.flows(), options.checks, latency),
            made,
            clock: Clock::start(),
            number,
            rate: options.rate,
            sent: 0,
            refused: 0,
            late_max_ns: 0,
            received: Burst::new(BURST_MAX),
            turns: 0,
        })
    }

    #[inline]
    fn send(&mut self, run: &mut Run, now_ns: u64) {
        let together = run.made.together() as u64;
        let Some(rate) = run.rate else {
            let (burst, first) = run.made.burst(run.sent, run.number, |_| now_ns);
            run.sink.expect(run.sent, together - first as u64);
            run.sent += self.from.transmit(0, burst, first) as u64;
            return;
        };
        let interval_ns = 1e9 / rate;
        let due_ns = |number: u64| (number as f64 * interval_ns) as u64;
        // The last of a burst is due before any of it is sent.
        if due_ns(run.sent + together - 1) > now_ns {
            return;
        }
        run.late_max_ns = run
            .late_max_ns
            .max(now_ns - due_ns(run.sent + together - 1));
        let (burst, _) = run.made.burst(run.sent, run.number, due_ns);
        run.sink.expect(run.sent, together);
        let taken = self.from.transmit(0, burst, 0);
        if taken < together as usize {
            self.from.give_up(0, burst, taken);
            run.refused += together - taken as u64;
        }
        run.sent += together;
    }

    #[inline]
    fn take(&mut self, run: &mut Run) -> Result<()> {
        run.turns = run.turns.wrapping_add(1);
        if run.turns.is_multiple_of(TURNS_BETWEEN_POLLS) && !self.poll() {
            bail!("{}: a connection has ended: {}", self.places, self.why());
        }
        let port = self.to.as_mut().unwrap_or(&mut self.from);
        for queue in 0..port.receive_queues() {
            if port.receive(queue, &mut run.received) == 0 {
                continue;
            }
            let now_ns = run.clock.now();
            for packet in run.received.iter() {
                run.sink.take(&run.made, packet, run.sent, now_ns);
            }
        }
        Ok(())
    }

    /// Why a connection has ended.
    fn why(&self) -> String {
        let ports = [Some(&self.from), self.to.as_ref()].into_iter().flatten();
        let ends = ports.filter_map(|port| match port.state() {
            State::Connecting(Some(why)) | State::Closed(why) => Some(why.to_string()),
            State::Connecting(None) | State::Connected => None,
        });
        ends.collect::<Vec<_>>().join("; ")
    }
}
