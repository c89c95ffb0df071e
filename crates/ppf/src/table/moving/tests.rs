use super::*;
use crate::bearer::{Bearer, Peer};
use crate::hold::HoldLimits;
use crate::meter::Limit;
use crate::table::pass::Admission;

mod made;
mod twins;

const SECOND: u64 = 1_000_000_000;

const HOLD: HoldLimits = HoldLimits {
    packets: 4096,
    bytes: 1 << 20,
    packets_per_bearer: 6,
    bytes_per_bearer: 3000,
    age_ns: 8 * SECOND,
};

fn id(slot: usize) -> BearerId {
    BearerId::new(slot, 1)
}

fn plain_bearer(number: u32) -> Bearer {
    let peer = |teid| Peer {
        address: Ipv4Addr::from_bits(0xc000_0200 + number % 16).into(),
        teid,
    };
    Bearer::new(peer(number + 1), peer(number + 2))
}

fn hold(table: &mut Table, id: BearerId, at_ns: u64, bytes: &[u8]) {
    let held = Held {
        bearer: id,
        to: Side::Radio,
        is_plain: true,
        tos: 0,
        at_ns,
    };
    table.hold(held, bytes).unwrap();
}

#[test]
fn what_finds_no_room_is_the_youngest_and_is_counted() {
    let limits = |packets| HoldLimits { packets, ..HOLD };
    let (mut from, mut to) = (
        Table::with_limits(limits(99)),
        Table::with_limits(limits(5)),
    );
    let mut paused = plain_bearer(1);
    paused.paused[1] = true;
    for slot in [4, 4 + SHARDS, 5] {
        let table = if slot == 5 { &mut to } else { &mut from };
        assert!(table.restore(id(slot), &paused));
    }
    for at_ns in 0..6 {
        let slot = [4, 4 + SHARDS][at_ns as usize % 2];
        hold(&mut from, id(slot), at_ns * SECOND, &[at_ns as u8]);
    }
    hold(&mut to, id(5), SECOND + 1, &[77]);
    to.put_shard(from.take_shard(4));
    let held = [4, 4 + SHARDS, 5].map(|slot| to.held(id(slot), Side::Radio));
    assert_eq!((held, from.held_counts().packets), ([2, 2, 1], 0));
    assert_eq!(to.drops[Side::Core as usize].of(Cause::HeldMemory), 2);
    assert_eq!((to.held_counts().taken, from.held_counts().taken), (1, 6));
    // The oldest of both tables are too old first.
    let mut left = Vec::new();
    for second in 0..4 {
        to.drop_old(HOLD.age_ns + second * SECOND);
        left.push(to.held_counts().packets);
    }
    assert_eq!(left, [4, 3, 1, 0]);
}

#[test]
fn credit_of_bearers_that_are_apart_is_the_lesser_where_they_meet() {
    let limits = [Limit::default(), Limit::packets(100)];
    let ue = MeterId(5);
    let [mut one, mut other] = [Table::new(), Table::new()];
    for table in [&mut one, &mut other] {
        table.put_meter(ue, limits);
    }
    let mut made = plain_bearer(1);
    made.user = Some(ue);
    assert!(one.restore(id(1), &made) && one.restore(id(2), &made));
    let admitted = |table: &mut Table, slot, now_ns| {
        (0..20)
            .filter(|_| table.admit(id(slot), Side::Radio, 9, now_ns) == Admission::Passes)
            .count()
    };
    assert_eq!(admitted(&mut one, 1, SECOND), 10);
    // Both have what there is now, and both let it pass.
    other.put_shard(one.take_shard(1));
    let later = SECOND + 50_000_000;
    assert_eq!(admitted(&mut other, 1, later), 5);
    one.put_shard(other.take_shard(1));
    assert_eq!(admitted(&mut one, 2, later), 0, "the lesser counts");
    // A table that has not been told yet has it as it was, and another limit stays.
    let mut third = Table::new();
    for shard in [1, 2] {
        third.put_shard(one.take_shard(shard));
    }
    assert_eq!(third.meter(ue), Some((limits, 2)));
    assert_eq!(
        (one.meter(ue), admitted(&mut third, 2, later)),
        (Some((limits, 0)), 0)
    );
    one.put_meter(ue, [Limit::default(), Limit::packets(1_000)]);
    for shard in [1, 2] {
        one.put_shard(third.take_shard(shard));
    }
    assert_eq!(admitted(&mut one, 2, later), 20);
}

#[test]
fn a_shard_that_moves_is_in_one_table() {
    let [mut one, mut other] = [Table::new(), Table::new()];
    let ids: Vec<_> = (0..2_100)
        .map(|number| one.add(plain_bearer(number)).unwrap())
        .collect();
    assert!(other.restore(ids[5], &plain_bearer(5)));
    let moved = one.take_shard(6);
    assert_eq!(moved.bearers.len(), 3);
    assert!(!one.contains(ids[6]) && !one.contains(ids[1030]));
    other.put_shard(moved);
    assert_eq!(
        (other.len(), other.get(ids[1030])),
        (4, Some(plain_bearer(1030)))
    );
    assert_eq!(other.paths().map(|path| path.tunnels).sum::<u32>(), 8);
    assert_eq!(one.paths().map(|path| path.tunnels).sum::<u32>(), 4_194);
    one.put_shard(other.take_shard(6));
    assert_eq!((one.len(), other.len()), (2_100, 1));
}

#[test]
fn a_shard_goes_to_another_thread() {
    fn goes<T: Send + 'static>() {}
    goes::<Moved>();
    goes::<Shard>();
    assert!(size_of::<Moved>() <= 128);
}

#[test]
fn a_tunnel_that_is_looked_for_is_found_wherever_its_bearer_is() {
    // Who was told that it is lost, before the bearer moves or after.
    for told in [[true, true], [true, false], [false, true]] {
        let tables = [Table::new(), Table::new()];
        let [mut one, mut other] = tables;
        let made = plain_bearer(3);
        let far = id(5 * SHARDS);
        assert!(one.restore(far, &plain_bearer(1)) && other.restore(far, &plain_bearer(1)));
        assert!(one.restore(id(900), &made));
        other.paths.know(Side::Core, made.core.address);
        other.paths.know(Side::Radio, made.radio.address);
        for (table, is_told) in [(&mut one, told[0]), (&mut other, told[1])] {
            let path = table.paths.find(Side::Core, made.core.address).unwrap();
            assert!(!is_told || table.look_for(path, made.core.teid));
        }
        // The one has not come to it, and the other is past it.
        one.look_on();
        (0..5).for_each(|_| other.look_on());
        other.put_shard(one.take_shard(900));
        for table in [&mut one, &mut other] {
            (0..50).for_each(|_| table.look_on());
        }
        let lost = Some(Event::Lost(id(900), Side::Core));
        assert_eq!(
            (other.events.pop(), other.events.pop(), one.events.pop()),
            (lost, None, None)
        );
    }
}
