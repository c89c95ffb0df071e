//! How packets go on.

use millrace_wire::gtpu::pdu_session::{Direction, Frame};

use super::*;

#[test]
fn a_packet_goes_on_by_the_other_tunnel() {
    let (mut function, id) = with(bearer());
    for (side, teid) in [(Side::Core, 0xa0), (Side::Radio, 0xc0)] {
        let container: (u8, &[u8]) = (EXTENSION_PDU_SESSION, &[0, 9]);
        // The second is left out, the third is handed on.
        let extensions_sent = [container, (0x40, &[1, 2]), (0x20, &[3, 4])];
        let came = message(G_PDU, id.teid(side), &extensions_sent, b"packet");
        let (to, peer, _, sent) = relayed(function.handle(&from(side), &came, 0));
        assert_eq!((to, peer), (side.other(), teid));
        let sent = Message::parse(&sent).unwrap();
        assert_eq!(
            (sent.kind, sent.teid, sent.body),
            (G_PDU, teid, &b"packet"[..])
        );
        assert_eq!((sent.sequence, sent.npdu), (None, None));
        assert_eq!(extensions(&sent), [(0x85, vec![0, 9]), (0x20, vec![3, 4])]);
    }
    let usage = function.bearers.get(id).unwrap().usage;
    assert!(
        usage
            .iter()
            .all(|usage| (usage.packets, usage.bytes) == (1, 6))
    );
}

#[test]
fn extension_headers_that_stay_are_not_copied_however_long_they_are() {
    let (mut function, id) = with(bearer());
    let long = [0x77; 1_018];
    let sent_extensions: [(u8, &[u8]); 2] = [(EXTENSION_NR_RAN, &long), (0x81, &[1, 2])];
    let came = message(G_PDU, id.teid(Side::Core), &sent_extensions, b"packet");
    let Verdict::Relay { header, body, .. } = function.handle(&from(Side::Core), &came, 0) else {
        panic!("not relayed");
    };
    assert_eq!((header.1, body.as_ptr()), (12, came[12..].as_ptr()));
    let sent = [&header.0[..12], body].concat();
    let sent = Message::parse(&sent).unwrap();
    assert_eq!(
        extensions(&sent),
        [(0x84, long.to_vec()), (0x81, vec![1, 2])]
    );
    // What follows the message in its datagram is nobody's.
    let longer = [&came[..], b"more"].concat();
    let again = relayed(function.handle(&from(Side::Core), &longer, 0)).3;
    assert_eq!(Message::parse(&again).unwrap().body, b"packet");
    assert!(again.ends_with(b"packet"));
}

#[test]
fn numbers_go_on_only_where_data_is_forwarded() {
    for forwards in [false, true] {
        let mut made = bearer();
        made.forwards_numbers = forwards;
        let (mut function, id) = with(made);
        for sent_extensions in [&[][..], &[(0x20, &[1, 2][..])]] {
            let came = message(G_PDU, id.teid(Side::Core), sent_extensions, b"packet");
            let sent = relayed(function.handle(&from(Side::Core), &came, 0)).3;
            let sent = Message::parse(&sent).unwrap();
            let wanted = forwards.then_some((7, 3));
            assert_eq!(sent.sequence.zip(sent.npdu), wanted);
            assert_eq!(sent.body, b"packet");
        }
    }
}

