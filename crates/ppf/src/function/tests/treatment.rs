//! What bearers have beside tunnels: pauses, limits, thresholds, and what became of packets.

use super::*;

#[test]
fn packets_wait_while_a_bearer_is_paused_and_come_in_order() {
    let mut made = bearer();
    made.paused = [false, true];
    let (mut function, id) = with(made);
    let teid = id.teid(Side::Core);
    let packets: Vec<_> = (0..5u8)
        .map(|number| message(G_PDU, teid, &[(0x85, &[0, number])], &[number; 300]))
        .collect();
    for packet in &packets[..3] {
        assert_eq!(function.handle(&from(Side::Core), packet, 0), Verdict::Held);
    }
    assert_eq!(
        function.poll_event(),
        Some(Event::FirstHeld(id, Side::Radio))
    );
    assert_eq!(function.poll_event(), None);
    // The other direction passes.
    let up = message(G_PDU, id.teid(Side::Radio), &[], b"up");
    assert!(matches!(
        function.handle(&from(Side::Radio), &up, 0),
        Verdict::Relay { .. }
    ));
    let last = message(END_MARKER, teid, &[], b"");
    assert_eq!(function.handle(&from(Side::Core), &last, 0), Verdict::Held);
    assert_eq!(function.poll_released(0), None);
    assert_eq!(function.bearers.held(id, Side::Radio), 4);
    assert_eq!(function.bearers.get(id).unwrap().usage[1], Usage::default());

    // Meanwhile the tunnel has moved.
    assert!(function.switch(id, Side::Radio, peer(12, 0xb0), 0));
    function.bearers.get_mut(id).unwrap().paused = [false; 2];
    // What comes now comes behind what waits.
    assert_eq!(
        function.handle(&from(Side::Core), &packets[3], 0),
        Verdict::Held
    );
    for number in [0, 1, 2] {
        let (_, teid, _, sent) = relayed(function.poll_released(0).unwrap());
        let sent = Message::parse(&sent).unwrap();
        assert_eq!((teid, sent.body), (0xb0, &[number; 300][..]));
        assert_eq!(extensions(&sent), [(0x85, vec![0, number])]);
    }
    let sent = relayed(function.poll_released(0).unwrap()).3;
    assert_eq!(Message::parse(&sent).unwrap().kind, END_MARKER);
    let sent = relayed(function.poll_released(0).unwrap()).3;
    assert_eq!(Message::parse(&sent).unwrap().body[0], 3);
    assert_eq!(function.poll_released(0), None);
    assert!(matches!(
        function.handle(&from(Side::Core), &packets[4], 0),
        Verdict::Relay { .. }
    ));
    assert_eq!(function.bearers.get(id).unwrap().usage[1].packets, 5);
}

/// One that has more than its line takes the long way, whatever that is.
#[test]
fn a_bearer_that_was_paused_has_its_line_only_once_nothing_waits() {
    let (mut function, id) = with(bearer());
    let sides = [Side::Core, Side::Radio];
    for limit in [Limit::default(), Limit::packets(1_000)] {
        function.bearers.get_mut(id).unwrap().paused = [true; 2];
        function.bearers.get_mut(id).unwrap().limits[0] = limit;
        for side in sides.into_iter().cycle().take(5) {
            let came = message(G_PDU, id.teid(side), &[], b"packet");
            assert_eq!(function.handle(&from(side), &came, 0), Verdict::Held);
        }
        function.bearers.get_mut(id).unwrap().paused = [false; 2];
        for left in (0..5).rev() {
            assert!(matches!(
                function.poll_released(0),
                Some(Verdict::Relay { .. })
            ));
            let is_kept = left > 0 || !limit.is_none();
            assert_eq!(function.bearers.extra_bytes().0, usize::from(is_kept));
        }
        assert_eq!(function.poll_released(0), None);
    }
    // What is too old when the pause ends leaves nothing behind either.
    function.bearers.get_mut(id).unwrap().limits[0] = Limit::default();
    function.bearers.get_mut(id).unwrap().paused = [true; 2];
    let came = message(G_PDU, id.teid(Side::Core), &[], b"packet");
    let verdict = function.handle_at(&from(Side::Core), 0, &came, 0);
    assert_eq!(verdict, Verdict::Held);
    function.bearers.get_mut(id).unwrap().paused = [false; 2];
    function.handle_timeout(11 * SECOND);
    assert_eq!(function.drops(Side::Core).of(Cause::HeldAge), 1);
    assert_eq!(function.bearers.extra_bytes().0, 0);
}

