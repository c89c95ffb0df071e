//! Who holds a publisher up, and what is said of messages that it gives up.

use std::time::{Duration, Instant};

use super::{Hindrance, World};
use crate::WhenFull;

const PATIENCE: Duration = Duration::from_secs(1);

/// Those who would be slow if nothing changed for longer than that.
fn slow_later(world: &World) -> Vec<usize> {
    world.outbox.slow(Instant::now() + 2 * PATIENCE, PATIENCE).0
}

#[test]
fn who_has_no_room_for_what_a_dead_member_had_holds_its_publisher_up() {
    let mut world = World::new(WhenFull::Block, true);
    world.join(1, 7, 8);
    world.join(2, 7, 2);
    for number in 0..8 {
        world.send(number, None).unwrap();
    }
    world.kill(1);
    world.outbox.begin_wait();
    assert_eq!(world.send(8, None), Err(Hindrance::Full));
    let stopped = world.inboxes[&2].0;
    assert_eq!(slow_later(&world), [stopped]);
    world.join(3, 7, 16);
    world.send(8, None).unwrap();
    let mut got = world.read_all(3);
    got.sort_unstable();
    assert_eq!((got.len(), got[6]), (7, 8), "2 has the others");
    assert_eq!(world.read_all(2).len(), 2);
    world.assert_all_is_back();
}

#[test]
fn of_a_group_one_that_has_room_gets_the_next_also_where_one_without_has_less() {
    let mut world = World::new(WhenFull::Block, false);
    world.join(1, 7, 2);
    world.join(2, 7, 64);
    for number in 0..40 {
        world.send(number, None).unwrap();
    }
    assert_eq!(world.read_all(2).len(), 38);
    assert!(slow_later(&world).is_empty(), "nobody was waited for");
    assert_eq!(world.read_all(1).len(), 2);
    world.assert_all_is_back();
}

#[test]
fn who_held_nothing_up_but_what_has_found_room_is_not_slow() {
    let mut world = World::new(WhenFull::Block, false);
    world.join(1, 0, 2);
    world.join(2, 0, 4);
    (0..2).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    assert_eq!(world.send(2, None), Err(Hindrance::Full));
    assert_eq!(slow_later(&world), [0; 0], "nobody waits");
    let (first, second) = (world.inboxes[&1].0, world.inboxes[&2].0);
    world.outbox.begin_wait();
    assert_eq!(world.send(2, None), Err(Hindrance::Full));
    assert_eq!(slow_later(&world), [first]);
    assert_eq!(world.read(1), Some(0));
    world.send(2, None).unwrap();
    world.outbox.end_wait(true);
    assert_eq!(slow_later(&world), [0; 0]);
    // There is no memory for that: the other has more of it, and keeps it over what finds room meanwhile.
    assert_eq!(world.read_all(1), [1, 2]);
    world.outbox.collect_all();
    world.outbox.begin_wait();
    assert!(world.outbox.loan(1 << 20).is_err());
    world.outbox.end_wait(false);
    world.outbox.begin_wait();
    world.send(3, None).unwrap();
    world.outbox.end_wait(true);
    assert_eq!(slow_later(&world), [second]);
    world.read_all(1);
    world.read_all(2);
    world.assert_all_is_back();
}

#[test]
fn what_waits_for_one_member_holds_no_other_member_s_up() {
    let mut world = World::new(WhenFull::Block, true);
    (1..=3).for_each(|id| world.join(id, 7, 8));
    let owner = |world: &mut World, key: u64| {
        world.send(key, Some(key)).unwrap();
        (1..=3).find(|id| !world.read_all(*id).is_empty()).unwrap()
    };
    let keys: Vec<(u64, u64)> = (0..64).map(|key| (key, owner(&mut world, key))).collect();
    let of = |id: u64| keys.iter().filter(move |(_, owner)| *owner == id);
    world.outbox.collect_all();
    // The stopped one has all that it may, and so has the one that dies.
    let (stopped, dying) = (of(2).next().unwrap().0, of(1).map(|(key, _)| *key));
    let dead_ones: Vec<u64> = dying.take(8).collect();
    for number in 0..8 {
        world.send(100 + number, Some(stopped)).unwrap();
    }
    for key in &dead_ones {
        world.send(*key, Some(*key)).unwrap();
    }
    world.kill(1);
    let got = world.read_all(3);
    assert!(!got.is_empty() && got.len() < dead_ones.len(), "{got:?}");
    assert_eq!(world.read_all(2).len(), 8);
    world.outbox.collect_all();
    let rest = world.read_all_of(&[2, 3]);
    assert_eq!(got.len() + rest.len(), dead_ones.len());
    world.assert_all_is_back();
}

#[test]
fn what_one_may_have_worked_on_is_marked_for_all_who_get_it_after_him() {
    let mut world = World::new(WhenFull::Block, true);
    world.join(1, 7, 8);
    world.send(0, None).unwrap();
    world.pop(1).unwrap();
    world.join(2, 7, 8);
    world.kill(1);
    world.join(3, 7, 8);
    // It had it, and did not look.
    world.kill(2);
    let (_, taken) = world.pop(3).unwrap();
    assert!(taken.is_redelivered());
    world.release(3, &taken);
    world.assert_all_is_back();
}

#[test]
fn what_is_given_up_for_want_of_room_is_named() {
    for (when_full, named) in [
        (WhenFull::DropNewest, [2, 3, 4]),
        (WhenFull::DropOldest, [0, 1, 2]),
    ] {
        let mut world = World::new(when_full, false);
        assert_eq!(world.send(0, None), Ok(0));
        assert_eq!(world.lost(), [0], "nobody is there");
        world.outbox.sequence = 0;
        world.outbox.pending = Some(crate::pending::Pending::default());
        world.join(1, 7, 2);
        (0..5).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
        assert_eq!(world.lost(), named, "{when_full:?}");
        assert_eq!(world.read_all(1).len(), 2);
        world.assert_all_is_back();
    }
}
