//! Participants of channels, over the agent's real socket.

mod hostile;
mod participant;
mod restart;
mod sys;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use millrace_agent::{ChannelRule, ChannelsReport, Config, QuotaConfig};
use millrace_shm::pool::PoolView;
use millrace_wire::{ChannelName, Left, Open, Refusal, Role, ToAgent, ToClient, Unsupported};
use nix::sys::socket::{MsgFlags, send};
use nix::sys::stat::fstat;
use participant::{POOL_BYTES, ask, come, open};

use crate::client::{self, Running};

fn report(agent: &Running) -> ChannelsReport {
    millrace_agent::channels(agent.path(), Duration::from_secs(5)).unwrap()
}

fn inode(fd: &OwnedFd) -> u64 {
    fstat(fd).unwrap().st_ino
}

#[test]
fn a_publisher_and_a_subscriber_of_a_name_are_linked() {
    let agent = Running::start(Config::default());
    let publisher = ask(&agent, open("news", Role::Publisher)).unwrap();
    let subscriber = come(&agent, "news", Role::Subscriber);
    let _other = come(&agent, "other", Role::Subscriber);
    let _server = come(&agent, "news", Role::Server);
    assert!(publisher.has_nothing(&agent), "its pool is not sealed yet");
    let pool = publisher.map_pool();
    publisher.ready(0);
    let (near, far) = (publisher.joined(), subscriber.joined());
    assert_eq!(near.news.peer, subscriber.opened.id);
    assert_eq!(far.news.peer, publisher.opened.id);
    assert_eq!((near.news.link, near.news.slots), (far.news.link, 16));
    assert_eq!(inode(&near.link), inode(&far.link));
    let far_pool = far.peer_pool.as_ref().unwrap();
    assert_eq!(inode(far_pool), inode(publisher.pool.as_ref().unwrap()));
    assert!(publisher.has_nothing(&agent) && subscriber.has_nothing(&agent));

    // The two sockets are each other's, and each is told of the other's end.
    send(near.socket.as_raw_fd(), b"!", MsgFlags::empty()).unwrap();
    let mut byte = [0];
    nix::sys::socket::recv(far.socket.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT).unwrap();
    assert_eq!(byte, *b"!");
    PoolView::attach(far_pool.as_fd(), POOL_BYTES).unwrap();
    assert_eq!(pool.bytes(), POOL_BYTES);
    drop(far);
    assert!(near.is_over());
}

#[test]
fn every_publisher_is_linked_with_every_subscriber_whoever_comes_first() {
    let agent = Running::start(Config::default());
    let roles = [
        Role::Publisher,
        Role::Subscriber,
        Role::Subscriber,
        Role::Publisher,
        Role::Subscriber,
    ];
    let all = roles.map(|role| come(&agent, "news", role));
    for participant in &all {
        let count = if participant.open.role.sends() { 3 } else { 2 };
        let peers: std::collections::HashSet<u64> =
            (0..count).map(|_| participant.joined().news.peer).collect();
        assert_eq!(peers.len(), count);
        assert!(participant.has_nothing(&agent));
    }
}

#[test]
fn a_server_is_ready_before_its_client_hears_of_it() {
    let agent = Running::start(Config::default());
    let client = come(&agent, "ask/me", Role::Client);
    let group = Open {
        group: Some(ChannelName::new("workers").unwrap()),
        slots: 4,
        ..open("ask/me", Role::Server)
    };
    let server = ask(&agent, group).unwrap();
    let far = server.joined();
    assert!(client.has_nothing(&agent));
    assert_eq!((far.news.slots, far.news.own_pool_bytes), (4, POOL_BYTES));
    let replies = far.own_pool.as_ref().unwrap();
    let pool = millrace_shm::pool::Pool::attach(replies.as_fd(), POOL_BYTES).unwrap();
    assert!(!millrace_shm::pool::is_sealed(replies.as_fd(), POOL_BYTES));
    // Nonsense that harms nobody: links that are not there, or are another's.
    server.ready(far.news.link ^ 1);
    client.ready(far.news.link);
    assert!(client.has_nothing(&agent));
    server.ready(far.news.link);
    let near = client.joined();
    assert!(millrace_shm::pool::is_sealed(replies.as_fd(), POOL_BYTES));
    let expected = (group.group_number(), server.opened.id);
    assert_eq!((near.news.group, near.news.peer), expected);
    assert_eq!(inode(near.peer_pool.as_ref().unwrap()), inode(replies));
    assert_eq!(
        inode(far.peer_pool.as_ref().unwrap()),
        inode(client.pool.as_ref().unwrap())
    );
    // Twice is once.
    server.ready(far.news.link);
    assert!(client.has_nothing(&agent));
    assert_eq!(pool.bytes(), POOL_BYTES);
}

