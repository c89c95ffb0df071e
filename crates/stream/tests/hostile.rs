//! A peer that writes what it likes over every byte of the segment, at any moment: the honest end gets plans within
//! bounds, or [`Corrupt`], and never goes round in circles within one step.
#![cfg(not(loom))]

#[path = "hostile/scribbler.rs"]
mod scribbler;
#[path = "hostile/sys.rs"]
mod sys;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use millrace_shm::board::Row;
use millrace_shm::segment::{self, Segment};
use millrace_stream::{Chaos, Corrupt, ReceiveHalf, ReceivePlan, SendHalf, SendPlan};
use scribbler::{Scribbler, Style};
use sys::Guarded;

const RING_BYTES: u32 = segment::RING_BYTES_MIN;
const ROUNDS_PER_STYLE: u64 = 12;
/// Where the words of direction 0 lie: see `docs/shm-abi.md`.
const DIRECTIONS_OFFSET: usize = 256;
/// Calls of the honest program per round.
const CALLS: u32 = 400;
/// Turns of the peer between its strikes.
const PAUSE: u32 = 300;
/// Steps of one call without progress, after which it goes by the kernel.
const STEPS_MAX: u32 = 64;

/// What the honest end met.
#[derive(Debug, Default)]
struct Tally {
    ring_sends: u64,
    ring_receives: u64,
    corrupt: u64,
}

/// The honest end: direction 0 is its own, direction 1 the peer's.
struct Honest {
    row: Row,
    segment: Segment,
    /// As large as the ring, between pages that nobody may touch.
    buffer: Guarded,
    chaos: Chaos,
    tally: Tally,
}

impl Honest {
    /// The runs of a plan lie in their ring, which the mapping holds.
    fn check_runs(&self, direction: usize, cursor: u32, (bytes, window): (u32, u32)) {
        let runs = self.segment.write_runs(direction, cursor, bytes, window);
        let [start, other] = [direction, 1 - direction].map(|direction| {
            let [(first, _), _] = self.segment.write_runs(direction, 0, 1, window);
            first.addr().get()
        });
        if window == segment::SMALL_RING_BYTES {
            let header = std::ptr::from_ref(self.segment.words(0)).addr() - DIRECTIONS_OFFSET;
            assert!(start > header && start + window as usize <= header + segment::HEADER_BYTES);
        }
        assert!(start.abs_diff(other) >= window as usize);
        for (place, length) in runs {
            let place = place.addr().get();
            assert!(place >= start && place + length <= start + window as usize);
        }
        assert_eq!(runs[0].1 + runs[1].1, bytes as usize);
        assert!((1..=window).contains(&bytes));
    }

    /// One `send`: it ends, by the ring or by the kernel.
    fn send(&mut self) -> Result<(), Corrupt> {
        let want = self.chaos.cut(RING_BYTES * 2);
        for _ in 0..STEPS_MAX {
            let half = SendHalf::new(&self.row, &self.segment, 0);
            match half.plan(want as usize)? {
                SendPlan::Ring {
                    gate,
                    bytes,
                    window,
                    first,
                } => {
                    if first {
                        half.begin_epoch(gate, half.kernel_position());
                    }
                    assert!(bytes <= want && bytes <= window);
                    self.check_runs(0, gate.tail, (bytes, window));
                    self.buffer
                        .write(&self.segment, 0, gate.tail, (bytes, window));
                    if half.commit(gate, bytes) {
                        self.tally.ring_sends += 1;
                        return Ok(());
                    }
                }
                SendPlan::Full { gate, .. } => half.overflow(gate),
                SendPlan::Kernel => break,
            }
            assert!(half.unread() <= RING_BYTES);
        }
        let half = SendHalf::new(&self.row, &self.segment, 0);
        half.begin_kernel(want as usize);
        self.row
            .send
            .kernel_position
            .fetch_add(u64::from(want), Relaxed);
        self.row.send.raw.fetch_sub(1, Relaxed);
        Ok(())
    }

