//! Servers that lie, and such as go away.

use std::net::Shutdown;

use super::*;

const BYTES: usize = 32;
const ECHO: Workload = Workload::Echo { bytes: BYTES };

#[test]
fn a_wrong_byte_is_found_with_its_request_and_place() {
    let address = server(|connection| {
        echo(connection, BYTES, |number, mut message| {
            message[31] ^= u8::from(number == 40);
            Some(message)
        });
    });
    for waiting in [Waiting::Epoll, Waiting::Blocking, Waiting::Spin] {
        let options = Options {
            waiting,
            ..short(1)
        };
        let text = failure(&address, &ECHO, &options);
        assert!(text.contains("wrong answer to request 40 "), "{text}");
        assert!(text.contains("differs from byte 31 on"), "{text}");
        assert!(text.contains("expected") && text.contains("got"), "{text}");
    }
}

#[test]
fn answers_in_the_wrong_order_are_found() {
    let address = server(|connection| {
        let held = std::cell::RefCell::new(None);
        echo(connection, BYTES, move |number, message| match number {
            6 => {
                held.replace(Some(message));
                Some(Vec::new())
            }
            7 => Some([message, held.take().unwrap_or_default()].concat()),
            _ => Some(message),
        });
    });
    let options = Options {
        pipeline: 2,
        ..short(1)
    };
    let text = failure(&address, &ECHO, &options);
    assert!(text.contains("wrong answer to request 6 "), "{text}");
}

#[test]
fn bytes_that_nobody_asked_for_are_found() {
    let address = server(|connection| {
        echo(connection, BYTES, |number, mut message| {
            if number == 3 {
                message.extend_from_slice(b"more");
            }
            Some(message)
        });
    });
    let text = failure(&address, &ECHO, &short(1));
    assert!(text.contains("nobody asked for: \"more\""), "{text}");
}

#[test]
fn a_connection_that_the_server_ends_in_the_middle_is_an_error_that_says_so() {
    let ended = server(|connection| {
        let end = connection.try_clone().unwrap();
        echo(connection, BYTES, |number, message| {
            if number < 10 {
                return Some(message);
            }
            // Half of an answer, and then only this direction ends.
            (&end).write_all(&message[..16]).unwrap();
            end.shutdown(Shutdown::Write).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(500));
            None
        });
    });
    for waiting in [Waiting::Epoll, Waiting::Blocking, Waiting::Spin] {
        let options = Options {
            waiting,
            ..short(1)
        };
        let text = failure(&ended, &ECHO, &options);
        assert!(text.contains("ended by the server"), "{text}");
        assert!(text.contains("request 10 "), "{text}");
    }
}

#[test]
fn a_connection_that_is_reset_is_an_error_that_says_so() {
    // What is unread when a socket is closed is answered with a reset.
    let address = server(|connection| drop(connection.peek(&mut [0])));
    for options in [short(1), short(50)] {
        let text = failure(&address, &ECHO, &options);
        assert!(
            text.contains("reset") || text.contains("Broken pipe"),
            "{text}"
        );
        assert!(text.contains("connection "), "{text}");
    }
}

#[test]
fn a_server_that_is_not_there_is_an_error_that_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let free = Address::Tcp(listener.local_addr().unwrap());
    drop(listener);
    let get = |close| {
        Workload::Http(Get {
            path: "/".to_owned(),
            bytes: None,
            close,
        })
    };
    for workload in [ECHO, get(true), get(false)] {
        for address in [&free, &"unix:/nowhere/socket".parse().unwrap()] {
            let text = failure(address, &workload, &short(1));
            assert!(text.contains("does a server listen there?"), "{text}");
            assert!(text.contains(&address.to_string()), "{text}");
        }
    }
}

#[test]
fn a_server_that_goes_away_between_requests_is_an_error_that_says_so() {
    // It answers the preparation and accepts nothing after that.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        let _ = connection.read(&mut [0; 1000]).unwrap();
        drop(listener);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        connection.write_all(answer).unwrap();
    });
    let get = Workload::Http(Get {
        path: "/".to_owned(),
        bytes: None,
        close: true,
    });
    let text = failure(&address, &get, &short(3));
    assert!(text.contains("of 3"), "{text}");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn a_server_of_another_protocol_is_found_before_the_run() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    let keyed = Keyed {
        keys: 10,
        bytes: 4,
        set_share: 0.5,
    };
    for workload in [
        Workload::Redis(keyed.clone()),
        Workload::Memcached(keyed),
        Workload::Http(Get {
            path: "/".to_owned(),
            bytes: None,
            close: false,
        }),
    ] {
        let text = failure(&server.address, &workload, &short(1));
        assert!(text.contains("before the run: expected"), "{text}");
    }
}

#[test]
fn an_address_in_use_is_refused_and_a_dead_servers_path_taken_over() {
    let server = Running::start(Kind::Echo, "127.0.0.1:0");
    let error = Server::bind(Kind::Echo, &server.address).unwrap_err();
    assert!(format!("{error:#}").contains("in use"), "{error:#}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = Address::Unix(path);
    let first = Server::bind(Kind::Echo, &address).unwrap();
    let error = Server::bind(Kind::Echo, &address).unwrap_err();
    assert!(format!("{error:#}").contains("in use"), "{error:#}");
    drop(first);
}

#[test]
fn connections_are_silent_until_they_are_told_to_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = format!("unix:{}/echo", directory.path().display());
    for address in ["127.0.0.1:0", &path] {
        let echo = Running::start(Kind::Echo, address);
        let stop = AtomicBool::new(false);
        let idle = Idle::open(&echo.address, 3, Speech::Echo, &stop).unwrap();
        assert_eq!(idle.silence().connections, 3);
        assert!(idle.silence().memory_before_bytes > 0);
        stop.store(true, Ordering::Relaxed);
        idle.keep(&stop).unwrap();
        let served = echo.stop();
        let each: u64 = idle::ROUND_TRIPS.iter().sum();
        assert_eq!((served.connections, served.requests), (3, 3 * each));
    }
}

#[test]
fn silent_connections_whose_server_lies_or_leaves_are_told() {
    let never = AtomicBool::new(false);
    let liar = server(|connection| {
        echo(connection, 64, |_, message| {
            Some(message.into_iter().rev().collect())
        });
    });
    let error = Idle::open(&liar, 1, Speech::Echo, &never).unwrap_err();
    assert!(format!("{error:#}").contains("is this a server for echo?"));
    let leaver = server(|mut connection| {
        let mut message = [0; 64];
        for _ in 0..idle::ROUND_TRIPS.iter().sum::<u64>() {
            connection.read_exact(&mut message).unwrap();
            connection.write_all(&message).unwrap();
        }
    });
    let idle = Idle::open(&leaver, 1, Speech::Echo, &never).unwrap();
    let error = idle.keep(&never).unwrap_err().to_string();
    assert!(error.contains("connection 0 was to be silent"), "{error}");
}
