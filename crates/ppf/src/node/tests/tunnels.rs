//! Messages and users' packets that go on.

use millrace_wire::gtpu::{ERROR_INDICATION, Message};

use super::*;
use crate::bearer::Usage;
use crate::cause::Cause;
use crate::checksum::Sum;
use crate::ip::DESTINATION_OPTIONS;
use crate::spec::{BearerSpec, FarEnd};

#[test]
fn a_message_waits_for_its_station_and_goes_on_whole() {
    let mut world = World::new();
    let (relay, _) = bearers(&mut world.node);
    let teid = relay.teid(Side::Radio);
    let user = inner("10.0.0.1", "8.8.8.8", 60);
    let frame = datagram(RADIO, "192.0.2.9", "192.0.2.1", &g_pdu(teid, &user));
    assert!(world.come(RADIO, &frame).is_empty(), "nobody is known");
    let asked = world.poll();
    let ask = Arp::parse(&asked[0].1[14..]).unwrap();
    assert_eq!((asked.len(), asked[0].0, ask.is_request), (1, CORE, true));
    assert_eq!(
        (ask.target, ask.address),
        ([198, 51, 100, 9].into(), [198, 51, 100, 1].into())
    );
    let told = Arp {
        is_request: false,
        mac: station(CORE),
        address: ask.target,
        target_mac: ask.mac,
        target: ask.address,
    };
    let mut left = world.come(CORE, &framed(CORE, ARP, &told.emit()));
    assert_eq!(left.len(), 1, "what waited goes on");
    // And what comes then goes at once: short, as long as a head, and longer.
    for length in [0, 1, 26, 60, 61, 62, 63, 64, 100, 1400] {
        let user = inner("10.0.0.1", "8.8.8.8", length);
        let mut frame = datagram(RADIO, "192.0.2.9", "192.0.2.1", &g_pdu(teid, &user));
        // What is behind the packet is nobody's.
        frame.extend_from_slice(&[0xee; 5]);
        let more = world.come(RADIO, &frame);
        assert_eq!(more.len(), 1, "{length}");
        let (_, _, _, message) = opened(CORE, &more[0].1);
        assert_eq!(Message::parse(message).unwrap().body, user, "{length}");
        left.extend(more);
    }
    for (port, frame) in &left {
        let (ethernet, ip, udp, message) = opened(CORE, frame);
        assert_eq!((*port, ethernet.destination), (CORE, station(CORE)));
        assert_eq!(
            (ip.source, ip.destination),
            (address("198.51.100.1"), address("198.51.100.9"))
        );
        assert_eq!((udp.source, udp.destination, ip.class), (PORT, PORT, 0));
        assert_eq!(Message::parse(message).unwrap().teid, 77);
    }
    let usage = world.node.function.bearers.get(relay).unwrap().usage;
    assert_eq!(usage[Side::Core as usize].packets, 11);
}

#[test]
fn extension_headers_go_on_wherever_the_message_s_head_ends() {
    let mut world = World::new();
    let (relay, _) = bearers(&mut world.node);
    world.meet(CORE, "198.51.100.9");
    let teid = relay.teid(Side::Radio).to_be_bytes();
    for units in 1..=18_usize {
        for payload in [0, 1, 40, 300] {
            let user: Vec<u8> = (0..payload).map(|at| at as u8).collect();
            let mut extension: Vec<u8> = (0..units * 4).map(|at| 200 - at as u8).collect();
            extension[0] = units as u8;
            extension[units * 4 - 1] = 0;
            let length = (4 + extension.len() + user.len()) as u16;
            // Nobody must understand it, and it goes on.
            let options = [0, 0, 0, 0x01];
            let header = [&[0x34, G_PDU], &length.to_be_bytes()[..], &teid, &options].concat();
            let message = [header, extension.clone(), user.clone()].concat();
            let left = world.come(RADIO, &datagram(RADIO, "192.0.2.9", "192.0.2.1", &message));
            let (.., sent) = opened(CORE, &left[0].1);
            let sent = Message::parse(sent).unwrap();
            let mut extensions = sent.extensions;
            let first = extensions.next().unwrap();
            assert_eq!(
                (first.kind, first.content),
                (1, &extension[1..units * 4 - 1])
            );
            assert_eq!((sent.body, extensions.next()), (&user[..], None));
        }
    }
}

