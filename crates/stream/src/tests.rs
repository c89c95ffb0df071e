//! Two ends in one thread, against a simple model of a stream.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use millrace_shm::board::Row;
use millrace_shm::segment::{self, SMALL_RING_BYTES, Segment};

use crate::{Chaos, Corrupt, ReceiveHalf, ReceivePlan, SendHalf, SendPlan};

const RING: u32 = 4096;

/// One direction: an end that sends, an end that receives, and a queue that stands for the kernel.
struct Pipe {
    sender: (Row, Segment),
    receiver: (Row, Segment),
    kernel: VecDeque<u8>,
}

impl Pipe {
    fn new() -> Pipe {
        let fd = segment::create(RING).unwrap();
        let attach = || {
            let row = Row::default();
            row.grant(RING.ilog2());
            (row, Segment::attach(fd.as_fd(), RING).unwrap())
        };
        Pipe {
            sender: attach(),
            receiver: attach(),
            kernel: VecDeque::new(),
        }
    }

    fn send_half(&self) -> SendHalf<'_> {
        SendHalf::new(&self.sender.0, &self.sender.1, 0)
    }

    fn receive_half(&self) -> ReceiveHalf<'_> {
        ReceiveHalf::new(&self.receiver.0, &self.receiver.1, 0)
    }

    /// Writes a byte at a time: this crate has no raw copies, and a ring of one-byte runs is the same ring.
    fn send(&mut self, bytes: &[u8], chaos: &Chaos) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.send_half().plan(rest.len()).unwrap() {
                SendPlan::Ring {
                    gate, bytes, first, ..
                } => {
                    if first {
                        self.send_half()
                            .begin_epoch(gate, self.send_half().kernel_position());
                    }
                    let bytes = chaos.cut(bytes);
                    if chaos.strikes(5) {
                        self.send_half().overflow(gate);
                    }
                    if self.send_half().commit(gate, bytes) {
                        RINGS.with_borrow_mut(|ring| ring.extend(&rest[..bytes as usize]));
                        rest = &rest[bytes as usize..];
                    }
                }
                SendPlan::Full { gate, .. } => self.send_half().overflow(gate),
                SendPlan::Kernel => {
                    self.send_half().begin_kernel(rest.len());
                    let count = chaos.cut(rest.len() as u32) as usize;
                    self.kernel.extend(&rest[..count]);
                    self.sender
                        .0
                        .send
                        .kernel_position
                        .fetch_add(count as u64, AcqRel);
                    self.sender.0.send.raw.fetch_sub(1, AcqRel);
                    rest = &rest[count..];
                }
            }
        }
    }

    fn receive(&mut self, chaos: &Chaos) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let half = self.receive_half();
            match half.plan().unwrap() {
                ReceivePlan::Ring { head, bytes, .. } => {
                    let bytes = chaos.cut(bytes);
                    assert!(half.commit(head, bytes));
                    RINGS.with_borrow_mut(|ring| take(ring, bytes as usize, &mut out));
                }
                ReceivePlan::KernelUpTo { limit } => {
                    let count = chaos.cut(limit as u32) as usize;
                    take(&mut self.kernel, count, &mut out);
                    self.receiver
                        .0
                        .receive
                        .kernel_position
                        .fetch_add(count as u64, Relaxed);
                }
                ReceivePlan::Empty { .. } => {
                    if chaos.strikes(3) {
                        half.close(half.tail());
                    }
                    assert!(
                        self.kernel.is_empty(),
                        "an open gate and an empty ring leave nothing to the kernel"
                    );
                    return out;
                }
                ReceivePlan::Kernel => {
                    let count = self.kernel.len();
                    take(&mut self.kernel, count, &mut out);
                    self.receiver
                        .0
                        .receive
                        .kernel_position
                        .fetch_add(count as u64, Relaxed);
                    if !chaos.strikes(3) {
                        self.receive_half().try_open();
                    }
                    return out;
                }
            }
        }
    }
}