#[test]
fn what_waits_does_not_pass_a_gate_that_is_shut_meanwhile() {
    let mut made = bearer();
    made.paused = [false, true];
    let (mut function, id) = with(made);
    let teid = id.teid(Side::Core);
    for (kind, body) in [(G_PDU, &b"late"[..]), (END_MARKER, b"")] {
        let message = message(kind, teid, &[], body);
        assert_eq!(
            function.handle(&from(Side::Core), &message, 0),
            Verdict::Held
        );
    }
    {
        let mut bearer = function.bearers.get_mut(id).unwrap();
        (bearer.paused, bearer.gates) = ([false; 2], [true, false]);
    }
    assert_eq!(function.poll_released(0), Some(Verdict::Drop(Cause::Gate)));
    let sent = relayed(function.poll_released(0).unwrap()).3;
    assert_eq!(Message::parse(&sent).unwrap().kind, END_MARKER);
    assert_eq!(function.bearers.get(id).unwrap().usage[1].packets, 0);
    assert_eq!(function.drops(Side::Core).of(Cause::Gate), 1);
}

#[test]
fn what_is_held_for_too_long_or_of_nobody_is_dropped() {
    let mut made = bearer();
    made.paused = [false, true];
    let (mut function, id) = with(made.clone());
    let other = function.bearers.add(made).unwrap();
    for (id, now_ns) in [(id, 0), (other, SECOND), (id, 2 * SECOND)] {
        let came = message(G_PDU, id.teid(Side::Core), &[], b"packet");
        let verdict = function.handle_at(&from(Side::Core), 0, &came, now_ns);
        assert_eq!(verdict, Verdict::Held);
    }
    assert_eq!(function.next_timeout_ns(), Some(10 * SECOND));
    function.handle_timeout(11 * SECOND);
    assert_eq!(function.drops(Side::Core).of(Cause::HeldAge), 2);
    assert_eq!(function.bearers.held(id, Side::Radio), 1);
    function.bearers.remove(id);
    assert_eq!(function.drops(Side::Core).of(Cause::HeldGone), 1);
    assert_eq!(function.next_timeout_ns(), None);
}

#[test]
fn a_paused_bearer_holds_so_many_and_no_more() {
    let hold = HoldLimits {
        packets_per_bearer: 3,
        bytes_per_bearer: 1_000,
        bytes: 2_560,
        ..HoldLimits::default()
    };
    let settings = Settings {
        hold,
        ..Settings::default()
    };
    let mut function = Function::with_settings(settings);
    let mut made = bearer();
    made.paused = [false, true];
    let ids: Vec<_> = (0..4)
        .map(|_| function.bearers.add(made.clone()).unwrap())
        .collect();
    let mut hold = |number: usize, bytes: usize| {
        let came = message(G_PDU, ids[number].teid(Side::Core), &[], &vec![0; bytes]);
        match function.handle(&from(Side::Core), &came, 0) {
            Verdict::Held => Ok(()),
            Verdict::Drop(cause) => Err(cause),
            verdict => panic!("{verdict:?}"),
        }
    };
    assert_eq!(hold(0, 500), Ok(()));
    assert_eq!(hold(0, 500), Err(Cause::HeldBytes));
    assert_eq!((hold(0, 10), hold(0, 10)), (Ok(()), Ok(())));
    assert_eq!(hold(0, 10), Err(Cause::HeldPackets));
    // Ten blocks: four are used.
    assert_eq!((hold(1, 900), hold(2, 400)), (Ok(()), Ok(())));
    assert_eq!(hold(3, 10), Err(Cause::HeldMemory));
}

