//! What waits for room, for somebody who takes part, or for an agent, and goes on when that comes; and who is not waited for any more.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_channel::{Client, Error, Lost, WhenFull};
use millrace_shm::link::{self, Descriptor, Link, PublishEnd};
use millrace_shm::pool;
use millrace_wire::{LinkEnd, Linked, MAX_BYTES, ToAgent, ToClient};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};

use crate::agent::{Running, say};
use crate::{A_WHILE, SOON, channel, number, send};

/// Sends a request of this many bytes, all of this value.
pub(crate) fn ask(client: &Client, bytes: usize, value: u8) -> u64 {
    let mut loan = client.loan(bytes).unwrap();
    loan.fill(value);
    let number = client.push(loan, None).unwrap();
    client.publish();
    number
}

#[test]
fn a_request_whose_server_died_goes_to_one_that_comes_while_its_client_waits() {
    let agent = Running::start();
    let channel = channel(&agent, "heirs").redeliver(true);
    let client = channel.client().unwrap();
    let first = channel.server().unwrap();
    assert!(first.wait_for_clients(1, SOON) && client.wait_for_servers(1, SOON));
    let asking = std::thread::spawn(move || client.call(&[1]).unwrap());
    // It has the request, and says nothing.
    let _ = first.receive().unwrap().detach();
    drop(first);
    // The client is asleep by then.
    std::thread::sleep(A_WHILE);
    let second = channel.server().unwrap();
    second.receive().unwrap().send(&[2]).unwrap();
    assert_eq!(asking.join().unwrap(), [2]);
}

#[test]
fn what_a_dead_member_had_goes_to_another_when_that_has_room_though_the_publisher_does_nothing() {
    let agent = Running::start();
    let channel = channel(&agent, "room").slots(4).group("workers");
    let publisher = channel.clone().redeliver(true).publisher().unwrap();
    let dying = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    let heir = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(2, SOON));
    (0..8).for_each(|number| send(&publisher, number));
    // From now on it waits for news by its descriptor alone.
    let waiting = std::thread::spawn(move || {
        let deadline = Instant::now() + SOON;
        while Instant::now() < deadline && publisher.subscribers() > 0 {
            let mut polled = [PollFd::new(publisher.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::try_from(SOON).unwrap()).unwrap();
        }
    });
    drop(dying);
    std::thread::sleep(A_WHILE);
    let mut got: Vec<u64> = (0..8).map(|_| number(&heir)).collect();
    got.sort_unstable();
    assert_eq!(got, (0..8).collect::<Vec<_>>());
    drop(heir);
    waiting.join().unwrap();
}

#[test]
fn who_waits_is_not_woken_for_nothing() {
    let agent = Running::start();
    let channel = channel(&agent, "idle");
    let publisher = channel.publisher().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        tell.send(nix::unistd::gettid()).unwrap();
        number(&channel.subscriber().unwrap())
    });
    let status = format!("/proc/self/task/{}/status", told.recv().unwrap());
    let sleeps = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.unwrap().to_owned()
    };
    assert!(publisher.wait_for_subscribers(1, SOON));
    // Once it is asleep it sleeps on; on a busy machine that may take a while.
    let sleeps_on = (0..20).any(|_| {
        let before = sleeps();
        std::thread::sleep(4 * A_WHILE);
        sleeps() == before
    });
    assert!(sleeps_on);
    send(&publisher, 7);
    assert_eq!(waiting.join().unwrap(), 7);
}

#[test]
fn a_server_goes_on_without_a_client_that_takes_no_replies() {
    let agent = Running::start();
    let channel = channel(&agent, "deaf").slots(4).patience(Some(A_WHILE));
    let server = channel.server().unwrap();
    // One that is served before, and has given its reply back.
    let served = channel.client().unwrap();
    assert!(server.wait_for_clients(1, SOON) && served.wait_for_servers(1, SOON));
    ask(&served, 1, 0);
    server.receive().unwrap().send(&[0]).unwrap();
    assert!(served.receive().unwrap().is_ok());
    let deaf = channel.client().unwrap();
    assert!(server.wait_for_clients(2, SOON) && deaf.wait_for_servers(1, SOON));
    (0..4).for_each(|_| assert!(ask(&deaf, 1, 1) < 4));
    for _ in 0..4 {
        server.receive().unwrap().send(&[2]).unwrap();
    }
    (0..2).for_each(|_| assert!(ask(&deaf, 1, 1) < 6));
    let other = channel.client().unwrap();
    let asking = std::thread::spawn(move || other.call(&[3]).unwrap());
    let mut failed = 0;
    loop {
        let request = server.receive().unwrap();
        let asked = request.message().to_vec();
        match request.send(&[asked[0] + 1]) {
            Ok(()) if asked == [3] => break,
            Err(Error::Gone) if asked == [1] => failed += 1,
            other => panic!("{other:?} for {asked:?}"),
        }
    }
    assert!(failed > 0);
    assert_eq!(asking.join().unwrap(), [4]);
    // It can read what it was sent, and is told of the rest.
    let answers: Vec<bool> = (0..6).map(|_| deaf.receive().unwrap().is_ok()).collect();
    assert_eq!(answers, [true, true, true, true, false, false]);
}

