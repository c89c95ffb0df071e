//! Captures: paced by their stamps, cut short, and not captures at all.

use std::fs;
use std::time::{Duration, Instant};

use millrace_port::pcap::{Format, Link, Pace, Pcap};
use millrace_port::{Burst, Cause, Port, State};

fn capture(times_us: &[u32], captured: u32, link: u32) -> Vec<u8> {
    let mut words = vec![0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, link];
    for time in times_us {
        words.extend([1000, *time, captured, 64]);
        words.extend((0..captured / 4).map(|_| 0));
    }
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn reads(bytes: &[u8], pace: Pace) -> Pcap {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    Pcap::read(file.path(), pace).unwrap()
}

fn ending(mut port: Pcap) -> String {
    let mut burst = Burst::new(8);
    while matches!(port.state(), State::Connected) {
        port.receive(0, &mut burst);
    }
    let State::Closed(why) = port.state() else {
        unreachable!("it is not connected any more")
    };
    why.to_string()
}

#[test]
fn by_its_stamps_a_packet_comes_when_it_is_due() {
    let mut port = reads(&capture(&[0, 500, 90_000], 64, 1), Pace::Stamps);
    let mut burst = Burst::new(8);
    let begin = Instant::now();
    let at = |us| begin + Duration::from_micros(us);
    let mut turn = |us, wanted, next: Option<u64>| {
        port.poll(at(us));
        assert_eq!(port.receive(0, &mut burst), wanted, "after {us} µs");
        assert_eq!(port.poll_at(), next.map(at));
        assert!(port.arm());
    };
    turn(0, 1, Some(500));
    turn(499, 0, Some(500));
    turn(600, 1, Some(90_000));
    turn(200_000, 1, None);
    assert!(matches!(port.state(), State::Closed(_)));
}

#[test]
fn a_capture_ends_with_a_reason() {
    let whole = capture(&[0, 1], 64, 1);
    assert_eq!(ending(reads(&whole, Pace::Full)), "the file has ended");
    let cut = &whole[..whole.len() - 1];
    assert_eq!(
        ending(reads(cut, Pace::Full)),
        "the capture ends in the middle of a packet"
    );
    let wireless = capture(&[0], 64, 105);
    assert_eq!(
        ending(reads(&wireless, Pace::Full)),
        "packets of link type 105 are not understood"
    );
    assert_eq!(
        ending(reads(&[9; 99], Pace::Full)),
        "a file that begins with 0x09090909 is no capture"
    );
    assert_eq!(ending(reads(&[], Pace::Full)), "the file has ended");
}

#[test]
fn packets_without_their_end_are_dropped_and_counted() {
    let mut port = reads(&capture(&[0, 1, 2], 32, 1), Pace::Full);
    assert_eq!(port.receive(0, &mut Burst::new(8)), 0);
    let received = port.counters().received;
    assert_eq!((received.dropped(Cause::Cut), received.offered()), (3, 3));
}

#[test]
fn one_way_has_no_queue_the_other_way() {
    let place = tempfile::tempdir().unwrap();
    let mut port = Pcap::write(place.path().join("capture"), Format::Pcapng, Link::Ip).unwrap();
    let mut burst = Burst::new(1);
    assert!(burst.push(&[0x45; 20]));
    assert_eq!((port.receive_queues(), port.transmit_queues()), (0, 1));
    assert_eq!(port.transmit(1, &burst, 0), 0);
    port.give_up(1, &burst, 0);
    assert_eq!(port.transmit(0, &burst, 0), 1);
    let transmitted = port.counters().transmitted;
    assert_eq!(
        (transmitted.packets, transmitted.dropped(Cause::NoQueue)),
        (1, 1)
    );
    assert_eq!(port.receive(0, &mut burst), 0);
}

#[test]
fn nobody_waits_for_the_other_end_of_a_pipe() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let read = Pcap::read(&path, Pace::Full).map(drop);
    let written = Pcap::write(&path, Format::Pcapng, Link::Ethernet).map(drop);
    for outcome in [read, written] {
        assert_eq!(
            outcome.unwrap_err().to_string(),
            "it is a pipe, and not a file"
        );
    }
}
