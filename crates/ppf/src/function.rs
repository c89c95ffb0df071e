//! What becomes of a message.

use std::net::IpAddr;

use millrace_wire::gtpu::path::{self, ErrorIndication};
use millrace_wire::gtpu::{
    Comprehension, ECHO_REQUEST, ECHO_RESPONSE, END_MARKER, ERROR_INDICATION,
    EXTENSION_PDU_SESSION, Extension, G_PDU, Header, LONG_HEADER_BYTES, Message, PORT,
    SUPPORTED_EXTENSIONS, emit_extension, extension_bytes,
};

use crate::bearer::{Bearer, BearerId, Peer, Side, Table};
use crate::cause::{Cause, Drops};

/// Bytes of a header that is written, with its extension headers, at most.
pub const HEADER_BYTES_MAX: usize = 128;
/// Extension headers that this function says it knows.
const KNOWN: [u8; 1] = [EXTENSION_PDU_SESSION];
/// Messages about errors in a second, at most: whoever sends to tunnels that there are not is not to be answered for each packet.
const ERRORS_PER_SECOND: u32 = 100;
/// Bytes of a message of this function's own, at most.
const REPLY_BYTES_MAX: usize = 64;

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
    /// To which UDP port; it is sent from [`PORT`].
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
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Send this header and this body to a tunnel's far end.
    Relay {
        /// Of which bearer.
        bearer: BearerId,
        /// By which side's interface.
        side: Side,
        /// To whom.
        to: Peer,
        /// The header, of which so many bytes count.
        header: ([u8; HEADER_BYTES_MAX], usize),
        /// What follows it, where it came.
        body: &'a [u8],
    },
    /// Send this, and nothing else.
    Reply(Reply),
    /// Nothing, and it is counted.
    Drop(Cause),
    /// Nothing, and somebody else is to be told: the far end has no such tunnel any more.
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
    drops: [Drops; 2],
    /// In which second errors were told of, and how many.
    told: (u64, u32),
}

impl Function {
    /// One without bearers.
    #[must_use]
    pub fn new() -> Function {
        Function::default()
    }

    /// What was dropped of what came by a side's interface.
    #[must_use]
    pub fn drops(&self, side: Side) -> &Drops {
        &self.drops[side as usize]
    }

    /// Deals with a UDP datagram that came to [`PORT`], at a time in seconds from any beginning.
    #[inline]
    pub fn handle<'a>(&mut self, outer: &Outer, datagram: &'a [u8], now_s: u64) -> Verdict<'a> {
        let message = match Message::parse(datagram) {
            Ok(message) => message,
            Err(error) => return self.drop(outer.side, error.into()),
        };
        match message.kind {
            G_PDU | END_MARKER => self.relay(outer, &message, now_s),
            ECHO_REQUEST => Verdict::Reply(answer_echo(outer, &message)),
            ECHO_RESPONSE => Verdict::Alive(message.sequence),
            ERROR_INDICATION => match ErrorIndication::parse(message.body) {
                Ok(indication) => Verdict::Lost(indication),
                Err(error) => self.drop(outer.side, error.into()),
            },
            SUPPORTED_EXTENSIONS => Verdict::Done,
            _ => self.drop(outer.side, Cause::UnknownMessage),
        }
    }

    fn drop(&mut self, side: Side, cause: Cause) -> Verdict<'static> {
        self.drops[side as usize].add(cause);
        Verdict::Drop(cause)
    }

    #[inline]
    fn relay<'a>(&mut self, outer: &Outer, message: &Message<'a>, now_s: u64) -> Verdict<'a> {
        let (id, side) = BearerId::of(message.teid);
        let Some(bearer) = self.bearers.get_mut(id) else {
            return self.tell(outer, Cause::UnknownTeid, now_s, |reply| {
                reply.say_lost(message.teid, outer.destination)
            });
        };
        if side != outer.side {
            return self.drop(outer.side, Cause::WrongSide);
        }
        let to = side.other();
        let header = match header_for(bearer, to, message) {
            Ok(header) => header,
            Err(Cause::Comprehension) => {
                return self.tell(outer, Cause::Comprehension, now_s, Reply::say_known);
            }
            Err(cause) => return self.drop(outer.side, cause),
        };
        // The last message of a tunnel passes whatever the gate.
        if message.kind == G_PDU {
            if !bearer.gates[to as usize] {
                return self.drop(outer.side, Cause::Gate);
            }
            let usage = &mut bearer.usage[to as usize];
            usage.packets += 1;
            usage.bytes += message.body.len() as u64;
        }
        Verdict::Relay {
            bearer: id,
            side: to,
            to: bearer.peer(to),
            header,
            body: message.body,
        }
    }

    /// Drops a message, and tells its sender why, unless that was told too often.
    fn tell(
        &mut self,
        outer: &Outer,
        cause: Cause,
        now_s: u64,
        say: impl FnOnce(&mut Reply),
    ) -> Verdict<'static> {
        let dropped = self.drop(outer.side, cause);
        if self.told.0 != now_s {
            self.told = (now_s, 0);
        }
        if self.told.1 >= ERRORS_PER_SECOND {
            return dropped;
        }
        self.told.1 += 1;
        let mut reply = Reply::new(outer, PORT);
        say(&mut reply);
        Verdict::Reply(reply)
    }
}