#[test]
fn flows_are_kept_removed_set_and_mapped() {
    let mut map = [None; 64];
    map[9] = Some(33);
    let mapped = || Flows::Mapped(Box::new(map));
    let container: (u8, &[u8]) = (EXTENSION_PDU_SESSION, &[0, 0x49]);
    let other: (u8, &[u8]) = (0x20, &[1, 2]);
    let both = [(0x85, vec![0, 0x49]), (0x20, vec![1, 2])];
    let set = |second: u8| [(0x85, vec![0, second]), (0x20, vec![1, 2])];
    for (flows, came, wanted) in [
        (Flows::Kept, vec![container, other], both.to_vec()),
        (Flows::Removed, vec![container, other], both[1..].to_vec()),
        (Flows::Removed, vec![container], vec![]),
        (Flows::Set(5), vec![container, other], set(0x45).to_vec()),
        (Flows::Set(5), vec![other], set(5).to_vec()),
        (Flows::Set(5), vec![], set(5)[..1].to_vec()),
        (
            mapped(),
            vec![other, container],
            vec![(0x20, vec![1, 2]), (0x85, vec![0, 0x61])],
        ),
    ] {
        let mut made = bearer();
        made.flows[Side::Radio as usize] = flows;
        let (mut function, id) = with(made);
        let came = message(G_PDU, id.teid(Side::Core), &came, b"packet");
        let sent = relayed(function.handle(&from(Side::Core), &came, 0)).3;
        let sent = Message::parse(&sent).unwrap();
        assert_eq!((extensions(&sent), sent.body), (wanted, &b"packet"[..]));
    }
    let mut made = bearer();
    made.flows[Side::Radio as usize] = mapped();
    let (mut function, id) = with(made);
    let other_flow: (u8, &[u8]) = (EXTENSION_PDU_SESSION, &[0, 8]);
    for came in [vec![other_flow], vec![other], vec![]] {
        let came = message(G_PDU, id.teid(Side::Core), &came, b"packet");
        let verdict = function.handle(&from(Side::Core), &came, 0);
        assert_eq!(verdict, Verdict::Drop(Cause::Flow));
    }
}

/// What a container that came says is who wrote it's; one that is written says it as the bearer has it (TS 38.415, 5.5.2.1).
#[test]
fn containers_that_are_written_have_the_reflective_indicator_and_the_paging_policy() {
    let came: (u8, &[u8]) = (EXTENSION_PDU_SESSION, &[0, 0x80 | 9, 6 << 5, 0, 0, 0]);
    for (reflective, policy) in [
        (false, None),
        (true, None),
        (false, Some(0)),
        (true, Some(7)),
    ] {
        let mut made = bearer();
        made.flows = [Flows::Set(5), Flows::Set(63)];
        (made.reflective, made.paging_policy) = (reflective, policy);
        let mut user = plain();
        (user.reflective, user.paging_policy) = (reflective, policy);
        let (mut function, id) = with(made);
        function.bearers.add(user).unwrap();
        let said = |sent: &[u8]| {
            let found = extensions(&Message::parse(sent).unwrap());
            let container = found
                .into_iter()
                .find(|(kind, _)| *kind == EXTENSION_PDU_SESSION);
            Frame::parse(&container.unwrap().1).unwrap()
        };
        let wanted = |qfi| Frame {
            direction: Direction::Downlink,
            qfi,
            reflective,
            paging_policy: policy,
        };
        for extensions in [&[][..], &[(0x20, &[1, 2][..])]] {
            let came = message(G_PDU, id.teid(Side::Core), extensions, b"packet");
            let sent = relayed(function.handle(&from(Side::Core), &came, 0)).3;
            assert_eq!(said(&sent), wanted(63));
            assert_eq!(Message::parse(&sent).unwrap().body, b"packet");
        }
        let packet = v4_packet(SERVER, USER, 0, b"hello");
        let sent = relayed(function.handle_plain(Side::Core, &packet, 0)).3;
        assert_eq!(said(&sent), wanted(9));
        assert_eq!(Message::parse(&sent).unwrap().body, packet);
        // Upwards there is neither.
        let up = message(G_PDU, id.teid(Side::Radio), &[], b"packet");
        let sent = relayed(function.handle(&from(Side::Radio), &up, 0)).3;
        assert_eq!(
            extensions(&Message::parse(&sent).unwrap()),
            [(0x85, vec![0x10, 5])]
        );
        let down = message(G_PDU, id.teid(Side::Core), &[came], b"packet");
        let sent = relayed(function.handle(&from(Side::Core), &down, 0)).3;
        let kept = Frame {
            reflective: false,
            paging_policy: Some(6),
            ..wanted(63)
        };
        assert_eq!(said(&sent), kept);
    }
}

fn plain() -> Bearer {
    let mut made = Bearer::new(Peer::plain(Ipv4Addr::from(USER).into()), peer(11, 0xa0));
    made.flows[Side::Radio as usize] = Flows::Set(9);
    made
}

