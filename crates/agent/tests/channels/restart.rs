//! Participants that come again when the agent has restarted.

use millrace_agent::{Config, QuotaConfig};
use millrace_wire::{Open, Role};

use super::participant::{POOL_BYTES, Participant, ask, come, number, open};
use super::report;
use crate::client::Running;

/// Comes again, with its id, its pool and what it holds.
fn again(agent: &Running, before: &Participant, holds: &[u64]) -> Participant {
    let open = Open {
        id: before.opened.id,
        pool: before.pool.as_ref().map(number),
        peers: holds.len() as u32,
        ..before.open
    };
    let participant = ask(agent, open).unwrap();
    for peer in holds {
        participant.holds(*peer);
    }
    participant
}

#[test]
fn participants_come_again_and_only_missing_links_are_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent.sock");
    let agent = Running::start_at(&path, Config::default());
    let publisher = come(&agent, "news", Role::Publisher);
    let subscriber = come(&agent, "news", Role::Subscriber);
    let (near, far) = (publisher.joined(), subscriber.joined());
    let client = come(&agent, "ask", Role::Client);
    let server = come(&agent, "ask", Role::Server);
    server.ready(server.joined().news.link);
    client.joined();
    drop(agent);
    assert!(!near.is_over() && !far.is_over(), "links go on");

    let agent = Running::start_at(&path, Config::default());
    // A new one may come before them.
    let newcomer = come(&agent, "news", Role::Subscriber);
    let publisher = again(&agent, &publisher, &[subscriber.opened.id]);
    assert_eq!(publisher.opened.id, far.news.peer);
    assert_eq!(newcomer.joined().news.peer, publisher.opened.id);
    assert_eq!(publisher.joined().news.peer, newcomer.opened.id);
    let subscriber = again(&agent, &subscriber, &[publisher.opened.id]);
    // Of these two, only one says so; the other has lost what it knew.
    let client = again(&agent, &client, &[server.opened.id]);
    let server = again(&agent, &server, &[]);
    for participant in [&publisher, &subscriber, &newcomer, &client, &server] {
        assert!(participant.has_nothing(&agent));
    }
    let ends = report(&agent)
        .channels
        .into_iter()
        .flat_map(|channel| channel.ends);
    let links: Vec<(usize, bool)> = ends
        .map(|end| {
            (
                end.links.len(),
                end.links.iter().any(|link| link.id.is_none()),
            )
        })
        .collect();
    // The client and the server; the publisher, the newcomer and the subscriber.
    assert_eq!(
        links,
        [(1, true), (1, true), (2, true), (1, false), (1, true)]
    );
}

#[test]
fn who_takes_part_again_waits_until_it_has_said_all_that_it_holds() {
    let agent = Running::start(Config::default());
    let publisher = come(&agent, "news", Role::Publisher);
    let slow = Open {
        peers: 2,
        ..open("news", Role::Subscriber)
    };
    let subscriber = ask(&agent, slow).unwrap();
    subscriber.holds(5);
    assert!(publisher.has_nothing(&agent));
    subscriber.holds(6);
    assert_eq!(publisher.joined().news.peer, subscriber.opened.id);
}

#[test]
fn an_id_that_is_in_use_is_nobody_else_s() {
    let agent = Running::start(Config::default());
    let publisher = come(&agent, "news", Role::Publisher);
    let thief = Open {
        id: publisher.opened.id,
        ..open("other", Role::Subscriber)
    };
    assert_ne!(ask(&agent, thief).unwrap().opened.id, publisher.opened.id);
}

#[test]
fn a_pool_that_comes_again_is_charged_once_whoever_brings_it() {
    let quota = QuotaConfig {
        channel_bytes_per_tenant: 2 * POOL_BYTES - 1,
        ..QuotaConfig::default()
    };
    let agent = Running::start(Config {
        quota,
        ..Config::default()
    });
    let publisher = come(&agent, "news", Role::Publisher);
    assert!(publisher.has_nothing(&agent));
    let first = again(&agent, &publisher, &[]);
    let second = again(&agent, &publisher, &[]);
    assert!(ask(&agent, open("x", Role::Publisher)).is_err());
    drop((publisher, first, second));
    agent.wait_for(|_| ask(&agent, open("x", Role::Publisher)).is_ok());
}
