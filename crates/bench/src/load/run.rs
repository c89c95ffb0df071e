//! What becomes of requests and answers.

use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering;

use anyhow::Result;

use super::clock::{self, Clock};
use super::connection::{Connection, Flight, State};
use super::meter::Meter;
use super::protocol::Protocol;
use super::record::Recorder;
use super::schedule::Schedule;
use super::sys::{self, Interest, Poller, Wait};
use super::{Target, Waiting};

/// What is received at once. A longer answer is received into memory of its connection.
const RECEIVE_BYTES: usize = 64 << 10;
/// After the end, requests that were due before are still sent and answered for so long.
const DRAIN_NS: u64 = 2_000_000_000;
/// Looks for events that are timed to find out what one costs.
const LOOKS: usize = 64;

/// Nanoseconds of a time in seconds.
pub(super) fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// A run of a protocol.
pub(super) struct Run<'a, P> {
    pub(super) protocol: P,
    pub(super) target: Target<'a>,
    pub(super) clock: Clock,
    pub(super) clock_ns: f64,
    pub(super) schedule: Schedule,
    pub(super) recorder: Recorder,
    pub(super) meter: Meter,
    pub(super) connections: Vec<Connection>,
    pub(super) poller: Option<Poller>,
    pub(super) buffer: Vec<u8>,
    /// Number of the next request in a closed loop.
    next: u64,
    /// Requests that were sent, those of the warm-up among them.
    pub(super) sent: u64,
    /// Of those, the unanswered.
    pub(super) in_flight: usize,
    /// When something was received last.
    pub(super) received_ns: u64,
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// Requests that were due before the end, in an open loop; known at the end.
    pub(super) due: u64,
    /// At the end, how long a request was due that was not sent.
    pub(super) behind_ns: u64,
    /// The longest that a request was sent late though its connection was free.
    pub(super) late_max_ns: u64,
    pub(super) reconnections: u64,
}