#[test]
fn between_ipv6_tunnels_checksums_are_right_or_left_out_where_it_is_said() {
    let mut world = World::new();
    let id = BearerId::of(0x402).0;
    let bearer = Bearer::new(tunnel("2001:db8:2::9", 5), tunnel("2001:db8:1::9", 6));
    world.node.put(id, bearer);
    world.meet(CORE, "2001:db8:2::9");
    let (from, to) = ("2001:db8:1::9", "2001:db8:1::1");
    let message = g_pdu(id.teid(Side::Radio), &inner("::7", "::8", 1000));
    for length in [40, 41, 100, 1040] {
        let message = g_pdu(id.teid(Side::Radio), &message[8..8 + length]);
        let left = world.come(RADIO, &datagram(RADIO, from, to, &message));
        let (_, ip, udp, sent) = opened(CORE, &left[0].1);
        assert_eq!(
            (ip.source, udp.checksum == 0),
            (address("2001:db8:2::1"), false)
        );
        assert_eq!(sent[8..], message[8..]);
    }
    let frame = datagram(RADIO, from, to, &message);
    for at in [18 + 40 + 6, 18 + 40 + 8 + 500] {
        let mut wrong = frame.clone();
        wrong[at] ^= 1;
        assert!(world.come(RADIO, &wrong).is_empty());
    }
    assert_eq!(world.dropped(RADIO, LinkCause::UdpChecksum), 2);
    let mut without = frame;
    without[18 + 46..18 + 48].fill(0);
    assert!(world.come(RADIO, &without).is_empty());
    assert_eq!(world.dropped(RADIO, LinkCause::UdpNoChecksum), 1);
    for interface in &mut world.node.interfaces {
        interface.udp_zero = true;
    }
    let left = world.come(RADIO, &without);
    assert_eq!(left[0].1[14 + 46..14 + 48], [0, 0]);
}

/// Nothing of this is the bearer's user's.
fn strangers_are_not_users(world: &mut World, user: BearerId) {
    // Somebody else's address, somebody else's packet, and no packet at all.
    for (body, cause) in [
        (inner("10.0.0.2", "8.8.8.8", 20), Cause::Spoofed),
        (vec![0; 40], Cause::NotInternet),
        (vec![], Cause::Empty),
    ] {
        let message = g_pdu(user.teid(Side::Radio), &body);
        let frame = datagram(RADIO, "192.0.2.9", "192.0.2.1", &message);
        assert!(world.come(RADIO, &frame).is_empty());
        let drops = world.node.function.drops(Side::Radio);
        assert_eq!(drops.of(cause), 1, "{cause:?}");
    }
    let nobody = framed(CORE, IPV4, &inner("8.8.8.8", "10.0.0.2", 20));
    assert!(world.come(CORE, &nobody).is_empty());
    assert_eq!(world.dropped(CORE, LinkCause::Destination), 1);
    // A tunnel where there is none: the sender is told.
    let message = g_pdu(user.teid(Side::Core), &inner("8.8.8.8", "10.0.0.1", 20));
    let frame = datagram(CORE, "198.51.100.9", "198.51.100.1", &message);
    let told = world.come(CORE, &frame);
    let (.., message) = opened(CORE, &told[0].1);
    assert_eq!(
        (told.len(), Message::parse(message).unwrap().kind),
        (1, ERROR_INDICATION)
    );
    assert_eq!(
        world.node.function.drops(Side::Core).of(Cause::UnknownTeid),
        1
    );
}

