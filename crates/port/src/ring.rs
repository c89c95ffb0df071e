//! Ports between two containers, by channels: a packet is a message, in the memory of the one that sends it.
//!
//! ```no_run
//! use std::time::Instant;
//!
//! use millrace_port::ring::{Config, Ring, Side};
//! use millrace_port::{Burst, Port};
//!
//! // The other program is `Side::Second` of the same name.
//! let mut port = Ring::new(&Config::new("upf/n3", Side::First))?;
//! let mut burst = Burst::new(32);
//! loop {
//!     port.poll(Instant::now());
//!     let count = port.receive(0, &mut burst);
//!     port.transmit(0, &burst, 0);
//!     # if count == 0 { break; }
//! }
//! # Ok::<(), millrace_channel::Error>(())
//! ```
//!
//! The agent brings those together who use a name, as with any channel, and says who may. There is one channel each way: `NAME/1` from the
//! first side to the second, and `NAME/2` back. Each side has a pool of its own that the other can only read, so neither can harm what the
//! other has sent; and what the other holds comes back when it dies.
//!
//! A received packet is not copied but for its first bytes: a burst has places in the sender's pool, and the message is given back by
//! `release`. What is transmitted is copied once, from wherever it lies, into the own pool; a packet of a burst that was lent by
//! [`Ring::lend`] and written in place is published as it is. Work cannot be left to the peer: a message is a packet and nothing else.
//!
//! Of a peer that has gone, packets that were not received are dropped, and counted. A third program that uses the name gets what is sent
//! as well, and is not heard: names are for two.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_channel::{
    Channel, DetachedLoan, DetachedMessage, Error, Publisher, Subscriber, WhenFull,
};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::burst::{Burst, HEAD_BYTES, PACKET_BYTES_MAX, Packet};
use crate::counters::{Cause, Counters};
use crate::limits::DROPS_PER_CALL;
use crate::memory::{Memory, Place};
use crate::port::{Closed, Port, SHORTEST, State};

/// While there is no peer, the agent is asked for one so often: it may have been started again.
const LOOK: Duration = Duration::from_millis(500);

/// Which of the two a program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one.
    First,
    /// The other.
    Second,
}

/// What a ring shall be.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its name: two bytes shorter than a channel's may be.
    pub name: String,
    /// Which end this is.
    pub side: Side,
    /// The agent's socket, if it is not where it always is ([`Channel::agent`]).
    pub agent: Option<PathBuf>,
    /// Memory for packets that this side sends: a multiple of 65 536.
    pub pool_bytes: u64,
    /// Packets that this side has sent and the other has not given back, at most: a power of two from 2 to 32 768.
    pub slots: u32,
}

impl Config {
    /// 1 024 slots and 8 MiB.
    #[must_use]
    pub fn new(name: &str, side: Side) -> Config {
        Config {
            name: name.to_owned(),
            side,
            agent: None,
            pool_bytes: 8 << 20,
            slots: 1024,
        }
    }
}

/// The other side, as long as it is there.
#[derive(Debug)]
struct Peer {
    /// The agent's numbers for its two ends.
    subscriber: u64,
    publisher: u64,
    /// What it sends lies there.
    memory: Arc<Memory>,
}

impl Peer {
    /// Why a message is no packet of it, if it is none.
    #[inline]
    fn refuses(&self, message: &DetachedMessage) -> Option<Cause> {
        match message.bytes() {
            _ if message.publisher() != self.publisher => Some(Cause::NoPeer),
            length if length < SHORTEST as usize => Some(Cause::TooShort),
            length if length > PACKET_BYTES_MAX => Some(Cause::TooLong),
            _ => None,
        }
    }
}

/// Where a message lies. Pools have at most 4 GiB.
#[inline]
fn place_of(message: &DetachedMessage) -> Place {
    Place {
        region: 0,
        offset: message.offset() as u32,
        length: message.bytes() as u32,
    }
}

/// What became of a packet.
enum Fate {
    Sent,
    Dropped(Cause),
    Kept,
}

/// An end of a ring.
#[derive(Debug)]
pub struct Ring {
    publisher: Publisher,
    subscriber: Subscriber,
    epoll: Epoll,
    /// What is sent lies there.
    own: Arc<Memory>,
    peer: Option<Peer>,
    /// What has come just now, and is asked for.
    came: Vec<DetachedMessage>,
    /// Received, and not released yet.
    held: Vec<DetachedMessage>,
    /// Lent, and not transmitted yet.
    lent: VecDeque<DetachedLoan>,
    state: State,
    look_at: Instant,
    is_armed: bool,
    /// The last packet that was to go found no room.
    is_full: bool,
    counters: Counters,
}