#[test]
fn a_server_that_is_left_before_it_is_ready_sees_the_end_and_serves_others() {
    let agent = Running::start(Config::default());
    let server = come(&agent, "ask", Role::Server);
    for _ in 0..10 {
        let client = come(&agent, "ask", Role::Client);
        let far = server.joined();
        drop(client);
        while !far.is_over() {
            std::thread::yield_now();
        }
        server.ready(far.news.link);
    }
    let client = come(&agent, "ask", Role::Client);
    server.ready(server.joined().news.link);
    assert_eq!(client.joined().news.peer, server.opened.id);
}

#[test]
fn a_link_that_is_over_for_both_is_made_again() {
    let agent = Running::start(Config::default());
    let publisher = come(&agent, "news", Role::Publisher);
    let subscriber = come(&agent, "news", Role::Subscriber);
    let first = (publisher.joined(), subscriber.joined());
    let left = |peer| ToAgent::Left(Left { peer });
    publisher.say(left(subscriber.opened.id));
    publisher.say(left(subscriber.opened.id ^ 1));
    assert!(publisher.has_nothing(&agent), "one alone is not believed");
    subscriber.say(left(publisher.opened.id));
    let second = (publisher.joined(), subscriber.joined());
    assert_eq!(second.0.news.link, second.1.news.link);
    assert_ne!(first.0.news.link, second.0.news.link);
    assert!(!second.0.is_over() && !second.1.is_over());
}

#[test]
fn a_subscriber_cannot_write_to_a_pool_whatever_it_does() {
    let agent = Running::start(Config::default());
    let publisher = come(&agent, "news", Role::Publisher);
    let subscriber = come(&agent, "news", Role::Subscriber);
    let joined = subscriber.joined();
    let pool = joined.peer_pool.as_ref().unwrap();
    sys::assert_read_only(pool, POOL_BYTES);
    let client = come(&agent, "ask", Role::Client);
    let server = come(&agent, "ask", Role::Server);
    let far = server.joined();
    sys::assert_read_only(far.peer_pool.as_ref().unwrap(), POOL_BYTES);
    server.ready(far.news.link);
    sys::assert_read_only(client.joined().peer_pool.as_ref().unwrap(), POOL_BYTES);
    drop(publisher);
}

fn rule(name: &str, send: &[&str], receive: &[&str]) -> ChannelRule {
    let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    ChannelRule {
        name: name.to_owned(),
        send: owned(send),
        receive: owned(receive),
    }
}

#[test]
fn rules_say_who_may_take_part() {
    let own = format!("user/{}", nix::unistd::geteuid());
    let agent = Running::start(Config {
        channel: vec![
            rule("upf/*", &[&own], &["user/4000000"]),
            rule("all", &["*"], &["*"]),
        ],
        ..Config::default()
    });
    for (name, role, allowed) in [
        ("upf/1", Role::Publisher, true),
        ("upf/1", Role::Client, true),
        ("upf/1", Role::Subscriber, false),
        ("upf/1", Role::Server, false),
        ("all", Role::Server, true),
        ("own", Role::Subscriber, true),
    ] {
        let answer = ask(&agent, open(name, role)).err();
        let expected = (!allowed).then_some(Refusal::NotAllowed);
        assert_eq!(answer, expected, "{name} {role:?}");
    }
}

#[test]
fn another_version_or_layout_is_refused_politely() {
    let agent = Running::start(Config::default());
    let current = open("news", Role::Subscriber);
    for open in [
        Open { abi: 2, ..current },
        Open {
            version_min: 5,
            version_max: 9,
            ..current
        },
    ] {
        let socket = agent.connect();
        client::say(&socket, ToAgent::Open(open));
        let (message, _) = client::hear(&socket).unwrap();
        let expected = Unsupported {
            version_min: 2,
            version_max: 2,
        };
        assert_eq!(message, ToClient::Unsupported(expected));
        assert!(client::hear(&socket).is_none());
    }
}

