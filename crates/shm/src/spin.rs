//! How long to look at the ring before sleeping.
//!
//! A spin is worth it when bytes come within the budget. Each place that waits keeps a score of how that went: spins that
//! paid and sleeps that were shorter than a spin raise it, spins in vain lower it, and at zero there is no spinning.
//!
//! A thread that spins uses up its share of the processor, and loses the quick wake-up that the scheduler grants to sleepers. Where others
//! want the processor too, that costs far more than spinning can win. So when the processor is taken away in a spin,
//! the whole process stops
//! spinning for a while, and for twice as long when it happens again soon after.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::sys;

const SCORE_MAX: i32 = 16;
const SCORE_START: i32 = 6;
const HIT: i32 = 2;
const MISS: i32 = -2;
const SCORE_MIN: i32 = -16;
/// The budget is for so many connections…
const CONNECTIONS_PER_BUDGET: usize = 10;
/// …and grows with their number up to this.
const CONNECTIONS_MAX: usize = 50;
/// A spin in which so much time went missing was interrupted, in nanoseconds: time that does not count as spinning.
const GAP_NS: u64 = 20_000;
/// So much at once, in nanoseconds, may have been the time slice of somebody who wants the processor as much as we do.
const TIME_SLICE_NS: u64 = 1_000_000;
/// Two of them within this time, in nanoseconds, were.
const RECENT_NS: u64 = 100_000_000;
/// First and longest time without spinning after that, in nanoseconds.
const PAUSE_MIN_NS: u64 = 20_000_000;
const PAUSE_MAX_NS: u64 = 2_000_000_000;

static BUDGET_US: AtomicU32 = AtomicU32::new(50);
/// Until when, of [`clock`], nobody in this process spins; zero when spinning is allowed.
static PAUSED_UNTIL: AtomicU64 = AtomicU64::new(0);
/// When, of [`clock`], a time slice last went missing.
static LAST_LOSS: AtomicU64 = AtomicU64::new(0);
/// How long the last pause was, in nanoseconds.
static PAUSE_NS: AtomicU64 = AtomicU64::new(0);

/// What belongs to one thread. Zeros are its beginning.
#[derive(Debug)]
pub struct Local {
    /// This thread has sent to a reader that ran on this processor last: that has work now, and no other place. Until the thread next
    /// waits for bytes, which it then does asleep.
    is_awaited: Cell<bool>,
    /// Times that the scheduler had taken the processor away, at the last question.
    preemptions: Cell<libc::c_long>,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            is_awaited: Cell::new(false),
            preemptions: Cell::new(0),
        }
    };
}
/// Where a library has it that does not want the compiler's variables of threads; null: it is [`LOCAL`].
static OWN: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// From now on `own` says where the calling thread's is. Before anything waits here.
pub fn keep_locals_at(own: fn() -> &'static Local) {
    OWN.store(own as *mut (), Relaxed);
}

#[inline]
fn with_local<T>(work: impl FnOnce(&Local) -> T) -> T {
    let own = OWN.load(Relaxed);
    if own.is_null() {
        return LOCAL.with(work);
    }
    // SAFETY: only `keep_locals_at` stores there.
    let own: fn() -> &'static Local = unsafe { std::mem::transmute(own) };
    work(own())
}

/// Something was sent to a reader that ran last on processor `reader`.
#[inline]
pub fn note_reader(reader: u32) {
    if reader == processor() {
        with_local(|local| local.is_awaited.set(true));
    }
}

/// None: the kernel, or a filter, refuses to say.
fn usage_of_thread() -> Option<libc::rusage> {
    // SAFETY: integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let arguments = [
        libc::RUSAGE_THREAD as usize,
        &raw mut usage as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: the kernel fills in `usage`, which lives long enough.
    let answer = unsafe { sys::call(libc::SYS_getrusage, arguments) };
    (answer == 0).then_some(usage)
}

/// How often this thread has left the processor to wait for something. None: nobody says.
#[must_use]
pub fn sleeps_of_thread() -> Option<u64> {
    usage_of_thread().map(|usage| usage.ru_nvcsw.cast_unsigned())
}

/// For how long, in nanoseconds, this thread has had a processor, to some milliseconds. None: nobody says.
#[must_use]
pub fn time_of_thread() -> Option<u64> {
    let usage = usage_of_thread()?;
    let ns = |time: libc::timeval| time.tv_sec * 1_000_000_000 + time.tv_usec * 1_000;
    Some((ns(usage.ru_utime) + ns(usage.ru_stime)).cast_unsigned())
}

/// Whether the scheduler has taken the processor away from this thread since the last question.
fn was_preempted() -> bool {
    let preemptions = usage_of_thread().map_or(0, |usage| usage.ru_nivcsw);
    with_local(|local| local.preemptions.replace(preemptions)) != preemptions
}

/// A time slice went missing in a spin. True: it is not the first, and spinning has to pause.
#[cold]
fn lost_slice(now: u64) -> bool {
    if !was_preempted() {
        return false;
    }
    let last = LAST_LOSS.swap(now, Relaxed);
    let again = last != 0 && now.wrapping_sub(last) < cycles(RECENT_NS);
    if again {
        pause(now);
    }
    again
}

