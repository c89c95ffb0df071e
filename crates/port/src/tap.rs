//! Ports that are TAP interfaces: at the other end is the kernel's own network stack.
//!
//! ```no_run
//! use std::time::Instant;
//!
//! use millrace_port::tap::{Config, Tap};
//! use millrace_port::{Burst, Offloads, Port};
//!
//! let mut config = Config::new("upf0");
//! config.accepts = Offloads { checksum: true, tso4: true, tso6: true, ecn: true, uso: false };
//! let mut port = Tap::open(&config)?;
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
//! To make an interface takes `CAP_NET_ADMIN`; to use it takes none. So one process makes it ([`descriptors`]) and another, in a container
//! perhaps, has a port from what it was handed ([`Tap::from_descriptors`]). An interface is gone with its last descriptor, unless it was
//! made to persist.
//!
//! Every packet has a virtio-net header before it. The kernel takes over whatever a packet leaves to it ([`Port::offloads`]), and leaves
//! to us what [`Config::accepts`] says: TCP comes in packets of up to 64 KiB then, and its checksums are not summed.
//!
//! Each packet is one system call, which is what the interface has: `readv` into the port's memory, `writev` from where the packet lies. A
//! packet that the kernel hands over is whole in one call, whatever its length, so that segmentation is what makes this fast. What a call
//! costs beside the kernel's work on a packet, and why io_uring was not taken, is in ARCHITECTURE.md.
//!
//! In reading order: `queue` (packets), `sys` (calls).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use millrace_wire::virtio::NET_HEADER_BYTES;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};

use crate::burst::Burst;
use crate::counters::{Cause, Counters};
use crate::offload::Offloads;
use crate::port::{Closed, Port, State, dealt, waking};
use queue::Queue;

mod queue;
mod sys;

/// As many as the kernel gives to an interface.
const QUEUES_MAX: usize = 256;

/// What an interface shall be.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name, of at most 15 bytes. With `%d` in it, the kernel puts the first number there that is free.
    pub name: String,
    /// Queues each way, up to 256. The kernel chooses one by a packet's flow.
    pub queues: u16,
    /// Which work the kernel may leave to us.
    pub accepts: Offloads,
}

impl Config {
    /// One queue, and no work is left to us.
    #[must_use]
    pub fn new(name: &str) -> Config {
        Config {
            name: name.to_owned(),
            queues: 1,
            accepts: Offloads::default(),
        }
    }
}

