//! Ports that are the front end of a virtio network device, by vhost-user: what a guest would be, without one. The back end is a switch, as
//! OVS with DPDK, or a program with DPDK's `net_vhost`.
//!
//! The port makes the memory, sealed, with rings and buffers; they stay when the back end goes, and another one goes on with what is in
//! them, if it agrees to the same features. Of packed rings only in-flight memory says where that is; without it they begin anew, and what
//! was in them is lost, as when the port itself goes.
//!
//! In reading order: `config`, `memory` (what lies where), `device` (rings and bells), `control` (what is said to the back end); the rings
//! themselves are in [`crate::virtio`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_wire::vhost_user::Answer;
use nix::sys::epoll::{Epoll, EpollCreateFlags};

use crate::bell::{self, wake};
use crate::burst::Burst;
use crate::counters::{Cause, Counters};
use crate::handed::Debts;
use crate::listener::{self, Connection, Listener};
use crate::offload::Offloads;
use crate::port::{Closed, Port, State};
use crate::vhost_user::{ControlError, Received, Retry, SOCKET, Stream, not_connected};
pub use config::{Config, Role};
use control::{Maker, To};
use device::Device;

mod config;
mod control;
mod device;
mod memory;

/// A back end that does not get on with connecting is given up after this time.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(3);

/// The connection.
#[derive(Debug)]
struct Link {
    stream: Stream,
    maker: Maker,
    /// Until when packets must pass.
    until: Instant,
}

impl Link {
    /// When it is given up, unless packets pass.
    fn must_be_done(&self) -> Option<Instant> {
        (!self.maker.is_done()).then_some(self.until)
    }
}

/// A virtio-user port.
#[derive(Debug)]
pub struct VirtioUser {
    config: Config,
    epoll: Arc<Epoll>,
    listener: Option<Listener>,
    debts: Debts,
    retry: Retry,
    link: Option<Link>,
    device: Option<Device>,
    state: State,
    /// What was found wrong with a ring: the connection ends at the next `poll`, and no packet passes until then.
    broken: Option<Closed>,
    is_armed: bool,
    counters: Counters,
}

impl VirtioUser {
    /// A port that is not connected yet. A server listens from now on.
    ///
    /// # Errors
    /// `InvalidInput` for a configuration that cannot be; `AddrInUse` when something is at the server's path that is not a dead server's
    /// socket; else what the kernel says.
    pub fn new(config: Config) -> io::Result<VirtioUser> {
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
        Ok(VirtioUser {
            retry: Retry::new(config.role),
            config,
            epoll: Arc::new(epoll),
            listener,
            debts,
            link: None,
            device: None,
            state: State::Connecting(None),
            broken: None,
            is_armed: false,
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
        let stream = Stream::new(socket);
        self.link = Some(Link {
            maker: Maker::begin(&stream)?,
            stream,
            until: now + HANDSHAKE_WAIT,
        });
        Ok(())
    }

    /// Goes on with what the back end says, until it says nothing more.
    fn listen(&mut self) -> Result<(), Closed> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        while let Some(message) = link.stream.receive()? {
            let Received { header, gifts } = message;
            let answer = Answer::parse(header, link.stream.payload(header));
            let answer = answer.map_err(|error| Closed::VhostUser(ControlError::from(error)))?;
            let to = To {
                config: &self.config,
                stream: &link.stream,
                epoll: &self.epoll,
                device: &mut self.device,
            };
            link.maker.handle(header.request, answer, gifts, to)?;
        }
        if link.maker.is_done() && !matches!(self.state, State::Connected) {
            self.state = State::Connected;
            self.counters.connections += 1;
            self.retry.succeeded();
        }
        Ok(())
    }

    fn hear(&mut self, now: Instant) {
        if let Err(why) = self.listen() {
            self.end(why, now);
        }
    }

    /// Ends the connection. What is in the rings is for the next back end, unless they are not as they must be.
    fn end(&mut self, why: Closed, now: Instant) {
        if let Some(link) = self.link.take() {
            bell::unwatch(&self.epoll, link.stream.socket());
        }
        self.is_armed = false;
        self.broken = None;
        let queues = self
            .device
            .iter_mut()
            .flat_map(|device| &mut device.receiving);
        let is_whole = queues
            .map(device::Receiving::cut_off)
            .all(|cut| cut.is_ok());
        if matches!(why, Closed::Virtio(_)) || !is_whole {
            self.device = None;
        }
        self.state = State::Connecting(Some(why));
        self.retry.again(now);
    }

    /// The device, while packets may pass.
    #[inline]
    fn connected(&mut self) -> Option<&mut Device> {
        match self.state {
            State::Connected if self.broken.is_none() => self.device.as_mut(),
            _ => None,
        }
    }

    /// Ends what `arm` began.
    fn disarm(&mut self) {
        self.is_armed = false;
        for queue in self
            .device
            .iter_mut()
            .flat_map(|device| &mut device.receiving)
        {
            queue.want_call(false);
        }
    }
}

impl Port for VirtioUser {
    fn poll(&mut self, now: Instant) -> &State {
        if let Some(listener) = &mut self.listener {
            listener.wake(&self.epoll, now);
        }
        let news = bell::news(&self.epoll);
        if let Some(why) = self.broken.take() {
            self.end(why, now);
        }
        // First what the back end says: one that has gone leaves its place to the next, who may be there already.
        if news.socket {
            self.hear(now);
        }
        if news.listener
            && let Err(why) = self.accept(now)
            && self.link.is_none()
        {
            self.state = State::Connecting(Some(why));
        }
        if self.link.is_none() && self.retry.at.is_some_and(|at| at <= now) {
            self.connect(now);
        }
        if self.link.as_ref().is_some_and(|link| !link.maker.is_done()) {
            self.hear(now);
        }
        let until = self.link.as_ref().and_then(Link::must_be_done);
        if until.is_some_and(|until| until <= now) {
            self.end(Closed::Silent, now);
        }
        &self.state
    }

