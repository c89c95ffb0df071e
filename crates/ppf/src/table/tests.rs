use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::bearer::{Flows, Peer, Thresholds};
use crate::event::Event;
use crate::mark::Marking;
use crate::paths::PathId;
use crate::random::Random;

fn bearer(number: u32) -> Bearer {
    let peer = |teid| Peer {
        address: IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + number % 50)),
        teid,
    };
    Bearer::new(peer(number + 1), peer(!number))
}

#[test]
fn a_bearer_is_found_by_both_of_its_teids_until_it_is_gone() {
    let mut table = Table::new();
    let ids: Vec<_> = (0..100)
        .map(|number| table.add(bearer(number)).unwrap())
        .collect();
    for (number, id) in (0..).zip(&ids) {
        for side in Side::BOTH {
            assert_ne!(id.teid(side), 0);
            assert_eq!(BearerId::of(id.teid(side)), (*id, side));
        }
        assert_eq!(table.get(*id), Some(bearer(number)));
    }
    assert_eq!(table.remove(ids[7]), Some(bearer(7)));
    assert_eq!(
        (table.remove(ids[7]), table.get(ids[7]), table.len()),
        (None, None, 99)
    );
    assert_eq!(table.iter().count(), 99);
}

#[test]
fn a_slot_that_is_used_again_is_of_another_generation() {
    let mut table = Table::new();
    let mut seen = HashSet::new();
    for number in 0..5000 {
        let id = table.add(bearer(number)).unwrap();
        if number >= 16 {
            assert!(table.remove(id).is_some());
        }
        assert!(seen.insert(id), "{number}: {id} again");
        assert_ne!(id.generation(), 0);
    }
    assert!(table.slots.len() < 100, "{}", table.slots.len());
}

#[test]
fn bearers_come_back_by_their_numbers() {
    let mut before = Table::new();
    let ids: Vec<_> = (0..200)
        .map(|number| before.add(bearer(number)).unwrap())
        .collect();
    for id in &ids[..150] {
        before.remove(*id);
    }
    // Some of their slots are used again.
    let more: Vec<_> = (200..300)
        .map(|number| before.add(bearer(number)).unwrap())
        .collect();
    let mut after = Table::new();
    let mut kept: Vec<_> = before.iter().collect();
    kept.reverse();
    for (id, bearer) in &kept {
        assert!(after.restore(*id, bearer));
        assert!(!after.restore(*id, bearer) && after.contains(*id));
    }
    assert_eq!(after.len(), 150);
    assert_eq!(
        after.iter().collect::<HashMap<_, _>>(),
        before.iter().collect()
    );
    // New ones take other places.
    for number in 0..500 {
        let id = after.add(bearer(number)).unwrap();
        assert!(!more.contains(&id) && !ids[150..].contains(&id));
    }
    assert_eq!(after.len(), 650);
}

fn random_bearer(random: &mut Random, meters: &[MeterId]) -> Bearer {
    let mut made = bearer(random.below(1000) as u32);
    if random.below(3) == 0 {
        let prefix = u128::from(random.below(1 << 40)) << 64;
        made.core = Peer::plain(Ipv6Addr::from_bits(prefix).into());
    } else if random.below(3) == 0 {
        made.core = Peer::plain(Ipv4Addr::from_bits(random.next() as u32).into());
        let prefix = u128::from(random.next()) << 64;
        made.user_v6 = (random.below(2) == 0).then(|| Ipv6Addr::from_bits(prefix));
    }
    made.gates = [random.below(2) == 0, random.below(2) == 0];
    made.marking = [Marking::Copied, Marking::Fixed(random.below(64) as u8)];
    made.forwards_numbers = random.below(2) == 0;
    if random.below(2) == 0 {
        let mut map = [None; 64];
        map[random.below(64) as usize] = Some(random.below(64) as u8);
        made.flows = [
            Flows::Set(random.below(64) as u8),
            Flows::Mapped(Box::new(map)),
        ];
        if random.below(2) == 0 {
            made.flows[1] = Flows::Set(random.below(64) as u8);
            made.reflective = random.below(2) == 0;
            made.paging_policy = (random.below(2) == 0).then(|| random.below(8) as u8);
        }
        made.limits[0] = Limit::bytes(random.next());
        made.thresholds = Thresholds {
            bytes: random.next(),
            ..Thresholds::default()
        };
        made.user = Some(meters[random.below(meters.len() as u64) as usize]);
        made.follows_delivery = random.below(2) == 0;
        made.paused = [random.below(2) == 0, false];
    }
    made
}

