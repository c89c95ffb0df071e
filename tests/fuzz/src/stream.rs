//! One direction between honest ends, whose steps are interleaved at will: what is received is the stream.
//!
//! The kernel is a queue. A step is one that `crates/preload/src/{send,receive}.rs` take under a lock, so that everything that the other
//! end can do between two of them is tried.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;

use millrace_shm::board::Row;
use millrace_shm::gate::Gate;
use millrace_shm::segment::{self, Segment};
use millrace_stream::{ReceiveHalf, ReceivePlan, SendHalf, SendPlan};

use crate::{Choices, sys};

const RING_BYTES: u32 = 16_384;

/// What the sender has begun.
enum Begun {
    Nothing,
    Ring {
        gate: Gate,
        bytes: u32,
        window: u32,
        first: bool,
    },
    /// A send by the kernel, of so many bytes.
    Kernel(usize),
}

struct Direction {
    rows: [Row; 2],
    segments: [Segment; 2],
    queue: VecDeque<u8>,
    begun: Begun,
    sent: u64,
    received: u64,
    /// The receiver is asleep in the kernel.
    asleep: bool,
}

/// The stream's byte at a position: neighbours, and places a ring's length away, differ.
fn byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Takes the steps that `bytes` say, then all that are left.
pub fn run(bytes: &[u8]) {
    let fd = segment::create(RING_BYTES).expect("memory");
    let mut direction = Direction {
        rows: Default::default(),
        segments: [(); 2].map(|()| Segment::attach(fd.as_fd(), RING_BYTES).expect("a segment")),
        queue: VecDeque::new(),
        begun: Begun::Nothing,
        sent: 0,
        received: 0,
        asleep: false,
    };
    let mut choices = Choices(bytes);
    while !choices.is_empty() {
        match choices.byte() % 12 {
            0..=2 => direction.begin_send(choices.size()),
            3..=5 => direction.end_send(choices.size()),
            6..=8 => direction.receive(choices.size()),
            9 => drop(direction.receive_half().try_open()),
            10 => direction.sleep_or_wake(),
            _ => direction.disturb(choices.byte()),
        }
    }
    direction.drain();
}

impl Direction {
    fn send_half(&self) -> SendHalf<'_> {
        SendHalf::new(&self.rows[0], &self.segments[0], 0)
    }

    fn receive_half(&self) -> ReceiveHalf<'_> {
        ReceiveHalf::new(&self.rows[1], &self.segments[1], 0)
    }

    fn begin_send(&mut self, want: usize) {
        if !matches!(self.begun, Begun::Nothing) {
            return;
        }
        let half = self.send_half();
        let begun = match half.plan(want).expect("the peer is honest") {
            SendPlan::Ring {
                gate,
                bytes,
                window,
                first,
            } => Begun::Ring {
                gate,
                bytes,
                window,
                first,
            },
            SendPlan::Full { gate, .. } => {
                half.overflow(gate);
                Begun::Nothing
            }
            SendPlan::Kernel => {
                half.begin_kernel(want);
                Begun::Kernel(want)
            }
        };
        self.begun = begun;
    }

    fn end_send(&mut self, most: usize) {
        let position = self.sent;
        let stream = |bytes: usize| (position..position + bytes as u64).map(byte);
        match std::mem::replace(&mut self.begun, Begun::Nothing) {
            Begun::Nothing => {}
            Begun::Ring {
                gate,
                bytes,
                window,
                first,
            } => {
                let bytes = bytes.min(most as u32);
                let half = self.send_half();
                if first {
                    half.begin_epoch(gate, half.kernel_position());
                }
                let text: Vec<u8> = stream(bytes as usize).collect();
                sys::write(&self.segments[0], (0, gate.tail), window, &text);
                if half.commit(gate, bytes) {
                    self.sent += u64::from(bytes);
                }
            }
            Begun::Kernel(want) => {
                let bytes = want.min(most);
                self.queue.extend(stream(bytes));
                self.rows[0]
                    .send
                    .kernel_position
                    .fetch_add(bytes as u64, SeqCst);
                self.rows[0].send.raw.fetch_sub(1, SeqCst);
                self.sent += bytes as u64;
            }
        }
    }

    fn check(&mut self, got: &[u8]) {
        for (value, position) in got.iter().zip(self.received..) {
            assert_eq!(*value, byte(position), "byte {position}");
        }
        self.received += got.len() as u64;
    }

    fn take_from_kernel(&mut self, most: usize) {
        let most = most.min(self.queue.len());
        let got: Vec<u8> = self.queue.drain(..most).collect();
        self.rows[1]
            .receive
            .kernel_position
            .fetch_add(most as u64, SeqCst);
        self.check(&got);
    }

    fn receive(&mut self, most: usize) {
        if self.asleep {
            return;
        }
        let half = self.receive_half();
        match half.plan().expect("the peer is honest") {
            ReceivePlan::Ring {
                head,
                bytes,
                window,
                ..
            } => {
                let mut got = vec![0; most.min(bytes as usize)];
                sys::read(&self.segments[1], (0, head), window, &mut got);
                assert!(half.commit(head, got.len() as u32));
                half.widen(window);
                self.check(&got);
            }
            ReceivePlan::KernelUpTo { limit } => {
                assert_ne!(
                    self.queue.len(),
                    0,
                    "the switch position promised {limit} bytes"
                );
                self.take_from_kernel(most.min(limit as usize));
            }
            // Only who is asleep there takes what the kernel has behind a gate that was shut.
            ReceivePlan::Empty { .. } | ReceivePlan::Kernel => {}
        }
    }

    fn sleep_or_wake(&mut self) {
        let sleepers = &self.rows[1].receive.sleepers;
        if self.asleep {
            // Only bytes wake it; it takes some, and may open the gate.
            if self.queue.is_empty() {
                return;
            }
            self.take_from_kernel(1000);
            self.rows[1].receive.sleepers.fetch_sub(1, SeqCst);
            self.asleep = false;
            return;
        }
        let half = self.receive_half();
        let tail = half.tail();
        let is_shut = match half.plan().expect("the peer is honest") {
            ReceivePlan::Kernel => true,
            ReceivePlan::Empty { gate } => half.close(gate.tail),
            ReceivePlan::Ring { .. } | ReceivePlan::KernelUpTo { .. } => false,
        };
        if is_shut {
            assert_eq!(half.tail(), tail);
            sleepers.fetch_add(1, SeqCst);
            self.asleep = true;
        }
    }

    /// What either end may do at any time, and the agent.
    fn disturb(&mut self, what: u8) {
        match what % 4 {
            0 => self.send_half().leave(),
            1 => drop(self.receive_half().close(self.receive_half().tail())),
            2 => {
                // To the sender first; a grant is never taken back.
                let log2 = 12 + u32::from(what >> 4) % 3;
                let [sender, receiver] = &self.rows;
                let granted = sender.granted_to_send();
                if granted < log2 {
                    sender.grant(log2);
                } else {
                    receiver.grant(granted);
                }
            }
            _ => assert!(self.receive_half().unread() <= RING_BYTES),
        }
    }

    /// Everything that was sent comes.
    fn drain(&mut self) {
        while !matches!(self.begun, Begun::Nothing) {
            self.end_send(usize::MAX >> 1);
        }
        self.send_half().leave();
        for _ in 0..1_000_000 {
            if self.received == self.sent {
                assert!(self.queue.is_empty() && self.receive_half().is_drained());
                return;
            }
            self.receive(usize::MAX >> 1);
            self.sleep_or_wake();
        }
        panic!("{} bytes of {} came", self.received, self.sent);
    }
}
