//! What is for the function itself.

use std::net::Ipv6Addr;

use millrace_wire::gtpu::path::ErrorIndication;
use millrace_wire::gtpu::{
    ECHO_REQUEST, ECHO_RESPONSE, ERROR_INDICATION, Message, SUPPORTED_EXTENSIONS,
};

use super::super::local::{ALL_NODES, ANSWERS_PER_SECOND};
use super::*;
use crate::cause::Cause;
use crate::checksum::Sum;
use crate::icmp::solicited_group;
use crate::ip::ICMP;

#[test]
fn stations_that_ask_are_answered() {
    let mut world = World::new();
    let ask = Arp {
        is_request: true,
        mac: station(RADIO),
        address: [192, 0, 2, 9].into(),
        target_mac: Mac::default(),
        target: [192, 0, 2, 1].into(),
    };
    let left = world.come(RADIO, &framed(RADIO, ARP, &ask.emit()));
    let frame = Frame::parse(&left[0].1).unwrap();
    assert_eq!(
        (left.len(), left[0].0, frame.destination),
        (1, RADIO, station(RADIO))
    );
    let said = Arp::parse(&left[0].1[frame.bytes..]).unwrap();
    assert_eq!(
        (said.is_request, said.address, said.mac),
        (false, ask.target, Mac::of_name("n3"))
    );
    let other = Arp {
        target: [192, 0, 2, 2].into(),
        ..ask
    };
    assert!(
        world
            .come(RADIO, &framed(RADIO, ARP, &other.emit()))
            .is_empty()
    );
    let own: Ipv6Addr = "2001:db8:1::1".parse().unwrap();
    let from: Ipv6Addr = "fe80::7".parse().unwrap();
    let ask = Neighbour {
        is_solicitation: true,
        target: own,
        mac: Some(station(RADIO)),
        is_solicited: false,
        overrides: false,
    };
    for to in [own, solicited_group(own)] {
        let frame = packet(RADIO, from.into(), to.into(), ICMPV6, &ask.emit(from, to));
        let left = world.come(RADIO, &frame);
        let bytes = &left[0].1[18..];
        let ip = Header::parse(bytes, bytes.len()).unwrap();
        assert_eq!((ip.source, ip.destination), (own.into(), from.into()));
        let said = Neighbour::parse(&bytes[ip.bytes..], own, from, ip.hops).unwrap();
        assert_eq!((said.target, said.is_solicited), (own, true));
        assert_eq!(said.mac, Some(Mac::of_name("n3")));
    }
}

#[test]
fn an_address_that_has_moved_is_told_to_all_workers_and_a_flood_of_that_is_not() {
    let (v4, v6) = (
        [192, 0, 2, 9].into(),
        "fe80::7".parse::<Ipv6Addr>().unwrap(),
    );
    let mac = station(CORE);
    let moved = Arp {
        is_request: true,
        mac,
        address: v4,
        target_mac: Mac::default(),
        target: v4,
    };
    let asks = Arp {
        target: [192, 0, 2, 7].into(),
        ..moved
    };
    let told = |is_solicited| Neighbour {
        is_solicitation: false,
        target: v6,
        mac: Some(mac),
        is_solicited,
        overrides: true,
    };
    let told = |is_solicited| {
        let body = told(is_solicited).emit(v6, ALL_NODES);
        packet(RADIO, v6.into(), ALL_NODES.into(), ICMPV6, &body)
    };
    let mut world = World::of(0, 2);
    for (frame, is_for_all) in [
        (framed(RADIO, ARP, &moved.emit()), true),
        (framed(RADIO, ARP, &asks.emit()), false),
        (told(false), true),
    ] {
        assert!(world.come(RADIO, &frame).is_empty());
        let works = std::mem::take(&mut world.works);
        let wanted = if is_for_all {
            vec![(Whose::Others, frame)]
        } else {
            vec![]
        };
        assert_eq!(works, wanted);
    }
    for _ in 0..10_000 {
        world.come(RADIO, &framed(RADIO, ARP, &moved.emit()));
    }
    assert_eq!(world.works.len() as u64, u64::from(ANSWERS_PER_SECOND) - 2);
    let (given, taken) = world.books();
    assert_eq!(given, taken + world.works.len() as u64 + 2);
}

