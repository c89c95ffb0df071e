//! Ports that speak memif, version 2.0, in both roles.
//!
//! ```no_run
//! use std::time::Instant;
//!
//! use millrace_port::memif::{Config, Memif, Role};
//! use millrace_port::{Burst, Port};
//!
//! let mut port = Memif::new(Config::new(Role::Server, "/run/upf/memif.sock"))?;
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
//! A server has a path, and whoever connects there first has the port until it goes; further ones are told. Servers of one process may have
//! one path, and different [numbers](Config::id) there. A client looks for its server again and again. The client makes the memory, sealed
//! against shrinking; a server takes nothing else, since reading what is not there any more would end its process. DPDK's zero-copy regions
//! are not sealed: [`Config::accept_unsealed`].
//!
//! Descriptors that come again are found by the place that they have in a ring, and a packet's bytes leave the ring when it is released.
//! An eventfd that the peer wakes us by is watched for edges and never read: it is the peer's as well, and a read could wait.
//!
//! In reading order: `config`, `socket` (a server's), `control` (what is said before packets pass), `receive` and `transmit` (rings), `sys`
//! (their words), `error`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use millrace_wire::memif::{Disconnect, Message, Text};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::bell::{self, wake};
use crate::burst::Burst;
use crate::counters::{Cause, Counters};
use crate::handed::{Debts, Gifts};
use crate::listener::{self, Connection};
use crate::port::{Closed, Port, State};
pub use config::{Config, Mode, Role};
use control::{Client, Queues, Server, Step};
pub use error::{ControlError, Malformed};

mod config;
mod control;
mod error;
mod receive;
mod socket;
mod sys;
mod transmit;

use socket::Seat;

/// The highest number of a region: as many as DPDK has.
const REGION_MAX: u16 = 255;
/// A peer that does not get on with connecting is given up after this time: others wait.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(3);
/// A server that is not there is looked for again after this time, and after twice as long each time, up to the other.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// DPDK's sender looks at the flag that it is to wake us before its cursor has left the processor: a look at the cursor right after the
/// flag was set can miss it. So there is another one, this much later, when no processor holds a write back any more.
const SETTLE: Duration = Duration::from_micros(5);

/// Who says what while a connection is made.
#[derive(Debug)]
enum Handshake {
    Server(Server),
    Client(Client),
}

/// The connection.
#[derive(Debug)]
enum Link {
    /// There is none. A client tries at this time.
    Down(Option<Instant>),
    /// It is being made, until this time.
    Making(Connection, Handshake, Instant),
    /// Packets pass.
    Up(Connection, Queues),
}

/// A memif port.
#[derive(Debug)]
pub struct Memif {
    config: Config,
    /// Before the sockets, which leave it when they are closed.
    epoll: Epoll,
    /// A server's.
    seat: Option<Seat>,
    debts: Debts,
    link: Link,
    state: State,
    /// What was found wrong with a ring: the connection ends at the next `poll`, and no packet passes until then.
    broken: Option<Closed>,
    pause: Duration,
    is_armed: bool,
    counters: Counters,
}

impl Memif {
    /// A port that is not connected yet. A server listens from now on.
    ///
    /// # Errors
    /// `InvalidInput` for a configuration that cannot be; `AddrInUse` when something is at the server's path that is not a dead server's
    /// socket; else what the kernel says.
    pub fn new(config: Config) -> io::Result<Memif> {
        config.check()?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let debts = Debts::default();
        let seat = match config.role {
            Role::Server => Some(Seat::new(&config, &epoll, &debts)?),
            Role::Client => None,
        };
        let at = (config.role == Role::Client).then(Instant::now);
        Ok(Memif {
            config,
            epoll,
            seat,
            debts,
            link: Link::Down(at),
            state: State::Connecting(None),
            broken: None,
            pause: RETRY_MIN,
            is_armed: false,
            counters: Counters::default(),
        })
    }

    /// Server: takes who wants this port.
    fn accept(&mut self, now: Instant) {
        let served = self.seat.as_ref().map_or(Ok(()), |seat| seat.serve(now));
        for _ in 0..socket::WANTING_MAX {
            let Some(socket) = self.seat.as_ref().and_then(Seat::next) else {
                break;
            };
            // The one before may have gone a moment ago.
            if let Err(why) = self.listen() {
                self.end(why, now);
            }
            if !matches!(self.link, Link::Down(_)) {
                socket::say_already_connected(&socket);
                continue;
            }
            let watched = bell::watch(&self.epoll, &socket, bell::SOCKET);
            let handshake = Handshake::Server(Server::default());
            self.link = Link::Making(socket, handshake, now + HANDSHAKE_WAIT);
            if let Err(error) = watched {
                self.end(Closed::Io(error), now);
            }
        }
        if let (Err(why), Link::Down(_)) = (served, &self.link) {
            self.state = State::Connecting(Some(why));
        }
    }

