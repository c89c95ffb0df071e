//! Packets that are longer than the port by which they leave takes.

use millrace_wire::gtpu::Message;

use super::parts::{lines, meet_all, relay_v6, sum_up};
use super::*;
use crate::cause::Cause;
use crate::checksum::Sum;
use crate::ip::ICMP;

/// The packet whose pieces these frames are, as a frame, with its number; each piece is no longer than `mtu`.
fn joined(port: u16, frames: &[(u16, Vec<u8>)], mtu: usize) -> (Vec<u8>, u32) {
    let mut pieces = Vec::new();
    let mut head = None;
    for (out, frame) in frames {
        let begin = Frame::parse(frame).unwrap().bytes;
        let (ethernet, packet) = frame.split_at(begin);
        assert_eq!(
            (*out, packet.len() <= mtu),
            (port, true),
            "{}",
            packet.len()
        );
        let two = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let (mut header, number, place, has_more, payload);
        if packet[0] >> 4 == 6 {
            assert_eq!(usize::from(two(4)) + 40, packet.len());
            assert_eq!((packet[6], packet[41]), (44, 0));
            header = packet[..40].to_vec();
            header[6] = packet[40];
            number = u32::from(two(44)) << 16 | u32::from(two(46));
            (place, has_more) = (usize::from(two(42) & !7), two(42) & 1 != 0);
            assert_eq!(two(42) & 6, 0);
            payload = &packet[48..];
        } else {
            assert_eq!((usize::from(two(2)), packet[0]), (packet.len(), 0x45));
            header = packet[..20].to_vec();
            let mut sum = Sum::default();
            sum.add(&header);
            assert_eq!(sum.folded(), 0xffff);
            number = two(4).into();
            (place, has_more) = (usize::from(two(6) & 0x1fff) * 8, two(6) & 0x2000 != 0);
            assert_eq!(two(6) & 0xc000, 0, "it may be cut again");
            payload = &packet[20..];
        }
        let seen = [ethernet, &header[8..10], &header[12..]].concat();
        let (first, first_number, ..) =
            head.get_or_insert((seen.clone(), number, ethernet, header));
        assert_eq!((&seen, number), (&*first, *first_number));
        pieces.push((place, has_more, payload.to_vec()));
    }
    pieces.sort();
    let mut whole = Vec::new();
    for (which, (place, has_more, payload)) in pieces.iter().enumerate() {
        assert_eq!(*place, whole.len(), "nothing overlaps or is missing");
        assert_eq!(*has_more, which + 1 < pieces.len());
        assert!(payload.len() % 8 == 0 || !has_more);
        whole.extend(payload);
    }
    let (_, number, ethernet, mut header) = head.unwrap();
    if header[0] >> 4 == 6 {
        header[4..6].copy_from_slice(&(whole.len() as u16).to_be_bytes());
    } else {
        header[2..4].copy_from_slice(&(whole.len() as u16 + 20).to_be_bytes());
        header[6..8].fill(0);
        sum_up(&mut header);
    }
    ([ethernet, &header, &whole].concat(), number)
}

fn filling(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 13 / 8) as u8).collect()
}

#[test]
fn a_message_that_is_too_long_leaves_in_pieces_with_a_checksum() {
    for mtu in [600, 1280, 1281, 1287, 1500, 9000] {
        let mut world = World::with_mtus([mtu; 2]);
        let (v4, _) = bearers(&mut world.node);
        let v6 = relay_v6(&mut world.node);
        meet_all(&mut world);
        for (port, from, to, teid, (out, out_teid)) in lines(v4, v6) {
            let mut numbers = std::collections::HashSet::new();
            let header = if address(from).is_ipv4() { 36 } else { 56 };
            for length in [
                mtu - header + 1,
                mtu - header + 8,
                2 * mtu,
                3 * mtu + 1,
                20_000,
            ] {
                let body = filling(length);
                let frame = datagram(port, from, to, &g_pdu(teid, &body));
                let made = world.node.counts()[usize::from(out)].made;
                let left = world.come(port, &frame);
                let is_whole = header + length <= mtu;
                assert_eq!(left.len() == 1, is_whole, "{mtu} {length}");
                let counted = world.node.counts()[usize::from(out)].made - made;
                assert_eq!(counted, left.len() as u64 - 1);
                if is_whole {
                    continue;
                }
                let (whole, number) = joined(out, &left, mtu);
                assert!(numbers.insert(number), "a number comes again at once");
                let (_, _, udp, message) = opened(out, &whole);
                assert_ne!(udp.checksum, 0);
                assert_eq!(message, g_pdu(out_teid, &body));
            }
            // And what just fits leaves whole, as ever.
            let body = filling(mtu - header);
            let left = world.come(port, &datagram(port, from, to, &g_pdu(teid, &body)));
            assert_eq!(left.len(), 1);
            let (_, _, udp, _) = opened(out, &left[0].1);
            assert_eq!(udp.checksum == 0, address(from).is_ipv4());
        }
    }
}

