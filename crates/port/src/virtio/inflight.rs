//! In-flight memory: what a back end leaves to the one that comes after its death.
//!
//! Chains go back in the order that they came in, and a burst of them at once, so nothing has to be kept of chains that are worked on. A
//! split ring's used index is in the ring itself. Of a packed one the position is kept here, twice: where it will be, before a burst is
//! given back, and where it is, after; and of each chain of that burst what is said of it. Whoever comes after a death in the midst of
//! giving back does it anew. A record that tells of chains which were taken by somebody who works out of order is refused: its own kind
//! can go on with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_wire::vhost_user::inflight::{
    PACKED_ENTRY_NEXT, PACKED_POSITIONS, SIZE, SPLIT_USED, VERSION, VERSION_NUMBER, entries,
    record_bytes,
};

use super::Taken;
use super::position::Position;
use super::sys::Record;
use crate::memory::{Memory, Place};

/// In an entry of a packed ring's record: how many descriptors a chain has;
const PACKED_ENTRY_COUNT: usize = 6;
/// and in eight bytes its number, of two, and in the last four how many bytes were written to it.
const PACKED_ENTRY_USED: usize = 16;

/// In-flight memory of all rings.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    memory: Arc<Memory>,
    offset: u32,
    queues: u16,
    size: u16,
}

impl InFlight {
    /// None: the memory, of one region, is too small from the offset on.
    pub(crate) fn new(
        memory: Arc<Memory>,
        offset: u32,
        queues: u16,
        size: u16,
        is_packed: bool,
    ) -> Option<InFlight> {
        let bytes = InFlight::bytes(queues, size, is_packed);
        let place = Place {
            region: 0,
            offset,
            length: u32::try_from(bytes).ok()?,
        };
        memory.contains(place).then_some(InFlight {
            memory,
            offset,
            queues,
            size,
        })
    }

    /// How large it must be.
    pub(crate) fn bytes(queues: u16, size: u16, is_packed: bool) -> usize {
        usize::from(queues) * record_bytes(is_packed, size)
    }

    /// The record of a ring of so many descriptors, and whether it is a new one, whose version is to be set. None: there is none for it,
    /// or it is not for us.
    fn record(&self, queue: u16, size: u16, is_packed: bool) -> Option<(Record, bool)> {
        if queue >= self.queues || size > self.size {
            return None;
        }
        let bytes = record_bytes(is_packed, self.size);
        let place = Place {
            region: 0,
            offset: self.offset + u32::from(queue) * bytes as u32,
            length: bytes as u32,
        };
        let record = Record::new(&self.memory, place)?;
        let (first, each) = entries(is_packed);
        let is_new = record.half(VERSION) == 0;
        if is_new {
            for entry in 0..size {
                let at = first + usize::from(entry) * each + PACKED_ENTRY_NEXT;
                if is_packed {
                    record.set_half(at, entry + 1);
                }
            }
            record.set_half(SIZE, size);
        }
        let is_ours = (is_new || record.half(VERSION) == VERSION_NUMBER)
            && record.half(SIZE) == size
            && (0..size).all(|entry| record.byte(first + usize::from(entry) * each) == 0);
        is_ours.then_some((record, is_new))
    }

    pub(crate) fn split(&self, queue: u16, size: u16) -> Option<SplitRecord> {
        let (record, _) = self.record(queue, size, false)?;
        record.set_half(VERSION, VERSION_NUMBER);
        Some(SplitRecord(record))
    }

    pub(crate) fn packed(&self, queue: u16, size: u16) -> Option<PackedRecord> {
        let (record, is_new) = self.record(queue, size, true)?;
        Some(PackedRecord { record, is_new })
    }
}

/// Of a split ring.
#[derive(Debug)]
pub(crate) struct SplitRecord(Record);

impl SplitRecord {
    pub(super) fn set_used(&self, index: u16) {
        self.0.set_half(SPLIT_USED, index);
    }
}

/// Of a packed ring.
#[derive(Debug)]
pub(crate) struct PackedRecord {
    record: Record,
    is_new: bool,
}

