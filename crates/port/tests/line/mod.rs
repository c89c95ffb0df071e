//! A port that is a queue in this process, for what wraps ports.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use millrace_port::{Burst, Cause, Counters, Offload, Offloads, Port, State, Tally};
use nix::sys::eventfd::EventFd;

type Packets = Arc<Mutex<VecDeque<(Vec<u8>, Offload)>>>;

/// What one end transmits, the other receives.
#[derive(Debug)]
pub(crate) struct Line {
    incoming: Packets,
    outgoing: Packets,
    /// Packets that the outgoing queue has room for.
    pub(crate) room: usize,
    pub(crate) queues: usize,
    counters: Counters,
    bell: EventFd,
}

impl Line {
    /// Both ends.
    pub(crate) fn pair(room: usize) -> (Line, Line) {
        let ways = [Packets::default(), Packets::default()];
        let end = |incoming: usize, outgoing: usize| Line {
            incoming: ways[incoming].clone(),
            outgoing: ways[outgoing].clone(),
            room,
            queues: 1,
            counters: Counters::default(),
            bell: EventFd::new().unwrap(),
        };
        (end(0, 1), end(1, 0))
    }

    /// Puts a packet where the port will receive it.
    pub(crate) fn put(&self, packet: &[u8]) {
        let mut incoming = self.incoming.lock().unwrap();
        incoming.push_back((packet.to_vec(), Offload::NONE));
    }

    /// All that was transmitted.
    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        let mut outgoing = self.outgoing.lock().unwrap();
        outgoing.drain(..).map(|(bytes, _)| bytes).collect()
    }
}

fn pass(tally: &mut Tally, bytes: usize) {
    tally.packets += 1;
    tally.bytes += bytes as u64;
}

impl Port for Line {
    fn poll(&mut self, _: Instant) -> &State {
        self.state()
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn state(&self) -> &State {
        &State::Connected
    }

    fn receive_queues(&self) -> usize {
        self.queues
    }

    fn transmit_queues(&self) -> usize {
        self.queues
    }

    fn receive(&mut self, queue: usize, burst: &mut Burst) -> usize {
        burst.clear();
        if queue < self.queues {
            let mut incoming = self.incoming.lock().unwrap();
            while !burst.is_full()
                && let Some((bytes, offload)) = incoming.pop_front()
            {
                assert!(burst.push(&bytes));
                burst.set_offload(burst.len() - 1, offload);
                pass(&mut self.counters.received, bytes.len());
            }
        }
        burst.len()
    }

    fn release(&mut self, _: usize) {}

    fn transmit(&mut self, queue: usize, burst: &Burst, first: usize) -> usize {
        let mut outgoing = self.outgoing.lock().unwrap();
        let room = if queue < self.queues { self.room } else { 0 };
        let mut taken = 0;
        for packet in burst.iter().skip(first) {
            if outgoing.len() >= room {
                break;
            }
            pass(&mut self.counters.transmitted, packet.len());
            outgoing.push_back((packet.to_vec(), packet.offload()));
            taken += 1;
        }
        taken
    }

    fn offloads(&self) -> Offloads {
        Offloads {
            checksum: true,
            tso4: true,
            ..Offloads::default()
        }
    }

    fn give_up(&mut self, _: usize, _: &Burst, _: usize) {
        // What counts is only who was asked.
        self.counters.wakes += 1;
    }

    fn arm(&mut self) -> bool {
        self.incoming.lock().unwrap().is_empty()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn counters(&self) -> Counters {
        assert_eq!(self.counters.received.dropped(Cause::Fault), 0);
        self.counters
    }
}

/// A packet that tells its number.
pub(crate) fn packet(number: u64, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|at| (number as usize + at) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// The number that a packet tells.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.first_chunk().unwrap())
}
