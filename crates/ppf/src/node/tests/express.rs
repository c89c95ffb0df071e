//! The short way and the usual one do the same with everything.

use super::wrong::{Random, mangled};
use super::*;
use crate::bearer::Flows;
use crate::mark::Marking;

/// A message with a PDU session container of a QoS flow.
fn with_container(teid: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16 + 8).to_be_bytes();
    let options = [0, 0, 0, 0x85, 1, 0x10, 9, 0];
    [
        &[0x34, G_PDU],
        &length[..],
        &teid.to_be_bytes(),
        &options,
        body,
    ]
    .concat()
}

/// Bearers that are unlike each other in what the short way looks at.
fn kinds() -> Vec<Bearer> {
    let relay = || Bearer::new(tunnel("198.51.100.9", 77), tunnel("192.0.2.9", 88));
    let plain = || Bearer::new(Peer::plain(address("10.0.0.1")), tunnel("192.0.2.9", 99));
    let (mut marked, mut removed, mut set, mut shut) = (relay(), relay(), relay(), relay());
    marked.marking = [Marking::Copied; 2];
    removed.flows = [Flows::Removed, Flows::Removed];
    set.flows = [Flows::Set(5), Flows::Set(5)];
    shut.gates = [false, true];
    let mut mapped = relay();
    mapped.flows = [Some(9), None].map(|to| Flows::Mapped(Box::new([to; 64])));
    let mut limited = relay();
    limited.thresholds.packets = 10;
    let v6 = Bearer::new(tunnel("2001:db8:2::9", 7), tunnel("2001:db8:1::9", 8));
    let far = Bearer::new(Peer::plain(address("10.0.0.2")), tunnel("192.0.2.77", 5));
    let mut plain_set = Bearer::new(Peer::plain(address("10.0.0.4")), tunnel("192.0.2.9", 98));
    plain_set.flows = [Flows::Set(6), Flows::Set(7)];
    let (mut reflective, mut paged) = (set.clone(), plain_set.clone());
    (reflective.reflective, paged.reflective) = (true, true);
    paged.paging_policy = Some(3);
    paged.core = Peer::plain(address("10.0.0.5"));
    vec![
        relay(),
        plain(),
        marked,
        removed,
        set,
        shut,
        limited,
        v6,
        far,
        mapped,
        plain_set,
        reflective,
        paged,
    ]
}

fn worlds(mtus: [usize; 2]) -> ([World; 2], Vec<BearerId>) {
    let mut worlds = [World::with_mtus(mtus), World::with_mtus(mtus)];
    worlds[1].node.has_express = false;
    // Numbers of packets that are cut begin anywhere.
    worlds[1].node.numbers = worlds[0].node.numbers.clone();
    let mut ids = Vec::new();
    for world in &mut worlds {
        ids.clear();
        for (number, bearer) in (1..).zip(kinds()) {
            let (id, _) = BearerId::of(number << 10 | 2);
            put(&mut world.node, id, bearer);
            ids.push(id);
        }
        for (port, at) in [
            (RADIO, "192.0.2.9"),
            (CORE, "198.51.100.9"),
            (CORE, "198.51.100.254"),
        ] {
            world.meet(port, at);
        }
    }
    (worlds, ids)
}

/// A message of any of the kinds that there are, for any of the bearers.
fn frame(ids: &[BearerId], random: &mut Random) -> (u16, Vec<u8>) {
    let (port, side) = match random.next(3) {
        0 => (CORE, Side::Core),
        _ => (RADIO, Side::Radio),
    };
    if port == CORE && random.next(2) == 0 {
        let user = format!("10.0.0.{}", 1 + random.next(5));
        let bytes = [0, 20, 70, 90, 300, 1480][random.next(6) as usize];
        return (port, framed(port, IPV4, &inner("8.8.8.8", &user, bytes)));
    }
    let id = ids[random.next(ids.len() as u64) as usize];
    let sizes = [0, 1, 20, 60, 100, 400, 1452];
    let bytes = sizes[random.next(sizes.len() as u64) as usize];
    let mut body = match random.next(4) {
        0 => vec![7; bytes],
        1 => inner(
            ["10.0.0.2", "10.0.0.4"][random.next(2) as usize],
            "8.8.8.8",
            bytes,
        ),
        2 => inner("2001:db8::1", "2001:db8::2", bytes),
        _ => inner("10.0.0.1", "8.8.8.8", bytes),
    };
    if random.next(3) == 0
        && let Some(class) = body.get_mut(1)
    {
        *class = random.next(256) as u8;
    }
    let message = match random.next(2) {
        0 => with_container(id.teid(side), &body),
        _ => g_pdu(id.teid(side), &body),
    };
    let ends = match port {
        CORE => ("198.51.100.9", "198.51.100.1"),
        _ => ("192.0.2.9", "192.0.2.1"),
    };
    (port, datagram(port, ends.0, ends.1, &message))
}

#[test]
fn the_short_way_and_the_usual_one_do_the_same() {
    for (seed, mtus) in [(1, [1500, 1500]), (2, [1500, 120]), (3, [120, 1500])] {
        let (mut worlds, ids) = worlds(mtus);
        let mut random = Random(seed);
        let mut express = 0;
        for round in 0..20_000_u64 {
            let (port, whole) = frame(&ids, &mut random);
            let frame = mangled(whole, &mut random);
            let mut burst = Burst::new(1);
            assert!(burst.push(&frame));
            let met = worlds[0].node.meet(port.into(), burst.get(0).unwrap());
            express += u64::from(matches!(met, Ok(meet::Met::Express(_))));
            let [short, usual] = &mut worlds;
            short.node.set_time(round * 1_000_000);
            usual.node.set_time(round * 1_000_000);
            assert_eq!(short.come(port, &frame), usual.come(port, &frame));
            assert_eq!(short.poll(), usual.poll());
        }
        let [short, usual] = &worlds;
        assert!(express > 4000, "{express}");
        assert_eq!(short.books(), usual.books());
        for cause in LinkCause::ALL {
            for port in [RADIO, CORE] {
                assert_eq!(short.dropped(port, cause), usual.dropped(port, cause));
            }
        }
        for side in Side::BOTH {
            let drops = |world: &World| format!("{:?}", world.node.drops(side));
            assert_eq!(drops(short), drops(usual));
        }
        for id in ids {
            let bearers = |world: &World| world.node.function.bearers.get(id);
            assert_eq!(bearers(short), bearers(usual));
        }
    }
}
