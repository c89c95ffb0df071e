//! Outer packets that come in parts.

use super::*;
use crate::cause::Cause;
use crate::checksum::Sum;
use crate::ip::ICMP;
use crate::random::Random;
use crate::reassembly::ReassemblyLimits;

/// Parts of a frame's packet, each with so many bytes, as whoever reads the RFCs cuts it first.
pub(super) fn parts(frame: &[u8], bytes: usize, number: u32) -> Vec<Vec<u8>> {
    let begin = Frame::parse(frame).unwrap().bytes;
    let (ethernet, packet) = frame.split_at(begin);
    let is_v6 = packet[0] >> 4 == 6;
    let (header, payload) = packet.split_at(if is_v6 { 40 } else { 20 });
    let places = (0..payload.len()).step_by(bytes);
    let cut = payload.chunks(bytes).zip(places).map(|(part, at)| {
        let mut header = header.to_vec();
        let is_last = at + part.len() == payload.len();
        let place = (at / 8) as u16;
        if is_v6 {
            let next = header[6];
            header[4..6].copy_from_slice(&(part.len() as u16 + 8).to_be_bytes());
            header[6] = 44;
            header.extend([next, 0]);
            header.extend((place << 3 | u16::from(!is_last)).to_be_bytes());
            header.extend(number.to_be_bytes());
        } else {
            header[2..4].copy_from_slice(&(part.len() as u16 + 20).to_be_bytes());
            header[4..6].copy_from_slice(&(number as u16).to_be_bytes());
            let word = place | if is_last { 0 } else { 0x2000 };
            header[6..8].copy_from_slice(&word.to_be_bytes());
            sum_up(&mut header);
        }
        [ethernet, &header, part].concat()
    });
    cut.collect()
}

/// Writes the checksum of a header of IPv4.
pub(super) fn sum_up(header: &mut [u8]) {
    header[10..12].fill(0);
    let mut sum = Sum::default();
    sum.add(header);
    header[10..12].copy_from_slice(&sum.complement().to_be_bytes());
}

fn shuffled<T>(mut things: Vec<T>, random: &mut Random) -> Vec<T> {
    for at in (1..things.len()).rev() {
        things.swap(at, random.below(at as u64 + 1) as usize);
    }
    things
}

/// A bearer between two tunnels of IPv6.
pub(super) fn relay_v6(node: &mut Node) -> BearerId {
    let id = BearerId::of(0xc02).0;
    let bearer = Bearer::new(tunnel("2001:db8:2::9", 5), tunnel("2001:db8:1::9", 6));
    node.put(id, bearer);
    id
}

/// Both directions in both families: by which port, from whom, to whom, by which tunnel, and to whom it goes on.
type Line = (u16, &'static str, &'static str, u32, (u16, u32));

pub(super) fn lines(v4: BearerId, v6: BearerId) -> [Line; 4] {
    [
        (
            RADIO,
            "192.0.2.9",
            "192.0.2.1",
            v4.teid(Side::Radio),
            (CORE, 77),
        ),
        (
            CORE,
            "198.51.100.9",
            "198.51.100.1",
            v4.teid(Side::Core),
            (RADIO, 88),
        ),
        (
            RADIO,
            "2001:db8:1::9",
            "2001:db8:1::1",
            v6.teid(Side::Radio),
            (CORE, 5),
        ),
        (
            CORE,
            "2001:db8:2::9",
            "2001:db8:2::1",
            v6.teid(Side::Core),
            (RADIO, 6),
        ),
    ]
}

const STATIONS: [(u16, &str); 4] = [
    (CORE, "198.51.100.9"),
    (RADIO, "192.0.2.9"),
    (CORE, "2001:db8:2::9"),
    (RADIO, "2001:db8:1::9"),
];

pub(super) fn meet_all(world: &mut World) {
    for (port, at) in STATIONS {
        world.meet(port, at);
    }
}