impl Ring {
    /// An end that is not connected yet.
    ///
    /// # Errors
    /// As [`Channel::publisher`].
    pub fn new(config: &Config) -> Result<Ring, Error> {
        let channel = |number: u8| {
            let channel = Channel::new(&format!("{}/{number}", config.name));
            let channel = channel.pool_bytes(config.pool_bytes).slots(config.slots);
            let channel = channel.when_full(WhenFull::Fail);
            match &config.agent {
                Some(socket) => channel.agent(socket),
                None => channel,
            }
        };
        let (there, back) = match config.side {
            Side::First => (channel(1), channel(2)),
            Side::Second => (channel(2), channel(1)),
        };
        let (publisher, subscriber) = (there.publisher()?, back.subscriber()?);
        let kernel = |errno: nix::errno::Errno| Error::Kernel("an epoll set", errno.into());
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(kernel)?;
        for fd in [publisher.as_fd(), subscriber.news()] {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            epoll.add(fd, event).map_err(kernel)?;
        }
        Ok(Ring {
            own: Arc::new(Memory::of_pool(Arc::clone(publisher.pool()))),
            publisher,
            subscriber,
            epoll,
            peer: None,
            came: Vec::new(),
            held: Vec::with_capacity(config.slots as usize),
            lent: VecDeque::new(),
            state: State::Connecting(None),
            look_at: Instant::now(),
            is_armed: false,
            is_full: false,
            counters: Counters::default(),
        })
    }

    /// Fills an empty burst with packets of so many bytes that lie in the pool, as many as there are room and memory for; returns how many.
    /// Their heads are zeros, and behind them are any bytes: [`Burst::write`] and [`Burst::head_mut`] write them, and [`Port::transmit`] of
    /// this port publishes them in place. What was lent before and not transmitted is taken back.
    pub fn lend(&mut self, burst: &mut Burst, bytes: usize) -> usize {
        for loan in self.lent.drain(..) {
            drop(self.publisher.attach(loan));
        }
        burst.begin(&self.own);
        if !(SHORTEST as usize..=PACKET_BYTES_MAX).contains(&bytes) {
            return 0;
        }
        while !burst.is_full() {
            let Ok(loan) = self.publisher.try_loan(bytes) else {
                break;
            };
            let loan = loan.detach();
            // Pools have at most 4 GiB.
            let place = Place {
                region: 0,
                offset: loan.offset() as u32,
                length: bytes as u32,
            };
            burst.admit_blank(place);
            if bytes > HEAD_BYTES {
                // The peer has its first lines still.
                self.own.will_write(place);
                self.lent.push_back(loan);
            } else {
                // All of it is in the burst.
                drop(self.publisher.attach(loan));
            }
        }
        burst.len()
    }

    /// The loan that a packet was written into.
    fn lent_for(&mut self, packet: &Packet<'_>) -> Option<DetachedLoan> {
        let offset = packet.offset_in(&self.own)?;
        // Nearly always the first.
        let mut all = self.lent.iter();
        let number = all.position(|loan| loan.offset() == offset as usize)?;
        let loan = self.lent.remove(number)?;
        (loan.bytes() == packet.len()).then_some(loan)
    }

    fn send(&mut self, packet: &Packet<'_>) -> Fate {
        if packet.len() < SHORTEST as usize {
            return Fate::Dropped(Cause::TooShort);
        }
        if packet.leaves_work() {
            return Fate::Dropped(Cause::Offload);
        }
        let place = |loan: &DetachedLoan| Place {
            region: 0,
            offset: loan.offset() as u32,
            length: loan.bytes() as u32,
        };
        let (loan, is_lent) = match self.lent_for(packet) {
            Some(loan) => {
                self.own.write(place(&loan), packet.head());
                (loan, true)
            }
            None => match self.publisher.loan(packet.len()) {
                Ok(loan) => {
                    let loan = loan.detach();
                    packet.write_to(0, &self.own, place(&loan));
                    (loan, false)
                }
                Err(Error::TooLong { .. }) => return Fate::Dropped(Cause::TooLong),
                Err(_) => return Fate::Kept,
            },
        };
        match self.publisher.push(self.publisher.attach(loan)) {
            Ok(_) => Fate::Sent,
            Err(failed) => {
                if is_lent {
                    self.lent.push_front(failed.loan.detach());
                }
                Fate::Kept
            }
        }
    }

    /// Gives everything back that was received.
    fn give_back(&mut self) {
        for message in self.held.drain(..) {
            drop(self.subscriber.attach(message));
        }
    }

