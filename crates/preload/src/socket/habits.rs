//! How the program waits for a connection's bytes.
//!
//! What lies in a ring is found by whoever waits in a function of ours. A program may wait by a system-call instruction of its own, which
//! no library sees (Zig's standard library, Rust's rustix), and take the bytes by the C library's functions: for that one they must be the
//! kernel's. So a gate opens only where the program was seen to wait for the connection: in receiving calls, in `poll` or `select`, by a
//! set that it waits on, or by looking again and again.

use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use libc::c_int;
use millrace_shm::board::flags;

use super::Socket;
use crate::{client, spin, thread};

/// In receiving calls that wait.
const IN_CALLS: u8 = 1;
/// By `poll` or `select`, or by a set; or in receiving calls, after one that does not wait found nothing, or less than it has room for.
const BESIDE: u8 = 2;
/// It looks again and again.
const LOOKS: u8 = 4;

/// So many calls slept before that is how the program waits, and none found bytes after a sleep elsewhere. Who sleeps elsewhere may have
/// to wait in a call, too, for the rest of a message.
const WAITS_MIN: u8 = 3;
/// In less nobody sleeps.
const SLEEP_NS: u64 = 2_000;
/// So often, and for so long of a processor's time, it has looked in vain again and not slept, before that is how it waits. Who only looks
/// for a while before each sleep does not look so long, and who looks once after each message not so often.
const LOOKS_MIN: u32 = 50_000;
const LOOKING_NS: u64 = 100_000_000;
/// Who takes longer for each look does something else between.
const LOOK_NS: u64 = 8_000;
/// After so many looks, each time, that is looked into.
const LOOKS_AT_ONCE: u32 = 1_000;

/// How one thread looks for something, call by call, without waiting for it. Where several do, each begins anew.
#[derive(Debug, Default)]
pub(crate) struct Looking {
    /// The last call found nothing, or less than it has room for.
    was_in_vain: AtomicBool,
    /// Looks in vain after others in vain, and the processor's time that the thread had had after the first [`LOOKS_AT_ONCE`].
    looks: AtomicU32,
    since_ns: AtomicU64,
    /// When the last call ended, of which thread, and how often that had slept before.
    last_at: AtomicU64,
    thread: AtomicU32,
    sleeps: AtomicU64,
}

impl Looking {
    pub(crate) fn reset(&self) {
        self.looks.store(0, Relaxed);
        self.thread.store(0, Relaxed);
        self.end(false);
    }

    /// A call found nothing. True: that is how the thread waits.
    #[must_use]
    pub(crate) fn look_in_vain(&self) -> bool {
        if self.has_slept(spin::clock()) != Some(false) {
            self.looks.store(0, Relaxed);
        }
        // The first one after it found something is no look again.
        let is_again = self.was_in_vain.load(Relaxed);
        let looks = self.looks.load(Relaxed).saturating_add(u32::from(is_again));
        self.looks.store(looks, Relaxed);
        self.end(true);
        is_again && looks.is_multiple_of(LOOKS_AT_ONCE) && self.has_looked_for_long(looks)
    }

    /// Whether so many looks are enough, and what they took. They are counted anew where there was more between them than looks.
    #[cold]
    fn has_looked_for_long(&self, looks: u32) -> bool {
        let now_ns = spin::time_of_thread().unwrap_or(u64::MAX);
        if looks == LOOKS_AT_ONCE {
            self.since_ns.store(now_ns, Relaxed);
            return false;
        }
        let looking_ns = now_ns.saturating_sub(self.since_ns.load(Relaxed));
        if looking_ns > u64::from(looks) * LOOK_NS {
            self.looks.store(0, Relaxed);
            return false;
        }
        looks >= LOOKS_MIN && looking_ns > LOOKING_NS
    }

    /// A call found something.
    pub(crate) fn find(&self) {
        self.end(false);
    }

    /// A call ends.
    fn end(&self, was_in_vain: bool) {
        self.was_in_vain.store(was_in_vain, Relaxed);
        self.last_at.store(spin::clock(), Relaxed);
    }