#[test]
fn bearers_and_users_have_limits() {
    let (mut function, _) = with(bearer());
    let user = function
        .bearers
        .add_meter([Limit::default(), Limit::bytes(1_000_000)]);
    let mut made = bearer();
    made.user = Some(user);
    let mut limited = made.clone();
    limited.limits[Side::Radio as usize] = Limit::bytes(300_000);
    let ids = [limited, made].map(|made| function.bearers.add(made).unwrap());
    // More than the user may have, and far more than the first bearer, for ten seconds.
    let (mut passed, mut causes) = ([0u64; 2], [0u64; 2]);
    for number in 0..24_000u64 {
        let which = number as usize % 2;
        let came = message(G_PDU, ids[which].teid(Side::Core), &[], &[0; 1_000]);
        let now_ns = number * 10 * SECOND / 24_000;
        match function.handle_at(&from(Side::Core), 0, &came, now_ns) {
            Verdict::Relay { .. } => passed[which] += 1_000,
            Verdict::Drop(Cause::BearerLimit) => causes[0] += 1,
            Verdict::Drop(Cause::UserLimit) => causes[1] += 1,
            verdict => panic!("{verdict:?}"),
        }
    }
    let all = passed[0] + passed[1];
    // Ten million and a burst.
    assert!(all.abs_diff(10_020_000) < 20_000, "{passed:?}");
    assert!(passed[0] <= 3_015_000, "{passed:?}");
    assert!(causes.iter().all(|count| *count > 1_000), "{causes:?}");
    assert!(!function.bearers.remove_meter(user));
    for id in ids {
        function.bearers.remove(id);
    }
    assert!(function.bearers.remove_meter(user));
}

#[test]
fn thresholds_are_reported() {
    for (thresholds, due, packets) in [
        (
            Thresholds {
                bytes: 1_000,
                ..Thresholds::default()
            },
            Due::Bytes,
            10,
        ),
        (
            Thresholds {
                packets: 7,
                ..Thresholds::default()
            },
            Due::Packets,
            7,
        ),
        (
            Thresholds {
                seconds: 3,
                ..Thresholds::default()
            },
            Due::Seconds,
            5,
        ),
    ] {
        let mut made = bearer();
        made.thresholds = thresholds;
        let (mut function, id) = with(made);
        let mut reports = Vec::new();
        for number in 0..30 {
            let side = Side::BOTH[number % 2];
            let came = message(G_PDU, id.teid(side), &[], &[0; 100]);
            // Two packets in a second.
            function.handle_at(&from(side), 0, &came, number as u64 * SECOND / 2);
            while let Some(event) = function.poll_event() {
                let Event::Usage(report) = event else {
                    panic!("{event:?}");
                };
                assert_eq!((report.bearer, report.due), (id, due));
                let usage = report.usage;
                assert_eq!(usage[0].bytes, usage[0].packets * 100);
                reports.push(usage[0].packets + usage[1].packets);
            }
        }
        assert_eq!(reports.first(), Some(&packets), "{due:?}: {reports:?}");
        assert!(reports.len() > 2, "{due:?}: {reports:?}");
        assert_eq!(function.bearers.get(id).unwrap().active_s, 15);
    }
}

