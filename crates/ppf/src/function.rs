//! What becomes of a message.
//!
//! A packet takes three steps, and PDCP and SDAP will stand between the second and the third, when they come: *tunnel*
//! ([`Function::handle_at`]: whose message is it), *bearer* (`table/pass.rs`: does it pass, must it wait, what is counted), *transport*
//! (`carry.rs`: with which header it goes on, to whom). What they change is the body between its bearer and its transport.

use std::collections::VecDeque;
use std::net::IpAddr;

use millrace_wire::gtpu::path::ErrorIndication;
use millrace_wire::gtpu::{
    ECHO_REQUEST, ECHO_RESPONSE, END_MARKER, ERROR_INDICATION, G_PDU, LONG_HEADER_BYTES, Message,
    SUPPORTED_EXTENSIONS, TUNNEL_STATUS,
};

use crate::bearer::{BearerId, Peer, Side};
use crate::cause::{Cause, Drops};
use crate::event::{Event, Rate, Sending};
use crate::hold::Held;
use crate::inner::Inner;
use crate::paths::PathId;
use crate::table::Table;
use crate::table::hot::NO_EXTRA;
use crate::table::pass::Admission;
use crate::table::users::User;
use carry::{Came, Way};
pub(crate) use carry::{change_flow, put_container};
pub(crate) use settings::ERRORS_PER_SECOND;
pub use settings::Settings;

mod carry;
mod messages;
mod settings;
#[cfg(test)]
mod tests;
mod too_big;

/// Bytes of a header that is written, with its extension headers, at most.
pub const HEADER_BYTES_MAX: usize = 128;
/// Bytes of a message of this function's own, at most.
const REPLY_BYTES_MAX: usize = 64;
/// Messages that wait for somebody who sends them, at most.
const SENDINGS_MAX: usize = 1024;

/// What came beside a message.
#[derive(Debug, Clone, Copy)]
pub struct Outer {
    /// By which side's interface.
    pub side: Side,
    /// Who sent it.
    pub source: IpAddr,
    /// To whom: one of ours.
    pub destination: IpAddr,
    /// The sender's UDP port.
    pub source_port: u16,
}

/// A message of this function's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// From which address of ours.
    pub from: IpAddr,
    /// To whom.
    pub to: IpAddr,
    /// To which UDP port; it is sent from [`millrace_wire::gtpu::PORT`].
    pub to_port: u16,
    bytes: [u8; REPLY_BYTES_MAX],
    length: usize,
}

impl Reply {
    /// The message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Whether it is what was asked for, an echo. Others say why a message was dropped.
    pub(crate) fn is_echo(&self) -> bool {
        self.bytes[1] == ECHO_RESPONSE
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Send this header and this body to a tunnel's far end. What is longer than the path takes is to be cut up outside
    /// ([`crate::pieces`]).
    Relay {
        /// Of which bearer.
        bearer: BearerId,
        /// By which side's interface.
        side: Side,
        /// To whom.
        to: Peer,
        /// By which path.
        path: PathId,
        /// The outer header's traffic class.
        class: u8,
        /// The header, of which so many bytes count.
        header: ([u8; HEADER_BYTES_MAX], usize),
        /// What follows it, where it came.
        body: &'a [u8],
    },
    /// Send a user's packet as it is: these bytes and the body behind them. What is longer than the path takes is to be cut up outside.
    Plain {
        /// Of which bearer.
        bearer: BearerId,
        /// By which side's interface.
        side: Side,
        /// The packet's beginning, of which so many bytes count, if it is another than it was.
        header: ([u8; HEADER_BYTES_MAX], usize),
        /// The rest, where it came.
        body: &'a [u8],
    },
    /// Nothing: the packet was copied, and comes again by [`Function::poll_released`] when its bearer is paused no more.
    Held,
    /// Send this, and nothing else.
    Reply(Reply),
    /// Nothing, and it is counted.
    Drop(Cause),
    /// Nothing, and somebody else is to be told: the far end has no such tunnel any more. Which bearer's it was is said by
    /// [`Event::Lost`].
    Lost(ErrorIndication),
    /// Nothing: a peer lives, and answers an echo with this sequence number.
    Alive(Option<u16>),
    /// Nothing.
    Done,
}

/// The function: bearers, and what it has counted.
#[derive(Debug, Default)]
pub struct Function {
    /// All bearers.
    pub bearers: Table,
    settings: Settings,
    /// What was told of tunnels and extension headers, and of packets that were too long.
    errors: Rate,
    too_big: Rate,
    sendings: VecDeque<Sending>,
    /// Messages that nobody sent, as too many waited.
    unsent: u64,
    /// A packet that is given out.
    released: Vec<u8>,
}

impl Function {
    /// One without bearers.
    #[must_use]
    pub fn new() -> Function {
        Function::default()
    }

