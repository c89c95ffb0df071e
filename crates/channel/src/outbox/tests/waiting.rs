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
fn who_had_no_room_once_and_had_some_when_it_was_next_asked_is_not_slow() {
    let mut world = World::new(WhenFull::Fail, false);
    world.join(1, 0, 2);
    world.join(2, 0, 4);
    (0..2).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    assert_eq!(world.send(2, None), Err(Hindrance::Full));
    // There is no memory for that: whoever has some holds it up.
    assert!(world.outbox.loan(1 << 20).is_err());
    assert_eq!(slow_later(&world).len(), 2);
    assert_eq!(world.read_all(1), [0, 1]);
    world.send(2, None).unwrap();
    assert_eq!(slow_later(&world), [0; 0]);
    world.read_all(1);
    world.read_all(2);
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