#[test]
fn echoes_of_the_internet_and_of_gtp_are_answered() {
    let mut world = World::new();
    for (from, to, protocol) in [
        ("192.0.2.9", "192.0.2.1", ICMP),
        ("2001:db8:1::9", "2001:db8:1::1", ICMPV6),
    ] {
        let (from, to) = (address(from), address(to));
        let seed = |length| match protocol {
            ICMP => Sum::default(),
            _ => pseudo_sum(from, to, ICMPV6, length),
        };
        for length in [8, 9, 64, 200, 1400] {
            let mut echo: Vec<u8> = (0..length).map(|at| at as u8).collect();
            echo[..4].copy_from_slice(&[if protocol == ICMP { 8 } else { 128 }, 0, 0, 0]);
            let mut sum = seed(length);
            sum.add(&echo);
            echo[2..4].copy_from_slice(&sum.complement().to_be_bytes());
            let left = world.come(RADIO, &packet(RADIO, from, to, protocol, &echo));
            let bytes = &left[0].1[18..];
            let ip = Header::parse(bytes, bytes.len()).unwrap();
            assert_eq!((ip.source, ip.destination, ip.payload), (to, from, length));
            let said = &bytes[ip.bytes..];
            assert_eq!(
                (said[0], &said[4..]),
                (if protocol == ICMP { 0 } else { 129 }, &echo[4..])
            );
            let mut sum = seed(length);
            sum.add(said);
            assert_eq!(sum.folded(), 0xffff);
        }
    }
    let echo = [0x32, ECHO_REQUEST, 0, 4, 0, 0, 0, 0, 0, 9, 0, 0];
    for (from, to) in [
        ("192.0.2.9", "192.0.2.1"),
        ("2001:db8:1::9", "2001:db8:1::1"),
    ] {
        let left = world.come(RADIO, &datagram(RADIO, from, to, &echo));
        let (frame, ip, udp, message) = opened(RADIO, &left[0].1);
        assert_eq!(
            (frame.destination, ip.destination),
            (station(RADIO), address(from))
        );
        assert_eq!((udp.source, udp.destination), (PORT, 40_000));
        let message = Message::parse(message).unwrap();
        assert_eq!((message.kind, message.sequence), (ECHO_RESPONSE, Some(9)));
    }
}

#[test]
fn whoever_sends_to_no_tunnel_is_told() {
    let mut world = World::new();
    let frame = datagram(RADIO, "192.0.2.9", "192.0.2.1", &g_pdu(0x1234, &[0; 300]));
    let left = world.come(RADIO, &frame);
    let (frame, ip, udp, message) = opened(RADIO, &left[0].1);
    assert_eq!(
        (frame.destination, ip.destination, udp.destination),
        (station(RADIO), address("192.0.2.9"), PORT)
    );
    let message = Message::parse(message).unwrap();
    assert_eq!(message.kind, ERROR_INDICATION);
    let lost = ErrorIndication::parse(message.body).unwrap();
    assert_eq!((lost.teid, lost.peer), (0x1234, address("192.0.2.1")));
}

#[test]
fn an_echo_that_must_be_understood_is_counted_as_dropped_and_not_as_consumed() {
    let mut world = World::new();
    // An extension header of a kind that nobody knows, and whoever the message is for must.
    let echo = [
        0x36,
        ECHO_REQUEST,
        0,
        8,
        0,
        0,
        0,
        0,
        0,
        9,
        0,
        0xc9,
        1,
        0,
        0,
        0,
    ];
    let left = world.come(RADIO, &datagram(RADIO, "192.0.2.9", "192.0.2.1", &echo));
    let (.., message) = opened(RADIO, &left[0].1);
    assert_eq!(Message::parse(message).unwrap().kind, SUPPORTED_EXTENSIONS);
    let drops = world.node.drops(Side::Radio);
    assert_eq!((drops.total(), drops.of(Cause::Comprehension)), (1, 1));
    let counts = &world.node.counts()[usize::from(RADIO)];
    assert_eq!((counts.received, counts.made, counts.consumed), (1, 1, 0));
    let (given, taken) = world.books();
    assert_eq!(given, taken + 1);
}