impl<'a, P: Protocol> Run<'a, P> {
    /// Opens the connections.
    pub(super) fn new(protocol: P, target: Target<'a>) -> Result<Run<'a, P>> {
        let options = target.options;
        let schedule = Schedule::new(options.rate)?;
        let begin_ns = nanoseconds(options.warm_up_seconds);
        let end_ns = begin_ns + nanoseconds(options.seconds);
        let first = schedule.first_from(begin_ns);
        let stamped = protocol.stamps().is_some();
        let mut poller = match options.waiting {
            Waiting::Epoll => Some(Poller::new()?),
            Waiting::Blocking | Waiting::Spin => None,
        };
        let look_ns = poller.as_mut().map_or(Ok(0), look_cost_ns)?;
        let connection = |index| Connection::new(index, options.pipeline);
        let mut run = Run {
            protocol,
            target,
            clock: Clock::start(),
            clock_ns: clock::read_cost_ns(),
            schedule,
            recorder: Recorder::new(begin_ns, end_ns, first, options.trace, stamped)?,
            meter: Meter::new(look_ns),
            connections: (0..options.connections).map(connection).collect(),
            poller,
            buffer: vec![0; RECEIVE_BYTES],
            next: 0,
            sent: 0,
            in_flight: 0,
            received_ns: 0,
            begin_ns,
            end_ns,
            due: 0,
            behind_ns: 0,
            late_max_ns: 0,
            reconnections: 0,
        };
        if !run.protocol.closes() {
            for index in 0..options.connections {
                run.open(index, true)?;
            }
        }
        run.clock = Clock::start();
        Ok(run)
    }

    /// Follows the time; `true` when the run is over.
    #[inline]
    pub(super) fn pass(&mut self, now_ns: u64) -> Result<bool> {
        // Relaxed: the flag guards no other data.
        if self.target.stop.load(Ordering::Relaxed) && now_ns < self.end_ns {
            self.end_ns = now_ns;
            self.recorder.end_ns = now_ns;
        }
        if !self.meter.has_begun() && now_ns >= self.begin_ns {
            self.meter.begin(now_ns)?;
        }
        if now_ns < self.end_ns {
            return Ok(false);
        }
        if !self.meter.has_ended() {
            self.end(now_ns)?;
        }
        let all_sent = self.schedule == Schedule::Closed || self.sent >= self.due;
        Ok((self.in_flight == 0 && all_sent) || now_ns >= self.end_ns + DRAIN_NS)
    }

    fn end(&mut self, now_ns: u64) -> Result<()> {
        self.meter.end(now_ns)?;
        if let Some(due) = self.schedule.first_from(self.end_ns) {
            self.due = due;
            let next = self.connections.iter().map(|connection| connection.next);
            let first_unsent = next.min().unwrap_or(due);
            self.behind_ns = self
                .end_ns
                .saturating_sub(self.schedule.due_ns(first_unsent));
        }
        Ok(())
    }

    /// Requests that were due within the measured time, in an open loop.
    pub(super) fn due_measured(&self) -> u64 {
        let first = self.schedule.first_from(self.begin_ns).unwrap_or_default();
        self.due.saturating_sub(first)
    }

    /// Sends what may be sent on a connection.
    pub(super) fn fill(&mut self, index: usize) -> Result<()> {
        let pipeline = self.target.options.pipeline;
        if !self.connections[index].takes_requests(pipeline) {
            return Ok(());
        }
        // Whether a closed loop goes on is as good as decided when the last answer came.
        let now_ns = match self.schedule {
            Schedule::Closed => self.received_ns,
            Schedule::Open { .. } => self.clock.now(),
        };
        let before = self.connections[index].flights.len();
        while self.connections[index].flights.len() < pipeline {
            let Some(number) = self.take_number(index, now_ns) else {
                break;
            };
            let connection = &mut self.connections[index];
            let ticket = self.protocol.request(number, index, &mut connection.out);
            connection.flights.push_back(Flight {
                number,
                ticket,
                intended_ns: self.schedule.due_ns(number),
            });
        }
        if self.connections[index].flights.len() == before {
            return Ok(());
        }
        self.note_sending(index, before);
        if self.connections[index].state == State::Absent {
            self.open(index, false)?;
        }
        self.flush(index)
    }

    /// Requests of a connection, from one on, are about to be sent. In a closed loop their time is now: making them is not in it.
    #[inline]
    fn note_sending(&mut self, index: usize, from: usize) {
        let flights = &mut self.connections[index].flights;
        let count = flights.len() - from;
        let now_ns = (self.schedule == Schedule::Closed).then(|| self.clock.now());
        for flight in flights.range_mut(from..) {
            flight.intended_ns = now_ns.unwrap_or(flight.intended_ns);
            self.recorder.sent(flight.number, flight.intended_ns);
        }
        self.in_flight += count;
        self.sent += count as u64;
    }

    /// The next request of a connection, if there is one to be sent now.
    #[inline]
    fn take_number(&mut self, index: usize, now_ns: u64) -> Option<u64> {
        let step = self.connections.len() as u64;
        let (next, step) = match self.schedule {
            Schedule::Closed => (&mut self.next, 1),
            Schedule::Open { .. } => (&mut self.connections[index].next, step),
        };
        let number = *next;
        if now_ns >= self.end_ns && self.schedule == Schedule::Closed {
            return None;
        }
        let due_ns = self.schedule.due_ns(number);
        if due_ns > now_ns || due_ns >= self.end_ns {
            return None;
        }
        *next += step;
        Some(number)
    }

    /// Opens a connection; `wait` for it, or have it told by the poller.
    fn open(&mut self, index: usize, wait: bool) -> Result<()> {
        let address = self.target.address;
        let blocks = self.target.options.waiting == Waiting::Blocking;
        let wait = wait || self.poller.is_none();
        let opened_ns = self.clock.now();
        let (socket, established) =
            sys::connect(address, wait).map_err(|error| self.no_connection(index, error))?;
        if blocks {
            sys::set_receive_timeout(&socket, super::drive::RECEIVE_TIMEOUT)?;
        } else if wait {
            sys::set_nonblocking(&socket)?;
        }
        if let Some(poller) = &self.poller {
            let interest = if established {
                Interest::Read
            } else {
                Interest::Both
            };
            poller.add(&socket, index, interest)?;
        }
        let connection = &mut self.connections[index];
        connection.socket = Some(socket);
        connection.opened_ns = opened_ns;
        connection.watches_writing = !established;
        connection.state = State::Connecting;
        if established {
            self.established(index);
        }
        Ok(())
    }

    fn established(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.state = State::Open;
        // It counts if its request does, so that both are of the same connections.
        if self.protocol.closes()
            && let Some(flight) = connection.flights.front()
            && self.recorder.counts(flight.intended_ns)
        {
            let time_ns = self.clock.now() - connection.opened_ns;
            self.recorder.connect.saturating_record(time_ns);
        }
    }

    /// Sends what is left of a connection's requests.
    pub(super) fn flush(&mut self, index: usize) -> Result<()> {
        let connection = &mut self.connections[index];
        if connection.state == State::Connecting {
            return Ok(());
        }
        let done = match connection.flush() {
            Ok(done) => done,
            Err(error) => return Err(self.lost(index, Some(error))),
        };
        if let (Some(poller), Some(socket)) = (&self.poller, &connection.socket)
            && connection.watches_writing == done
        {
            let interest = if done { Interest::Read } else { Interest::Both };
            poller.change(socket, index, interest)?;
            connection.watches_writing = !done;
        }
        Ok(())
    }

    /// Does what an event asks for.
    #[inline]
    pub(super) fn handle(&mut self, index: usize) -> Result<()> {
        let connection = &self.connections[index];
        if connection.watches_writing {
            if connection.state == State::Connecting {
                return self.handle_connecting(index);
            }
            self.flush(index)?;
        }
        self.receive(index).map(drop)
    }

    fn handle_connecting(&mut self, index: usize) -> Result<()> {
        if let Some(socket) = &self.connections[index].socket
            && let Err(error) = sys::connect_result(socket)
        {
            return Err(self.no_connection(index, error));
        }
        self.established(index);
        self.flush(index)?;
        self.fill(index)
    }

    /// Receives what is there, takes the answers, and sends what may be sent then; `false` when nothing was there.
    #[inline]
    pub(super) fn receive(&mut self, index: usize) -> Result<bool> {
        let mut came = false;
        loop {
            let connection = &mut self.connections[index];
            let Some(socket) = &connection.socket else {
                return Ok(came);
            };
            let buffer = if connection.filled > 0 {
                &mut connection.input[connection.filled..]
            } else {
                &mut self.buffer[..]
            };
            let room = buffer.len();
            let outcome = match sys::receive(socket, buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                outcome => outcome,
            };
            self.received_ns = self.clock.now();
            let filled = match outcome {
                Ok(0) => return self.handle_end(index, None).map(|()| true),
                Ok(count) => {
                    self.take(index, count)?;
                    count == room
                }
                Err(error) => return self.handle_end(index, Some(error)).map(|()| true),
            };
            came = true;
            // Without a poller the receive may block, and there may be no more.
            if !filled || self.poller.is_none() {
                break;
            }
        }
        if came {
            self.fill(index)?;
        }
        Ok(came)
    }
}

/// What a look for events costs that finds none: the least of some.
fn look_cost_ns(poller: &mut Poller) -> io::Result<u64> {
    let clock = Clock::start();
    let (mut least_ns, mut ready) = (u64::MAX, Vec::new());
    for _ in 0..LOOKS {
        let before_ns = clock.now();
        poller.wait(Wait::Poll, &mut ready)?;
        least_ns = least_ns.min(clock.now() - before_ns);
    }
    Ok(least_ns)
}
