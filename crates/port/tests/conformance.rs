//! One suite for all kinds of port: a function for each property, played by each kind that has it.

mod rig;

use std::time::{Duration, Instant};

use millrace_port::{
    Burst, Cause, Checksum, HEAD_BYTES, Offload, PACKET_BYTES_MAX, Port, Segment, SegmentKind,
    State,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rig::{Kind, Rig, is_connected, kinds, packet, receive_all, receive_offloads, send_all};

fn play(property: fn(&mut Rig), has_it: fn(&Kind) -> bool) {
    for kind in kinds().filter(|kind| has_it(kind)) {
        println!("{}", kind.name);
        if kind.is_possible() {
            property(&mut Rig::new(kind));
        }
    }
}

/// Plays a property by each kind whose ends are there at the same time.
fn each(property: fn(&mut Rig)) {
    play(property, Kind::is_live);
}

/// Plays a property by each kind, files as well.
fn each_and_files(property: fn(&mut Rig)) {
    play(property, |kind| kind.is_live() || kind.is_file());
}

/// Plays a property by each kind but files, also by those that have something of others between their ends.
fn all_but_files(property: fn(&mut Rig)) {
    play(property, |kind| !kind.is_file());
}

/// Plays a property by each kind.
fn all(property: fn(&mut Rig)) {
    play(property, |_| true);
}

#[test]
fn packets_arrive_whole_and_in_order() {
    all(|rig| {
        let packets: Vec<Vec<u8>> = (0..5000)
            .map(|number| packet(number, 20 + (number * 37 % 1481) as usize))
            .collect();
        assert!(rig.pass(&packets, 32) == packets);
    });
}

#[test]
fn bursts_of_any_size_pass() {
    all(|rig| {
        for size in [1, 2, 7, 31, 32, 33, 64, 256] {
            let packets: Vec<_> = (0..400).map(|number| packet(number, 64)).collect();
            assert!(rig.pass(&packets, size) == packets, "bursts of {size}");
        }
    });
}

#[test]
fn an_empty_queue_has_nothing_and_a_full_one_takes_nothing() {
    each(|rig| {
        let mut burst = Burst::new(64);
        let mut one = Burst::new(1);
        assert!(one.push(&packet(0, 64)));
        // Cursors of 16 bits go round several times.
        for _ in 0..3 * 65_536 / rig.slots() + 2 {
            assert_eq!(rig.receiver.receive(0, &mut burst), 0);
            let mut sent = 0;
            while rig.sender.transmit(0, &one, 0) == 1 {
                sent += 1;
            }
            assert_eq!(sent, rig.slots());
            let mut received = 0;
            while received < sent {
                let count = rig.receiver.receive(0, &mut burst);
                assert!(count > 0);
                received += count;
            }
        }
    });
}

#[test]
fn what_there_is_no_room_for_stays_with_the_sender() {
    each(|rig| {
        let count = rig.slots() + 10;
        let mut burst = Burst::new(count);
        for number in 0..count {
            assert!(burst.push(&packet(number as u64, 60)));
        }
        assert_eq!(rig.sender.transmit(0, &burst, 0), rig.slots());
        assert_eq!(rig.sender.transmit(0, &burst, rig.slots()), 0);
        rig.sender.give_up(0, &burst, rig.slots() + 4);
        let slots = rig.slots();
        let received = receive_all(&mut *rig.receiver, slots);
        assert!(
            received
                .iter()
                .enumerate()
                .all(|(number, bytes)| *bytes == packet(number as u64, 60))
        );
        // The rest, but what was given up.
        let mut rest = Burst::new(4);
        for number in rig.slots()..rig.slots() + 4 {
            assert!(rest.push(&packet(number as u64, 60)));
        }
        assert_eq!(rig.sender.transmit(0, &rest, 0), 4);
        assert_eq!(receive_all(&mut *rig.receiver, 4).len(), 4);
        let transmitted = rig.sender.counters().transmitted;
        assert_eq!(transmitted.dropped(Cause::Full), 6);
        assert_eq!(transmitted.offered(), count as u64);
    });
}

#[test]
fn jumbo_frames_and_packets_of_many_segments_pass() {
    all(|rig| {
        let longest = PACKET_BYTES_MAX.min(rig.kind.longest());
        let lengths = [
            HEAD_BYTES - 1,
            HEAD_BYTES,
            HEAD_BYTES + 1,
            1518,
            2047,
            2048,
            2049,
            4096,
            4097,
            9018,
            65_535,
            longest,
        ];
        let fitting = lengths.into_iter().filter(|length| *length <= longest);
        let packets: Vec<_> = (0..)
            .zip(fitting)
            .map(|(number, length)| packet(number, length))
            .collect();
        for _ in 0..40 {
            assert!(rig.pass(&packets, 4) == packets);
        }
    });
}

#[test]
fn counters_add_up_exactly() {
    all(|rig| {
        let mut packets: Vec<_> = (0..500)
            .map(|number| packet(number, 20 + number as usize * 3))
            .collect();
        let bytes: usize = packets.iter().map(Vec::len).sum();
        packets.insert(17, vec![1; 13]);
        packets.insert(300, vec![]);
        let longest = rig.kind.longest();
        let mut too_long = 0;
        if longest < PACKET_BYTES_MAX {
            packets.push(vec![1; longest + 1]);
            too_long = 1;
        }
        assert_eq!(rig.pass_some(&packets, 32, 500).len(), 500);
        let (sent, received) = (
            rig.sender.counters().transmitted,
            rig.receiver.counters().received,
        );
        assert_eq!((sent.packets, sent.bytes), (500, bytes as u64));
        assert_eq!(
            (sent.dropped(Cause::TooShort), sent.dropped(Cause::TooLong)),
            (2, too_long)
        );
        assert_eq!(sent.offered(), packets.len() as u64);
        assert_eq!(
            (received.packets, received.bytes, received.drops()),
            (500, bytes as u64, 0)
        );
        assert_eq!(rig.sender.counters().received.offered(), 0);
        assert_eq!(rig.receiver.counters().transmitted.offered(), 0);
    });
}

#[test]
fn work_that_the_peer_does_not_take_over_is_not_left_to_it() {
    each_and_files(|rig| {
        let partial = Checksum::Partial {
            start: 34,
            offset: 16,
        };
        let segment = |kind| Offload {
            checksum: partial,
            segment: Some(Segment {
                kind,
                has_ecn: false,
                bytes: 500,
                header_bytes: 54,
            }),
        };
        let verified = Offload {
            checksum: Checksum::Verified,
            segment: None,
        };
        let works = [
            Offload {
                checksum: partial,
                segment: None,
            },
            segment(SegmentKind::Tcp4),
            segment(SegmentKind::Tcp6),
            segment(SegmentKind::Udp),
            verified,
            Offload::NONE,
        ];
        // Files are there once something was sent.
        let packets: Vec<_> = (0..6).map(|number| packet(number, 1000)).collect();
        assert!(rig.pass(&packets, 6) == packets);
        let mut burst = Burst::new(works.len());
        for (number, work) in works.iter().enumerate() {
            assert!(burst.push(&packets[number]));
            burst.set_offload(number, *work);
        }
        let takes = rig.sender.offloads();
        let dropped = works.iter().filter(|work| !takes.takes(work)).count();
        let before = rig.sender.counters().transmitted;
        assert_eq!(rig.sender.transmit(0, &burst, 0), works.len());
        let after = rig.sender.counters().transmitted;
        assert_eq!(after.dropped(Cause::Offload), dropped as u64);
        assert_eq!(after.offered(), before.offered() + works.len() as u64);
        if rig.kind.is_live() {
            let arrived = receive_offloads(&mut *rig.receiver, works.len() - dropped);
            let wanted = (packets.iter().zip(works)).filter(|(_, work)| takes.takes(work));
            // Not everybody can vouch for a checksum.
            let said = |work: Offload| match work.checksum {
                Checksum::Verified => Offload::NONE,
                _ => work,
            };
            let arrived = arrived.iter().map(|(bytes, work)| (bytes, said(*work)));
            assert!(arrived.eq(wanted.map(|(bytes, work)| (bytes, said(work)))));
        }
    });
}

#[test]
fn a_burst_is_good_after_its_port_has_lost_the_peer() {
    each(|rig| {
        let packets: Vec<_> = (0..4).map(|number| packet(number, 900)).collect();
        assert_eq!(send_all(&mut *rig.sender, &packets, 4), 4);
        let mut burst = Burst::new(3);
        assert_eq!(rig.receiver.receive(0, &mut burst), 3);
        rig.remake_sender();
        rig.settle();
        let copies: Vec<_> = burst.iter().map(|packet| packet.to_vec()).collect();
        assert!(copies == packets[..3]);
        // What was on its way to the one that has gone is lost with it; what comes now is another connection's. A front end has it still.
        if rig.kind.keeps_what_came() {
            let kept = receive_all(&mut *rig.receiver, 1);
            assert!(kept == packets[3..]);
        }
        let packets: Vec<_> = (100..300).map(|number| packet(number, 300)).collect();
        assert!(rig.pass(&packets, 16) == packets);
    });
}

#[test]
fn memory_of_a_peer_that_has_gone_is_given_up() {
    each(|rig| {
        let packets = [packet(1, 900), packet(2, 900)];
        assert_eq!(send_all(&mut *rig.sender, &packets, 2), 2);
        let mut burst = Burst::new(1);
        assert_eq!(rig.receiver.receive(0, &mut burst), 1);
        assert_eq!(burst.memory().is_some(), rig.kind.has_places());
        rig.lose_sender();
        assert_eq!(rig.receiver.receive(0, &mut burst), 0);
        // A front end's memory is its own.
        assert!(burst.memory().is_none() || rig.kind.keeps_what_came());
    });
}

#[test]
fn a_port_goes_on_when_its_peer_comes_back() {
    each(|rig| {
        for turn in 0..6 {
            let packets: Vec<_> = (0..100)
                .map(|number| packet(turn * 1000 + number, 300))
                .collect();
            assert!(rig.pass(&packets, 16) == packets);
            if turn % 2 == 0 {
                rig.lose_sender();
                assert!(
                    matches!(rig.receiver.state(), State::Connecting(Some(_))),
                    "{:?}",
                    rig.receiver.state()
                );
                assert_eq!(
                    (
                        rig.receiver.receive_queues(),
                        rig.receiver.transmit_queues()
                    ),
                    (0, 0)
                );
                assert_eq!(rig.receiver.receive(0, &mut Burst::new(4)), 0);
                rig.remake_sender();
            } else {
                rig.remake_receiver();
                let mut burst = Burst::new(1);
                assert!(burst.push(&packets[0]));
                rig.until(|rig| !is_connected(&*rig.sender));
                assert_eq!(rig.sender.transmit(0, &burst, 0), 0);
                rig.sender.give_up(0, &burst, 0);
                assert_eq!(rig.sender.counters().transmitted.dropped(Cause::NoPeer), 1);
            }
            rig.settle();
        }
        // Remade last in the last turn: the sender has seen two receivers.
        assert_eq!(rig.sender.counters().connections, 2);
    });
}

#[test]
fn a_packet_is_forwarded_with_its_header_changed() {
    each(|rig| {
        let mut onward = Rig::new(rig.kind);
        let packets: Vec<_> = (0..200)
            .map(|number| packet(number, 40 + number as usize * 9))
            .collect();
        assert_eq!(rig.kind.buffer_bytes, onward.kind.buffer_bytes);
        let mut arrived = Vec::new();
        let mut burst = Burst::new(8);
        for some in packets.chunks(2) {
            assert_eq!(send_all(&mut *rig.sender, some, 8), some.len());
            let count = rig.receiver.receive(0, &mut burst);
            for number in 0..count {
                burst.head_mut(number)[0] ^= 0x80;
            }
            let mut sent = 0;
            while sent < count {
                sent += onward.sender.transmit(0, &burst, sent);
                arrived.extend(receive_all(&mut *onward.receiver, 1));
            }
            rig.receiver.release(0);
        }
        arrived.extend(receive_all(
            &mut *onward.receiver,
            packets.len() - arrived.len(),
        ));
        let mut wanted = packets.clone();
        for bytes in &mut wanted {
            bytes[0] ^= 0x80;
        }
        assert!(arrived == wanted);
    });
}

#[test]
fn a_sleeper_is_woken_by_packets_and_by_nothing_else() {
    all_but_files(|rig| {
        let wait = |port: &dyn Port, timeout: u16| {
            let mut polled = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::from(timeout)).unwrap()
        };
        for number in 0..20 {
            rig.receiver.poll(Instant::now());
            assert!(rig.receiver.arm());
            if number % 8 == 0 {
                assert_eq!(wait(&*rig.receiver, 20), 0, "nothing has come");
            }
            let sent = packet(number, 64);
            assert_eq!(
                send_all(&mut *rig.sender, std::slice::from_ref(&sent), 1),
                1
            );
            assert_eq!(wait(&*rig.receiver, 10_000), 1);
            rig.receiver.poll(Instant::now());
            assert_eq!(receive_all(&mut *rig.receiver, 1), [sent]);
            // Awake, it is not rung for.
            let wakes = rig.sender.counters().wakes;
            assert_eq!(send_all(&mut *rig.sender, &[packet(0, 64)], 1), 1);
            assert_eq!(rig.sender.counters().wakes, wakes);
            assert!(!rig.receiver.arm());
            assert_eq!(receive_all(&mut *rig.receiver, 1).len(), 1);
        }
    });
}

