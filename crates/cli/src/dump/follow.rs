//! Following the bytes of one connection through its rings, without a word to either end.
//!
//! What is read may be written at the same time. A look therefore fetches the words, then the bytes that are new, then the words
//! again, and keeps a byte only when it cannot have been overwritten meanwhile, and when it is known which epoch it is of: only
//! then its place in the stream is known. Everything else is counted as lost.
//!
//! What a sender writes and has not published cannot be seen. Where it may reach the bytes that are copied, they are copied twice:
//! a write under way shows by the difference. One that stands still between two bytes for both copies, because its thread lost
//! the processor there, does not show; nor what an ending leaves behind that comes in that moment.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use millrace_shm::gate::Gate;
use millrace_shm::segment::{Fetch, Onlooker, is_window};
use millrace_stream::step_of;

/// Bytes of one direction that follow each other in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// 0: from the end that connected.
    pub(super) direction: usize,
    /// The place of the first byte in the stream, from 1 on, modulo 2^32: a TCP sequence number.
    pub(super) sequence: u32,
    /// The place of the next byte of the other direction, as far as is known.
    pub(super) acknowledged: u32,
    pub(super) data: Vec<u8>,
    /// Bytes before these that were in the ring and could not be had.
    pub(super) lost: u32,
    /// Bytes before these that went by the kernel.
    pub(super) by_kernel: u32,
}

/// What is known of one direction.
#[derive(Debug, Clone, Copy)]
struct Direction {
    /// The gate as it was looked at last: everything up to its tail has been dealt with.
    gate: Gate,
    /// Bytes by the kernel before the epoch of the last byte whose place was known.
    switch: Option<u64>,
    /// The place of the byte after the last one that was shown.
    next: Option<u32>,
    /// Bytes that were lost since then.
    lost: u32,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Follower {
    onlooker: Onlooker,
    connection_id: u64,
    directions: [Direction; 2],
}

/// The words of a direction at one moment.
#[derive(Debug, Clone, Copy)]
struct Words {
    gate: Gate,
    switch: u64,
    /// Bytes sent by the kernel, or about to be.
    hint: u64,
    head: u32,
}

impl Words {
    /// Bytes that the reader had not taken. It may have taken more since the gate was read, and never less.
    fn unread(&self) -> u32 {
        let bytes = self.gate.tail.wrapping_sub(self.head);
        if bytes.cast_signed() > 0 { bytes } else { 0 }
    }

    /// The gate was closed, and the sender has begun a send by the kernel since: it may have written to the ring before that, and
    /// not published. The reader may have opened the gate again, and the sender not yet published after that.
    fn may_have_gone_by_kernel(&self) -> bool {
        self.hint > self.switch
    }
}

impl Follower {
    /// Begins with the bytes that come from now on.
    ///
    /// # Errors
    /// What `fetch` says; `InvalidData` when it is not that connection's segment.
    pub(super) fn new(
        connection_id: u64,
        ring_bytes: u32,
        fetch: &mut Fetch<'_>,
    ) -> io::Result<Follower> {
        let unknown = Direction {
            gate: Gate::INITIAL,
            switch: None,
            next: None,
            lost: 0,
        };
        let mut follower = Follower {
            onlooker: Onlooker::new(ring_bytes)?,
            connection_id,
            directions: [unknown; 2],
        };
        let words = follower.words(fetch)?;
        for (direction, words) in follower.directions.iter_mut().zip(words) {
            direction.gate = words.gate;
        }
        Ok(follower)
    }

