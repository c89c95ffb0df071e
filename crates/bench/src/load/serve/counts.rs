//! How often a server woke, and for how much, in a file that others read meanwhile.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};

use crate::sys;

/// What a server counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Times that there was something to do.
    pub wakes: u64,
    /// Descriptors with an event, in all of them.
    pub ready: u64,
}

impl Counts {
    /// What a server has counted up to now; none where it keeps no such file.
    #[must_use]
    pub fn read(path: &Path) -> Option<Counts> {
        let bytes = fs::read(path).ok()?;
        let (wakes, ready) = bytes.split_first_chunk()?;
        Some(Counts {
            wakes: u64::from_ne_bytes(*wakes),
            ready: u64::from_ne_bytes(*ready.first_chunk()?),
        })
    }

    /// Ready descriptors for each time since an earlier look; none where there was none.
    #[must_use]
    pub fn ready_per_wake_since(self, earlier: Counts) -> Option<f64> {
        let wakes = self.wakes.checked_sub(earlier.wakes)?;
        let ready = self.ready.checked_sub(earlier.ready)?;
        (wakes > 0).then(|| ready as f64 / wakes as f64)
    }
}

/// The file, as its server has it: memory, so that counting is no system call.
#[derive(Debug)]
pub(super) struct Kept([&'static AtomicU64; 2]);

impl Kept {
    /// Makes the file anew.
    pub(super) fn create(path: &Path) -> Result<Kept> {
        let kept = sys::counters(path);
        kept.map(Kept)
            .with_context(|| format!("cannot count in {}", path.display()))
    }

    /// Relaxed: each number is read by itself, and nothing else rests on it.
    pub(super) fn keep(&self, counts: Counts) {
        let Kept([wakes, ready]) = self;
        wakes.store(counts.wakes, Ordering::Relaxed);
        ready.store(counts.ready, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_and_a_new_server_begins_at_zero() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("counts");
        assert_eq!(Counts::read(&path), None);
        let kept = Kept::create(&path).unwrap();
        assert_eq!(Counts::read(&path), Some(Counts::default()));
        let first = Counts { wakes: 2, ready: 3 };
        kept.keep(first);
        assert_eq!(Counts::read(&path), Some(first));
        assert_eq!(first.ready_per_wake_since(Counts::default()), Some(1.5));
        assert_eq!(first.ready_per_wake_since(first), None);
        // The server was another one meanwhile.
        assert_eq!(Counts::default().ready_per_wake_since(first), None);
        Kept::create(&path).unwrap();
        assert_eq!(Counts::read(&path), Some(Counts::default()));
        assert!(Kept::create(&directory.path().join("none/counts")).is_err());
    }
}