#[test]
fn a_sleeper_is_woken_by_the_death_of_its_peer() {
    each(|rig| {
        rig.receiver.poll(Instant::now());
        assert!(rig.receiver.arm());
        rig.lose_sender_unseen();
        let mut polled = [PollFd::new(rig.receiver.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut polled, PollTimeout::from(10_000u16)), Ok(1));
        let state = rig.receiver.poll(Instant::now());
        assert!(matches!(state, State::Connecting(Some(_))), "{state:?}");
    });
}

#[test]
fn no_sleeper_misses_what_comes_as_it_falls_asleep() {
    each(|rig| {
        const COUNT: u64 = 20_000;
        let receiver = &mut *rig.receiver;
        let sender = &mut *rig.sender;
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..COUNT {
                    while send_all(sender, &[packet(number, 64)], 1) == 0 {
                        std::thread::yield_now();
                    }
                    if number % 3 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            let mut burst = Burst::new(32);
            let mut count = 0;
            while count < COUNT {
                receiver.poll(Instant::now());
                let received = receiver.receive(0, &mut burst);
                count += received as u64;
                if received == 0 && receiver.arm() {
                    let mut polled = [PollFd::new(receiver.as_fd(), PollFlags::POLLIN)];
                    assert_eq!(
                        poll(&mut polled, PollTimeout::from(20_000u16)),
                        Ok(1),
                        "{count} of {COUNT}"
                    );
                }
            }
        });
        assert!(begin.elapsed() < Duration::from_secs(600));
    });
}

#[test]
fn each_queue_has_its_own_packets() {
    each(|rig| {
        let queues = rig.sender.transmit_queues();
        assert_eq!(queues, usize::from(rig.kind.queues));
        assert_eq!(rig.receiver.receive_queues(), queues);
        let mut burst = Burst::new(4);
        for queue in 0..queues {
            burst.clear();
            assert!(burst.push(&packet(queue as u64, 64)));
            assert_eq!(rig.sender.transmit(queue, &burst, 0), 1);
        }
        assert_eq!(rig.sender.transmit(queues, &burst, 0), 0);
        rig.sender.give_up(queues, &burst, 0);
        assert_eq!(rig.sender.counters().transmitted.dropped(Cause::NoQueue), 1);
        for queue in (0..queues).rev() {
            assert_eq!(rig.receiver.receive(queue, &mut burst), 1);
            assert_eq!(burst.get(0).unwrap().to_vec(), packet(queue as u64, 64));
            assert_eq!(rig.receiver.receive(queue, &mut burst), 0);
        }
    });
}