/// Moves the first `count` bytes, all at once: one by one they take Miri a hundred times as long as all that is tested.
fn take(from: &mut VecDeque<u8>, count: usize, to: &mut Vec<u8>) {
    to.extend_from_slice(&from.make_contiguous()[..count]);
    from.drain(..count);
}

thread_local! {
    /// The ring's bytes, in order: the cursors under test say how many are where.
    static RINGS: std::cell::RefCell<VecDeque<u8>> = const { std::cell::RefCell::new(VecDeque::new()) };
}

#[test]
fn any_sequence_of_switches_keeps_the_stream() {
    let bytes: Vec<u8> = (0..9100_u32).map(|index| (index * 7) as u8).collect();
    for seed in 1..if cfg!(miri) { 3 } else { 300 } {
        RINGS.with_borrow_mut(VecDeque::clear);
        let chaos = Chaos::new(seed);
        let mut pipe = Pipe::new();
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        for round in 0..if cfg!(miri) { 6 } else { 60 } {
            let message = &bytes[round..][..chaos.cut(9000) as usize];
            pipe.send(message, &chaos);
            sent.extend_from_slice(message);
            if !chaos.strikes(3) {
                received.extend(pipe.receive(&chaos));
            }
        }
        received.extend(pipe.receive(&chaos));
        received.extend(pipe.receive(&Chaos::new(0)));
        assert_eq!(received, sent, "seed {seed}");
    }
}

#[test]
fn a_sleeper_keeps_the_gate_closed() {
    let pipe = Pipe::new();
    pipe.receiver.0.receive.sleepers.fetch_add(1, Relaxed);
    assert!(!pipe.receive_half().try_open());
    assert_eq!(pipe.send_half().plan(1), Ok(SendPlan::Kernel));
    pipe.receiver.0.receive.sleepers.fetch_sub(1, Relaxed);
    assert!(pipe.receive_half().try_open());
}

#[test]
fn what_lies_behind_bytes_that_are_under_way_is_not_there_yet() {
    let pipe = Pipe::new();
    let half = pipe.receive_half();
    assert!(half.try_open());
    let words = pipe.receiver.1.words(0);
    words.switch_position.store(10, Relaxed);
    words.gate.publish(words.gate.load(), 5).unwrap();
    assert_eq!(half.unread(), 5);
    assert_eq!(half.unread_behind(9), 0);
    assert_eq!(half.unread_behind(10), 5);
    assert_eq!(half.unread_behind(11), 5, "with what came behind");
    let position = &pipe.receiver.0.receive.kernel_position;
    position.store(10, Relaxed);
    assert_eq!(half.unread_behind(0), 5);
}

#[test]
fn a_raw_send_keeps_the_ring_unused() {
    let pipe = Pipe::new();
    assert!(pipe.receive_half().try_open());
    pipe.send_half().begin_kernel(10);
    assert_eq!(pipe.send_half().plan(1), Ok(SendPlan::Kernel));
}

#[test]
fn a_tail_that_the_peer_moved_is_noticed() {
    let pipe = Pipe::new();
    let half = pipe.receive_half();
    assert!(half.try_open());
    let words = pipe.receiver.1.words(0);
    let gate = words.gate.load();
    words.gate.publish(gate, RING + 1).unwrap();
    assert_eq!(half.plan(), Err(Corrupt), "more bytes than the ring holds");
    assert_eq!(
        pipe.send_half().plan(1),
        Err(Corrupt),
        "a tail that the sender did not write"
    );
}

#[test]
fn a_head_beyond_the_tail_is_noticed() {
    let pipe = Pipe::new();
    assert!(pipe.receive_half().try_open());
    pipe.sender.1.words(0).head.store(77, Relaxed);
    assert_eq!(pipe.send_half().plan(8192), Err(Corrupt));
}

