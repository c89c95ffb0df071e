//! When a direction's last messages were sent, so that a reader of several connections takes them in the order of their coming.
//!
//! The kernel reports the connections of a wait set in the order in which they became readable. A ring tells nobody that it has become so;
//! its sender leaves the time instead. Stamps are hints: a peer that writes nonsense makes its own events early or late, and nothing else.
//! All accesses are relaxed: the publish that follows releases what was noted before, to the load of the gate that finds its bytes.

// Nothing depends on them: no model needs to see them.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A time is a 32-bit count of so many ticks (2 to this power) of the processor's time stamp counter: some 20 ns.
const TICK_LOG2: u32 = 6;
/// What was longer ago than so many ticks of the counter is not told: half a second or so.
const RECENT: u64 = 1 << 30;

/// A moment as the stamps have it; zero: none.
fn stamp_of(clock: u64) -> u32 {
    ((clock >> TICK_LOG2) as u32).max(1)
}

/// The moment of a stamp, at most a few minutes before `now`.
fn moment_of(stamp: u32, now: u64) -> u64 {
    let age = stamp_of(now).wrapping_sub(stamp);
    // A sender whose counter is a little ahead of ours has sent just now.
    let age = if age > u32::MAX - (1 << 20) { 0 } else { age };
    now.saturating_sub(u64::from(age) << TICK_LOG2)
}

/// The notes of the last publishes.
pub type Publishes = [u64; 3];

/// Words in the sender's cache line; and its copy of them, in the end record.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Stamps {
    /// Publishes, newest first: the tail that each made, and its time in the low half. The last one is the oldest that the receiver has
    /// not taken, as far as the sender knows.
    published: [AtomicU64; 3],
    /// When the first of those bytes went by the kernel that the receiver has not taken.
    by_kernel: AtomicU32,
    /// When the sender's process last did something by the kernel, on any connection, that its peer may hear of.
    elsewhere: AtomicU32,
}

impl Stamps {
    /// Sender: whether the oldest publish of which there is a note has been taken by a receiver that has taken all up to `head`.
    #[must_use]
    #[inline]
    pub fn is_oldest_taken(&self, head: u32) -> bool {
        let oldest = self.published[2].load(Relaxed);
        oldest == 0 || head.wrapping_sub((oldest >> 32) as u32).cast_signed() >= 0
    }

    /// Sender, before it publishes: at `now` the tail becomes `tail`; the receiver has taken all up to `head`, if not more; the sender's
    /// process last used the kernel at `elsewhere`. Both times are of the processor's counter. `own` is the sender's copy of these words,
    /// which alone is read: the reader has their cache line. Returns what is to be [taken back](Self::take_back) if it does not publish.
    #[inline]
    pub fn note_publish(
        &self,
        own: &Stamps,
        tail: u32,
        head: u32,
        now: u64,
        elsewhere: u64,
    ) -> Publishes {
        let before = own.published.each_ref().map(|entry| entry.load(Relaxed));
        let [newest, second, third] = before;
        let oldest = if own.is_oldest_taken(head) {
            second
        } else {
            third
        };
        let entry = u64::from(tail) << 32 | u64::from(stamp_of(now));
        // The oldest first: a reader that looks in between misses none, where stores are seen in their order.
        for stamps in [self, own] {
            for (entry, publish) in stamps.published.iter().zip([entry, newest, oldest]).rev() {
                entry.store(publish, Relaxed);
            }
        }
        let recent = elsewhere != 0 && now.wrapping_sub(elsewhere) < RECENT;
        let elsewhere = if recent { stamp_of(elsewhere) } else { 0 };
        if own.elsewhere.load(Relaxed) != elsewhere {
            // The copy last: should we die in between, it is told again.
            self.elsewhere.store(elsewhere, Relaxed);
            own.elsewhere.store(elsewhere, Relaxed);
        }
        before
    }

    /// Sender, that could not publish: the notes are as they were `before`. The newest first, so that none is missing in between.
    #[cold]
    pub fn take_back(&self, own: &Stamps, before: Publishes) {
        for stamps in [self, own] {
            for (entry, publish) in stamps.published.iter().zip(before) {
                entry.store(publish, Relaxed);
            }
        }
    }

    /// Sender, of its copy: a new connection.
    pub fn reset(&self) {
        for entry in &self.published {
            entry.store(0, Relaxed);
        }
        self.by_kernel.store(0, Relaxed);
        self.elsewhere.store(0, Relaxed);
    }

    /// Sender: at `now` bytes go by the kernel, and there are no older ones.
    pub fn note_kernel(&self, now: u64) {
        self.by_kernel.store(stamp_of(now), Relaxed);
    }

