//! One connection of a server.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use super::{Served, Service};
use crate::load::sys::{self, Interest};

/// With more unsent, a connection is not read from. It is more than the longest message of a benchmark, so that a client which sends all of
/// a message before it receives is not waited for in vain.
const UNSENT_BYTES: usize = 16 << 20;
/// A longer beginning of a request is none.
const INPUT_BYTES: usize = 64 << 10;

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open(Interest),
    Ended,
}

pub(super) struct Connection {
    pub(super) socket: OwnedFd,
    pub(super) interest: Interest,
    /// The beginning of a request.
    input: Vec<u8>,
    /// Answers, unsent from `sent` on.
    out: Vec<u8>,
    sent: usize,
    closes: bool,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Connection {
        Connection {
            socket,
            interest: Interest::Read,
            input: Vec::new(),
            out: Vec::new(),
            sent: 0,
            closes: false,
        }
    }

    /// Sends, receives and answers what there is.
    pub(super) fn serve(
        &mut self,
        service: &mut impl Service,
        buffer: &mut [u8],
        served: &mut Served,
    ) -> State {
        let unsent = self.out.len() - self.sent;
        if self.interest != Interest::Write || unsent < UNSENT_BYTES {
            match sys::receive(&self.socket, buffer) {
                Ok(0) => self.closes = true,
                Ok(count) => self.answer(service, &buffer[..count], served),
                Err(error) if is_passing(error.kind()) => {}
                Err(_) => return State::Ended,
            }
        }
        self.send()
    }

    fn answer(&mut self, service: &mut impl Service, bytes: &[u8], served: &mut Served) {
        if self.closes {
            return;
        }
        let fresh = self.input.is_empty();
        if !fresh {
            self.input.extend_from_slice(bytes);
        }
        let input = if fresh { bytes } else { &self.input };
        let taken = service.serve(input, &mut self.out);
        served.requests += taken.requests;
        self.closes |= taken.close;
        if fresh {
            self.input.extend_from_slice(&bytes[taken.bytes..]);
        } else {
            self.input.drain(..taken.bytes);
        }
        self.closes |= self.input.len() > INPUT_BYTES;
    }

    fn send(&mut self) -> State {
        while self.sent < self.out.len() {
            match sys::send(&self.socket, &self.out[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let full = self.out.len() - self.sent >= UNSENT_BYTES || self.closes;
                    return State::Open(if full {
                        Interest::Write
                    } else {
                        Interest::Both
                    });
                }
                Err(_) => return State::Ended,
            }
        }
        self.out.clear();
        self.sent = 0;
        if self.closes {
            State::Ended
        } else {
            State::Open(Interest::Read)
        }
    }
}

/// Whether there will be another event after such an error.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
