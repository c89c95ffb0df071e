//! Ports that are the back end of a virtio network device, by vhost-user: a guest of QEMU's, or a program with DPDK's `net_virtio_user`.
//!
//! ```no_run
//! use std::time::Instant;
//!
//! use millrace_port::vhost_user::{Config, Role, VhostUser};
//! use millrace_port::{Burst, Port};
//!
//! let mut port = VhostUser::new(Config::new(Role::Server, "/run/switch/guest.sock"))?;
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
//! Either end may listen, and either looks again and again for one that does. One front end has the port at a time; further ones are turned
//! away. The port is connected as long as one of the front end's rings is enabled; that a guest restarts shows as a connection that ends
//! without a reason, since the front end stays.
//!
//! Chains are given back in the order that they came in, so that what a back end had taken when it died is just what the ring has from its
//! used position on, and the next one goes on there: see `virtio::inflight` for packed rings, whose position is not in the ring. Of a front
//! end that has gone without a word, what its rings have is received first.
//!
//! In reading order: `config`, `control` (what the front end says), `rings` (what is known of each), `stream` and `sys` (messages on a
//! socket), `error`; the rings themselves are in [`crate::virtio`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_wire::vhost_user::{Answer, Request};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::socket::SockType;

use crate::bell::{self, wake};
use crate::burst::Burst;
use crate::counters::{Cause, Counters};
use crate::handed::Debts;
use crate::listener::{self, Connection, Listener};
use crate::offload::Offloads;
use crate::port::{Closed, Port, State};
pub use crate::virtio::Malformed;
pub(crate) use config::PAIRS_MAX;
pub use config::{Config, Role};
use control::Session;
pub use error::ControlError;
pub(crate) use stream::{Received, Stream};

mod config;
mod control;
mod error;
mod rings;
mod stream;
mod sys;

pub(crate) const SOCKET: SockType = SockType::Stream;
/// A front end that connects and says nothing is given up after this time: others wait.
const SILENCE_WAIT: Duration = Duration::from_secs(3);
/// A server that is not there is looked for again after this time, and after twice as long each time, up to the other.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// Packets of a front end that has gone are waited for no longer than this: whoever still has its memory could add some without an end.
const LEFT_WAIT: Duration = Duration::from_millis(100);
/// So many messages are dealt with before it is others' turn: a front end can say what it may say without an end.
const MESSAGES_AT_ONCE: usize = 64;

/// When a client tries to connect.
#[derive(Debug)]
pub(crate) struct Retry {
    /// None: the port is a server.
    pub(crate) at: Option<Instant>,
    pause: Duration,
}

impl Retry {
    pub(crate) fn new(role: Role) -> Retry {
        Retry {
            at: (role == Role::Client).then(Instant::now),
            pause: RETRY_MIN,
        }
    }

    /// After a connection has ended, or was not made.
    pub(crate) fn again(&mut self, now: Instant) {
        self.at = self.at.map(|_| now + self.pause);
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }

    pub(crate) fn succeeded(&mut self) {
        self.pause = RETRY_MIN;
    }
}

/// The connection.
#[derive(Debug)]
struct Link {
    stream: Stream,
    session: Session,
    /// Until when it must have said something.
    silent_until: Option<Instant>,
    /// The front end has gone, and what it has sent is received until then.
    gone_until: Option<Instant>,
}

/// A vhost-user port.
#[derive(Debug)]
pub struct VhostUser {
    config: Config,
    epoll: Arc<Epoll>,
    listener: Option<Listener>,
    debts: Debts,
    retry: Retry,
    link: Option<Link>,
    state: State,
    /// What was found wrong with a ring: the connection ends at the next `poll`, and no packet passes until then.
    broken: Option<Closed>,
    is_armed: bool,
    /// Queues each way: up to the last that is enabled.
    queues: (usize, usize),
    counters: Counters,
}

impl VhostUser {
    /// A port that is not connected yet. A server listens from now on.
    ///
    /// # Errors
    /// `InvalidInput` for a configuration that cannot be; `AddrInUse` when something is at the server's path that is not a dead server's
    /// socket; else what the kernel says.
    pub fn new(config: Config) -> io::Result<VhostUser> {
        config.check()?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let debts = Debts::default();
        let (path, mode) = (&config.path, config.socket_mode);
        let listener = match config.role {
            Role::Server => Some(Listener::new(SOCKET, path, mode, &debts)?),
            Role::Client => None,
        };
        if let Some(listener) = &listener {
            bell::watch(&epoll, listener.socket(), bell::LISTENER)?;
        }
        Ok(VhostUser {
            retry: Retry::new(config.role),
            config,
            epoll: Arc::new(epoll),
            listener,
            debts,
            link: None,
            state: State::Connecting(None),
            broken: None,
            is_armed: false,
            queues: (0, 0),
            counters: Counters::default(),
        })
    }