#[test]
fn a_message_in_parts_goes_on_as_if_it_had_come_whole() {
    let mut world = World::with_mtus([65_535; 2]);
    let (v4, _) = bearers(&mut world.node);
    let v6 = relay_v6(&mut world.node);
    meet_all(&mut world);
    world.poll();
    let mut random = Random(3);
    let mut count = 0;
    for (port, from, to, teid, (out, out_teid)) in lines(v4, v6) {
        for length in [9, 100, 1500, 3000, 60_000] {
            let body = random.bytes(length);
            let whole = datagram(port, from, to, &g_pdu(teid, &body));
            for bytes in [8, 24, 104, 1480] {
                let cut = parts(&whole, bytes, count);
                if cut.len() > 64 || cut.len() < 2 {
                    continue;
                }
                count += 1;
                let before = world.node.counts()[usize::from(port)];
                let cut = shuffled(cut, &mut random);
                for part in &cut[1..] {
                    assert!(world.come(port, part).is_empty());
                }
                assert_eq!(world.node.waiting_parts(), cut.len() - 1);
                let left = world.come(port, &cut[0]);
                assert_eq!((left.len(), left[0].0), (1, out), "{length} {bytes}");
                let (_, ip, _, message) = opened(out, &left[0].1);
                assert_eq!(ip.source.is_ipv4(), address(from).is_ipv4());
                assert_eq!(message, g_pdu(out_teid, &body));
                let counts = world.node.counts()[usize::from(port)];
                assert_eq!(counts.consumed - before.consumed, cut.len() as u64);
                assert_eq!(counts.made - before.made, 1);
                assert_eq!(world.node.waiting_parts(), 0);
            }
        }
    }
    assert!(count > 20, "{count}");
    assert_eq!(world.node.poll_at_ns(), None, "nothing is waited for");
}

#[test]
fn parts_that_cannot_be_have_their_cause_and_so_has_a_wrong_whole() {
    let mut world = World::with_mtus([65_535; 2]);
    let (v4, _) = bearers(&mut world.node);
    meet_all(&mut world);
    let message = g_pdu(v4.teid(Side::Radio), &[7; 3000]);
    let whole = datagram(RADIO, "192.0.2.9", "192.0.2.1", &message);
    let of = |world: &World, cause| world.node.drops(Side::Radio).of(cause);
    // Twice the same, and what overlaps.
    let mut cut = parts(&whole, 1480, 1);
    assert!(world.come(RADIO, &cut[0]).is_empty());
    assert!(world.come(RADIO, &cut[0]).is_empty());
    assert_eq!(of(&world, Cause::FragmentTwice), 1);
    assert!(world.come(RADIO, &parts(&whole, 800, 1)[1]).is_empty());
    assert_eq!(of(&world, Cause::FragmentOverlap), 2, "with the one before");
    for late in &cut {
        assert!(world.come(RADIO, late).is_empty());
    }
    assert_eq!(of(&world, Cause::FragmentOverlap), 2 + cut.len() as u64);
    // A length that is no multiple of 8, and a place beyond all packets.
    cut = parts(&whole, 1480, 2);
    cut[0][18 + 3] -= 1;
    sum_up(&mut cut[0][18..38]);
    assert!(world.come(RADIO, &cut[0]).is_empty());
    cut[2][18 + 6..18 + 8].copy_from_slice(&0x1fff_u16.to_be_bytes());
    sum_up(&mut cut[2][18..38]);
    assert!(world.come(RADIO, &cut[2]).is_empty());
    assert_eq!(of(&world, Cause::Fragment), 2);
    // Not UDP; and not for us.
    let (from, to) = (address("192.0.2.9"), address("192.0.2.1"));
    let echo = packet(RADIO, from, to, ICMP, &[8; 2000]);
    assert!(world.come(RADIO, &parts(&echo, 1480, 3)[0]).is_empty());
    assert_eq!(world.dropped(RADIO, LinkCause::Fragment), 1);
    let other = packet(RADIO, from, address("192.0.2.7"), UDP, &[8; 2000]);
    assert!(world.come(RADIO, &parts(&other, 1480, 3)[0]).is_empty());
    assert_eq!(world.dropped(RADIO, LinkCause::Destination), 1);
    // Of the whole, what is wrong is found as of any packet.
    let (from, to) = ("2001:db8:1::9", "2001:db8:1::1");
    let mut wrong = datagram(RADIO, from, to, &message);
    wrong[2000] ^= 1;
    for part in parts(&wrong, 1232, 4) {
        assert!(world.come(RADIO, &part).is_empty());
    }
    assert_eq!(world.dropped(RADIO, LinkCause::UdpChecksum), 1);
    let (given, taken) = world.books();
    assert_eq!(given, taken + world.node.waiting_parts() as u64);
}

