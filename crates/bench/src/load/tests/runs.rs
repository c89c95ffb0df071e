//! Our generators against our servers.

use super::*;

const ECHO: Workload = Workload::Echo { bytes: 64 };

fn get(close: bool) -> Workload {
    Workload::Http(Get {
        path: "/".to_owned(),
        bytes: Some(512),
        close,
    })
}

#[test]
fn echo_is_measured_over_tcp_and_unix_sockets_by_every_way_of_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let path = format!("unix:{}/echo", directory.path().display());
    // An address of its own: its connections are counted, and other suites' clients try ports of servers that have gone.
    for address in ["127.73.0.1:0", &path] {
        let server = Running::start(Kind::Echo, address);
        for waiting in [Waiting::Epoll, Waiting::Blocking, Waiting::Spin] {
            for rate in [None, Some(1000.0)] {
                let options = Options {
                    waiting,
                    rate,
                    seconds: 0.1,
                    ..short(1)
                };
                let measured = load(&server.address, &ECHO, &options).unwrap();
                check(&measured);
                if rate.is_some() {
                    assert_eq!(measured.outcome.latency.count, 100);
                    let (operations, busy) =
                        (measured.outcome.operations, measured.outcome.generator_busy);
                    assert!(operations < 100 || busy < 0.9, "{busy} with little to do");
                }
            }
        }
        assert_eq!(server.stop().connections, 6);
    }
    assert!(!directory.path().join("echo").exists());
}

#[test]
fn many_connections_long_messages_and_pipelines_are_measured() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    for (connections, pipeline, bytes, rate) in [
        (200, 1, 64, None),
        (2, 50, 1, None),
        (3, 16, 1000, Some(3000.0)),
        (2, 2, 1 << 20, None),
        (1, 3, (1 << 16) + 1, None),
    ] {
        let options = Options {
            pipeline,
            rate,
            seconds: 0.1,
            ..short(connections)
        };
        let measured = load(&server.address, &Workload::Echo { bytes }, &options).unwrap();
        check(&measured);
        assert!(measured.outcome.first_byte.is_none());
    }
    for waiting in [Waiting::Blocking, Waiting::Spin] {
        let options = Options {
            waiting,
            seconds: 0.1,
            ..short(1)
        };
        let long = Workload::Echo { bytes: 1 << 20 };
        check(&load(&server.address, &long, &options).unwrap());
    }
}

#[test]
fn http_is_measured_on_lasting_connections_and_on_one_for_each_request() {
    let lasting = Running::start(Kind::Http { bytes: 512 }, "127.0.0.1:0");
    let (runs, kept) = load_counted(&lasting.address, &get(false), &short(4));
    let kept = kept.unwrap();
    check(&kept);
    assert_eq!(kept.outcome.reconnections, 0);
    let served = lasting.stop();
    // Each run has one connection more, for the preparation, and asks once on it.
    assert_eq!(served.connections, runs * (4 + 1), "{served}");
    assert!(served.requests > kept.outcome.sent, "{served}");

    let server = Running::start(Kind::Http { bytes: 512 }, "127.0.0.1:0");
    let (mut runs, mut sent) = (0, 0);
    for rate in [None, Some(500.0)] {
        let options = Options { rate, ..short(4) };
        let (made, closed) = load_counted(&server.address, &get(true), &options);
        let closed = closed.unwrap();
        check(&closed);
        let outcome = &closed.outcome;
        let (first, connect) = (
            outcome.first_byte.as_ref().unwrap(),
            outcome.connect.as_ref().unwrap(),
        );
        assert_eq!(first.count, outcome.latency.count);
        assert_eq!(connect.count, first.count);
        assert!(first.mean_ns <= outcome.latency.mean_ns);
        assert!(connect.mean_ns < first.mean_ns);
        // An open loop sends all that is due, however slow the machine is.
        assert!(rate.is_none() || outcome.sent >= 125, "{outcome}");
        (runs, sent) = (runs + made, sent + outcome.sent);
    }
    let served = server.stop();
    // What runs sent that had to be made again is not known.
    assert!(served.connections >= sent + runs, "{served}");
    assert!(runs > 2 || served.connections == sent + runs, "{served}");
    assert!(served.requests <= served.connections, "{served}");
}

#[test]
fn a_server_that_ends_connections_after_some_answers_is_connected_to_again() {
    let address = super::server(|mut connection| {
        let mut buffer = [0; 1000];
        for number in 1..=5 {
            if connection.read(&mut buffer).unwrap_or(0) == 0 {
                return;
            }
            let field = if number == 5 {
                "Connection: close\r\n"
            } else {
                ""
            };
            let answer = format!("HTTP/1.1 200 OK\r\n{field}Content-Length: 2\r\n\r\nok");
            connection.write_all(answer.as_bytes()).unwrap();
        }
    });
    let get = Workload::Http(Get {
        path: "/".to_owned(),
        bytes: None,
        close: false,
    });
    let measured = load(&address, &get, &short(2)).unwrap();
    check(&measured);
    let outcome = measured.outcome;
    assert!(outcome.reconnections >= outcome.operations / 5, "{outcome}");
    assert!(
        outcome
            .notes
            .iter()
            .any(|note| note.contains("opened anew"))
    );
}