#[test]
fn a_user_s_packets_get_a_tunnel_and_lose_it() {
    let (mut function, id) = with(plain());
    let packet = v4_packet(SERVER, USER, 0xb8, b"hello");
    let (side, teid, class, sent) = relayed(function.handle_plain(Side::Core, &packet, 0));
    assert_eq!((side, teid, class), (Side::Radio, 0xa0, 0));
    let sent = Message::parse(&sent).unwrap();
    assert_eq!((sent.kind, sent.body), (G_PDU, &packet[..]));
    assert_eq!(extensions(&sent), [(0x85, vec![0, 9])]);

    let packet = v4_packet(USER, SERVER, 0, b"hello");
    let container: (u8, &[u8]) = (EXTENSION_PDU_SESSION, &[0x10, 9]);
    let came = message(G_PDU, id.teid(Side::Radio), &[container], &packet);
    let verdict = function.handle(&from(Side::Radio), &came, 0);
    let Verdict::Plain {
        bearer,
        side,
        header,
        body,
    } = verdict
    else {
        panic!("not plain: {verdict:?}");
    };
    assert_eq!(
        (bearer, side, header.1, body),
        (id, Side::Core, 0, &packet[..])
    );

    let spoofed = v4_packet(SERVER, USER, 0, b"hello");
    for (body, cause) in [
        (&spoofed[..], Cause::Spoofed),
        (b"what is this?", Cause::NotInternet),
        (b"", Cause::Empty),
    ] {
        let came = message(G_PDU, id.teid(Side::Radio), &[], body);
        let verdict = function.handle(&from(Side::Radio), &came, 0);
        assert_eq!(verdict, Verdict::Drop(cause));
    }
    let verdict = function.handle_plain(Side::Core, &packet, 0);
    assert_eq!(verdict, Verdict::Drop(Cause::UnknownUser));
    let last = message(END_MARKER, id.teid(Side::Radio), &[], b"");
    assert_eq!(function.handle(&from(Side::Radio), &last, 0), Verdict::Done);
}

#[test]
fn users_of_ipv6_have_a_prefix() {
    let prefix = Ipv6Addr::new(0x2001, 0xdb8, 0, 2, 0, 0, 0, 0);
    let mut made = plain();
    made.core = Peer::plain(prefix.into());
    let (mut function, id) = with(made);
    assert_eq!(
        function.bearers.get(id).unwrap().core,
        Peer::plain(prefix.into())
    );
    let packet = v6_packet(1, 2, 0, b"hello");
    assert!(matches!(
        function.handle_plain(Side::Core, &packet, 0),
        Verdict::Relay { .. }
    ));
    let came = message(
        G_PDU,
        id.teid(Side::Radio),
        &[],
        &v6_packet(2, 1, 0, b"hello"),
    );
    assert!(matches!(
        function.handle(&from(Side::Radio), &came, 0),
        Verdict::Plain { .. }
    ));
    let other = v6_packet(1, 3, 0, b"hello");
    let verdict = function.handle_plain(Side::Core, &other, 0);
    assert_eq!(verdict, Verdict::Drop(Cause::UnknownUser));
    function.bearers.remove(id);
    let verdict = function.handle_plain(Side::Core, &packet, 0);
    assert_eq!(verdict, Verdict::Drop(Cause::UnknownUser));

    // A user with addresses of both kinds.
    let mut made = plain();
    made.user_v6 = Some(prefix);
    let (mut function, id) = with(made.clone());
    assert_eq!(function.bearers.get(id), Some(made));
    for (down, up) in [
        (packet, v6_packet(2, 1, 0, b"hello")),
        (
            v4_packet(SERVER, USER, 0, b"hello"),
            v4_packet(USER, SERVER, 0, b"hello"),
        ),
    ] {
        assert!(matches!(
            function.handle_plain(Side::Core, &down, 0),
            Verdict::Relay { .. }
        ));
        let came = message(G_PDU, id.teid(Side::Radio), &[], &up);
        assert!(matches!(
            function.handle(&from(Side::Radio), &came, 0),
            Verdict::Plain { .. }
        ));
    }
}

