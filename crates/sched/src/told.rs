//! What workers tell each other of their load.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::balance::{LOOK_NS, LOOKS};
use crate::seen::Figure;

/// Who has slept for so long has no load: before, it may be one who sleeps between bursts, and has as much as it had.
const ASLEEP_NS: u64 = LOOK_NS * LOOKS as u64;

/// What others know of a worker's load.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// As it has told, in thousandths of a processor.
    level: Figure,
    steady: Figure,
    /// What it was given since.
    charged: AtomicU64,
    /// Since when it has been asleep; 0: it is not.
    asleep_since_ns: Figure,
}

impl Told {
    #[inline]
    pub(crate) fn load(&self, now: u64) -> u64 {
        match self.is_long_asleep(now) {
            true => 0,
            false => self.level.get() + self.charged.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(crate) fn is_long_asleep(&self, now: u64) -> bool {
        let since = self.asleep_since_ns.get();
        since != 0 && now.saturating_sub(since) >= ASLEEP_NS
    }

    /// The same over a longer time.
    pub(crate) fn steady(&self, now: u64) -> u64 {
        match self.is_long_asleep(now) {
            true => 0,
            false => self.steady.get() + self.charged.load(Ordering::Relaxed),
        }
    }

    /// It says so itself, having reckoned with what it was given ([`Told::take_charge`]).
    pub(crate) fn tell(&self, level: u64, steady: u64) {
        self.level.set(level);
        self.steady.set(steady);
    }

    /// What it was given since it asked last.
    pub(crate) fn take_charge(&self) -> u64 {
        self.charged.swap(0, Ordering::Relaxed)
    }

    /// Somebody gives it some.
    pub(crate) fn charge(&self, load: u64) {
        self.charged.fetch_add(load, Ordering::Relaxed);
    }

    pub(crate) fn fall_asleep(&self, now: u64) {
        self.asleep_since_ns.set(now.max(1));
    }

    /// How long it has slept, if it has; then it has no load but what it was given.
    pub(crate) fn awake(&self, now: u64) -> Option<u64> {
        let since = self.asleep_since_ns.get();
        if self.is_long_asleep(now) {
            self.level.set(0);
            self.steady.set(0);
        }
        self.asleep_since_ns.set(0);
        (since != 0).then(|| now.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_between_bursts_keeps_its_load_and_who_sleeps_for_long_has_none() {
        let told = Told::default();
        told.tell(400, 300);
        told.charge(50);
        assert_eq!(told.steady(0), 350);
        told.fall_asleep(1);
        assert_eq!((told.load(ASLEEP_NS), told.load(ASLEEP_NS + 1)), (450, 0));
        assert_eq!(told.awake(1000), Some(999));
        assert_eq!(told.load(10 * ASLEEP_NS), 450);
        told.fall_asleep(1000);
        assert_eq!(told.awake(1000 + ASLEEP_NS), Some(ASLEEP_NS));
        assert_eq!(told.awake(9 * ASLEEP_NS), None);
        assert_eq!(told.load(9 * ASLEEP_NS), 50);
        assert_eq!(told.take_charge(), 50);
        told.tell(70, 60);
        assert_eq!(told.steady(9 * ASLEEP_NS), 60);
        assert_eq!(told.load(9 * ASLEEP_NS), 70);
    }
}