#[test]
fn users_come_and_go_without_tunnels() {
    let mut world = World::new();
    let (_, user) = bearers(&mut world.node);
    world.meet(CORE, "198.51.100.254");
    world.meet(RADIO, "192.0.2.9");
    // Up: out of the tunnel, by the gateway.
    for length in [20, 40, 1400] {
        let up = inner("10.0.0.1", "8.8.8.8", length);
        let message = g_pdu(user.teid(Side::Radio), &up);
        let left = world.come(RADIO, &datagram(RADIO, "192.0.2.9", "192.0.2.1", &message));
        let frame = Frame::parse(&left[0].1).unwrap();
        assert_eq!(
            (left[0].0, frame.destination, frame.kind),
            (CORE, station(CORE), IPV4)
        );
        assert_eq!(left[0].1[14..], up);
    }
    // Down: into the tunnel of the address, fragments as well.
    for length in [20, 40, 1400] {
        let mut down = inner("8.8.8.8", "10.0.0.1", length);
        if length == 40 {
            down[6] = 0x20;
            down[10..12].fill(0);
            let mut sum = Sum::default();
            sum.add(&down[..20]);
            down[10..12].copy_from_slice(&sum.complement().to_be_bytes());
        }
        let left = world.come(CORE, &framed(CORE, IPV4, &down));
        let (_, ip, _, message) = opened(RADIO, &left[0].1);
        assert_eq!((left[0].0, ip.destination), (RADIO, address("192.0.2.9")));
        let message = Message::parse(message).unwrap();
        assert_eq!(
            (message.kind, message.teid, message.body),
            (G_PDU, 99, &down[..])
        );
    }
    let usage = world.node.function.bearers.get(user).unwrap().usage;
    let all = Usage {
        packets: 3,
        bytes: 60 + 1460,
    };
    assert_eq!(usage, [all; 2]);
    strangers_are_not_users(&mut world, user);
    let usage = world.node.function.bearers.get(user).unwrap().usage;
    assert_eq!(usage, [all; 2], "what did not pass is not counted");
    assert!(world.node.remove(user).is_some());
    assert!(
        world
            .come(CORE, &framed(CORE, IPV4, &inner("8.8.8.8", "10.0.0.1", 20)))
            .is_empty()
    );
    assert_eq!(world.dropped(CORE, LinkCause::Destination), 2);
}

#[test]
fn workers_get_what_is_of_their_bearers_and_all_hear_of_stations() {
    let mut worlds = [World::of(0, 2), World::of(1, 2)];
    let mut ids = Vec::new();
    for world in &mut worlds {
        let (one, other) = bearers(&mut world.node);
        ids = vec![one, other];
    }
    assert_eq!(
        ids.iter().map(|id| owner(*id)).sum::<usize>(),
        1,
        "one of each"
    );
    for world in &mut worlds {
        world.meet(RADIO, "192.0.2.9");
        let copied = std::mem::take(&mut world.works);
        assert_eq!((copied.len(), copied[0].0), (1, Whose::Others));
    }
    for id in ids {
        let owner = owner(id);
        let message = g_pdu(id.teid(Side::Radio), &inner("10.0.0.1", "8.8.8.8", 300));
        let frame = datagram(RADIO, "192.0.2.9", "192.0.2.1", &message);
        assert!(worlds[1 - owner].come(RADIO, &frame).is_empty());
        let works = std::mem::take(&mut worlds[1 - owner].works);
        assert_eq!(works, [(Whose::Shard(id.shard()), frame.clone())]);
        let mut burst = Burst::new(1);
        assert!(burst.push(&frame));
        let World { node, outs, .. } = &mut worlds[owner];
        node.receive(RADIO, &burst, true, outs);
        assert!(outs.works.is_empty() && outs.whose.is_empty());
        let bearer = worlds[owner].node.function.bearers.get(id).unwrap();
        assert_eq!(bearer.usage[Side::Core as usize].packets, 1);
        assert!(worlds[1 - owner].node.function.bearers.get(id).is_none());
    }
    let down = framed(CORE, IPV4, &inner("8.8.8.8", "10.0.0.1", 20));
    let gone: usize = worlds
        .iter_mut()
        .map(|world| world.come(CORE, &down).len() + world.works.len())
        .sum();
    assert_eq!(gone, 2, "both know the user");
}

