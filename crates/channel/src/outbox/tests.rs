//! Outboxes and inboxes against each other, without an agent.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use millrace_shm::link::{self, Link, PublishEnd, SubscribeEnd};
use millrace_shm::pool::{self, Pool, PoolView};
use millrace_shm::withheld::Withheld;

use super::*;
use crate::inbox::{Inbox, Source, Taken};

mod deserted;
mod hostile;
mod waiting;

const POOL_BYTES: u64 = 1 << 20;

/// A publisher, and its subscribers by their ids.
struct World {
    outbox: Outbox,
    memory: OwnedFd,
    inboxes: HashMap<u64, (usize, Inbox)>,
}

impl World {
    fn new(when_full: WhenFull, redeliver: bool) -> World {
        let (memory, _) = pool::create(POOL_BYTES).unwrap();
        let pool = Pool::attach(memory.as_fd(), POOL_BYTES).unwrap();
        let options = OutboxOptions {
            when_full,
            redeliver,
            patience: None,
            is_answered: true,
        };
        World {
            outbox: Outbox::new(pool, options),
            memory,
            inboxes: HashMap::new(),
        }
    }

    fn join(&mut self, id: u64, group: u64, slots: u32) {
        let fd = link::create(slots, 1).unwrap();
        let [own, other] = [(); 2].map(|()| Arc::new(Link::attach(fd.as_fd(), slots, 1).unwrap()));
        let (bell, other_bell) = UnixStream::pair().unwrap();
        let [bell, other_bell] = [bell, other_bell].map(|end| Withheld::new(OwnedFd::from(end)));
        let end = PublishEnd::new(own, 0);
        let index = self.outbox.add(Peer::new(id, group, end, Arc::new(bell)));
        let overwrites = self.outbox.options.when_full == WhenFull::DropOldest;
        let end = SubscribeEnd::new(other, 0, overwrites);
        let view = PoolView::attach(self.memory.as_fd(), POOL_BYTES).unwrap();
        let mut inbox = Inbox::default();
        inbox.add(Source::new(1, end, view, Arc::new(other_bell), group == 0));
        self.inboxes.insert(id, (index, inbox));
    }

    /// The link with a subscriber, as either of the two has it.
    fn link_with(&self, id: u64) -> Arc<Link> {
        let peer = self.outbox.peers[self.inboxes[&id].0].as_ref().unwrap();
        Arc::clone(peer.end.shared())
    }

    /// The subscriber dies; its publisher hears of it. Returns the numbers of what nobody will have read.
    fn kill(&mut self, id: u64) -> Vec<u64> {
        let (index, _) = self.inboxes.remove(&id).unwrap();
        self.outbox.remove(index);
        self.lost()
    }

    /// Numbers of messages that were given up, and have not been told yet.
    fn lost(&mut self) -> Vec<u64> {
        let pending = self.outbox.pending.as_mut().unwrap();
        std::iter::from_fn(|| pending.next_lost()).collect()
    }

    fn push(&mut self, number: u64, key: Option<u64>) -> Result<u64, Hindrance> {
        let mut buffer = self.outbox.loan(8)?;
        let memory = Arc::clone(self.outbox.pool().memory());
        memory
            .bytes_mut(&mut buffer)
            .copy_from_slice(&number.to_le_bytes());
        self.outbox
            .push(buffer, Details::of_next(key))
            .map_err(|(buffer, hindrance)| {
                self.outbox.pool_mut().give_back(buffer);
                hindrance
            })
    }

    fn send(&mut self, number: u64, key: Option<u64>) -> Result<u64, Hindrance> {
        let sent = self.push(number, key);
        self.outbox.publish();
        sent
    }

    fn pop(&mut self, id: u64) -> Option<(u64, Taken)> {
        let (_, inbox) = self.inboxes.get_mut(&id)?;
        let taken = inbox.pop()?;
        let bytes = inbox.bytes(&taken)?;
        Some((bytes.u64_at(0)?, taken))
    }

    fn release(&mut self, id: u64, taken: &Taken) {
        let inbox = &mut self.inboxes.get_mut(&id).unwrap().1;
        assert!(inbox.release(taken.source, taken.publisher, taken.descriptor.ticket));
    }

    fn read(&mut self, id: u64) -> Option<u64> {
        let (number, taken) = self.pop(id)?;
        self.release(id, &taken);
        Some(number)
    }

    fn read_all(&mut self, id: u64) -> Vec<u64> {
        std::iter::from_fn(|| self.read(id)).collect()
    }

