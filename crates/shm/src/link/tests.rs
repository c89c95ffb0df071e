//! Both ends of a link against each other and against a model. Interleavings are `tests/loom_link.rs`'s.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::*;

fn ends(slots: u32, overwrites: bool) -> (PublishEnd, SubscribeEnd) {
    let fd = create(slots, 1).unwrap();
    let [own, other] = [(); 2].map(|()| Arc::new(Link::attach(fd.as_fd(), slots, 1).unwrap()));
    (
        PublishEnd::new(own, 0),
        SubscribeEnd::new(other, 0, overwrites),
    )
}

fn descriptor(ticket: u16, sequence: u64) -> Descriptor {
    Descriptor {
        line: 0x03ff_ffff,
        bytes: MESSAGE_BYTES_MAX as u32,
        flags: flags::GAP,
        ticket,
        sequence,
    }
}

#[test]
fn a_batch_is_seen_as_a_whole_and_not_before_it_is_published() {
    let (mut publisher, mut subscriber) = ends(4, false);
    for number in 0..3 {
        publisher.push(&descriptor(number, u64::from(number)));
    }
    assert_eq!(subscriber.pop(), None);
    assert!(!publisher.publish(), "nobody sleeps");
    for number in 0..3 {
        let popped = subscriber.pop().unwrap();
        assert_eq!(popped.descriptor, descriptor(number, u64::from(number)));
    }
    assert_eq!(subscriber.pop(), None);
}

#[test]
fn tickets_come_back_in_the_order_in_which_they_were_given_back() {
    let (mut publisher, mut subscriber) = ends(4, false);
    for lap in 0..5 {
        for number in 0..4 {
            publisher.push(&descriptor(number, lap));
        }
        publisher.publish();
        while subscriber.pop().is_some() {}
        assert_eq!(publisher.collect(), None);
        subscriber.release_all(&[2, 0, 3, 1]);
        let back: Vec<u16> = std::iter::from_fn(|| publisher.collect()).collect();
        assert_eq!(back, [2, 0, 3, 1]);
    }
    let counters = publisher.link().counters(0);
    assert_eq!(
        (counters.messages, counters.queued, counters.held),
        (20, 0, 0)
    );
}

#[test]
fn what_did_not_go_as_it_should_is_there_for_onlookers() {
    let (publisher, subscriber) = ends(4, false);
    publisher.tell(Troubles {
        dropped: 1,
        skipped: 2,
        redelivered: 3,
        full: 4,
    });
    let counters = subscriber.link().counters(0);
    assert_eq!(
        (counters.dropped, counters.redelivered, counters.full),
        (1, 3, 4)
    );
    let skipped = &subscriber.link().words(0).skipped;
    assert_eq!(skipped.load(Ordering::Relaxed), 2);
}

#[test]
fn who_sleeps_is_woken_once() {
    let (mut publisher, mut subscriber) = ends(2, false);
    assert!(subscriber.sleep());
    publisher.push(&descriptor(0, 0));
    assert!(publisher.publish());
    publisher.push(&descriptor(1, 1));
    assert!(!publisher.publish());
    assert!(!subscriber.sleep(), "there is something");
    assert!(subscriber.pop().is_some());
    assert!(publisher.sleep());
    assert!(subscriber.release(0) && !subscriber.release(1));
    assert!(!publisher.sleep());
}

#[test]
fn the_oldest_can_be_taken_back_and_is_missed() {
    let (mut publisher, mut subscriber) = ends(4, true);
    for number in 0..4 {
        publisher.push(&descriptor(number, u64::from(number)));
    }
    assert_eq!(publisher.take_back(), Ok(None), "not seen by anybody yet");
    publisher.publish();
    assert_eq!(subscriber.pop().unwrap().descriptor.sequence, 0);
    assert_eq!(publisher.take_back(), Ok(Some(1)));
    assert_eq!(publisher.take_back(), Ok(Some(2)));
    let popped = subscriber.pop().unwrap();
    assert_eq!((popped.descriptor.sequence, popped.lost), (3, 2));
    assert_eq!(publisher.take_back(), Ok(None));
    assert!(!subscriber.has_some());
}

#[test]
fn a_count_that_cannot_be_is_a_lie() {
    let (mut publisher, subscriber) = ends(4, true);
    publisher.push(&descriptor(0, 0));
    publisher.publish();
    for lie in [2, u32::MAX - 4, 1 << 31] {
        subscriber
            .link()
            .words(0)
            .taken
            .store(lie, Ordering::Relaxed);
        assert_eq!(publisher.take_back(), Err(Lie));
        assert_eq!(publisher.taken(), Err(Lie));
    }
}

/// Random steps of both ends against a queue, over many laps.
#[test]
fn a_link_is_a_queue() {
    for overwrites in [false, true] {
        let mut random = 3_u64;
        let mut next = move |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let (mut publisher, mut subscriber) = ends(8, overwrites);
        let (mut free, mut held) = ((0..8).collect::<Vec<u16>>(), Vec::new());
        let (mut queue, mut unseen) = (VecDeque::new(), Vec::new());
        let mut sequence = 0;
        for _ in 0..if cfg!(miri) { 500 } else { 50_000 } {
            match next(6) {
                0 | 1 if !free.is_empty() => {
                    let ticket = free.remove(next(free.len() as u64) as usize);
                    publisher.push(&descriptor(ticket, sequence));
                    unseen.push((ticket, sequence));
                    sequence += 1;
                }
                2 => {
                    publisher.publish();
                    queue.extend(unseen.drain(..));
                }
                3 => {
                    let popped = subscriber.pop().map(|popped| popped.descriptor);
                    let popped = popped.map(|found| (found.ticket, found.sequence));
                    assert_eq!(popped, queue.pop_front());
                    held.extend(popped);
                }
                4 if !held.is_empty() => {
                    let (ticket, _) = held.swap_remove(next(held.len() as u64) as usize);
                    subscriber.release(ticket);
                    assert_eq!(publisher.collect(), Some(ticket));
                    free.push(ticket);
                }
                5 if overwrites => {
                    let oldest = publisher.take_back().unwrap();
                    let expected: Option<(u16, u64)> = queue.pop_front();
                    assert_eq!(oldest.is_some(), expected.is_some());
                    free.extend(expected.map(|(ticket, _)| ticket));
                }
                _ => {}
            }
        }
    }
}

/// What a peer may write is refused or harmless, whatever it is.
#[test]
fn rubbish_in_the_rings_does_no_harm() {
    let (mut publisher, mut subscriber) = ends(2, false);
    let link = Arc::clone(publisher.shared());
    for value in [0, u64::MAX, 1 << 63, 0x8fff_ffff_ffff_ffff] {
        for position in 0..2 {
            link.slot(0, position).what.store(value, Ordering::Relaxed);
            link.slot(0, position)
                .which
                .store(!value, Ordering::Relaxed);
            link.release_entry(0, position)
                .store(value as u32, Ordering::Relaxed);
        }
        for _ in 0..4 {
            if let Some(popped) = subscriber.pop() {
                assert!(
                    popped
                        .descriptor
                        .place(1 << 20)
                        .is_none_or(|(start, bytes)| start + bytes <= 1 << 20)
                );
            }
            publisher.collect();
        }
    }
}
