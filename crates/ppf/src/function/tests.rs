use std::net::{Ipv4Addr, Ipv6Addr};

use millrace_wire::gtpu::extension::Content;
use millrace_wire::gtpu::nr_ran::{self, DeliveryStatus, UserData};
use millrace_wire::gtpu::path::{self, TunnelStatus};
use millrace_wire::gtpu::{
    EXTENSION_NR_RAN, EXTENSION_PDCP, EXTENSION_PDU_SESSION, EXTENSIONS, Header, PORT,
    emit_extension,
};

use super::*;
use crate::bearer::{Bearer, Flows, Thresholds, Usage};
use crate::event::Due;
use crate::hold::HoldLimits;
use crate::inner::{v4_packet, v6_packet};
use crate::mark::Marking;
use crate::meter::Limit;
use crate::paths::Supervision;

mod packets;
mod treatment;

const SECOND: u64 = 1_000_000_000;
const USER: [u8; 4] = [10, 1, 2, 3];
const SERVER: [u8; 4] = [198, 51, 100, 7];

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

fn bearer() -> Bearer {
    Bearer::new(peer(10, 0xc0), peer(11, 0xa0))
}

fn with(bearer: Bearer) -> (Function, BearerId) {
    let mut function = Function::new();
    let id = function.bearers.add(bearer).unwrap();
    (function, id)
}

