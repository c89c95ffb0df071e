//! Those who write over their links what they should not.

use std::sync::atomic::Ordering;

use super::*;

#[test]
fn who_gives_back_what_it_does_not_have_is_found_out() {
    let mut world = World::new(WhenFull::Block, false);
    world.join(1, 0, 4);
    world.send(0, None).unwrap();
    let fd = link::create(4, 1).unwrap();
    let index = world.inboxes[&1].0;
    // As if the subscriber wrote over its ring of releases.
    let shared = world.link_with(1);
    let mut liar = SubscribeEnd::new(shared, 0, false);
    liar.release(3);
    world.outbox.collect_all();
    assert_eq!(world.outbox.liars, [index]);
    world.outbox.remove(index);
    world.assert_all_is_back();
    drop(fd);
}

#[test]
fn who_gets_the_place_of_a_liar_that_has_gone_is_not_taken_for_it() {
    let mut world = World::new(WhenFull::Block, false);
    world.join(1, 0, 4);
    world.send(0, None).unwrap();
    let index = world.inboxes[&1].0;
    let shared = world.link_with(1);
    SubscribeEnd::new(shared, 0, false).release(3);
    world.outbox.collect_all();
    world.kill(1);
    world.join(2, 0, 4);
    assert_eq!(world.inboxes[&2].0, index);
    assert!(world.outbox.liars.is_empty());
}

#[test]
fn a_publisher_may_say_that_it_gave_up_any_number_of_messages() {
    let mut world = World::new(WhenFull::DropNewest, false);
    world.join(1, 7, 4);
    let shared = world.link_with(1);
    let mut liar = PublishEnd::new(Arc::clone(&shared), 0);
    for (ticket, skipped) in [(0, u64::MAX), (1, 0), (2, u64::MAX)] {
        let words = shared.words(0);
        words.skipped.store(skipped, Ordering::Relaxed);
        liar.push(&Descriptor {
            line: 0,
            bytes: 8,
            flags: flags::GAP,
            ticket,
            sequence: 1,
        });
        liar.publish();
        let (_, taken) = world.pop(1).unwrap();
        assert_eq!(taken.lost, skipped);
    }
    assert_eq!(world.inboxes[&1].1.lost(), u64::MAX);
}

#[test]
#[cfg_attr(miri, ignore = "Miri shuts no pair of sockets down")]
fn a_publisher_that_points_outside_of_its_pool_is_left() {
    let mut world = World::new(WhenFull::Block, false);
    world.join(1, 0, 4);
    world.send(0, None).unwrap();
    let shared = world.link_with(1);
    assert!(world.read(1).is_some());
    let mut liar = PublishEnd::new(shared, 0);
    for ticket in [0, 1] {
        liar.push(&Descriptor {
            line: u32::MAX >> 6,
            bytes: 1000,
            flags: 0,
            ticket,
            sequence: 1,
        });
    }
    liar.publish();
    assert!(world.read(1).is_none());
    assert!(!world.inboxes[&1].1.has_some());
    let link = world.link_with(1);
    assert_eq!(link.words(0).taken.load(Ordering::Relaxed), 2);
}