    /// What these have, and what comes when they give that back.
    fn read_all_of(&mut self, ids: &[u64]) -> Vec<u64> {
        let mut all = Vec::new();
        loop {
            self.outbox.collect_all();
            let before = all.len();
            for id in ids {
                all.extend(self.read_all(*id));
            }
            if all.len() == before {
                return all;
            }
        }
    }

    fn assert_all_is_back(&mut self) {
        self.outbox.collect_all();
        assert_eq!(self.outbox.in_flight(), 0);
        assert_eq!(self.outbox.pool().used_bytes(), 0);
    }
}

#[test]
fn everybody_gets_every_message_and_its_memory_comes_back_with_the_last() {
    let mut world = World::new(WhenFull::Block, false);
    assert_eq!(world.send(0, None), Err(Hindrance::NoReceiver));
    for id in 1..=3 {
        world.join(id, 0, 8);
    }
    for number in 0..4 {
        world.send(number, None).unwrap();
    }
    assert_eq!(world.read_all(1), [0, 1, 2, 3]);
    assert_eq!(world.read_all(2), [0, 1, 2, 3]);
    world.outbox.collect_all();
    assert_eq!(world.outbox.in_flight(), 4);
    world.kill(3);
    world.assert_all_is_back();
}

#[test]
fn who_has_no_room_holds_a_blocking_publisher_up_and_loses_nothing() {
    let mut world = World::new(WhenFull::Block, false);
    world.join(1, 0, 4);
    world.join(2, 0, 4);
    for number in 0..4 {
        world.send(number, None).unwrap();
    }
    assert_eq!(world.read_all(1).len(), 4);
    world.outbox.begin_wait();
    assert_eq!(world.send(4, None), Err(Hindrance::Full));
    let now = Instant::now();
    let (slow, next) = world.outbox.slow(now, Duration::from_secs(1));
    assert!(slow.is_empty() && next.is_some());
    let (slow, _) = world
        .outbox
        .slow(now + Duration::from_secs(2), Duration::from_secs(1));
    assert_eq!(slow.len(), 1, "the one that gave nothing back");
    assert_eq!(world.read(2), Some(0));
    world.send(4, None).unwrap();
    assert_eq!(world.read_all(2), [1, 2, 3, 4]);
    assert_eq!(world.read_all(1), [4]);
    world.assert_all_is_back();
}

#[test]
fn the_oldest_or_the_newest_is_dropped_and_counted() {
    for (when_full, seen, lost) in [
        (WhenFull::DropOldest, [6, 7, 8, 9], [6, 0, 0, 0]),
        (WhenFull::DropNewest, [0, 1, 2, 3], [0, 0, 0, 0]),
    ] {
        let mut world = World::new(when_full, false);
        world.join(1, 0, 4);
        world.join(2, 0, 16);
        for number in 0..10 {
            world.send(number, None).unwrap();
        }
        let full = world.outbox.peers[world.inboxes[&1].0].as_ref().unwrap();
        assert_eq!(full.end.link().counters(0).dropped, 6, "it is shown");
        let got: Vec<(u64, u64)> = (0..4)
            .map(|_| {
                let (number, taken) = world.pop(1).unwrap();
                world.release(1, &taken);
                (number, taken.lost)
            })
            .collect();
        assert_eq!(
            got,
            std::iter::zip(seen, lost).collect::<Vec<_>>(),
            "{when_full:?}"
        );
        assert!(world.pop(1).is_none());
        world.send(10, None).unwrap();
        let (number, taken) = world.pop(1).unwrap();
        let late = if when_full == WhenFull::DropNewest {
            6
        } else {
            0
        };
        assert_eq!((number, taken.lost), (10, late));
        world.release(1, &taken);
        assert_eq!(world.outbox.dropped(), 6);
        assert_eq!(
            world.read_all(2),
            (0..11).collect::<Vec<_>>(),
            "the other missed nothing"
        );
        world.assert_all_is_back();
    }
}

#[test]
fn of_a_group_the_least_loaded_gets_the_next() {
    let mut world = World::new(WhenFull::Block, false);
    for id in 1..=4 {
        world.join(id, 7, 64);
    }
    for number in 0..40 {
        world.send(number, None).unwrap();
    }
    let counts: Vec<usize> = (2..=4).map(|id| world.read_all(id).len()).collect();
    assert_eq!(counts, [10, 10, 10]);
    for number in 40..70 {
        world.send(number, None).unwrap();
    }
    assert_eq!(world.read_all(1).len(), 10, "it had enough");
    for id in 2..=4 {
        assert_eq!(world.read_all(id).len(), 10);
    }
    world.assert_all_is_back();
}

