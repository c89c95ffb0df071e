//! What a hostile peer writes over its segment, and its board.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use millrace_shm::Mapping;
use millrace_shm::gate::{Gate, GateWord};
use millrace_shm::segment::{self, DirectionWords, Segment};

use crate::random::Random;
use crate::sys;

/// Where the words of both directions lie in the header page: see `docs/shm-abi.md`.
const WORDS: std::ops::Range<usize> = 256..768;

/// How it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Random bytes anywhere.
    Noise,
    /// Odd values in the shared words.
    Words,
    /// What an honest peer might have written at another moment.
    Lies,
    /// Gates that never hold still.
    Flip,
    /// The same, of the gate that the other end wants to close before it sleeps, until the run ends.
    Siege,
    /// Odd values in the rows of its own board, which the agent reads.
    Board,
    /// Memory that is given back under the peer's hands.
    Punch,
    /// Nothing: it takes no bytes, or says nothing, and leaves its gate open.
    Silent,
    /// One of the others, but a siege, for each connection.
    Any,
}

const NAMES: [(&str, Style); 9] = [
    ("noise", Style::Noise),
    ("words", Style::Words),
    ("lies", Style::Lies),
    ("flip", Style::Flip),
    ("board", Style::Board),
    ("punch", Style::Punch),
    ("silent", Style::Silent),
    ("siege", Style::Siege),
    ("any", Style::Any),
];

impl Style {
    pub(crate) fn named(name: &str) -> Option<Style> {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, style)| *style)
    }

    /// The style of one connection.
    pub(crate) fn draw(self, random: &mut Random) -> Style {
        match self {
            Style::Any => NAMES[random.below(NAMES.len() - 2)].1,
            other => other,
        }
    }

    /// Whether bytes appear only where its own end, or an honest peer, writes.
    pub(crate) fn is_tidy(self) -> bool {
        !matches!(self, Style::Noise | Style::Punch)
    }
}

/// The peer's own hold of the memory.
pub(crate) struct Target<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) whole: &'a Mapping,
    pub(crate) file: &'a OwnedFd,
    pub(crate) board: &'a Mapping,
    pub(crate) random: &'a mut Random,
}

impl Target<'_> {
    /// A few writes.
    pub(crate) fn strike(&mut self, style: Style) {
        match style {
            Style::Noise => self.scribble(),
            Style::Words => self.nonsense(),
            Style::Lies => self.lie(),
            Style::Flip => self.flip(),
            Style::Siege => self.besiege(),
            Style::Board => self.scribble_board(),
            Style::Punch => self.punch(),
            Style::Silent | Style::Any => {}
        }
    }

    fn scribble(&mut self) {
        let range = match self.random.below(3) {
            0 => WORDS,
            1 => 0..segment::HEADER_BYTES,
            // The first 64 KiB of either large ring; what nobody was granted costs memory.
            _ => segment::HEADER_BYTES..segment::HEADER_BYTES + 65_536,
        };
        for _ in 0..1 + self.random.below(64) {
            let place = range.start + self.random.below(range.len());
            sys::store(self.whole, place, self.random.next() as u8);
        }
    }

    fn words(&mut self) -> &DirectionWords {
        let segment = self.segment;
        segment.words(self.random.below(2))
    }

    /// A number that is odd, or beside one that would be right.
    fn value(&mut self, right: u64) -> u64 {
        match self.random.below(4) {
            0 => right.wrapping_add(self.random.next() & 0xfff),
            1 => right.wrapping_sub(self.random.next() & 0xfff),
            _ => self.random.odd(),
        }
    }

    fn nonsense(&mut self) {
        let gate = self.words().gate.load();
        let (tail, any) = (self.value(u64::from(gate.tail)), self.random.odd());
        match self.random.below(9) {
            0 => self.words().head.store(tail as u32, Relaxed),
            1 => self.words().switch_position.store(any, Relaxed),
            2 => self.words().kernel_hint.store(any, Relaxed),
            3 => self.words().sender_cpu.store(any as u32, Relaxed),
            4 => self.words().sender_flags.store(any as u32, Relaxed),
            5 => self.words().receiver_cpu.store(any as u32, Relaxed),
            6 => self.words().kernel_taken.store(any, Relaxed),
            7 => sys::gate_word(&self.words().gate).store(any, Relaxed),
            _ => {
                let word = u64::from(tail as u32) | any << 32;
                sys::gate_word(&self.words().gate).store(word, Relaxed);
            }
        }
    }

    fn lie(&mut self) {
        let value = self.random.next();
        let near = (value >> 16 & 0xfff) as u32;
        let position = u64::from(near & 3);
        let (ours, theirs) = (self.segment.words(0), self.segment.words(1));
        let (sent, read) = (ours.gate.load(), theirs.gate.load());
        let window_log2 = self.random.pick(&[10, 12, 14, 16, 21]);
        // Most of the time it does what its own end might do, at the wrong moment.
        match value >> 8 & 15 {
            0..=2 => drop(ours.gate.publish(opened(sent), near)),
            3 => drop(ours.gate.close(sent)),
            4 => drop(theirs.gate.close(read)),
            5..=7 if !read.open => drop(theirs.gate.open(read, window_log2)),
            8 | 9 => theirs.head.store(read.tail.wrapping_sub(near), Relaxed),
            10 => ours.switch_position.store(position, Relaxed),
            11 => ours.kernel_hint.store(value, Relaxed),
            12 => theirs.head.store(read.tail.wrapping_add(near), Relaxed),
            13 => turn_over(&theirs.gate, 1 << (32 + (near & 31))),
            14 => turn_over(&ours.gate, 1 << (32 + (near & 31))),
            _ => drop(theirs.gate.publish(opened(read), near & 1)),
        }
    }

    /// Every look at a gate sees another epoch, so that no compare-and-swap against it succeeds.
    fn flip(&mut self) {
        let both = self.random.strikes(2);
        let is_open = !self.random.strikes(8);
        for turn in 0..2000u64 {
            for direction in 0..if both { 2 } else { 1 } {
                let gate = &self.segment.words(1 - direction).gate;
                let mut change = 1 << (38 + turn % 8);
                if gate.load().open != is_open {
                    change |= 1 << 32;
                }
                turn_over(gate, change);
            }
        }
    }

    fn besiege(&self) {
        let gate = &self.segment.words(0).gate;
        for turn in 0..2000u64 {
            let opening = u64::from(!gate.load().open) << 32;
            turn_over(gate, 1 << (38 + turn % 8) | opening);
        }
    }

    fn scribble_board(&mut self) {
        for _ in 0..64 {
            // The header, and the first rows, of which one is this connection's.
            let place = self.random.below(4096 + 16 * 384);
            sys::store(self.board, place, self.random.odd() as u8);
        }
    }

    fn punch(&mut self) {
        if self.random.strikes(4) {
            sys::punch(
                self.file,
                self.random.below(64) * 4096,
                4096 * (1 + self.random.below(16)),
            );
        }
        self.lie();
    }
}

fn turn_over(gate: &GateWord, bits: u64) {
    sys::gate_word(gate).fetch_xor(bits, Relaxed);
}

/// The gate as it would be if it were open, for a publish that does not care.
fn opened(gate: Gate) -> Gate {
    Gate { open: true, ..gate }
}

/// Its own mapping of the whole of a memory file.
pub(crate) fn map(file: &OwnedFd, bytes: usize) -> std::io::Result<Mapping> {
    Mapping::new(file.as_fd(), bytes)
}