    /// What has come since the last look, and could be had. `lenient`: bytes in a part of the segment that `fetch` does not reach
    /// are lost, and no error.
    ///
    /// # Errors
    /// When the segment is not there any more, or a part is not. What was known stays known: it may be looked for elsewhere.
    pub(super) fn look(&mut self, lenient: bool, fetch: &mut Fetch<'_>) -> io::Result<Vec<Piece>> {
        let before = self.words(fetch)?;
        let mut pieces = Vec::new();
        for index in [0, 1] {
            let gate = before[index].gate;
            if gate.tail == self.directions[index].gate.tail {
                // Nothing new; a byte that comes later in this epoch is known to be of it.
                self.directions[index].gate = gate;
                continue;
            }
            let acknowledged = self.next(1 - index, &before[1 - index]);
            match self.look_at(index, before[index], lenient, fetch) {
                Ok(None) => {}
                Ok(Some(mut piece)) => {
                    piece.acknowledged = acknowledged;
                    pieces.push(piece);
                }
                // The next look finds it again.
                Err(_) if !pieces.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(pieces)
    }

    /// Bytes of either direction that were lost and that no piece has told of.
    pub(super) fn untold(&self) -> u64 {
        self.directions.iter().map(|it| u64::from(it.lost)).sum()
    }

    fn look_at(
        &mut self,
        index: usize,
        before: Words,
        lenient: bool,
        fetch: &mut Fetch<'_>,
    ) -> io::Result<Option<Piece>> {
        let gate = before.gate;
        let known = self.directions[index];
        let new = gate.tail.wrapping_sub(known.gate.tail);
        let data = match self.copy(index, new, &known, &before, fetch) {
            Err(error) if lenient && error.kind() == io::ErrorKind::NotFound => Vec::new(),
            copied => copied?,
        };
        let keep = data.len() as u32;
        let direction = &mut self.directions[index];
        direction.gate = gate;
        direction.lost = direction.lost.saturating_add(new - keep);
        if keep == 0 {
            return Ok(None);
        }
        let sequence = place(before.switch, gate.tail.wrapping_sub(keep));
        let passed = known
            .next
            .map_or(direction.lost, |next| sequence.wrapping_sub(next));
        let piece = Piece {
            direction: index,
            sequence,
            acknowledged: 0,
            data,
            lost: direction.lost,
            by_kernel: passed.saturating_sub(direction.lost),
        };
        direction.lost = 0;
        direction.switch = Some(before.switch);
        direction.next = Some(place(before.switch, gate.tail));
        Ok(Some(piece))
    }

    /// Of `new` bytes the last, as many as are right.
    fn copy(
        &mut self,
        index: usize,
        new: u32,
        known: &Direction,
        before: &Words,
        fetch: &mut Fetch<'_>,
    ) -> io::Result<Vec<u8>> {
        let tail = before.gate.tail;
        let Some(window) = window_of(before.gate, self.onlooker.ring_bytes()) else {
            return Ok(Vec::new());
        };
        let bytes = worth(new, window, before);
        let cursor = tail.wrapping_sub(bytes);
        let mut data = self
            .onlooker
            .fetch_ring(index, cursor, bytes, window, fetch)?;
        let after = self.words(fetch)?[index];
        let mut keep = bytes
            .min(placed(new, known, before, &after))
            .min(intact(tail, window, 0, &after));
        // An unread byte is safe, and one that is far enough from what the sender may write now.
        let safe = intact(tail, window, step_of(window), &after).max(unread(tail, window, &after));
        if keep > safe {
            let again = self
                .onlooker
                .fetch_ring(index, cursor, bytes, window, fetch)?;
            let last = self.words(fetch)?[index];
            let is_same = last.gate.epoch == before.gate.epoch && again == data;
            if !is_same || last.may_have_gone_by_kernel() || keep > intact(tail, window, 0, &last) {
                keep = safe;
            }
        }
        data.drain(..data.len() - keep as usize);
        Ok(data)
    }

    /// The place of the next byte of a direction, for acknowledgements.
    fn next(&self, index: usize, words: &Words) -> u32 {
        let known = self.directions[index].next;
        known.unwrap_or_else(|| place(words.switch, words.gate.tail))
    }

    fn words(&mut self, fetch: &mut Fetch<'_>) -> io::Result<[Words; 2]> {
        self.onlooker.fetch_words(fetch)?;
        // The memory may have been given to another connection meanwhile.
        if self.onlooker.connection_id() != self.connection_id {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok([0, 1].map(|direction| {
            let words = self.onlooker.words(direction);
            Words {
                gate: words.gate.load(),
                switch: words.switch_position.load(Relaxed),
                hint: words.kernel_hint.load(Relaxed),
                head: words.head.load(Relaxed),
            }
        }))
    }
}

/// The sequence number of ring byte `cursor`, before which `switch` bytes went by the kernel.
fn place(switch: u64, cursor: u32) -> u32 {
    (switch as u32).wrapping_add(cursor).wrapping_add(1)
}

fn window_of(gate: Gate, ring_bytes: u32) -> Option<u32> {
    let window = 1u32.checked_shl(gate.window_log2)?;
    is_window(window, ring_bytes).then_some(window)
}

/// How many of `new` bytes, the last of them, are known to come behind the switch position of `before`.
///
/// The position belongs to an epoch once a byte of the epoch is published, and until the next epoch. So it does when the gate was
/// in the same epoch before and after it was read. All new bytes are of that epoch when the last look saw it, or saw the one
/// before it closed. Those that are unread are of it in any case: a reader that begins an epoch has read everything. And all
/// come behind it when it is what it was, because positions never go back; and they lie in the same ring when the window is what it was,
/// because it only grows.
fn placed(new: u32, known: &Direction, before: &Words, after: &Words) -> u32 {
    let epoch = before.gate.epoch;
    let follows = known.gate.epoch == epoch
        || (!known.gate.open && known.gate.epoch.wrapping_add(1) & EPOCH_MASK == epoch);
    let unmoved =
        known.switch == Some(before.switch) && known.gate.window_log2 == before.gate.window_log2;
    if unmoved || (follows && after.gate.epoch == epoch) {
        new
    } else if after.gate.epoch == epoch {
        new.min(before.unread())
    } else {
        0
    }
}

/// Epochs are counted modulo 2^26.
const EPOCH_MASK: u32 = (1 << 26) - 1;

/// So many bytes are copied in no time.
const QUICK_BYTES: u32 = 8192;

/// How many of `new` bytes to copy. Whoever is behind copies little, because it must be done before the sender comes round.
fn worth(new: u32, window: u32, before: &Words) -> u32 {
    if new <= window / 2 {
        new
    } else {
        new.min(window)
            .min(before.unread().max(window / 4).max(QUICK_BYTES))
    }
}

/// How many bytes before `tail` the sender had not written over when the words were read `after` they were copied, if it had written
/// `step` bytes at most that it had not published.
fn intact(tail: u32, window: u32, step: u32, after: &Words) -> u32 {
    if after.gate.window_log2 != window.ilog2() {
        return 0;
    }
    let ahead = after.gate.tail.wrapping_sub(tail);
    window.saturating_sub(ahead).saturating_sub(step)
}

/// How many bytes before `tail` had not been taken: nobody writes there.
fn unread(tail: u32, window: u32, after: &Words) -> u32 {
    let unread = tail.wrapping_sub(after.head);
    if unread <= window { unread } else { 0 }
}

#[cfg(test)]
mod tests;
