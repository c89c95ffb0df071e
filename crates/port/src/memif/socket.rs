//! A server's socket, which ports of this process share that listen at one path: each has an interface there, with a number of its own.
//!
//! Who connects is told HELLO, and says by INIT which interface it wants. Then it is that port's, which reads the INIT: here it is only
//! looked at. Whichever port is polled does this for all of them, and wakes the one that is wanted.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use millrace_wire::memif::{Message, ParseError};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::SockType;

use super::control::hello;
use super::error::{BUFFER_BYTES, ControlError};
use super::{Config, HANDSHAKE_WAIT, say_why, shown, sys};
use crate::bell;
use crate::handed::Debts;
use crate::listener::{self, AT_ONCE, Connection, Listener};
use crate::port::Closed;

pub(super) const KIND: SockType = SockType::SeqPacket;
/// So many may have said nothing yet. For one more, who has waited longest has to go.
const GUESTS_MAX: usize = 16;
/// So many ports a socket has: a file's news goes through a hundred sets of epoll at most, of which each port is in one.
const PLACES_MAX: usize = 64;
/// So many may want one port that it has not looked at yet.
pub(super) const WANTING_MAX: usize = 4;

/// So many messages of one that is refused are taken before the rest is left to others.
const MESSAGES_MAX: usize = 16;

/// Those that this process listens at.
static SOCKETS: Mutex<Vec<Arc<Socket>>> = Mutex::new(Vec::new());

/// A port's place at a socket.
#[derive(Debug)]
pub(super) struct Seat {
    socket: Arc<Socket>,
    id: u32,
}

#[derive(Debug)]
struct Socket {
    path: PathBuf,
    mode: u32,
    /// Of the listener and of guests. Ports wait for it.
    epoll: Epoll,
    desk: Mutex<Desk>,
}

#[derive(Debug)]
struct Desk {
    /// As long as there is a port.
    listener: Option<Listener>,
    guests: Vec<Guest>,
    places: Vec<Place>,
}

/// Somebody who was told HELLO, and has time until then.
#[derive(Debug)]
struct Guest {
    connection: Connection,
    until: Instant,
}

/// What a port is known by.
#[derive(Debug)]
struct Place {
    id: u32,
    receive_queues: u16,
    transmit_queues: u16,
    bell: EventFd,
    debts: Debts,
    /// Who wants this port.
    wanting: VecDeque<Connection>,
    /// They wait until then, as too much of what the last ones handed over is being closed.
    rests_until: Option<Instant>,
    /// Why somebody went who had none.
    refused: Option<Why>,
}

/// Why somebody goes before they have a port.
#[derive(Debug, Clone, Copy)]
enum Why {
    Silent,
    Gone,
    /// The kernel's number.
    Io(i32),
    Parse(ParseError),
    Said(Message),
}

impl Why {
    fn closed(self) -> Closed {
        match self {
            Why::Silent => Closed::Silent,
            Why::Gone => Closed::PeerGone,
            Why::Io(number) => Closed::Io(io::Error::from_raw_os_error(number)),
            Why::Parse(error) => Closed::Control(error.into()),
            Why::Said(Message::Init(init)) => Closed::Control(ControlError::Id(init.id)),
            Why::Said(Message::Disconnect(said)) => {
                Closed::Disconnected(shown(said.reason.as_str()))
            }
            Why::Said(other) => Closed::Control(ControlError::Unexpected(other.name())),
        }
    }

    /// Whether they have not heard of it.
    fn is_news(self) -> bool {
        !matches!(self, Why::Gone | Why::Said(Message::Disconnect(_)))
    }
}

