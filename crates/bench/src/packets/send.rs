//! The generator alone: sends as many packets as a port takes, until it is ended.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use millrace_port::ring::Ring;
use millrace_port::{Burst, HEAD_BYTES, Port, Tally};
use serde::{Deserialize, Serialize};

use super::drive::TURNS_BETWEEN_POLLS;
use super::pattern::{BURST_MAX, Content, Made, Pattern, Sizes};
use super::place::Place;

/// What is written of a packet in place.
const LINE_BYTES: usize = 64;
/// Who has nobody to send to looks for somebody so often.
const LOOK: Duration = Duration::from_millis(1);

/// What left by a port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// As `ring-first:a`.
    pub port: String,
    /// Packets that were sent.
    pub packets: u64,
    /// Their bytes, without the frame check sequence.
    pub bytes: u64,
    /// Whether their first lines were written where the peer reads them, and nothing was copied there.
    pub in_place: bool,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.in_place {
            true => ", written in place",
            false => "",
        };
        write!(f, "{}: sent {} packets{how}", self.port, self.packets)
    }
}

/// Sends until `stop` is set, to whoever connects. By a ring, packets that are longer than their private head are not copied: their first
/// line is written in the ring's memory, as by a function that changes headers, and the rest is as it was.
///
/// # Errors
/// What the port says; packets that cannot be.
pub fn send(place: &Place, pattern: &Pattern, stop: &AtomicBool) -> Result<Sent> {
    let made = pattern.make(BURST_MAX)?;
    let lent = match (&pattern.content, &pattern.sizes) {
        (Content::Udp, Sizes::Fixed(bytes)) if *bytes > HEAD_BYTES => {
            place.open_ring()?.zip(Some(*bytes))
        }
        _ => None,
    };
    let in_place = lent.is_some();
    let Tally { packets, bytes, .. } = match lent {
        Some((ring, bytes)) => send_in_place(ring, &pattern.packet(0, bytes), stop),
        None => send_made(place.open()?, made, stop),
    };
    Ok(Sent {
        port: place.to_string(),
        packets,
        bytes,
        in_place,
    })
}

fn send_made(mut port: Box<dyn Port>, mut made: Made, stop: &AtomicBool) -> Tally {
    let (run, mut number) = (std::process::id(), 0);
    let mut turns = 0;
    while is_to_go_on(&mut port, &mut turns, stop) {
        let (burst, first) = made.burst(number, run, |_| 0);
        number += port.transmit(0, burst, first) as u64;
    }
    port.counters().transmitted
}

/// Packets that are as long as this one, and begin as it does.
fn send_in_place(mut ring: Ring, packet: &[u8], stop: &AtomicBool) -> Tally {
    let line = &packet[..LINE_BYTES];
    let mut burst = Burst::new(BURST_MAX);
    let mut turns = 0;
    while is_to_go_on(&mut ring, &mut turns, stop) {
        let lent = ring.lend(&mut burst, packet.len());
        for place in 0..lent {
            burst.write(place, 0, line);
        }
        let mut sent = 0;
        while sent < lent && is_to_go_on(&mut ring, &mut turns, stop) {
            sent += ring.transmit(0, &burst, sent);
        }
    }
    ring.counters().transmitted
}

/// Does what a port needs now and then. False: it is over.
#[inline]
fn is_to_go_on(port: &mut impl Port, turns: &mut u32, stop: &AtomicBool) -> bool {
    *turns = turns.wrapping_add(1);
    if turns.is_multiple_of(TURNS_BETWEEN_POLLS) || port.transmit_queues() == 0 {
        port.poll(Instant::now());
        while port.transmit_queues() == 0 && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            port.poll(Instant::now());
        }
    }
    !stop.load(Ordering::Relaxed)
}