    /// Receiver: when the first bytes behind `taken` came, of those up to `tail`, as far as the stamps reach back.
    #[must_use]
    pub fn first_publish(&self, taken: u32, tail: u32, now: u64) -> Option<u64> {
        let unread = tail.wrapping_sub(taken);
        let mut first: Option<(u32, u32)> = None;
        for entry in &self.published {
            let entry = entry.load(Relaxed);
            let (stamp, distance) = (entry as u32, ((entry >> 32) as u32).wrapping_sub(taken));
            let is_unread = stamp != 0 && distance != 0 && distance <= unread;
            if is_unread && first.is_none_or(|(before, _)| distance < before) {
                first = Some((distance, stamp));
            }
        }
        first.map(|(_, stamp)| moment_of(stamp, now))
    }

    /// Either: how long ago the last publish was that is noted, in ticks of the processor's counter, if that is less than `most`. Stamps
    /// start anew after some minutes: of the ages that the last one may have the longest is told.
    #[must_use]
    pub fn newest_age(&self, now: u64, most: u64) -> Option<u64> {
        const AROUND: u64 = 1 << (u32::BITS + TICK_LOG2);
        let stamp = self.published[0].load(Relaxed) as u32;
        let age = now.wrapping_sub(moment_of(stamp, now));
        (stamp != 0 && age < most).then(|| age + (most - 1 - age) / AROUND * AROUND)
    }

    /// Receiver: when the first bytes came by the kernel of those that are there.
    #[must_use]
    pub fn first_by_kernel(&self, now: u64) -> Option<u64> {
        let stamp = self.by_kernel.load(Relaxed);
        (stamp != 0).then(|| moment_of(stamp, now))
    }

    /// Receiver: whether the sender's process, before it published, did something by the kernel after `seen`.
    #[must_use]
    #[inline]
    pub fn used_kernel_after(&self, seen: u64, now: u64) -> bool {
        let stamp = self.elsewhere.load(Relaxed);
        stamp != 0 && moment_of(stamp, now).wrapping_sub(seen).cast_signed() > 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NOW: u64 = (1 << 50) + (1 << 30);
    const TICK: u64 = 1 << TICK_LOG2;

    fn stamps_of(publishes: &[(u32, u32, u64)]) -> Stamps {
        let [stamps, own] = [Stamps::default(), Stamps::default()];
        for (tail, head, age) in publishes {
            stamps.note_publish(&own, *tail, *head, NOW - age * TICK, 0);
        }
        stamps
    }

    #[test]
    fn the_first_unread_publish_counts() {
        assert_eq!(Stamps::default().first_publish(0, 100, NOW), None);
        let stamps = stamps_of(&[(10, 0, 50), (20, 10, 40), (30, 20, 30), (40, 20, 20)]);
        let first = |taken, tail| stamps.first_publish(taken, tail, NOW);
        assert_eq!(first(10, 40), Some(NOW - 40 * TICK));
        assert_eq!(first(25, 40), Some(NOW - 30 * TICK));
        assert_eq!(first(30, 40), Some(NOW - 20 * TICK));
        assert_eq!(first(30, 35), None);
        assert_eq!(first(40, 40), None);
    }

    #[test]
    fn the_oldest_stays_noted_until_it_is_taken() {
        let stamps = stamps_of(&[
            (10, 0, 50),
            (20, 0, 40),
            (30, 0, 30),
            (40, 0, 20),
            (50, 0, 10),
        ]);
        assert_eq!(stamps.first_publish(0, 50, NOW), Some(NOW - 50 * TICK));
        assert!(!stamps.is_oldest_taken(9));
        assert!(stamps.is_oldest_taken(10));
        assert_eq!(stamps.first_publish(40, 50, NOW), Some(NOW - 10 * TICK));
    }

    #[test]
    fn a_publish_that_failed_was_none() {
        let [stamps, own] = [Stamps::default(), Stamps::default()];
        stamps.note_publish(&own, 10, 0, NOW - 9 * TICK, 0);
        let before = stamps.note_publish(&own, 20, 0, NOW - 5 * TICK, 0);
        stamps.take_back(&own, before);
        stamps.note_publish(&own, 30, 0, NOW - 3 * TICK, 0);
        assert_eq!(stamps.first_publish(0, 30, NOW), Some(NOW - 9 * TICK));
        assert_eq!(stamps.first_publish(10, 30, NOW), Some(NOW - 3 * TICK));
    }

    #[test]
    fn what_the_sender_did_elsewhere_is_told_while_it_is_new() {
        let [stamps, own] = [Stamps::default(), Stamps::default()];
        stamps.note_publish(&own, 10, 0, NOW, NOW - 10 * TICK);
        assert!(stamps.used_kernel_after(NOW - 20 * TICK, NOW));
        assert!(!stamps.used_kernel_after(NOW - 5 * TICK, NOW));
        stamps.note_publish(&own, 20, 10, NOW, NOW - RECENT);
        assert!(!stamps.used_kernel_after(0, NOW));
    }

    #[test]
    fn nonsense_is_some_moment_before_now() {
        for stamp in [1, 77, u32::MAX / 2, u32::MAX - 5, u32::MAX] {
            assert!(moment_of(stamp, NOW) <= NOW);
            assert!(moment_of(stamp, 3) <= 3);
        }
    }
}