#[test]
fn percentiles_agree_with_the_sorted_trace() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    let measured = load(&server.address, &ECHO, &short(8)).unwrap();
    check(&measured);
    let mut sorted: Vec<_> = measured.trace.unwrap().requests().map(|it| it.1).collect();
    sorted.sort_unstable();
    let latency = measured.outcome.latency;
    assert!(!latency.percentiles.is_empty());
    for (percentile, value) in latency.percentiles {
        let rank = (percentile / 100.0 * sorted.len() as f64).ceil() as usize;
        let exact = sorted[rank - 1];
        let beyond = sorted.len() - rank;
        assert!(beyond >= 100, "p{percentile} has {beyond} beyond it");
        assert!(value.abs_diff(exact) as f64 <= exact as f64 * 1e-3);
    }
}

#[test]
fn a_trace_without_room_tells_what_it_left_out_and_its_file_has_a_line_for_each_request() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    let options = Options {
        trace: Some(10),
        rate: Some(500.0),
        ..short(2)
    };
    let measured = load(&server.address, &ECHO, &options).unwrap();
    assert_eq!(measured.outcome.trace_left_out, 90);
    let trace = measured.trace.unwrap();
    let mut file = Vec::new();
    trace.write(&mut file).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(file.as_slice())
        .read_to_string(&mut text)
        .unwrap();
    let lines: Vec<_> = trace
        .requests()
        .map(|(intended, latency)| format!("{intended} {latency}"))
        .collect();
    assert_eq!(lines.len(), 10);
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    assert!(lines[1].starts_with("2000000 "), "{}", lines[1]);
}

#[test]
fn a_histogram_is_the_same_after_it_was_written_and_read() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    let measured = load(&server.address, &ECHO, &short(1)).unwrap();
    let mut file = Vec::new();
    write_histogram(&measured.histogram, &mut file).unwrap();
    let read: Histogram<u64> = hdrhistogram::serialization::Deserializer::new()
        .deserialize(&mut file.as_slice())
        .unwrap();
    assert_eq!(read, measured.histogram);
    let json = serde_json::to_string(&measured.outcome).unwrap();
    let again: Outcome = serde_json::from_str(&json).unwrap();
    assert_eq!(again.operations, measured.outcome.operations);
}

#[test]
fn a_run_that_is_stopped_tells_what_it_has() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    for (waiting, rate) in [
        (Waiting::Epoll, None),
        (Waiting::Epoll, Some(100.0)),
        (Waiting::Blocking, None),
    ] {
        let options = Options {
            waiting,
            rate,
            seconds: 60.0,
            warm_up_seconds: 0.0,
            ..short(1)
        };
        let stop = AtomicBool::new(false);
        let measured = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(300));
                stop.store(true, Ordering::Relaxed);
            });
            run(&server.address, &ECHO, &options, &stop).unwrap()
        });
        check(&measured);
        assert!(measured.outcome.interrupted);
        assert!(measured.outcome.seconds < 60.0);
    }
}

#[test]
fn an_open_loop_tells_how_late_it_was_however_it_waits() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    for waiting in [Waiting::Epoll, Waiting::Blocking, Waiting::Spin] {
        let options = Options {
            waiting,
            rate: Some(500.0),
            ..short(1)
        };
        let measured = load(&server.address, &ECHO, &options).unwrap();
        check(&measured);
        // Nobody sends in the very nanosecond.
        assert!(measured.outcome.late_max_ns > 0, "{waiting:?}");
    }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let address = "127.0.0.1:1".parse().unwrap();
    let keyed = |keys, set_share| {
        Workload::Redis(Keyed {
            keys,
            bytes: 1,
            set_share,
        })
    };
    type Change = fn(&mut Options);
    let cases: [(Workload, Change, &str); 11] = [
        (ECHO, |it| it.connections = 0, "connection"),
        (ECHO, |it| it.pipeline = 0, "request"),
        (ECHO, |it| it.seconds = f64::NAN, "NaN"),
        (ECHO, |it| it.timeout_seconds = f64::INFINITY, "inf"),
        (ECHO, |it| it.timeout_seconds = 1e-4, "0.0001"),
        (ECHO, |it| it.rate = Some(-1.0), "rate"),
        (
            ECHO,
            |it| it.waiting = Waiting::Spin,
            "one connection, not 2",
        ),
        (Workload::Echo { bytes: 0 }, |_| (), "byte"),
        (keyed(1, 0.0), |_| (), "keys"),
        (keyed(9, 1.5), |_| (), "1.5"),
        (get(true), |it| it.pipeline = 2, "pipeline"),
    ];
    for (workload, change, expected) in cases {
        let mut options = short(2);
        change(&mut options);
        let text = failure(&address, &workload, &options);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_server_that_nobody_asks_does_not_wake() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    let path = format!("/proc/self/task/{}/status", server.number);
    let sleeps = || {
        let text = std::fs::read_to_string(&path).unwrap();
        let line = text.lines().find(|line| line.starts_with("voluntary"));
        line.unwrap().to_owned()
    };
    let has_slept_on = || {
        let before = sleeps();
        std::thread::sleep(std::time::Duration::from_millis(200));
        sleeps() == before
    };
    // At first it may be about to sleep.
    assert!((0..20).any(|_| has_slept_on()));
    server.stop();
}