fn message(kind: u8, teid: u32, extensions: &[(u8, &[u8])], body: &[u8]) -> Vec<u8> {
    let mut behind = Vec::new();
    for (number, (_, content)) in extensions.iter().enumerate() {
        let next = extensions.get(number + 1).map_or(0, |next| next.0);
        let mut bytes = [0; 1024];
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
    let count = header
        .emit_numbered(Some(3), behind.len(), &mut bytes)
        .unwrap();
    [&bytes[..count], &behind].concat()
}

/// What was relayed: where to, with which class, and all of its bytes.
fn relayed(verdict: Verdict<'_>) -> (Side, u32, u8, Vec<u8>) {
    let Verdict::Relay {
        side,
        to,
        class,
        header,
        body,
        ..
    } = verdict
    else {
        panic!("not relayed, but {verdict:?}");
    };
    (side, to.teid, class, [&header.0[..header.1], body].concat())
}

fn extensions(message: &Message<'_>) -> Vec<(u8, Vec<u8>)> {
    let found = message.extensions;
    found.map(|one| (one.kind, one.content.to_vec())).collect()
}

#[test]
fn who_sends_to_no_tunnel_is_told_but_not_for_each_packet() {
    let (mut function, id) = with(bearer());
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
                assert!(said.sequence.is_some());
                let lost = ErrorIndication::parse(said.body).unwrap();
                assert_eq!((lost.teid, lost.peer), (id.teid(Side::Core), address(1)));
                let mut extensions = said.extensions;
                let port = Content::parse(&extensions.next().unwrap());
                assert_eq!(port, Some(Content::UdpPort(40_000)));
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
fn nobody_is_told_of_tunnel_0_or_of_a_last_message() {
    let (mut function, id) = with(bearer());
    function.bearers.remove(id);
    let zero = message(G_PDU, 0, &[], b"packet");
    let last = message(END_MARKER, id.teid(Side::Core), &[], b"");
    for (came, cause) in [(zero, Cause::ZeroTeid), (last, Cause::EndMarkerUnknown)] {
        let verdict = function.handle(&from(Side::Core), &came, 0);
        assert_eq!(verdict, Verdict::Drop(cause));
    }
}

#[test]
fn what_must_be_understood_and_is_not_is_told_of() {
    let (mut function, id) = with(bearer());
    let teid = id.teid(Side::Core);
    for (kind, tunnel, extension) in [(G_PDU, teid, 0xc9), (ECHO_REQUEST, 0, 0x89)] {
        let came = message(kind, tunnel, &[(extension, &[1, 2])], b"");
        let Verdict::Reply(reply) = function.handle(&from(Side::Core), &came, 0) else {
            panic!("nobody is told");
        };
        let said = Message::parse(reply.bytes()).unwrap();
        assert_eq!(said.kind, SUPPORTED_EXTENSIONS);
        assert_eq!(
            path::parse_supported_extensions(said.body),
            Ok(&EXTENSIONS[..])
        );
    }
    assert_eq!(function.drops(Side::Core).of(Cause::Comprehension), 2);
    // Whoever only relays need not understand what the end must, and understands what is forwarded during handovers.
    let came = message(
        G_PDU,
        teid,
        &[(0x89, &[1, 2]), (EXTENSION_PDCP, &[1, 2])],
        b"x",
    );
    assert!(matches!(
        function.handle(&from(Side::Core), &came, 0),
        Verdict::Relay { .. }
    ));
}

#[test]
fn gates_and_sides_are_heeded_and_a_tunnel_s_last_message_passes() {
    let (mut function, id) = with(bearer());
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
    let sent = relayed(function.handle(&from(Side::Core), &last, 0)).3;
    let sent = Message::parse(&sent).unwrap();
    assert_eq!((sent.kind, sent.sequence), (END_MARKER, None));
    assert_eq!(
        function.poll_event(),
        Some(Event::EndMarker(id, Side::Core))
    );
}

#[test]
fn echoes_are_answered_and_answers_are_told() {
    let (mut function, _) = with(bearer());
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

#[test]
fn peers_are_asked_and_who_answers_is_up() {
    let settings = Settings {
        supervision: Some(Supervision::default()),
        ..Settings::default()
    };
    let mut function = Function::with_settings(settings);
    function.bearers.add(bearer()).unwrap();
    assert_eq!(function.next_timeout_ns(), Some(0));
    function.handle_timeout(SECOND);
    let mut asked = Vec::new();
    while let Some(sending) = function.poll_sending() {
        let Sending::Datagram {
            side, to, bytes, ..
        } = sending
        else {
            panic!("no datagram");
        };
        let said = Message::parse(&bytes).unwrap();
        assert_eq!(
            (said.kind, said.teid, said.body.len()),
            (ECHO_REQUEST, 0, 0)
        );
        asked.push((side, to, said.sequence));
    }
    assert_eq!(
        asked,
        [
            (Side::Core, address(10), Some(1)),
            (Side::Radio, address(11), Some(1))
        ]
    );
    let mut answer = message(ECHO_RESPONSE, 0, &[], &[14, 0]);
    answer[8..10].copy_from_slice(&[0, 1]);
    function.handle_at(&from(Side::Radio), 0, &answer, 2 * SECOND);
    assert_eq!(
        function.poll_event(),
        Some(Event::PathUp(Side::Radio, address(11)))
    );
    for second in [4, 7, 10] {
        function.handle_timeout(second * SECOND);
    }
    assert_eq!(
        function.poll_event(),
        Some(Event::PathDown(Side::Core, address(10)))
    );
    assert_eq!(function.poll_event(), None);
}

#[test]
fn the_bearer_that_a_peer_has_lost_is_told_of() {
    let (mut function, id) = with(bearer());
    let say = |function: &mut Function, peer: IpAddr, teid| {
        let indication = ErrorIndication { teid, peer };
        let mut body = [0; 32];
        let count = indication.emit(&mut body).unwrap();
        let came = message(ERROR_INDICATION, 0, &[(0x40, &[0, 1])], &body[..count]);
        let verdict = function.handle(&from(Side::Radio), &came, 0);
        let is_taken = matches!(verdict, Verdict::Lost(_));
        while function.next_timeout_ns().is_some() {
            function.handle_timeout(0);
        }
        (is_taken, function.poll_event())
    };
    assert_eq!(say(&mut function, address(77), 0xa0), (false, None));
    assert_eq!(say(&mut function, address(11), 0xa1), (true, None));
    for _ in 0..2 {
        let lost = (true, Some(Event::Lost(id, Side::Radio)));
        assert_eq!(say(&mut function, address(11), 0xa0), lost);
        assert_eq!(say(&mut function, address(11), 0xa0), (true, None));
        // Whoever says the bearer anew, as it was, is told again.
        drop(function.bearers.get_mut(id));
    }
    assert_eq!(function.drops(Side::Radio).of(Cause::ErrorUnknown), 1);
}

#[test]
fn what_peers_say_of_themselves_and_of_tunnels_is_told() {
    let (mut function, id) = with(bearer());
    let mut body = [0; 16];
    let count = path::emit_supported_extensions(&[0x85], &mut body).unwrap();
    let came = message(SUPPORTED_EXTENSIONS, 0, &[], &body[..count]);
    assert_eq!(function.handle(&from(Side::Core), &came, 0), Verdict::Done);
    let event = Event::Extensions(Side::Core, address(10), Box::new([0x85]));
    assert_eq!(function.poll_event(), Some(event));
    let status = TunnelStatus {
        pause: true,
        resume: false,
    };
    let came = message(TUNNEL_STATUS, id.teid(Side::Core), &[], &status.emit());
    assert_eq!(function.handle(&from(Side::Core), &came, 0), Verdict::Done);
    let event = Event::TunnelStatus(id, Side::Core, status);
    assert_eq!(function.poll_event(), Some(event));
    let nobody = message(TUNNEL_STATUS, 0x7777, &[], &status.emit());
    let verdict = function.handle(&from(Side::Core), &nobody, 0);
    assert_eq!(verdict, Verdict::Drop(Cause::UnknownTeid));
}

#[test]
fn a_tunnel_that_is_switched_ends_with_markers() {
    let (mut function, id) = with(bearer());
    assert!(function.switch(id, Side::Radio, peer(12, 0xb0), 2));
    for _ in 0..2 {
        let Some(Sending::Datagram {
            side, to, bytes, ..
        }) = function.poll_sending()
        else {
            panic!("no marker");
        };
        assert_eq!((side, to), (Side::Radio, address(11)));
        // Eight bytes, and no sequence number (TS 29.281, 5.1).
        assert_eq!(bytes, [0x30, 254, 0, 0, 0, 0, 0, 0xa0]);
    }
    assert_eq!(function.poll_sending(), None);
    let came = message(G_PDU, id.teid(Side::Core), &[], b"packet");
    assert_eq!(
        relayed(function.handle(&from(Side::Core), &came, 0)).1,
        0xb0
    );
}
