//! The receiving half of an end: it reads in order, and decides when the ring is open.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use millrace_shm::board::{ReceiveState, Row, flags};
use millrace_shm::gate::Gate;
use millrace_shm::segment::{DirectionWords, SMALL_RING_BYTES, Segment, window_log2};

use crate::Corrupt;
use crate::send::window_of;

/// A sender that keeps its tail moving, and makes nothing ready, would keep a reader from sleeping, and so from its time-out.
const CLOSE_TRIES_MAX: u32 = 16;

/// Where the next bytes of the stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivePlan {
    /// `bytes` lie in the ring at `head`: copy, then [`ReceiveHalf::commit`].
    Ring {
        /// Free-running cursor of the first byte.
        head: u32,
        /// How many are there, at least one.
        bytes: u32,
        /// The part of the ring in use, in bytes.
        window: u32,
        /// The gate is open: nothing comes behind them by the kernel so far.
        open: bool,
    },
    /// The kernel's queue has the next `limit` bytes, on arrival; behind them come the ring's. Read no more than that.
    KernelUpTo {
        /// Bytes until the switch, at least one.
        limit: u64,
    },
    /// The gate is open and nothing is there; the kernel may know of an ending.
    Empty {
        /// The gate that the plan rests on.
        gate: Gate,
    },
    /// The gate is closed and the ring drained: the next bytes come by the kernel.
    Kernel,
}

/// A view of the receiving half; its lock is held while it exists, except where said.
#[derive(Debug)]
pub struct ReceiveHalf<'a> {
    row: &'a Row,
    words: &'a DirectionWords,
    segment: &'a Segment,
}

