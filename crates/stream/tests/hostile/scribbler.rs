//! The hostile peer: its own mapping of the segment, and no manners.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;

use millrace_shm::Mapping;
use millrace_shm::gate::Gate;
use millrace_shm::segment::{self, Segment};

use crate::sys;

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
        let words = self.segment.words((value & 1) as usize);
        let gate = words.gate.load();
        let near = (value >> 16 & 0x1fff) as u32;
        match value >> 8 & 7 {
            0 => drop(words.gate.publish(gate_opened(gate), near)),
            1 => drop(words.gate.close(gate)),
            2 if !gate.open => drop(words.gate.open(gate, 10 + (near & 7))),
            3 => sys::flip(&words.gate, 1 << (32 + (near & 31))),
            4 => words.head.store(gate.tail.wrapping_sub(near), Relaxed),
            5 => words.head.store(gate.tail.wrapping_add(near), Relaxed),
            6 => words.switch_position.store(u64::from(near), Relaxed),
            _ => words.kernel_hint.store(value, Relaxed),
        }
    }
}

/// The gate as it would be if it were open, for a publish that does not care.
fn gate_opened(gate: Gate) -> Gate {
    Gate { open: true, ..gate }
}
