//! Our own load generators and servers: `millrace load`.
//!
//! One thread holds many connections and sends requests in a closed loop (the next one when an answer is there) or an open one (at a
//! fixed rate, each latency counted from when the request was *to be* sent). Every byte of every answer is checked. A latency begins
//! before the system call that sends the request, and ends after the one that received the last byte of its answer.
//!
//! Reading order: `schedule` (when requests are sent), `protocol` (the trait that each protocol is a file of: `echo`, `http`, and with
//! `store` between them `redis` and `memcached`), `content` and `keys` (what is sent, and what has to come back), `connection`, `run` (what
//! becomes of requests and answers), `drive` (the loops around it), `record` (histogram and trace), `outcome` (what is told), `one_way`
//! (round trips parted into their ways; `stamp` has the messages, `clocks` finds out how far the clocks of the ends are apart), `idle`
//! (connections that are silent), `serve` (servers).

mod address;
mod answer;
mod clock;
mod clocks;
mod connection;
mod content;
mod drive;
mod echo;
mod http;
mod idle;
mod keys;
mod memcached;
mod meter;
mod one_way;
mod outcome;
mod prepare;
mod protocol;
mod record;
mod redis;
mod run;
mod schedule;
mod serve;
mod stamp;
mod store;
mod sys;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail, ensure};
use hdrhistogram::Histogram;

use crate::results::Clocks;

pub use address::Address;
pub use http::Get;
pub use idle::{Idle, Silence, Speech};
pub use keys::Keyed;
pub use one_way::Ways;
pub use outcome::Outcome;
pub use record::{Trace, summarize, write_histogram};
pub use serve::{Counts, Kind, Served, Server};
pub use sys::{readable_on_signals, stop_on_signals};

pub(crate) use clock::Clock;
pub(crate) use record::histogram;
pub(crate) use sys::preempted;

use clocks::Look;
use protocol::Protocol;
use run::Run;
use stamp::LENGTHS;
use store::Store;

/// What is asked of the server.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// Messages of so many bytes, which come back.
    Echo {
        /// Length of a message.
        bytes: usize,
    },
    /// The same to a server that puts its times into the answers: each way is measured.
    OneWay {
        /// Length of a message.
        bytes: usize,
    },
    /// GET of a path.
    Http(Get),
    /// SET and GET.
    Redis(Keyed),
    /// set and get.
    Memcached(Keyed),
}

impl Workload {
    fn name(&self) -> &'static str {
        match self {
            Workload::Echo { .. } => "echo",
            Workload::OneWay { .. } => "one-way",
            Workload::Http(_) => "http",
            Workload::Redis(_) => "redis",
            Workload::Memcached(_) => "memcached",
        }
    }
}

/// How the generator waits for answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// In epoll, for any of its connections.
    #[default]
    Epoll,
    /// In a receive that blocks; one connection.
    Blocking,
    /// In receives that do not block, one after the other; one connection.
    Spin,
}

/// How a run is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How many connections there are at once.
    pub connections: usize,
    /// Requests of a connection that may be unanswered at once.
    pub pipeline: usize,
    /// Requests a second in all; without it, a closed loop.
    pub rate: Option<f64>,
    /// How long is measured.
    pub seconds: f64,
    /// What goes before and is not counted.
    pub warm_up_seconds: f64,
    /// A run in which nothing comes for so long is given up.
    pub timeout_seconds: f64,
    /// What is sent follows from it.
    pub seed: u64,
    /// How answers are waited for.
    pub waiting: Waiting,
    /// Requests of which a trace is kept: the first so many of the measured time.
    pub trace: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: 1,
            pipeline: 1,
            rate: None,
            seconds: 5.0,
            warm_up_seconds: 0.5,
            timeout_seconds: 10.0,
            seed: 1,
            waiting: Waiting::Epoll,
            trace: None,
        }
    }
}

