//! The trait.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::burst::Burst;
use crate::counters::Counters;
use crate::offload::Offloads;
use crate::{memif, pcap, vhost_user, virtio};

/// Bytes of the shortest packet where packets are Ethernet frames: a MAC header.
pub(crate) const SHORTEST: u32 = 14;

/// What wakes whoever has these queues.
pub(crate) fn waking(queues: &[impl AsFd]) -> io::Result<Epoll> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for queue in queues {
        epoll.add(queue, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
    }
    Ok(epoll)
}

/// Queues in so many parts at most, none of them without any, each with what wakes it. What was counted is the first one's.
pub(crate) fn dealt<T: AsFd>(
    queues: Vec<T>,
    counters: Counters,
    most: usize,
) -> io::Result<Vec<(Epoll, Vec<T>, Counters)>> {
    let count = most.clamp(1, queues.len().max(1));
    let mut parts: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for (number, queue) in queues.into_iter().enumerate() {
        parts[number % count].push(queue);
    }
    let mut counters = Some(counters);
    let part = |queues: Vec<T>| {
        let epoll = waking(&queues)?;
        Ok((epoll, queues, counters.take().unwrap_or_default()))
    };
    parts.into_iter().map(part).collect()
}

/// Something that packets enter and leave by.
///
/// A program's turn: receive from each queue, do the work, transmit; now and then, and after sleeping, [`Port::poll`]. Before it sleeps it
/// asks each port by [`Port::arm`], and then waits for their descriptors, and for the earliest of their [`Port::poll_at`].
pub trait Port {
    /// Does what sockets and timers ask for: connections come and go here, and nowhere else.
    fn poll(&mut self, now: Instant) -> &State;

    /// When to call [`Port::poll`] even though nothing has happened.
    fn poll_at(&self) -> Option<Instant>;

    /// Where the port stands, as far as is known.
    fn state(&self) -> &State;

    /// How many queues packets come from now.
    fn receive_queues(&self) -> usize;

    /// How many queues packets go to now.
    fn transmit_queues(&self) -> usize;

    /// Puts packets from a queue into an empty burst, at most as many as it has room for; returns how many. A queue that there is not has
    /// none.
    ///
    /// The packets are the burst's until the next `receive` or [`Port::release`] of this queue: from then on the peer may write where their
    /// bytes after the first [`crate::HEAD_BYTES`] lie.
    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize;

    /// Gives back to the peer where the packets lie that came last from a queue. What `receive` does first; for those who will not call it
    /// soon.
    fn release(&mut self, queue: usize);

    /// Sends the packets of a burst from number `first` on; returns how many were taken: sent, or dropped because they never could be. The
    /// others are still the caller's, who tries again, or gives up by [`Port::give_up`]. There is no telling when there will be room.
    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize;

    /// Which work packets may leave to the peer now. What leaves it more is dropped by `transmit` ([`crate::Cause::Offload`]): whoever does
    /// not know what the peer takes does the work before.
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    /// Counts the packets of a burst from number `first` on as dropped, because the port did not take them.
    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize);

    /// Asks to be woken by what comes from now on. False: there is something already, and no time to sleep. The next `receive` ends it.
    fn arm(&mut self) -> bool;

    /// Readable when there is reason to call [`Port::poll`], and, while armed, when there are packets.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// What went through so far, over all queues and connections.
    fn counters(&self) -> Counters;
}

/// Where a port stands.
#[derive(Debug)]
pub enum State {
    /// There is no connection, and why the last one ended.
    Connecting(Option<Closed>),
    /// Packets pass.
    Connected,
    /// It is over.
    Closed(Closed),
}

/// Why a connection has ended.
#[derive(Debug)]
pub enum Closed {
    /// The peer's socket is closed: it has gone, or died.
    PeerGone,
    /// The peer said so, for this reason.
    Disconnected(String),
    /// The peer said what it must not say, or what does not fit.
    Control(memif::ControlError),
    /// A ring of the peer's, or a descriptor in it, cannot be.
    Malformed(memif::Malformed),
    /// The peer said by vhost-user what it must not say, or what does not fit.
    VhostUser(vhost_user::ControlError),
    /// A virtio ring of the peer's, or a descriptor in it, cannot be.
    Virtio(virtio::Malformed),
    /// The peer began to connect, and said nothing more.
    Silent,
    /// The kernel does not do what is needed.
    Io(io::Error),
    /// All of a file was read.
    EndOfFile,
    /// A file cannot be read on.
    Unreadable(pcap::Unreadable),
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Connected => write!(f, "connected"),
            State::Connecting(None) => write!(f, "connecting"),
            State::Connecting(Some(why)) => write!(f, "connecting: {why}"),
            State::Closed(why) => write!(f, "closed: {why}"),
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Closed::PeerGone => write!(f, "the peer has gone"),
            Closed::Disconnected(reason) if reason.is_empty() => {
                write!(f, "the peer disconnected, for no reason that it gave")
            }
            Closed::Disconnected(reason) => write!(f, "the peer disconnected: {reason}"),
            Closed::Control(error) => write!(f, "{error}"),
            Closed::Malformed(what) => write!(f, "{what}"),
            Closed::VhostUser(error) => write!(f, "{error}"),
            Closed::Virtio(what) => write!(f, "{what}"),
            Closed::Silent => write!(f, "the peer began to connect and went silent"),
            Closed::Io(error) => write!(f, "{error}"),
            Closed::Unreadable(what) => write!(f, "{what}"),
            Closed::EndOfFile => write!(f, "the file has ended"),
        }
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn poll(&mut self, now: Instant) -> &State {
        (**self).poll(now)
    }

    fn poll_at(&self) -> Option<Instant> {
        (**self).poll_at()
    }

    fn state(&self) -> &State {
        (**self).state()
    }

    fn receive_queues(&self) -> usize {
        (**self).receive_queues()
    }

    fn transmit_queues(&self) -> usize {
        (**self).transmit_queues()
    }

    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        (**self).receive(queue, burst)
    }

    fn release(&mut self, queue: usize) {
        (**self).release(queue);
    }

    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        (**self).transmit(queue, burst, first)
    }

    fn offloads(&self) -> Offloads {
        (**self).offloads()
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        (**self).give_up(queue, burst, first);
    }

    fn arm(&mut self) -> bool {
        (**self).arm()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }

    fn counters(&self) -> Counters {
        (**self).counters()
    }
}