#[test]
fn a_part_that_is_all_of_its_packet_needs_no_others() {
    let mut world = World::with_mtus([65_535; 2]);
    let v6 = relay_v6(&mut world.node);
    meet_all(&mut world);
    let message = g_pdu(v6.teid(Side::Radio), &[7; 100]);
    let whole = datagram(RADIO, "2001:db8:1::9", "2001:db8:1::1", &message);
    let cut = parts(&whole, 65_528, 1);
    assert_eq!((cut.len(), cut[0].len()), (1, whole.len() + 8));
    assert_eq!(world.come(RADIO, &cut[0]).len(), 1);
}

#[test]
fn first_parts_alone_take_no_more_than_they_may_and_no_longer() {
    let second = 1_000_000_000;
    let limits = ReassemblyLimits {
        packets: 10,
        bytes: 65_536,
        age_ns: 2 * second,
        ..ReassemblyLimits::default()
    };
    let mut world = World::with_mtus([65_535; 2]);
    let (v4, _) = bearers(&mut world.node);
    world.node = world.node.with_reassembly(limits);
    meet_all(&mut world);
    world.poll();
    let message = g_pdu(v4.teid(Side::Radio), &[7; 3000]);
    let whole = datagram(RADIO, "192.0.2.9", "192.0.2.1", &message);
    for number in 0..1000 {
        world.node.set_time(number);
        let first = &parts(&whole, 1480, number as u32)[0];
        assert!(world.come(RADIO, first).is_empty());
        assert!(world.node.waiting_parts() <= 10);
    }
    let drops = world.node.drops(Side::Radio);
    assert_eq!(drops.of(Cause::FragmentMemory), 990);
    // One that is under way meanwhile is put together, if it is quick.
    let cut = parts(&whole, 1480, 5000);
    assert!(world.come_together(RADIO, &cut[..2]).is_empty());
    assert_eq!(world.come(RADIO, &cut[2]).len(), 1);
    // The oldest of the others goes first.
    assert_eq!(world.node.poll_at_ns(), Some(991 + 2 * second));
    world.node.set_time(991 + 2 * second);
    world.poll();
    assert_eq!(world.node.waiting_parts(), 8);
    world.node.set_time(10 * second);
    world.poll();
    assert_eq!(world.node.waiting_parts(), 0);
    let drops = world.node.drops(Side::Radio);
    assert_eq!(drops.of(Cause::FragmentAge), 9);
    let (given, taken) = world.books();
    assert_eq!(given, taken + 1, "one has left");
}

#[test]
fn what_is_put_together_is_handed_over_to_its_worker() {
    let mut worlds = [World::of(0, 2), World::of(1, 2)];
    let mut id = None;
    for world in &mut worlds {
        id = Some(bearers(&mut world.node).0);
    }
    let id = id.unwrap();
    let owner = owner(id);
    let message = g_pdu(id.teid(Side::Radio), &[7; 3000]);
    let whole = datagram(RADIO, "192.0.2.9", "192.0.2.1", &message);
    for part in parts(&whole, 1480, 1) {
        assert!(worlds[1 - owner].come(RADIO, &part).is_empty());
    }
    let works = std::mem::take(&mut worlds[1 - owner].works);
    let whose = Whose::Shard(id.shard());
    assert_eq!((works.len(), works[0].0), (1, whose));
    // But for DSCP, which the parts kept, and what says that it may not be cut, it is what was cut.
    assert_eq!(works[0].1, whole);
    let counts = worlds[1 - owner].node.counts()[usize::from(RADIO)];
    assert_eq!((counts.received, counts.consumed, counts.made), (3, 3, 1));
    let mut burst = Burst::new(1);
    assert!(burst.push(&works[0].1));
    let World { node, outs, .. } = &mut worlds[owner];
    assert_eq!(node.receive(RADIO, &burst, true, outs), 1);
    let usage = node.function.bearers.get(id).unwrap().usage;
    assert_eq!(usage[Side::Core as usize].packets, 1);
}

