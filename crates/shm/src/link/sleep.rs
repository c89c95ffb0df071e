//! The word that says that an end sleeps, and how neither end misses the other.
//!
//! One end says that it sleeps, and then looks once more; the other publishes, and then looks whether somebody sleeps. Between the two
//! steps each needs a barrier, so that at least one sees the other. The sleeper has time, the other has not: where the kernel lets it, the
//! sleeper has it make a barrier in the threads of all processes that asked for that (`membarrier(2)`, `MEMBARRIER_CMD_GLOBAL_EXPEDITED`),
//! and then the other needs none of its own.

#[cfg(not(loom))]
use std::sync::atomic::compiler_fence;

use crate::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(loom))]
use crate::sys;

/// The end sleeps. The other takes this back when it rings.
const ASLEEP: u32 = 1;
/// The end makes the barrier for both.
const BARRIER: u32 = 2;

/// What the end says that is awake.
fn awake() -> u32 {
    #[cfg(not(loom))]
    if sys::gets_barriers() {
        return BARRIER;
    }
    0
}

/// After something was published: whether its reader sleeps and has to be woken. It is told so once.
#[inline]
pub(super) fn must_ring(word: &AtomicU32) -> bool {
    let mut now = 0;
    #[cfg(not(loom))]
    if sys::gets_barriers() {
        // The processor may look before others see what was published: then the sleeper's barrier comes between, and it sees it.
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

/// Before the last look: says that the end sleeps.
pub(super) fn say_asleep(word: &AtomicU32) {
    word.store(ASLEEP | awake(), Ordering::Relaxed);
    // SeqCst: pairs with that in `must_ring`.
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    if sys::gets_barriers() {
        sys::make_barriers();
    }
}

/// Says that the end is awake.
pub(super) fn say_awake(word: &AtomicU32) {
    word.store(awake(), Ordering::Relaxed);
}
