//! A queue of an interface at work, for `tests/packets`: takes what is for a port of UDP in IPv4, and sends it back where it came from.
//!
//! `xdp echo IFACE PORT [QUEUES]`: until standard input ends
//! `xdp open IFACE PORT PROGRAM WORDS…`: opens queue 0, and starts a program with the socket as its standard input
//! `xdp stdin IFINDEX SECONDS`: goes on with a socket that somebody else has opened

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_port::af_xdp::{AfXdp, Config, Opened, Take, open};
use millrace_port::{Burst, Port, State};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Where a frame with UDP in IPv4 without options has its UDP header.
const UDP_AT: usize = 34;

/// Turns a frame round.
fn turn(head: &mut [u8]) {
    if head.len() < UDP_AT + 4 {
        return;
    }
    let (to, from) = head.split_at_mut(6);
    to.swap_with_slice(&mut from[..6]);
    head[26..UDP_AT].rotate_left(4);
    head[UDP_AT..UDP_AT + 4].rotate_left(2);
}

fn echo(port: &mut AfXdp, is_over: impl Fn() -> bool) {
    let mut burst = Burst::new(64);
    while !is_over() {
        if let State::Closed(why) = port.poll(Instant::now()) {
            println!("over: {why}");
            break;
        }
        let mut all = 0;
        for queue in 0..port.receive_queues() {
            let count = port.receive(queue, &mut burst);
            (0..count).for_each(|number| turn(burst.head_mut(number)));
            let sent = port.transmit(queue, &burst, 0);
            port.give_up(queue, &burst, sent);
            all += count;
        }
        if all == 0 && port.arm() {
            let mut polled = [PollFd::new(port.as_fd(), PollFlags::POLLIN)];
            // Failing is waking.
            let _ = poll(&mut polled, PollTimeout::from(20u8));
        }
    }
    let counters = port.counters();
    println!(
        "result received {} drops {} transmitted {} drops {}",
        counters.received.packets,
        counters.received.drops(),
        counters.transmitted.packets,
        counters.transmitted.drops()
    );
}

fn say_ready() -> std::io::Result<()> {
    println!("ready");
    std::io::stdout().flush()
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let config = |interface: &str, port: &str| -> Result<Config, Box<dyn Error>> {
        let mut config = Config::new(interface);
        config.take = vec![Take::UdpPort(port.parse()?)];
        Ok(config)
    };
    match words.as_slice() {
        ["echo", interface, port, rest @ ..] => {
            let mut config = config(interface, port)?;
            if let [queues] = rest {
                config.queues = queues.parse()?;
            }
            let mut port = AfXdp::open(&config)?;
            say_ready()?;
            let over = Arc::new(AtomicBool::new(false));
            let end = over.clone();
            std::thread::spawn(move || {
                // Whatever becomes of it, that was all.
                let _ = std::io::stdin().read(&mut [0]);
                end.store(true, Ordering::Relaxed);
            });
            echo(&mut port, || over.load(Ordering::Relaxed));
        }
        ["open", interface, port, program, words @ ..] => {
            let mut opened = open(&config(interface, port)?)?;
            let socket = opened.sockets.pop().ok_or("there is one queue")?;
            let mut command = Command::new(program);
            let command = command.args(words).arg(opened.ifindex.to_string());
            let mut child = command.arg("1").stdin(Stdio::from(socket)).spawn()?;
            // The program stays at the interface as long as this process does.
            child.wait()?;
        }
        ["stdin", ifindex, seconds] => {
            let opened = Opened {
                sockets: vec![std::io::stdin().as_fd().try_clone_to_owned()?],
                link: None,
                ifindex: ifindex.parse()?,
                first_queue: 0,
            };
            let mut port = AfXdp::from_opened(opened, &Config::new(""))?;
            say_ready()?;
            let until = Instant::now() + Duration::from_secs(seconds.parse()?);
            echo(&mut port, || Instant::now() >= until);
        }
        _ => return Err("echo, open or stdin".into()),
    }
    Ok(())
}