/// By who has the radio: not by who stands between, for whom somebody else does.
#[test]
fn what_became_of_packets_is_told_to_who_asks() {
    let mut made = Bearer::new(peer(10, 0xc0), Peer::plain(Ipv4Addr::from(USER).into()));
    made.follows_delivery = true;
    let (mut function, id) = with(made.clone());
    made.radio = peer(11, 0xa0);
    let between = function.bearers.add(made).unwrap();
    let packet = v4_packet(SERVER, USER, 0, b"hello");
    let mut say = |id: BearerId, (sequence, second): (u32, u64), polls: bool, packet: &[u8]| {
        let mut content = [0; 64];
        let frame = nr_ran::Frame::UserData(UserData {
            sequence,
            polls,
            ..UserData::default()
        });
        let count = frame.emit(&mut content).unwrap();
        let container: (u8, &[u8]) = (EXTENSION_NR_RAN, &content[..count]);
        let came = message(G_PDU, id.teid(Side::Core), &[container], packet);
        let is_done = function.handle(&from(Side::Core), &came, second) == Verdict::Done;
        (is_done, function.poll_sending())
    };
    assert_eq!(say(id, (3, 0), false, &packet), (false, None));
    assert_eq!(say(between, (3, 0), true, &packet), (false, None));
    for (second, sequence, body, lost) in [
        (1, 7, &packet[..], Some([(4, 6)])),
        // A question alone is no packet that was dropped.
        (2, 10, &[], Some([(8, 8)])),
        (3, 12, &[], None),
    ] {
        // Who asks all the time is answered now and then.
        if sequence > 7 {
            assert_eq!(say(id, (sequence - 1, second - 1), true, body).1, None);
        }
        let (is_done, sent) = say(id, (sequence, second), true, body);
        assert_eq!(is_done, body.is_empty());
        let Some(Sending::Datagram {
            side, to, bytes, ..
        }) = sent
        else {
            panic!("{sequence}: nothing was sent");
        };
        assert_eq!((side, to), (Side::Core, address(10)));
        let status = Message::parse(&bytes).unwrap();
        assert_eq!(
            (status.kind, status.teid, status.body),
            (G_PDU, 0xc0, &[][..])
        );
        let (kind, content) = extensions(&status)[0].clone();
        assert_eq!(kind, EXTENSION_NR_RAN);
        let Some(nr_ran::Frame::Delivery(status)) = nr_ran::Frame::parse(&content) else {
            panic!("{content:?}");
        };
        let ranges = status.lost.map(|lost| lost.iter().collect::<Vec<_>>());
        assert_eq!(ranges.as_deref(), lost.as_ref().map(|lost| &lost[..]));
        assert_eq!(status.desired_bytes, HoldLimits::default().bytes_per_bearer);
    }
    let delivery = function.bearers.delivery(id).unwrap();
    assert_eq!((delivery.said(), delivery.missing()), (3, 0));
    assert_eq!(function.drops(Side::Core).total(), 0);
    assert_eq!(function.bearers.delivery(between).unwrap().said(), 0);
}

#[test]
fn what_became_of_packets_is_followed() {
    let mut made = bearer();
    made.follows_delivery = true;
    let (mut function, id) = with(made);
    let mut say = |side: Side, frame: nr_ran::Frame<'_>| {
        let mut content = [0; 64];
        let count = frame.emit(&mut content).unwrap();
        let container: (u8, &[u8]) = (EXTENSION_NR_RAN, &content[..count]);
        let came = message(G_PDU, id.teid(side), &[container], b"");
        let sent = relayed(function.handle(&from(side), &came, 0)).3;
        let sent = Message::parse(&sent).unwrap();
        assert_eq!(extensions(&sent)[0].1[..count], content[..count]);
    };
    for sequence in [0, 1, 4] {
        say(
            Side::Core,
            nr_ran::Frame::UserData(UserData {
                sequence,
                ..UserData::default()
            }),
        );
    }
    say(
        Side::Radio,
        nr_ran::Frame::Delivery(DeliveryStatus {
            desired_bytes: 70_000,
            transmitted: Some(4),
            delivered: Some(1),
            ..DeliveryStatus::default()
        }),
    );
    let delivery = function.bearers.delivery(id).unwrap();
    assert_eq!(delivery.lost(), [(2, 3)]);
    let told = &delivery.told;
    assert_eq!(
        (told.desired_bytes, told.transmitted, told.delivered),
        (70_000, Some(4), Some(1))
    );
    // Frames without a packet are no user's.
    assert_eq!(
        function.bearers.get(id).unwrap().usage,
        [Usage::default(); 2]
    );
}
