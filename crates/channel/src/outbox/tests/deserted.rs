//! Groups whose members have gone.

use std::time::Duration;

use super::{Details, Hindrance, POOL_BYTES, World};
use crate::WhenFull;

/// Members join groups of their own, get what they may, and leave; one that gets everything reads on.
fn come_and_go(world: &mut World) {
    world.join(1, 0, 1024);
    let (last, sends) = if cfg!(miri) { (12, 50) } else { (60, 200) };
    for group in 10..=last {
        world.join(group, group, 1024);
        for _ in 0..sends {
            if let Ok(buffer) = world.outbox.loan(4000) {
                let pushed = world.outbox.push(buffer, Details::of_next(None));
                if let Err((buffer, _)) = pushed {
                    world.outbox.pool_mut().give_back(buffer);
                }
                world.outbox.publish();
            }
            world.read_all(1);
        }
        world.kill(group);
    }
    world.outbox.collect_all();
}

#[test]
fn what_members_of_deserted_groups_left_makes_room_when_patience_is_over() {
    for when_full in [WhenFull::Block, WhenFull::DropNewest] {
        let mut world = World::new(when_full, true);
        world.outbox.options.patience = Some(Duration::ZERO);
        come_and_go(&mut world);
        let half = POOL_BYTES as usize / 2;
        let buffer = world.outbox.loan(half).unwrap();
        world.outbox.pool_mut().give_back(buffer);
        assert!(world.outbox.dropped() > 0);
        world.outbox.collect_all();
        assert_eq!(world.outbox.groups.len(), 0);
        assert_eq!((world.outbox.out_bytes, world.outbox.in_flight()), (0, 0));
        assert!(
            world.outbox.single(64).is_some(),
            "as if there never was a group"
        );
        world.assert_all_is_back();
    }
}

#[test]
fn what_the_last_member_left_waits_for_the_next_one_while_there_is_patience() {
    let mut world = World::new(WhenFull::Block, true);
    world.join(1, 0, 64);
    world.join(2, 7, 64);
    for number in 0..5 {
        world.send(number, None).unwrap();
    }
    world.kill(2);
    while world.outbox.loan(4000).is_ok() {}
    world.join(3, 7, 64);
    assert_eq!(world.read_all_of(&[3]), [0, 1, 2, 3, 4]);
    assert_eq!(world.outbox.dropped(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri shuts no pair of sockets down")]
fn one_that_was_left_gives_back_what_it_had_of_a_group_that_was_forgotten() {
    let mut world = World::new(WhenFull::Block, false);
    world.join(1, 7, 4);
    world.send(0, Some(5)).unwrap();
    world.outbox.part(world.inboxes[&1].0);
    assert_eq!(world.outbox.groups.len(), 0);
    world.join(2, 7, 4);
    assert_eq!(world.read_all(1), [0]);
    world.outbox.collect_all();
    world.send(1, Some(5)).unwrap();
    assert_eq!(world.read_all(2), [1]);
    world.assert_all_is_back();
}

#[test]
#[cfg_attr(miri, ignore = "Miri shuts no pair of sockets down")]
fn what_waits_is_not_given_up_for_one_that_lacks_a_slot_nor_while_one_that_was_left_has_it() {
    let mut world = World::new(WhenFull::Block, true);
    world.outbox.options.patience = Some(Duration::ZERO);
    world.join(1, 0, 2);
    world.join(2, 7, 4);
    (0..2).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    world.outbox.part(world.inboxes[&2].0);
    assert_eq!(world.read_all(1), [0, 1]);
    let mut loans = Vec::new();
    while let Ok(buffer) = world.outbox.loan(4000) {
        loans.push(buffer);
    }
    assert_eq!(world.outbox.dropped(), 0, "it would free nothing");
    for buffer in loans {
        world.outbox.pool_mut().give_back(buffer);
    }
    assert_eq!(world.read_all(2), [0, 1]);
    world.outbox.collect_all();
    (2..4).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    assert_eq!(world.send(4, None), Err(Hindrance::Full));
    assert!(world.outbox.has_orphans() && world.outbox.dropped() == 0);
    world.join(3, 7, 4);
    assert_eq!(world.read_all_of(&[1, 3]).len(), 4);
    world.assert_all_is_back();
}

#[test]
fn who_hindered_something_else_before_is_not_blamed() {
    let mut world = World::new(WhenFull::Fail, true);
    world.join(1, 0, 4);
    world.join(2, 7, 2);
    world.join(3, 7, 2);
    let [single, dying, full] = [1, 2, 3].map(|id| world.inboxes[&id].0);
    (0..4).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    assert_eq!(world.send(4, None), Err(Hindrance::Full));
    world.outbox.count_full(true);
    assert!(world.outbox.is_hindering(single) && !world.outbox.is_hindering(full));
    world.read(1).unwrap();
    world.kill(2);
    assert_eq!(world.send(4, None), Err(Hindrance::Full));
    assert!(world.outbox.is_hindering(full) && !world.outbox.is_hindering(single));
    assert_ne!(dying, full);
}

#[test]
fn groups_that_have_gone_leave_nothing() {
    let mut world = World::new(WhenFull::Block, false);
    come_and_go(&mut world);
    assert_eq!(world.outbox.groups.len(), 0);
    assert!(world.outbox.single(64).is_some());
    world.assert_all_is_back();
}
