//! A server on which tricks are played: it says what it got that TCP gives nobody.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::sys;
use crate::tricks::{ENDED, GO, LOOKS_AT, PLAYS, Trick};

/// A call that need not wait, and has not returned after so many seconds, hangs: the program ends by a signal.
const HANGS_S: u32 = 10;
/// How long it looks for bytes behind the end of the stream.
const LOOKS: Duration = Duration::from_millis(300);
/// So many requests a server makes of the kernel.
const REQUESTS: usize = 2000;
/// What lies in the peer's ring at a close, in parts.
const PARTS: usize = 5;

/// Serves as many connections as the trick needs.
pub(crate) fn run(trick: Trick) -> Vec<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    println!("{port}");
    let mut holes = Vec::new();
    let [mut closing, mut starting, mut requesting] = [Duration::ZERO; 3];
    for _ in 0..trick.connections() {
        let mut stream = listener.accept().expect("a connection").0;
        if !echo_until_go(&mut stream) {
            return vec!["the peer went before it began".to_owned()];
        }
        match trick {
            Trick::Retract => read_when_told(&mut stream),
            Trick::Change => holes.extend(look_and_take(&mut stream)),
            Trick::Follow => holes.extend(read_behind_the_end(&mut stream)),
            Trick::Hold => closing += close(stream),
            Trick::Inherit => starting += start(&mut stream),
            Trick::Request => requesting += request(&mut stream),
        }
    }
    // The agent makes one wait for a seventh of a second, who is left to do so.
    if closing > Duration::from_millis(1500) {
        holes.push(format!("closing took {closing:?}"));
    }
    // It waits for a reader that cannot go on for one second and a half; for each connection three times as long, if it were let.
    if starting > Duration::from_secs(8) {
        holes.push(format!("starting programs took {starting:?}"));
    }
    // As for a program, once; each request alone takes some microseconds.
    if requesting > Duration::from_secs(8) {
        holes.push(format!("requests took {requesting:?}"));
    }
    holes
}

fn echo_until_go(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 1 << 16];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return false,
            Ok(bytes) if buffer[..bytes].contains(&GO) => return true,
            Ok(bytes) if stream.write_all(&buffer[..bytes]).is_err() => return false,
            Ok(_) => {}
        }
    }
}

/// As a simple server does: it reads what `poll` says is there.
fn read_when_told(stream: &mut TcpStream) {
    let began = Instant::now();
    while began.elapsed() < PLAYS {
        if sys::wait_readable(stream, Duration::from_millis(10)) {
            sys::end_in(HANGS_S);
            let read = stream.read(&mut [0; 100]);
            sys::end_in(0);
            if !matches!(read, Ok(1..)) {
                return;
            }
        }
    }
}

fn look_and_take(stream: &mut TcpStream) -> Option<String> {
    stream.set_nonblocking(true).expect("an option");
    let began = Instant::now();
    while began.elapsed() < PLAYS {
        let [mut seen, mut taken] = [[0; LOOKS_AT as usize]; 2];
        let bytes = stream.peek(&mut seen).unwrap_or(0);
        std::thread::sleep(Duration::from_millis(5));
        if bytes == 0 {
            continue;
        }
        match stream.read(&mut taken) {
            Ok(count) if count >= bytes && taken[..bytes] == seen[..bytes] => {}
            Err(error) if error.kind() != ErrorKind::WouldBlock => return None,
            other => return Some(format!("looked at {seen:?}, took {other:?}: {taken:?}")),
        }
    }
    None
}

fn read_behind_the_end(stream: &mut TcpStream) -> Option<String> {
    let mut buffer = [0; 100];
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
    let _ = stream.write(&[ENDED]);
    stream.set_nonblocking(true).expect("an option");
    let began = Instant::now();
    while began.elapsed() < LOOKS {
        if let Ok(bytes @ 1..) = stream.read(&mut buffer) {
            return Some(format!("{bytes} bytes came behind the end of the stream"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// How long it takes to close, with bytes that the peer has not taken from the ring.
fn close(mut stream: TcpStream) -> Duration {
    for _ in 0..PARTS {
        let _ = stream.write(&[0; 64]);
    }
    let began = Instant::now();
    drop(stream);
    began.elapsed()
}

/// How long it takes to start a program that gets the connection, too, and to wait for its end.
fn start(stream: &mut TcpStream) -> Duration {
    let _ = stream.write(&[ENDED]);
    sys::wait_readable(stream, Duration::from_secs(HANGS_S.into()));
    let began = Instant::now();
    sys::start_with(stream);
    began.elapsed()
}

/// How long it takes to ask the kernel for bytes again and again.
fn request(stream: &mut TcpStream) -> Duration {
    let _ = stream.write(&[ENDED]);
    sys::wait_readable(stream, Duration::from_secs(HANGS_S.into()));
    stream.set_nonblocking(true).expect("an option");
    let began = Instant::now();
    sys::read_by_requests(stream, REQUESTS);
    began.elapsed()
}