/// Keys stay in order over members that come, go and die, and nothing is lost.
#[test]
fn messages_of_one_key_are_worked_on_in_order_and_none_is_lost() {
    let mut random = 5_u64;
    let mut next = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    let mut world = World::new(WhenFull::Block, true);
    world.join(1, 7, 16);
    let (mut members, mut last_id) = (vec![1], 1);
    let mut done: HashMap<u64, u64> = HashMap::new();
    let (mut number, mut held) = (0, Vec::<(u64, u64, Taken)>::new());
    let mut missing = HashSet::new();
    for step in 0..if cfg!(miri) { 200 } else { 20_000 } {
        match next(100) {
            0 if members.len() < 5 => {
                last_id += 1;
                world.join(last_id, 7, 16);
                members.push(last_id);
            }
            1 if members.len() > 1 => {
                let id = members.swap_remove(next(members.len() as u64) as usize);
                held.retain(|(holder, _, _)| *holder != id);
                world.kill(id);
            }
            2..50 => {
                // The number's low digits are its key; the rest counts.
                let key = next(50);
                if world.send(number * 100 + key, Some(key)).is_ok() {
                    missing.insert(number * 100 + key);
                    number += 1;
                }
            }
            50..75 => {
                let id = members[next(members.len() as u64) as usize];
                if let Some((message, taken)) = world.pop(id) {
                    held.push((id, message, taken));
                }
            }
            _ if !held.is_empty() => {
                // Worked on: counts as done when it is given back, the oldest of each first.
                let (id, message, taken) = held.remove(0);
                missing.remove(&message);
                let earlier = done.insert(message % 100, message / 100);
                assert!(
                    earlier.is_none_or(|earlier| earlier < message / 100),
                    "step {step}"
                );
                world.release(id, &taken);
            }
            _ => {}
        }
    }
    assert!(!done.is_empty());
    for (id, message, taken) in held {
        missing.remove(&message);
        let earlier = done.insert(message % 100, message / 100);
        assert!(earlier.is_none_or(|earlier| earlier < message / 100));
        world.release(id, &taken);
    }
    for message in world.read_all_of(&members) {
        missing.remove(&message);
    }
    assert_eq!(missing, HashSet::new());
    world.assert_all_is_back();
}

#[test]
fn what_a_dead_member_had_goes_to_the_others_with_a_mark_where_it_was_read() {
    let mut world = World::new(WhenFull::Block, true);
    world.join(1, 7, 8);
    for number in 0..4 {
        world.send(number, None).unwrap();
    }
    let (_, first) = world.pop(1).unwrap();
    let (_, second) = world.pop(1).unwrap();
    world.release(1, &second);
    assert_eq!(world.kill(1), Vec::<u64>::new());
    assert_eq!(first.sequence, 0);
    assert_eq!(
        world.send(4, None),
        Err(Hindrance::NoReceiver),
        "it waits for a member"
    );
    world.join(2, 7, 8);
    world.send(4, None).unwrap();
    let got: Vec<(u64, bool)> = std::iter::from_fn(|| {
        let (number, taken) = world.pop(2)?;
        world.release(2, &taken);
        Some((number, taken.is_redelivered()))
    })
    .collect();
    assert_eq!(got, [(0, true), (2, false), (3, false), (4, false)]);
    world.assert_all_is_back();
}

#[test]
#[cfg_attr(miri, ignore = "Miri shuts no pair of sockets down")]
fn what_goes_to_another_because_its_member_is_slow_has_a_mark_whether_it_was_read_or_not() {
    let mut world = World::new(WhenFull::Block, true);
    world.join(1, 7, 8);
    (0..3).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    let (first, _) = world.pop(1).unwrap();
    let index = world.inboxes[&1].0;
    world.outbox.part(index);
    world.join(2, 7, 8);
    world.outbox.collect_all();
    world.outbox.publish();
    assert_eq!(first, 0);
    for number in 0..3 {
        let (again, taken) = world.pop(2).unwrap();
        assert!(again == number && taken.is_redelivered());
        world.release(2, &taken);
    }
    // The slow one goes on, and reads what it has.
    assert_eq!(world.read(1), Some(1));
    assert_eq!(world.kill(1), [0; 0], "another one has got it");
    assert_eq!(world.outbox.dropped(), 0);
    world.assert_all_is_back();
}

#[test]
fn without_redelivery_what_a_dead_one_had_is_lost_and_named() {
    let mut world = World::new(WhenFull::Block, false);
    world.join(1, 7, 8);
    for number in 0..3 {
        world.send(number, None).unwrap();
    }
    world.read(1).unwrap();
    assert_eq!(world.kill(1), [1, 2]);
    world.assert_all_is_back();
}

