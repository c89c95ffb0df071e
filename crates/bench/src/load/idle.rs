//! Connections that talk a little and are silent then, as most of those of a busy server are.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::address::Address;
use super::answer::cannot_open;
use super::content::Contents;
use super::sys::{self, Interest, Poller, Wait};
use crate::process::Memory;

/// Round trips of each connection in each of two passes. Those of the first are enough to be worth a faster road, which connections take
/// between the passes and use in the second: most of their bytes then show it.
pub(super) const ROUND_TRIPS: [u64; 2] = [12, 48];
const BETWEEN_PASSES: Duration = Duration::from_millis(500);
/// Length of a message.
const BYTES: usize = 64;
/// A server that has not answered for so long is none.
const PATIENCE: Duration = Duration::from_secs(10);
/// How soon it is noticed that the silence is to end, where the signal came just before the wait.
const LOOK: Duration = Duration::from_secs(1);

/// What a connection says before it is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speech {
    /// To a server that sends back what it gets.
    Echo,
    /// To redis: PING.
    Redis,
}

/// Connections that are silent.
#[derive(Debug)]
pub struct Idle {
    connections: Vec<OwnedFd>,
    memory_before_bytes: u64,
}

/// What is told when they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// How many there are.
    pub connections: u64,
    /// Memory that the program had before the first.
    pub memory_before_bytes: u64,
}

impl fmt::Display for Silence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.connections == 1 {
            " is"
        } else {
            "s are"
        };
        write!(formatter, "{} connection{plural} silent", self.connections)
    }
}

impl Idle {
    /// Opens connections to a server, and talks on each.
    ///
    /// # Errors
    /// The server cannot be reached, or answers something else.
    pub fn open(
        address: &Address,
        count: usize,
        speech: Speech,
        stop: &AtomicBool,
    ) -> Result<Idle> {
        ensure!(count > 0, "at least one connection is needed");
        sys::raise_descriptor_limit();
        let memory_before_bytes = Memory::own().total();
        let mut connections = Vec::with_capacity(count);
        for index in 0..count {
            let (socket, _) = sys::connect(address, true)
                .map_err(|error| cannot_open(index, count, address, error))?;
            sys::set_receive_timeout(&socket, PATIENCE)?;
            connections.push(socket);
        }
        let contents = Contents::new(0, BYTES);
        for (pass, round_trips) in ROUND_TRIPS.into_iter().enumerate() {
            if pass > 0 {
                std::thread::sleep(BETWEEN_PASSES);
            }
            for (index, socket) in connections.iter().enumerate() {
                // Relaxed: the flag guards no other data.
                ensure!(
                    !stop.load(Ordering::Relaxed),
                    "ended before all connections were silent"
                );
                for number in 0..round_trips {
                    let echoed = contents.get(Contents::variant(index as u64 + number));
                    let said = match speech {
                        Speech::Echo => talk(socket, echoed, echoed),
                        Speech::Redis => talk(socket, b"PING\r\n", b"+PONG\r\n"),
                    };
                    said.with_context(|| format!("connection {index} of {count} to {address}"))?;
                }
            }
        }
        Ok(Idle {
            connections,
            memory_before_bytes,
        })
    }

    /// What there is to tell.
    #[must_use]
    pub fn silence(&self) -> Silence {
        Silence {
            connections: self.connections.len() as u64,
            memory_before_bytes: self.memory_before_bytes,
        }
    }

    /// Sleeps until `stop` is set, waiting for all connections, and ends them.
    ///
    /// # Errors
    /// The server says something, or ends a connection.
    pub fn keep(self, stop: &AtomicBool) -> Result<()> {
        let mut poller = Poller::new()?;
        for (index, socket) in self.connections.iter().enumerate() {
            poller.add(socket, index, Interest::Read)?;
        }
        let mut ready = Vec::new();
        // Relaxed: the flag guards no other data.
        while !stop.load(Ordering::Relaxed) {
            poller.wait(Wait::Coarse(LOOK), &mut ready)?;
            if let Some(index) = ready.first() {
                bail!("connection {index} was to be silent, and the server ended it or sent bytes");
            }
        }
        // Thousands of ports that are kept for a minute would be missing in the next run.
        for socket in &self.connections {
            sys::end_by_reset(socket)?;
        }
        Ok(())
    }
}

/// A round trip; both messages are no longer than [`BYTES`].
fn talk(socket: &OwnedFd, message: &[u8], answer: &[u8]) -> Result<()> {
    let mut sent = 0;
    while sent < message.len() {
        sent += sys::send(socket, &message[sent..])?;
    }
    let mut buffer = [0; BYTES];
    let mut filled = 0;
    while filled < answer.len() {
        match sys::receive(socket, &mut buffer[filled..answer.len()])? {
            0 => bail!("ended by the server"),
            count => filled += count,
        }
    }
    ensure!(
        buffer[..filled] == *answer,
        if answer == message {
            "the answer is not what was sent: is this a server for echo?"
        } else {
            "the answer is not PONG: is this redis?"
        }
    );
    Ok(())
}