    /// Client: looks for the server.
    fn connect(&mut self, now: Instant) {
        let connected = listener::connect(socket::KIND, &self.config.path, &self.debts)
            .and_then(|socket| bell::watch(&self.epoll, &socket, bell::SOCKET).map(|()| socket));
        match connected {
            Ok(socket) => {
                let handshake = Handshake::Client(Client::Hello);
                self.link = Link::Making(socket, handshake, now + HANDSHAKE_WAIT);
            }
            Err(error) => {
                let is_absent = matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                );
                // Why the last connection ended is of more interest than that its server has not come back yet.
                if !is_absent || matches!(self.state, State::Connecting(None)) {
                    self.state = State::Connecting(Some(Closed::Io(error)));
                }
                self.retry(now);
            }
        }
    }

    fn retry(&mut self, now: Instant) {
        self.link = Link::Down(self.seat.is_none().then_some(now + self.pause));
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }

    /// Does what the peer says, until it says nothing more.
    fn listen(&mut self) -> Result<(), Closed> {
        loop {
            let socket = match &self.link {
                Link::Down(_) => return Ok(()),
                Link::Making(socket, ..) | Link::Up(socket, _) => socket,
            };
            let mut buffer = [0; error::BUFFER_BYTES];
            let mut gifts = socket.no_gifts();
            let received = socket.receive(&mut buffer, &mut gifts);
            match received.map_err(Closed::Io)? {
                None => return Ok(()),
                Some(0) => return Err(Closed::PeerGone),
                Some(length) => self.handle(&buffer[..length], gifts)?,
            }
        }
    }

    fn handle(&mut self, datagram: &[u8], gifts: Gifts) -> Result<(), Closed> {
        let message = Message::parse(datagram).map_err(|e| Closed::Control(e.into()))?;
        if let Message::Disconnect(disconnect) = message {
            return Err(Closed::Disconnected(shown(disconnect.reason.as_str())));
        }
        let step = match &mut self.link {
            Link::Making(_, Handshake::Server(server), _) => {
                server.handle(&self.config, message, gifts)
            }
            Link::Making(_, Handshake::Client(client), _) => client.handle(&self.config, &message),
            _ => Err(ControlError::Unexpected(message.name())),
        };
        match step.map_err(Closed::Control)? {
            Step::Send(message, fd) => self.say(&message, fd),
            Step::Connected(queues, reply) => self.begin(queues, reply),
        }
    }

    fn say(&self, message: &Message, fd: Option<OwnedFd>) -> Result<(), Closed> {
        use std::os::fd::AsRawFd;
        if let Link::Making(socket, ..) = &self.link {
            let fd = fd.as_ref().map(AsRawFd::as_raw_fd);
            sys::send(socket.as_fd(), &message.emit(), fd).map_err(said)?;
        }
        Ok(())
    }

    fn begin(&mut self, queues: Queues, reply: Option<Message>) -> Result<(), Closed> {
        if let Some(reply) = reply {
            self.say(&reply, None)?;
        }
        for receiver in &queues.receivers {
            let edges = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
            let watched = self.epoll.add(receiver.bell(), edges);
            watched.map_err(|errno| Closed::Io(errno.into()))?;
        }
        if let Link::Making(socket, ..) = std::mem::replace(&mut self.link, Link::Down(None)) {
            self.link = Link::Up(socket, queues);
        }
        self.state = State::Connected;
        self.counters.connections += 1;
        self.pause = RETRY_MIN;
        self.is_armed = false;
        Ok(())
    }

    /// Ends the connection, and tells the peer why.
    fn end(&mut self, why: Closed, now: Instant) {
        let ours = matches!(
            why,
            Closed::Control(_) | Closed::Malformed(_) | Closed::Silent | Closed::Io(_)
        );
        if let (true, Link::Making(socket, ..) | Link::Up(socket, _)) = (ours, &self.link) {
            // It may have gone already.
            let _ = say_why(socket, &why.to_string());
        }
        if let Link::Making(socket, ..) | Link::Up(socket, _) = &self.link {
            bell::unwatch(&self.epoll, socket);
        }
        if let Link::Up(_, queues) = &self.link {
            for receiver in &queues.receivers {
                // The eventfd is the peer's as well: closing ours would not take it out of the set.
                let _ = self.epoll.delete(receiver.bell());
            }
        }
        self.is_armed = false;
        self.broken = None;
        self.state = State::Connecting(Some(why));
        self.retry(now);
    }

    /// Ends what `arm` began.
    fn disarm(&mut self) {
        self.is_armed = false;
        if let Link::Up(_, queues) = &self.link {
            for receiver in &queues.receivers {
                receiver.want_interrupt(false);
            }
        }
    }

    fn has_more(&self) -> bool {
        match &self.link {
            Link::Up(_, queues) => queues.receivers.iter().any(|queue| queue.has_more()),
            _ => false,
        }
    }
}