/// The header that a message goes on with: what nobody has to understand and is not to be handed on is left out, as sequence numbers are,
/// which are each tunnel's own.
#[inline]
fn header_for(
    bearer: &Bearer,
    to: Side,
    message: &Message<'_>,
) -> Result<([u8; HEADER_BYTES_MAX], usize), Cause> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let mut header = Header {
        kind: message.kind,
        teid: bearer.peer(to).teid,
        sequence: None,
        extension: 0,
    };
    let stays =
        |extension: &Extension<'_>| Comprehension::of(extension.kind) != Comprehension::Discard;
    let mut extensions = message.extensions.filter(stays).peekable();
    let mut at = if let Some(first) = extensions.peek() {
        header.extension = first.kind;
        LONG_HEADER_BYTES
    } else {
        let length = header.emit(message.body.len(), &mut bytes);
        return Ok((bytes, length.ok_or(Cause::Malformed)?));
    };
    while let Some(extension) = extensions.next() {
        if Comprehension::of(extension.kind) == Comprehension::Everybody {
            return Err(Cause::Comprehension);
        }
        let next = extensions.peek().map_or(0, |next| next.kind);
        let room = bytes.get_mut(at..).ok_or(Cause::Extension)?;
        at += emit_extension(extension.content, next, room).ok_or(Cause::Extension)?;
    }
    let following = at - LONG_HEADER_BYTES + message.body.len();
    header.emit(following, &mut bytes).ok_or(Cause::Malformed)?;
    Ok((bytes, at))
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

    fn say_lost(&mut self, teid: u32, peer: IpAddr) {
        let indication = ErrorIndication { teid, peer };
        self.say(ERROR_INDICATION, 0, |bytes| indication.emit(bytes));
    }

    fn say_known(&mut self) {
        self.say(SUPPORTED_EXTENSIONS, 0, |bytes| {
            path::emit_supported_extensions(&KNOWN, bytes)
        });
    }
}