    /// Whether this thread has slept between the last call and the one that began then. None: another thread made that, which may have
    /// waited for it, or nobody says.
    fn has_slept(&self, started: u64) -> Option<bool> {
        let pause = started.wrapping_sub(self.last_at.load(Relaxed));
        if pause < spin::cycles(SLEEP_NS) && self.thread.load(Relaxed) == thread::id() {
            return Some(false);
        }
        self.note_sleeps(spin::sleeps_of_thread())
    }

    /// So often this thread has slept. Whether it has done so since that was noted last.
    fn note_sleeps(&self, sleeps: Option<u64>) -> Option<bool> {
        let was_here = self.thread.swap(thread::id(), Relaxed) == thread::id();
        let changed = self.sleeps.swap(sleeps?, Relaxed) != sleeps?;
        was_here.then_some(changed)
    }
}

/// What was seen of it. Several threads may receive at once: what they note may get mixed, and they have to show it again.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    ways: AtomicU8,
    /// Calls that slept, at most [`WAITS_MIN`].
    waits: AtomicU8,
    /// Of these, those after a look in vain.
    waits_after_looks: AtomicU8,
    looking: Looking,
}

impl Habits {
    /// Nothing is known.
    pub(crate) fn reset(&self) {
        let assumed = if client::is_eager() { BESIDE } else { 0 };
        self.ways.store(assumed, Relaxed);
        self.forget_waits();
        self.looking.reset();
    }

    /// Whether a gate may be opened at the end of a call, which would have waited for bytes, if `waits`.
    pub(crate) fn allow_ring(&self, waits: bool) -> bool {
        let enough = if waits { IN_CALLS } else { 0 } | BESIDE | LOOKS;
        self.ways.load(Relaxed) & enough != 0
    }

    /// The program waits for it in `poll` or `select`, or by a set.
    #[inline]
    pub(crate) fn note_wait_beside(&self) {
        self.note(BESIDE);
    }

    #[inline]
    pub(crate) fn is_waited_for_beside(&self) -> bool {
        self.ways.load(Relaxed) & BESIDE != 0
    }

    fn note(&self, way: u8) {
        if self.ways.load(Relaxed) & way != way {
            self.ways.fetch_or(way, AcqRel);
        }
    }

    /// Before a call that waits: how often the thread has slept, if there is something to learn from that.
    #[inline]
    pub(crate) fn ask_for_waits(&self) -> Option<u64> {
        let ways = self.ways.load(Relaxed);
        let was_in_vain = self.looking.was_in_vain.load(Relaxed);
        let asks = ways & BESIDE == 0 && (ways & IN_CALLS == 0 || was_in_vain);
        asks.then(spin::sleeps_of_thread).flatten()
    }

    /// It got bytes. There was nothing when it began, as far as is known.
    pub(crate) fn note_call(&self, slept_before: u64) {
        let has_slept_elsewhere = self.looking.note_sleeps(Some(slept_before));
        let slept = spin::sleeps_of_thread();
        if slept == Some(slept_before) {
            if has_slept_elsewhere != Some(false) {
                self.forget_waits();
            }
            return self.looking.end(false);
        }
        let more = |count: &AtomicU8| {
            let now = count.load(Relaxed).saturating_add(1).min(WAITS_MIN);
            count.store(now, Relaxed);
            now == WAITS_MIN
        };
        if more(&self.waits) {
            self.note(IN_CALLS);
        }
        if self.looking.was_in_vain.load(Relaxed) && more(&self.waits_after_looks) {
            self.note(BESIDE);
        }
        self.looking.note_sleeps(slept);
        self.looking.end(false);
    }

    /// A call that began then got bytes for which it did not wait, and less than it has room for, if `is_short`.
    pub(crate) fn note_found(&self, started: u64, is_short: bool) {
        if self.looking.has_slept(started) != Some(false) {
            self.forget_waits();
        }
        self.looking.end(is_short);
    }

    /// After that the call waited for more.
    pub(crate) fn note_rest(&self) {
        self.looking.note_sleeps(spin::sleeps_of_thread());
        self.looking.end(false);
    }

    /// A call that does not wait found nothing.
    pub(crate) fn note_nothing(&self) {
        if self.ways.load(Relaxed) & (LOOKS | BESIDE) == 0 && self.looking.look_in_vain() {
            self.note(LOOKS);
        }
    }

    /// The waits that were seen count for nothing.
    #[inline]
    pub(crate) fn forget_waits(&self) {
        if self.waits.load(Relaxed) != 0 {
            self.waits.store(0, Relaxed);
            self.waits_after_looks.store(0, Relaxed);
        }
    }

