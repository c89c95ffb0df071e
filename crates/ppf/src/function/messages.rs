//! Messages of paths and tunnels: what is answered, what is told, and what is taken notice of.

use std::net::IpAddr;

use millrace_wire::gtpu::nr_ran;
use millrace_wire::gtpu::path::{self, ErrorIndication, TunnelStatus};
use millrace_wire::gtpu::pdu_session::Frame;
use millrace_wire::gtpu::{
    ECHO_REQUEST, ECHO_RESPONSE, END_MARKER, ERROR_INDICATION, EXTENSION_NR_RAN,
    EXTENSION_PDU_SESSION, EXTENSION_UDP_PORT, EXTENSIONS, G_PDU, Header, LONG_HEADER_BYTES,
    Message, PORT, SUPPORTED_EXTENSIONS, emit_extension,
};

use super::{Function, Outer, REPLY_BYTES_MAX, Reply, SENDINGS_MAX, Verdict, carry};
use crate::bearer::{BearerId, Side};
use crate::cause::Cause;
use crate::delivery::State;
use crate::event::{Event, Sending};
use crate::mark;
use crate::table::hot::Hot;

/// Bytes of a delivery status, with as many ranges as are remembered.
const STATUS_BYTES_MAX: usize = 256;

/// Asks a peer whether it lives.
pub(super) fn echo_request(side: Side, to: IpAddr, sequence: u16) -> Sending {
    let header = Header {
        kind: ECHO_REQUEST,
        teid: 0,
        sequence: Some(sequence),
        extension: 0,
    };
    let mut bytes = vec![0; LONG_HEADER_BYTES];
    // There is room.
    let _ = header.emit(0, &mut bytes);
    Sending::Datagram {
        side,
        from: None,
        to,
        class: 0,
        bytes,
    }
}

