//! Two back ends that are joined, for `tests/packets`: what one guest sends the other gets, with what it leaves to others to do.
//!
//! `join PATH PATH` prints, when standard input ends, how many packets there were, how many left work, and the longest.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use millrace_port::vhost_user::{Config, Role, VhostUser};
use millrace_port::{Burst, Port};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

fn back(path: String) -> std::io::Result<VhostUser> {
    let mut config = Config::new(Role::Server, path);
    config.offloads = true;
    VhostUser::new(config)
}

fn sleep(ports: &mut [VhostUser; 2]) {
    let quiet = ports.each_mut().map(|port| port.arm());
    if quiet == [true, true] {
        let mut polled = ports
            .each_ref()
            .map(|port| PollFd::new(port.as_fd(), PollFlags::POLLIN));
        // Failing is waking.
        let _ = poll(&mut polled, PollTimeout::from(100u8));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = std::env::args().skip(1);
    let mut next = || paths.next().ok_or("a path is missing");
    let mut ports = [back(next()?)?, back(next()?)?];
    let over = Arc::new(AtomicBool::new(false));
    let told = over.clone();
    std::thread::spawn(move || {
        // Whatever becomes of it, that was all.
        let _ = std::io::stdin().read(&mut [0]);
        told.store(true, Ordering::Relaxed);
    });
    println!("ready");
    let mut burst = Burst::new(32);
    let (mut packets, mut work, mut longest) = (0, 0, 0);
    while !over.load(Ordering::Relaxed) {
        for port in &mut ports {
            port.poll(Instant::now());
        }
        let before = packets;
        for from in 0..2 {
            let [first, second] = &mut ports;
            let (from, to) = if from == 0 {
                (first, second)
            } else {
                (second, first)
            };
            packets += from.receive(0, &mut burst);
            work += burst.iter().filter(|packet| packet.leaves_work()).count();
            longest = longest.max(burst.iter().map(|packet| packet.len()).max().unwrap_or(0));
            let taken = to.transmit(0, &burst, 0);
            to.give_up(0, &burst, taken);
            from.release(0);
        }
        if packets == before {
            sleep(&mut ports);
        }
    }
    println!("result packets={packets} work={work} longest={longest}");
    Ok(())
}