    /// One `recv` that does not wait: it ends, with bytes or without.
    fn receive(&mut self) -> Result<(), Corrupt> {
        for _ in 0..STEPS_MAX {
            let half = ReceiveHalf::new(&self.row, &self.segment, 1);
            assert!(half.unread() <= RING_BYTES);
            match half.plan()? {
                ReceivePlan::Ring {
                    head,
                    bytes,
                    window,
                    ..
                } => {
                    self.check_runs(1, head, (bytes, window));
                    self.buffer.read(&self.segment, 1, head, (bytes, window));
                    assert!(half.commit(head, bytes), "the head is the end's own");
                    half.widen(window);
                    self.tally.ring_receives += 1;
                    return Ok(());
                }
                ReceivePlan::KernelUpTo { limit } => {
                    assert_ne!(limit, 0);
                    let taken = u64::from(self.chaos.cut(9000)).min(limit);
                    self.row.receive.kernel_position.fetch_add(taken, Relaxed);
                    return Ok(());
                }
                ReceivePlan::Empty { gate } if !half.close(gate.tail) => {}
                ReceivePlan::Empty { .. } | ReceivePlan::Kernel => {
                    half.try_open();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// A call, after which the end is given the peer's cursors, so that it stays in the game.
    fn call(&mut self) {
        if self.chaos.strikes(8) {
            thread::yield_now();
        }
        let receives = self.chaos.strikes(2);
        let result = if receives {
            self.receive()
        } else {
            self.send()
        };
        let half = ReceiveHalf::new(&self.row, &self.segment, 1);
        let _ = (half.ready(), half.kernel_hinted(), half.is_drained());
        if self.chaos.strikes(7) {
            half.leave();
            SendHalf::new(&self.row, &self.segment, 0).leave();
        }
        if result == Err(Corrupt) {
            self.tally.corrupt += 1;
            let words = self.segment.words(0);
            let tail = words.gate.load().tail;
            self.row.send.tail.store(tail, Relaxed);
            self.row.send.seen_gate.forget();
            self.row.send.head_seen.store(tail, Relaxed);
            let words = self.segment.words(1);
            let unread = self.chaos.cut(RING_BYTES);
            let head = words.gate.load().tail.wrapping_sub(unread);
            self.row.receive.head.store(head, Relaxed);
            let position = words.switch_position.load(Relaxed).min(1 << 60);
            self.row.receive.kernel_position.store(position, Relaxed);
        }
    }
}

fn play(style: Style, seed: u64) -> Tally {
    let fd = segment::create(RING_BYTES).unwrap();
    let mut honest = Honest {
        row: Row::default(),
        segment: Segment::attach(fd.as_fd(), RING_BYTES).unwrap(),
        buffer: Guarded::new(RING_BYTES as usize),
        chaos: Chaos::new(seed),
        tally: Tally::default(),
    };
    honest.row.grant(RING_BYTES.ilog2());
    let mut scribbler = Scribbler::new(fd.as_fd(), RING_BYTES, seed + 1);
    // Where one processor has to do, the other thread seldom gets in between: this one does after each call.
    let mut nearby = Scribbler::new(fd.as_fd(), RING_BYTES, seed + 1000);
    let (began, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                scribbler.strike(style);
                // Time for the honest end to do more than to see that all is corrupt.
                (0..PAUSE).for_each(|_| std::hint::spin_loop());
                began.store(true, Relaxed);
            }
        });
        while !began.load(Relaxed) {
            thread::yield_now();
        }
        for _ in 0..CALLS {
            honest.call();
            nearby.strike(style);
        }
        stop.store(true, Relaxed);
    });
    honest.tally
}

fn survive(style: Style) -> Tally {
    let mut total = Tally::default();
    for seed in 1..=ROUNDS_PER_STYLE {
        let tally = play(style, seed);
        total.ring_sends += tally.ring_sends;
        total.ring_receives += tally.ring_receives;
        total.corrupt += tally.corrupt;
    }
    assert!(total.corrupt > 0, "{style:?} {total:?}");
    total
}

#[test]
fn noise_over_every_byte_does_no_harm() {
    survive(Style::Noise);
}

#[test]
fn noise_in_the_shared_words_does_no_harm() {
    survive(Style::Words);
}

#[test]
fn plausible_lies_do_no_harm() {
    let met = survive(Style::Lies);

    assert!(met.ring_sends > 0 && met.ring_receives > 0, "{met:?}");
}
