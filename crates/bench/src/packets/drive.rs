//! The loop: sends what is due, takes what has come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;
use millrace_port::{Burst, Port, State};

use super::device::Watch;
use super::gtpu::{self, Gtpu};
use super::outcome::Outcome;
use super::pace::Pace;
use super::pattern::{BURST_MAX, Content, Made, Pattern};
use super::place::Place;
use super::sink::{Checks, RUN_BITS, Sink};
use crate::load::{Clock, histogram};

/// Who does not connect until then does not come.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// A device through which no packet has come by then brings none.
const PASS_LIMIT: Duration = Duration::from_secs(10);
/// One that loses some of so few packets is ready for all that, after this time.
const PASS_MOST: Duration = Duration::from_secs(2);
/// How it is tried: packets a second, and seconds.
const PASS_RATE: f64 = 1_000.0;
const PASS_SECONDS: f64 = 0.02;
/// Bursts that are thrown away at most that came by the sending port.
const BURSTS_LEFT: usize = 1_024;
/// Packets that come later than this after the last one are lost.
const DRAIN_NS: u64 = 50_000_000;
/// Ports are asked for what is not packets once in so many turns.
pub(super) const TURNS_BETWEEN_POLLS: u32 = 64;
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
    /// Which latencies are kept: that takes time for each packet.
    pub latency: Latencies,
}

/// Which latencies are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latencies {
    /// None.
    None,
    /// Of all packets.
    All,
    /// Of moments in which nobody else had the processors, as far as there are any: `seconds` of such in all.
    Undisturbed,
}

/// Ports, and what is sent by them.
pub struct Generator {
    places: String,
    from: Box<dyn Port>,
    /// None: packets come back to where they were sent from.
    to: Option<Box<dyn Port>>,
    pattern: Pattern,
    runs: u32,
    /// Packets of the runs so far: the next one begins with the flow that follows.
    packets: u64,
    /// Packets of the runs so far that were sent, and have not come.
    owed: u64,
    latency: Option<Histogram<u64>>,
    /// Before each run the device is told where the destination is.
    announces: bool,
    /// The process number of the device.
    device: Option<u32>,
}

/// A run under way.
pub(super) struct Run {
    made: Made,
    pub(super) sink: Sink,
    pub(super) clock: Clock,
    number: u32,
    /// How far packets are due apart, and how bursts follow each other.
    due: Option<(f64, Pace)>,
    sent: u64,
    refused: u64,
    /// Those that no longer are waited for.
    missing: u64,
    pub(super) late_max_ns: u64,
    received: Burst,
    turns: u32,
}