#[test]
fn memory_is_charged_until_it_is_really_gone() {
    let quota = QuotaConfig {
        channel_bytes_per_tenant: 2 * POOL_BYTES + 8192,
        ..QuotaConfig::default()
    };
    let agent = Running::start(Config {
        quota,
        ..Config::default()
    });
    let publisher = come(&agent, "news", Role::Publisher);
    let subscriber = come(&agent, "news", Role::Subscriber);
    let joined = (publisher.joined(), subscriber.joined());
    let second = come(&agent, "other", Role::Publisher);
    let refused = || ask(&agent, open("third", Role::Publisher)).err();
    assert_eq!(refused(), Some(Refusal::Quota));
    // A link does not fit any more. The subscriber is there all the same, and is linked when there is room.
    let waiting = come(&agent, "other", Role::Subscriber);
    assert!(waiting.has_nothing(&agent) && second.has_nothing(&agent));

    // The publisher has gone, but its subscriber has the pool still.
    drop((publisher, joined.0));
    agent.wait_for(|_| true);
    assert_eq!(refused(), Some(Refusal::Quota));
    drop((subscriber, joined.1));
    assert_eq!(waiting.joined().news.peer, second.opened.id);
    agent.wait_for(|_| refused().is_none());
}

#[test]
fn a_participant_has_so_many_links_and_gets_others_when_these_are_gone() {
    let quota = QuotaConfig {
        channel_links_per_participant: 2,
        ..QuotaConfig::default()
    };
    let agent = Running::start(Config {
        quota,
        ..Config::default()
    });
    let publisher = come(&agent, "news", Role::Publisher);
    let mut subscribers: Vec<_> = (0..3)
        .map(|_| come(&agent, "news", Role::Subscriber))
        .collect();
    let links = [publisher.joined(), publisher.joined()];
    assert!(publisher.has_nothing(&agent));
    let third = subscribers.pop().unwrap();
    assert!(third.has_nothing(&agent));
    drop(links);
    drop(subscribers);
    assert_eq!(publisher.joined().news.peer, third.opened.id);
}

#[test]
fn channels_are_reported_with_their_ends_and_what_has_passed() {
    let agent = Running::start(Config::default());
    let nobody = report(&agent);
    assert!(nobody.channels.is_empty() && nobody.now_ns > 0);
    let publisher = ask(&agent, open("news", Role::Publisher)).unwrap();
    let mut pool = publisher.map_pool();
    publisher.ready(0);
    let subscriber = come(&agent, "news", Role::Subscriber);
    let _alone = come(&agent, "ask", Role::Server);
    let (near, far) = (publisher.joined(), subscriber.joined());
    let _end = sys::publish(near.map(), &mut pool, &[3, 5]);
    let report = report(&agent);
    assert!(report.now_ns > nobody.now_ns);
    let shape: Vec<_> = report
        .channels
        .iter()
        .map(|channel| {
            (
                channel.name.as_str(),
                channel.kind.as_str(),
                channel.ends.len(),
            )
        })
        .collect();
    assert_eq!(shape, [("ask", "requests", 1), ("news", "messages", 2)]);
    let [first, second] = report.channels[1].ends.as_slice() else {
        panic!("{report:?}");
    };
    assert_eq!(
        (first.role.as_str(), second.role.as_str()),
        ("publisher", "subscriber")
    );
    assert_eq!((first.pool_bytes, second.pool_bytes), (POOL_BYTES, 0));
    assert_eq!(first.pid.unsigned_abs(), std::process::id());
    let (sent, received) = (
        first.links[0].sent.unwrap(),
        second.links[0].received.unwrap(),
    );
    assert_eq!((sent, first.links[0].received), (received, None));
    assert_eq!((sent.messages, sent.bytes, sent.queued), (2, 8, 2));
    assert_eq!((sent.full, first.links[0].replies_bytes), (0, 0));
    assert_eq!(first.links[0].peer.as_ref(), Some(&second.id));
    drop((subscriber, far));
    while millrace_agent::channels(agent.path(), Duration::from_secs(5))
        .unwrap()
        .channels[1]
        .ends
        .len()
        > 1
    {}
}
