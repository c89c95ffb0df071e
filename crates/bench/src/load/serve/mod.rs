//! Servers that do as little as a server can: one thread around epoll, many connections.

mod connection;
mod counts;
mod echo;
mod http;
mod stamp;

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::address::Address;
use super::sys::{self, Interest, Listener, Poller, Wait};
use connection::{Connection, State};
pub use counts::Counts;
use counts::Kept;

/// What is received at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// The token of the listener.
const LISTENER: usize = usize::MAX - 1;
/// The token of what tells a server to stop.
const STOP: usize = usize::MAX - 2;

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sends back what it gets.
    Echo,
    /// Answers each GET with the same body.
    Http {
        /// Length of the body.
        bytes: usize,
    },
    /// Sends back messages of [`super::Workload::OneWay`], with the times at which they came and went.
    Stamp,
}

/// What a protocol does for a server.
trait Service {
    /// Takes what is whole of the input, and appends the answers.
    fn serve(&mut self, input: &[u8], out: &mut Vec<u8>) -> Taken;
}

/// What a service has made of its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    /// Bytes that are done with.
    bytes: usize,
    /// Requests in them.
    requests: u64,
    /// The connection ends after the answers.
    close: bool,
}

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Served {
    /// Connections that were accepted.
    pub connections: u64,
    /// Requests, or for echo the pieces in which bytes came.
    pub requests: u64,
    /// Times that there was something to do.
    pub wakes: u64,
    /// Descriptors with an event, for each of these times.
    pub ready_per_wake: f64,
    /// Seconds of processor time of its thread, in programs.
    pub user_s: f64,
    /// The same in the kernel.
    pub system_s: f64,
}

impl fmt::Display for Served {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} connections, {} requests; {} wake-ups with {:.2} ready descriptors each; {:.2} s user, {:.2} s system",
            self.connections,
            self.requests,
            self.wakes,
            self.ready_per_wake,
            self.user_s,
            self.system_s
        )
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    address: Address,
    kind: Kind,
    kept: Option<Kept>,
}

impl Server {
    /// Listens. A port of 0 is chosen by the kernel.
    ///
    /// # Errors
    /// The address is in use, or not of this machine.
    pub fn bind(kind: Kind, address: &Address) -> Result<Server> {
        sys::raise_descriptor_limit();
        let listen = || {
            let listener = Listener::bind(address)?;
            let address = sys::address_of(&listener, address)?;
            io::Result::Ok((listener, address))
        };
        let (listener, address) =
            listen().with_context(|| format!("cannot listen on {address}"))?;
        Ok(Server {
            listener,
            address,
            kind,
            kept: None,
        })
    }

    /// Keeps in a file how often it wakes, and for how many descriptors, for [`Counts::read`].
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn count_in(&mut self, path: &Path) -> Result<()> {
        self.kept = Some(Kept::create(path)?);
        Ok(())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until `stop` can be read, and wakes for nothing else than it and clients.
    ///
    /// # Errors
    /// Connections cannot be accepted, as when there are too many for the limit of open files.
    pub fn run(self, stop: &impl AsFd) -> Result<Served> {
        let outcome = match self.kind {
            Kind::Echo => Loop::new(&self, echo::Echo)?.run(stop),
            Kind::Http { bytes } => Loop::new(&self, http::Http::new(bytes))?.run(stop),
            Kind::Stamp => Loop::new(&self, stamp::Stamp::new())?.run(stop),
        };
        if let Address::Unix(path) = &self.address {
            // It may have been removed.
            let _ = std::fs::remove_file(path);
        }
        outcome.with_context(|| format!("the server on {}", self.address))
    }
}

struct Loop<'a, S> {
    listener: &'a Listener,
    kept: Option<&'a Kept>,
    poller: Poller,
    service: S,
    /// By token; places of ended connections are used again.
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    buffer: Vec<u8>,
    served: Served,
}

impl<'a, S: Service> Loop<'a, S> {
    fn new(server: &'a Server, service: S) -> io::Result<Loop<'a, S>> {
        let poller = Poller::new()?;
        poller.add(&server.listener, LISTENER, Interest::Read)?;
        Ok(Loop {
            listener: &server.listener,
            kept: server.kept.as_ref(),
            poller,
            service,
            connections: Vec::new(),
            free: Vec::new(),
            buffer: vec![0; RECEIVE_BYTES],
            served: Served::default(),
        })
    }

    fn run(mut self, stop: &impl AsFd) -> Result<Served> {
        self.poller.add(stop, STOP, Interest::Read)?;
        let mut ready = Vec::new();
        let mut counts = Counts::default();
        let (user_s, system_s) = sys::processor_time()?;
        loop {
            self.poller.wait(Wait::Endless, &mut ready)?;
            if ready.contains(&STOP) {
                break;
            }
            counts.wakes += u64::from(!ready.is_empty());
            counts.ready += ready.len() as u64;
            if let Some(kept) = self.kept {
                kept.keep(counts);
            }
            for &token in &ready {
                if token == LISTENER {
                    self.accept()?;
                } else {
                    self.serve(token)?;
                }
            }
        }
        let now = sys::processor_time()?;
        self.served.wakes = counts.wakes;
        let begun = Counts::default();
        self.served.ready_per_wake = counts.ready_per_wake_since(begun).unwrap_or_default();
        (self.served.user_s, self.served.system_s) = (now.0 - user_s, now.1 - system_s);
        Ok(self.served)
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok(socket) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // It ended before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("no connection can be accepted"),
            };
            self.served.connections += 1;
            let token = self.free.pop().unwrap_or(self.connections.len());
            self.poller.add(&socket, token, Interest::Read)?;
            let connection = Some(Connection::new(socket));
            match self.connections.get_mut(token) {
                Some(place) => *place = connection,
                None => self.connections.push(connection),
            }
        }
    }

    fn serve(&mut self, token: usize) -> Result<()> {
        let Some(connection) = &mut self.connections[token] else {
            return Ok(());
        };
        let state = connection.serve(&mut self.service, &mut self.buffer, &mut self.served);
        let interest = match state {
            State::Ended => {
                self.connections[token] = None;
                self.free.push(token);
                return Ok(());
            }
            State::Open(interest) => interest,
        };
        if interest != connection.interest {
            connection.interest = interest;
            self.poller.change(&connection.socket, token, interest)?;
        }
        Ok(())
    }
}
