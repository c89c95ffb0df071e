//! Load for memcached: nine gets for one set of a value of 1 KiB, by memcached's text protocol, one
//! request at a time on each connection, all connections in one thread around epoll.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use millrace_bench::sys::Epoll;

const VALUE_BYTES: usize = 1024;
/// One request in so many is a set.
const SET_EVERY: u64 = 10;
const STORED: &[u8] = b"STORED\r\n";

struct Connection {
    stream: TcpStream,
    /// Requests sent.
    count: u64,
    sent: Instant,
    answer: Vec<u8>,
}

struct Requests {
    set: Vec<u8>,
    get: Vec<u8>,
    /// The answer to a get.
    value: Vec<u8>,
}

/// Runs for a time and prints one line with the result.
pub(super) fn run(server: SocketAddrV4, count: usize, time: Duration) -> Result<()> {
    let requests = Requests::new();
    let mut epoll = Epoll::new()?;
    let mut connections = Vec::with_capacity(count);
    for index in 0..count {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        epoll.add(stream.as_raw_fd(), index)?;
        let answer = Vec::with_capacity(2 * VALUE_BYTES);
        connections.push(Connection {
            stream,
            count: 0,
            sent: Instant::now(),
            answer,
        });
    }
    let mut nanoseconds = Histogram::<u64>::new(3)?;
    let start = Instant::now();
    for connection in &mut connections {
        connection.ask(&requests)?;
    }
    let (mut ready, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    while start.elapsed() < time {
        epoll.wait(&mut ready)?;
        for index in ready.drain(..) {
            let connection = &mut connections[index];
            if connection.take_answer(&requests, &mut buffer)? {
                nanoseconds.record(u64::try_from(connection.sent.elapsed().as_nanos())?)?;
                connection.ask(&requests)?;
            }
        }
    }
    report(&nanoseconds, start.elapsed());
    Ok(())
}

fn report(nanoseconds: &Histogram<u64>, time: Duration) {
    let percentile = |share| nanoseconds.value_at_quantile(share) as f64 / 1e3;
    println!(
        "result: requests {} microseconds {} errors 0 p50 {:.3} p99 {:.3} p99.9 {:.3}",
        nanoseconds.len(),
        time.as_micros(),
        percentile(0.5),
        percentile(0.99),
        percentile(0.999),
    );
}

impl Requests {
    fn new() -> Self {
        let value = "v".repeat(VALUE_BYTES);
        Self {
            set: format!("set key 0 0 {VALUE_BYTES}\r\n{value}\r\n").into_bytes(),
            get: b"get key\r\n".to_vec(),
            value: format!("VALUE key 0 {VALUE_BYTES}\r\n{value}\r\nEND\r\n").into_bytes(),
        }
    }

    fn is_set(number: u64) -> bool {
        number.is_multiple_of(SET_EVERY)
    }
}

impl Connection {
    /// Sends the next request; the first of a connection is a set, so that gets find the value.
    fn ask(&mut self, requests: &Requests) -> Result<()> {
        let request = if Requests::is_set(self.count) {
            &requests.set
        } else {
            &requests.get
        };
        self.count += 1;
        self.sent = Instant::now();
        self.stream.write_all(request)?;
        Ok(())
    }

    /// Reads what is there; `true` when the answer is complete, and an error when it is wrong.
    fn take_answer(&mut self, requests: &Requests, buffer: &mut [u8]) -> Result<bool> {
        let count = self.stream.read(buffer)?;
        ensure!(count > 0, "memcached closed a connection");
        self.answer.extend_from_slice(&buffer[..count]);
        let expected = if Requests::is_set(self.count - 1) {
            STORED
        } else {
            requests.value.as_slice()
        };
        ensure!(
            expected.starts_with(&self.answer),
            "memcached sent a wrong answer"
        );
        let complete = self.answer.len() == expected.len();
        if complete {
            self.answer.clear();
        }
        Ok(complete)
    }
}
