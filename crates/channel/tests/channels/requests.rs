//! Clients and servers.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use millrace_channel::{Client, Error, Lost, Server, WhenFull};
use millrace_shm::link::{self, Descriptor, Link, PublishEnd, SubscribeEnd};
use millrace_shm::pool;
use millrace_wire::{LinkEnd, Linked, ToClient};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};

use crate::agent::{Running, say};
use crate::{SOON, channel};

/// Adds one to a number until it is told zero.
fn serve(server: &Server) -> u64 {
    let mut count = 0;
    loop {
        let request = server.receive().unwrap();
        let asked = request.message().u64_at(0).unwrap();
        count += 1;
        request.send(&(asked + 1).to_le_bytes()).unwrap();
        if asked == 0 {
            return count;
        }
    }
}

fn ask(client: &Client, number: u64) -> u64 {
    let reply = client.call(&number.to_le_bytes()).unwrap();
    u64::from_le_bytes(reply.try_into().unwrap())
}

#[test]
fn requests_are_answered_to_whom_they_are_from() {
    let agent = Running::start();
    let channel = channel(&agent, "sums");
    let server = channel.server().unwrap();
    let serving = std::thread::spawn(move || serve(&server));
    let asking: Vec<_> = (0..4)
        .map(|own: u64| {
            let channel = channel.clone();
            std::thread::spawn(move || {
                let client = channel.client().unwrap();
                assert!(client.wait_for_servers(1, SOON));
                for number in 1..1000 {
                    let number = own * 10_000 + number;
                    assert_eq!(ask(&client, number), number + 1);
                }
                assert_eq!(client.pending(), 0);
            })
        })
        .collect();
    asking.into_iter().for_each(|client| client.join().unwrap());
    let client = channel.client().unwrap();
    assert!(client.wait_for_servers(1, SOON));
    assert_eq!(ask(&client, 0), 1);
    assert_eq!(serving.join().unwrap(), 4 * 999 + 1);
}

#[test]
fn requests_are_shared_among_servers() {
    let agent = Running::start();
    let channel = channel(&agent, "pool");
    let client = channel.client().unwrap();
    let servers: Vec<Server> = (0..3).map(|_| channel.server().unwrap()).collect();
    servers
        .iter()
        .for_each(|server| assert!(server.wait_for_clients(1, SOON)));
    assert!(client.wait_for_servers(3, SOON));
    for _ in 0..30 {
        let mut loan = client.loan(8).unwrap();
        loan.fill(1);
        client.push(loan, None).unwrap();
    }
    client.publish();
    for server in &servers {
        let mut count = 0;
        while let Some(request) = server.pop() {
            let mut loan = request.loan(2).unwrap();
            loan.fill(2);
            request.reply(loan).unwrap();
            count += 1;
        }
        assert_eq!(count, 10);
    }
    for _ in 0..30 {
        assert_eq!(client.receive().unwrap().unwrap().to_vec(), [2, 2]);
    }
    assert_eq!(client.pending(), 0);
}

#[test]
fn a_request_that_was_let_fall_or_whose_server_died_is_lost_by_name() {
    let agent = Running::start();
    let channel = channel(&agent, "lost");
    let client = channel.client().unwrap();
    let server = channel.server().unwrap();
    assert!(server.wait_for_clients(1, SOON) && client.wait_for_servers(1, SOON));
    let push = || {
        let number = client.push(client.loan(1).unwrap(), None).unwrap();
        client.publish();
        number
    };
    let first = push();
    drop(server.receive().unwrap());
    assert_eq!(
        client.receive().unwrap().unwrap_err(),
        Lost { request: first }
    );
    let second = push();
    drop(server);
    assert_eq!(
        client.receive().unwrap().unwrap_err(),
        Lost { request: second }
    );
    assert_eq!(client.pending(), 0);
    let failed = channel
        .clone()
        .timeout(std::time::Duration::from_millis(20))
        .client()
        .unwrap();
    assert!(
        matches!(failed.call(&[1]), Err(Error::TimedOut)),
        "nobody serves"
    );
}

#[test]
fn a_reply_to_a_client_that_has_gone_says_so() {
    let agent = Running::start();
    let channel = channel(&agent, "gone");
    let client = channel.client().unwrap();
    let server = channel.server().unwrap();
    assert!(server.wait_for_clients(1, SOON) && client.wait_for_servers(1, SOON));
    client.push(client.loan(1).unwrap(), None).unwrap();
    client.publish();
    let request = server.receive().unwrap();
    drop(client);
    let deadline = std::time::Instant::now() + SOON;
    let mut request = Some(request);
    while let Some(asked) = request.take() {
        match asked.loan(1) {
            Err(error) => assert!(matches!(error, Error::Gone), "{error}"),
            Ok(_) => {
                assert!(std::time::Instant::now() < deadline);
                assert!(server.pop().is_none());
                request = Some(asked);
            }
        }
    }
}

#[test]
fn a_client_that_gives_back_replies_that_it_does_not_have_is_left() {
    let mut agent = Running::start();
    agent.stop();
    let opening = Running::take_in_one(agent.path());
    let channel = channel(&agent, "lies").when_full(WhenFull::Fail);
    let server = channel.server().unwrap();
    let control = opening.join().unwrap();
    let memory = link::create(2, 2).unwrap();
    let kind = (AddressFamily::Unix, SockType::SeqPacket);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (bell, own_bell) = socketpair(kind.0, kind.1, None, flags).unwrap();
    let shared = Arc::new(Link::attach(memory.as_fd(), 2, 2).unwrap());
    let linked = Linked {
        link: 1,
        peer: 8,
        slots: 2,
        overwrites: false,
        two_way: true,
        end: LinkEnd::Subscribes,
        group: 0,
        peer_pool_bytes: 65_536,
        own_pool_bytes: 65_536,
        peer_pid: 0,
    };
    let [pool, replies] = [(); 2].map(|()| pool::create(65_536).unwrap().0);
    let descriptors = [memory, bell, pool, replies];
    say(control, &ToClient::Linked(linked), &descriptors);
    let mut requests = PublishEnd::new(Arc::clone(&shared), 0);
    SubscribeEnd::new(shared, 1, false).release(2);
    let answers: Vec<bool> = (0..3)
        .map(|sequence| {
            requests.push(&Descriptor {
                line: 0,
                bytes: 1,
                flags: 0,
                ticket: 0,
                sequence,
            });
            requests.publish();
            server.receive().unwrap().send(&[1]).is_ok()
        })
        .collect();
    assert_eq!(answers, [true, true, false], "no room for a third");
    let end = recv(own_bell.as_raw_fd(), &mut [0], MsgFlags::empty());
    assert_eq!(end, Ok(0));
    nix::unistd::close(control).unwrap();
}
