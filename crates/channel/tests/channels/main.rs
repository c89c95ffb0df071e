//! Participants of channels against a real agent, in one process.

mod agent;
mod forks;
mod groups;
mod requests;
mod room;
mod sys;
mod tasks;
mod waiting;
mod watching;

use std::time::{Duration, Instant};

use millrace_channel::{Channel, Error, Publisher, Subscriber, WhenFull};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use agent::Running;

/// Long enough for everything that comes at all.
const SOON: Duration = Duration::from_secs(20);
/// Long enough to see that something does not come.
const A_WHILE: Duration = Duration::from_millis(50);

fn channel(agent: &Running, name: &str) -> Channel {
    Channel::new(name)
        .agent(agent.path())
        .pool_bytes(1 << 20)
        .timeout(SOON)
}

fn number(subscriber: &Subscriber) -> u64 {
    subscriber.receive().unwrap().u64_at(0).unwrap()
}

fn send(publisher: &Publisher, number: u64) {
    publisher.send(&number.to_le_bytes()).unwrap();
}

#[test]
fn every_subscriber_gets_every_message_in_order() {
    let agent = Running::start();
    let channel = channel(&agent, "all").slots(16);
    let publisher = channel.publisher().unwrap();
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let channel = channel.clone();
            std::thread::spawn(move || {
                let subscriber = channel.subscriber().unwrap();
                (0..5000).for_each(|wanted| assert_eq!(number(&subscriber), wanted));
            })
        })
        .collect();
    assert!(publisher.wait_for_subscribers(3, SOON));
    (0..5000).for_each(|number| send(&publisher, number));
    readers
        .into_iter()
        .for_each(|reader| reader.join().unwrap());
    assert!(publisher.drain(SOON));
}

#[test]
fn many_publishers_are_served_in_turn() {
    let agent = Running::start();
    let channel = channel(&agent, "fan-in");
    let subscriber = channel.subscriber().unwrap();
    let publishers: Vec<Publisher> = (0..8).map(|_| channel.publisher().unwrap()).collect();
    assert!(subscriber.wait_for_publishers(8, SOON));
    for publisher in &publishers {
        assert!(publisher.wait_for_subscribers(1, SOON));
        (0..500).for_each(|number| send(publisher, number));
    }
    let mut counts = std::collections::HashMap::<u64, u64>::new();
    for _ in 0..2000 {
        let message = subscriber.receive().unwrap();
        let count = counts.entry(message.publisher()).or_default();
        assert_eq!(message.u64_at(0), Some(*count));
        *count += 1;
    }
    let (least, most) = (
        counts.values().min().unwrap(),
        counts.values().max().unwrap(),
    );
    assert!(counts.len() == 8 && most - least <= 32, "{counts:?}");
}

#[test]
fn a_message_has_any_size_up_to_the_pool_s() {
    let agent = Running::start();
    let channel = channel(&agent, "sizes").pool_bytes(64 << 20);
    let publisher = channel.publisher().unwrap();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    for bytes in [0, 1, 63, 64, 65, 4096, 65_537, 1 << 20, 1 << 24] {
        let mut loan = publisher.loan(bytes).unwrap();
        assert_eq!(loan.len(), bytes);
        loan.iter_mut()
            .enumerate()
            .for_each(|(at, byte)| *byte = (at % 251) as u8);
        publisher.push(loan).unwrap();
        publisher.publish();
        let message = subscriber.receive().unwrap();
        assert_eq!(message.len(), bytes);
        let copy = message.to_vec();
        assert!(
            copy.iter()
                .enumerate()
                .all(|(at, byte)| *byte == (at % 251) as u8)
        );
    }
    let failed = publisher.loan((1 << 24) + 1).unwrap_err();
    assert!(
        matches!(
            failed,
            Error::TooLong {
                limit: 0x0100_0000,
                ..
            }
        ),
        "{failed}"
    );
    let mut loan = publisher.loan(100).unwrap();
    loan.truncate(3);
    publisher.push(loan).unwrap();
    publisher.publish();
    assert_eq!(subscriber.receive().unwrap().len(), 3);
}

