//! Calls by the kernel that are counted in an end record.

use super::Row;
use crate::atomic::Ordering;

impl Row {
    /// Whether no call by the kernel is under way that is counted here.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        // SeqCst: whoever asks has shown before, where calls look after they have counted themselves, that it does.
        self.send.raw.load(Ordering::SeqCst) == 0
            && self.receive.sleepers.load(Ordering::SeqCst) == 0
    }

    /// Forgets calls that are under way: whoever made them is gone.
    pub fn forget_calls(&self) {
        self.send.raw.store(0, Ordering::Relaxed);
        self.receive.sleepers.store(0, Ordering::Relaxed);
    }
}