#[test]
fn a_message_goes_by_the_last_publish_until_the_gate_has_changed() {
    let pipe = Pipe::new();
    let (half, reader) = (pipe.send_half(), pipe.receive_half());
    assert!(reader.try_open());
    let planned = || match half.plan(10) {
        Ok(SendPlan::Ring { gate, bytes, .. }) => (gate, bytes),
        other => panic!("{other:?}"),
    };
    let (gate, bytes) = planned();
    assert!(half.commit(gate, bytes));
    reader.leave();
    let (gate, bytes) = planned();
    assert!(!half.commit(gate, bytes), "the reader has closed it");
    assert_eq!(half.plan(10), Ok(SendPlan::Kernel));
    assert!(reader.commit(0, 10));
    assert!(reader.try_open());
    let (gate, bytes) = planned();
    assert!(half.commit(gate, bytes));
    half.leave();
    assert_eq!(half.plan(10), Ok(SendPlan::Kernel), "we have closed it");
}

/// Another process has the end, too.
#[test]
fn who_dies_after_a_publish_leaves_its_bytes_published() {
    let pipe = Pipe::new();
    let half = pipe.send_half();
    assert!(pipe.receive_half().try_open());
    let Ok(SendPlan::Ring { gate, bytes, .. }) = half.plan(10) else {
        panic!("not the ring");
    };
    assert!(half.commit(gate, bytes));
    let (state, words) = (&pipe.sender.0.send, pipe.sender.1.words(0));
    let gate = words.gate.load();
    state.pending.store(gate.tail + 7, Relaxed);
    state.seen_gate.forget();
    words.gate.publish(gate, 7).unwrap();
    let Ok(SendPlan::Ring { gate, .. }) = half.plan(10) else {
        panic!("not the ring");
    };
    assert_eq!(gate.tail, 17);
}

/// Another thread's message would come between the parts.
#[test]
fn a_short_message_goes_whole_or_waits_for_room() {
    let pipe = Pipe::new();
    assert!(pipe.receive_half().try_open());
    let half = pipe.send_half();
    let planned = |want| match half.plan(want) {
        Ok(SendPlan::Ring { gate, bytes, .. }) => Some((gate, bytes)),
        Ok(SendPlan::Full { .. }) => None,
        other => panic!("{other:?}"),
    };
    let (gate, bytes) = planned(3000).unwrap();
    assert_eq!(bytes, 3000);
    assert!(half.commit(gate, bytes));
    assert_eq!(planned(2000), None);
    assert_eq!(planned(1000).unwrap().1, 1000);
    assert_eq!(planned(5000).unwrap().1, RING - 3000);
}

/// The reader would see a first part alone, which the kernel never shows.
#[test]
fn a_message_that_the_small_ring_cannot_hold_goes_by_the_kernel_whole() {
    let fd = segment::create(RING).unwrap();
    let (row, segment) = (Row::default(), Segment::attach(fd.as_fd(), RING).unwrap());
    assert!(ReceiveHalf::new(&row, &segment, 0).try_open());
    let half = SendHalf::new(&row, &segment, 0);
    let most = SMALL_RING_BYTES as usize;
    let bytes = match half.plan(most) {
        Ok(SendPlan::Ring { bytes, .. }) => bytes,
        other => panic!("{other:?}"),
    };
    assert_eq!(bytes, SMALL_RING_BYTES);
    assert!(!half.is_outgrown_by(most));
    assert_eq!(half.plan(most + 1), Ok(SendPlan::Kernel));
    assert!(half.is_outgrown_by(most + 1));
    row.grant(RING.ilog2());
    assert!(
        !half.is_outgrown_by(most + 1),
        "the reader has not taken it into use"
    );
    assert_eq!(half.plan(most + 1), Ok(SendPlan::Kernel));
    row.grant(0);
    half.begin_kernel(most + 1);
    assert!(
        !half.is_outgrown_by(most + 1),
        "a closed gate says nothing of the size"
    );
}
