//! Who has no room, and who is not heard, does not keep the others from going on.

use std::time::{Duration, Instant};

use millrace_channel::{Channel, Error, Publisher, WhenFull};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::agent::Running;
use crate::{A_WHILE, SOON, channel, number, send};

/// Sends without waiting. False: there is no room.
fn try_send(publisher: &Publisher, number: u64, key: Option<u64>) -> bool {
    let Ok(mut loan) = publisher.try_loan(8) else {
        return false;
    };
    loan.copy_from_slice(&number.to_le_bytes());
    let sent = publisher.try_push(loan, key);
    publisher.publish();
    match sent {
        Ok(_) => true,
        Err(failed) => {
            assert!(matches!(failed.error, Error::Full), "{}", failed.error);
            false
        }
    }
}

/// Whether a descriptor is readable within that time.
fn is_readable(publisher: &Publisher, timeout: Duration) -> bool {
    let mut polled = [PollFd::new(publisher.as_fd(), PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::try_from(timeout).unwrap()).unwrap() == 1
}

/// The subscriber never finds nothing: the first publisher always has another message for it. `take` takes one.
fn a_newcomer_is_heard_beside_one_that_never_stops(
    take: impl Fn(&millrace_channel::Subscriber) -> u64,
) {
    const NEWCOMER: u64 = u64::MAX;
    let agent = Running::start();
    let channel = channel(&agent, "busy");
    let subscriber = channel.subscriber().unwrap();
    let busy = channel.publisher().unwrap();
    assert!(busy.wait_for_subscribers(1, SOON) && subscriber.wait_for_publishers(1, SOON));
    (0..200).for_each(|number| send(&busy, number));
    let channel = channel.clone();
    let newcomer = std::thread::spawn(move || {
        let publisher = channel.publisher().unwrap();
        assert!(publisher.wait_for_subscribers(1, SOON));
        send(&publisher, NEWCOMER);
        publisher.drain(SOON)
    });
    let (begin, mut next) = (Instant::now(), 200);
    while take(&subscriber) != NEWCOMER {
        send(&busy, next);
        next += 1;
        assert!(begin.elapsed() < SOON, "the newcomer is not heard");
    }
    assert!(newcomer.join().unwrap());
}

#[test]
fn a_newcomer_is_heard_by_one_that_pops_without_end() {
    a_newcomer_is_heard_beside_one_that_never_stops(|subscriber| {
        subscriber.pop().unwrap().u64_at(0).unwrap()
    });
}

#[test]
fn a_newcomer_is_heard_by_one_that_receives_without_end() {
    a_newcomer_is_heard_beside_one_that_never_stops(number);
}

fn channel_of(agent: &Running, name: &str) -> millrace_channel::Subscriber {
    channel(agent, name).slots(2).subscriber().unwrap()
}

fn impatient(agent: &Running, name: &str, when_full: WhenFull) -> Channel {
    let channel = channel(agent, name).slots(2).when_full(when_full);
    channel.patience(Some(A_WHILE))
}

#[test]
fn who_is_told_that_there_is_no_room_goes_on_without_one_that_makes_none() {
    let agent = Running::start();
    for when_full in [WhenFull::Fail, WhenFull::Block] {
        let channel = impatient(&agent, "told", when_full);
        let publisher = channel.publisher().unwrap();
        let (reader, stopped) = (channel.subscriber().unwrap(), channel.subscriber().unwrap());
        assert!(publisher.wait_for_subscribers(2, SOON));
        let (begin, mut refused) = (Instant::now(), 0);
        for wanted in 0..10 {
            while !try_send(&publisher, wanted, None) {
                refused += 1;
                assert!(begin.elapsed() < SOON, "{when_full:?}: message {wanted}");
            }
            assert_eq!(number(&reader), wanted);
        }
        assert!(refused > 0 && begin.elapsed() >= A_WHILE);
        assert_eq!(publisher.subscribers(), 1);
        assert_eq!((number(&stopped), number(&stopped)), (0, 1));
    }
}

#[test]
fn one_that_reads_now_and_then_is_not_left_by_who_is_told_that_there_is_no_room() {
    let agent = Running::start();
    let channel = channel(&agent, "now-and-then").slots(2);
    let channel = channel
        .when_full(WhenFull::Fail)
        .patience(Some(4 * A_WHILE));
    let publisher = channel.publisher().unwrap();
    let slow = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    let mut sent = 0;
    for wanted in 0..10 {
        while try_send(&publisher, sent, None) {
            sent += 1;
        }
        std::thread::sleep(A_WHILE);
        assert_eq!(number(&slow), wanted);
    }
    assert_eq!(publisher.subscribers(), 1);
}

#[test]
fn what_a_dead_member_had_holds_others_up_no_longer_than_patience() {
    let agent = Running::start();
    let patience = 10 * A_WHILE;
    let channel = impatient(&agent, "heirs", WhenFull::Fail).patience(Some(patience));
    let channel = channel.redeliver(true);
    let publisher = channel.publisher().unwrap();
    let group = channel.clone().group("workers");
    let (dying, stopped) = (group.subscriber().unwrap(), group.subscriber().unwrap());
    assert!(publisher.wait_for_subscribers(2, SOON));
    (0..4).for_each(|number| assert!(try_send(&publisher, number, None)));
    let reader = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(3, SOON));
    // Both members are full: what the first had waits.
    let begin = Instant::now();
    drop(dying);
    while publisher.subscribers() == 3 {
        publisher.attend();
    }
    assert!(!try_send(&publisher, 4, None));
    // Nobody sends or waits by a function: the descriptor tells, when the other is left, too.
    while publisher.subscribers() == 2 {
        assert!(is_readable(&publisher, SOON) && begin.elapsed() < SOON);
        publisher.attend();
    }
    assert!(begin.elapsed() >= patience);
    assert!(try_send(&publisher, 5, None), "the group has no member");
    assert_eq!(number(&reader), 5);
    drop(stopped);
}

