//! Rings between containers: packets in place, peers that misbehave, and an agent that comes and goes.

#[path = "rig/agent.rs"]
mod agent;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent::Running;
use millrace_channel::{Channel, Error, Publisher, Subscriber, WhenFull};
use millrace_port::ring::{Config, Ring, Side};
use millrace_port::{Burst, Cause, HEAD_BYTES, PACKET_BYTES_MAX, Port, State};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);

/// An agent, which stops first, and where it listens.
struct Place {
    agent: Option<Running>,
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let mut place = Place {
            agent: None,
            directory,
        };
        place.start();
        place
    }

    fn start(&mut self) {
        self.agent = Some(Running::start(&self.path()));
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("agent.sock")
    }

    fn ring(&self, side: Side) -> Ring {
        let mut config = Config::new("upf/n3", side);
        config.agent = Some(self.path());
        config.slots = 64;
        config.pool_bytes = 1 << 20;
        Ring::new(&config).unwrap()
    }

    fn channel(&self, name: &str) -> Channel {
        let channel = Channel::new(name).agent(self.path());
        channel
            .slots(64)
            .when_full(WhenFull::Fail)
            .timeout(PATIENCE)
    }

    /// The second side, by hand.
    fn second(&self) -> (Publisher, Subscriber) {
        let publisher = self.channel("upf/n3/2").publisher().unwrap();
        let subscriber = self.channel("upf/n3/1").subscriber().unwrap();
        (publisher, subscriber)
    }
}