impl<'a> ReceiveHalf<'a> {
    /// The half that reads `direction` of `segment`.
    #[must_use]
    #[inline]
    pub fn new(row: &'a Row, segment: &'a Segment, direction: usize) -> ReceiveHalf<'a> {
        ReceiveHalf {
            row,
            words: segment.words(direction),
            segment,
        }
    }

    fn state(&self) -> &ReceiveState {
        &self.row.receive
    }

    /// Says where the next bytes are.
    ///
    /// # Errors
    /// [`Corrupt`] when the shared words cannot be what an honest peer left.
    #[inline]
    pub fn plan(&self) -> Result<ReceivePlan, Corrupt> {
        let state = self.state();
        let gate = self.words.gate.load();
        let head = state.head.load(Relaxed);
        let bytes = gate.tail.wrapping_sub(head);
        if bytes == 0 {
            return Ok(if gate.open {
                ReceivePlan::Empty { gate }
            } else {
                ReceivePlan::Kernel
            });
        }
        let window = window_of(gate, self.row.granted_to_receive())?;
        if bytes > window || !self.segment.reach(window) {
            return Err(Corrupt);
        }
        let switch = self.words.switch_position.load(Relaxed);
        match switch.checked_sub(state.kernel_position.load(Relaxed)) {
            Some(0) => Ok(ReceivePlan::Ring {
                head,
                bytes,
                window,
                open: gate.open,
            }),
            Some(limit) => Ok(ReceivePlan::KernelUpTo { limit }),
            None => Err(Corrupt),
        }
    }

    /// Whether the ring has bytes that come next, and at which tail. Needs no lock: the answer is only as good as its moment.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> Option<u32> {
        let tail = self.arrived()?;
        self.is_reached().then_some(tail)
    }

    /// As [`ReceiveHalf::ready`], up to where what came by the ring had been taken then: an honest sender's bytes behind that stay
    /// ready until they are taken.
    #[inline]
    #[must_use]
    pub fn ready_from(&self) -> Option<u32> {
        let head = self.state().head.load(Relaxed);
        let arrived = self.words.gate.load().tail != head;
        (arrived && self.is_reached()).then_some(head)
    }

    /// Whether the kernel's bytes before those in the ring have been taken.
    #[inline]
    fn is_reached(&self) -> bool {
        let position = self.state().kernel_position.load(Relaxed);
        self.words.switch_position.load(Relaxed) <= position
    }

    /// Whether the ring has bytes, whatever comes before them, and at which tail. Needs no lock.
    #[inline]
    #[must_use]
    pub fn arrived(&self) -> Option<u32> {
        let tail = self.words.gate.load().tail;
        (tail != self.state().head.load(Relaxed)).then_some(tail)
    }

    /// What lies in the ring, whatever comes before it: the cursor of its first byte, how many there are, and the part of
    /// the ring in use. None: nothing, or not what an honest peer left.
    #[must_use]
    pub fn in_ring(&self) -> Option<(u32, u32, u32)> {
        let gate = self.words.gate.load();
        let head = self.state().head.load(Relaxed);
        let bytes = gate.tail.wrapping_sub(head);
        let window = window_of(gate, self.row.granted_to_receive()).ok()?;
        (bytes != 0 && bytes <= window && self.segment.reach(window))
            .then_some((head, bytes, window))
    }

    /// Bytes up to the end of those in the ring: these, and the kernel's that come before them. Zero: nothing is in the ring.
    #[must_use]
    pub fn reach(&self) -> u64 {
        let Some((_, bytes, _)) = self.in_ring() else {
            return 0;
        };
        let position = self.state().kernel_position.load(Relaxed);
        let switch = self.words.switch_position.load(Relaxed);
        switch
            .saturating_sub(position)
            .saturating_add(u64::from(bytes))
    }

    /// Bytes in the ring that have not been read.
    #[must_use]
    pub fn unread(&self) -> u32 {
        let bytes = self
            .words
            .gate
            .load()
            .tail
            .wrapping_sub(self.state().head.load(Relaxed));
        bytes.min(self.segment.ring_bytes())
    }

    /// As [`ReceiveHalf::unread`], of what a reader gets behind `in_kernel` bytes that the kernel has: nothing, while some of those that
    /// come before the ring's are still under way.
    #[must_use]
    pub fn unread_behind(&self, in_kernel: u64) -> u32 {
        let position = self.state().kernel_position.load(Relaxed);
        let switch = self.words.switch_position.load(Relaxed);
        if switch.saturating_sub(position) > in_kernel {
            return 0;
        }
        self.unread()
    }

    /// Whether the sender says that the kernel has, or will soon have, bytes for us.
    #[inline]
    #[must_use]
    pub fn kernel_hinted(&self) -> bool {
        self.words.kernel_hint.load(Relaxed) > self.state().kernel_position.load(Relaxed)
    }

    /// When, of the processor's counter, the first bytes behind `reported` came (None: the first unread ones), as far as the sender has
    /// told.
    #[must_use]
    pub fn came_by_ring(&self, reported: Option<u32>, now: u64) -> Option<u64> {
        let taken = reported.unwrap_or(self.state().head.load(Relaxed));
        self.words.stamps.first_publish(taken, self.tail(), now)
    }

    /// When the first of the bytes came that the kernel has, if it has some, as far as the sender has told.
    #[must_use]
    pub fn came_by_kernel(&self, now: u64) -> Option<u64> {
        self.kernel_hinted()
            .then(|| self.words.stamps.first_by_kernel(now))?
    }

    /// Whether bytes lie in the ring that the sender wrote after it had used the kernel elsewhere, and that after `seen`.
    #[inline]
    #[must_use]
    pub fn follows_kernel(&self, seen: u64, now: u64) -> bool {
        self.words.stamps.used_kernel_after(seen, now) && !self.is_drained()
    }

    /// Takes `bytes` that have been copied from `head` on. False: somebody else took them; plan again.
    #[inline]
    pub fn commit(&self, head: u32, bytes: u32) -> bool {
        let state = self.state();
        let next = head.wrapping_add(bytes);
        // AcqRel: the copies come before the head moves; losers see the winner's head.
        if state
            .head
            .compare_exchange(head, next, AcqRel, Acquire)
            .is_err()
        {
            return false;
        }
        // Release: pairs with the Acquire in `SendHalf::look_at_head`; the copies come before the room they make.
        self.words.head.store(next, Release);
        let mut released = next;
        // A signal handler's nested reader may have released more in between, which the store took back.
        while state.head.load(Relaxed) != released {
            released = state.head.load(Acquire);
            self.words.head.store(released, Release);
        }
        state
            .ring_bytes
            .store(state.ring_bytes.load(Relaxed) + u64::from(bytes), Relaxed);
        true
    }

    /// Opens the gate if the ring is drained and nobody sleeps.
    /// True: the gate is open now. The caller has made sure that no wait set that contains us sleeps.
    pub fn try_open(&self) -> bool {
        let gate = self.words.gate.load();
        if gate.open {
            return true;
        }
        let state = self.state();
        let pinned =
            self.row.identity.flags.load(Relaxed) & (flags::RECEIVE_PINNED | flags::CORRUPT) != 0;
        // Acquire: pairs with the Release of `end_kernel`; that reader's kernel position is visible.
        if pinned || state.sleepers.load(Acquire) != 0 || gate.tail != state.head.load(Relaxed) {
            return false;
        }
        state.opened_at.store(gate.tail, Relaxed);
        // A reader that died between taking and releasing has left its room taken; opening publishes this store.
        self.words.head.store(gate.tail, Relaxed);
        self.words.gate.open(gate, self.window_log2()).is_ok()
    }

    /// The largest window that the agent has granted and that this process can map.
    fn window_log2(&self) -> u32 {
        // The sender's grant came before ours.
        let granted = window_log2(self.row.granted_to_receive());
        if self.segment.reach(1 << granted) {
            granted
        } else {
            SMALL_RING_BYTES.ilog2()
        }
    }

    /// After a commit that may have drained the ring: uses a larger window from now on, if one has been granted since it was opened.
    #[inline]
    pub fn widen(&self, window: u32) {
        if self.row.granted_to_receive() > window.ilog2() {
            self.widen_now();
        }
    }

    #[cold]
    fn widen_now(&self) {
        let gate = self.words.gate.load();
        if gate.open && gate.tail == self.state().head.load(Relaxed) {
            // A lost race: the sender published, or the gate was closed. There will be another chance.
            let _ = self.words.gate.open(gate, self.window_log2());
        }
    }

    /// Closes the gate, unless bytes came since the ring was last seen drained by `seen_tail`.
    /// Needs no lock. True: the gate is closed now, and was so at that tail.
    pub fn close(&self, seen_tail: u32) -> bool {
        let gate = self.words.gate.load();
        if gate.tail != seen_tail {
            return false;
        }
        if !gate.open {
            return true;
        }
        if self.words.gate.close(gate).is_err() {
            // Bytes came, or the sender closed it.
            let now = self.words.gate.load();
            return now.tail == seen_tail && !now.open;
        }
        true
    }

    /// As [`ReceiveHalf::close`], in the `tries`th try of one call. After some the gate is closed wherever its tail is, and bytes behind
    /// the kernel's are no reason to stay awake.
    pub fn close_in(&self, tries: u32, seen_tail: u32) -> bool {
        if self.close(seen_tail) {
            return true;
        }
        if tries > CLOSE_TRIES_MAX {
            self.leave();
        }
        tries > CLOSE_TRIES_MAX && self.ready().is_none()
    }

    /// Whether nothing has come by the ring since it was last opened, up to `tail`.
    #[must_use]
    pub fn was_idle(&self, tail: u32) -> bool {
        tail == self.state().opened_at.load(Relaxed)
    }

    /// Throws away what lies in the ring, as the kernel does with its queue when a connection is dissolved.
    pub fn discard(&self) {
        self.leave();
        let tail = self.words.gate.load().tail;
        self.state().head.store(tail, Relaxed);
    }

    /// Closes the gate for good or for now, whatever is in the ring.
    pub fn leave(&self) {
        if self.words.gate.load().open {
            self.words.gate.close_now();
        }
    }

    /// The tail as the sender last published it.
    #[must_use]
    #[inline]
    pub fn tail(&self) -> u32 {
        self.words.gate.load().tail
    }

    /// Up to where what came by the ring has been taken.
    #[must_use]
    pub fn head(&self) -> u32 {
        self.state().head.load(Relaxed)
    }

    /// Whether the sender may publish now.
    #[must_use]
    #[inline]
    pub fn is_open(&self) -> bool {
        self.words.gate.load().open
    }

    /// Whether bytes lie in the ring, readable or still behind the kernel's.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.words.gate.load().tail == self.state().head.load(Relaxed)
    }

    /// The processor on which the sender last published, as it says; zero when unknown.
    #[must_use]
    pub fn sender_processor(&self) -> u32 {
        self.words.sender_cpu.load(Relaxed)
    }
}