#[test]
fn what_was_stored_is_what_a_map_says() {
    for seed in 1..20 {
        let mut random = Random(seed);
        let mut table = Table::new();
        let mut model: HashMap<BearerId, Bearer> = HashMap::new();
        let meters: Vec<_> = (0..3)
            .map(|_| table.add_meter([Limit::bytes(1_000); 2]))
            .collect();
        for _ in 0..2_000 {
            let any = model
                .keys()
                .nth(random.below(model.len() as u64) as usize)
                .copied();
            match (random.below(3), any) {
                (0, Some(id)) => assert_eq!(table.remove(id), model.remove(&id)),
                (1, Some(id)) => {
                    let changed = random_bearer(&mut random, &meters);
                    *table.get_mut(id).unwrap() = changed.clone();
                    model.insert(id, changed);
                }
                _ => {
                    let new = random_bearer(&mut random, &meters);
                    let id = table.add(new.clone()).unwrap();
                    assert_eq!(model.insert(id, new), None);
                }
            }
        }
        let stored: HashMap<_, _> = table.iter().collect();
        assert_eq!(stored, model);
        let tunnels = |bearer: &Bearer| Side::BOTH.map(|side| !bearer.peer(side).is_plain());
        let wanted: usize = model.values().flat_map(tunnels).filter(|is| *is).count();
        assert_eq!(
            table
                .paths()
                .map(|path| path.tunnels as usize)
                .sum::<usize>(),
            wanted
        );
        for id in model.keys() {
            table.remove(*id);
        }
        assert_eq!(
            (table.len(), table.extras.len(), table.prefixes.len()),
            (0, 0, 0)
        );
        assert_eq!(table.paths().count(), 0);
        assert!(meters.iter().all(|meter| table.remove_meter(*meter)));
    }
}

#[test]
fn tunnels_that_peers_have_not_are_found() {
    let mut table = Table::new();
    let ids: Vec<_> = (0..3_000)
        .map(|number| table.add(bearer(number)).unwrap())
        .collect();
    let path = |table: &Table, number: u32| {
        let address = bearer(number).radio.address;
        table.paths.find(Side::Radio, address).unwrap()
    };
    for number in [5, 2_999] {
        assert!(table.look_for(path(&table, number), bearer(number).radio.teid));
    }
    // One that nobody has, and one on another path.
    assert!(table.look_for(path(&table, 7), bearer(8).radio.teid));
    assert!(table.look_for(PathId(77_777), 3));
    let mut found = HashSet::new();
    while !table.search.is_over() {
        table.look_on();
        while let Some(event) = table.events.pop() {
            found.insert(format!("{event:?}"));
        }
    }
    let wanted = [5, 2_999].map(|number| format!("{:?}", Event::Lost(ids[number], Side::Radio)));
    assert_eq!(found, HashSet::from(wanted));
    // It is told of once.
    table.look_for(path(&table, 5), bearer(5).radio.teid);
    while !table.search.is_over() {
        table.look_on();
    }
    assert_eq!(table.events.pop(), None);
}

/// Of a million bearers, as they are for a relay, and of as many that have all that a bearer can have.
#[test]
fn a_bearer_takes_a_line_of_memory() {
    let mut table = Table::new();
    for number in 0..100_000 {
        table.add(bearer(number)).unwrap();
    }
    assert_eq!(size_of::<Hot>(), 64);
    assert_eq!(table.extra_bytes().0, 0);
    println!(
        "a bearer: {} bytes; with limits, thresholds, a pause or flows: {} more; each path: once for all of its bearers",
        size_of::<Hot>(),
        table.extra_bytes().1
    );
}
