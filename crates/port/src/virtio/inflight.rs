//! In-flight memory: what a back end leaves to the one that comes after its death.
//!
//! Chains go back in the order that they came in, so nothing has to be kept of each. A split ring's used index is in the ring itself. Of a
//! packed one the position is kept here, twice: where it will be, before a burst is given back, and where it is, after. A record that tells
//! of chains which were taken by somebody who works out of order is refused: its own kind can go on with it.

use std::sync::Arc;

use millrace_wire::vhost_user::inflight::{
    PACKED_ENTRY_NEXT, PACKED_POSITIONS, SIZE, SPLIT_USED, VERSION, VERSION_NUMBER, entries,
    record_bytes,
};

use super::position::Position;
use super::sys::Record;
use crate::memory::{Memory, Place};

/// In an entry of a packed ring's record: how many descriptors a chain has.
const PACKED_ENTRY_COUNT: usize = 6;

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

    fn count_at(slot: u16) -> usize {
        let (first, each) = entries(true);
        first + usize::from(slot) * each + PACKED_ENTRY_COUNT
    }

    /// A chain of so many descriptors is about to be given back at a slot.
    pub(super) fn note(&self, slot: u16, descriptors: u16) {
        self.record
            .set_half(PackedRecord::count_at(slot), descriptors);
    }

    /// Chains are about to be given back, from one position up to another.
    pub(super) fn intend(&self, from: Position, to: Position) {
        self.set_positions(to, from);
    }

    /// They were.
    pub(super) fn settle(&self, used: Position) {
        self.set_positions(used, used);
    }

    /// Where the ring goes on: at `base` when nobody was there before, or else after the last chain that was given back. `flags` are
    /// those of a descriptor: while its chain was not given back they say that it is available. Once it was, they say anything else, since
    /// the driver may have used the descriptor again. None: what is here cannot be.
    pub(super) fn begin(
        &self,
        base: Position,
        size: u16,
        flags: impl Fn(u16) -> u16,
    ) -> Option<Position> {
        let used = if self.is_new {
            base
        } else {
            let (intended, mut settled) = self.positions();
            if intended.slot >= size || settled.slot >= size {
                return None;
            }
            for _ in 0..size {
                if settled == intended || settled.is_available(flags(settled.slot)) {
                    break;
                }
                let count = self.record.half(PackedRecord::count_at(settled.slot));
                if count == 0 || count > size {
                    return None;
                }
                settled = settled.after(count, size);
            }
            settled
        };
        self.settle(used);
        // Last: whoever comes after a death before this begins anew.
        self.record.set_half(VERSION, VERSION_NUMBER);
        Some(used)
    }
}

#[cfg(test)]
mod tests {
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

    /// Flags of a ring of which the slots before this were given back in the first turn.
    fn given_back(before: u16) -> impl Fn(u16) -> u16 {
        move |slot| match slot < before {
            true => DESC_AVAIL | DESC_USED,
            false => DESC_AVAIL,
        }
    }

    #[test]
    fn a_packed_ring_goes_on_after_the_last_chain_that_was_given_back() {
        let inflight = fresh();
        let record = inflight.packed(1, SIZE).unwrap();
        assert_eq!(record.begin(at(0), SIZE, given_back(0)), Some(at(0)));
        // Three chains, of one, two and one descriptors, and a death after none, one, two, or all of them.
        for (dead_after, wanted) in [(0, 0), (1, 1), (3, 3), (4, 4)] {
            let inflight = fresh();
            let record = inflight.packed(1, SIZE).unwrap();
            record.begin(at(0), SIZE, given_back(0));
            for (slot, descriptors) in [(0, 1), (1, 2), (3, 1)] {
                record.note(slot, descriptors);
            }
            record.intend(at(0), at(4));
            let next = inflight.packed(1, SIZE).unwrap();
            let found = next.begin(at(7), SIZE, given_back(dead_after));
            assert_eq!(found, Some(at(wanted)));
            // And once more, where nothing was going on.
            let next = inflight.packed(1, SIZE).unwrap();
            assert_eq!(next.begin(at(7), SIZE, given_back(8)), Some(at(wanted)));
        }
    }

    #[test]
    fn the_driver_may_have_used_again_what_was_given_back() {
        let inflight = fresh();
        let record = inflight.packed(0, SIZE).unwrap();
        record.begin(at(6), SIZE, given_back(6));
        for slot in [6, 7, 0] {
            record.note(slot, 1);
        }
        let wrapped = Position {
            slot: 1,
            wrap: false,
        };
        record.intend(at(6), wrapped);
        // Two were given back, and both of them are available once more, in the next turn; the third never was.
        let flags = |slot: u16| {
            if slot == 0 {
                DESC_USED
            } else {
                DESC_USED * u16::from(slot > 5)
            }
        };
        let next = inflight.packed(0, SIZE).unwrap();
        let third = Position {
            slot: 0,
            wrap: false,
        };
        assert_eq!(next.begin(at(0), SIZE, flags), Some(third));
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        let inflight = fresh();
        assert!(inflight.packed(2, SIZE).is_none());
        assert!(inflight.packed(0, SIZE + 1).is_none());
        let record = inflight.packed(0, SIZE).unwrap();
        record.begin(at(0), SIZE, given_back(0));
        assert!(inflight.packed(0, SIZE - 1).is_none());
        record.intend(at(0), at(SIZE));
        let next = inflight.packed(0, SIZE).unwrap();
        assert_eq!(next.begin(at(0), SIZE, given_back(0)), None);
        // A chain of no descriptors would never end.
        record.intend(at(0), at(2));
        record.note(0, 0);
        let next = inflight.packed(0, SIZE).unwrap();
        assert_eq!(next.begin(at(0), SIZE, given_back(2)), None);
        // Somebody has taken chains out of order.
        let (first, _) = entries(true);
        record.record.set_half(first, 1);
        assert!(inflight.packed(0, SIZE).is_none());
        let memory = Arc::new(Memory::new(vec![Mapping::private(4096).unwrap()]));
        assert!(InFlight::new(memory, 0, 32, SIZE, true).is_none());
    }
}
