//! Faults come as they were asked for, and everything is counted.

mod line;

use std::time::{Duration, Instant};

use line::{Line, number, packet};
use millrace_port::fault::{Config, Fault, FaultCounts, Faults};
use millrace_port::{Burst, Cause, Checksum, Offload, Port};

const MS: Duration = Duration::from_millis(1);

fn with(faults: Faults, seed: u64) -> Config {
    Config {
        received: faults.clone(),
        transmitted: faults,
        ..Config::new(seed)
    }
}

/// All kinds of them.
fn some() -> Faults {
    Faults {
        loss: 0.1,
        duplication: 0.1,
        corruption: 0.1,
        delay: 0.05,
        delay_time: MS..=3 * MS,
        reorder: 0.2,
        reorder_distance: 5,
    }
}

fn is_exact(counts: &FaultCounts) -> bool {
    counts.offered + counts.doubled == counts.passed + counts.lost + counts.gone + counts.held
}

/// Transmits packets in bursts of a size; returns what came out by the end, and what was counted.
fn transmit(config: &Config, packets: &[Vec<u8>], size: usize) -> (Vec<Vec<u8>>, FaultCounts) {
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Fault::new(line, config).unwrap();
    let begin = Instant::now();
    port.poll(begin);
    let mut burst = Burst::new(size);
    for some in packets.chunks(size) {
        burst.clear();
        some.iter().for_each(|packet| assert!(burst.push(packet)));
        assert_eq!(port.transmit(0, &burst, 0), some.len());
        assert!(is_exact(&port.transmitted()));
    }
    port.poll(begin + Duration::from_secs(1));
    let (counts, counters) = (port.transmitted(), port.counters());
    let arrived = port.into_inner().take();
    assert_eq!(counts.held, 0);
    assert_eq!(counters.transmitted.dropped(Cause::Fault), counts.lost);
    assert_eq!(counters.transmitted.packets, arrived.len() as u64);
    assert_eq!(counts.passed, arrived.len() as u64);
    (arrived, counts)
}

/// The same of packets that are received.
fn receive(config: &Config, packets: &[Vec<u8>], size: usize) -> (Vec<Vec<u8>>, FaultCounts) {
    let (line, _other) = Line::pair(usize::MAX);
    packets.iter().for_each(|packet| line.put(packet));
    let mut port = Fault::new(line, config).unwrap();
    let begin = Instant::now();
    port.poll(begin);
    let mut burst = Burst::new(size);
    let mut arrived = Vec::new();
    for later in [Duration::ZERO, Duration::from_secs(1)] {
        port.poll(begin + later);
        while !port.arm() {
            port.receive(0, &mut burst);
            arrived.extend(burst.iter().map(|packet| packet.to_vec()));
            assert!(is_exact(&port.received()));
        }
    }
    let (counts, counters) = (port.received(), port.counters());
    assert_eq!(counts.held, 0);
    assert_eq!(counters.received.packets, arrived.len() as u64);
    let bytes: usize = arrived.iter().map(Vec::len).sum();
    assert_eq!(counters.received.bytes, bytes as u64);
    assert_eq!(counters.received.dropped(Cause::Fault), counts.lost);
    (arrived, counts)
}

fn packets(count: u64) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| packet(number, 20 + (number % 500) as usize))
        .collect()
}

#[test]
fn the_same_seed_has_the_same_faults_whatever_the_bursts() {
    let packets = packets(3000);
    for way in [transmit, receive] {
        let config = with(some(), 5);
        let wanted = way(&config, &packets, 32);
        for size in [1, 7, 64, 200] {
            assert!(way(&config, &packets, size) == wanted, "bursts of {size}");
        }
        let other = way(&with(some(), 6), &packets, 32);
        assert!(other.0 != wanted.0);
        let counts = wanted.1;
        assert!(counts.lost > 200 && counts.doubled > 200 && counts.corrupted > 200);
        assert!(counts.delayed > 80 && counts.reordered > 300 && counts.unheld == 0);
    }
}