/// What a peer says, with nothing in it that a terminal would do.
fn shown(text: &str) -> String {
    let shown = |c: char| match c {
        '"' | '\'' => c.to_string(),
        c => c.escape_debug().to_string(),
    };
    text.chars().map(shown).collect()
}

/// What a failed `send` means.
fn said(error: io::Error) -> Closed {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Closed::PeerGone,
        _ => Closed::Io(error),
    }
}

fn say_why(socket: &Connection, why: &str) -> io::Result<()> {
    let disconnect = Disconnect {
        code: 0,
        reason: Text::new(why),
    };
    sys::send(
        socket.as_fd(),
        &Message::Disconnect(disconnect).emit(),
        None,
    )
}

impl Port for Memif {
    fn poll(&mut self, now: Instant) -> &State {
        let news = bell::news(&self.epoll);
        let is_due = |seat: &Seat| news.listener || seat.poll_at().is_some_and(|at| at <= now);
        let has_guests = self.seat.as_ref().is_some_and(is_due);
        if let Some(why) = self.broken.take() {
            self.end(why, now);
        }
        // First what the peer says: one that has gone leaves its place to the next, who may be there already.
        if news.socket
            && let Err(why) = self.listen()
        {
            self.end(why, now);
        }
        if has_guests {
            self.accept(now);
        }
        if matches!(self.link, Link::Down(Some(at)) if at <= now) {
            self.connect(now);
        }
        if matches!(self.link, Link::Making(..))
            && let Err(why) = self.listen()
        {
            self.end(why, now);
        }
        if matches!(self.link, Link::Making(.., until) if until <= now) {
            self.end(Closed::Silent, now);
        }
        &self.state
    }

    fn poll_at(&self) -> Option<Instant> {
        let at = match &self.link {
            Link::Down(at) => *at,
            Link::Making(.., until) => Some(*until),
            Link::Up(..) => None,
        };
        let seat_at = self.seat.as_ref().and_then(Seat::poll_at);
        [at, seat_at].into_iter().flatten().min()
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn receive_queues(&self) -> usize {
        match &self.link {
            Link::Up(_, queues) => queues.receivers.len(),
            _ => 0,
        }
    }

    fn transmit_queues(&self) -> usize {
        match &self.link {
            Link::Up(_, queues) => queues.transmitters.len(),
            _ => 0,
        }
    }

    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        if self.is_armed {
            self.disarm();
        }
        burst.clear();
        let Link::Up(_, queues) = &mut self.link else {
            // Memory of a peer that has gone is not kept until the next one sends.
            burst.forget();
            return 0;
        };
        let Some(receiver) = queues.receivers.get_mut(queue) else {
            return 0;
        };
        if self.broken.is_none() {
            let tally = &mut self.counters.received;
            let received = receiver.receive(burst, self.config.shortest(), tally);
            self.broken = received.err().map(Closed::Malformed);
        }
        burst.len()
    }

    fn release(&mut self, queue: usize) {
        if let Link::Up(_, queues) = &mut self.link
            && let Some(receiver) = queues.receivers.get_mut(queue)
        {
            receiver.release();
        }
    }

    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        let Link::Up(_, queues) = &mut self.link else {
            return 0;
        };
        let Some(transmitter) = queues.transmitters.get_mut(queue) else {
            return 0;
        };
        if self.broken.is_some() || first >= burst.len() {
            return 0;
        }
        let tally = &mut self.counters.transmitted;
        let shortest = self.config.shortest() as usize;
        let (taken, result) = transmitter.transmit(burst, first, shortest, tally);
        self.broken = result.err().map(Closed::Malformed);
        if taken > 0 {
            let bell = transmitter.wanted_bell().map(AsFd::as_fd);
            wake(bell, &mut self.counters.wakes);
        }
        taken
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        let cause = match &self.link {
            Link::Up(_, queues) if queue < queues.transmitters.len() => Cause::Full,
            Link::Up(..) => Cause::NoQueue,
            _ => Cause::NoPeer,
        };
        let packets = burst.len().saturating_sub(first) as u64;
        self.counters.transmitted.drop(cause, packets);
    }

    fn arm(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let Link::Up(_, queues) = &mut self.link else {
            return true;
        };
        for receiver in &mut queues.receivers {
            receiver.release();
            receiver.want_interrupt(true);
        }
        self.is_armed = true;
        let until = Instant::now() + SETTLE;
        loop {
            if self.has_more() {
                self.disarm();
                return false;
            }
            if Instant::now() >= until {
                return true;
            }
            std::hint::spin_loop();
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for Memif {
    fn drop(&mut self) {
        if let Link::Making(socket, ..) | Link::Up(socket, _) = &self.link {
            // It may have gone already.
            let _ = say_why(socket, "the port was closed");
        }
    }
}
