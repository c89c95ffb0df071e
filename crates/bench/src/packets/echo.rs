//! The other end of a generator that has one port: sends back what comes by a port, as a server of UDP would.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use millrace_port::{Burst, Port, State};
use serde::{Deserialize, Serialize};

use super::drive::TURNS_BETWEEN_POLLS;
use super::place::Place;

/// Packets that are taken and sent together, at most: a call of the kernel's is for a burst.
const TOGETHER: usize = 64;
/// Where a packet of UDP in IPv4 without options has its UDP header, and where its ports end.
const UDP_AT: usize = 34;
const PORTS_END: usize = UDP_AT + 4;

/// What came, and what was sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Echoed {
    /// As `af-xdp:eth0`.
    pub port: String,
    /// Packets that came.
    pub received: u64,
    /// Packets that were sent back.
    pub sent: u64,
}

impl fmt::Display for Echoed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Echoed {
            port,
            received,
            sent,
        } = self;
        write!(f, "{port}: sent back {sent} of {received} packets")
    }
}

/// Lets source and destination change places. The sums of both checksums stay as they are.
#[inline]
fn turn(head: &mut [u8]) {
    if head.len() < PORTS_END {
        return;
    }
    head[..12].rotate_left(6);
    head[26..UDP_AT].rotate_left(4);
    head[UDP_AT..PORTS_END].rotate_left(2);
}

/// Sends back what comes, until `stop` is set.
///
/// # Errors
/// What the port says; its end.
pub fn echo(place: &Place, stop: &AtomicBool) -> Result<Echoed> {
    let mut port = place.open()?;
    let mut burst = Burst::new(TOGETHER);
    let mut turns = 0u32;
    while !stop.load(Ordering::Relaxed) {
        if turns.is_multiple_of(TURNS_BETWEEN_POLLS)
            && let State::Closed(why) = port.poll(Instant::now())
        {
            bail!("{place}: {why}");
        }
        turns = turns.wrapping_add(1);
        for queue in 0..port.receive_queues() {
            let count = port.receive(queue, &mut burst);
            for number in 0..count {
                turn(burst.head_mut(number));
            }
            let sent = port.transmit(queue, &burst, 0);
            port.give_up(queue, &burst, sent);
        }
    }
    let counters = port.counters();
    Ok(Echoed {
        port: place.to_string(),
        received: counters.received.packets,
        sent: counters.transmitted.packets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_and_destination_change_places_and_nothing_else_does() {
        let sent: Vec<u8> = (0..64).collect();
        let mut head = sent.clone();
        turn(&mut head);
        assert_eq!(head[..12], [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5]);
        assert_eq!(head[26..34], [30, 31, 32, 33, 26, 27, 28, 29]);
        assert_eq!(head[34..38], [36, 37, 34, 35]);
        assert_eq!((&head[12..26], &head[38..]), (&sent[12..26], &sent[38..]));
        turn(&mut head);
        assert_eq!(head, sent);
        let mut short = [1; 37];
        turn(&mut short);
        assert_eq!(short, [1; 37]);
    }
}
