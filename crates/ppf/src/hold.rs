//! Packets of bearers that are paused, in the order in which they came.
//!
//! Their memory is there from the beginning, in blocks that are linked: a packet takes as many as it is long, and none is allocated while
//! packets come. Each packet is in two lists, its bearer's and that of all by their age, so that old ones are found without a search.

use crate::bearer::{BearerId, Side};
use crate::cause::Cause;

const BLOCK_BYTES: usize = 256;
const NONE: u32 = u32::MAX;

/// How much is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldLimits {
    /// Packets of all bearers.
    pub packets: u32,
    /// Bytes of memory for them; each packet takes whole blocks of 256.
    pub bytes: u32,
    /// Packets of one bearer and direction.
    pub packets_per_bearer: u32,
    /// Their bytes.
    pub bytes_per_bearer: u32,
    /// None is held for longer.
    pub age_ns: u64,
}

impl Default for HoldLimits {
    /// Eight megabytes in all, and of a bearer what a second of a video is.
    fn default() -> Self {
        HoldLimits {
            packets: 16_384,
            bytes: 8 << 20,
            packets_per_bearer: 512,
            bytes_per_bearer: 512 << 10,
            age_ns: 10_000_000_000,
        }
    }
}

/// What is held now, and what was so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldCounts {
    /// Packets that wait.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were taken in.
    pub taken: u64,
    /// Packets that were given out. Those that were neither, and wait no more, were dropped, and are counted as such.
    pub released: u64,
}

/// What a bearer has here, in one direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    first: u32,
    last: u32,
    pub(crate) packets: u32,
    bytes: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            first: NONE,
            last: NONE,
            packets: 0,
            bytes: 0,
        }
    }
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.packets == 0
    }
}

/// What is known of a packet beside its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) bearer: BearerId,
    /// Where it goes.
    pub(crate) to: Side,
    /// It is a user's packet and no message.
    pub(crate) is_plain: bool,
    /// As it came, of the outer header.
    pub(crate) tos: u8,
    pub(crate) at_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    held: Held,
    length: u32,
    block: u32,
    /// Behind it in its queue, or in the list of free ones.
    next: u32,
    older: u32,
    newer: u32,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Pool {
    limits: HoldLimits,
    memory: Vec<u8>,
    /// Of each block, which is behind it in its packet, or in the list of free ones.
    links: Vec<u32>,
    free_block: u32,
    free_blocks: u32,
    records: Vec<Record>,
    free_record: u32,
    oldest: u32,
    newest: u32,
    pub(crate) counts: HeldCounts,
}

impl Pool {
    pub(crate) fn new(limits: HoldLimits) -> Pool {
        let blocks = limits.bytes / BLOCK_BYTES as u32;
        Pool {
            limits,
            // Zeroed pages, which take memory once they are used.
            memory: vec![0; blocks as usize * BLOCK_BYTES],
            links: (1..=blocks)
                .map(|next| if next == blocks { NONE } else { next })
                .collect(),
            free_block: if blocks == 0 { NONE } else { 0 },
            free_blocks: blocks,
            records: Vec::with_capacity(limits.packets as usize),
            free_record: NONE,
            oldest: NONE,
            newest: NONE,
            counts: HeldCounts::default(),
        }
    }

    /// Takes a packet behind those of its queue.
    pub(crate) fn push(
        &mut self,
        queue: &mut Queue,
        held: Held,
        bytes: &[u8],
    ) -> Result<(), Cause> {
        self.push_behind(queue, held, bytes, self.newest)?;
        self.counts.taken += 1;
        Ok(())
    }

    /// Takes a packet behind those of its queue that was another pool's: by its age it stands among the others, where it is looked for from
    /// the one that was taken so before. Returns the record's number.
    pub(crate) fn put(
        &mut self,
        queue: &mut Queue,
        held: Held,
        bytes: &[u8],
        before: Option<u32>,
    ) -> Result<u32, Cause> {
        let older = self.place_of(before.unwrap_or(self.newest), held.at_ns);
        self.push_behind(queue, held, bytes, older)
    }

    /// The newest record that is no newer than a time, looked for from another one on.
    fn place_of(&self, from: u32, at_ns: u64) -> u32 {
        let is_older = |record: &Record| record.held.at_ns <= at_ns;
        let mut place = from;
        while let Some(record) = self
            .records
            .get(place as usize)
            .filter(|one| !is_older(one))
        {
            place = record.older;
        }
        loop {
            let next = match self.records.get(place as usize) {
                Some(record) => record.newer,
                None => self.oldest,
            };
            match self.records.get(next as usize) {
                Some(newer) if is_older(newer) => place = next,
                _ => return place,
            }
        }
    }

