//! The gate: one word that says where a ring ends and whether it may be written.
//!
//! The sender publishes by advancing the tail with a compare-and-swap that succeeds only while the gate is
//! open. The receiver closes the gate, with a compare-and-swap against the tail that it has seen, before
//! it sleeps. Whoever comes second sees what the first one did, so a published byte is never slept upon
//! and a sleeping receiver is never sent a byte that does not wake it. No fence and no doorbell is needed.
//!
//! | from   | to                  | by       | when                                              |
//! |--------|---------------------|----------|---------------------------------------------------|
//! | closed | open, next epoch    | receiver | awake, ring drained, no waiter asleep             |
//! | open   | open, tail advanced | sender   | bytes are in the ring                             |
//! | open   | open, next epoch    | receiver | ring drained; the window changes                  |
//! | open   | closed              | receiver | a waiter goes to sleep, or the end leaves         |
//! | open   | closed              | sender   | ring full, or the end leaves                      |
//! | closed | open                | sender   | **forbidden**: only a drained reader can promise order |
//! | closed | tail advanced       | sender   | **forbidden**: a sleeper would not see it         |
//! | open   | tail moved back     | anybody  | **forbidden**: published bytes are the stream's   |

use crate::atomic::{AtomicU64, Ordering};

/// Bits of the epoch, which tells one opening from the next.
const EPOCH_BITS: u32 = 26;
const OPEN_SHIFT: u32 = 32;
const WINDOW_SHIFT: u32 = 33;
const EPOCH_SHIFT: u32 = 38;

/// A copy of the gate word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Free-running count of bytes published in this direction's ring, modulo 2^32.
    pub tail: u32,
    /// Whether the sender may publish.
    pub open: bool,
    /// Binary logarithm of the part of the ring that is in use, in bytes.
    pub window_log2: u32,
    /// Number of the opening, modulo 2^26. Zero before the first.
    pub epoch: u32,
}

impl Gate {
    /// The word of a new segment: closed, nothing published.
    pub const INITIAL: Gate = Gate {
        tail: 0,
        open: false,
        window_log2: 0,
        epoch: 0,
    };

    fn unpack(word: u64) -> Gate {
        Gate {
            tail: (word & 0xffff_ffff) as u32,
            open: word >> OPEN_SHIFT & 1 == 1,
            window_log2: (word >> WINDOW_SHIFT & 0x1f) as u32,
            epoch: (word >> EPOCH_SHIFT) as u32,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.tail)
            | u64::from(self.open) << OPEN_SHIFT
            | u64::from(self.window_log2 & 0x1f) << WINDOW_SHIFT
            | u64::from(self.epoch) << EPOCH_SHIFT
    }

    fn next_epoch(self) -> u32 {
        (self.epoch + 1) & ((1 << EPOCH_BITS) - 1)
    }
}

/// The shared word itself.
#[repr(transparent)]
#[derive(Debug)]
pub struct GateWord(AtomicU64);

impl GateWord {
    /// A closed gate, for tests and models; in a segment the word starts as zero, which is the same.
    #[must_use]
    pub fn new() -> GateWord {
        GateWord(AtomicU64::new(Gate::INITIAL.pack()))
    }

    /// For models: the calling thread's operations on the word go wrong from now on.
    #[cfg(loom)]
    pub fn break_here(&self, fault: crate::model::Fault) {
        self.0.break_here(fault);
    }

    /// Reads the gate.
    #[inline]
    pub fn load(&self) -> Gate {
        // Acquire: pairs with the Release in `publish` and in `close`; the ring's bytes and the
        // switch position that were written before are visible after it.
        Gate::unpack(self.0.load(Ordering::Acquire))
    }

    /// Sender: makes `bytes` more bytes visible, if the gate is still as in `seen`.
    ///
    /// # Errors
    /// The gate as it is now, when it has changed: the receiver closed it, or the word was scribbled upon.
    #[inline]
    pub fn publish(&self, seen: Gate, bytes: u32) -> Result<Gate, Gate> {
        debug_assert!(seen.open);
        self.swap(
            seen,
            Gate {
                tail: seen.tail.wrapping_add(bytes),
                ..seen
            },
        )
    }

