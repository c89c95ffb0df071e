//! A ring at work, for `tests/packets`.
//!
//! `ring AGENT agent`: the agent that brings rings together, until standard input ends
//! `ring AGENT NAME first|second [--sleep] count BYTES | send N BYTES | exchange N | …`: as `memif` does it
//! `ring AGENT NAME first|second echo`: sends everything back, until standard input ends
//! `ring AGENT NAME first|second lend N BYTES`: sends packets that were written in place

#![forbid(unsafe_code)]

mod frames;
mod site;

use std::error::Error;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use millrace_agent::{Agent, Options};
use millrace_port::ring::{Config, Ring, Side};
use millrace_port::{Burst, Port};
use site::Site;

const BURST: usize = 32;

fn serve(socket: String) -> Result<(), Box<dyn Error>> {
    let options = Options {
        others: Vec::new(),
        socket: socket.into(),
        config: millrace_agent::Config::default(),
        background: false,
    };
    let agent = Agent::start(options, std::io::stdin().as_fd())?;
    println!("ready");
    std::io::stdout().flush()?;
    Ok(agent.serve()?)
}

/// Set when standard input ends.
fn over() -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    let end = over.clone();
    std::thread::spawn(move || {
        // Whatever becomes of it, that was all.
        let _ = std::io::stdin().read(&mut [0]);
        end.store(true, Ordering::Relaxed);
    });
    over
}

fn echo(port: &mut Ring) {
    let over = over();
    let mut burst = Burst::new(BURST);
    while !over.load(Ordering::Relaxed) {
        port.poll(Instant::now());
        let count = port.receive(0, &mut burst);
        let mut sent = 0;
        while sent < count && port.transmit_queues() > 0 {
            sent += port.transmit(0, &burst, sent);
            port.poll(Instant::now());
        }
        port.give_up(0, &burst, sent);
    }
}

/// Sends packets that are written where the peer reads them.
fn lend(port: &mut Ring, count: u64, bytes: usize) {
    let mut burst = Burst::new(BURST);
    let mut number = 0u64;
    let begin = Instant::now();
    while number < count {
        if port.transmit_queues() == 0 {
            port.poll(Instant::now());
            continue;
        }
        let lent = port.lend(&mut burst, bytes) as u64;
        let lent = lent.min(count - number) as usize;
        for at in 0..lent {
            let name = (number + at as u64).to_be_bytes();
            assert!(burst.write(at, 14, &name) && burst.write(at, bytes - 8, &name));
        }
        let first = burst.len() - lent;
        let (mut sent, mut turns) = (first, 0);
        while sent < burst.len() && turns < 1000 {
            let taken = port.transmit(0, &burst, sent);
            sent += taken;
            turns = if taken == 0 { turns + 1 } else { 0 };
        }
        number += (sent - first) as u64;
    }
    println!("sent in {:.3} s", begin.elapsed().as_secs_f64());
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut next = move || words.next();
    let missing = "a word is missing";
    let agent = next().ok_or(missing)?;
    let name = next().ok_or(missing)?;
    if name == "agent" {
        return serve(agent);
    }
    let side = match next().ok_or(missing)?.as_str() {
        "first" => Side::First,
        _ => Side::Second,
    };
    let mut config = Config::new(&name, side);
    config.agent = Some(agent.into());
    let mut port = Ring::new(&config)?;
    let mut what = next().ok_or(missing)?;
    let sleeps = what == "--sleep";
    if sleeps {
        what = next().ok_or(missing)?;
    }
    match what.as_str() {
        "echo" => {
            println!("ready");
            std::io::stdout().flush()?;
            echo(&mut port);
            Ok(())
        }
        "lend" => {
            let mut number = || next().ok_or(missing);
            let (count, bytes): (u64, usize) = (number()?.parse()?, number()?.parse()?);
            println!("ready");
            lend(&mut port, count, bytes);
            // What is on its way ends with the pool that it lies in.
            let over = over();
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Ok(())
        }
        what => Site::new(port).work(what, sleeps, next),
    }
}
