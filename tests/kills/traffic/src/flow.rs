//! The two directions of one end of a connection, whatever the way in which its calls are made.

use std::io::ErrorKind::{Interrupted, WouldBlock};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::ledger::{Ledger, Side, SideWords, Slot, code};
use crate::order::{Order, Shape};
use crate::pattern::{Pattern, Random, Wrong};
use crate::sys;

/// The longest read, in bytes.
const READ_MAX: usize = 256 * 1024;

/// What came of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Did {
    /// Bytes moved.
    Moved,
    /// The call would have to wait for the kernel.
    Blocked,
    /// There is nothing to send until more has come, or before this moment.
    Idle(Option<Instant>),
    /// The direction has ended, and the ledger knows how.
    Ended,
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) incoming: Incoming,
    pub(crate) outgoing: Outgoing,
}

impl End {
    pub(crate) fn new(order: Order, side: Side, ledger: &'static Ledger) -> End {
        let slot = ledger.slot(order.slot);
        slot.side(side).main.set(u64::from(std::process::id()));
        let (from_client, from_server) = (Pattern::new(order.seed, 0), Pattern::new(order.seed, 1));
        let (mine, theirs) = if side == Side::Client {
            (from_client, from_server)
        } else {
            (from_server, from_client)
        };
        End {
            incoming: Incoming {
                words: slot.side(side),
                pattern: (order.shape != Shape::Heedless).then_some(theirs),
                random: Random::new(order.seed + 2 + side as u64),
                rest: Duration::from_micros(u64::from(order.read_pause_us)),
                buffer: vec![0; READ_MAX],
            },
            outgoing: Outgoing {
                side,
                slot,
                order,
                pattern: mine,
                random: Random::new(order.seed + 4 + side as u64),
                message: Vec::new(),
                at: 0,
                rest_until: None,
            },
        }
    }

    pub(crate) fn words(&self) -> &'static SideWords {
        self.incoming.words
    }

    /// Whether the end reads now. One that only sends looks for what comes back when it has done with that, not before: it must
    /// learn of its peer's death by sending.
    pub(crate) fn reads(&self) -> bool {
        let only_sends = self.shape() == Shape::OneWay && self.outgoing.side == Side::Client;
        !self.incoming.has_ended() && (!only_sends || self.outgoing.has_ended())
    }

    pub(crate) fn shape(&self) -> Shape {
        self.outgoing.order.shape
    }
}

/// The receiving direction.
pub(crate) struct Incoming {
    words: &'static SideWords,
    /// None: whatever comes is right.
    pattern: Option<Pattern>,
    random: Random,
    rest: Duration,
    buffer: Vec<u8>,
}

impl Incoming {
    pub(crate) fn has_ended(&self) -> bool {
        self.words.read_end.get() != 0
    }

    pub(crate) fn rests(&self) -> bool {
        !self.rest.is_zero()
    }

    fn check(&self, count: usize) -> Result<(), Wrong> {
        let got = &self.buffer[..count];
        self.pattern.map_or(Ok(()), |pattern| {
            pattern.check(self.words.received.get(), got)
        })
    }

    /// Makes one receiving call and checks what it brought.
    pub(crate) fn receive(&mut self, stream: &TcpStream) -> Did {
        // A reader that rests takes all that has come, or it would never be done.
        let size = if self.rest.is_zero() {
            self.random.size(READ_MAX)
        } else {
            READ_MAX
        };
        let result = sys::receive(
            stream.as_raw_fd(),
            &mut self.buffer[..size],
            self.random.next(),
        );
        let ended = match result {
            Ok(0) => code::DONE,
            Ok(count) => match self.check(count) {
                Ok(()) => {
                    std::thread::sleep(self.rest);
                    self.words
                        .received
                        .set(self.words.received.get() + count as u64);
                    return Did::Moved;
                }
                Err(wrong) => {
                    self.words.wrong_at.set(wrong.position + 1);
                    self.words
                        .wrong_ahead
                        .set(wrong.ahead.map_or(0, |ahead| ahead + 1));
                    code::WRONG
                }
            },
            Err(error) if error.kind() == WouldBlock => return Did::Blocked,
            Err(error) if error.kind() == Interrupted => return Did::Moved,
            Err(error) => code::of(&error),
        };
        self.words.read_end.set(ended);
        Did::Ended
    }
}

/// The sending direction.
pub(crate) struct Outgoing {
    side: Side,
    slot: &'static Slot,
    order: Order,
    pattern: Pattern,
    random: Random,
    message: Vec<u8>,
    /// Bytes of the message that have been sent.
    at: usize,
    rest_until: Option<Instant>,
}

/// What there is to send next.
enum Next {
    Message(usize),
    Nothing,
    End(u64),
}

impl Outgoing {
    fn words(&self) -> &'static SideWords {
        self.slot.side(self.side)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.words().write_end.get() != 0
    }

    /// Makes one sending call, if there is something to send.
    pub(crate) fn transmit(&mut self, stream: &TcpStream) -> Did {
        if self.at == self.message.len() {
            if let Some(moment) = self.rest_until.filter(|moment| Instant::now() < *moment) {
                return Did::Idle(Some(moment));
            }
            match self.next() {
                Next::Nothing => return Did::Idle(None),
                Next::End(ended) => {
                    let _ = stream.shutdown(Shutdown::Write);
                    return self.end(ended);
                }
                Next::Message(size) => {
                    self.message.resize(size, 0);
                    self.at = 0;
                    self.pattern
                        .fill(self.words().sent.get(), &mut self.message);
                }
            }
        }
        match sys::transmit(
            stream.as_raw_fd(),
            &self.message[self.at..],
            self.random.next(),
        ) {
            Ok(count) => {
                self.words()
                    .sent
                    .set(self.words().sent.get() + count as u64);
                self.at += count;
                let pause = Duration::from_micros(u64::from(self.order.pause_us));
                if self.at == self.message.len() && !pause.is_zero() {
                    self.rest_until = Some(Instant::now() + pause);
                }
                Did::Moved
            }
            Err(error) if error.kind() == WouldBlock => Did::Blocked,
            Err(error) if error.kind() == Interrupted => Did::Moved,
            Err(error) => self.end(code::of(&error)),
        }
    }

    /// Notes how the direction ended.
    fn end(&mut self, ended: u64) -> Did {
        self.words().write_end.set(ended);
        Did::Ended
    }

    fn next(&mut self) -> Next {
        let (sent, received) = (self.words().sent.get(), self.words().received.get());
        let read_end = self.words().read_end.get();
        let message = self.random.size(self.order.message_max as usize);
        let lockstep = self.order.shape == Shape::Lockstep;
        match self.side {
            // The server sends back as much as came, or has nothing to say, until the client ends.
            Side::Server => match (self.order.shape, read_end) {
                (Shape::Lockstep, _) if received > sent => {
                    Next::Message((received - sent).min(message as u64) as usize)
                }
                (Shape::Duplex | Shape::Heedless, 0) => Next::Message(message),
                (_, 0) => Next::Nothing,
                (_, code::DONE) => Next::End(code::DONE),
                (_, _) => Next::End(code::GAVE_UP),
            },
            Side::Client if lockstep && sent != received && read_end == 0 => Next::Nothing,
            Side::Client if lockstep && sent != received => Next::End(code::GAVE_UP),
            Side::Client if self.slot.finish.get() != 0 => Next::End(code::DONE),
            // An end that is seen too early must show in sending as well, so the client goes on.
            Side::Client => Next::Message(message),
        }
    }
}
