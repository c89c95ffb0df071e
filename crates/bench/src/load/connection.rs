//! One connection of a run: what it still has to send, and which answers it waits for.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use super::protocol::Ticket;
use super::sys;

/// The least room for what is received after an answer's beginning, so that many small answers come at once.
const INPUT_BYTES: usize = 16 << 10;

/// Where a connection is in its life.
///
/// | from         | event                               | to           |
/// |--------------|-------------------------------------|--------------|
/// | `Absent`     | a request is to be sent             | `Connecting` |
/// | `Connecting` | it is established                   | `Open`       |
/// | `Open`       | an answer that says it is the last  | `Ending`     |
/// | `Open`       | the server ends it, nothing is owed | `Absent`     |
/// | `Ending`     | the server ends it                  | `Absent`     |
///
/// No request is sent while it is `Ending`, because no answer would come. An end while answers are owed is an error of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Absent,
    Connecting,
    Open,
    Ending,
}

/// A request whose answer is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) number: u64,
    pub(super) ticket: Ticket,
    pub(super) intended_ns: u64,
}

pub(super) struct Connection {
    pub(super) state: State,
    /// There unless it is absent.
    pub(super) socket: Option<OwnedFd>,
    /// Requests that are not sent yet, from `written` on.
    pub(super) out: Vec<u8>,
    written: usize,
    /// It is watched for being writable.
    pub(super) watches_writing: bool,
    /// The beginning of an answer, `filled` bytes, of which `need` must be there before the next look.
    pub(super) input: Vec<u8>,
    pub(super) filled: usize,
    pub(super) need: usize,
    /// In the order of sending.
    pub(super) flights: VecDeque<Flight>,
    /// Number of its next request in an open loop.
    pub(super) next: u64,
    pub(super) opened_ns: u64,
    /// Nothing has come on it yet.
    pub(super) silent: bool,
}

impl Connection {
    pub(super) fn new(index: usize, pipeline: usize) -> Connection {
        Connection {
            state: State::Absent,
            socket: None,
            out: Vec::new(),
            written: 0,
            watches_writing: false,
            input: Vec::new(),
            filled: 0,
            need: 0,
            flights: VecDeque::with_capacity(pipeline),
            next: index as u64,
            opened_ns: 0,
            silent: true,
        }
    }

    /// Whether one more request may be sent on it.
    #[inline]
    pub(super) fn takes_requests(&self, pipeline: usize) -> bool {
        matches!(self.state, State::Open | State::Absent) && self.flights.len() < pipeline
    }

    /// Sends what can be sent; `true` when nothing is left.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let Some(socket) = &self.socket else {
            return Ok(true);
        };
        while self.written < self.out.len() {
            match sys::send(socket, &self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.written = 0;
        Ok(true)
    }

    /// Nothing of the past stays, except for what is still to be asked.
    pub(super) fn close(&mut self) {
        self.state = State::Absent;
        self.socket = None;
        self.watches_writing = false;
        self.filled = 0;
        self.need = 0;
        self.silent = true;
    }

    /// Keeps the beginning of an answer that was received elsewhere.
    pub(super) fn keep(&mut self, bytes: &[u8], need: usize) {
        self.filled = bytes.len();
        self.need = need;
        self.make_room();
        self.input[..bytes.len()].copy_from_slice(bytes);
    }

    /// Takes answers off the front of what was kept, and makes room for the next.
    pub(super) fn drop_answers(&mut self, bytes: usize, need: usize) {
        self.input.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
        self.need = need;
        self.make_room();
    }

    fn make_room(&mut self) {
        if self.input.len() < self.need {
            let room = self.need.max(INPUT_BYTES).next_power_of_two();
            self.input.resize(room, 0);
        }
    }
}