impl Seat {
    /// A place for a port, at the socket that this process has at its path, or at a new one; the port waits for it by `epoll`.
    ///
    /// # Errors
    /// `AddrInUse` when a port of this process has the same number there, or as [`Listener::new`] says.
    pub(super) fn new(config: &Config, epoll: &Epoll, debts: &Debts) -> io::Result<Seat> {
        let mut sockets = held(&SOCKETS);
        let known = sockets.iter().find(|socket| socket.is_at(config));
        let socket = match known {
            Some(socket) => socket.clone(),
            None => Socket::new(config)?,
        };
        socket.check(config)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_value_and_flags(0, flags)?;
        // It is never read.
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&bell, EpollEvent::new(edges, bell::LISTENER))?;
        bell::watch(epoll, &socket.epoll.0, bell::LISTENER)?;
        held(&socket.desk).places.push(Place {
            id: config.id,
            receive_queues: config.receive_queues,
            transmit_queues: config.transmit_queues,
            bell,
            debts: debts.clone(),
            wanting: VecDeque::new(),
            rests_until: None,
            refused: None,
        });
        if !sockets.iter().any(|known| Arc::ptr_eq(known, &socket)) {
            sockets.push(socket.clone());
        }
        Ok(Seat {
            socket,
            id: config.id,
        })
    }

    /// Does what there is to do at the socket; [`Seat::next`] has who wants this port then.
    ///
    /// # Errors
    /// Why somebody cannot be taken, or went before they had a port.
    pub(super) fn serve(&self, now: Instant) -> Result<(), Closed> {
        let mut desk = held(&self.socket.desk);
        let served = desk.serve(&self.socket.epoll, now);
        let Some(place) = desk.place(self.id) else {
            return Ok(());
        };
        let must_rest = !place.wanting.is_empty() && place.debts.are_many();
        place.rests_until = must_rest.then(|| now + listener::REST);
        if must_rest {
            return Err(Closed::Io(listener::many_debts()));
        }
        let refused = place.refused.take();
        served.map_err(Closed::Io)?;
        refused.map_or(Ok(()), |why| Err(why.closed()))
    }

    /// The next who wants this port.
    pub(super) fn next(&self) -> Option<Connection> {
        let mut desk = held(&self.socket.desk);
        let place = desk.place(self.id)?;
        match place.rests_until {
            Some(_) => None,
            None => place.wanting.pop_front(),
        }
    }

    /// When to call [`Seat::serve`], if nothing happens before.
    pub(super) fn poll_at(&self) -> Option<Instant> {
        let mut desk = held(&self.socket.desk);
        let rests_until = desk.place(self.id).and_then(|place| place.rests_until);
        let wake_at = desk.listener.as_ref().and_then(Listener::wake_at);
        let until = desk.guests.iter().map(|guest| guest.until);
        until.chain(wake_at).chain(rests_until).min()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Whoever opens the path next waits until it is free.
        let mut sockets = held(&SOCKETS);
        let mut desk = held(&self.socket.desk);
        desk.places.retain(|place| place.id != self.id);
        if desk.places.is_empty() {
            desk.guests.clear();
            desk.listener = None;
            sockets.retain(|socket| !Arc::ptr_eq(socket, &self.socket));
        }
    }
}