/// Random faults, packets and bursts: what arrives is what was sent, but for what was counted.
#[test]
fn counts_add_up_whatever_the_faults() {
    let mut random = 11u64;
    let mut next = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    for round in 0..60 {
        let mut chance = || [0.0, 0.01, 0.3, 1.0][next(4) as usize];
        let faults = Faults {
            loss: chance() / 2.0,
            duplication: chance(),
            corruption: 0.0,
            delay: chance() / 2.0,
            delay_time: Duration::ZERO..=MS,
            reorder: chance(),
            reorder_distance: 1 + next(40) as u32,
        };
        let mut config = with(faults, round);
        config.held_max = next(100) as usize;
        let packets = packets(200 + next(300));
        let size = 1 + next(80) as usize;
        for way in [transmit, receive] {
            let (arrived, counts) = way(&config, &packets, size);
            assert!(is_exact(&counts), "{counts:?}");
            assert!(counts.offered == packets.len() as u64 || counts.offered == 0);
            let mut times = vec![0u64; packets.len()];
            for bytes in &arrived {
                let number = number(bytes) as usize;
                assert!(*bytes == packets[number]);
                times[number] += 1;
            }
            let missing = times.iter().filter(|times| **times == 0).count() as u64;
            let doubled = times.iter().filter(|times| **times == 2).count() as u64;
            assert!(times.iter().all(|times| *times <= 2));
            assert_eq!((missing, doubled), (counts.lost, counts.doubled));
        }
    }
}

#[test]
fn a_reordered_packet_is_overtaken_by_no_more_than_was_asked_for() {
    let faults = Faults {
        reorder: 0.1,
        reorder_distance: 4,
        ..Faults::NONE
    };
    let packets = packets(5000);
    for way in [transmit, receive] {
        let (arrived, counts) = way(&with(faults.clone(), 3), &packets, 16);
        let numbers: Vec<u64> = arrived.iter().map(|bytes| number(bytes)).collect();
        let mut late = 0;
        for (place, number) in numbers.iter().enumerate() {
            let overtaken = numbers[..place].iter().filter(|other| *other > number);
            let overtaken = overtaken.count();
            assert!(overtaken <= 4);
            late += u64::from(overtaken > 0);
        }
        // Some are held behind what is held as well.
        assert!(
            late <= counts.reordered && late > counts.reordered * 8 / 10,
            "{late} {counts:?}"
        );
    }
}

#[test]
fn a_delayed_packet_comes_when_it_is_due() {
    let faults = Faults {
        delay: 1.0,
        delay_time: 2 * MS..=2 * MS,
        ..Faults::NONE
    };
    let (line, _other) = Line::pair(usize::MAX);
    line.put(&packet(1, 100));
    let mut port = Fault::new(line, &with(faults, 1)).unwrap();
    let begin = Instant::now() + Duration::from_secs(1);
    let mut burst = Burst::new(4);
    port.poll(begin);
    assert_eq!(port.receive(0, &mut burst), 0);
    assert!(port.arm());
    assert_eq!(port.poll_at(), Some(begin + 2 * MS));
    port.poll(begin + MS);
    assert!(burst.push(&packet(2, 100)));
    burst.set_offload(
        0,
        Offload {
            checksum: Checksum::Verified,
            segment: None,
        },
    );
    assert_eq!(port.transmit(0, &burst, 0), 1);
    port.poll(begin + 2 * MS);
    assert!(!port.arm());
    assert_eq!(port.receive(0, &mut burst), 1);
    assert_eq!(port.poll_at(), Some(begin + 3 * MS));
    assert_eq!(port.transmitted().held, 1);
    port.poll(begin + 3 * MS);
    assert_eq!((port.poll_at(), port.transmitted().held), (None, 0));
    assert_eq!(port.into_inner().take(), [packet(2, 100)]);
}

