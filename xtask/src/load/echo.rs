//! A server that sends back what it gets, and a client whose connections talk a little and then keep
//! silent: in a benchmark of idling, any other program's own timers would be measured.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Result, ensure};
use millrace_bench::sys::{self, Epoll};

/// Round trips of each connection in each of the two passes: enough to be worth a faster road, which
/// connections take between the passes and use in the second.
const ROUNDS: usize = 40;
const BETWEEN_PASSES: Duration = Duration::from_millis(500);

/// Serves all connections in one thread.
pub(super) fn serve(address: SocketAddrV4) -> Result<()> {
    sys::raise_descriptor_limit();
    let listener = TcpListener::bind(address)?;
    let mut epoll = Epoll::new()?;
    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    epoll.add(listener.as_raw_fd(), usize::MAX)?;
    let (mut ready, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        epoll.wait(&mut ready)?;
        for token in ready.drain(..) {
            if token == usize::MAX {
                let (connection, _) = listener.accept()?;
                connection.set_nodelay(true)?;
                epoll.add(connection.as_raw_fd(), connections.len())?;
                connections.push(Some(connection));
            } else if let Some(connection) = &mut connections[token]
                && !answer(connection, &mut buffer)
            {
                connections[token] = None;
            }
        }
    }
}

/// Sends back what is there; `false` at the connection's end.
fn answer(connection: &mut TcpStream, buffer: &mut [u8]) -> bool {
    match connection.read(buffer) {
        Ok(0) => false,
        Ok(count) => connection.write_all(&buffer[..count]).is_ok(),
        Err(error) => error.kind() == ErrorKind::Interrupted,
    }
}

/// Opens connections, talks on each, says "ready", and is silent until it is killed. What is said is
/// redis's PING in its inline form, so that the server may be redis.
pub(super) fn idle(address: SocketAddrV4, count: usize) -> Result<()> {
    sys::raise_descriptor_limit();
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        let connection = TcpStream::connect(address)?;
        connection.set_nodelay(true)?;
        connections.push(connection);
    }
    for pass in 0..2 {
        if pass > 0 {
            std::thread::sleep(BETWEEN_PASSES);
        }
        for connection in &mut connections {
            for _ in 0..ROUNDS {
                ping(connection)?;
            }
        }
    }
    println!("ready");
    loop {
        std::thread::park();
    }
}

fn ping(connection: &mut TcpStream) -> Result<()> {
    connection.write_all(b"PING\r\n")?;
    let mut answer = [0; 16];
    let mut length = 0;
    while !answer[..length].ends_with(b"\n") {
        let count = connection.read(&mut answer[length..])?;
        ensure!(count > 0, "the server closed a connection");
        length += count;
    }
    Ok(())
}
