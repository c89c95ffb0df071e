//! The word that says that an end sleeps, and how neither end misses the other.
//!
//! One end says that it sleeps, and then looks once more; the other publishes, and then looks whether somebody sleeps. Between the two
//! steps each needs a barrier, so that at least one sees the other. The sleeper has time, the other has not: where the kernel lets it, the
//! sleeper has it make a barrier in the threads of all processes that asked for that (`membarrier(2)`, `MEMBARRIER_CMD_GLOBAL_EXPEDITED`),
//! and then the other needs none of its own. That interrupts every processor that runs one of them: who sleeps often leaves the barriers to
//! the other. `tests/barrier.rs` plays every interleaving of that.

#[cfg(not(loom))]
use std::sync::atomic::compiler_fence;

use crate::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use crate::{spin, sys};

/// The end sleeps. The other takes this back when it rings.
const ASLEEP: u32 = 1;
/// The end that is awake will make the barrier for both before it sleeps.
const BARRIER: u32 = 2;
/// Who sleeps again within this time, in nanoseconds, sleeps often.
#[cfg(not(loom))]
const OFTEN_NS: u64 = 1_000_000;

/// After something was published: whether its reader sleeps and has to be woken. It is told so once.
#[inline]
pub(super) fn must_ring(word: &AtomicU32) -> bool {
    let mut now = 0;
    #[cfg(not(loom))]
    if sys::gets_barriers() {
        // The processor may look before others see what was published: then the sleeper's barrier comes between, and it sees it. What
        // this finds may be old; without its bit nothing depends on it.
        compiler_fence(Ordering::SeqCst);
        now = word.load(Ordering::Relaxed);
    }
    if now & BARRIER == 0 {
        // SeqCst: pairs with that in `say_asleep`.
        fence(Ordering::SeqCst);
        now = word.load(Ordering::Relaxed);
    }
    // Relaxed: the barriers order it after what was published; what the sleeper does next, it orders itself.
    now & ASLEEP != 0 && word.fetch_and(!ASLEEP, Ordering::Relaxed) & ASLEEP != 0
}

/// An end that sleeps now and then.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    /// When, of [`spin::clock`], it last went to sleep.
    #[cfg(not(loom))]
    last: u64,
    sleeps_often: bool,
}

impl Sleeper {
    /// Before the last look: says that the end sleeps. False: it must not, this time, since the barrier that the other end was promised
    /// cannot be made any more, as behind a filter of system calls. It promises no more.
    pub(super) fn say_asleep(&mut self, word: &AtomicU32) -> bool {
        let before = word.load(Ordering::Relaxed);
        word.store(ASLEEP, Ordering::Relaxed);
        // SeqCst: pairs with that in `must_ring`.
        fence(Ordering::SeqCst);
        #[cfg(not(loom))]
        {
            // Whoever has found the bit has no barrier of its own. After this nobody finds it any more, and only after this is it left out.
            let is_kept = before & BARRIER == 0 || sys::make_barriers();
            let now = spin::clock();
            self.sleeps_often = now.wrapping_sub(self.last) < spin::cycles(OFTEN_NS);
            self.last = now;
            is_kept
        }
        #[cfg(loom)]
        {
            let _ = before;
            true
        }
    }

    /// Says that the end is awake.
    pub(super) fn say_awake(&self, word: &AtomicU32) {
        let leaves_barriers = self.sleeps_often || !gets_barriers();
        word.store(if leaves_barriers { 0 } else { BARRIER }, Ordering::Relaxed);
    }
}

fn gets_barriers() -> bool {
    #[cfg(loom)]
    return false;
    #[cfg(not(loom))]
    sys::gets_barriers()
}
