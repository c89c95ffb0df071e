//! What does not go on, and that nothing else is lost.

use millrace_wire::gtpu::ECHO_REQUEST;

use super::*;
use crate::ip::ICMP;

#[test]
fn what_is_not_for_the_function_has_its_cause() {
    let mut world = World::new();
    let (relay, _) = bearers(&mut world.node);
    let message = g_pdu(relay.teid(Side::Radio), &[0; 40]);
    let good = datagram(RADIO, "192.0.2.9", "192.0.2.1", &message);
    let changed = |at: usize, to: u8| {
        let mut frame = good.clone();
        frame[at] = to;
        frame
    };
    let untagged = [&good[..12], &good[16..]].concat();
    let udp_at = 18 + 20;
    for (frame, cause) in [
        (good[..13].to_vec(), LinkCause::Truncated),
        (good[..60].to_vec(), LinkCause::Truncated),
        (changed(0, 0x04), LinkCause::Station),
        ([&[0xff; 6], &good[6..]].concat(), LinkCause::Station),
        (changed(6, 0x03), LinkCause::Station),
        (changed(15, 8), LinkCause::Vlan),
        (untagged, LinkCause::Vlan),
        (changed(17, 9), LinkCause::Protocol),
        (changed(18 + 12, 1), LinkCause::IpChecksum),
        (changed(18, 0x55), LinkCause::IpHeader),
        (changed(udp_at + 3, 9), LinkCause::UdpPort),
        (changed(udp_at + 5, 4), LinkCause::UdpLength),
        (changed(udp_at + 5, 250), LinkCause::UdpLength),
        (changed(udp_at + 7, 9), LinkCause::UdpChecksum),
        (
            packet(
                RADIO,
                address("192.0.2.9"),
                address("192.0.2.1"),
                6,
                &[0; 20],
            ),
            LinkCause::Protocol,
        ),
        (
            packet(
                RADIO,
                address("192.0.2.9"),
                address("192.0.2.1"),
                ICMP,
                &[3; 20],
            ),
            LinkCause::Icmp,
        ),
        (
            packet(
                RADIO,
                address("192.0.2.9"),
                address("192.0.2.7"),
                UDP,
                &[0; 20],
            ),
            LinkCause::Destination,
        ),
        (framed(RADIO, ARP, &[0; 28]), LinkCause::Neighbour),
    ] {
        let before = world.dropped(RADIO, cause);
        assert!(world.come(RADIO, &frame).is_empty(), "{cause:?}");
        assert_eq!(world.dropped(RADIO, cause), before + 1, "{cause:?}");
    }
    // Not even a message's header is in a piece of this.
    world.node.interfaces[usize::from(CORE)].mtu = 35;
    world.meet(CORE, "198.51.100.9");
    assert!(world.come(RADIO, &good).is_empty());
    assert_eq!(world.dropped(RADIO, LinkCause::TooLong), 1);
}

/// Numbers that look random, and are the same each time.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// What comes, before anything is changed in it: three by the one port, and three by the other.
fn frames(relay: BearerId, user: BearerId) -> [Vec<u8>; 6] {
    [
        datagram(
            RADIO,
            "192.0.2.9",
            "192.0.2.1",
            &g_pdu(relay.teid(Side::Radio), &[0; 40]),
        ),
        datagram(
            RADIO,
            "192.0.2.9",
            "192.0.2.1",
            &g_pdu(user.teid(Side::Radio), &inner("10.0.0.1", "8.8.8.8", 200)),
        ),
        datagram(
            RADIO,
            "2001:db8:1::9",
            "2001:db8:1::1",
            &[0x32, ECHO_REQUEST, 0, 4, 0, 0, 0, 0, 0, 9, 0, 0],
        ),
        datagram(
            CORE,
            "198.51.100.9",
            "198.51.100.1",
            &g_pdu(relay.teid(Side::Core), &[0; 900]),
        ),
        framed(CORE, IPV4, &inner("8.8.8.8", "10.0.0.1", 20)),
        framed(CORE, ARP, &[0; 28]),
    ]
}

/// Two of three with wrong bytes, and some cut off.
pub(super) fn mangled(mut frame: Vec<u8>, random: &mut Random) -> Vec<u8> {
    if random.next(3) > 0 {
        for _ in 0..=random.next(3) {
            let at = random.next(frame.len() as u64) as usize;
            frame[at] = random.next(256) as u8;
        }
    }
    if random.next(10) == 0 {
        frame.truncate(1 + random.next(frame.len() as u64) as usize);
    }
    frame
}

#[test]
fn nothing_is_lost_or_doubled_whatever_comes() {
    let mut world = World::new();
    let (relay, user) = bearers(&mut world.node);
    let mut random = Random(7);
    let frames = frames(relay, user);
    let (mut sent, mut came, mut met) = (0, 0, 0);
    for round in 0..60_000_u64 {
        if round % 1000 == 0 {
            world.node.set_time(round * 1_000_000);
            sent += world.poll().len() as u64;
        }
        // From now on stations answer, before what is known of them is too old.
        if round >= 20_000 && round % 1000 == 0 {
            world.meet(CORE, "198.51.100.9");
            world.meet(RADIO, "192.0.2.9");
            met += 2;
        }
        let which = random.next(frames.len() as u64) as usize;
        let frame = mangled(frames[which].clone(), &mut random);
        let port = if which < 3 { RADIO } else { CORE };
        sent += world.come(port, &frame).len() as u64;
        came += 1;
    }
    // What waits for stations that do not answer is given up.
    for second in 0..6 {
        world
            .node
            .set_time(1_000_000_000_000 + second * 1_000_000_000);
        sent += world.poll().len() as u64;
    }
    let counts = world.node.counts();
    let received: u64 = counts.iter().map(|count| count.received).sum();
    assert_eq!(received, came + met);
    let (given, taken) = world.books();
    assert_eq!(given, taken + sent);
    let of_function: u64 = Side::BOTH
        .map(|side| world.node.drops(side).total())
        .iter()
        .sum();
    assert!(sent > 10_000 && of_function > 100, "{sent} {of_function}");
}