#[test]
fn a_descriptor_tells_of_room_for_what_was_refused() {
    let agent = Running::start();
    let channel = channel(&agent, "room").slots(2).when_full(WhenFull::Fail);
    let publisher = channel.publisher().unwrap();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    for round in 0..20 {
        let mut sent = round * 2;
        while try_send(&publisher, sent, None) {
            sent += 1;
        }
        while is_readable(&publisher, Duration::ZERO) {
            publisher.attend();
        }
        assert_eq!(number(&subscriber), round * 2);
        assert!(is_readable(&publisher, SOON), "round {round}");
        // One that finds nothing refused is not woken by what comes back.
        assert_eq!(number(&subscriber), round * 2 + 1);
        publisher.attend();
    }
}

#[test]
fn a_descriptor_does_not_tell_again_and_again_of_room_that_is_another_s() {
    let agent = Running::start();
    let channel = channel(&agent, "others").slots(2);
    let channel = channel.when_full(WhenFull::Fail).patience(None);
    let publisher = channel.publisher().unwrap();
    let (stopped, reader) = (channel.subscriber().unwrap(), channel.subscriber().unwrap());
    assert!(publisher.wait_for_subscribers(2, SOON));
    let _ = publisher.as_fd();
    (0..2).for_each(|number| assert!(try_send(&publisher, number, None)));
    (0..2).for_each(|wanted| assert_eq!(number(&reader), wanted));
    let mut woken = 0;
    assert!(!try_send(&publisher, 2, None));
    while is_readable(&publisher, A_WHILE) {
        assert!(!try_send(&publisher, 2, None));
        woken += 1;
        assert!(woken < 10, "there is no room");
    }
    assert_eq!(number(&stopped), 0);
    assert!(is_readable(&publisher, SOON));
    assert!(try_send(&publisher, 2, None));
}

#[test]
fn a_descriptor_tells_of_room_also_to_one_who_has_looked_since_he_was_refused() {
    let agent = Running::start();
    let channel = channel(&agent, "looked").slots(2);
    let publisher = channel.when_full(WhenFull::Fail).publisher().unwrap();
    let subscriber = channel_of(&agent, "looked");
    assert!(publisher.wait_for_subscribers(1, SOON));
    let _ = publisher.as_fd();
    (0..2).for_each(|number| assert!(try_send(&publisher, number, None)));
    for wanted in 0..20 {
        assert!(!try_send(&publisher, wanted + 2, None));
        assert_eq!(number(&subscriber), wanted);
        // Longer than news are left alone: it hears the bell.
        std::thread::sleep(A_WHILE / 10);
        publisher.publish();
        assert!(is_readable(&publisher, SOON), "round {wanted}");
        assert!(try_send(&publisher, wanted + 2, None));
    }
}

#[test]
fn what_was_pushed_is_seen_when_the_next_is_refused() {
    let agent = Running::start();
    let channel = channel(&agent, "shown").slots(2);
    let publisher = channel.when_full(WhenFull::Fail).publisher().unwrap();
    let subscriber = channel_of(&agent, "shown");
    assert!(publisher.wait_for_subscribers(1, SOON));
    let push = || {
        publisher
            .push(publisher.loan(8).unwrap())
            .map_err(|failed| failed.error)
    };
    assert!(push().is_ok() && push().is_ok());
    assert!(matches!(push(), Err(Error::Full)));
    assert_eq!(subscriber.receive().unwrap().sequence(), 0);
}
