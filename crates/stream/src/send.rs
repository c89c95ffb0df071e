//! The sending half of an end.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use millrace_shm::board::{Row, SendState, flags};
use millrace_shm::gate::Gate;
use millrace_shm::segment::{
    DirectionWords, Publishes, SMALL_RING_BYTES, Segment, is_window, window_log2,
};

use crate::{Corrupt, step_of};

/// What to do with the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPlan {
    /// Copy `bytes` to the ring at `gate.tail`, then [`SendHalf::commit`].
    Ring {
        /// The gate that the plan rests on.
        gate: Gate,
        /// How many, at least one.
        bytes: u32,
        /// The part of the ring in use, in bytes.
        window: u32,
        /// These are the epoch's first bytes: [`SendHalf::begin_epoch`] comes before the commit.
        first: bool,
    },
    /// The ring is open and has no room: wait a little, or [`SendHalf::overflow`] to the kernel.
    Full {
        /// The gate that the plan rests on.
        gate: Gate,
        /// The receiver's head: while it moves, waiting makes sense.
        head: u32,
        /// The receiver may use a larger window as soon as it has drained this one: better wait for that.
        widens: bool,
    },
    /// Send by the kernel.
    Kernel,
}

/// A message of up to so many bytes is copied to the ring before it is known whether the gate is as it was.
const TRUSTING_BYTES_MAX: usize = 4096;

/// A view of the sending half; its lock is held while it exists.
#[derive(Debug)]
pub struct SendHalf<'a> {
    row: &'a Row,
    words: &'a DirectionWords,
    segment: &'a Segment,
}