    fn poll_at(&self) -> Option<Instant> {
        let at = match &self.link {
            None => self.retry.at,
            Some(link) => link.must_be_done(),
        };
        let wake_at = self.listener.as_ref().and_then(Listener::wake_at);
        [at, wake_at].into_iter().flatten().min()
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn receive_queues(&self) -> usize {
        match (&self.state, &self.device) {
            (State::Connected, Some(device)) => device.receiving.len(),
            _ => 0,
        }
    }

    fn transmit_queues(&self) -> usize {
        match (&self.state, &self.device) {
            (State::Connected, Some(device)) => device.sending.len(),
            _ => 0,
        }
    }

    #[inline]
    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        if self.is_armed {
            self.disarm();
        }
        burst.clear();
        if self.broken.is_some() || !matches!(self.state, State::Connected) {
            return 0;
        }
        let queues = self.device.as_mut().map(|device| &mut device.receiving);
        let Some(queue) = queues.and_then(|queues| queues.get_mut(queue)) else {
            return 0;
        };
        let wakes = &mut self.counters.wakes;
        wake(queue.release(), wakes);
        let received = queue.receive(burst, &mut self.counters.received);
        self.broken = received.err().map(Closed::Virtio);
        if burst.is_private() {
            wake(queue.release(), wakes);
        }
        burst.len()
    }

    fn release(&mut self, queue: usize) {
        let mut wakes = 0;
        let queues = self.connected().map(|device| &mut device.receiving);
        if let Some(queue) = queues.and_then(|queues| queues.get_mut(queue)) {
            wake(queue.release(), &mut wakes);
        }
        self.counters.wakes += wakes;
    }

    #[inline]
    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        if first >= burst.len() || self.broken.is_some() || !matches!(self.state, State::Connected)
        {
            return 0;
        }
        let queues = self.device.as_mut().map(|device| &mut device.sending);
        let Some(queue) = queues.and_then(|queues| queues.get_mut(queue)) else {
            return 0;
        };
        let tally = &mut self.counters.transmitted;
        let (taken, result) = queue.transmit(burst, first, tally);
        wake(queue.publish(), &mut self.counters.wakes);
        self.broken = result.err().map(Closed::Virtio);
        taken
    }

    fn offloads(&self) -> Offloads {
        match (&self.state, &self.device) {
            (State::Connected, Some(device)) => device.offloads(),
            _ => Offloads::default(),
        }
    }

    fn give_up(&mut self, queue: usize, burst: &Burst, first: usize) {
        let cause = match &self.state {
            State::Connected if queue < self.transmit_queues() => Cause::Full,
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
        if let Some(device) = self.connected() {
            for queue in &mut device.receiving {
                wake(queue.release(), &mut wakes);
                queue.want_call(true);
                is_quiet &= !queue.has_more();
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
