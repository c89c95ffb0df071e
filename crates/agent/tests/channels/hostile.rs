//! Participants that do not behave, and those who have to live with them.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use millrace_agent::Config;
use millrace_wire::{
    End, Holds, Left, MAX_BYTES, Open, Ready, Refusal, Role, ToAgent, VERSION_MAX, Withdraw,
};
use nix::errno::Errno;
use nix::fcntl::SealFlag;
use nix::sys::socket::{setsockopt, sockopt};

use super::participant::{POOL_BYTES, ask, come, number, open, say_with};
use super::sys;
use crate::client::{self, Running};
use crate::{pair, random};

#[test]
fn pools_that_somebody_could_change_are_refused() {
    let agent = Running::start(Config::default());
    let all = sys::all_seals();
    let again = |pool: &OwnedFd| Open {
        pool: Some(number(pool)),
        ..open("news", Role::Publisher)
    };
    let file = OwnedFd::from(tempfile::tempfile().unwrap());
    let pipe = nix::unistd::pipe().unwrap().0;
    let (slow, far) = lingering();
    let unallocated = sys::memory(POOL_BYTES, false, all);
    let good = sys::memory(POOL_BYTES, true, all);
    let pools = [
        sys::memory(POOL_BYTES, true, all - SealFlag::F_SEAL_SHRINK),
        sys::memory(POOL_BYTES, true, all - SealFlag::F_SEAL_GROW),
        sys::memory(POOL_BYTES, true, all - SealFlag::F_SEAL_SEAL),
        sys::memory(POOL_BYTES, true, all - SealFlag::from_bits_retain(0x10)),
        sys::memory(POOL_BYTES * 2, true, all),
        sys::memory(POOL_BYTES / 2, true, all),
        unallocated,
        file,
        pipe,
        slow,
    ];
    for pool in &pools {
        assert_eq!(
            ask(&agent, again(pool)).err(),
            Some(Refusal::BadPool),
            "{pool:?}"
        );
    }
    // Or it would linger here.
    drop(far);
    let nothing = Open {
        pool: Some(u32::MAX),
        ..again(&good)
    };
    assert_eq!(ask(&agent, nothing).err(), Some(Refusal::BadPool));
    let publisher = ask(&agent, again(&good)).unwrap();
    let subscriber = come(&agent, "news", Role::Subscriber);
    assert_eq!(subscriber.joined().news.peer, publisher.opened.id);
}

/// A TCP connection whose close waits for bytes that nobody takes; and its other end.
fn lingering() -> (OwnedFd, OwnedFd) {
    let (near, far) = pair();
    let linger = nix::libc::linger {
        l_onoff: 1,
        l_linger: 30,
    };
    setsockopt(&near, sockopt::Linger, &linger).unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 65_536]).is_ok() {}
    (near.into(), far.into())
}

