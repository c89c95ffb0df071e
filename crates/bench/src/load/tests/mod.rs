//! Runs against servers on this machine: our own, real ones, and such as misbehave.

mod faults;
mod real;
mod runs;
mod stalls;
mod ways;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use nix::unistd::{Pid, gettid};

use super::*;

/// A server of ours in a thread, which is stopped at the end.
struct Running {
    address: Address,
    /// Its end stops the server.
    stop: Option<UnixStream>,
    /// In the kernel's terms.
    number: Pid,
    thread: Option<JoinHandle<Served>>,
}

impl Running {
    fn start(kind: Kind, address: &str) -> Running {
        let server = Server::bind(kind, &address.parse().unwrap()).unwrap();
        let address = server.address().clone();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            tell.send(gettid()).unwrap();
            server.run(&stopped).unwrap()
        });
        Running {
            address,
            stop: Some(stop),
            number: told.recv().unwrap(),
            thread: Some(thread),
        }
    }

    fn stop(mut self) -> Served {
        self.stop = None;
        self.thread.take().unwrap().join().unwrap()
    }
}

/// A server whose connections are each served by a function in a thread. It ends with the tests.
fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let connection = connection.unwrap();
            connection.set_nodelay(true).unwrap();
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(connection));
        }
    });
    address
}

/// Sends messages of one length back, as `change` leaves them; `None` ends the connection.
fn echo(mut connection: TcpStream, bytes: usize, change: impl Fn(u64, Vec<u8>) -> Option<Vec<u8>>) {
    let mut message = vec![0; bytes];
    for number in 0.. {
        if connection.read_exact(&mut message).is_err() {
            return;
        }
        let Some(answer) = change(number, message.clone()) else {
            return;
        };
        if connection.write_all(&answer).is_err() {
            return;
        }
    }
}

/// A short run with a trace of all of it.
fn short(connections: usize) -> Options {
    Options {
        connections,
        seconds: 0.2,
        warm_up_seconds: 0.05,
        timeout_seconds: 5.0,
        trace: Some(1_000_000),
        ..Options::default()
    }
}

/// A run. On a machine that is too busy to answer anything in so short a time, it is made again with more.
fn load(address: &Address, workload: &Workload, options: &Options) -> Result<Measured> {
    load_counted(address, workload, options).1
}

/// The same, and how often it was made.
fn load_counted(
    address: &Address,
    workload: &Workload,
    options: &Options,
) -> (u64, Result<Measured>) {
    let mut options = options.clone();
    for runs in 1.. {
        let outcome = run(address, workload, &options, &AtomicBool::new(false));
        match outcome {
            Err(error)
                if error.to_string().contains("answered nothing") && options.seconds < 5.0 =>
            {
                options.seconds *= 3.0;
            }
            outcome => return (runs, outcome),
        }
    }
    unreachable!("the time grows with each run")
}

/// What a run that must fail says.
fn failure(address: &Address, workload: &Workload, options: &Options) -> String {
    let mut options = options.clone();
    if options.seconds < 1.0 {
        // It ends when it fails.
        options.seconds = 20.0;
    }
    match load(address, workload, &options) {
        Ok(measured) => panic!("no error but {}", measured.outcome),
        Err(error) => format!("{error:#}"),
    }
}

/// The trace and the figures are of the same requests.
#[track_caller]
fn check(measured: &Measured) {
    let outcome = &measured.outcome;
    // On a busy machine answers may all come when the time is over.
    assert!(outcome.latency.count > 0, "{outcome}");
    assert_eq!((outcome.unanswered, outcome.unsent), (0, 0), "{outcome}");
    let trace = measured.trace.as_ref().unwrap();
    assert_eq!(trace.left_out(), 0);
    let mut again = record::histogram().unwrap();
    let mut last = 0;
    for (intended_ns, latency_ns) in trace.requests() {
        assert!(intended_ns >= last, "in sending order");
        last = intended_ns;
        again.saturating_record(latency_ns);
    }
    if outcome.asked_rate.is_some() {
        assert!(last as f64 <= outcome.seconds * 1e9);
    }
    assert_eq!(again, measured.histogram);
    assert_eq!(summarize(&again), outcome.latency);
}