/// Nobody in this process spins for a while.
fn pause(now: u64) {
    let last_ns = PAUSE_NS.load(Relaxed);
    let soon_after = now.wrapping_sub(PAUSED_UNTIL.load(Relaxed)) < cycles(last_ns * 4);
    let next_ns = if soon_after {
        (last_ns * 2).clamp(PAUSE_MIN_NS, PAUSE_MAX_NS)
    } else {
        PAUSE_MIN_NS
    };
    PAUSE_NS.store(next_ns, Relaxed);
    PAUSED_UNTIL.store(now.wrapping_add(cycles(next_ns)), Relaxed);
}

fn is_paused(now: u64) -> bool {
    PAUSED_UNTIL.load(Relaxed).wrapping_sub(now).cast_signed() > 0
}

/// Sets how long to look, in microseconds; zero turns spinning off.
pub fn set_budget_us(budget_us: u32) {
    BUDGET_US.store(budget_us.min(10_000), Relaxed);
}

/// A place that waits.
#[derive(Debug)]
pub struct Spinner(AtomicI32);

impl Default for Spinner {
    fn default() -> Spinner {
        Spinner::new()
    }
}

impl Spinner {
    /// One that has no experience yet.
    #[must_use]
    pub const fn new() -> Spinner {
        Spinner(AtomicI32::new(SCORE_START))
    }

    /// Forgets all experience.
    pub fn reset(&self) {
        self.0.store(SCORE_START, Relaxed);
    }

    /// Whether spinning has been worth it, and is allowed now.
    pub fn is_willing(&self) -> bool {
        self.0.load(Relaxed) > 0 && !is_paused(clock())
    }

    /// As [`Spinner::begin`], to wait for bytes; not while a reader waits for this processor.
    #[inline]
    pub fn begin_for_bytes(&self, limit_ns: u64, connections: usize) -> Option<Spin<'_>> {
        if with_local(|local| local.is_awaited.take()) {
            return None;
        }
        self.begin(limit_ns, connections)
    }

    /// A spin to make now, if it is worth it; not longer than `limit_ns`. A sleep would close the gates of `connections`, each of which
    /// then costs a message by the kernel: the more they are, the longer the spin.
    #[inline]
    pub fn begin(&self, limit_ns: u64, connections: usize) -> Option<Spin<'_>> {
        if limit_ns == 0 || !self.is_willing() {
            return None;
        }
        let budget_ns = u64::from(BUDGET_US.load(Relaxed)) * 1000;
        let factor = connections.clamp(CONNECTIONS_PER_BUDGET, CONNECTIONS_MAX) as u64;
        let budget_ns = (budget_ns * factor / CONNECTIONS_PER_BUDGET as u64).min(limit_ns);
        if budget_ns == 0 {
            return None;
        }
        let now = clock();
        Some(Spin {
            spinner: self,
            started: now,
            last: now,
            budget: cycles(budget_ns),
            prolonged: now,
        })
    }

    fn adjust(&self, by: i32) {
        let score = self.0.load(Relaxed);
        self.0
            .store((score + by).clamp(SCORE_MIN, SCORE_MAX), Relaxed);
    }

    /// Says that a sleep began at `started` (of [`clock`]) and ended with something to do.
    #[inline]
    pub fn slept(&self, started: u64) {
        if clock().wrapping_sub(started) < cycles(u64::from(BUDGET_US.load(Relaxed)) * 1000) {
            self.adjust(1);
        }
    }
}

/// One spin under way.
#[derive(Debug)]
pub struct Spin<'a> {
    spinner: &'a Spinner,
    started: u64,
    last: u64,
    budget: u64,
    /// Since when the budget counts: later than the start where time went missing or there was progress.
    prolonged: u64,
}

impl Spin<'_> {
    /// Rests a moment. False: the budget is used up.
    #[inline]
    pub fn go_on(&mut self) -> bool {
        std::hint::spin_loop();
        let now = clock();
        let gap = now.wrapping_sub(self.last);
        if gap > cycles(GAP_NS) {
            if gap > cycles(TIME_SLICE_NS) && lost_slice(now) {
                return false;
            }
            self.prolonged = self.prolonged.wrapping_add(gap);
        }
        self.last = now;
        if now.wrapping_sub(self.prolonged) > self.budget {
            self.spinner.adjust(MISS);
            return false;
        }
        true
    }

    /// There is hope: the budget begins again, unless the spin has lasted `limit` cycles.
    pub fn prolong(&mut self, limit: u64) {
        if self.age() < limit {
            self.prolonged = self.last;
        }
    }

    /// Something came.
    #[inline]
    pub fn hit(&self) {
        self.spinner.adjust(HIT);
    }

    /// Cycles since the budget began to count: without the time that went missing, and what came before there was hope.
    #[inline]
    pub fn spent(&self) -> u64 {
        self.last.wrapping_sub(self.prolonged)
    }

    /// Cycles since the spin began.
    #[inline]
    pub fn age(&self) -> u64 {
        self.last.wrapping_sub(self.started)
    }
}