    /// Takes a packet behind those of its queue, and by its age behind another one, or before all.
    fn push_behind(
        &mut self,
        queue: &mut Queue,
        held: Held,
        bytes: &[u8],
        older: u32,
    ) -> Result<u32, Cause> {
        let length = u32::try_from(bytes.len()).map_err(|_| Cause::HeldBytes)?;
        if queue.packets >= self.limits.packets_per_bearer {
            return Err(Cause::HeldPackets);
        }
        if queue.bytes.saturating_add(length) > self.limits.bytes_per_bearer {
            return Err(Cause::HeldBytes);
        }
        let blocks = length.div_ceil(BLOCK_BYTES as u32).max(1);
        if blocks > self.free_blocks {
            return Err(Cause::HeldMemory);
        }
        let number = self.free_record().ok_or(Cause::HeldMemory)?;
        let newer = match self.records.get_mut(older as usize) {
            Some(older) => std::mem::replace(&mut older.newer, number),
            None => std::mem::replace(&mut self.oldest, number),
        };
        match self.records.get_mut(newer as usize) {
            Some(newer) => newer.older = number,
            None => self.newest = number,
        }
        let record = Record {
            held,
            length,
            block: self.fill(bytes),
            next: NONE,
            older,
            newer,
        };
        self.free_blocks -= blocks;
        self.records[number as usize] = record;
        match self.records.get_mut(queue.last as usize) {
            Some(last) => last.next = number,
            None => queue.first = number,
        }
        queue.last = number;
        queue.packets += 1;
        queue.bytes += length;
        self.counts.packets += 1;
        self.counts.bytes += u64::from(length);
        Ok(number)
    }

    /// The number of a record that is free; it is so no more.
    fn free_record(&mut self) -> Option<u32> {
        if let Some(record) = self.records.get(self.free_record as usize) {
            let number = self.free_record;
            self.free_record = record.next;
            return Some(number);
        }
        let number = self.records.len() as u32;
        if number >= self.limits.packets {
            return None;
        }
        self.records.push(Record {
            held: Held {
                bearer: BearerId::default(),
                to: Side::Core,
                is_plain: false,
                tos: 0,
                at_ns: 0,
            },
            length: 0,
            block: NONE,
            next: NONE,
            older: NONE,
            newer: NONE,
        });
        Some(number)
    }

