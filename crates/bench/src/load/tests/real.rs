//! Real servers, where they are installed.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

/// A program that is ended with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server on a free port, with the arguments for that, or says that it is not there.
fn start(name: &str, arguments: impl Fn(&str) -> Vec<String>) -> Option<(Program, Address)> {
    let begin = Instant::now();
    let is_late = || begin.elapsed() > Duration::from_secs(10);
    loop {
        let port = free_port();
        let mut command = Command::new(name);
        command
            .args(arguments(&port))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            eprintln!("skipped: {name} is not installed");
            return None;
        };
        let mut program = Program(child);
        let address = format!("127.0.0.1:{port}");
        // It ends where another program has got the port meanwhile.
        while program.0.try_wait().unwrap().is_none() {
            if TcpStream::connect(&address).is_ok() {
                return Some((program, address.parse().unwrap()));
            }
            assert!(!is_late(), "{name} does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!is_late(), "{name} ends again and again");
    }
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments
        .iter()
        .map(|&argument| argument.to_owned())
        .collect()
}

fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

fn redis() -> Option<(Program, Address)> {
    start("redis-server", |port| {
        owned(&["--port", port, "--save", "", "--appendonly", "no"])
    })
}

fn keyed(bytes: usize, set_share: f64) -> Keyed {
    Keyed {
        keys: 100,
        bytes,
        set_share,
    }
}

#[test]
fn redis_is_spoken_to_before_connections_are_silent() {
    let Some((_redis, address)) = redis() else {
        return;
    };
    let stop = AtomicBool::new(false);
    let idle = Idle::open(&address, 3, Speech::Redis, &stop).unwrap();
    stop.store(true, Ordering::Relaxed);
    idle.keep(&stop).unwrap();
    let echo = server(|connection| echo(connection, 6, |_, _| Some(b"+PANG\r\n".to_vec())));
    let error = Idle::open(&echo, 1, Speech::Redis, &AtomicBool::new(false)).unwrap_err();
    assert!(format!("{error:#}").contains("is this redis?"), "{error:#}");
}

#[test]
fn redis_answers_right() {
    let Some((_redis, address)) = redis() else {
        return;
    };
    for (connections, pipeline, bytes, set_share, rate) in [
        (1, 1, 4, 0.0, None),
        (50, 1, 64, 0.5, None),
        (8, 16, 1000, 1.0, None),
        (3, 8, 100_000, 0.3, None),
        (100, 1, 8, 0.5, Some(2000.0)),
        (2, 1, 0, 0.5, None),
    ] {
        let options = Options {
            pipeline,
            rate,
            seconds: 0.1,
            ..short(connections)
        };
        let workload = Workload::Redis(keyed(bytes, set_share));
        check(&load(&address, &workload, &options).unwrap());
    }
    for waiting in [Waiting::Blocking, Waiting::Spin] {
        let options = Options {
            waiting,
            seconds: 0.1,
            ..short(1)
        };
        check(&load(&address, &Workload::Redis(keyed(64, 0.5)), &options).unwrap());
    }
}

#[test]
fn a_value_that_another_client_changes_is_found() {
    let Some((_redis, address)) = redis() else {
        return;
    };
    let Address::Tcp(other) = address else {
        return;
    };
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        // Of the right length, so that only the contents tell.
        let mut other = TcpStream::connect(other).unwrap();
        for key in 0..100 {
            let set = format!("SET key:{key:012} somebody\r\n");
            other.write_all(set.as_bytes()).unwrap();
        }
        let _ = other.read(&mut [0; 5]);
    });
    let options = Options {
        seconds: 3.0,
        ..short(5)
    };
    let text = failure(&address, &Workload::Redis(keyed(8, 0.1)), &options);
    assert!(text.contains("(GET key:0000000000"), "{text}");
    assert!(text.contains("got \"somebody\""), "{text}");
    thread.join().unwrap();
}

#[test]
fn an_error_of_redis_is_shown() {
    let Some((_redis, address)) = redis() else {
        return;
    };
    let Address::Tcp(other) = address else {
        return;
    };
    let mut other = TcpStream::connect(other).unwrap();
    other.write_all(b"CONFIG SET maxmemory 1\r\n").unwrap();
    let _ = other.read(&mut [0; 5]);
    let text = failure(&address, &Workload::Redis(keyed(8, 1.0)), &short(1));
    assert!(text.contains("expected \"+OK\", got \"-OOM"), "{text}");
}

#[test]
fn memcached_answers_right() {
    // Root has to say whose rights it takes; for anybody else that is ignored.
    let arguments = |port: &str| owned(&["-l", "127.0.0.1", "-p", port, "-u", "nobody", "-U", "0"]);
    let Some((_memcached, address)) = start("memcached", arguments) else {
        return;
    };
    for (connections, pipeline, bytes, rate) in [
        (1, 1, 64, None),
        (50, 1, 1024, None),
        (4, 8, 100_000, None),
        (10, 1, 64, Some(1000.0)),
    ] {
        let options = Options {
            pipeline,
            rate,
            seconds: 0.1,
            ..short(connections)
        };
        let workload = Workload::Memcached(keyed(bytes, 0.1));
        check(&load(&address, &workload, &options).unwrap());
    }
}

#[test]
fn nginx_answers_right_and_ends_connections_when_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display().to_string();
    let arguments = |port: &str| {
        let configuration = format!(
            "daemon off; master_process off; pid {place}/pid; error_log {place}/errors;
             events {{}}
             http {{
                 access_log off; keepalive_requests 10; client_body_temp_path {place}/1; proxy_temp_path {place}/2;
                 fastcgi_temp_path {place}/3; uwsgi_temp_path {place}/4; scgi_temp_path {place}/5;
                 server {{ listen 127.0.0.1:{port};
                          location / {{ add_header X-Request-Id $http_x_request_id; return 200 'hello'; }} }}
             }}"
        );
        let file = directory.path().join("nginx.conf");
        std::fs::write(&file, configuration).unwrap();
        owned(&["-p", &place, "-c", &file.display().to_string()])
    };
    let Some((_nginx, address)) = start("nginx", arguments) else {
        return;
    };
    for close in [false, true] {
        let get = Workload::Http(Get {
            path: "/".to_owned(),
            bytes: Some(5),
            close,
        });
        let measured = load(&address, &get, &short(10)).unwrap();
        check(&measured);
        assert_eq!(measured.outcome.reconnections > 0, !close);
    }
}