#[test]
fn a_message_gets_to_its_worker_however_long_the_headers_before_it_are() {
    let mut worlds = [World::of(0, 2), World::of(1, 2)];
    let id = BearerId::of(0x402).0;
    for world in &mut worlds {
        let bearer = Bearer::new(tunnel("2001:db8:2::9", 5), tunnel("2001:db8:1::9", 6));
        put(&mut world.node, id, bearer);
        world.meet(CORE, "2001:db8:2::9");
        world.works.clear();
    }
    let (from, to) = ("2001:db8:1::9", "2001:db8:1::1");
    let message = g_pdu(id.teid(Side::Radio), &inner("::7", "::8", 100));
    let plain = datagram(RADIO, from, to, &message);
    // Behind Ethernet's header and IP's.
    let behind = &plain[18 + 40..];
    for units in 0..=7 {
        // UDP is next, and this is filled up to so many times 8 bytes (RFC 8200, 4.2).
        let mut options = vec![0; units as usize * 8];
        if let [next, length, pad, pad_bytes, ..] = &mut options[..] {
            [*next, *length, *pad, *pad_bytes] = [UDP, units - 1, 1, units * 8 - 4];
        }
        let first = if units > 0 { DESTINATION_OPTIONS } else { UDP };
        let body = [&options, behind].concat();
        let frame = packet(RADIO, address(from), address(to), first, &body);
        let other = &mut worlds[1 - owner(id)];
        assert!(other.come(RADIO, &frame).is_empty(), "{units}");
        let works = std::mem::take(&mut other.works);
        assert_eq!(works, [(Whose::Shard(id.shard()), frame.clone())]);
        assert_eq!(worlds[owner(id)].come(RADIO, &frame).len(), 1);
    }
}

/// The first bearer is on its way to the worker that has the second, and is removed only there.
#[test]
fn a_user_that_is_another_bearer_s_by_now_stays_that_one_s() {
    let mut from = World::of(0, 2);
    let mut world = World::of(1, 2);
    world.meet(RADIO, "192.0.2.9");
    world.works.clear();
    let far = |teid| FarEnd::Tunnel([192, 0, 2, 9].into(), teid);
    let of = |teid| BearerSpec::new(FarEnd::User([10, 0, 0, 1].into()), far(teid)).bearer();
    let [first, second] = [1, 3].map(|slot| BearerId::new(slot, 1));
    from.node.put(first, of(1));
    world.node.know(first, &of(1));
    world.node.forget(first, &of(1));
    world.node.know(second, &of(2));
    world.node.put(second, of(2));
    let shard = from.node.give_shard(first.shard());
    world.node.take_shard(shard);
    let down = framed(CORE, IPV4, &inner("8.8.8.8", "10.0.0.1", 20));
    assert_eq!(world.come(CORE, &down).len(), 1);
    assert!(world.node.remove(first).is_some());
    assert_eq!(world.come(CORE, &down).len(), 1);
    let usage = world.node.function.bearers.get(second).unwrap().usage;
    assert_eq!(usage[Side::Radio as usize].packets, 2);
}

/// To who asks for it, by the port that it asked by (TS 38.425, 5.4.2).
#[test]
fn a_delivery_status_leaves_where_no_tunnel_leads_on() {
    let mut world = World::new();
    world.meet(CORE, "198.51.100.9");
    world.meet(RADIO, "192.0.2.77");
    let (id, _) = BearerId::of(0x402);
    let mut made = Bearer::new(
        tunnel("198.51.100.9", 77),
        Peer::plain(address("192.0.2.77")),
    );
    made.follows_delivery = true;
    put(&mut world.node, id, made);
    let user = inner("8.8.8.8", "192.0.2.77", 60);
    let mut left = Vec::new();
    for (sequence, polls) in [(1, 0), (4, 1)] {
        // DL USER DATA: its kind, flags, and a sequence number of 24 bits.
        let container = [0, 0, 0, 0x84, 2, polls, 0, 0, 0, sequence, 0, 0];
        let body = [&container[..], &user].concat();
        let mut message = g_pdu(id.teid(Side::Core), &body);
        message[0] = 0x34;
        let frame = datagram(CORE, "198.51.100.9", "198.51.100.1", &message);
        left.extend(world.come(CORE, &frame));
        left.extend(world.poll());
    }
    let ports: Vec<u16> = left.iter().map(|(port, _)| *port).collect();
    assert_eq!(ports, [RADIO, RADIO, CORE], "both packets, and a status");
    let (ethernet, ip, _, message) = opened(CORE, &left[2].1);
    assert_eq!(ethernet.destination, station(CORE));
    assert_eq!(ip.destination, address("198.51.100.9"));
    let message = Message::parse(message).unwrap();
    assert_eq!((message.teid, message.body), (77, &[][..]));
    let mut extensions = message.extensions;
    let content = extensions.next().unwrap().content;
    // Numbers 2 and 3 are lost, and 512 KiB are wanted: what may be held.
    assert_eq!(content[..13], [0x11, 0, 0, 8, 0, 0, 1, 0, 0, 2, 0, 0, 3]);
    assert_eq!(world.node.function.drops(Side::Core).total(), 0);
}