#[test]
fn pieces_wait_for_their_station_together() {
    let mut world = World::new();
    let (v4, _) = bearers(&mut world.node);
    let teid = v4.teid(Side::Radio);
    let frame = |length| {
        let message = g_pdu(teid, &filling(length));
        datagram(RADIO, "192.0.2.9", "192.0.2.1", &message)
    };
    // Three pieces, for which there is room, and two, for which there is none.
    assert!(world.come(RADIO, &frame(4000)).is_empty());
    assert!(world.come(RADIO, &frame(2000)).is_empty());
    assert_eq!(world.dropped(RADIO, LinkCause::Unresolved), 1);
    let interface = world.node.interfaces[usize::from(CORE)].clone();
    let told = Arp {
        is_request: false,
        mac: station(CORE),
        address: [198, 51, 100, 9].into(),
        target_mac: interface.mac,
        target: [198, 51, 100, 1].into(),
    };
    let left = world.come(CORE, &framed(CORE, ARP, &told.emit()));
    let (whole, _) = joined(CORE, &left, 1500);
    let (ethernet, _, _, message) = opened(CORE, &whole);
    assert_eq!((left.len(), ethernet.destination), (3, station(CORE)));
    assert_eq!(message[8..], filling(4000));
    let (given, taken) = world.books();
    assert_eq!(given, taken + 3);
}

#[test]
fn what_is_cut_leaves_whole_however_much_it_is() {
    let mut world = World::with_mtus([1500; 2]);
    let (v4, _) = bearers(&mut world.node);
    let v6 = relay_v6(&mut world.node);
    meet_all(&mut world);
    let (port, from, to, teid, _) = lines(v4, v6)[0];
    let frame = |length| datagram(port, from, to, &g_pdu(teid, &filling(length)));
    let burst: Vec<_> = (0..BURST)
        .map(|number| match number % 3 {
            0 => frame(100),
            1 => frame(9000),
            _ => frame(65_000),
        })
        .collect();
    let left = world.come_together(port, &burst);
    // 9016 bytes in pieces of 1480, and 65 016.
    assert_eq!(left.len(), 11 + 11 * 7 + 10 * 44);
    let (given, taken) = world.books();
    assert_eq!(given, taken + left.len() as u64);
    assert_eq!(world.dropped(CORE, LinkCause::NoRoom), 0);
    // As many pieces as nobody puts together, and more than a packet can have.
    let mut world = World::with_mtus([65_535, 576]);
    bearers(&mut world.node);
    meet_all(&mut world);
    assert!(world.come(port, &frame(36_000)).is_empty());
    assert_eq!(world.dropped(RADIO, LinkCause::TooLong), 1);
    assert_eq!(world.come(port, &frame(35_000)).len(), 64);
}

#[test]
fn the_longest_packets_there_are_do_no_harm() {
    let mut world = World::with_mtus([65_535; 2]);
    let (_, user) = bearers(&mut world.node);
    let bearer = Bearer {
        user_v6: Some("2001:db8:77::1".parse().unwrap()),
        ..Bearer::new(Peer::plain(address("10.0.0.1")), tunnel("192.0.2.9", 99))
    };
    world.node.put(user, bearer);
    meet_all(&mut world);
    for (from, to, length) in [
        ("2001:db8::8", "2001:db8:77::1", 65_535),
        ("8.8.8.8", "10.0.0.1", 65_515),
    ] {
        let packet = inner(from, to, length);
        let kind = if packet[0] >> 4 == 6 { IPV6 } else { IPV4 };
        assert!(world.come(CORE, &framed(CORE, kind, &packet)).is_empty());
    }
    world.poll();
    let (given, taken) = world.books();
    assert!(given >= taken);
}

/// What a user sends towards the core network.
fn up(world: &mut World, user: BearerId, packet: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let message = g_pdu(user.teid(Side::Radio), packet);
    let frame = datagram(RADIO, "192.0.2.9", "192.0.2.1", &message);
    world.come(RADIO, &frame)
}