#[test]
fn congestion_and_priority_go_in_and_out_of_tunnels() {
    let mut made = plain();
    made.marking = [Marking::Copied; 2];
    let (mut function, id) = with(made);
    let packet = v4_packet(SERVER, USER, 0xba, b"hello");
    assert_eq!(
        relayed(function.handle_plain(Side::Core, &packet, 0)).2,
        0xba
    );

    let packet = v4_packet(USER, SERVER, 0x02, b"hello");
    let came = message(G_PDU, id.teid(Side::Radio), &[], &packet);
    let Verdict::Plain { header, body, .. } = function.handle_at(&from(Side::Radio), 3, &came, 0)
    else {
        panic!("not plain");
    };
    let sent = [&header.0[..header.1], body].concat();
    assert_eq!(sent, v4_packet(USER, SERVER, 0x03, b"hello"));
    let packet = v4_packet(USER, SERVER, 0x00, b"hello");
    let came = message(G_PDU, id.teid(Side::Radio), &[], &packet);
    let verdict = function.handle_at(&from(Side::Radio), 3, &came, 0);
    assert_eq!(verdict, Verdict::Drop(Cause::Congestion));

    let mut made = bearer();
    made.marking[Side::Core as usize] = Marking::Fixed(46);
    let (mut function, id) = with(made);
    let came = message(G_PDU, id.teid(Side::Radio), &[], &packet);
    let class = relayed(function.handle_at(&from(Side::Radio), 3, &came, 0)).2;
    assert_eq!(class, 46 << 2 | 3);
}

#[test]
fn who_sends_too_long_a_packet_is_told_by_the_way_it_came() {
    let settings = Settings {
        mtu: [1_400, 1_400],
        errors_per_second: 2,
        ..Settings::default()
    };
    let mut function = Function::with_settings(settings);
    let id = function.bearers.add(plain()).unwrap();
    let relay = function.bearers.add(bearer()).unwrap();
    let packet = v4_packet(SERVER, USER, 0, &[7; 1_400]);
    for _ in 0..3 {
        let verdict = function.handle_plain(Side::Core, &packet, 0);
        assert_eq!(verdict, Verdict::Drop(Cause::TooBig));
    }
    let Some(Sending::Plain { side, bytes }) = function.poll_sending() else {
        panic!("nobody is told");
    };
    // 1 400 less 20, 8, and 16 of the tunnel's header.
    assert_eq!(
        (side, &bytes[20..22], &bytes[26..28]),
        (Side::Core, &[3, 4][..], &1356u16.to_be_bytes()[..])
    );
    assert!(function.poll_sending().is_some());
    assert_eq!(function.poll_sending(), None);

    let container: (u8, &[u8]) = (EXTENSION_PDU_SESSION, &[0x10, 9]);
    let long = v6_packet(1, 2, 0, &[7; 1_400]);
    let came = message(G_PDU, relay.teid(Side::Radio), &[container], &long);
    let verdict = function.handle(&from(Side::Radio), &came, 1);
    assert_eq!(verdict, Verdict::Drop(Cause::TooBig));
    let Some(Sending::Datagram {
        side, to, bytes, ..
    }) = function.poll_sending()
    else {
        panic!("nobody is told");
    };
    assert_eq!((side, to), (Side::Radio, address(11)));
    let said = Message::parse(&bytes).unwrap();
    assert_eq!(
        (said.teid, extensions(&said)),
        (0xa0, vec![(0x85, vec![0, 9])])
    );
    assert_eq!(
        (said.body[6], said.body[40], &said.body[44..48]),
        (58, 2, &1356u32.to_be_bytes()[..])
    );
    // Nobody is told of what may be cut up: the outer packet is.
    let mut packet = packet;
    packet[6] = 0;
    assert!(matches!(
        function.handle_plain(Side::Core, &packet, 0),
        Verdict::Relay { .. }
    ));
    assert_eq!(function.bearers.get(id).unwrap().usage[1].packets, 1);
}