impl Function {
    /// A message that is of no packet.
    pub(super) fn handle_message<'a>(
        &mut self,
        outer: &Outer,
        message: &Message<'a>,
        now_ns: u64,
    ) -> Verdict<'a> {
        if carry::must_understand(message).is_err() {
            return self.tell_known(outer, now_ns);
        }
        match message.kind {
            ECHO_REQUEST => Verdict::Reply(answer_echo(outer, message)),
            ECHO_RESPONSE => {
                let (side, source) = (outer.side, outer.source);
                let events = &mut self.bearers.events;
                let paths = &mut self.bearers.paths;
                let restarts = path::parse_restart_counter(message.body);
                let said = (message.sequence, restarts);
                paths.handle_response(side, source, said, events);
                Verdict::Alive(message.sequence)
            }
            ERROR_INDICATION => self.handle_error(outer, message),
            SUPPORTED_EXTENSIONS => match path::parse_supported_extensions(message.body) {
                Ok(kinds) => {
                    // Of who is sent nothing nobody has to know more.
                    if self.bearers.paths.find(outer.side, outer.source).is_some() {
                        let event = Event::Extensions(outer.side, outer.source, kinds.into());
                        self.bearers.events.push(event);
                    }
                    Verdict::Done
                }
                Err(error) => self.drop(outer.side, error.into()),
            },
            _ => self.handle_status(outer, message),
        }
    }

    fn handle_error<'a>(&mut self, outer: &Outer, message: &Message<'a>) -> Verdict<'a> {
        let indication = match ErrorIndication::parse(message.body) {
            Ok(indication) => indication,
            Err(error) => return self.drop(outer.side, error.into()),
        };
        // The address that was sent to is in it; who says so may have another (TS 29.281, 7.3.1).
        let Some(path) = self.bearers.paths.find(outer.side, indication.peer) else {
            return self.drop(outer.side, Cause::ErrorUnknown);
        };
        self.bearers.look_for(path, indication.teid);
        Verdict::Lost(indication)
    }

    fn handle_status<'a>(&mut self, outer: &Outer, message: &Message<'a>) -> Verdict<'a> {
        let (id, side) = BearerId::of(message.teid);
        if self.bearers.hot(id).is_none() {
            return self.drop(outer.side, Cause::UnknownTeid);
        }
        if side != outer.side {
            return self.drop(outer.side, Cause::WrongSide);
        }
        match TunnelStatus::parse(message.body) {
            Ok(status) => {
                self.bearers
                    .events
                    .push(Event::TunnelStatus(id, side, status));
                Verdict::Done
            }
            Err(error) => self.drop(outer.side, error.into()),
        }
    }

    /// A message for no tunnel. Its sender is told if it is a packet's, and names a tunnel that there might be.
    pub(super) fn handle_unknown(
        &mut self,
        outer: &Outer,
        message: &Message<'_>,
        now_ns: u64,
    ) -> Verdict<'static> {
        match (message.kind, message.teid) {
            (END_MARKER, _) => self.drop(outer.side, Cause::EndMarkerUnknown),
            (_, 0) => self.drop(outer.side, Cause::ZeroTeid),
            (_, teid) => self.tell(outer, Cause::UnknownTeid, now_ns, |reply| {
                reply.say_lost(teid, outer.destination, outer.source_port);
            }),
        }
    }

    /// Tells a message's sender which extension headers are understood, unless that was told too often.
    pub(super) fn tell_known(&mut self, outer: &Outer, now_ns: u64) -> Verdict<'static> {
        self.tell(outer, Cause::Comprehension, now_ns, Reply::say_known)
    }

    /// Drops a message, and tells its sender why, unless that was told too often.
    fn tell(
        &mut self,
        outer: &Outer,
        cause: Cause,
        now_ns: u64,
        say: impl FnOnce(&mut Reply),
    ) -> Verdict<'static> {
        let dropped = self.drop(outer.side, cause);
        if !self.errors.allows(self.settings.errors_per_second, now_ns) {
            return dropped;
        }
        let mut reply = Reply::new(outer, PORT);
        say(&mut reply);
        Verdict::Reply(reply)
    }

    /// Follows what becomes of a bearer's packets, if that is wanted; whether a message says something of it.
    pub(super) fn follow(
        &mut self,
        id: BearerId,
        side: Side,
        message: &Message<'_>,
        now_ns: u64,
    ) -> bool {
        let Some(delivery) = self.bearers.delivery_mut(id) else {
            return false;
        };
        let (mut is_of_it, mut polls) = (false, false);
        let containers = message
            .extensions
            .filter(|one| one.kind == EXTENSION_NR_RAN);
        for container in containers {
            match nr_ran::Frame::parse(container.content) {
                Some(nr_ran::Frame::UserData(frame)) => {
                    delivery.handle_user_data(&frame);
                    polls |= frame.polls;
                }
                Some(nr_ran::Frame::Delivery(status)) => delivery.handle_status(&status),
                Some(nr_ran::Frame::Assistance(_)) | None => continue,
            }
            is_of_it = true;
        }
        if polls && side == Side::Core && delivery.may_say(now_ns) {
            self.tell_delivery(id, now_ns);
        }
        is_of_it
    }

    /// Tells who sends what became of it, if this is where the radio is: no tunnel leads on to another node, which would say so (TS 38.425,
    /// 5.4.2). What is wanted is what may be held for the bearer: packets that need not wait leave at once.
    fn tell_delivery(&mut self, id: BearerId, now_ns: u64) {
        // Whoever polls leaves room for what must not be lost, such as echo requests and end markers.
        if self.sendings.len() >= SENDINGS_MAX / 2 {
            return;
        }
        let hot = self.bearers.hot(id).copied();
        let Some(hot) = hot.filter(|hot| hot.is_plain(Side::Radio)) else {
            return;
        };
        let state = State {
            desired_bytes: self.bearers.room_to_hold(id, Side::Radio).unwrap_or(0),
            ..State::default()
        };
        let Some(delivery) = self.bearers.delivery(id) else {
            return;
        };
        let (mut content, mut extension) = ([0; STATUS_BYTES_MAX], [0; STATUS_BYTES_MAX + 4]);
        let mut ranges = Vec::new();
        let frame = nr_ran::Frame::Delivery(delivery.status(&state, &mut ranges));
        let count = frame.emit(&mut content);
        let count = count.and_then(|count| emit_extension(&content[..count], 0, &mut extension));
        let header = (G_PDU, EXTENSION_NR_RAN, &extension[..count.unwrap_or(0)]);
        if self.send_tunnelled(&hot, Side::Core, header, &[])
            && let Some(delivery) = self.bearers.delivery_mut(id)
        {
            delivery.handle_said(now_ns);
        }
    }

    /// Sends an end marker to a tunnel's far end: nothing more comes by this path (TS 29.281, 7.3.2). Whether there is such a tunnel.
    pub fn end_marker(&mut self, id: BearerId, side: Side) -> bool {
        let hot = self.bearers.hot(id).copied();
        let Some(hot) = hot.filter(|hot| !hot.is_plain(side)) else {
            return false;
        };
        self.send_tunnelled(&hot, side, (END_MARKER, 0, &[]), &[]);
        true
    }

    /// Sends a packet of our own to where another came from, in the same QoS flow.
    pub(super) fn send_back(
        &mut self,
        id: BearerId,
        side: Side,
        message: Option<&Message<'_>>,
        packet: Vec<u8>,
    ) {
        let Some(message) = message else {
            self.send(Sending::Plain {
                side,
                bytes: packet,
            });
            return;
        };
        let Some(hot) = self.bearers.hot(id).copied() else {
            return;
        };
        let mut extensions = message.extensions;
        let container = extensions.find(|one| one.kind == EXTENSION_PDU_SESSION);
        let frame = container.and_then(|container| Frame::parse(container.content));
        let mut extension = [0; 8];
        let put = |frame: Frame| carry::put_container(side, frame.qfi, None, &mut extension).ok();
        let count = frame.and_then(put).unwrap_or(0);
        let header = (G_PDU, EXTENSION_PDU_SESSION, &extension[..count]);
        self.send_tunnelled(&hot, side, header, &packet);
    }

    /// Sends a message of a kind, with an extension header of a kind, if that has any bytes, to a tunnel's far end. Whether there is room.
    fn send_tunnelled(
        &mut self,
        hot: &Hot,
        side: Side,
        (kind, extension_kind, extension): (u8, u8, &[u8]),
        packet: &[u8],
    ) -> bool {
        let Some(to) = self.bearers.paths.address(hot.path(side)) else {
            return false;
        };
        let header = Header {
            kind,
            teid: hot.teid(side),
            sequence: None,
            extension: match extension {
                [] => 0,
                _ => extension_kind,
            },
        };
        let mut bytes = vec![0; header.bytes()];
        if header
            .emit(extension.len() + packet.len(), &mut bytes)
            .is_none()
        {
            return false;
        }
        bytes.extend_from_slice(extension);
        bytes.extend_from_slice(packet);
        let class = mark::encapsulated(hot.marking[side as usize], mark::class_of(packet));
        self.send(Sending::Datagram {
            side,
            from: None,
            to,
            class,
            bytes,
        })
    }
}