/// What comes, in parts and whole, before anything is changed in it.
fn wholes(v4: BearerId, v6: BearerId, user: BearerId, random: &mut Random) -> Vec<(u16, Vec<u8>)> {
    let mut wholes = Vec::new();
    for (port, from, to, teid, _) in lines(v4, v6) {
        for length in [40, 1000, 2000, 3000] {
            let body = random.bytes(length);
            wholes.push((port, datagram(port, from, to, &g_pdu(teid, &body))));
        }
    }
    for length in [20, 700, 1400] {
        let up = inner("10.0.0.1", "8.8.8.8", length);
        let message = g_pdu(user.teid(Side::Radio), &up);
        wholes.push((RADIO, datagram(RADIO, "192.0.2.9", "192.0.2.1", &message)));
        let mut down = inner("8.8.8.8", "10.0.0.1", length);
        down[6] = 0;
        sum_up(&mut down[..20]);
        wholes.push((CORE, framed(CORE, IPV4, &down)));
    }
    wholes
}

/// Some of those that come by a port, most of them cut, some of them wrong, and some parts missing or twice.
fn some_of(wholes: &[(u16, Vec<u8>)], port: u16, random: &mut Random) -> Vec<Vec<u8>> {
    let mut some = Vec::new();
    while some.len() < 24 {
        let (to, whole) = &wholes[random.below(wholes.len() as u64) as usize];
        if *to != port {
            continue;
        }
        let bytes = 8 * (20 + random.below(180) as usize);
        let mut cut = match random.below(4) {
            0 => vec![whole.clone()],
            _ => parts(whole, bytes, random.below(50) as u32),
        };
        if random.below(8) == 0 {
            let which = random.below(cut.len() as u64) as usize;
            let at = random.below(cut[which].len() as u64) as usize;
            cut[which][at] ^= 1 << random.below(8);
        }
        cut.retain(|_| random.below(10) != 0);
        some.extend(cut);
    }
    let mut some = shuffled(some, random);
    if random.below(4) == 0 {
        some.push(some[0].clone());
    }
    some
}

#[test]
fn nothing_is_lost_or_doubled_in_parts() {
    let mut world = World::with_mtus([1400, 600]);
    let (v4, user) = bearers(&mut world.node);
    let v6 = relay_v6(&mut world.node);
    let mut random = Random(11);
    let wholes = wholes(v4, v6, user, &mut random);
    let (mut sent, mut cut_up) = (0, 0);
    for round in 0..4000_u64 {
        world.node.set_time(round * 5_000_000);
        sent += world.poll().len() as u64;
        if round == 100 {
            for (port, at) in STATIONS {
                sent += world.hear(port, at).len() as u64;
            }
            sent += world.hear(CORE, "198.51.100.254").len() as u64;
        }
        let port = if random.below(2) == 0 { RADIO } else { CORE };
        let burst = some_of(&wholes, port, &mut random);
        for burst in burst.chunks(BURST) {
            let left = world.come_together(port, burst).len();
            cut_up += usize::from(left > burst.len());
            sent += left as u64;
        }
    }
    // What waits for stations and for parts is given up.
    for second in 0..6 {
        world
            .node
            .set_time(1_000_000_000_000 + second * 1_000_000_000);
        sent += world.poll().len() as u64;
    }
    assert_eq!(world.node.waiting_parts(), 0);
    let (given, taken) = world.books();
    assert_eq!(given, taken + sent);
    for cause in [
        Cause::FragmentOverlap,
        Cause::FragmentTwice,
        Cause::FragmentAge,
        Cause::TooBig,
    ] {
        let count: u64 = Side::BOTH
            .map(|side| world.node.drops(side).of(cause))
            .iter()
            .sum();
        assert!(count > 0, "{cause:?}");
    }
    assert!(sent > 10_000 && cut_up > 100, "{sent} {cut_up}");
}
