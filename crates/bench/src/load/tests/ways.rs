//! The ways of a round trip, to servers of this clock and of others.

use std::time::Duration;

use super::*;
use crate::load::stamp::{HEAD_BYTES, Head, Stamps, WHO};
use crate::load::sys::monotonic_ns;

const BYTES: usize = 64;
const ONE_WAY: Workload = Workload::OneWay { bytes: BYTES };

/// A server of another clock, that of a machine which was started at another time.
fn elsewhere(clock: impl Fn() -> u64 + Send + Sync + 'static, back: Duration) -> Address {
    server(move |mut connection| {
        let mut head = [0; HEAD_BYTES];
        while connection.read_exact(&mut head).is_ok() {
            let asked = Head::parse(&head);
            let mut contents = vec![0; asked.bytes - HEAD_BYTES];
            connection.read_exact(&mut contents).unwrap();
            let received_ns = clock();
            if asked.kind == WHO {
                contents = b"elsewhere time:[1]".to_vec();
            }
            let answer = Head {
                bytes: HEAD_BYTES + contents.len(),
                stamps: Stamps {
                    received_ns,
                    sent_ns: clock(),
                },
                ..asked
            };
            std::thread::sleep(back);
            let answer = [&answer.emit()[..], &contents].concat();
            if connection.write_all(&answer).is_err() {
                return;
            }
        }
    })
}

/// The ways, after what holds of all of them.
#[track_caller]
fn ways(measured: &Measured) -> Ways {
    check(measured);
    let ways = measured.outcome.one_way.clone().unwrap();
    let (there, back, whole) = (&measured.outcome.latency, &ways.back, &ways.round_trip);
    assert_eq!((there.count, back.count), (whole.count, whole.count));
    ways
}

#[test]
fn of_one_clock_the_ways_are_the_round_trip_without_the_answering() {
    for (address, waiting) in [
        ("127.0.0.1:0", Waiting::Blocking),
        ("127.0.0.1:0", Waiting::Spin),
        ("127.0.0.1:0", Waiting::Epoll),
    ] {
        let server = Running::start(Kind::Stamp, address);
        let options = Options {
            waiting,
            ..short(1)
        };
        let measured = load(&server.address, &ONE_WAY, &options).unwrap();
        let ways = ways(&measured);
        assert!(ways.clocks.one_clock && ways.below_zero == 0, "{ways:?}");
        assert_eq!(ways.clocks.before, None);
        let there = &measured.outcome.latency;
        // Histograms are exact to a thousandth.
        assert!(there.mean_ns + ways.back.mean_ns <= ways.round_trip.mean_ns * 1.01);
        assert!(there.min_ns > 0 && ways.back.min_ns > 0, "{ways:?}");
        let told = measured.outcome.to_string();
        assert!(told.contains("one clock, nothing is estimated"), "{told}");
    }
}

#[test]
fn of_many_connections_and_at_a_rate_each_way_counts_from_when_it_was_due() {
    let server = Running::start(Kind::Stamp, "127.0.0.1:0");
    let options = Options {
        rate: Some(2_000.0),
        pipeline: 4,
        ..short(4)
    };
    let measured = load(&server.address, &ONE_WAY, &options).unwrap();
    assert!(ways(&measured).clocks.one_clock);
    assert!(server.stop().connections >= 6, "four, and two that looked");
}

#[test]
fn the_offset_of_another_clock_is_found_within_the_error_that_is_told() {
    for (shift_ns, slower_ppm) in [
        (1_000_000_000_000_i64, 0),
        (-1_000_000, 0),
        (3_600_000_000_000, 200),
    ] {
        let began_ns = monotonic_ns();
        let clock = move || {
            let now_ns = monotonic_ns();
            let lost_ns = (now_ns - began_ns) as i64 * slower_ppm / 1_000_000;
            now_ns.checked_add_signed(shift_ns - lost_ns).unwrap()
        };
        // The way back is the longer one, which nobody could know of.
        let back = Duration::from_micros(300);
        let address = elsewhere(clock, back);
        let measured = load(&address, &ONE_WAY, &short(1)).unwrap();
        let found = ways(&measured);
        let clocks = found.clocks;
        assert!(!clocks.one_clock);
        for estimate in [clocks.before.unwrap(), clocks.after.unwrap()] {
            let lost_ns = (estimate.at_ns - began_ns) as i64 * slower_ppm / 1_000_000;
            let off_ns = (estimate.offset_ns - (shift_ns - lost_ns)).unsigned_abs();
            assert!(off_ns <= estimate.error_ns, "{estimate:?}: {shift_ns}");
            assert!(estimate.error_ns >= 100_000, "{estimate:?}");
        }
        let off_ppm = (clocks.drift_ppm + slower_ppm as f64).abs();
        assert!(off_ppm <= clocks.drift_error_ppm + 0.01, "{clocks}");
        let told = measured.outcome.to_string();
        assert!(told.contains("two clocks: the server's is "), "{told}");
    }
}

#[test]
fn a_server_that_tells_no_times_is_told() {
    let plain = Running::start(Kind::Echo, "127.0.0.1:0");
    let told = failure(&plain.address, &ONE_WAY, &short(1));
    assert!(told.contains("does not answer with its times"), "{told}");
    let http = Running::start(Kind::Http { bytes: 1 }, "127.0.0.1:0");
    let quick = Options {
        timeout_seconds: 0.2,
        ..short(1)
    };
    let told = failure(&http.address, &ONE_WAY, &quick);
    assert!(
        told.contains("is this `millrace load serve stamp`?"),
        "{told}"
    );
    let small = failure(&plain.address, &Workload::OneWay { bytes: 23 }, &short(1));
    assert!(small.contains("24 to 65536 bytes, not 23"), "{small}");
    let wrong = server(|mut connection| {
        let mut head = [0; HEAD_BYTES];
        while connection.read_exact(&mut head).is_ok() {
            let asked = Head::parse(&head);
            let mut contents = vec![0; asked.bytes - HEAD_BYTES];
            connection.read_exact(&mut contents).unwrap();
            let stamps = Stamps {
                received_ns: 1,
                sent_ns: 1,
            };
            contents.iter_mut().for_each(|byte| *byte ^= 1);
            let head = Head { stamps, ..asked }.emit();
            if connection
                .write_all(&[&head[..], &contents].concat())
                .is_err()
            {
                return;
            }
        }
    });
    let told = failure(&wrong, &ONE_WAY, &short(1));
    assert!(told.contains("wrong answer to request 0"), "{told}");
}