#[test]
fn no_descriptor_comes_with_any_message_and_nobody_is_held_up_by_one() {
    let agent = Running::start(Config::default());
    let hello = ToAgent::Hello(millrace_wire::Hello {
        version_min: 2,
        version_max: 2,
        segment_version: 1,
        mode: millrace_wire::Mode::Default,
    });
    let query = ToAgent::Query(millrace_wire::Query::Status);
    let publisher = ToAgent::Open(open("news", Role::Publisher));
    let ready = ToAgent::Ready(Ready { link: 0 });
    for message in [hello, query, publisher, ready] {
        let (gift, _far) = lingering();
        let socket = agent.connect();
        match say_with(&socket, message, &[&gift]) {
            // The kernel forbids it, since Linux 6.16.
            Err(errno) => assert_eq!(errno, Errno::EPERM),
            Ok(()) => {
                drop(gift);
                assert!(client::hear_all(&socket).is_none(), "{message:?}");
            }
        }
        let began = Instant::now();
        come(&agent, "news", Role::Subscriber);
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn whoever_speaks_out_of_turn_is_dropped() {
    let agent = Running::start(Config::default());
    let innocent = come(&agent, "news", Role::Subscriber);
    let (near, _far) = pair();
    let holds = ToAgent::Holds(Holds { peer: 7 });
    let ready = ToAgent::Ready(Ready { link: 0 });
    let left = ToAgent::Left(Left { peer: 7 });
    for message in [
        holds,
        ready,
        ToAgent::Open(open("x", Role::Server)),
        ToAgent::Offer(client::offer(&near, 1, End::Active)),
        ToAgent::Withdraw(Withdraw { offer_id: 1 }),
    ] {
        let participant = come(&agent, "news", Role::Subscriber);
        participant.say(message);
        assert!(participant.is_dropped(), "{message:?}");
    }
    // And programs that have connections are no participants.
    for message in [holds, ready, left, ToAgent::Open(open("x", Role::Server))] {
        let program = agent.client();
        program.say(message);
        assert!(program.try_hear().is_none(), "{message:?}");
        let silent = agent.connect();
        if !matches!(message, ToAgent::Open(_)) {
            client::say(&silent, message);
            assert!(client::hear(&silent).is_none());
        }
    }
    let publisher = come(&agent, "news", Role::Publisher);
    assert_eq!(innocent.joined().news.peer, publisher.opened.id);
}

#[test]
fn who_is_never_ready_or_never_reads_keeps_nobody_waiting() {
    let agent = Running::start(Config::default());
    let _mute = ask(&agent, open("news", Role::Publisher)).unwrap();
    let _deaf: Vec<_> = (0..20)
        .map(|_| come(&agent, "news", Role::Subscriber))
        .collect();
    let subscriber = come(&agent, "news", Role::Subscriber);
    let publisher = come(&agent, "news", Role::Publisher);
    assert_eq!(subscriber.joined().news.peer, publisher.opened.id);

    let _lazy = come(&agent, "ask", Role::Server);
    let clients: Vec<_> = (0..20).map(|_| come(&agent, "ask", Role::Client)).collect();
    let server = come(&agent, "ask", Role::Server);
    for _ in &clients {
        server.ready(server.joined().news.link);
    }
    for client in &clients {
        assert_eq!(client.joined().news.peer, server.opened.id);
    }
}

#[test]
fn a_publisher_that_does_not_read_gets_no_more_links_than_its_socket_takes() {
    let agent = Running::start(Config::default());
    let publisher = come(&agent, "news", Role::Publisher);
    let subscribers: Vec<_> = (0..500)
        .map(|_| come(&agent, "news", Role::Subscriber))
        .collect();
    agent.wait_for(|_| true);
    for _ in &subscribers {
        publisher.joined();
    }
    for subscriber in &subscribers {
        assert_eq!(subscriber.joined().news.peer, publisher.opened.id);
    }
}

#[test]
fn a_storm_of_messages_of_participants_leaves_the_agent_well() {
    let agent = Running::start(Config::default());
    let pool = sys::memory(POOL_BYTES, true, sys::all_seals());
    let subscriber = come(&agent, "news", Role::Subscriber);
    for seed in 0..200 {
        let mut state = seed;
        let socket = agent.connect();
        for _ in 0..20 {
            let roll = random(&mut state);
            let role = Role::from_u8((roll % 4) as u8).unwrap();
            let message = match roll >> 8 & 7 {
                0..=2 => ToAgent::Open(Open {
                    pool: (role.sends() && roll >> 16 & 1 == 1).then(|| number(&pool)),
                    peers: (roll >> 17 & 3) as u32,
                    id: roll >> 19 & 3,
                    ..open(["news", "ask"][(roll >> 20 & 1) as usize], role)
                }),
                3 if roll >> 60 & 1 == 0 => ToAgent::Left(Left {
                    peer: subscriber.opened.id,
                }),
                3 => ToAgent::Holds(Holds {
                    peer: subscriber.opened.id,
                }),
                4 => ToAgent::Ready(Ready { link: roll >> 50 }),
                _ => ToAgent::Ready(Ready { link: 0 }),
            };
            let fds = if roll >> 32 & 3 == 0 {
                vec![&pool]
            } else {
                vec![]
            };
            let sent = if roll >> 40 & 7 == 0 {
                let mut buffer = [0; MAX_BYTES];
                let length = message.encode(VERSION_MAX, &mut buffer);
                buffer[8 + (roll >> 56) as usize % 100] ^= (roll >> 48) as u8;
                nix::sys::socket::send(
                    std::os::fd::AsRawFd::as_raw_fd(&socket),
                    &buffer[..length],
                    nix::sys::socket::MsgFlags::MSG_NOSIGNAL,
                )
                .is_ok()
            } else {
                say_with(&socket, message, &fds).is_ok()
            };
            if !sent {
                break;
            }
        }
    }
    let fresh = come(&agent, "fresh", Role::Subscriber);
    let publisher = come(&agent, "fresh", Role::Publisher);
    assert_eq!(fresh.joined().news.peer, publisher.opened.id);
    // Connections are served as ever.
    let program = agent.client();
    let (near, far) = pair();
    program.offer(&near, 1, End::Active);
    program.offer(&far, 2, End::Passive);
    assert_eq!([program.take(), program.take()], [1, 2]);
    drop((fresh, publisher, subscriber));
    agent.wait_for(|status| status.clients == 1);
}