/// Makes an interface, or takes one that persists, and has it for whoever gets these descriptors: one for each queue.
///
/// # Errors
/// `InvalidInput` for a configuration that cannot be; else what the kernel says: `PermissionDenied` without `CAP_NET_ADMIN`.
pub fn descriptors(config: &Config) -> io::Result<Vec<OwnedFd>> {
    let queues = usize::from(config.queues);
    if !(1..=QUEUES_MAX).contains(&queues) {
        return Err(invalid("a TAP interface has 1 to 256 queues"));
    }
    let first = sys::open(&config.name, queues > 1)?;
    let name = sys::interface(first.as_fd())?.name;
    let mut all = vec![first];
    while all.len() < queues {
        // By the name that the kernel chose.
        all.push(sys::open(&name, true)?);
    }
    Ok(all)
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// A TAP interface.
#[derive(Debug)]
pub struct Tap {
    epoll: Epoll,
    queues: Vec<Queue>,
    name: String,
    /// What it may leave to us.
    accepts: Offloads,
    /// What the kernel takes over.
    kernel: Offloads,
    state: State,
    /// What a packet met: the port is closed at the next `poll`.
    broken: Option<Closed>,
    /// The last packet was refused because the interface is down.
    is_down: bool,
    counters: Counters,
}

impl Tap {
    /// Makes an interface and a port from it.
    ///
    /// # Errors
    /// As [`descriptors`].
    pub fn open(config: &Config) -> io::Result<Tap> {
        Tap::from_descriptors(descriptors(config)?, config.accepts)
    }

    /// A port from what another process has opened: queues of one TAP interface with virtio-net headers (`IFF_TAP`, `IFF_NO_PI`,
    /// `IFF_VNET_HDR`). Needs no capability.
    ///
    /// # Errors
    /// `InvalidInput` when they are anything else; else what the kernel says.
    pub fn from_descriptors(descriptors: Vec<OwnedFd>, accepts: Offloads) -> io::Result<Tap> {
        let Some(first) = descriptors.first() else {
            return Err(invalid("a TAP interface has at least one queue"));
        };
        let name = sys::interface(first.as_fd())?.name;
        for fd in &descriptors {
            let interface = sys::interface(fd.as_fd())?;
            if !interface.is_fit {
                return Err(invalid("no TAP interface with virtio-net headers"));
            }
            if interface.name != name {
                return Err(invalid("descriptors of different interfaces"));
            }
            sys::prepare(fd.as_fd(), NET_HEADER_BYTES)?;
        }
        let kernel = sys::set_accepted(first.as_fd(), accepts)?;
        let queues: io::Result<Vec<Queue>> = descriptors.into_iter().map(Queue::new).collect();
        let queues = queues?;
        Ok(Tap {
            epoll: waking(&queues)?,
            queues,
            name,
            accepts,
            kernel,
            state: State::Connected,
            broken: None,
            is_down: false,
            counters: Counters {
                connections: 1,
                ..Counters::default()
            },
        })
    }

    /// Parts it: so many ports at most, each with some of the queues, which may be other threads'. What was counted is the first one's.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn split(self, most: usize) -> io::Result<Vec<Tap>> {
        let parts = dealt(self.queues, self.counters, most)?.into_iter();
        let part = |(epoll, queues, counters)| Tap {
            epoll,
            queues,
            name: self.name.clone(),
            state: State::Connected,
            broken: None,
            counters,
            ..self
        };
        Ok(parts.map(part).collect())
    }

    /// What the interface was called when the port was made.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Connected) && self.broken.is_none()
    }

    /// What has happened, or was there already: whether there are packets, and whether the interface is gone.
    fn look(&self) -> (bool, bool) {
        let mut events = [EpollEvent::empty(); 8];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        let events = &events[..count.unwrap_or(0)];
        let any = |wanted| events.iter().any(|event| event.events().intersects(wanted));
        (any(EpollFlags::EPOLLIN), any(EpollFlags::EPOLLERR))
    }

    fn close(&mut self, why: Closed) {
        for queue in &self.queues {
            // It would go on to say that the interface is gone.
            let _ = self.epoll.delete(queue);
        }
        self.state = State::Closed(why);
    }
}

impl Port for Tap {
    fn poll(&mut self, _: Instant) -> &State {
        if let Some(why) = self.broken.take() {
            self.close(why);
        } else if self.is_open() && self.look().1 {
            self.close(Closed::PeerGone);
        }
        &self.state
    }

    fn poll_at(&self) -> Option<Instant> {
        None
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
            && let Some(queue) = self.queues.get(queue)
        {
            let received = queue.receive(burst, self.accepts, &mut self.counters.received);
            self.broken = received.err();
        }
        burst.len()
    }

    fn release(&mut self, _: usize) {}

    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        if queue >= self.transmit_queues() {
            return 0;
        }
        let tally = &mut self.counters.transmitted;
        let (taken, stopped) = self.queues[queue].transmit(burst, first, self.kernel, tally);
        self.is_down = matches!(stopped, queue::Stopped::Down);
        if let queue::Stopped::Broken(why) = stopped {
            self.broken = Some(why);
        }
        taken
    }

    fn offloads(&self) -> Offloads {
        self.kernel
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        let cause = match self.transmit_queues() {
            0 => Cause::NoPeer,
            queues if queue >= queues => Cause::NoQueue,
            _ if self.is_down => Cause::NoPeer,
            _ => Cause::Full,
        };
        let packets = burst.len().saturating_sub(first) as u64;
        self.counters.transmitted.drop(cause, packets);
    }

    fn arm(&mut self) -> bool {
        // What is there is told again and again, so there is nothing to ask for.
        self.look() == (false, false) && self.broken.is_none()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