/// The processor's time stamp counter.
#[inline]
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub fn clock() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The processor's virtual counter.
#[inline]
#[cfg(all(target_arch = "aarch64", not(miri)))]
pub fn clock() -> u64 {
    let count: u64;
    // SAFETY: readable from user space on Linux.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
    count
}

/// Nanoseconds: Miri knows no such instruction.
#[cfg(miri)]
pub fn clock() -> u64 {
    sys::monotonic_ns()
}

/// Turns nanoseconds into ticks of [`clock`].
#[inline]
pub fn cycles(ns: u64) -> u64 {
    /// Zero: not measured yet.
    static TICKS_PER_1024_NS: AtomicU64 = AtomicU64::new(0);
    let mut rate = TICKS_PER_1024_NS.load(Relaxed);
    if rate == 0 {
        rate = measure_clock();
        TICKS_PER_1024_NS.store(rate, Relaxed);
    }
    (ns * rate) >> 10
}

/// The processor says how many ticks its counter makes in a second.
#[cold]
#[cfg(all(target_arch = "aarch64", not(miri)))]
fn measure_clock() -> u64 {
    let frequency: u64;
    // SAFETY: readable from user space wherever the counter is.
    unsafe {
        core::arch::asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack, pure));
    }
    (frequency * 1024 / 1_000_000_000).max(1)
}

/// Compares the counter with the clock for some tens of microseconds. Threads that need it first at the same time all do so: one that
/// waited for another would wait for ever in a child that was forked meanwhile.
#[cold]
#[cfg(any(not(target_arch = "aarch64"), miri))]
fn measure_clock() -> u64 {
    /// A clock that nobody may ask, or that another library has stopped, shows nothing more in so many readings.
    const READINGS: u32 = 100_000;
    /// So many ticks are taken for 1 024 ns then: counters run at one to five gigahertz.
    const USUAL: u64 = 2 * 1024;
    let (ticks, start_ns) = (clock(), sys::monotonic_ns());
    for _ in 0..READINGS {
        let elapsed_ns = sys::monotonic_ns().saturating_sub(start_ns);
        if elapsed_ns > 20_000 {
            return (clock().wrapping_sub(ticks) * 1024 / elapsed_ns).max(1);
        }
    }
    USUAL
}

/// The processor that the calling thread runs on, plus one; zero when unknown.
#[inline]
pub fn processor() -> u32 {
    // SAFETY: served by the thread's rseq area or the vDSO.
    let number = unsafe { libc::sched_getcpu() };
    (number + 1).max(0).cast_unsigned()
}

// Miri knows no processors, and has no time slices.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Budget and pause are the process's.
    static ALONE: Mutex<()> = Mutex::new(());

    fn budget(spinner: &Spinner, limit_ns: u64, connections: usize) -> Option<u64> {
        Some(spinner.begin(limit_ns, connections)?.budget)
    }

    #[test]
    fn a_spin_is_as_long_as_its_connections_allow_and_bounded() {
        let _alone = ALONE.lock();
        let spinner = Spinner::new();
        let of_us = |us: u64| Some(cycles(us * 1000));
        assert_eq!(budget(&spinner, u64::MAX, 1), of_us(50));
        assert_eq!(budget(&spinner, u64::MAX, 20), of_us(100));
        assert_eq!(budget(&spinner, u64::MAX, 1000), of_us(250));
        assert_eq!(budget(&spinner, 7000, 1000), of_us(7));
        set_budget_us(u32::MAX);
        assert_eq!(budget(&spinner, u64::MAX, 1), of_us(10_000));
        set_budget_us(0);
        assert_eq!(budget(&spinner, u64::MAX, 1), None);
        set_budget_us(50);
        for _ in 0..SCORE_START {
            spinner.adjust(MISS);
        }
        assert_eq!(budget(&spinner, u64::MAX, 1), None, "it was in vain");
    }

    #[test]
    fn nobody_spins_for_bytes_while_a_reader_waits_for_the_processor() {
        let _alone = ALONE.lock();
        let spinner = Spinner::new();
        // Whatever processor the test moves to meanwhile.
        (0..=u32::from(u16::MAX)).for_each(note_reader);
        assert!(
            spinner.begin(u64::MAX, 1).is_some(),
            "room comes from the reader itself"
        );
        assert!(spinner.begin_for_bytes(u64::MAX, 1).is_none());
        assert!(
            spinner.begin_for_bytes(u64::MAX, 1).is_some(),
            "it has slept"
        );
    }

    #[test]
    fn pauses_double_while_slices_go_on_being_lost() {
        let _alone = ALONE.lock();
        let mut now = clock();
        let mut lengths = Vec::new();
        for _ in 0..9 {
            pause(now);
            lengths.push(PAUSE_NS.load(Relaxed) / 1_000_000);
            now = PAUSED_UNTIL.load(Relaxed) + 1;
        }
        assert_eq!(lengths, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000]);
        pause(now + cycles(PAUSE_MAX_NS) * 4);
        assert_eq!(PAUSE_NS.load(Relaxed), PAUSE_MIN_NS);
        PAUSED_UNTIL.store(0, Relaxed);
    }
}