#[test]
fn who_waits_is_woken() {
    let agent = Running::start();
    let channel = channel(&agent, "wake").slots(2);
    let publisher = channel.publisher().unwrap();
    let reader = std::thread::spawn({
        let channel = channel.clone();
        move || {
            let subscriber = channel.subscriber().unwrap();
            for wanted in 0..100 {
                assert_eq!(number(&subscriber), wanted);
                if wanted % 10 == 0 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            let late = subscriber.receive_until(Some(Instant::now() + A_WHILE));
            assert!(matches!(late, Err(Error::TimedOut)));
        }
    });
    assert!(publisher.wait_for_subscribers(1, SOON));
    for number in 0..100 {
        if number % 25 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        send(&publisher, number);
    }
    reader.join().unwrap();
}

/// Of the short ones there is memory for two and room for one; of the long ones, memory for one.
#[test]
fn who_waits_for_room_or_memory_gets_it_once() {
    let agent = Running::start();
    let channel = channel(&agent, "narrow").pool_bytes(65_536);
    let publisher = channel.publisher().unwrap();
    let reader = std::thread::spawn(move || {
        let subscriber = channel.subscriber().unwrap();
        for wanted in 0..200 {
            let message = subscriber.receive().unwrap();
            assert_eq!(message.sequence(), wanted);
            // Longer than anybody looks for room.
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(publisher.wait_for_subscribers(1, SOON));
    for wanted in 0..200 {
        let bytes = if wanted % 20 < 10 { 20_000 } else { 40_000 };
        let loan = publisher.loan(bytes).unwrap();
        assert_eq!(publisher.push(loan).unwrap(), wanted);
        publisher.publish();
    }
    reader.join().unwrap();
    assert!(publisher.drain(SOON));
}

#[test]
fn a_descriptor_says_when_there_is_something() {
    let agent = Running::start();
    let channel = channel(&agent, "poll");
    let publisher = channel.publisher().unwrap();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON) && subscriber.wait_for_publishers(1, SOON));
    let is_readable = |timeout: Duration| {
        let mut polled = [PollFd::new(subscriber.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(timeout).unwrap();
        poll(&mut polled, timeout).unwrap() == 1
    };
    for wanted in 0..50 {
        while subscriber.pop().is_some() {}
        assert!(!is_readable(Duration::from_millis(1)), "{wanted}");
        send(&publisher, wanted);
        assert!(is_readable(SOON), "{wanted}");
        assert_eq!(subscriber.pop().unwrap().u64_at(0), Some(wanted));
    }
}

/// Reads what `counts` publishers send one after another, so many each, by an epoll set of its own.
fn read_by_epoll(channel: &Channel, trigger: EpollFlags, counts: &[u64]) {
    let subscriber = channel.subscriber().unwrap();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    let event = EpollEvent::new(EpollFlags::EPOLLIN | trigger, 7);
    epoll.add(subscriber.as_fd(), event).unwrap();
    let timeout = EpollTimeout::try_from(SOON).unwrap();
    for count in counts {
        let mut next = 0;
        loop {
            // What comes behind these is the next publisher's: it may be there before this thread looks again.
            while next < *count
                && let Some(message) = subscriber.pop()
            {
                assert_eq!(message.u64_at(0), Some(next));
                next += 1;
            }
            if next == *count {
                break;
            }
            let mut events = [EpollEvent::empty(); 4];
            let woken = epoll.wait(&mut events, timeout).unwrap();
            assert_eq!((woken, events[0].data()), (1, 7), "after {next} messages");
        }
    }
    while subscriber.publishers() != 0 {
        std::thread::yield_now();
    }
    // All of it was taken: nothing is left to tell.
    assert!(subscriber.pop().is_none());
    let mut events = [EpollEvent::empty(); 4];
    let timeout = EpollTimeout::try_from(A_WHILE).unwrap();
    assert_eq!(epoll.wait(&mut events, timeout).unwrap(), 0);
}

#[test]
fn a_program_s_own_epoll_tells_of_every_message_by_level_and_by_edge() {
    let agent = Running::start();
    for (name, trigger) in [
        ("level", EpollFlags::empty()),
        ("edge", EpollFlags::EPOLLET),
    ] {
        let channel = channel(&agent, name).slots(16);
        let counts = [3000, 1, 3000];
        let reader = std::thread::spawn({
            let channel = channel.clone();
            move || read_by_epoll(&channel, trigger, &counts)
        });
        for count in counts {
            let publisher = channel.publisher().unwrap();
            assert!(publisher.wait_for_subscribers(1, SOON));
            for number in 0..count {
                send(&publisher, number);
                // Now and then the reader has come to its end, or is about to.
                if number % 64 == 0 {
                    std::thread::sleep(Duration::from_micros(number % 500));
                }
            }
            assert!(publisher.drain(SOON));
        }
        reader.join().unwrap();
    }
}

#[test]
fn a_publisher_that_comes_again_is_heard_and_one_that_went_has_said_all() {
    let agent = Running::start();
    let channel = channel(&agent, "again");
    let subscriber = channel.subscriber().unwrap();
    for round in 0..5 {
        let publisher = channel.publisher().unwrap();
        assert!(publisher.wait_for_subscribers(1, SOON));
        send(&publisher, 2 * round);
        send(&publisher, 2 * round + 1);
        drop(publisher);
        assert_eq!(number(&subscriber), 2 * round);
        assert_eq!(number(&subscriber), 2 * round + 1);
    }
    assert!(subscriber.pop().is_none());
}

#[test]
fn links_go_on_without_the_agent_and_new_ones_come_with_the_next() {
    let mut agent = Running::start();
    let channel = channel(&agent, "restart");
    let publisher = channel.publisher().unwrap();
    let first = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    agent.stop();
    send(&publisher, 1);
    assert_eq!(number(&first), 1);
    assert!(matches!(channel.subscriber(), Err(Error::NoAgent(..))));
    agent.start_again();
    let second = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(2, SOON));
    send(&publisher, 2);
    assert_eq!((number(&first), number(&second)), (2, 2));
    // The first has come again by now, and has no second link.
    let late = first.receive_until(Some(Instant::now() + A_WHILE));
    assert!(late.is_err());
    assert_eq!(publisher.subscribers(), 2);
}

#[test]
fn a_pool_that_a_dying_agent_left_unsealed_is_good_for_the_next() {
    let mut agent = Running::start();
    agent.stop();
    let dying = Running::die_before_sealing(agent.path());
    let channel = channel(&agent, "unsealed");
    let publisher = channel.publisher().unwrap();
    dying.join().unwrap();
    agent.start_again();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    send(&publisher, 1);
    assert_eq!(number(&subscriber), 1);
}

#[test]
fn who_was_refused_by_an_agent_asks_again() {
    let mut agent = Running::start();
    let channel = channel(&agent, "refused");
    let publisher = channel.publisher().unwrap();
    agent.stop();
    let refusing = Running::refuse_one(agent.path());
    while !refusing.is_finished() {
        assert!(!publisher.wait_for_subscribers(1, A_WHILE));
    }
    refusing.join().unwrap();
    agent.start_again();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    send(&publisher, 1);
    assert_eq!(number(&subscriber), 1);
}

#[test]
fn who_keeps_all_waiting_is_left_and_comes_back() {
    let agent = Running::start();
    let channel = channel(&agent, "slow").slots(4).patience(Some(A_WHILE));
    let publisher = channel.publisher().unwrap();
    let (fast, slow) = (channel.subscriber().unwrap(), channel.subscriber().unwrap());
    assert!(publisher.wait_for_subscribers(2, SOON));
    for wanted in 0..20 {
        send(&publisher, wanted);
        assert_eq!(number(&fast), wanted);
    }
    assert_eq!(publisher.subscribers(), 1);
    for wanted in 0..4 {
        assert_eq!(number(&slow), wanted, "what was published to it");
    }
    // It hears that it was left when it waits, and is brought together with the publisher again.
    let late = slow.receive_until(Some(Instant::now() + A_WHILE));
    assert!(late.is_err());
    assert!(publisher.wait_for_subscribers(2, SOON));
    send(&publisher, 20);
    assert_eq!(number(&fast), 20);
    let after = slow.receive().unwrap();
    assert_eq!((after.u64_at(0), after.lost_before()), (Some(20), 16));
    assert_eq!(slow.lost(), 16);
}

#[test]
fn messages_that_are_held_can_be_given_back_in_any_order() {
    let agent = Running::start();
    let channel = channel(&agent, "held").slots(8).when_full(WhenFull::Fail);
    let publisher = channel.publisher().unwrap();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON) && subscriber.wait_for_publishers(1, SOON));
    (0..8).for_each(|number| send(&publisher, number));
    assert!(matches!(publisher.send(&[0]), Err(Error::Full)));
    let mut held: Vec<_> = (0..8).map(|_| subscriber.pop().unwrap()).collect();
    drop(held.remove(5));
    send(&publisher, 8);
    assert!(matches!(publisher.send(&[0]), Err(Error::Full)));
    let last = subscriber.pop().unwrap();
    for (wanted, message) in [0, 1, 2, 3, 4, 6, 7].iter().zip(&held) {
        assert_eq!(message.u64_at(0), Some(*wanted));
    }
    assert_eq!(last.u64_at(0), Some(8));
}

/// Batches for which there is no room, while some of those before them are unread: each message tells of those just before it.
fn gaps_are_told(when_full: WhenFull) {
    let agent = Running::start();
    let channel = channel(&agent, "gaps").slots(4).when_full(when_full);
    let publisher = channel.publisher().unwrap();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON) && subscriber.wait_for_publishers(1, SOON));
    let mut next = 0;
    let mut told = Vec::new();
    let take = |next: &mut u64| {
        let message = subscriber.pop()?;
        let missing = message.sequence() - *next;
        *next = message.sequence() + 1;
        Some((message.sequence(), missing, message.lost_before()))
    };
    send(&publisher, 0);
    told.extend(take(&mut next));
    for batch in [6, 9, 9, 1] {
        for _ in 0..batch {
            publisher.push(publisher.loan(8).unwrap()).unwrap();
        }
        publisher.publish();
        // One more than these had room, and is read when the next batch has left some out.
        told.extend((0..3).filter_map(|_| take(&mut next)));
    }
    told.extend(std::iter::from_fn(|| take(&mut next)));
    let is_right = told.iter().all(|(_, missing, lost)| missing == lost);
    assert!(is_right, "{when_full:?}: number, missing, told: {told:?}");
}