impl Options {
    fn check(&self, workload: &Workload) -> Result<()> {
        // A day: what no run needs, and every clock has room for.
        const LONGEST_SECONDS: f64 = 86_400.0;
        // The kernel's time-outs of sockets are told in milliseconds here, and none of them is none.
        const SHORTEST_TIMEOUT: f64 = 0.001;
        ensure!(self.connections > 0, "at least one connection is needed");
        ensure!(
            self.pipeline > 0,
            "at least one request at a time is needed"
        );
        ensure!(
            self.seconds > 0.0 && self.seconds <= LONGEST_SECONDS,
            "the time is above 0 and at most {LONGEST_SECONDS} seconds, not {}",
            self.seconds
        );
        ensure!(
            (0.0..=LONGEST_SECONDS).contains(&self.warm_up_seconds),
            "the warm-up is between 0 and {LONGEST_SECONDS} seconds, not {}",
            self.warm_up_seconds
        );
        ensure!(
            (SHORTEST_TIMEOUT..=LONGEST_SECONDS).contains(&self.timeout_seconds),
            "a run is given up after {SHORTEST_TIMEOUT} to {LONGEST_SECONDS} seconds in which nothing comes, not {}",
            self.timeout_seconds
        );
        ensure!(
            self.waiting == Waiting::Epoll || self.connections == 1,
            "blocking and spinning are for one connection, not {}: many are waited for with epoll",
            self.connections
        );
        match workload {
            Workload::Http(get) => ensure!(
                !get.close || (self.pipeline == 1 && self.waiting == Waiting::Epoll),
                "with a connection for each request there is no pipeline, no blocking and no spinning"
            ),
            Workload::Echo { bytes: 0 } => bail!("a message has at least one byte"),
            Workload::OneWay { bytes } => {
                ensure!(
                    LENGTHS.contains(bytes),
                    "a message that carries times has {} to {} bytes, not {bytes}",
                    LENGTHS.start(),
                    LENGTHS.end()
                );
                ensure!(
                    self.trace.is_some(),
                    "ways are known of the requests of a trace"
                );
            }
            _ => {}
        }
        Ok(())
    }
}

/// What a run has measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The figures.
    pub outcome: Outcome,
    /// Latencies in nanoseconds.
    pub histogram: Histogram<u64>,
    /// Where it was asked for.
    pub trace: Option<Trace>,
    /// When the time of the trace began, by the machine's clock.
    origin_ns: u64,
}

/// Loads a server for a time, or until `stop` is set.
///
/// # Errors
/// The options contradict each other; the server cannot be reached, ends a connection while it owes an answer, answers nothing, or
/// answers wrongly; nothing was measured.
pub fn run(
    address: &Address,
    workload: &Workload,
    options: &Options,
    stop: &AtomicBool,
) -> Result<Measured> {
    options.check(workload)?;
    sys::raise_descriptor_limit();
    let (connections, seed) = (options.connections, options.seed);
    let target = Target {
        address,
        protocol: workload.name(),
        options,
        stop,
    };
    match workload {
        Workload::Echo { bytes } => target.load(echo::Echo::new(*bytes, seed)),
        Workload::OneWay { bytes } => {
            let look = || Look::at(address, options.timeout_seconds);
            let before = look()?;
            let mut measured = target.load(one_way::OneWay::new(*bytes, seed))?;
            measured.part(Clocks::between(before, look()?))?;
            Ok(measured)
        }
        Workload::Http(get) => target.load(http::Http::new(get, address)?),
        Workload::Redis(keyed) => {
            let dialect = redis::Redis::new(keyed.bytes);
            target.load(Store::new(dialect, keyed, connections, seed)?)
        }
        Workload::Memcached(keyed) => {
            let dialect = memcached::Memcached::new(keyed.bytes);
            target.load(Store::new(dialect, keyed, connections, seed)?)
        }
    }
}

/// What is the same for every protocol.
#[derive(Clone, Copy)]
struct Target<'a> {
    address: &'a Address,
    protocol: &'static str,
    options: &'a Options,
    stop: &'a AtomicBool,
}

impl Target<'_> {
    fn load<P: Protocol>(self, mut protocol: P) -> Result<Measured> {
        prepare::prepare(&mut protocol, self)?;
        let mut run = Run::new(protocol, self)?;
        run.drive()?;
        run.finish()
    }
}