    /// Copies bytes to blocks, of which there are enough; returns the first.
    fn fill(&mut self, bytes: &[u8]) -> u32 {
        let (first, mut last) = (self.free_block, NONE);
        // One that is empty takes a block too.
        let mut rest = bytes;
        loop {
            let block = self.free_block;
            let count = rest.len().min(BLOCK_BYTES);
            let (now, later) = rest.split_at(count);
            let at = block as usize * BLOCK_BYTES;
            self.memory[at..at + count].copy_from_slice(now);
            self.free_block = self.links[block as usize];
            last = if last == NONE {
                block
            } else {
                self.link(last, block)
            };
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        self.links[last as usize] = NONE;
        first
    }

    fn link(&mut self, last: u32, block: u32) -> u32 {
        self.links[last as usize] = block;
        block
    }

    /// Gives out a queue's first packet.
    pub(crate) fn pop(&mut self, queue: &mut Queue, to: &mut Vec<u8>) -> Option<Held> {
        let number = queue.first;
        let record = *self.records.get(number as usize)?;
        to.clear();
        let (mut block, mut left) = (record.block, record.length as usize);
        loop {
            let at = block as usize * BLOCK_BYTES;
            let count = left.min(BLOCK_BYTES);
            to.extend_from_slice(&self.memory[at..at + count]);
            left -= count;
            let next = self.links[block as usize];
            self.links[block as usize] = self.free_block;
            self.free_block = block;
            self.free_blocks += 1;
            if next == NONE {
                break;
            }
            block = next;
        }
        match self.records.get_mut(record.older as usize) {
            Some(older) => older.newer = record.newer,
            None => self.oldest = record.newer,
        }
        match self.records.get_mut(record.newer as usize) {
            Some(newer) => newer.older = record.older,
            None => self.newest = record.older,
        }
        queue.first = record.next;
        if queue.first == NONE {
            queue.last = NONE;
        }
        queue.packets -= 1;
        queue.bytes -= record.length;
        self.counts.packets -= 1;
        self.counts.bytes -= u64::from(record.length);
        self.records[number as usize].next = self.free_record;
        self.free_record = number;
        Some(record.held)
    }

    /// How many bytes more a queue may have.
    pub(crate) fn room_of(&self, queue: &Queue) -> u32 {
        self.limits.bytes_per_bearer.saturating_sub(queue.bytes)
    }

    /// Whose first packet is too old; it is the oldest of all.
    pub(crate) fn too_old(&self, now_ns: u64) -> Option<Held> {
        let oldest = self.records.get(self.oldest as usize)?;
        let age_ns = now_ns.saturating_sub(oldest.held.at_ns);
        (age_ns >= self.limits.age_ns).then_some(oldest.held)
    }

    /// When the next one will be.
    pub(crate) fn next_timeout_ns(&self) -> Option<u64> {
        let oldest = self.records.get(self.oldest as usize)?;
        Some(oldest.held.at_ns.saturating_add(self.limits.age_ns))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::random::Random;

    fn held(queue: usize, at_ns: u64) -> Held {
        Held {
            bearer: BearerId::from_number(queue as u32),
            to: Side::Core,
            is_plain: false,
            tos: 0,
            at_ns,
        }
    }

    /// Queues of copies, with the same limits.
    fn model_takes(
        limits: &HoldLimits,
        queues: &[VecDeque<(u64, Vec<u8>)>],
        queue: usize,
        bytes: usize,
    ) -> Result<(), Cause> {
        let of =
            |queue: &VecDeque<(u64, Vec<u8>)>| queue.iter().map(|one| one.1.len()).sum::<usize>();
        let blocks = |bytes: usize| bytes.div_ceil(BLOCK_BYTES).max(1);
        if queues[queue].len() >= limits.packets_per_bearer as usize {
            return Err(Cause::HeldPackets);
        }
        if of(&queues[queue]) + bytes > limits.bytes_per_bearer as usize {
            return Err(Cause::HeldBytes);
        }
        let used: usize = queues.iter().flatten().map(|one| blocks(one.1.len())).sum();
        let packets: usize = queues.iter().map(VecDeque::len).sum();
        let all = limits.bytes as usize / BLOCK_BYTES;
        if used + blocks(bytes) > all || packets >= limits.packets as usize {
            return Err(Cause::HeldMemory);
        }
        Ok(())
    }

    #[test]
    fn it_holds_what_queues_of_copies_hold() {
        let limits = HoldLimits {
            packets: 50,
            bytes: 40_000,
            packets_per_bearer: 20,
            bytes_per_bearer: 12_000,
            age_ns: 400,
        };
        for seed in 1..30 {
            let mut random = Random(seed);
            let mut pool = Pool::new(limits);
            let mut queues = [Queue::default(); 5];
            let mut model: Vec<VecDeque<(u64, Vec<u8>)>> = vec![VecDeque::new(); 5];
            let mut out = Vec::new();
            for now_ns in 0..3_000 {
                let which = random.below(5) as usize;
                if random.below(5) < 3 {
                    let length = random.below(3_000) as usize;
                    let bytes = random.bytes(length);
                    let wanted = model_takes(&limits, &model, which, length);
                    let got = pool.push(&mut queues[which], held(which, now_ns), &bytes);
                    assert_eq!(got, wanted, "seed {seed}, {now_ns}");
                    if wanted.is_ok() {
                        model[which].push_back((now_ns, bytes));
                    }
                } else {
                    let wanted = model[which].pop_front();
                    let got = pool.pop(&mut queues[which], &mut out);
                    assert_eq!(got.map(|got| got.at_ns), wanted.as_ref().map(|one| one.0));
                    if let Some((_, bytes)) = wanted {
                        assert_eq!(out, bytes);
                    }
                }
                let oldest = model
                    .iter()
                    .filter_map(VecDeque::front)
                    .map(|one| one.0)
                    .min();
                assert_eq!(pool.next_timeout_ns(), oldest.map(|at| at + limits.age_ns));
                let waiting = model.iter().flatten().map(|one| one.1.len() as u64);
                let counted = (pool.counts.packets, pool.counts.bytes);
                assert_eq!(
                    counted,
                    (waiting.clone().count() as u64, waiting.sum::<u64>())
                );
                while let Some(old) = pool.too_old(now_ns) {
                    let which = old.bearer.number() as usize;
                    assert_eq!(pool.pop(&mut queues[which], &mut out), Some(old));
                    assert_eq!(model[which].pop_front().map(|one| one.0), Some(old.at_ns));
                    assert!(old.at_ns + limits.age_ns <= now_ns);
                }
            }
        }
    }
}