impl<'a> SendHalf<'a> {
    /// The half that writes `direction` of `segment`.
    #[must_use]
    pub fn new(row: &'a Row, segment: &'a Segment, direction: usize) -> SendHalf<'a> {
        SendHalf {
            row,
            words: segment.words(direction),
            segment,
        }
    }

    fn state(&self) -> &SendState {
        &self.row.send
    }

    /// Decides for the next bytes of which the program has `want`, at least one.
    ///
    /// # Errors
    /// [`Corrupt`] when the shared words cannot be what an honest peer left.
    #[inline]
    pub fn plan(&self, want: usize) -> Result<SendPlan, Corrupt> {
        let state = self.state();
        // Acquire: pairs with the AcqRel decrement after a raw send; its kernel position is visible.
        if self.is_pinned() || state.raw.load(Acquire) != 0 {
            return Ok(SendPlan::Kernel);
        }
        let trusted = state.seen_gate.get().filter(|_| want <= TRUSTING_BYTES_MAX);
        let gate = match trusted {
            Some(gate) => gate,
            None => {
                let gate = self.words.gate.load();
                self.check_tail(gate)?;
                gate
            }
        };
        if !gate.open {
            return Ok(SendPlan::Kernel);
        }
        let window = window_of(gate, self.row.granted_to_send())?;
        if !self.segment.reach(window) || is_beyond(want, window) {
            return self.plan_unless(trusted, want, SendPlan::Kernel);
        }
        let mut used = gate.tail.wrapping_sub(state.head_seen.load(Relaxed));
        if used > window || (window - used) as usize <= want {
            let head = self.look_at_head();
            used = gate.tail.wrapping_sub(head);
            if used > window {
                return Err(Corrupt);
            }
            if window - used < whole_of(want, window) {
                let widens = gate.window_log2 < window_log2(self.row.granted_to_send());
                return self.plan_unless(trusted, want, SendPlan::Full { gate, head, widens });
            }
        }
        let bytes = want.min((window - used) as usize) as u32;
        let first = state.epoch.load(Relaxed) != gate.epoch;
        Ok(SendPlan::Ring {
            gate,
            bytes,
            window,
            first,
        })
    }

    /// That plan, unless it rests on a gate that may have changed.
    #[cold]
    fn plan_unless(
        &self,
        trusted: Option<Gate>,
        want: usize,
        plan: SendPlan,
    ) -> Result<SendPlan, Corrupt> {
        if trusted.is_none() {
            return Ok(plan);
        }
        self.doubt_gate();
        self.plan(want)
    }

    fn is_pinned(&self) -> bool {
        let by_kernel = flags::SEND_PINNED | flags::UNHEARD;
        self.row.identity.flags.load(Relaxed) & by_kernel != 0
    }

    /// Whether it is for the size of the ring that `want` bytes go by the kernel, and no larger one is granted, which the receiver has only
    /// to take into use.
    #[must_use]
    pub fn is_outgrown_by(&self, want: usize) -> bool {
        let gate = self.words.gate.load();
        gate.open
            && gate.window_log2 == SMALL_RING_BYTES.ilog2()
            && window_log2(self.row.granted_to_send()) == SMALL_RING_BYTES.ilog2()
            && !self.is_pinned()
            && is_beyond(want, SMALL_RING_BYTES)
    }

    /// The receiver's head. It never goes back: a reader that a signal handler's nested one overtook may store an older one late.
    fn look_at_head(&self) -> u32 {
        let seen = self.state().head_seen.load(Relaxed);
        // Acquire: pairs with the Release in `ReceiveHalf::commit`; the room's old bytes have been copied.
        let head = self.words.head.load(Acquire);
        if head.wrapping_sub(seen).cast_signed() < 0 {
            return seen;
        }
        self.state().head_seen.store(head, Relaxed);
        head
    }

    /// Says how many bytes have gone by the kernel before the first of the epoch of `gate`.
    pub fn begin_epoch(&self, gate: Gate, kernel_position: u64) {
        let state = self.state();
        state.kernel_position.store(kernel_position, Relaxed);
        // Relaxed: the publish that follows releases it, and the receiver reads it only after that.
        self.words.switch_position.store(kernel_position, Relaxed);
        state.epoch.store(gate.epoch, Relaxed);
    }

    /// Bytes that have gone by the kernel, as far as we have counted.
    #[must_use]
    pub fn kernel_position(&self) -> u64 {
        self.state().kernel_position.load(Relaxed)
    }

    /// The gate's tail is ours to write: anything else than what we wrote is the peer's doing.
    fn check_tail(&self, gate: Gate) -> Result<(), Corrupt> {
        let state = self.state();
        if gate.tail == state.tail.load(Relaxed) {
            return Ok(());
        }
        if gate.tail == state.pending.load(Relaxed) {
            // A process that shares this end died between publishing and noting it.
            state.tail.store(gate.tail, Relaxed);
            return Ok(());
        }
        Err(Corrupt)
    }

    /// Publishes `bytes` that have been copied according to a plan. False: the gate has moved; plan again.
    #[inline]
    pub fn commit(&self, gate: Gate, bytes: u32) -> bool {
        let state = self.state();
        let tail = gate.tail.wrapping_add(bytes);
        state.pending.store(tail, Relaxed);
        // Who comes after us should we die here looks for itself.
        state.seen_gate.forget();
        let Ok(published) = self.words.gate.publish(gate, bytes) else {
            return false;
        };
        state.tail.store(tail, Relaxed);
        state.seen_gate.set(published);
        state
            .ring_bytes
            .store(state.ring_bytes.load(Relaxed) + u64::from(bytes), Relaxed);
        true
    }

    /// Leaves word of when the next publish was made: at `now` of the processor's counter, after which the tail is `tail`; and of when this
    /// process last used the kernel, for whatever connection.
    #[inline]
    pub fn stamp(&self, tail: u32, now: u64, elsewhere: u64) -> Publishes {
        let state = self.state();
        let head = state.head_seen.load(Relaxed);
        let stamps = &self.words.stamps;
        stamps.note_publish(&state.told_stamps, tail, head, now, elsewhere)
    }

    /// There was no publish after [`SendHalf::stamp`].
    pub fn take_stamp_back(&self, before: Publishes) {
        let stamps = &self.words.stamps;
        stamps.take_back(&self.state().told_stamps, before);
    }

    /// Leaves word of the processor on which this end sends, for a reader that would wait for it on the same one.
    #[inline]
    pub fn note_processor(&self, number: u32) {
        let told = &self.state().told_cpu;
        if told.load(Relaxed) != number {
            self.words.sender_cpu.store(number, Relaxed);
            told.store(number, Relaxed);
        }
    }

    /// After a publish: looks whether the receiver has taken what the stamps tell of, unless that was done less than `between` ago.
    #[inline]
    pub fn look_after_stamps(&self, now: u64, between: u64) {
        let state = self.state();
        if !state
            .told_stamps
            .is_oldest_taken(state.head_seen.load(Relaxed))
            && now.wrapping_sub(state.looked_at.load(Relaxed)) > between
        {
            state.looked_at.store(now, Relaxed);
            self.look_at_head();
        }
    }

    /// Leaves word of when bytes went by the kernel, where there are no older ones that the receiver has not taken.
    pub fn stamp_kernel(&self, now: u64) {
        let told = self.words.kernel_hint.load(Relaxed);
        if self.words.kernel_taken.load(Relaxed) >= told {
            self.words.stamps.note_kernel(now);
        }
    }

    /// The receiver may well have closed the gate meanwhile: the next plan looks at it.
    #[inline]
    pub fn doubt_gate(&self) {
        self.state().seen_gate.forget();
    }

    /// Closes the gate from our side, so that the following bytes go by the kernel.
    pub fn overflow(&self, gate: Gate) {
        self.doubt_gate();
        // A lost race means that the receiver closed it: the same outcome.
        let _ = self.words.gate.close(gate);
    }

    /// Closes the gate if it is open, whatever its tail.
    #[inline]
    pub fn leave(&self) {
        self.doubt_gate();
        if self.words.gate.load().open {
            self.words.gate.close_now();
        }
    }

    /// Whether the next bytes may go by the ring.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.words.gate.load().open
    }

    /// Begins a send by the kernel of about `bytes`; the lock may be dropped after it. The gate is closed first: kernel bytes
    /// between ring bytes of one epoch could not be told apart.
    #[inline]
    pub fn begin_kernel(&self, bytes: usize) {
        self.leave();
        self.state().raw.fetch_add(1, Acquire);
        let position = self.state().kernel_position.load(Relaxed);
        self.words
            .kernel_hint
            .store(position + bytes as u64, Relaxed);
    }

    /// Says that the direction ends: a reader that looks at the ring should look in the kernel.
    pub fn announce_end(&self) {
        self.words.kernel_hint.store(u64::MAX, Relaxed);
    }

    /// Whether the receiver has bytes of ours in the ring that it has not taken.
    #[must_use]
    pub fn unread(&self) -> u32 {
        let tail = self.state().tail.load(Relaxed);
        let bytes = tail.wrapping_sub(self.words.head.load(Acquire));
        bytes.min(self.segment.ring_bytes())
    }

    /// The processor on which the receiver last took bytes, as it says; zero when unknown.
    #[must_use]
    pub fn reader_processor(&self) -> u32 {
        self.words.receiver_cpu.load(Relaxed)
    }
}

/// How much of a message goes at once: what is short goes whole. Threads that send at the same time on one connection do not come between
/// its parts, as in the kernel.
fn whole_of(want: usize, window: u32) -> u32 {
    u32::try_from(want)
        .ok()
        .filter(|want| *want <= window.min(step_of(window)))
        .unwrap_or(1)
}

/// Whether a message goes by the kernel, which has it whole: of the small ring the reader would see a first part alone.
fn is_beyond(want: usize, window: u32) -> bool {
    window == SMALL_RING_BYTES && want > window as usize
}

/// The window of a gate, in bytes, if the agent has granted it.
pub(crate) fn window_of(gate: Gate, granted_log2: u32) -> Result<u32, Corrupt> {
    let largest = 1u32.checked_shl(window_log2(granted_log2)).unwrap_or(0);
    match 1u32.checked_shl(gate.window_log2) {
        Some(window) if is_window(window, largest) => Ok(window),
        _ => Err(Corrupt),
    }
}