#[test]
fn a_slow_subscriber_keeps_no_more_than_its_share() {
    let mut world = World::new(WhenFull::DropNewest, false);
    world.join(1, 0, 1024);
    world.join(2, 0, 1024);
    let bytes = 60_000;
    for _ in 0..100 {
        let buffer = world.outbox.loan(bytes).unwrap();
        world.outbox.push(buffer, Details::of_next(None)).unwrap();
        world.outbox.publish();
        assert!(world.read(2).is_some(), "the fast one is not held up");
    }
    world.outbox.collect_all();
    assert!(world.outbox.pool().used_bytes() <= POOL_BYTES / 2);
    assert_eq!(world.outbox.dropped(), 100 - 7);
}

#[test]
fn who_comes_after_those_that_give_nothing_back_finds_room() {
    let mut world = World::new(WhenFull::DropNewest, false);
    for id in 1..=4 {
        world.join(id, 0, 1024);
        for _ in 0..600 {
            let buffer = world.outbox.loan(2000).unwrap();
            world.outbox.push(buffer, Details::of_next(None)).unwrap();
            world.outbox.publish();
        }
    }
    let out = world.outbox.peers().map(|(_, peer)| peer.tickets.count());
    // Of 496 each has half of what is left.
    assert_eq!(out.collect::<Vec<usize>>(), [248, 124, 62, 31]);
}

#[test]
fn what_was_skipped_before_a_message_that_was_taken_back_is_told_by_the_next() {
    let mut world = World::new(WhenFull::DropOldest, false);
    world.join(1, 0, 2);
    (0..2).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    let (_, first) = world.pop(1).unwrap();
    let (_, second) = world.pop(1).unwrap();
    world.send(2, None).unwrap();
    world.release(1, &first);
    // One is held: the next takes the only room, and the one after it that one's.
    (3..5).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    let (number, taken) = world.pop(1).unwrap();
    assert_eq!((number, taken.lost), (4, 2));
    world.release(1, &second);
    world.release(1, &taken);
    world.assert_all_is_back();
}

#[test]
fn what_waits_for_one_group_does_not_take_the_room_of_a_message_that_goes_to_two() {
    let mut world = World::new(WhenFull::DropOldest, true);
    world.join(1, 7, 2);
    world.join(2, 8, 2);
    (0..2).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    world.join(3, 7, 2);
    world.join(4, 8, 2);
    (2..4).for_each(|number| assert_eq!(world.send(number, None), Ok(number)));
    // What these had waits, as the others have no room.
    world.kill(1);
    world.kill(2);
    assert_eq!(world.send(4, None), Ok(4));
    for id in [3, 4] {
        let mut got = world.read_all_of(&[id]);
        got.sort_unstable();
        assert_eq!(got, [0, 1, 3, 4], "2 was the oldest");
    }
    world.assert_all_is_back();
}

#[test]
fn memory_is_taken_back_from_whoever_has_some_unread() {
    let mut world = World::new(WhenFull::DropOldest, false);
    world.join(1, 7, 16);
    world.join(2, 7, 16);
    let bytes = 60_000;
    let send = |world: &mut World| {
        let buffer = world.outbox.loan(bytes).unwrap();
        world.outbox.push(buffer, Details::of_next(None)).unwrap();
        world.outbox.publish();
    };
    (0..10).for_each(|_| send(&mut world));
    // One has read all that it has, and more than the other.
    let of_first: Vec<_> = std::iter::from_fn(|| world.pop(1)).collect();
    let taken = world.pop(2).unwrap().1;
    world.release(2, &taken);
    let mut loans = Vec::new();
    while let Ok(buffer) = world.outbox.loan(bytes) {
        loans.push(buffer);
    }
    assert_eq!((of_first.len(), loans.len()), (5, 16 - 5));
    assert!(world.pop(2).is_none(), "all of it was taken back");
}

#[test]
fn nobody_makes_room_for_a_message_that_is_too_long() {
    let mut world = World::new(WhenFull::DropOldest, false);
    world.join(1, 0, 4);
    world.send(0, None).unwrap();
    for bytes in [POOL_BYTES as usize + 1, MESSAGE_BYTES_MAX + 1] {
        assert_eq!(world.outbox.loan(bytes).unwrap_err(), Hindrance::Full);
    }
    assert_eq!(world.read_all(1), [0]);
    world.assert_all_is_back();
}