    /// One without bearers, that is as it is said to be.
    #[must_use]
    pub fn with_settings(settings: Settings) -> Function {
        let mut bearers = Table::with_limits(settings.hold);
        bearers.paths.supervise(settings.supervision);
        Function {
            bearers,
            settings,
            ..Function::default()
        }
    }

    /// What was dropped of what came by a side's interface.
    #[must_use]
    pub fn drops(&self, side: Side) -> &Drops {
        &self.bearers.drops[side as usize]
    }

    /// Events that nobody fetched in time, and messages that nobody sent.
    #[must_use]
    pub fn overflows(&self) -> (u64, u64) {
        (self.bearers.events.lost, self.unsent)
    }

    /// Reads the line of the bearer that a datagram is for, as [`Table::touch`] does.
    #[inline]
    #[must_use]
    pub fn touch(&self, datagram: &[u8]) -> u32 {
        match datagram {
            [_, _, _, _, teid @ ..] => {
                let teid = teid.first_chunk::<4>().copied().unwrap_or_default();
                self.bearers.touch(u32::from_be_bytes(teid))
            }
            _ => 0,
        }
    }

    /// As [`Function::handle_at`], at a time in seconds, of a datagram whose outer header has no traffic class.
    #[inline]
    pub fn handle<'a>(&mut self, outer: &Outer, datagram: &'a [u8], now_s: u64) -> Verdict<'a> {
        self.handle_at(outer, 0, datagram, now_s.saturating_mul(1_000_000_000))
    }

    /// Deals with a UDP datagram that came to [`millrace_wire::gtpu::PORT`] with this traffic class, at a time in nanoseconds from any
    /// beginning.
    #[inline]
    pub fn handle_at<'a>(
        &mut self,
        outer: &Outer,
        class: u8,
        datagram: &'a [u8],
        now_ns: u64,
    ) -> Verdict<'a> {
        let message = match Message::parse(datagram) {
            Ok(message) => message,
            Err(error) => return self.drop(outer.side, error.into()),
        };
        let came = Came {
            from: outer.side,
            class,
            datagram,
            message: &message,
        };
        match message.kind {
            G_PDU | END_MARKER => self.handle_tunnelled(outer, &came, now_ns),
            ECHO_REQUEST | ECHO_RESPONSE | ERROR_INDICATION | SUPPORTED_EXTENSIONS
            | TUNNEL_STATUS => self.handle_message(outer, &message, now_ns),
            _ => self.drop(outer.side, Cause::UnknownMessage),
        }
    }

    /// Deals with a user's packet that came as it is by a side without tunnels.
    pub fn handle_plain<'a>(&mut self, side: Side, packet: &'a [u8], now_ns: u64) -> Verdict<'a> {
        let Some(inner) = Inner::parse(packet) else {
            return self.drop(side, Cause::NotInternet);
        };
        // On the core network's side users are whom packets are for, on the other who sends them.
        let user = match side {
            Side::Core => inner.destination,
            Side::Radio => inner.source,
        };
        match self.bearers.find_user(side, user) {
            Some(id) => self.handle_user(id, (side, packet), &inner, now_ns),
            None => self.drop(side, Cause::UnknownUser),
        }
    }

    /// The same where it is known already whose bearer the user's is: in this table a user may be another bearer's still, which is to go.
    pub(crate) fn handle_plain_of<'a>(
        &mut self,
        id: BearerId,
        side: Side,
        packet: &'a [u8],
        now_ns: u64,
    ) -> Verdict<'a> {
        let Some(inner) = Inner::parse(packet) else {
            return self.drop(side, Cause::NotInternet);
        };
        let user = User::of(match side {
            Side::Core => inner.destination,
            Side::Radio => inner.source,
        });
        let mut hot = self.bearers.hot(id).into_iter();
        match hot.any(|hot| hot.is_plain(side) && self.bearers.is_user(hot, side, user)) {
            true => self.handle_user(id, (side, packet), &inner, now_ns),
            false => self.drop(side, Cause::UnknownUser),
        }
    }

    fn handle_user<'a>(
        &mut self,
        id: BearerId,
        (side, packet): (Side, &'a [u8]),
        inner: &Inner,
        now_ns: u64,
    ) -> Verdict<'a> {
        let mut room = [0; HEADER_BYTES_MAX];
        let way = match carry::wrap(&self.bearers, id, side.other(), packet, &mut room) {
            Ok(way) => way,
            Err(cause) => return self.drop(side, cause),
        };
        if self.is_too_big(&way) && inner.is_told_of {
            return self.tell_too_big(id, side, None, packet, &way, now_ns);
        }
        let held = Held {
            bearer: id,
            to: side.other(),
            is_plain: true,
            tos: 0,
            at_ns: now_ns,
        };
        match self.pass(held, packet.len(), packet) {
            None => way.verdict(id, room),
            Some(verdict) => verdict,
        }
    }

    fn drop(&mut self, side: Side, cause: Cause) -> Verdict<'static> {
        self.bearers.drops[side as usize].add(cause);
        Verdict::Drop(cause)
    }

    #[inline]
    fn handle_tunnelled<'a>(
        &mut self,
        outer: &Outer,
        came: &Came<'a, '_>,
        now_ns: u64,
    ) -> Verdict<'a> {
        let message = came.message;
        let (id, side) = BearerId::of(message.teid);
        let Some(hot) = self.bearers.hot(id) else {
            return self.handle_unknown(outer, message, now_ns);
        };
        if side != outer.side {
            return self.drop(outer.side, Cause::WrongSide);
        }
        // Where users' packets come as they are there is no tunnel that a message could come by.
        if hot.is_plain(side) {
            return self.handle_unknown(outer, message, now_ns);
        }
        let has_extra = hot.extra != NO_EXTRA;
        let mut room = [0; HEADER_BYTES_MAX];
        let way = match carry::carry(&self.bearers, (id, hot), came, &mut room) {
            Ok(way) => way,
            Err(Cause::Comprehension) => return self.tell_known(outer, now_ns),
            // A frame without a packet is for whoever follows it, where no tunnel leads on.
            Err(Cause::Empty) if has_extra && self.follow(id, side, message, now_ns) => {
                return Verdict::Done;
            }
            Err(cause) => return self.drop(outer.side, cause),
        };
        if self.is_too_big(&way) && Inner::parse(message.body).is_some_and(|one| one.is_told_of) {
            return self.tell_too_big(id, side, Some(message), message.body, &way, now_ns);
        }
        if has_extra {
            self.follow(id, side, message, now_ns);
        }
        if message.kind == END_MARKER {
            self.bearers.events.push(Event::EndMarker(id, side));
        }
        let held = Held {
            bearer: id,
            to: side.other(),
            is_plain: false,
            tos: came.class,
            at_ns: now_ns,
        };
        let whole = &came.datagram[..carry::end(came.datagram)];
        // Frames without a packet, and a tunnel's last message, pass whatever the gate, but not before packets that wait.
        let instead = if message.kind == END_MARKER || message.body.is_empty() {
            let waits = self.bearers.waits(id, held.to) && !matches!(way, Way::Ends);
            waits.then(|| self.hold(held, whole))
        } else {
            self.pass(held, message.body.len(), whole)
        };
        match instead {
            None => way.verdict(id, room),
            Some(verdict) => verdict,
        }
    }

    /// Lets a packet pass, which is none of the verdicts here, or wait, or drops it, as its bearer has it.
    #[inline]
    fn pass(&mut self, held: Held, bytes: usize, whole: &[u8]) -> Option<Verdict<'static>> {
        let (id, to, now_ns) = (held.bearer, held.to, held.at_ns);
        match self.bearers.admit(id, to, bytes, now_ns) {
            Admission::Passes => None,
            Admission::Waits => Some(self.hold(held, whole)),
            Admission::Drops(cause) => Some(self.drop(to.other(), cause)),
        }
    }

    fn hold(&mut self, held: Held, whole: &[u8]) -> Verdict<'static> {
        match self.bearers.hold(held, whole) {
            Ok(()) => Verdict::Held,
            Err(cause) => self.drop(held.to.other(), cause),
        }
    }

    /// The next packet of a bearer that is paused no more, in the order in which they came. None: there is none for now.
    pub fn poll_released(&mut self, now_ns: u64) -> Option<Verdict<'_>> {
        let held = self.bearers.release(&mut self.released)?;
        let (id, to, from) = (held.bearer, held.to, held.to.other());
        let mut room = [0; HEADER_BYTES_MAX];
        let (way, bytes) = if held.is_plain {
            let packet = &self.released[..];
            let way = carry::wrap(&self.bearers, id, to, packet, &mut room);
            (way, packet.len())
        } else {
            let datagram = &self.released[..];
            match Message::parse(datagram) {
                Ok(message) => {
                    let came = Came {
                        from,
                        class: held.tos,
                        datagram,
                        message: &message,
                    };
                    let bytes = match message.kind {
                        G_PDU => message.body.len(),
                        _ => 0,
                    };
                    let way = match self.bearers.hot(id) {
                        Some(hot) => carry::carry(&self.bearers, (id, hot), &came, &mut room),
                        None => Err(Cause::UnknownTeid),
                    };
                    (way, bytes)
                }
                Err(error) => (Err(error.into()), 0),
            }
        };
        // The gate may have been shut since a user's packet came.
        let is_open = bytes == 0 || self.bearers.hot(id).is_some_and(|hot| hot.is_open(to));
        Some(
            match way.and_then(|way| is_open.then_some(way).ok_or(Cause::Gate)) {
                Ok(way) => {
                    if bytes > 0 {
                        self.bearers.account(id, to, bytes, now_ns);
                    }
                    way.verdict(id, room)
                }
                Err(cause) => {
                    self.bearers.drops[from as usize].add(cause);
                    Verdict::Drop(cause)
                }
            },
        )
    }

    /// Something that whoever controls the function should know.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.bearers.events.pop()
    }

    /// Something that is to be sent.
    pub fn poll_sending(&mut self) -> Option<Sending> {
        self.sendings.pop_front()
    }

    /// Whether [`Function::poll_released`] or [`Function::poll_sending`] has something.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        !self.sendings.is_empty() || self.bearers.is_releasing()
    }

    /// When [`Function::handle_timeout`] has something to do; earlier than now: at once.
    #[must_use]
    pub fn next_timeout_ns(&self) -> Option<u64> {
        self.bearers.next_timeout_ns()
    }

    /// Does what is due: asks peers if they live, drops what was held for too long, looks on for tunnels that peers have lost. Takes
    /// microseconds, whatever there is.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        let (sendings, unsent) = (&mut self.sendings, &mut self.unsent);
        let Table { paths, events, .. } = &mut self.bearers;
        paths.handle_timeout(now_ns, events, |side, to, sequence| {
            push(sendings, unsent, messages::echo_request(side, to, sequence));
        });
        self.bearers.drop_old(now_ns);
        self.bearers.look_on();
    }

    /// Moves a side's tunnel to another far end. Whoever was there until now gets so many end markers behind the last packet (TS 23.501,
    /// 5.8.2.9; several, as one may be lost). Whether there is such a bearer.
    pub fn switch(&mut self, id: BearerId, side: Side, peer: Peer, markers: u32) -> bool {
        for _ in 0..markers {
            self.end_marker(id, side);
        }
        match self.bearers.get_mut(id) {
            Some(mut bearer) => {
                match side {
                    Side::Core => bearer.core = peer,
                    Side::Radio => bearer.radio = peer,
                }
                true
            }
            None => false,
        }
    }

    fn send(&mut self, sending: Sending) -> bool {
        push(&mut self.sendings, &mut self.unsent, sending)
    }
}

/// Whether there was room.
fn push(sendings: &mut VecDeque<Sending>, unsent: &mut u64, sending: Sending) -> bool {
    let has_room = sendings.len() < SENDINGS_MAX;
    if has_room {
        sendings.push_back(sending);
    } else {
        *unsent += 1;
    }
    has_room
}

const _: () =
    assert!(LONG_HEADER_BYTES + 40 < REPLY_BYTES_MAX && REPLY_BYTES_MAX < HEADER_BYTES_MAX);