fn until(ports: &mut [&mut Ring], holds: impl Fn(&State) -> bool) {
    let begin = Instant::now();
    loop {
        let now = Instant::now();
        if ports.iter_mut().all(|port| holds(port.poll(now))) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{ports:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn settle(ports: &mut [&mut Ring]) {
    until(ports, |state| matches!(state, State::Connected));
}

fn frame(number: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(number))
        .collect()
}

fn received(port: &mut Ring, count: usize) -> Vec<Vec<u8>> {
    let mut burst = Burst::new(16);
    let mut arrived = Vec::new();
    let begin = Instant::now();
    while arrived.len() < count {
        port.receive(0, &mut burst);
        arrived.extend(burst.iter().map(|packet| packet.to_vec()));
        port.release(0);
        assert!(begin.elapsed() < PATIENCE, "{} of {count}", arrived.len());
    }
    arrived
}

#[test]
fn packets_that_were_written_in_place_arrive() {
    let place = Place::new();
    let (mut first, mut second) = (place.ring(Side::First), place.ring(Side::Second));
    settle(&mut [&mut first, &mut second]);
    let mut burst = Burst::new(4);
    for length in [14, 64, HEAD_BYTES, HEAD_BYTES + 1, 1500, 60_000] {
        assert_eq!(first.lend(&mut burst, length), 4, "{length}");
        let wanted: Vec<_> = (1..=4).map(|number| frame(number, length)).collect();
        for (number, bytes) in wanted.iter().enumerate() {
            let half = length / 2;
            assert!(burst.write(number, half, &bytes[half..]));
            assert!(burst.write(number, 0, &bytes[..half]));
            assert!(!burst.write(number, 1, bytes), "beyond its end");
        }
        assert_eq!(first.transmit(0, &burst, 0), 4);
        assert!(received(&mut second, 4) == wanted, "{length}");
    }
    // As many as there is memory for, and what is not sent comes back.
    let mut many = Burst::new(64);
    for _ in 0..3 {
        let lent = first.lend(&mut many, PACKET_BYTES_MAX);
        assert!((4..64).contains(&lent), "{lent}");
    }
    assert_eq!(first.lend(&mut many, PACKET_BYTES_MAX + 1), 0);
    assert_eq!(first.lend(&mut many, 13), 0);
    let transmitted = first.counters().transmitted;
    assert_eq!((transmitted.packets, transmitted.drops()), (24, 0));
}

#[test]
fn what_was_lent_and_has_no_room_stays_lent() {
    let place = Place::new();
    let (mut first, mut second) = (place.ring(Side::First), place.ring(Side::Second));
    settle(&mut [&mut first, &mut second]);
    let mut burst = Burst::new(80);
    assert_eq!(first.lend(&mut burst, 1000), 80);
    for number in 0..80 {
        assert!(burst.write(number, 0, &frame(number as u8, 1000)));
    }
    assert_eq!(first.transmit(0, &burst, 0), 64);
    assert_eq!(first.transmit(0, &burst, 64), 0);
    let mut arrived = received(&mut second, 64);
    assert_eq!(first.transmit(0, &burst, 64), 16);
    arrived.extend(received(&mut second, 16));
    let wanted = (0..80u8).map(|number| frame(number, 1000));
    assert!(arrived.into_iter().eq(wanted));
    // A burst that was lent before is copied, whatever lies there now.
    assert_eq!(first.lend(&mut Burst::new(4), 1000), 4);
    assert_eq!(first.transmit(0, &burst, 78), 2);
    assert_eq!(received(&mut second, 2).len(), 2);
}

#[test]
fn messages_that_are_no_packets_are_dropped_and_counted() {
    let place = Place::new();
    let mut first = place.ring(Side::First);
    let (publisher, _subscriber) = place.second();
    settle(&mut [&mut first]);
    assert!(publisher.wait_for_subscribers(1, PATIENCE));
    for length in [0, 13, 14, PACKET_BYTES_MAX, PACKET_BYTES_MAX + 1, 100_000] {
        publisher.send(&vec![7; length]).unwrap();
    }
    let arrived = received(&mut first, 2);
    assert!(arrived == [vec![7; 14], vec![7; PACKET_BYTES_MAX]]);
    publisher.send(&[1; 60]).unwrap();
    assert_eq!(received(&mut first, 1), [[1; 60]]);
    let tally = first.counters().received;
    let dropped = [Cause::TooShort, Cause::TooLong].map(|cause| tally.dropped(cause));
    assert_eq!((dropped, tally.offered()), ([2, 2], 7));
}

#[test]
fn messages_that_are_dropped_are_taken_a_few_at_a_time() {
    let place = Place::new();
    let mut config = Config::new("upf/n3", Side::First);
    config.agent = Some(place.path());
    let mut port = Ring::new(&config).unwrap();
    let publisher = place.channel("upf/n3/2").slots(1024).publisher().unwrap();
    let _subscriber = place.channel("upf/n3/1").subscriber().unwrap();
    until(&mut [&mut port], |state| matches!(state, State::Connected));
    assert!(publisher.wait_for_subscribers(1, PATIENCE));
    let mut sent = 0;
    while sent < 1000 && publisher.send(b"no packet").is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 1000);
    let mut burst = Burst::new(32);
    let mut before = 0;
    while before < sent {
        assert!(!port.arm(), "there are more");
        assert_eq!(port.receive(0, &mut burst), 0);
        let dropped = port.counters().received.dropped(Cause::TooShort);
        assert!(
            (1..=256).contains(&(dropped - before)),
            "{before} {dropped}"
        );
        before = dropped;
    }
    assert!(port.arm());
}

#[test]
fn a_reader_that_gives_nothing_back_costs_its_own_ring_and_nothing_when_it_goes() {
    let place = Place::new();
    let mut first = place.ring(Side::First);
    let mut burst = Burst::new(100);
    (0..100u8).for_each(|number| assert!(burst.push(&frame(number, 200))));
    for _ in 0..3 {
        let (publisher, subscriber) = place.second();
        settle(&mut [&mut first]);
        assert_eq!(first.transmit(0, &burst, 0), 64);
        let held: Vec<_> = std::iter::from_fn(|| subscriber.pop()).collect();
        assert_eq!((held.len(), first.transmit(0, &burst, 64)), (64, 0));
        drop(
            held.into_iter()
                .map(millrace_channel::Message::detach)
                .collect::<Vec<_>>(),
        );
        drop((publisher, subscriber));
        until(&mut [&mut first], |state| {
            matches!(state, State::Connecting(Some(_)))
        });
    }
}

#[test]
fn third_programs_are_not_heard() {
    let place = Place::new();
    let (mut first, mut second) = (place.ring(Side::First), place.ring(Side::Second));
    settle(&mut [&mut first, &mut second]);
    let mut burst = Burst::new(4);
    // Several: the agent's numbers are in no order.
    let thirds: Vec<_> = (1..=8u8)
        .map(|number| {
            let (publisher, subscriber) = place.second();
            assert!(publisher.wait_for_subscribers(1, PATIENCE));
            publisher.send(&[number; 60]).unwrap();
            settle(&mut [&mut first, &mut second]);
            (publisher, subscriber)
        })
        .collect();
    assert!(burst.push(&frame(3, 60)));
    assert_eq!(second.transmit(0, &burst, 0), 1);
    assert_eq!(received(&mut first, 1), [frame(3, 60)]);
    let begin = Instant::now();
    while first.counters().received.dropped(Cause::NoPeer) < 8 {
        assert_eq!(first.receive(0, &mut burst), 0);
        assert!(begin.elapsed() < PATIENCE);
    }
    drop(thirds);
    settle(&mut [&mut first, &mut second]);
    assert_eq!(first.counters().connections, 1);
}

#[test]
fn packets_pass_without_an_agent_and_peers_meet_when_it_is_back() {
    let mut place = Place::new();
    let (mut first, mut second) = (place.ring(Side::First), place.ring(Side::Second));
    settle(&mut [&mut first, &mut second]);
    place.agent = None;
    let mut burst = Burst::new(1);
    assert!(burst.push(&frame(5, 700)));
    for _ in 0..100 {
        settle(&mut [&mut first, &mut second]);
        assert_eq!(first.transmit(0, &burst, 0), 1);
        assert_eq!(received(&mut second, 1).len(), 1);
    }
    drop(second);
    until(&mut [&mut first], |state| {
        matches!(state, State::Connecting(Some(_)))
    });
    assert!(first.poll_at().is_some());
    place.start();
    let mut second = place.ring(Side::Second);
    settle(&mut [&mut first, &mut second]);
    assert_eq!(first.transmit(0, &burst, 0), 1);
    assert_eq!(received(&mut second, 1).len(), 1);
}

#[test]
fn a_ring_that_cannot_be_says_why() {
    let place = Place::new();
    let mut config = Config::new("upf/n3", Side::First);
    config.agent = Some(place.directory.path().join("nobody"));
    assert!(matches!(Ring::new(&config), Err(Error::NoAgent(..))));
    config.agent = Some(place.path());
    config.slots = 3;
    assert!(matches!(Ring::new(&config), Err(Error::Option(_))));
    let mut config = Config::new("no name", Side::First);
    config.agent = Some(place.path());
    assert!(matches!(Ring::new(&config), Err(Error::Name(_))));
}