impl PackedRecord {
    /// Where it is to be, and where it was before.
    fn positions(&self) -> (Position, Position) {
        let bytes = self.record.word(PACKED_POSITIONS).to_le_bytes();
        let at = |slot: usize, wrap: usize| Position {
            slot: u16::from_le_bytes([bytes[slot], bytes[slot + 1]]),
            wrap: bytes[wrap] != 0,
        };
        (at(0, 4), at(2, 5))
    }

    /// Both at once: nobody who dies leaves a slot without its wrap counter.
    fn set_positions(&self, intended: Position, settled: Position) {
        let [intended_low, intended_high] = intended.slot.to_le_bytes();
        let [settled_low, settled_high] = settled.slot.to_le_bytes();
        let wraps = [u8::from(intended.wrap), u8::from(settled.wrap)];
        let bytes = [
            intended_low,
            intended_high,
            settled_low,
            settled_high,
            wraps[0],
            wraps[1],
            0,
            0,
        ];
        self.record
            .set_word(PACKED_POSITIONS, u64::from_le_bytes(bytes));
    }

    fn entry_at(slot: u16) -> usize {
        let (first, each) = entries(true);
        first + usize::from(slot) * each
    }

    /// A chain is about to be given back at a slot.
    pub(super) fn note(&self, slot: u16, taken: Taken) {
        let entry = PackedRecord::entry_at(slot);
        let used = u64::from(taken.number) | u64::from(taken.length) << 32;
        self.record
            .set_half(entry + PACKED_ENTRY_COUNT, taken.descriptors);
        self.record.set_word(entry + PACKED_ENTRY_USED, used);
    }

    fn noted(&self, slot: u16) -> Taken {
        let entry = PackedRecord::entry_at(slot);
        let used = self.record.word(entry + PACKED_ENTRY_USED);
        Taken {
            number: used as u16,
            descriptors: self.record.half(entry + PACKED_ENTRY_COUNT),
            length: (used >> 32) as u32,
        }
    }

    /// Chains are about to be given back, from one position up to another.
    pub(super) fn intend(&self, from: Position, to: Position) {
        self.set_positions(to, from);
    }

    /// They were.
    pub(super) fn settle(&self, used: Position) {
        self.set_positions(used, used);
    }

    /// Where the ring goes on: at `base` when nobody was there before, or else after the last chain that was given back, which is done now
    /// where it was about to be done. `flags` are those of a descriptor, and `give` writes a chain there as used. None: what is here cannot
    /// be.
    pub(super) fn begin(
        &self,
        base: Position,
        size: u16,
        flags: impl Fn(u16) -> u16,
        give: impl Fn(Position, Taken, Ordering),
    ) -> Option<Position> {
        let used = if self.is_new {
            base
        } else {
            let (intended, settled) = self.positions();
            if intended.slot >= size || settled.slot >= size {
                return None;
            }
            // The first chain is written last. Once it was, the driver may have used its descriptor again: then it is available, but in the
            // next turn.
            if settled != intended && settled.is_available(flags(settled.slot)) {
                self.give_back(settled, intended, size, give)?;
            }
            intended
        };
        self.settle(used);
        // Last: whoever comes after a death before this begins anew.
        self.record.set_half(VERSION, VERSION_NUMBER);
        Some(used)
    }

