//! A port whose packets are traced, to pcapng, while it runs.
//!
//! ```no_run
//! use std::fs::File;
//!
//! use millrace_port::trace::{Config, Trace};
//! # use millrace_port::tap;
//!
//! # let port = tap::Tap::open(&tap::Config::new("upf0"))?;
//! let mut port = Trace::new(port);
//! // Packets pass, and later, while they do:
//! let mut config = Config::new("upf0");
//! config.filter = "udp port 2152".parse().unwrap();
//! config.snap_bytes = 96;
//! port.begin(config, File::create("upf0.pcapng")?)?;
//! // …and later again:
//! if let Some(ending) = port.end() {
//!     let counts = ending.wait()?;
//!     println!("{} packets were traced", counts.written);
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! What it costs is bounded, and what it cannot do it counts. Packets are copied, at most so many bytes of each and so many in a second,
//! into blocks of a bounded queue, from which a thread writes; where that is not fast enough, packets are not traced, and pass all the
//! same. A packet costs no call and no lock, a block of 128 KiB one. While nothing is traced, a burst costs a look at one word.
//!
//! A packet is marked as going in, when the port's user has received it, or out, when the port has taken it. One that leaves a checksum
//! to others is traced as it is, without. The capture ends with a block of statistics: how many passed (`ifrecv`), how many the filter let
//! pass, how many of those were not written, and how many were.
//!
//! In reading order: `filter`, `limit`, `live` (a trace that is being written).

use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use millrace_wire::pcap::Direction;

use crate::burst::{Burst, PACKET_BYTES_MAX};
use crate::counters::Counters;
use crate::offload::Offloads;
use crate::pcap::Link;
use crate::port::{Port, State};
pub use filter::{Filter, FilterError};
use live::{Live, Writer};

mod filter;
mod limit;
mod live;

/// What is traced, and how much of it.
#[derive(Debug, Clone)]
pub struct Config {
    /// What the port is called in the capture.
    pub interface: String,
    /// What its packets begin with.
    pub link: Link,
    /// Which packets.
    pub filter: Filter,
    /// So many bytes of each at most, from 1 to [`PACKET_BYTES_MAX`].
    pub snap_bytes: usize,
    /// So many in a second at most; a tenth of that at once.
    pub packets_per_s: Option<u64>,
    /// So many captured bytes in a second at most; a tenth of that at once.
    pub bytes_per_s: Option<u64>,
    /// So many bytes wait to be written at most, in blocks of 128 KiB, of which there are at least two.
    pub queue_bytes: usize,
}

impl Config {
    /// All packets, whole, however many; with 2 MiB for those that wait.
    #[must_use]
    pub fn new(interface: &str) -> Config {
        Config {
            interface: interface.to_owned(),
            link: Link::Ethernet,
            filter: Filter::default(),
            snap_bytes: PACKET_BYTES_MAX,
            packets_per_s: None,
            bytes_per_s: None,
            queue_bytes: 2 << 20,
        }
    }
}

/// What came of a trace. Always, `matched == written + over_limit + no_room`, and no more than `seen`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceCounts {
    /// Packets that passed while it was on.
    pub seen: u64,
    /// That the filter let pass.
    pub matched: u64,
    /// That were handed to the writer.
    pub written: u64,
    /// That would have been more in a second than allowed.
    pub over_limit: u64,
    /// That the queue to the writer had no room for.
    pub no_room: u64,
}

/// A trace that has ended, and may still be on its way to the file.
#[derive(Debug)]
pub struct Ending {
    counts: TraceCounts,
    writer: Writer,
}

impl Ending {
    /// What came of it.
    #[must_use]
    pub fn counts(&self) -> TraceCounts {
        self.counts
    }

    /// Waits until it is in the file.
    ///
    /// # Errors
    /// What the file said. Nothing was written after that.
    pub fn wait(self) -> io::Result<TraceCounts> {
        match self.writer.0.join() {
            Ok(written) => written.map(|()| self.counts),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// A port that may be traced.
#[derive(Debug)]
pub struct Trace<P> {
    port: P,
    live: Option<Box<(Live, Writer)>>,
}

impl<P: Port> Trace<P> {
    /// A port that is not traced yet.
    pub fn new(port: P) -> Trace<P> {
        Trace { port, live: None }
    }

    /// Begins to trace into a file, or anything else that a thread can write to; ends the trace that there was.
    ///
    /// # Errors
    /// `InvalidInput` for a snap length that cannot be; else what the kernel says of another thread.
    pub fn begin(&mut self, config: Config, target: impl Write + Send + 'static) -> io::Result<()> {
        if !(1..=PACKET_BYTES_MAX).contains(&config.snap_bytes) {
            let what = "a packet is traced with 1 to 69632 bytes";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.live = Some(Box::new(Live::begin(config, target)?));
        Ok(())
    }

    /// Ends the trace. None: there was none.
    pub fn end(&mut self) -> Option<Ending> {
        let (mut live, writer) = *self.live.take()?;
        live.end();
        Some(Ending {
            counts: live.counts,
            writer,
        })
    }

    /// What has come of the trace so far. None: there is none.
    #[must_use]
    pub fn counts(&self) -> Option<TraceCounts> {
        self.live.as_ref().map(|live| live.0.counts)
    }

    /// The port itself: what passes by it is not traced.
    pub fn inner(&self) -> &P {
        &self.port
    }

    /// As [`Trace::inner`].
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// The port alone. A trace ends.
    pub fn into_inner(self) -> P {
        self.port
    }
}

impl<P: Port> Port for Trace<P> {
    fn poll(&mut self, now: Instant) -> &State {
        if let Some(live) = &mut self.live {
            live.0.flush(now);
        }
        self.port.poll(now)
    }

    fn poll_at(&self) -> Option<Instant> {
        let flush = self.live.as_ref().and_then(|live| live.0.flush_at());
        [self.port.poll_at(), flush].into_iter().flatten().min()
    }

    fn state(&self) -> &State {
        self.port.state()
    }

    fn receive_queues(&self) -> usize {
        self.port.receive_queues()
    }

    fn transmit_queues(&self) -> usize {
        self.port.transmit_queues()
    }

    #[inline]
    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        let count = self.port.receive(queue, burst);
        if let Some(live) = &mut self.live
            && count > 0
        {
            live.0.see(burst.iter(), Direction::In);
        }
        count
    }

    #[inline]
    fn release(&mut self, queue: usize) {
        self.port.release(queue);
    }

    #[inline]
    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        let taken = self.port.transmit(queue, burst, first);
        if let Some(live) = &mut self.live
            && taken > 0
        {
            live.0
                .see(burst.iter().skip(first).take(taken), Direction::Out);
        }
        taken
    }

    fn offloads(&self) -> Offloads {
        self.port.offloads()
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        self.port.give_up(queue, burst, first);
    }

    fn arm(&mut self) -> bool {
        self.port.arm()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }

    fn counters(&self) -> Counters {
        self.port.counters()
    }
}