impl Socket {
    fn new(config: &Config) -> io::Result<Arc<Socket>> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let (path, mode) = (config.path.clone(), config.socket_mode);
        let listener = Listener::new(KIND, &path, mode, &Debts::default())?;
        bell::watch(&epoll, listener.socket(), bell::LISTENER)?;
        let desk = Desk {
            listener: Some(listener),
            guests: Vec::new(),
            places: Vec::new(),
        };
        Ok(Arc::new(Socket {
            path,
            mode,
            epoll,
            desk: Mutex::new(desk),
        }))
    }

    /// Whether it is at the port's path, and nobody has taken that away meanwhile.
    fn is_at(&self, config: &Config) -> bool {
        let desk = held(&self.desk);
        self.path == config.path && desk.listener.as_ref().is_some_and(Listener::has_path)
    }

    /// Whether a port can have a place here.
    fn check(&self, config: &Config) -> io::Result<()> {
        let path = self.path.display();
        if held(&self.desk).place(config.id).is_some() {
            let what = format!("{path} has a port with id {} already", config.id);
            return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
        }
        if held(&self.desk).places.len() >= PLACES_MAX {
            let what = format!("{path} has {PLACES_MAX} ports already, as many as one socket may");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if self.mode != config.socket_mode {
            let what = format!("{path} has the permissions {:o} of another port", self.mode);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(())
    }
}

impl Desk {
    fn place(&mut self, id: u32) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.id == id)
    }

    fn serve(&mut self, epoll: &Epoll, now: Instant) -> io::Result<()> {
        if let Some(listener) = &mut self.listener {
            listener.wake(epoll, now);
        }
        let news = bell::news(epoll);
        if news.socket {
            self.hear(epoll);
        }
        while self.guests.first().is_some_and(|guest| guest.until <= now) {
            self.dismiss_first(epoll);
        }
        match news.listener {
            true => self.accept(epoll, now),
            false => Ok(()),
        }
    }

    /// Takes whoever wants to connect.
    fn accept(&mut self, epoll: &Epoll, now: Instant) -> io::Result<()> {
        for _ in 0..AT_ONCE {
            let Some(listener) = &mut self.listener else {
                break;
            };
            let Some(connection) = listener.accept(epoll, now)? else {
                break;
            };
            // What one of the ports may have: it is said before anybody knows which is wanted.
            let most = |of: fn(&Place) -> u16| self.places.iter().map(of).max().unwrap_or(1);
            let queues = (
                most(|place| place.receive_queues),
                most(|place| place.transmit_queues),
            );
            if bell::watch(epoll, &connection, bell::SOCKET).is_err() {
                continue;
            }
            let until = now + HANDSHAKE_WAIT;
            let guest = Guest { connection, until };
            match sys::send(guest.connection.as_fd(), &hello(queues).emit(), None) {
                Ok(()) => self.guests.push(guest),
                Err(_) => guest.leave(epoll),
            }
            if self.guests.len() > GUESTS_MAX {
                self.dismiss_first(epoll);
            }
        }
        Ok(())
    }

    fn dismiss_first(&mut self, epoll: &Epoll) {
        let first = self.guests.remove(0);
        self.refuse(epoll, first, Why::Silent);
    }

    /// Reads what guests say, and brings them to their ports.
    fn hear(&mut self, epoll: &Epoll) {
        for guest in mem::take(&mut self.guests) {
            match guest.hear() {
                Ok(None) => self.guests.push(guest),
                Ok(Some(message)) => self.lead(epoll, guest, message),
                Err(why) => self.refuse(epoll, guest, why),
            }
        }
    }

    fn lead(&mut self, epoll: &Epoll, guest: Guest, message: Message) {
        let place = match &message {
            Message::Init(init) => self.place(init.id),
            _ => None,
        };
        match place {
            None => self.refuse(epoll, guest, Why::Said(message)),
            Some(place) => {
                guest.leave(epoll);
                if place.wanting.len() >= WANTING_MAX {
                    return say_already_connected(&guest.connection);
                }
                let connection = guest.connection.with_debts(&place.debts);
                place.wanting.push_back(connection);
                place.ring();
            }
        }
    }

    fn refuse(&mut self, epoll: &Epoll, guest: Guest, why: Why) {
        guest.leave(epoll);
        guest.take_all();
        if why.is_news() {
            // It may have gone already.
            let _ = say_why(&guest.connection, &why.closed().to_string());
        }
        for place in &mut self.places {
            place.refused = Some(why);
            place.ring();
        }
    }
}

impl Place {
    fn ring(&self) {
        // It is never full: each adds one.
        let _ = self.bell.write(1);
    }
}

impl Guest {
    /// What it says, which whoever it is meant for reads. None: nothing yet.
    fn hear(&self) -> Result<Option<Message>, Why> {
        let mut buffer = [0; BUFFER_BYTES];
        match self.connection.peek(&mut buffer) {
            Ok(None) => Ok(None),
            Ok(Some(0)) => Err(Why::Gone),
            Ok(Some(length)) => Message::parse(&buffer[..length])
                .map(Some)
                .map_err(Why::Parse),
            Err(error) => Err(Why::Io(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }

    /// Takes what it has said out of the queue, with what came with that. It is closed at once then, mostly.
    fn take_all(&self) {
        for _ in 0..MESSAGES_MAX {
            let mut gifts = self.connection.no_gifts();
            let received = self.connection.receive(&mut [0; BUFFER_BYTES], &mut gifts);
            if !matches!(received, Ok(Some(1..))) {
                break;
            }
        }
    }

    /// Nobody waits for it here any more, also where closing it takes its time.
    fn leave(&self, epoll: &Epoll) {
        bell::unwatch(epoll, &self.connection);
    }
}

/// What who comes to a port is told that has somebody.
pub(super) fn say_already_connected(connection: &Connection) {
    // It may have gone already.
    let _ = say_why(connection, &ControlError::AlreadyConnected.to_string());
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
