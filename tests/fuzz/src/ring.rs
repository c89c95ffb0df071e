//! An honest end beside a peer that writes any word at any time: plans stay within bounds, or say that the peer is corrupt.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use millrace_shm::board::Row;
use millrace_shm::segment::{self, DirectionWords, SMALL_RING_BYTES, Segment, is_window};
use millrace_stream::{Corrupt, ReceiveHalf, ReceivePlan, SendHalf, SendPlan};

use crate::{Choices, sys};

const RING_BYTES: u32 = 16_384;

struct Honest {
    row: Row,
    segment: Segment,
    base: usize,
}

/// The honest end's steps and the peer's writes, as `bytes` say.
pub fn run(bytes: &[u8]) {
    let fd = segment::create(RING_BYTES).expect("memory");
    let segment = Segment::attach(fd.as_fd(), RING_BYTES).expect("a segment");
    let base = std::ptr::from_ref(segment.words(0)).addr() - 256;
    let honest = Honest {
        row: Row::default(),
        segment,
        base,
    };
    let mut choices = Choices(bytes);
    while !choices.is_empty() {
        match choices.byte() % 8 {
            0 | 1 => drop(honest.send(&mut choices)),
            2 | 3 => drop(honest.receive()),
            4 => honest.row.grant(u32::from(choices.byte()) % 3 + 12),
            5 => {
                honest.receive_half().leave();
                honest.send_half().leave();
            }
            6 => honest.look(),
            _ => honest.suffer(&mut choices),
        }
    }
}

impl Honest {
    fn send_half(&self) -> SendHalf<'_> {
        SendHalf::new(&self.row, &self.segment, 0)
    }

    fn receive_half(&self) -> ReceiveHalf<'_> {
        ReceiveHalf::new(&self.row, &self.segment, 1)
    }

    fn granted(&self) -> u32 {
        match self.row.granted_to_send() {
            0 => SMALL_RING_BYTES,
            log2 => 1 << log2,
        }
    }

    /// The runs of a plan lie in the ring that is meant, and nowhere else.
    fn check(&self, direction: usize, cursor: u32, (bytes, window): (u32, u32)) {
        assert!(is_window(window, self.granted()) && (1..=window).contains(&bytes));
        let runs = self.segment.write_runs(direction, cursor, bytes, window);
        assert_eq!(runs[0].1 + runs[1].1, bytes as usize);
        let [(start, _), _] = self.segment.write_runs(direction, 0, 1, window);
        let start = start.addr().get();
        if window == SMALL_RING_BYTES {
            assert_eq!(start, self.base + 2048 + 1024 * direction);
        }
        for (place, length) in runs {
            let place = place.addr().get();
            assert!(place >= start && place + length <= start + window as usize);
        }
    }

    fn send(&self, choices: &mut Choices<'_>) -> Result<(), Corrupt> {
        let want = choices.size();
        let half = self.send_half();
        match half.plan(want)? {
            SendPlan::Ring {
                gate,
                bytes,
                window,
                first,
            } => {
                assert!(bytes as usize <= want);
                self.check(0, gate.tail, (bytes, window));
                if first {
                    half.begin_epoch(gate, half.kernel_position());
                }
                // The peer may strike between the plan and the publication.
                if choices.byte().is_multiple_of(4) {
                    self.suffer(choices);
                }
                sys::write(
                    &self.segment,
                    (0, gate.tail),
                    window,
                    &vec![7; bytes as usize],
                );
                half.commit(gate, bytes);
            }
            SendPlan::Full { gate, .. } => half.overflow(gate),
            SendPlan::Kernel => {
                half.begin_kernel(want);
                self.row
                    .send
                    .kernel_position
                    .fetch_add(want as u64, Relaxed);
                self.row.send.raw.fetch_sub(1, Relaxed);
            }
        }
        Ok(())
    }

    fn receive(&self) -> Result<(), Corrupt> {
        let half = self.receive_half();
        match half.plan()? {
            ReceivePlan::Ring {
                head,
                bytes,
                window,
                ..
            } => {
                self.check(1, head, (bytes, window));
                sys::read(
                    &self.segment,
                    (1, head),
                    window,
                    &mut vec![0; bytes as usize],
                );
                assert!(half.commit(head, bytes), "the head is the end's own");
                half.widen(window);
            }
            ReceivePlan::KernelUpTo { limit } => {
                assert_ne!(limit, 0);
                self.row
                    .receive
                    .kernel_position
                    .fetch_add(limit.min(9000), Relaxed);
            }
            ReceivePlan::Empty { gate } => drop(half.close(gate.tail)),
            ReceivePlan::Kernel => drop(half.try_open()),
        }
        Ok(())
    }

    /// What needs no lock, and what agents and onlookers ask.
    fn look(&self) {
        let half = self.receive_half();
        let _ = (
            half.ready(),
            half.kernel_hinted(),
            half.is_drained(),
            half.reach(),
        );
        assert!(half.unread() <= RING_BYTES && self.send_half().unread() <= RING_BYTES);
        if let Some((head, bytes, window)) = half.in_ring() {
            self.check(1, head, (bytes, window));
        }
    }

    /// The peer writes a word.
    fn suffer(&self, choices: &mut Choices<'_>) {
        let direction = choices.byte();
        let words: &DirectionWords = self.segment.words(usize::from(direction & 1));
        let value = choices.word();
        match direction >> 1 & 7 {
            0 => words
                .switch_position
                .store(value >> (direction >> 4 << 2), Relaxed),
            1 => words.kernel_hint.store(value, Relaxed),
            2 => words.head.store(value as u32, Relaxed),
            3 => words.head.store(
                words.gate.load().tail.wrapping_sub(value as u32 & 0xfff),
                Relaxed,
            ),
            // The gate's bits change here and there, or all of it.
            4 | 5 => drop(gate(words).fetch_xor(1 << (value & 63), Relaxed)),
            6 => drop(gate(words).fetch_add(value & 0x1fff, Relaxed)),
            _ => gate(words).store(value, Relaxed),
        }
    }
}

fn gate(words: &DirectionWords) -> &AtomicU64 {
    sys::gate_word(&words.gate)
}
