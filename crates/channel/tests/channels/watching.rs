//! Who waits by a descriptor is woken, whatever he calls between his waits; and who holds messages of one who has left him is met again.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Instant;

use millrace_channel::{Client, Lost, WhenFull};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::agent::Running;
use crate::waiting::ask;
use crate::{A_WHILE, SOON, channel, number, send};

fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::POLLIN)];
    poll(&mut polled, PollTimeout::try_from(SOON).unwrap()).unwrap() == 1
}

/// Until it has said that it sleeps, and is not readable.
fn settle(client: &Client) {
    let is_quiet = || {
        let mut polled = [PollFd::new(client.as_fd(), PollFlags::POLLIN)];
        assert!(client.pop().is_none());
        poll(&mut polled, PollTimeout::ZERO).unwrap() == 0
    };
    while !is_quiet() {}
}

/// What a client calls between a reply, which rings, and its wait.
fn a_reply_wakes_after(call: impl Fn(&Client)) {
    let agent = Running::start();
    let channel = channel(&agent, "woken");
    let (client, server) = (channel.client().unwrap(), channel.server().unwrap());
    assert!(server.wait_for_clients(1, SOON) && client.wait_for_servers(1, SOON));
    for round in 0..3 {
        ask(&client, 1, 0);
        ask(&client, 1, 1);
        settle(&client);
        server.receive().unwrap().send(&[0]).unwrap();
        // Longer than news are left alone.
        std::thread::sleep(A_WHILE / 10);
        call(&client);
        assert!(is_readable(client.as_fd()), "{round}");
        assert!(client.pop().unwrap().is_ok());
        settle(&client);
        call(&client);
        server.receive().unwrap().send(&[1]).unwrap();
        assert!(is_readable(client.as_fd()), "{round}, the second");
        assert!(client.pop().unwrap().is_ok());
    }
}

#[test]
fn a_reply_wakes_who_has_published_since_he_looked() {
    a_reply_wakes_after(Client::publish);
}

#[test]
fn a_reply_wakes_who_has_waited_for_something_else_since_he_looked() {
    a_reply_wakes_after(|client| assert!(!client.wait_for_servers(2, A_WHILE / 10)));
}

#[test]
fn a_request_that_is_given_up_when_it_is_pushed_wakes_its_client() {
    let agent = Running::start();
    let channel = channel(&agent, "given-up").when_full(WhenFull::DropNewest);
    let client = channel.client().unwrap();
    settle(&client);
    let request = ask(&client, 1, 0);
    assert!(is_readable(client.as_fd()));
    assert_eq!(client.pop().unwrap().unwrap_err(), Lost { request });
}

#[test]
fn a_request_that_is_let_fall_without_room_to_say_so_wakes_its_server_when_there_is_some() {
    let agent = Running::start();
    let channel = channel(&agent, "fallen").slots(2).when_full(WhenFull::Fail);
    let (client, server) = (channel.client().unwrap(), channel.server().unwrap());
    assert!(server.wait_for_clients(1, SOON) && client.wait_for_servers(1, SOON));
    for value in 0..2 {
        ask(&client, 1, value);
        server.receive().unwrap().send(&[value]).unwrap();
    }
    let request = ask(&client, 1, 2);
    let held = server.receive().unwrap();
    let descriptor = server.as_fd();
    while server.pop().is_some() {}
    drop(held);
    let answers = std::thread::spawn(move || {
        (0..3)
            .map(|_| client.receive().unwrap().map(|reply| reply.sequence()).ok())
            .collect::<Vec<_>>()
    });
    assert!(is_readable(descriptor));
    // The last answer needs nothing of the server any more, and wakes nobody here.
    while server.pop().is_some() || !answers.is_finished() {
        let mut polled = [PollFd::new(descriptor, PollFlags::POLLIN)];
        poll(&mut polled, PollTimeout::try_from(A_WHILE).unwrap()).unwrap();
    }
    assert_eq!(answers.join().unwrap(), [Some(0), Some(1), None]);
    assert_eq!(request, 2);
}

#[test]
fn who_was_left_while_he_held_messages_is_met_again_when_they_are_back() {
    let agent = Running::start();
    let channel = channel(&agent, "held").slots(2).patience(Some(A_WHILE));
    let publisher = channel.clone().timeout(4 * A_WHILE).publisher().unwrap();
    let subscriber = channel.subscriber().unwrap();
    assert!(publisher.wait_for_subscribers(1, SOON));
    (0..2).for_each(|number| send(&publisher, number));
    let held: Vec<_> = (0..2).map(|_| subscriber.receive().unwrap()).collect();
    assert!(publisher.send(&[0]).is_err());
    assert_eq!(publisher.subscribers(), 0);
    // It hears of it while it holds them.
    assert!(
        subscriber
            .receive_until(Some(Instant::now() + A_WHILE))
            .is_err()
    );
    drop(held);
    let publishing = std::thread::spawn(move || {
        assert!(publisher.wait_for_subscribers(1, SOON));
        send(&publisher, 2);
        publisher
    });
    assert_eq!(number(&subscriber), 2);
    drop(publishing.join().unwrap());
}

/// As loops do that own what they wait for.
fn is_readable_by_trait(watched: &(impl AsFd + AsRawFd)) -> bool {
    assert_eq!(watched.as_fd().as_raw_fd(), watched.as_raw_fd());
    is_readable(watched.as_fd())
}

#[test]
fn participants_are_descriptors() {
    let agent = Running::start();
    let channel = channel(&agent, "descriptors");
    let publisher = channel.publisher().unwrap();
    // What comes before the first time is taken then.
    let _ = publisher.as_fd();
    let subscriber = channel.subscriber().unwrap();
    assert!(is_readable_by_trait(&publisher), "a subscriber has come");
    assert!(publisher.wait_for_subscribers(1, SOON));
    while subscriber.pop().is_some() {}
    send(&publisher, 3);
    assert!(is_readable_by_trait(&subscriber));
    assert_eq!(number(&subscriber), 3);
    let (client, server) = (channel.client().unwrap(), channel.server().unwrap());
    assert!(server.wait_for_clients(1, SOON) && client.wait_for_servers(1, SOON));
    while server.pop().is_some() {}
    settle(&client);
    ask(&client, 1, 0);
    assert!(is_readable_by_trait(&server));
    server.receive().unwrap().send(&[0]).unwrap();
    assert!(is_readable_by_trait(&client));
}
