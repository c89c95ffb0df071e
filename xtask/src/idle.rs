//! `cargo xtask idle ADDR N`: connections that talk a little and then keep silent, until they are killed. In a measurement of idling, any
//! other program's own timers would be measured.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lexopt::prelude::{Value, ValueExt};
use millrace_bench::sys;

/// Round trips of each connection in each of the two passes: enough to be worth a faster road, which
/// connections take between the passes and use in the second.
const ROUNDS: usize = 40;
const BETWEEN_PASSES: Duration = Duration::from_millis(500);

/// The command. It says "ready" when all connections have talked; the server sends back lines, or is redis.
pub(crate) fn command(arguments: &mut lexopt::Parser) -> Result<()> {
    let mut word = || match arguments.next()? {
        Some(Value(word)) => Ok(word),
        _ => anyhow::bail!("idle needs an address and a number"),
    };
    let (address, count): (SocketAddr, usize) = (word()?.parse()?, word()?.parse()?);
    sys::raise_descriptor_limit();
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        let connection = TcpStream::connect(address).context("cannot connect")?;
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

/// Redis's PING in its inline form.
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