    /// Takes whoever wants to connect, unless somebody is connected.
    fn accept(&mut self, now: Instant) -> Result<(), Closed> {
        for _ in 0..listener::AT_ONCE {
            let Some(listener) = &mut self.listener else {
                break;
            };
            match listener.accept(&self.epoll, now).map_err(Closed::Io)? {
                None => break,
                Some(socket) if self.link.is_none() => self.begin(socket, now)?,
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Client: looks for the server.
    fn connect(&mut self, now: Instant) {
        let connected = listener::connect(SOCKET, &self.config.path, &self.debts)
            .map_err(Closed::Io)
            .and_then(|socket| self.begin(socket, now));
        if let Err(why) = connected {
            not_connected(&mut self.state, why);
            self.retry.again(now);
        }
    }

    fn begin(&mut self, socket: Connection, now: Instant) -> Result<(), Closed> {
        bell::watch(&self.epoll, &socket, bell::SOCKET).map_err(Closed::Io)?;
        self.link = Some(Link {
            stream: Stream::new(socket),
            session: Session::new(self.config.clone(), &self.epoll),
            silent_until: Some(now + SILENCE_WAIT),
            gone_until: None,
        });
        self.is_armed = false;
        Ok(())
    }

    /// Does what the peer says, until it says nothing more, or has said much: the rest is for the next time, and there is news of it still.
    fn listen(&mut self) -> Result<(), Closed> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(message) = link.stream.receive()? else {
                break;
            };
            link.silent_until = None;
            link.handle(message)?;
        }
        Ok(())
    }

    /// The same, and what follows from it.
    fn hear(&mut self, now: Instant) {
        match self.listen() {
            Ok(()) => self.review(),
            Err(Closed::PeerGone) => {
                // It may have enabled rings just before.
                self.review();
                if !self.has_left_some(now) {
                    self.end(Closed::PeerGone, now);
                }
            }
            Err(why) => self.end(why, now),
        }
    }

    /// Whether rings of a front end that has gone have packets still. There is news of its end as long as the connection is kept.
    fn has_left_some(&mut self, now: Instant) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let until = *link.gone_until.get_or_insert(now + LEFT_WAIT);
        let has_more = |ring: &mut rings::Vring| ring.active().is_some_and(|end| end.has_more());
        now < until && self.receiving().any(has_more)
    }

    /// Whether the front end has gone, and only what it has sent is there.
    #[inline]
    fn is_left(&self) -> bool {
        (self.link.as_ref()).is_some_and(|link| link.gone_until.is_some())
    }

    /// Ends the connection.
    fn end(&mut self, why: Closed, now: Instant) {
        if let Some(link) = self.link.take() {
            bell::unwatch(&self.epoll, link.stream.socket());
        }
        self.is_armed = false;
        self.broken = None;
        self.state = State::Connecting(Some(why));
        self.queues = (0, 0);
        self.retry.again(now);
    }

    /// Finds which rings are enabled now.
    fn review(&mut self) {
        let Some(link) = &self.link else {
            return;
        };
        let rings = link.session.rings.chunks(2);
        let last = |way: usize| {
            let mut active = rings.clone().map(|pair| pair[way].is_active());
            active
                .rposition(|is_active| is_active)
                .map_or(0, |last| last + 1)
        };
        self.queues = (last(1), last(0));
        let is_connected = self.queues != (0, 0);
        match (&self.state, is_connected) {
            (State::Connected, false) => self.state = State::Connecting(None),
            (State::Connecting(_), true) => {
                self.state = State::Connected;
                self.counters.connections += 1;
                self.retry.succeeded();
            }
            _ => {}
        }
    }

    /// Ends what `arm` began.
    fn disarm(&mut self) {
        self.is_armed = false;
        for ring in self.receiving() {
            if let Some(end) = ring.active() {
                end.want_kick(false);
            }
        }
    }

    /// The rings that packets come from.
    fn receiving(&mut self) -> impl Iterator<Item = &mut rings::Vring> {
        let links = self.link.iter_mut();
        let rings = links.flat_map(|link| &mut link.session.rings);
        rings.skip(1).step_by(2)
    }

    fn end_of(&mut self, ring: usize) -> Option<&mut rings::End> {
        self.link.as_mut()?.session.rings.get_mut(ring)?.active()
    }
}

impl Link {
    fn handle(&mut self, message: Received) -> Result<(), Closed> {
        let Received { header, gifts } = message;
        let wrong = |error| Closed::VhostUser(error);
        let request = Request::parse(header, self.stream.payload(header));
        let request = request.map_err(|error| wrong(error.into()))?;
        let needs_reply = header.needs_reply && self.session.replies();
        match self.session.handle(&request, gifts) {
            Ok(Some((answer, fd))) => {
                let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
                self.stream.send(&answer.emit(header.request), &fds)
            }
            Ok(None) if needs_reply => {
                let done = Answer::Number(0);
                self.stream.send(&done.emit(header.request), &[])
            }
            Ok(None) => Ok(()),
            Err(error) => {
                if needs_reply {
                    // The connection ends in any case.
                    let failed = Answer::Number(1);
                    let _ = self.stream.send(&failed.emit(header.request), &[]);
                }
                Err(wrong(error))
            }
        }
    }
}