#[test]
fn a_reply_that_is_dropped_is_said_to_be_lost_when_there_is_room() {
    for when_full in [WhenFull::DropOldest, WhenFull::DropNewest] {
        let agent = Running::start();
        let channel = channel(&agent, "drops").slots(4).when_full(when_full);
        let server = channel.server().unwrap();
        let client = channel.client().unwrap();
        assert!(server.wait_for_clients(1, SOON) && client.wait_for_servers(1, SOON));
        for _ in 0..2 {
            (0..4).for_each(|value| assert!(ask(&client, 1, value) < 8));
            for value in 0..4 {
                let request = server.receive().unwrap();
                assert_eq!(request.message().to_vec(), [value]);
                request.send(&[10 + value]).unwrap();
            }
        }
        for number in 0..4 {
            let reply = client.receive().unwrap().unwrap();
            assert_eq!(
                (reply.sequence(), reply.to_vec()),
                (number, vec![10 + number as u8])
            );
        }
        // It has time for that now.
        let serving = std::thread::spawn(move || server.receive().map(|_| ()));
        for request in 4..8 {
            assert_eq!(client.receive().unwrap().unwrap_err(), Lost { request });
        }
        assert_eq!(client.pending(), 0);
        ask(&client, 1, 0);
        serving.join().unwrap().unwrap();
    }
}

#[test]
fn a_request_that_is_dropped_is_said_to_be_lost() {
    for (when_full, answered) in [
        (WhenFull::DropOldest, [2, 3]),
        (WhenFull::DropNewest, [0, 1]),
    ] {
        let agent = Running::start();
        let channel = channel(&agent, "dropped").slots(2).when_full(when_full);
        let client = channel.client().unwrap();
        assert_eq!(ask(&client, 1, 0), 0);
        assert_eq!(
            client.receive().unwrap().unwrap_err(),
            Lost { request: 0 },
            "nobody serves"
        );
        let server = channel.server().unwrap();
        assert!(server.wait_for_clients(1, SOON) && client.wait_for_servers(1, SOON));
        (0..4).for_each(|value| assert_eq!(ask(&client, 1, value), 1 + u64::from(value)));
        for value in answered {
            let request = server.receive().unwrap();
            assert_eq!(request.message().to_vec(), [value]);
            request.send(&[value]).unwrap();
        }
        let answers: Vec<_> = (0..4).map(|_| client.receive().unwrap()).collect();
        let got: Vec<u8> = answers
            .iter()
            .flatten()
            .map(|reply| reply.to_vec()[0])
            .collect();
        assert_eq!((got, client.pending()), (answered.to_vec(), 0));
    }
}

/// One end of a link by hand: what the other end is told of it, with its descriptors, and what is kept.
struct ByHand {
    linked: Linked,
    descriptors: [OwnedFd; 4],
    link: Arc<Link>,
    bell: OwnedFd,
}

fn by_hand(peer: u64, end: LinkEnd) -> ByHand {
    let memory = link::create(4, 2).unwrap();
    let kind = (AddressFamily::Unix, SockType::SeqPacket);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (theirs, bell) = socketpair(kind.0, kind.1, None, flags).unwrap();
    let link = Arc::new(Link::attach(memory.as_fd(), 4, 2).unwrap());
    let [pool, replies] = [(); 2].map(|()| pool::create(65_536).unwrap().0);
    let publishes = end == LinkEnd::Publishes;
    let linked = Linked {
        link: peer,
        peer,
        slots: 4,
        overwrites: false,
        two_way: true,
        end,
        group: 1,
        peer_pool_bytes: 65_536,
        own_pool_bytes: if publishes { 0 } else { 65_536 },
        peer_pid: 0,
    };
    ByHand {
        linked,
        descriptors: [memory, theirs, pool, replies],
        link,
        bell,
    }
}