/// The answer to an echo has its sequence number (TS 29.281, 7.2.2), and goes to the port that it came from (4.4.2).
fn answer_echo(outer: &Outer, message: &Message<'_>) -> Reply {
    let mut reply = Reply::new(outer, outer.source_port);
    let body = path::emit_echo_response();
    reply.say(ECHO_RESPONSE, message.sequence.unwrap_or(0), |bytes| {
        bytes[..body.len()].copy_from_slice(&body);
        Some(body.len())
    });
    reply
}

impl Reply {
    fn new(outer: &Outer, to_port: u16) -> Reply {
        Reply {
            from: outer.destination,
            to: outer.source,
            to_port,
            bytes: [0; REPLY_BYTES_MAX],
            length: 0,
        }
    }

    /// Writes a message of the path: its body, and its header.
    fn say(&mut self, kind: u8, sequence: u16, body: impl FnOnce(&mut [u8]) -> Option<usize>) {
        let header = Header {
            kind,
            teid: 0,
            sequence: Some(sequence),
            extension: 0,
        };
        // There is room for the longest.
        let length = body(&mut self.bytes[LONG_HEADER_BYTES..]).unwrap_or(0);
        let header = header.emit(length, &mut self.bytes).unwrap_or(0);
        self.length = header + length;
    }

    /// With the port that the packet came from, by which its sender may tell one of its processors (TS 29.281, 5.2.2.1).
    fn say_lost(&mut self, teid: u32, peer: IpAddr, port: u16) {
        let indication = ErrorIndication { teid, peer };
        let header = Header {
            kind: ERROR_INDICATION,
            teid: 0,
            sequence: Some(0),
            extension: EXTENSION_UDP_PORT,
        };
        let (start, rest) = self.bytes.split_at_mut(LONG_HEADER_BYTES);
        let extension = emit_extension(&port.to_be_bytes(), 0, rest).unwrap_or(0);
        let body = indication.emit(&mut rest[extension..]).unwrap_or(0);
        let written = header.emit(extension + body, start).unwrap_or(0);
        self.length = written + extension + body;
    }

    fn say_known(&mut self) {
        self.say(SUPPORTED_EXTENSIONS, 0, |bytes| {
            path::emit_supported_extensions(&EXTENSIONS, bytes)
        });
    }
}