    /// Gives back what was noted from one position up to another. None: that is more than a ring.
    fn give_back(
        &self,
        from: Position,
        to: Position,
        size: u16,
        give: impl Fn(Position, Taken, Ordering),
    ) -> Option<()> {
        let first = self.noted(from.slot);
        let (mut at, mut taken, mut left) = (from, first, size);
        loop {
            left = left.checked_sub(taken.descriptors)?;
            if taken.descriptors == 0 {
                return None;
            }
            at = at.after(taken.descriptors, size);
            if at == to {
                break;
            }
            taken = self.noted(at.slot);
            give(at, taken, Ordering::Relaxed);
        }
        give(from, first, Ordering::Release);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use millrace_shm::Mapping;
    use millrace_wire::virtio::{DESC_AVAIL, DESC_USED};

    use super::*;

    const SIZE: u16 = 8;

    fn fresh() -> InFlight {
        let mapping = Mapping::private(4096).unwrap();
        let memory = Arc::new(Memory::new(vec![mapping]));
        InFlight::new(memory, 0, 2, SIZE, true).unwrap()
    }

    fn at(slot: u16) -> Position {
        Position { slot, wrap: true }
    }

    fn chain(number: u16, descriptors: u16) -> Taken {
        Taken {
            number,
            descriptors,
            length: 100 + u32::from(number),
        }
    }

    /// What is given back by whoever comes next, where the first slot's flags are these.
    fn next(inflight: &InFlight, flags: u16) -> (Option<Position>, Vec<(u16, u16, u32)>) {
        let given = RefCell::new(Vec::new());
        let record = inflight.packed(1, SIZE).unwrap();
        let found = record.begin(
            at(7),
            SIZE,
            |_| flags,
            |position, taken, _| {
                given
                    .borrow_mut()
                    .push((position.slot, taken.number, taken.length));
            },
        );
        (found, given.into_inner())
    }

    fn nothing(_: Position, _: Taken, _: Ordering) {
        unreachable!("nothing is to be given back");
    }

    #[test]
    fn a_burst_that_was_about_to_be_given_back_is_given_back() {
        let used = DESC_AVAIL | DESC_USED;
        // In the next turn of the ring.
        let used_again = DESC_USED;
        for (flags, given) in [
            (DESC_AVAIL, vec![(1, 20, 120), (3, 30, 130), (0, 10, 110)]),
            (used, vec![]),
            (used_again, vec![]),
        ] {
            let inflight = fresh();
            let record = inflight.packed(1, SIZE).unwrap();
            assert_eq!(record.begin(at(0), SIZE, |_| 0, nothing), Some(at(0)));
            for (slot, taken) in [(0, chain(10, 1)), (1, chain(20, 2)), (3, chain(30, 1))] {
                record.note(slot, taken);
            }
            record.intend(at(0), at(4));
            assert_eq!(next(&inflight, flags), (Some(at(4)), given));
            // And once more, where nothing was going on.
            assert_eq!(next(&inflight, DESC_AVAIL), (Some(at(4)), vec![]));
        }
    }

    #[test]
    fn a_burst_goes_round_the_end_of_the_ring() {
        let inflight = fresh();
        let record = inflight.packed(1, SIZE).unwrap();
        record.begin(at(6), SIZE, |_| 0, nothing);
        record.note(6, chain(1, 3));
        record.note(1, chain(2, 1));
        let end = Position {
            slot: 2,
            wrap: false,
        };
        record.intend(at(6), end);
        let given = vec![(1, 2, 102), (6, 1, 101)];
        assert_eq!(next(&inflight, DESC_AVAIL), (Some(end), given));
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        let inflight = fresh();
        assert!(inflight.packed(2, SIZE).is_none());
        assert!(inflight.packed(0, SIZE + 1).is_none());
        let record = inflight.packed(0, SIZE).unwrap();
        record.begin(at(0), SIZE, |_| 0, nothing);
        assert!(inflight.packed(0, SIZE - 1).is_none());
        record.intend(at(0), at(SIZE));
        let next = inflight.packed(0, SIZE).unwrap();
        assert_eq!(next.begin(at(0), SIZE, |_| DESC_AVAIL, nothing), None);
        // A chain of no descriptors would never end, and one beyond the end of the burst is none of it.
        record.intend(at(0), at(2));
        for descriptors in [0, 3, SIZE + 1] {
            record.note(0, chain(0, descriptors));
            let next = inflight.packed(0, SIZE).unwrap();
            let give = |_: Position, _: Taken, _: Ordering| {};
            assert_eq!(next.begin(at(0), SIZE, |_| DESC_AVAIL, give), None);
        }
        // Somebody has taken chains out of order.
        let (first, _) = entries(true);
        record.record.set_half(first, 1);
        assert!(inflight.packed(0, SIZE).is_none());
        let memory = Arc::new(Memory::new(vec![Mapping::private(4096).unwrap()]));
        assert!(InFlight::new(memory, 0, 32, SIZE, true).is_none());
    }
}