/// Says why there is no connection. Why the last one ended is of more interest than that its server has not come back yet.
pub(crate) fn not_connected(state: &mut State, why: Closed) {
    let is_absent = matches!(
        &why,
        Closed::Io(error) if matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
        )
    );
    if !is_absent || matches!(state, State::Connecting(None)) {
        *state = State::Connecting(Some(why));
    }
}

impl Port for VhostUser {
    fn poll(&mut self, now: Instant) -> &State {
        if let Some(listener) = &mut self.listener {
            listener.wake(&self.epoll, now);
        }
        let news = bell::news(&self.epoll);
        if let Some(why) = self.broken.take() {
            self.end(why, now);
        }
        // First what the front end says: one that has gone leaves its place to the next, who may be there already.
        if news.socket {
            self.hear(now);
        }
        if news.listener
            && !self.is_left()
            && let Err(why) = self.accept(now)
            && self.link.is_none()
        {
            self.state = State::Connecting(Some(why));
        }
        if self.link.is_none() && self.retry.at.is_some_and(|at| at <= now) {
            self.connect(now);
        }
        let link = self.link.as_ref();
        if link.is_some_and(|link| link.silent_until.is_some()) {
            self.hear(now);
        }
        let silent_until = self.link.as_ref().and_then(|link| link.silent_until);
        if silent_until.is_some_and(|until| until <= now) {
            self.end(Closed::Silent, now);
        }
        &self.state
    }

    fn poll_at(&self) -> Option<Instant> {
        let at = match &self.link {
            None => self.retry.at,
            Some(link) => link.silent_until,
        };
        let wake_at = self.listener.as_ref().and_then(Listener::wake_at);
        [at, wake_at].into_iter().flatten().min()
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn receive_queues(&self) -> usize {
        self.queues.0
    }

    fn transmit_queues(&self) -> usize {
        self.queues.1
    }

    #[inline]
    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        if self.is_armed {
            self.disarm();
        }
        burst.clear();
        if self.broken.is_some() {
            return 0;
        }
        let rings = self.link.as_mut().map(|link| &mut link.session.rings);
        let ring = rings.and_then(|rings| rings.get_mut(2 * queue + 1));
        let Some(end) = ring.and_then(|ring| ring.active()) else {
            // Memory of a front end that has gone is not kept until the next one sends.
            burst.forget();
            return 0;
        };
        let wakes = &mut self.counters.wakes;
        wake(end.give_back(), wakes);
        let received = end.receive(burst, &mut self.counters.received);
        self.broken = received.err().map(Closed::Virtio);
        if burst.is_private() {
            wake(end.give_back(), wakes);
        }
        burst.len()
    }

    fn release(&mut self, queue: usize) {
        let mut wakes = 0;
        if let Some(end) = self.end_of(2 * queue + 1) {
            wake(end.give_back(), &mut wakes);
        }
        self.counters.wakes += wakes;
    }

    #[inline]
    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        if self.broken.is_some() || first >= burst.len() || self.is_left() {
            return 0;
        }
        let rings = self.link.as_mut().map(|link| &mut link.session.rings);
        let ring = rings.and_then(|rings| rings.get_mut(2 * queue));
        let Some(end) = ring.and_then(|ring| ring.active()) else {
            return 0;
        };
        let tally = &mut self.counters.transmitted;
        let (taken, result) = end.transmit(burst, first, tally);
        wake(end.give_back(), &mut self.counters.wakes);
        self.broken = result.err().map(Closed::Virtio);
        taken
    }

    fn offloads(&self) -> Offloads {
        let rings = self.link.iter().flat_map(|link| &link.session.rings);
        let end = rings.step_by(2).find_map(|ring| ring.end.as_ref());
        end.map(rings::End::offloads).unwrap_or_default()
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        let cause = match &self.state {
            State::Connected if self.is_left() => Cause::NoPeer,
            State::Connected if queue < self.queues.1 => Cause::Full,
            State::Connected => Cause::NoQueue,
            _ => Cause::NoPeer,
        };
        let packets = burst.len().saturating_sub(first) as u64;
        self.counters.transmitted.drop(cause, packets);
    }

    fn arm(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let mut wakes = 0;
        let mut is_quiet = true;
        for ring in self.receiving() {
            let has_kick = ring.has_kick;
            if let Some(end) = ring.active() {
                wake(end.give_back(), &mut wakes);
                end.want_kick(true);
                is_quiet &= has_kick && !end.has_more();
            }
        }
        self.counters.wakes += wakes;
        self.is_armed = true;
        if !is_quiet {
            self.disarm();
        }
        is_quiet
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