    /// Who is at the other end now: both ends of it, or nobody.
    fn meet(&mut self) {
        let now = self.publisher.peer().zip(self.subscriber.peer());
        let before = self.peer.as_ref();
        if now == before.map(|peer| (peer.subscriber, peer.publisher)) {
            return;
        }
        if self.peer.take().is_some() {
            // Whoever has come in its place meanwhile is met the next time.
            self.state = State::Connecting(Some(Closed::PeerGone));
            self.disarm();
            return;
        }
        if let Some((subscriber, publisher)) = now
            && let Some(view) = self.subscriber.pool_of(publisher)
        {
            self.peer = Some(Peer {
                subscriber,
                publisher,
                memory: Arc::new(Memory::of_view(view)),
            });
            self.state = State::Connected;
            self.counters.connections += 1;
        }
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.subscriber.disarm();
        }
    }
}

impl Port for Ring {
    fn poll(&mut self, now: Instant) -> &State {
        self.look_at = now + LOOK;
        self.publisher.attend();
        self.subscriber.attend();
        self.meet();
        &self.state
    }

    fn poll_at(&self) -> Option<Instant> {
        self.peer.is_none().then_some(self.look_at)
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn receive_queues(&self) -> usize {
        usize::from(self.peer.is_some())
    }

    fn transmit_queues(&self) -> usize {
        usize::from(self.peer.is_some())
    }

    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        self.disarm();
        self.give_back();
        burst.clear();
        let Some(peer) = self.peer.as_ref().filter(|_| queue == 0) else {
            // Memory of a peer that has gone is not kept until the next one sends.
            burst.forget();
            return 0;
        };
        burst.begin(&peer.memory);
        let tally = &mut self.counters.received;
        let (mut bytes, mut drops) = (0, 0);
        // What is dropped is given back at once: a publisher that goes on meanwhile would have no end of it.
        while !burst.is_full() && drops < DROPS_PER_CALL {
            let Some(message) = self.subscriber.pop() else {
                break;
            };
            let message = message.detach();
            if let Some(cause) = peer.refuses(&message) {
                tally.drop(cause, 1);
                drops += 1;
                drop(self.subscriber.attach(message));
                continue;
            }
            bytes += message.bytes() as u64;
            if message.bytes() <= HEAD_BYTES {
                // All of it is in the burst.
                burst.admit(&peer.memory, place_of(&message));
                drop(self.subscriber.attach(message));
                continue;
            }
            // More of its kind follow it, most likely: their lines are asked for before any of them is read, since the subscriber has asked
            // for their first ones only.
            peer.memory.will_read(place_of(&message));
            self.came.push(message);
            while self.came.len() < burst.room()
                && let Some(message) = self.subscriber.pop()
            {
                let message = message.detach();
                if let Some(cause) = peer.refuses(&message) {
                    tally.drop(cause, 1);
                    drops += 1;
                    drop(self.subscriber.attach(message));
                    break;
                }
                bytes += message.bytes() as u64;
                peer.memory.will_read(place_of(&message));
                self.came.push(message);
            }
            for message in self.came.drain(..) {
                burst.admit(&peer.memory, place_of(&message));
                self.held.push(message);
            }
        }
        tally.pass(burst.len() as u64, bytes);
        burst.len()
    }

    fn release(&mut self, _: usize) {
        self.give_back();
    }

    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        if queue > 0 || self.peer.is_none() {
            return 0;
        }
        let Some(next) = burst.get(first) else {
            return 0;
        };
        // Whoever tries again and again would ask the kernel for news each time.
        if self.is_full && self.publisher.is_full(next.len()) {
            return 0;
        }
        self.is_full = false;
        let (mut taken, mut sent, mut bytes) = (0, 0, 0);
        for packet in burst.iter().skip(first) {
            match self.send(&packet) {
                Fate::Sent => {
                    sent += 1;
                    bytes += packet.len() as u64;
                }
                Fate::Dropped(cause) => self.counters.transmitted.drop(cause, 1),
                Fate::Kept => {
                    self.is_full = true;
                    break;
                }
            }
            taken += 1;
        }
        if sent > 0 {
            self.publisher.publish();
        }
        self.counters.transmitted.pass(sent, bytes);
        taken
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        let cause = match self.transmit_queues() {
            0 => Cause::NoPeer,
            _ if queue == 0 => Cause::Full,
            _ => Cause::NoQueue,
        };
        let packets = burst.len().saturating_sub(first) as u64;
        self.counters.transmitted.drop(cause, packets);
    }

    fn arm(&mut self) -> bool {
        self.is_armed = true;
        self.subscriber.arm()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