/// Waits until ports are connected; `poll` says whether they are.
pub(super) fn connected(
    places: &str,
    stop: &AtomicBool,
    mut poll: impl FnMut() -> bool,
) -> Result<()> {
    let begun = Instant::now();
    while !poll() {
        ensure!(
            !stop.load(Ordering::Relaxed),
            "ended before the ports were connected"
        );
        ensure!(
            begun.elapsed() < CONNECT_LIMIT,
            "nobody has connected with {places} within {} s",
            CONNECT_LIMIT.as_secs()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Why a connection has ended.
pub(super) fn end_of(port: &dyn Port) -> Option<String> {
    match port.state() {
        State::Connecting(Some(why)) | State::Closed(why) => Some(why.to_string()),
        State::Connecting(None) | State::Connected => None,
    }
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
            packets: 0,
            owed: 0,
            latency: None,
            announces: false,
            device: None,
        };
        generator.connect(stop)?;
        Ok(generator)
    }

    /// One whose packets go to itself by a port as `from` is, to find what it can do at most. None: such a port has no other end of ours.
    ///
    /// # Errors
    /// As [`Generator::open`].
    pub fn of_itself(
        from: &Place,
        pattern: Pattern,
        stop: &AtomicBool,
    ) -> Result<Option<Generator>> {
        let Some([from, to]) = from.with_itself() else {
            return Ok(None);
        };
        Generator::open(&from, Some(&to), pattern.unprocessed(), stop).map(Some)
    }

    /// From now on users' packets are sent, of these flows. By what numbers a function knows their tunnels it says when it runs, and so
    /// when its ports are connected.
    pub fn carry(&mut self, gtpu: Gtpu) {
        self.pattern.content = Content::Gtpu(gtpu);
    }

    /// Sends, before each run, a packet from where the others go to: a switch that learns finds out so, and need not flood them.
    pub fn announce(&mut self) {
        self.announces = true;
    }

    /// The device under test is the process of this number: it counts how often others had its processor.
    pub fn watch(&mut self, device: u32) {
        self.device = Some(device);
    }

    fn connect(&mut self, stop: &AtomicBool) -> Result<()> {
        let places = self.places.clone();
        connected(&places, stop, || self.poll())
    }

    /// Whether all ports are connected, once they have done what they must.
    pub(super) fn poll(&mut self) -> bool {
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

    /// Sends a few packets until they come back: who has connected is not ready yet for all that.
    ///
    /// # Errors
    /// None comes within ten seconds; as [`Generator::run`].
    pub fn wait_until_it_passes(&mut self, checks: Checks, stop: &AtomicBool) -> Result<()> {
        let few = Options {
            rate: Some(PASS_RATE),
            seconds: PASS_SECONDS,
            checks,
            latency: Latencies::None,
        };
        let begun = Instant::now();
        loop {
            // Whether they are right is for the runs that follow: here may be some of the last try.
            let outcome = self.run(&few, stop)?;
            ensure!(
                !stop.load(Ordering::Relaxed),
                "ended before a packet came back"
            );
            let is_late = begun.elapsed() > PASS_MOST;
            if outcome.received > 0 && (outcome.lost == 0 || is_late) {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < PASS_LIMIT,
                "{}: connected, and no packet has come within {} s",
                self.places,
                PASS_LIMIT.as_secs()
            );
        }
    }

    /// Lets a device that learns know where the destination is. What comes of it, and of floods, by the sending port is thrown away.
    fn tell_device(&mut self) {
        let Some(to) = self.to.as_mut().filter(|_| self.announces) else {
            return;
        };
        let mut answer = Burst::new(1);
        let fits = answer.push(&self.pattern.answer());
        if fits && to.transmit(0, &answer, 0) == 0 {
            to.give_up(0, &answer, 0);
        }
        let mut left = Burst::new(BURST_MAX);
        for queue in 0..self.from.receive_queues() {
            for _ in 0..BURSTS_LEFT {
                if self.from.receive(queue, &mut left) == 0 {
                    break;
                }
            }
            self.from.release(queue);
        }
    }

    /// Who has the processors from now on.
    pub(super) fn watched(&self) -> Watch {
        Watch::new(self.device)
    }

    /// Sends for as long as is asked, and takes what comes until nothing comes any more. Leaves early when `stop` is set.
    ///
    /// # Errors
    /// Options that cannot be; a connection that ends.
    pub fn run(&mut self, options: &Options, stop: &AtomicBool) -> Result<Outcome> {
        self.connect(stop)?;
        self.tell_device();
        let mut run = self.begin(options)?;
        let end_ns = (options.seconds * 1e9) as u64;
        let (ended_ns, taken) = match options.latency {
            Latencies::Undisturbed if run.sink.latency.is_some() => {
                self.in_slices(&mut run, end_ns, stop)?
            }
            _ => {
                let watch = self.watched();
                run.clock = Clock::start();
                (self.stretch(&mut run, end_ns, stop)?, watch.taken())
            }
        };
        self.packets += run.sent;
        self.owed = (self.owed + run.missing).saturating_sub(run.sink.late);
        let mut outcome = Outcome::new(self, options, &run.sink);
        self.latency = run.sink.latency;
        outcome.told(ended_ns, (run.sent, run.refused), run.late_max_ns);
        outcome.disturbed(taken);
        Ok(outcome)
    }

    /// Sends until the run's clock shows `end_ns`, and takes what comes until nothing comes any more. Returns when it sent last.
    pub(super) fn stretch(&mut self, run: &mut Run, end_ns: u64, stop: &AtomicBool) -> Result<u64> {
        let mut now_ns = run.clock.now();
        while now_ns < end_ns && !stop.load(Ordering::Relaxed) {
            self.send(run, now_ns);
            self.take(run)?;
            now_ns = run.clock.now();
        }
        let ended_ns = now_ns;
        let mut last = run.sink.received;
        while run.sink.received + run.missing < run.sent - run.refused
            && run.clock.now() - now_ns < DRAIN_NS
        {
            self.take(run)?;
            if run.sink.received != last {
                last = run.sink.received;
                now_ns = run.clock.now();
            }
        }
        run.missing = (run.sent - run.refused).saturating_sub(run.sink.received);
        Ok(ended_ns)
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
        let mut made = self.pattern.make(together)?;
        let interval_ns = options.rate.map(|rate| 1e9 / rate);
        made.begin(self.packets, interval_ns);
        // Users' packets have no room for the time at which they were sent.
        let is_timed = options.rate.is_some() || !matches!(self.pattern.content, Content::Gtpu(_));
        let is_timed = is_timed && options.latency != Latencies::None;
        let latency = is_timed.then(histogram).transpose()?;
        // Not the number alone: packets of another generator are strangers, too.
        let number = std::process::id() << RUN_BITS | self.runs & ((1 << RUN_BITS) - 1);
        let number = made.run(number);
        // Latencies are of all that was late: the sooner that is caught up with, the fewer packets have it in them.
        let pace = |interval: f64| match options.latency {
            Latencies::None => Pace::new(interval * together as f64),
            Latencies::All | Latencies::Undisturbed => Pace::AT_ONCE,
        };
        Ok(Run {
            sink: Sink::new((number, self.owed), made.flows(), options.checks, latency),
            made,
            clock: Clock::start(),
            number,
            due: interval_ns.map(|interval| (interval, pace(interval))),
            sent: 0,
            refused: 0,
            missing: 0,
            late_max_ns: 0,
            received: Burst::new(BURST_MAX),
            turns: 0,
        })
    }

    #[inline]
    fn send(&mut self, run: &mut Run, now_ns: u64) {
        let together = run.made.together() as u64;
        let Some((interval_ns, pace)) = &mut run.due else {
            let (burst, first) = run.made.burst(run.sent, run.number, |_| now_ns);
            run.sink.expect(run.sent, together - first as u64);
            run.sent += self.from.transmit(0, burst, first) as u64;
            return;
        };
        let due_ns = |number: u64| (number as f64 * *interval_ns) as u64;
        // The last of a burst is due before any of it is sent.
        if due_ns(run.sent + together - 1) > now_ns || !pace.allows(now_ns) {
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
            for question in run.sink.questions.drain(..) {
                let mut answer = Burst::new(1);
                let fits = answer.push(&gtpu::answer(&question, self.pattern.macs[0]));
                if fits && port.transmit(0, &answer, 0) == 0 {
                    port.give_up(0, &answer, 0);
                }
            }
        }
        Ok(())
    }

    /// Why a connection has ended.
    fn why(&self) -> String {
        let ports = [Some(&self.from), self.to.as_ref()].into_iter().flatten();
        let ends = ports.filter_map(|port| end_of(port.as_ref()));
        ends.collect::<Vec<_>>().join("; ")
    }
}