    /// Either side: ends this epoch at the tail of `seen`.
    ///
    /// # Errors
    /// The gate as it is now, when it has changed since `seen`.
    #[inline]
    pub fn close(&self, seen: Gate) -> Result<Gate, Gate> {
        self.swap(
            seen,
            Gate {
                open: false,
                ..seen
            },
        )
    }

    /// Either side: ends this epoch, wherever its tail is now. One step, so that a peer that keeps changing the word
    /// cannot keep us here.
    #[inline]
    pub fn close_now(&self) {
        // AcqRel: as in `swap`.
        self.0.fetch_and(!(1 << OPEN_SHIFT), Ordering::AcqRel);
    }

    /// Receiver, which has drained the ring up to the tail of `seen`: begins a new epoch, with a window of its choice.
    ///
    /// # Errors
    /// The gate as it is now, when it has changed since `seen`.
    #[inline]
    pub fn open(&self, seen: Gate, window_log2: u32) -> Result<Gate, Gate> {
        self.swap(
            seen,
            Gate {
                open: true,
                window_log2,
                epoch: seen.next_epoch(),
                ..seen
            },
        )
    }

    #[inline]
    fn swap(&self, seen: Gate, next: Gate) -> Result<Gate, Gate> {
        // AcqRel on success: Release publishes what was written before (bytes, switch position), and
        // pairs with the Acquire in `load`; Acquire on both outcomes so that whoever loses the race
        // sees what the winner wrote.
        match self.0.compare_exchange(
            seen.pack(),
            next.pack(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Ok(next),
            Err(now) => Err(Gate::unpack(now)),
        }
    }
}

/// A copy of the word, of the sender's own: to look at the word itself before a publish is to fetch its cache line twice, since the reader
/// has it, who looks there all the time. Whoever publishes finds out whether it is as it was: so all accesses are relaxed, and a copy that
/// is out of date costs one swap in vain.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct SeenGate(AtomicU64);

impl SeenGate {
    /// The gate as it was, if that is known, and it was open.
    #[inline]
    pub fn get(&self) -> Option<Gate> {
        let gate = Gate::unpack(self.0.load(Ordering::Relaxed));
        gate.open.then_some(gate)
    }

    /// It is so now.
    #[inline]
    pub fn set(&self, gate: Gate) {
        self.0.store(gate.pack(), Ordering::Relaxed);
    }

    /// It may be another.
    #[inline]
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Default for GateWord {
    fn default() -> Self {
        GateWord::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_gate_survives_packing() {
        let gate = Gate {
            tail: 0xdead_beef,
            open: true,
            window_log2: 17,
            epoch: (1 << EPOCH_BITS) - 1,
        };
        assert_eq!(Gate::unpack(gate.pack()), gate);
        assert_eq!(gate.next_epoch(), 0);
        assert_eq!(Gate::unpack(0), Gate::INITIAL);
    }

    #[test]
    fn the_sender_cannot_publish_into_a_closed_gate() {
        let word = GateWord::new();
        let opened = word.open(word.load(), 16).unwrap();
        let published = word.publish(opened, 10).unwrap();
        let closed = word.close(published).unwrap();
        assert_eq!(word.publish(published, 5), Err(closed));
        assert_eq!(word.load(), closed);
    }

    #[test]
    fn a_close_fails_when_bytes_came_first() {
        let word = GateWord::new();
        let opened = word.open(word.load(), 16).unwrap();
        let published = word.publish(opened, 10).unwrap();
        assert_eq!(word.close(opened), Err(published));
    }

    #[test]
    fn a_new_epoch_refuses_an_old_publish_at_the_same_tail() {
        let word = GateWord::new();
        let first = word.open(word.load(), 16).unwrap();
        let closed = word.close(first).unwrap();
        word.open(closed, 16).unwrap();
        assert!(word.publish(first, 1).is_err());
    }
}
