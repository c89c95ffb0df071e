//! The hostile peer: its own mapping of the segment, and no manners.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;

use millrace_shm::Mapping;
use millrace_shm::gate::Gate;
use millrace_shm::segment::{self, Segment};

use crate::sys;

/// Of the smallest ring.
const WINDOW_LOG2: u32 = segment::RING_BYTES_MIN.ilog2();

/// How it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    /// Random bytes anywhere.
    Noise,
    /// Random bytes in the shared words.
    Words,
    /// Values that an honest peer might have written at another moment.
    Lies,
}

/// See the head of this file.
pub(crate) struct Scribbler {
    mapping: Mapping,
    segment: Segment,
    state: u64,
}

impl Scribbler {
    pub(crate) fn new(fd: BorrowedFd<'_>, ring_bytes: u32, seed: u64) -> Scribbler {
        Scribbler {
            mapping: Mapping::new(fd, segment::segment_bytes(ring_bytes)).unwrap(),
            segment: Segment::attach(fd, ring_bytes).unwrap(),
            state: seed,
        }
    }

    /// Xorshift64 (Marsaglia, 2003).
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// A few writes.
    pub(crate) fn strike(&mut self, style: Style) {
        match style {
            Style::Noise => self.scribble(self.mapping.bytes()),
            Style::Words => self.scribble(segment::HEADER_BYTES.min(1024)),
            Style::Lies => self.lie(),
        }
    }

    fn scribble(&mut self, bytes: usize) {
        for _ in 0..64 {
            let value = self.next();
            let offset = (value >> 8) as usize % bytes;
            sys::store(&self.mapping, offset, value as u8);
        }
    }

    fn lie(&mut self) {
        let value = self.next();
        let near = (value >> 16 & 0xfff) as u32;
        let (ours, theirs) = (self.segment.words(1), self.segment.words(0));
        let (sent, read) = (ours.gate.load(), theirs.gate.load());
        // Most of the time it does what its own end might do, at the wrong moment.
        match value >> 8 & 15 {
            0..=2 => drop(ours.gate.publish(gate_opened(sent), near)),
            3 => drop(ours.gate.close(sent)),
            4 => drop(theirs.gate.close(read)),
            5 => drop(theirs.gate.open(read, segment::SMALL_RING_BYTES.ilog2())),
            6 | 7 if !read.open => drop(theirs.gate.open(read, WINDOW_LOG2)),
            8 | 9 => theirs.head.store(read.tail.wrapping_sub(near), Relaxed),
            10 => ours.switch_position.store(u64::from(near & 3), Relaxed),
            11 => ours.kernel_hint.store(value, Relaxed),
            12 => theirs.head.store(read.tail.wrapping_add(near), Relaxed),
            13 => sys::flip(&theirs.gate, 1 << (32 + (near & 31))),
            14 => sys::flip(&ours.gate, 1 << (32 + (near & 31))),
            _ => drop(theirs.gate.publish(gate_opened(read), near & 1)),
        }
    }
}

/// The gate as it would be if it were open, for a publish that does not care.
fn gate_opened(gate: Gate) -> Gate {
    Gate { open: true, ..gate }
}
