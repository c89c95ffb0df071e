//! Ports that are queues of an interface of the kernel's: a program at the interface takes the packets that were asked for, and leaves all
//! others to the kernel's stack.
//!
//! ```no_run
//! use std::time::Instant;
//!
//! use millrace_port::af_xdp::{AfXdp, Config, Take};
//! use millrace_port::{Burst, Port};
//!
//! let mut config = Config::new("eth0");
//! config.take = vec![Take::UdpPort(2152)];
//! let mut port = AfXdp::open(&config)?;
//! let mut burst = Burst::new(32);
//! loop {
//!     port.poll(Instant::now());
//!     let count = port.receive(0, &mut burst);
//!     port.transmit(0, &burst, 0);
//!     # if count == 0 { break; }
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Capabilities are needed to open sockets and to have a program at an interface ([`open()`]), and not to use them: what was opened is
//! handed to a workload without any, in another network namespace perhaps ([`AfXdp::from_opened`]). The program is at its place as long
//! as anybody has the link's descriptor, however that process ends.
//!
//! Each queue has memory of its own, of which one half is for packets that come. Where the driver can, it writes them there itself
//! (zero-copy); else the kernel copies them. It sends when it is called, once for a burst, and says when it does not have to be.
//!
//! No work can be left to the kernel, and none is known of what comes. On a `veth`, packets of the other half come with checksums that
//! nobody has completed, unless it is told to (`ethtool -K IFACE tx off`); a program cannot see that.
//!
//! Own code, and no crate of others: the rings are 200 lines, and what there is takes a C library (`xsk-rs`), or has buffers of its own
//! that packets would have to be copied to and from (`xdp`, `xdpilone`).
//!
//! In reading order: `program` and `text` (what is taken), `open`, `queue`, `sys` (sockets and rings).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::Epoll;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::SocketError;

use crate::burst::Burst;
use crate::counters::{Cause, Counters};
use crate::port::{Closed, Port, State, dealt, waking};
pub use open::{Opened, open};
pub use program::Take;
use queue::Queue;

mod open;
mod program;
mod queue;
mod sys;
mod text;

/// The kernel keeps so much of a frame for programs that put headers before a packet (`XDP_PACKET_HEADROOM`).
const HEADROOM_BYTES: u32 = 256;
/// A packet has no more frames: as many as the kernel has for a packet, less one for its beginning.
const FRAMES_MAX: usize = 16;
/// Whether the interface is still there is asked so often: a socket of this kind wakes nobody when it is gone.
const LOOK: Duration = Duration::from_secs(1);
/// And so often whether the kernel has parted with what was closed.
const STEP: Duration = Duration::from_millis(10);

/// Whether the driver and we share frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// If the driver can.
    Any,
    /// They do not.
    Copy,
    /// They do, or there is no port.
    ZeroCopy,
}

/// Which queues of an interface, and what of them.
#[derive(Debug, Clone)]
pub struct Config {
    /// The interface's name.
    pub interface: String,
    /// The first queue.
    pub first_queue: u32,
    /// How many.
    pub queues: u32,
    /// What is taken: whatever is one of these.
    pub take: Vec<Take>,
    /// How.
    pub mode: Mode,
    /// Packets each way, of each queue: a power of two from 64 to 32 768.
    pub ring_size: u32,
    /// Of a frame, 256 of which the kernel has for itself: 2 048 or 4 096. What is longer is dropped.
    pub frame_bytes: u32,
    /// Whether a packet may have several frames, up to 16: Linux 6.6 or later, and not every driver that is zero-copy otherwise.
    pub several_frames: bool,
    /// So long a queue, a place for the program and memory that somebody else has are waited for: it takes the kernel a moment to part with
    /// what was closed.
    pub patience: Duration,
}

impl Config {
    /// Queue 0, nothing taken, 1 024 packets each way, and nothing is waited for.
    #[must_use]
    pub fn new(interface: &str) -> Config {
        Config {
            interface: interface.to_owned(),
            first_queue: 0,
            queues: 1,
            take: Vec::new(),
            mode: Mode::Any,
            ring_size: 1024,
            frame_bytes: 2048,
            several_frames: false,
            patience: Duration::ZERO,
        }
    }

    fn check(&self) -> io::Result<()> {
        let is_sound = (1..=256).contains(&self.queues)
            && self.first_queue <= 1 << 16
            && self.ring_size.is_power_of_two()
            && (64..=32_768).contains(&self.ring_size)
            && matches!(self.frame_bytes, 2048 | 4096)
            && self.take.len() <= 64;
        if is_sound {
            return Ok(());
        }
        Err(invalid(
            "a port of AF_XDP has 1 to 256 queues, rings of a power of two from 64 to 32768, and frames of 2048 or 4096",
        ))
    }
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

/// Does something again, until then at most, while somebody else has what it needs.
fn patiently<T>(until: Instant, mut what: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let is_busy = |error: &io::Error| {
        // Memory that is not given back yet counts, too.
        matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENOBUFS))
    };
    loop {
        match what() {
            Err(error) if is_busy(&error) && Instant::now() < until => std::thread::sleep(STEP),
            done => return done,
        }
    }
}

/// Queues of an interface.
#[derive(Debug)]
pub struct AfXdp {
    epoll: Epoll,
    queues: Vec<Queue>,
    /// What has the program at its place.
    _link: Option<Arc<OwnedFd>>,
    is_zero_copy: bool,
    state: State,
    /// When the interface is looked for again. None: at once.
    look_at: Option<Instant>,
    /// What a call said: the port is closed at the next `poll`.
    broken: Option<Closed>,
    counters: Counters,
}