#[test]
fn users_packets_are_cut_as_a_router_does() {
    let mut world = World::with_mtus([9000, 1300]);
    let (_, user) = bearers(&mut world.node);
    meet_all(&mut world);
    world.meet(CORE, "198.51.100.254");
    let change = |place: u16, length| {
        let mut packet = inner("10.0.0.1", "8.8.8.8", length);
        packet[4..6].copy_from_slice(&[0xab, 0xcd]);
        packet[6..8].copy_from_slice(&place.to_be_bytes());
        sum_up(&mut packet[..20]);
        packet
    };
    for length in [1281, 1400, 5000] {
        let packet = change(0, length);
        let left = up(&mut world, user, &packet);
        let (whole, number) = joined(CORE, &left, 1300);
        assert_eq!((&whole[14..], number), (&packet[..], 0xabcd));
        // A checksum that is wrong is not made right.
        let mut wrong = packet;
        wrong[10] ^= 0x40;
        for (_, piece) in up(&mut world, user, &wrong) {
            let mut sum = Sum::default();
            sum.add(&piece[14..34]);
            assert_ne!(sum.folded(), 0xffff);
        }
    }
    // One that is a fragment itself goes on as several.
    let left = up(&mut world, user, &change(0x2000 | 100, 2000));
    let places: Vec<_> = left
        .iter()
        .map(|(_, frame)| u16::from_be_bytes([frame[20], frame[21]]))
        .collect();
    assert_eq!(places, [0x2000 | 100, 0x2000 | 260]);
    // No packet can be such a fragment's.
    assert!(up(&mut world, user, &change(0x2000, 2001)).is_empty());
    assert!(up(&mut world, user, &change(0x1fff, 2000)).is_empty());
    assert_eq!(world.dropped(RADIO, LinkCause::IpHeader), 2);
    // What may not be cut is not, also where nobody is told.
    assert!(up(&mut world, user, &change(0x4000 | 100, 2000)).is_empty());
    assert_eq!(world.dropped(RADIO, LinkCause::TooLong), 1);
    // Options are not cut.
    let mut options = change(0, 2000);
    options[0] = 0x46;
    sum_up(&mut options[..24]);
    assert!(up(&mut world, user, &options).is_empty());
    assert_eq!(world.dropped(RADIO, LinkCause::TooLong), 2);
}

#[test]
fn whoever_sends_what_may_not_be_cut_is_told() {
    let mut world = World::with_mtus([1400, 1300]);
    let (_, user) = bearers(&mut world.node);
    let bearer = Bearer {
        user_v6: Some("2001:db8:77::1".parse().unwrap()),
        ..Bearer::new(Peer::plain(address("10.0.0.1")), tunnel("192.0.2.9", 99))
    };
    world.node.put(user, bearer);
    meet_all(&mut world);
    world.meet(CORE, "198.51.100.254");
    // Up: it does not fit to the data network, and comes back by the tunnel.
    for (from, to) in [
        ("10.0.0.1", "8.8.8.8"),
        ("2001:db8:77::1", "2001:db8:88::8"),
    ] {
        let packet = inner(from, to, 1290);
        assert!(up(&mut world, user, &packet).is_empty());
        let told = world.poll();
        assert_eq!((told.len(), told[0].0), (1, RADIO));
        let (.., message) = opened(RADIO, &told[0].1);
        let message = Message::parse(message).unwrap();
        let ip = Header::parse(message.body, message.body.len()).unwrap();
        assert_eq!((message.teid, ip.destination), (99, address(from)));
        let said = &message.body[ip.bytes..];
        match ip.protocol {
            ICMP => assert_eq!(said[..8], [3, 4, said[2], said[3], 0, 0, 5, 20]),
            _ => assert_eq!(said[4..8], 1300_u32.to_be_bytes()),
        }
    }
    assert_eq!(world.node.drops(Side::Radio).of(Cause::TooBig), 2);
    // Down: it does not fit into the tunnel, of which 36 bytes are headers; one byte less does.
    let down = inner("8.8.8.8", "10.0.0.1", 1345);
    assert!(world.come(CORE, &framed(CORE, IPV4, &down)).is_empty());
    let told = world.poll();
    assert_eq!((told.len(), told[0].0), (1, CORE));
    let said = &told[0].1[14 + 20..];
    assert_eq!(
        (said[..2].to_vec(), &said[6..8]),
        (vec![3, 4], &1364_u16.to_be_bytes()[..])
    );
    let down = inner("8.8.8.8", "10.0.0.1", 1344);
    let left = world.come(CORE, &framed(CORE, IPV4, &down));
    assert_eq!((left.len(), left[0].1.len()), (1, 18 + 1400));
    // What may be cut goes on inside of pieces.
    let mut down = inner("8.8.8.8", "10.0.0.1", 1345);
    down[6] = 0;
    sum_up(&mut down[..20]);
    let left = world.come(CORE, &framed(CORE, IPV4, &down));
    let (whole, _) = joined(RADIO, &left, 1400);
    let (.., message) = opened(RADIO, &whole);
    assert_eq!(Message::parse(message).unwrap().body, down);
    let (given, taken) = world.books();
    assert_eq!(given, taken + 3 + 1 + left.len() as u64);
}

#[test]
fn workers_give_different_numbers() {
    let mut seen = std::collections::HashSet::new();
    for worker in 0..3 {
        let mut world = World::of(worker, 3);
        for _ in 0..200 {
            let pair = (address("192.0.2.1"), address("192.0.2.9"));
            let number = world.node.numbers.next(pair.0, pair.1);
            assert!(seen.insert(number as u16));
            assert_eq!(number % 4, worker as u32);
        }
    }
}
