//! Streams of small messages that nobody answers.
//!
//! Every look at a gate takes its cache line away from the sender, who pays for that with his next message more than for the rest of it.
//! A reader who answers nothing keeps nobody waiting: it lets some messages gather before it looks again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use millrace_shm::board::SendState;

use crate::spin::{clock, cycles};

/// So many receiving calls without a send between them are a stream's.
const STREAM_CALLS: u32 = 16;
/// Between looks at a stream, in nanoseconds.
const REST_NS: u64 = 1_000;

/// What a connection's receiving calls have been like.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// Calls since this end last sent.
    unanswered: AtomicU32,
    /// How many messages this end had sent by then.
    sent: AtomicU64,
    /// When, of [`clock`], a stream's ring was last left empty; zero: it was not.
    emptied_at: AtomicU64,
}

impl Gathering {
    /// For a new connection.
    pub(crate) fn reset(&self) {
        self.unanswered.store(0, Relaxed);
    }

    /// A receiving call got something from the ring, and perhaps all that there was.
    #[inline]
    pub(crate) fn note(&self, send: &SendState, took_all: bool) {
        let sent = send.ring_messages.load(Relaxed) + send.kernel_messages.load(Relaxed);
        // Not by a swap, which waits for the cache line of the head.
        if self.sent.load(Relaxed) != sent {
            self.sent.store(sent, Relaxed);
            self.unanswered.store(0, Relaxed);
            return;
        }
        let calls = self.unanswered.load(Relaxed).saturating_add(1);
        self.unanswered.store(calls, Relaxed);
        if calls > STREAM_CALLS {
            self.emptied_at
                .store(if took_all { clock() } else { 0 }, Relaxed);
        }
    }

    /// Before a call that may wait.
    #[inline]
    pub(crate) fn rest(&self) {
        if self.unanswered.load(Relaxed) > STREAM_CALLS {
            let emptied_at = self.emptied_at.load(Relaxed);
            while clock().wrapping_sub(emptied_at) < cycles(REST_NS) {
                std::hint::spin_loop();
            }
        }
    }
}