impl AfXdp {
    /// Opens queues, and makes a port of them.
    ///
    /// # Errors
    /// As [`open()`].
    pub fn open(config: &Config) -> io::Result<AfXdp> {
        AfXdp::of(open(config)?, config)
    }

    /// A port of what another process has opened. Of the configuration, what is about rings, frames and patience counts here. Takes no
    /// capability; the memory of all queues is locked, and must be within the limit of that (`RLIMIT_MEMLOCK`).
    ///
    /// # Errors
    /// `InvalidInput` for a configuration that cannot be, and for descriptors that are something else than [`Opened`] says; `ResourceBusy`
    /// when a queue has another socket, or had one just now; else what the kernel says.
    pub fn from_opened(opened: Opened, config: &Config) -> io::Result<AfXdp> {
        opened.check()?;
        AfXdp::of(opened, config)
    }

    fn of(opened: Opened, config: &Config) -> io::Result<AfXdp> {
        config.check()?;
        let until = Instant::now() + config.patience;
        let mut queues = Vec::with_capacity(opened.sockets.len());
        for (number, socket) in (opened.first_queue..).zip(opened.sockets) {
            queues.push(Queue::new(socket, opened.ifindex, number, config, until)?);
        }
        let is_zero_copy = queues.iter().map(|queue| sys::is_zero_copy(queue.as_fd()));
        let is_zero_copy = is_zero_copy.collect::<io::Result<Vec<bool>>>()?;
        Ok(AfXdp {
            epoll: waking(&queues)?,
            is_zero_copy: is_zero_copy.into_iter().all(|is| is),
            queues,
            _link: opened.link.map(Arc::new),
            state: State::Connected,
            look_at: None,
            broken: None,
            counters: Counters {
                connections: 1,
                ..Counters::default()
            },
        })
    }

    /// Parts it: so many ports at most, each with some of the queues, which may be other threads'. The program stays as long as one of them
    /// does. What was counted is the first one's, but for what the kernel counts.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn split(self, most: usize) -> io::Result<Vec<AfXdp>> {
        let parts = dealt(self.queues, self.counters, most)?.into_iter();
        let part = |(epoll, queues, counters)| AfXdp {
            epoll,
            queues,
            _link: self._link.clone(),
            state: State::Connected,
            broken: None,
            counters,
            ..self
        };
        Ok(parts.map(part).collect())
    }

    /// Whether the driver and we share frames, of all queues.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Connected) && self.broken.is_none()
    }

    fn close(&mut self, why: Closed) {
        for queue in &self.queues {
            // Packets that nobody takes any more would go on to wake whoever waits.
            let _ = self.epoll.delete(queue);
        }
        self.state = State::Closed(why);
    }

    /// Whether the kernel has let go of a queue, as it does when the interface is gone.
    fn is_gone(&self) -> bool {
        let errors = self
            .queues
            .iter()
            .map(|queue| getsockopt(queue, SocketError));
        errors.into_iter().any(|error| error != Ok(0))
    }
}

impl Port for AfXdp {
    fn poll(&mut self, now: Instant) -> &State {
        if self.is_open() && self.look_at.is_none_or(|at| at <= now) {
            self.look_at = Some(now + LOOK);
            if self.is_gone() {
                self.broken = Some(Closed::PeerGone);
            }
        }
        if let Some(why) = self.broken.take() {
            self.close(why);
        }
        if self.is_open() {
            for queue in &mut self.queues {
                // What does not go now goes later.
                let _ = queue.kick();
            }
        }
        &self.state
    }

    fn poll_at(&self) -> Option<Instant> {
        self.look_at.filter(|_| self.is_open())
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn receive_queues(&self) -> usize {
        if self.is_open() { self.queues.len() } else { 0 }
    }

    fn transmit_queues(&self) -> usize {
        self.receive_queues()
    }

    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        burst.clear();
        if self.is_open()
            && let Some(queue) = self.queues.get_mut(queue)
        {
            queue.receive(burst, &mut self.counters.received);
        }
        burst.len()
    }

    fn release(&mut self, queue: usize) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.release();
        }
    }

    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        if queue >= self.transmit_queues() || first >= burst.len() {
            return 0;
        }
        let tally = &mut self.counters.transmitted;
        let (taken, kicked) = self.queues[queue].transmit(burst, first, tally);
        match kicked {
            Ok(()) => {}
            // The interface is down: what is in the ring goes when it is up, and when it is gone the socket says so.
            Err(nix::errno::Errno::ENETDOWN | nix::errno::Errno::ENXIO) => {}
            Err(error) => self.broken = Some(Closed::Io(error.into())),
        }
        taken
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        let cause = match self.transmit_queues() {
            0 => Cause::NoPeer,
            queues if queue >= queues => Cause::NoQueue,
            _ => Cause::Full,
        };
        let packets = burst.len().saturating_sub(first) as u64;
        self.counters.transmitted.drop(cause, packets);
    }

    fn arm(&mut self) -> bool {
        // What is there is told again and again, so there is nothing to ask for.
        !self.is_open() || !self.queues.iter().any(Queue::has_more)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// With what the kernel dropped because the port did not receive fast enough ([`Cause::Full`]), or because it was longer than a buffer
    /// ([`Cause::TooLong`]).
    fn counters(&self) -> Counters {
        let mut counters = self.counters;
        for queue in &self.queues {
            let dropped = sys::dropped(queue.as_fd(), self.is_zero_copy);
            let (full, too_long) = dropped.unwrap_or_default();
            counters.received.drop(Cause::Full, full);
            counters.received.drop(Cause::TooLong, too_long);
        }
        counters
    }
}
