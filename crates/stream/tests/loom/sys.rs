//! A place in the ring that loom watches.

use loom::cell::UnsafeCell;

/// Loom reports every access that nothing orders.
#[derive(Default)]
pub(crate) struct Slot(UnsafeCell<u32>);

// SAFETY: who may access it when is what the models are about: loom reports what is wrong before it is done.
unsafe impl Sync for Slot {}

impl Slot {
    pub(crate) fn write(&self, message: u32) {
        // SAFETY: loom has just found that no other access is at the same time.
        self.0.with_mut(|slot| unsafe { *slot = message });
    }

    pub(crate) fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|slot| unsafe { *slot })
    }
}