    /// Whether the program waits in calls alone.
    #[inline]
    pub(crate) fn are_in_calls_alone(&self) -> bool {
        self.ways.load(Relaxed) == IN_CALLS
    }

    /// It does so no more: a call that does not wait had less than it has room for.
    pub(crate) fn end_calls(&self) {
        self.ways.fetch_and(!IN_CALLS, AcqRel);
        self.forget_waits();
        self.looking.end(true);
    }
}

impl Socket {
    /// Tells humans why the gate is closed: the program was not seen to wait.
    #[inline]
    pub(crate) fn tell_unseen(&self, is_unseen: bool) {
        let word = &self.row().identity.flags;
        let is_told = word.load(Relaxed) & flags::UNSEEN != 0;
        if is_told == is_unseen {
            return;
        }
        if is_unseen {
            word.fetch_or(flags::UNSEEN, Relaxed);
        } else {
            word.fetch_and(!flags::UNSEEN, Relaxed);
        }
    }

    /// No call will wait any more. What follows may be a wait that is not seen: where the gate is open for calls that wait, it is open no
    /// more.
    pub(crate) fn stop_waiting_in_calls(&'static self, fd: c_int) {
        if self.habits.are_in_calls_alone() {
            self.habits.end_calls();
            self.draw_back(fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn wait(habits: &Habits) {
        if let Some(slept_before) = habits.ask_for_waits() {
            sleep();
            habits.note_call(slept_before);
        }
    }

    fn sleep() {
        std::thread::sleep(Duration::from_micros(100));
    }

    #[test]
    fn some_waits_in_calls_allow_it_after_such_calls() {
        let habits = Habits::default();
        for _ in 0..WAITS_MIN {
            assert!(!habits.allow_ring(true));
            wait(&habits);
            habits.note_found(spin::clock(), false);
        }
        assert!(habits.allow_ring(true) && !habits.allow_ring(false));
        assert!(habits.ask_for_waits().is_none());
        habits.end_calls();
        wait(&habits);
        assert!(!habits.allow_ring(true));
    }

    #[test]
    fn bytes_after_a_sleep_elsewhere_take_it_back() {
        let habits = Habits::default();
        for _ in 0..10 {
            sleep();
            habits.note_found(spin::clock(), false);
            wait(&habits);
            assert!(!habits.allow_ring(true));
        }
    }

    #[test]
    fn waits_after_looks_in_vain_allow_it_after_all_calls() {
        let habits = Habits::default();
        for _ in 0..WAITS_MIN {
            assert!(!habits.allow_ring(false));
            habits.note_nothing();
            wait(&habits);
        }
        assert!(habits.allow_ring(false) && !habits.are_in_calls_alone());
    }

    #[test]
    fn waits_after_less_than_there_was_room_for_do_so_too() {
        let habits = Habits::default();
        for _ in 0..=WAITS_MIN {
            wait(&habits);
            habits.note_found(spin::clock(), true);
            habits.end_calls();
        }
        // The first one came after nothing.
        assert!(!habits.allow_ring(false));
        let habits = Habits::default();
        for _ in 0..=WAITS_MIN {
            habits.note_found(spin::clock(), true);
            wait(&habits);
        }
        assert!(habits.allow_ring(false));
    }

    #[test]
    fn who_looks_once_after_each_message_does_not_wait_so() {
        let habits = Habits::default();
        for _ in 0..LOOKS_MIN * 4 {
            habits.note_found(spin::clock(), false);
            habits.note_nothing();
        }
        assert!(!habits.allow_ring(false));
    }

    #[test]
    fn who_looks_for_long_and_does_not_sleep_waits_so() {
        let habits = Habits::default();
        let look_for = |ns: u64| {
            let end = spin::time_of_thread().unwrap() + ns;
            while spin::time_of_thread().unwrap() < end {
                (0..100).for_each(|_| habits.note_nothing());
            }
        };
        // Not for so long.
        for _ in 0..3 {
            look_for(LOOKING_NS / 2);
            sleep();
        }
        assert!(!habits.allow_ring(false));
        look_for(LOOKING_NS * 2);
        assert!(habits.allow_ring(false));
    }
}