#[test]
fn a_message_tells_of_what_was_given_up_before_it_and_not_after() {
    gaps_are_told(WhenFull::DropNewest);
    gaps_are_told(WhenFull::DropOldest);
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    let agent = Running::start();
    let wrong = [
        channel(&agent, "").publisher().unwrap_err(),
        channel(&agent, "a b").publisher().unwrap_err(),
        channel(&agent, "a").slots(3).publisher().unwrap_err(),
        channel(&agent, "a")
            .pool_bytes(1000)
            .publisher()
            .unwrap_err(),
        Channel::new("a")
            .agent("/nowhere/agent.sock")
            .publisher()
            .unwrap_err(),
    ];
    let words = [
        "letters",
        "letters",
        "slots",
        "pool_bytes",
        "/nowhere/agent.sock",
    ];
    for (error, word) in wrong.iter().zip(words) {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_name_is_a_tenant_s_and_kinds_do_not_mix() {
    let agent = Running::start();
    let channel = channel(&agent, "kinds");
    let publisher = channel.publisher().unwrap();
    let _server = channel.server().unwrap();
    assert!(!publisher.wait_for_subscribers(1, A_WHILE));
    assert!(publisher.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn a_loan_of_another_publisher_does_not_go() {
    let agent = Running::start();
    let publishers = ["one", "another"].map(|name| channel(&agent, name).publisher().unwrap());
    let subscriber = channel(&agent, "another").subscriber().unwrap();
    assert!(publishers[1].wait_for_subscribers(1, SOON));
    let refused = publishers[1].push(publishers[0].loan(8).unwrap());
    let refused = refused.unwrap_err();
    assert!(matches!(refused.error, Error::Option(_)));
    let detached = refused.loan.detach();
    let attach = std::panic::AssertUnwindSafe(|| drop(publishers[1].attach(detached)));
    assert!(std::panic::catch_unwind(attach).is_err());
    send(&publishers[1], 5);
    assert_eq!(number(&subscriber), 5);
}