#[test]
fn a_server_answers_no_request_that_another_one_has() {
    let mut agent = Running::start();
    agent.stop();
    let opening = Running::take_in_one(agent.path());
    let client = channel(&agent, "forged").client().unwrap();
    let control = opening.join().unwrap();
    let mut servers = Vec::new();
    for peer in [8, 9] {
        let hand = by_hand(peer, LinkEnd::Publishes);
        say(
            control,
            &ToClient::Linked(hand.linked),
            &hand.descriptors[..3],
        );
        servers.push((PublishEnd::new(Arc::clone(&hand.link), 1), hand));
    }
    assert!(client.wait_for_servers(2, SOON));
    let requests = [ask(&client, 1, 0), ask(&client, 1, 1)];
    let has = |hand: &ByHand| {
        let mut end = link::SubscribeEnd::new(Arc::clone(&hand.link), 0, false);
        end.pop().unwrap().descriptor.sequence
    };
    assert_eq!(
        servers
            .iter()
            .map(|(_, hand)| has(hand))
            .collect::<Vec<_>>(),
        requests
    );
    let mut answer = |server: usize, request: u64, line: u32| {
        servers[server].0.push(&Descriptor {
            line,
            bytes: 1,
            flags: 0,
            ticket: line as u16,
            sequence: request,
        });
        servers[server].0.publish();
    };
    // The second one answers what the first one was asked, then each its own.
    answer(1, requests[0], 0);
    assert!(client.pop().is_none());
    answer(1, requests[1], 1);
    answer(0, requests[0], 0);
    let mut answered: Vec<(u64, u64)> = (0..2)
        .map(|_| {
            let reply = client.receive().unwrap().unwrap();
            (reply.sequence(), reply.publisher())
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, [(requests[0], 8), (requests[1], 9)]);
    nix::unistd::close(control).unwrap();
}

#[test]
fn a_link_that_cannot_be_mapped_whole_is_over_for_its_other_end() {
    let mut agent = Running::start();
    agent.stop();
    let opening = Running::take_in_one(agent.path());
    let server = channel(&agent, "half").server().unwrap();
    let control = opening.join().unwrap();
    let mut hand = by_hand(8, LinkEnd::Subscribes);
    // The pool for replies is of another size than it says.
    hand.descriptors[3] = pool::create(131_072).unwrap().0;
    say(control, &ToClient::Linked(hand.linked), &hand.descriptors);
    drop(hand.descriptors);
    assert!(!server.wait_for_clients(1, A_WHILE));
    assert_eq!(
        recv(hand.bell.as_raw_fd(), &mut [0], MsgFlags::empty()),
        Ok(0)
    );
    // It asks for another one, after a second.
    let mut said = [0; MAX_BYTES];
    let bytes = loop {
        match recv(control, &mut said, MsgFlags::MSG_DONTWAIT) {
            Ok(bytes) => break bytes,
            Err(_) => assert!(!server.wait_for_clients(1, A_WHILE)),
        }
    };
    let said = ToAgent::parse(&said[..bytes]);
    assert!(matches!(said, Ok(ToAgent::Left(left)) if left.peer == 8));
    nix::unistd::close(control).unwrap();
}

#[test]
fn a_loan_for_the_reply_to_one_who_has_gone_is_of_no_use_when_he_comes_again() {
    let mut agent = Running::start();
    agent.stop();
    let opening = Running::take_in_one(agent.path());
    let server = channel(&agent, "stale").server().unwrap();
    let control = opening.join().unwrap();
    let meet = || {
        let hand = by_hand(8, LinkEnd::Subscribes);
        say(control, &ToClient::Linked(hand.linked), &hand.descriptors);
        let mut requests = PublishEnd::new(Arc::clone(&hand.link), 0);
        requests.push(&Descriptor {
            line: 0,
            bytes: 1,
            flags: 0,
            ticket: 0,
            sequence: 0,
        });
        requests.publish();
        hand.bell
    };
    let bell = meet();
    let request = server.receive().unwrap();
    let [stale, dropped] = [(); 2].map(|()| request.loan(1).unwrap());
    let stale = stale.detach();
    drop((request, bell));
    let deadline = Instant::now() + SOON;
    while server.wait_for_clients(1, Duration::ZERO) {
        assert!(server.pop().is_none() && Instant::now() < deadline);
    }
    let _bell = meet();
    let again = server.receive().unwrap();
    drop(dropped);
    assert!(server.attach_loan(stale).is_none());
    again.send(&[1]).unwrap();
    nix::unistd::close(control).unwrap();
}

#[test]
fn who_is_left_gets_no_other_link_before_what_it_had_is_back() {
    let mut agent = Running::start();
    agent.stop();
    let opening = Running::take_in_one(agent.path());
    let channel = channel(&agent, "greedy").patience(Some(A_WHILE));
    let publisher = channel.timeout(4 * A_WHILE).publisher().unwrap();
    let control = opening.join().unwrap();
    let mut hand = by_hand(8, LinkEnd::Publishes);
    hand.linked.peer_pool_bytes = 0;
    hand.linked.two_way = false;
    let memory = link::create(4, 1).unwrap();
    let link = Link::attach(memory.as_fd(), 4, 1).unwrap();
    hand.descriptors[0] = memory;
    say(
        control,
        &ToClient::Linked(hand.linked),
        &hand.descriptors[..2],
    );
    drop((hand.descriptors, link));
    assert!(publisher.wait_for_subscribers(1, SOON));
    (0..4).for_each(|number| send(&publisher, number));
    assert!(matches!(publisher.send(&[0]), Err(Error::TimedOut)));
    assert_eq!(publisher.subscribers(), 0);
    let says_left = || {
        let mut buffer = [0; MAX_BYTES];
        while let Ok(count) = recv(control, &mut buffer, MsgFlags::MSG_DONTWAIT) {
            if matches!(ToAgent::parse(&buffer[..count]), Ok(ToAgent::Left(left)) if left.peer == 8)
            {
                return true;
            }
        }
        false
    };
    assert!(!says_left());
    drop(hand.bell);
    assert!(!publisher.wait_for_subscribers(1, A_WHILE));
    assert!(says_left());
    nix::unistd::close(control).unwrap();
}

#[test]
fn who_waits_by_a_descriptor_finds_the_next_agent() {
    let mut agent = Running::start();
    let channel = channel(&agent, "next");
    let subscriber = channel.subscriber().unwrap();
    // Once before the agent ends, and then for as long as it takes: nothing else is called meanwhile.
    assert!(subscriber.pop().is_none());
    let mut polled = [PollFd::new(subscriber.as_fd(), PollFlags::POLLIN)];
    agent.stop();
    let restarting = std::thread::spawn(move || {
        std::thread::sleep(5 * A_WHILE);
        agent.start_again();
        let publisher = channel.publisher().unwrap();
        assert!(publisher.wait_for_subscribers(1, SOON));
        send(&publisher, 5);
        assert!(publisher.drain(SOON));
    });
    let deadline = Instant::now() + SOON;
    let heard = loop {
        assert!(Instant::now() < deadline);
        poll(&mut polled, PollTimeout::try_from(SOON).unwrap()).unwrap();
        if let Some(message) = subscriber.pop() {
            break message.u64_at(0);
        }
    };
    assert_eq!(heard, Some(5));
    restarting.join().unwrap();
}

#[test]
fn how_often_there_was_no_room_is_counted_once_for_each_message() {
    for when_full in [WhenFull::Block, WhenFull::Fail] {
        let agent = Running::start();
        let channel = channel(&agent, "full").slots(2).when_full(when_full);
        let publisher = channel.timeout(A_WHILE).publisher().unwrap();
        let subscriber = crate::channel(&agent, "full")
            .slots(2)
            .subscriber()
            .unwrap();
        assert!(publisher.wait_for_subscribers(1, SOON));
        (0..2).for_each(|number| send(&publisher, number));
        for _ in 0..3 {
            assert!(publisher.send(&[0]).is_err());
        }
        // Nothing is published after it.
        let report = millrace_agent::channels(agent.path(), SOON).unwrap();
        let mut links = report.channels[0].ends.iter().flat_map(|end| &end.links);
        let sent = links.find_map(|link| link.sent).unwrap();
        assert_eq!((sent.full, sent.dropped), (3, 0), "{when_full:?}");
        assert_eq!(number(&subscriber), 0);
    }
}

#[test]
fn a_time_that_no_clock_shows_is_for_ever() {
    let agent = Running::start();
    let channel = channel(&agent, "for-ever").timeout(Duration::MAX);
    let channel = channel.patience(Some(Duration::MAX));
    let (publisher, subscriber) = (channel.publisher().unwrap(), channel.subscriber().unwrap());
    assert!(publisher.wait_for_subscribers(1, Duration::MAX));
    send(&publisher, 1);
    assert_eq!(number(&subscriber), 1);
    assert!(publisher.drain(Duration::MAX));
    assert!(subscriber.wait_for_publishers(1, Duration::MAX));
}