#[test]
fn a_packet_that_nobody_overtakes_goes_on_after_a_time() {
    let faults = Faults {
        reorder: 1.0,
        ..Faults::NONE
    };
    let mut config = with(faults, 1);
    config.patience = 5 * MS;
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Fault::new(line, &config).unwrap();
    let begin = Instant::now();
    port.poll(begin);
    let mut burst = Burst::new(1);
    assert!(burst.push(&packet(0, 60)));
    assert_eq!(port.transmit(0, &burst, 0), 1);
    port.poll(begin + 4 * MS);
    assert_eq!(port.transmitted().held, 1);
    port.poll(begin + 5 * MS);
    assert_eq!(port.transmitted().held, 0);
    assert_eq!(port.into_inner().take().len(), 1);
}

#[test]
fn what_there_is_no_room_to_hold_passes_at_once() {
    let faults = Faults {
        delay: 1.0,
        delay_time: MS..=MS,
        ..Faults::NONE
    };
    let mut config = with(faults, 1);
    config.held_max = 10;
    let (arrived, counts) = transmit(&config, &packets(50), 8);
    assert_eq!((counts.delayed, counts.unheld), (10, 40));
    let numbers: Vec<u64> = arrived.iter().map(|bytes| number(bytes)).collect();
    assert!(numbers.into_iter().eq((10..50).chain(0..10)));
}

#[test]
fn what_the_port_has_no_room_for_stays_with_the_sender() {
    let packets = packets(2000);
    let wanted = transmit(&with(some(), 9), &packets, 16);
    let (mut line, _other) = Line::pair(3);
    line.room = 3;
    let mut port = Fault::new(line, &with(some(), 9)).unwrap();
    port.poll(Instant::now());
    let mut burst = Burst::new(16);
    let mut arrived = Vec::new();
    let begin = Instant::now();
    let take = |port: &mut Fault<Line>| {
        let counts = port.transmitted();
        assert!(is_exact(&counts));
        counts.held
    };
    for some in packets.chunks(16) {
        burst.clear();
        some.iter().for_each(|packet| assert!(burst.push(packet)));
        let mut sent = 0;
        while sent < some.len() {
            sent += port.transmit(0, &burst, sent);
            take(&mut port);
            arrived.extend(port.inner().take());
        }
    }
    for turn in 0.. {
        port.poll(begin + Duration::from_secs(5));
        arrived.extend(port.inner().take());
        if take(&mut port) == 0 {
            break;
        }
        assert!(turn < 1000);
    }
    let counts = port.transmitted();
    assert_eq!(counts.passed, arrived.len() as u64);
    assert_eq!(counts.offered, packets.len() as u64);
    assert_eq!(
        (counts.lost, counts.reordered),
        (wanted.1.lost, wanted.1.reordered)
    );
}

#[test]
fn what_is_held_for_a_peer_that_goes_is_counted() {
    let faults = Faults {
        delay: 1.0,
        delay_time: MS..=MS,
        ..Faults::NONE
    };
    let (line, _other) = Line::pair(usize::MAX);
    let mut port = Fault::new(line, &with(faults, 1)).unwrap();
    let begin = Instant::now();
    port.poll(begin);
    let mut burst = Burst::new(3);
    (0..3).for_each(|number| assert!(burst.push(&packet(number, 60))));
    assert_eq!(port.transmit(0, &burst, 0), 3);
    port.inner_mut().queues = 0;
    assert_eq!(port.transmit(0, &burst, 0), 0);
    port.poll(begin + MS);
    let counts = port.transmitted();
    assert_eq!((counts.gone, counts.held, counts.passed), (3, 0, 0));
    assert!(is_exact(&counts));
    assert_eq!(port.counters().wakes, 3, "it was given up");
}

#[test]
fn faults_that_cannot_be_are_refused() {
    let (line, _other) = Line::pair(1);
    let mut config = Config::new(0);
    config.received.loss = 2.0;
    assert!(Fault::new(line, &config).is_err());
}