const _: () = assert!(extension_bytes(4) == 8 && LONG_HEADER_BYTES < HEADER_BYTES_MAX);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))
    }

    fn peer(last: u8, teid: u32) -> Peer {
        Peer {
            address: address(last),
            teid,
        }
    }

    fn from(side: Side) -> Outer {
        Outer {
            side,
            source: address(10 + side as u8),
            destination: address(1),
            source_port: 40_000,
        }
    }

    fn function() -> (Function, BearerId) {
        let mut function = Function::new();
        let bearer = Bearer::new(peer(10, 0xc0), peer(11, 0xa0));
        let id = function.bearers.add(bearer).unwrap();
        (function, id)
    }

    fn message(kind: u8, teid: u32, extensions: &[(u8, &[u8])], body: &[u8]) -> Vec<u8> {
        let mut behind = Vec::new();
        for (number, (_, content)) in extensions.iter().enumerate() {
            let next = extensions.get(number + 1).map_or(0, |next| next.0);
            let mut bytes = [0; 64];
            let count = emit_extension(content, next, &mut bytes).unwrap();
            behind.extend_from_slice(&bytes[..count]);
        }
        behind.extend_from_slice(body);
        let mut bytes = [0; 64];
        let header = Header {
            kind,
            teid,
            sequence: Some(7),
            extension: extensions.first().map_or(0, |first| first.0),
        };
        let count = header.emit(behind.len(), &mut bytes).unwrap();
        [&bytes[..count], &behind].concat()
    }

    #[test]
    fn a_packet_goes_on_by_the_other_tunnel() {
        let (mut function, id) = function();
        for (side, teid) in [(Side::Core, 0xa0), (Side::Radio, 0xc0)] {
            let container: (u8, &[u8]) = (EXTENSION_PDU_SESSION, &[0, 9]);
            // The second is left out, the third is handed on.
            let extensions = [container, (0x40, &[1, 2]), (0x20, &[3, 4])];
            let came = message(G_PDU, id.teid(side), &extensions, b"packet");
            let Verdict::Relay {
                bearer,
                side: to,
                to: peer,
                header,
                body,
            } = function.handle(&from(side), &came, 0)
            else {
                panic!("it is not relayed");
            };
            assert_eq!((bearer, to, peer.teid), (id, side.other(), teid));
            let sent = [&header.0[..header.1], body].concat();
            let sent = Message::parse(&sent).unwrap();
            assert_eq!(
                (sent.kind, sent.teid, sent.body),
                (G_PDU, teid, &b"packet"[..])
            );
            assert_eq!(sent.sequence, None);
            let kinds: Vec<_> = sent
                .extensions
                .map(|found| (found.kind, found.content))
                .collect();
            assert_eq!(kinds, [(0x85, &[0, 9][..]), (0x20, &[3, 4])]);
        }
        let usage = function.bearers.get(id).unwrap().usage;
        assert!(
            usage
                .iter()
                .all(|usage| (usage.packets, usage.bytes) == (1, 6))
        );
    }

    #[test]
    fn who_sends_to_no_tunnel_is_told_but_not_for_each_packet() {
        let (mut function, id) = function();
        function.bearers.remove(id);
        let came = message(G_PDU, id.teid(Side::Core), &[], b"late");
        let mut told = 0;
        for _ in 0..1000 {
            match function.handle(&from(Side::Core), &came, 5) {
                Verdict::Reply(reply) => {
                    told += 1;
                    assert_eq!(
                        (reply.to, reply.from, reply.to_port),
                        (address(10), address(1), PORT)
                    );
                    let said = Message::parse(reply.bytes()).unwrap();
                    assert_eq!((said.kind, said.teid), (ERROR_INDICATION, 0));
                    let lost = ErrorIndication::parse(said.body).unwrap();
                    assert_eq!((lost.teid, lost.peer), (id.teid(Side::Core), address(1)));
                }
                verdict => assert_eq!(verdict, Verdict::Drop(Cause::UnknownTeid)),
            }
        }
        assert_eq!(told, ERRORS_PER_SECOND);
        assert_eq!(function.drops(Side::Core).of(Cause::UnknownTeid), 1000);
        assert!(matches!(
            function.handle(&from(Side::Core), &came, 6),
            Verdict::Reply(_)
        ));
    }

    #[test]
    fn what_everybody_must_understand_and_nobody_does_is_not_handed_on() {
        let (mut function, id) = function();
        let came = message(G_PDU, id.teid(Side::Core), &[(0xc9, &[1, 2])], b"packet");
        let Verdict::Reply(reply) = function.handle(&from(Side::Core), &came, 0) else {
            panic!("nobody is told");
        };
        let said = Message::parse(reply.bytes()).unwrap();
        assert_eq!(said.kind, SUPPORTED_EXTENSIONS);
        assert_eq!(path::parse_supported_extensions(said.body), Ok(&KNOWN[..]));
        assert_eq!(function.drops(Side::Core).of(Cause::Comprehension), 1);
    }

    #[test]
    fn gates_and_sides_are_heeded_and_a_tunnel_s_last_message_passes() {
        let (mut function, id) = function();
        let teid = id.teid(Side::Core);
        let came = message(G_PDU, teid, &[], b"packet");
        assert_eq!(
            function.handle(&from(Side::Radio), &came, 0),
            Verdict::Drop(Cause::WrongSide)
        );
        function.bearers.get_mut(id).unwrap().gates = [true, false];
        assert_eq!(
            function.handle(&from(Side::Core), &came, 0),
            Verdict::Drop(Cause::Gate)
        );
        let last = message(END_MARKER, teid, &[], b"");
        assert!(matches!(
            function.handle(&from(Side::Core), &last, 0),
            Verdict::Relay { .. }
        ));
    }

    #[test]
    fn echoes_are_answered_and_answers_are_told() {
        let (mut function, _) = function();
        let echo = message(ECHO_REQUEST, 0, &[], b"");
        let Verdict::Reply(reply) = function.handle(&from(Side::Radio), &echo, 0) else {
            panic!("no answer");
        };
        assert_eq!((reply.to, reply.to_port), (address(11), 40_000));
        let said = Message::parse(reply.bytes()).unwrap();
        assert_eq!(
            (said.kind, said.sequence, said.body),
            (ECHO_RESPONSE, Some(7), &[14, 0][..])
        );
        let verdict = function.handle(&from(Side::Radio), reply.bytes(), 0);
        assert_eq!(verdict, Verdict::Alive(Some(7)));
        let unknown = message(200, 0, &[], b"");
        assert_eq!(
            function.handle(&from(Side::Core), &unknown, 0),
            Verdict::Drop(Cause::UnknownMessage)
        );
    }
}
