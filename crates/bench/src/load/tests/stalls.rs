//! A server that stops for a while, and one that is too slow.

use std::time::{Duration, Instant};

use super::*;

const BYTES: usize = 16;
const ECHO: Workload = Workload::Echo { bytes: BYTES };
const STALL: Duration = Duration::from_millis(100);

/// A server that answers nothing for 100 ms, once, some time after its first message.
fn stalling() -> Address {
    const AFTER: Duration = Duration::from_millis(150);
    let begin = std::sync::OnceLock::new();
    server(move |connection| {
        echo(connection, BYTES, |_, message| {
            let stall = *begin.get_or_init(Instant::now) + AFTER;
            let now = Instant::now();
            if now >= stall && now < stall + STALL {
                std::thread::sleep(stall + STALL - now);
            }
            Some(message)
        });
    })
}

/// How many requests took longer than this.
fn slower(measured: &Measured, than_ms: u64) -> u64 {
    let trace = measured.trace.as_ref().unwrap();
    let slow = trace
        .requests()
        .filter(|request| request.1 > than_ms * 1_000_000);
    slow.count() as u64
}

#[test]
fn a_stall_shows_for_all_requests_that_were_due_meanwhile_in_an_open_loop() {
    const RATE_PER_MS: u64 = 2;
    let options = Options {
        rate: Some(1000.0 * RATE_PER_MS as f64),
        seconds: 0.3,
        ..short(4)
    };
    let measured = load(&stalling(), &ECHO, &options).unwrap();
    check(&measured);
    assert_eq!(measured.outcome.latency.count, 300 * RATE_PER_MS);
    // What was due in its first 50 ms waited longer than for the second 50 ms, and so on.
    for than_ms in [25, 50, 75] {
        let slow = slower(&measured, than_ms);
        let due = (STALL.as_millis() as u64 - than_ms) * RATE_PER_MS;
        assert!(slow + 5 >= due, "{slow} of {due} took over {than_ms} ms");
    }
}

#[test]
fn a_stall_shows_once_for_each_connection_in_a_closed_loop() {
    let options = Options {
        seconds: 0.3,
        ..short(4)
    };
    let measured = load(&stalling(), &ECHO, &options).unwrap();
    check(&measured);
    // Once for each, and a few for what else a busy machine does.
    let slow = slower(&measured, 75);
    assert!((1..=12).contains(&slow), "{slow} of 4 connections");
}

#[test]
fn a_rate_that_the_server_cannot_do_is_told_and_nothing_is_dropped_silently() {
    let address = server(|connection| {
        echo(connection, BYTES, |_, message| {
            std::thread::sleep(Duration::from_millis(5));
            Some(message)
        });
    });
    let options = Options {
        rate: Some(10_000.0),
        ..short(2)
    };
    let outcome = load(&address, &ECHO, &options).unwrap().outcome;
    let due = 2000;
    let all = outcome.latency.count + outcome.unanswered + outcome.unsent;
    assert_eq!(all, due, "{outcome}");
    assert!(outcome.unsent > 1000, "{outcome}");
    assert!(outcome.rate < 1000.0, "{outcome}");
    assert!(outcome.behind_ns > 100_000_000, "{outcome}");
    assert!(outcome.notes[0].contains("did not keep up"), "{outcome}");
    assert!(outcome.notes.iter().any(|note| note.contains("never sent")));
}

#[test]
fn a_server_that_is_silent_is_given_up_with_the_oldest_request() {
    let address = server(|connection| {
        echo(connection, BYTES, |number, message| {
            if number > 20 {
                std::thread::sleep(Duration::from_secs(3));
            }
            Some(message)
        });
    });
    for waiting in [Waiting::Epoll, Waiting::Blocking] {
        let options = Options {
            waiting,
            seconds: 20.0,
            timeout_seconds: 0.3,
            ..short(1)
        };
        let text = failure(&address, &ECHO, &options);
        assert!(text.contains("sent nothing for 0.3 s"), "{text}");
        assert!(text.contains("request 21 "), "{text}");
    }
}

#[test]
fn a_server_that_does_not_end_a_connection_as_it_was_asked_to_is_given_up() {
    let address = server(|mut connection| {
        while connection.read(&mut [0; 1000]).is_ok_and(|count| count > 0) {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            connection.write_all(answer).unwrap();
        }
    });
    let get = Workload::Http(Get {
        path: "/".to_owned(),
        bytes: None,
        close: true,
    });
    let options = Options {
        seconds: 20.0,
        timeout_seconds: 0.3,
        ..short(2)
    };
    let text = failure(&address, &get, &options);
    assert!(text.contains("has not ended connection 0"), "{text}");
}

#[test]
fn a_rate_with_pauses_longer_than_the_timeout_is_no_silence() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    let options = Options {
        rate: Some(4.0),
        seconds: 0.6,
        timeout_seconds: 0.1,
        ..short(2)
    };
    let measured = load(&server.address, &ECHO, &options).unwrap();
    check(&measured);
    assert_eq!(measured.outcome.latency.count, 2);
}
