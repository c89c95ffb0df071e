//! Sets that two processes have after a fork. What one of them changes, the other one's records do not know: only the kernel does.
//!
//! Each process counts the changes that it makes itself, and all count together in a word that they share. When the two differ,
//! somebody else has changed the set: from then on it is the kernel's, for this process. A child that only ends, or becomes another
//! program, changes nothing.

use std::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{EpollSet, WRITE_EVENTS, rings::Inner};
use crate::guarded::Guarded;
use crate::kernel::kernel;
use crate::socket::Socket;

const PAGE_BYTES: usize = 4096;
/// A word that has been handed out is never used again: a set that was shared is rare.
static WORDS: Guarded<(usize, usize)> = Guarded::new((0, 0));

/// The count of changes of one set.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// By all processes; null while no other process has the set.
    all: AtomicPtr<AtomicU32>,
    /// Those that this process knows of.
    known: AtomicU32,
}

/// For a forked child.
pub(super) fn unlock() {
    WORDS.force_unlock();
}

fn new_word() -> Option<*mut AtomicU32> {
    let mut words = WORDS.lock()?;
    let (next, end) = &mut *words;
    if next == end {
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let page = kernel!(libc::SYS_mmap, 0usize, PAGE_BYTES, access, kind, -1isize, 0);
        *next = usize::try_from(page).ok()?;
        *end = *next + PAGE_BYTES;
    }
    let word = *next as *mut AtomicU32;
    *next += size_of::<AtomicU32>();
    Some(word)
}

impl Changes {
    fn word(&self) -> Option<&'static AtomicU32> {
        // SAFETY: null, or a word of a shared page that is never unmapped.
        unsafe { self.all.load(Acquire).as_ref() }
    }

    /// A new set, which nobody shares.
    pub(super) fn reset(&self) {
        self.all.store(std::ptr::null_mut(), Relaxed);
        self.known.store(0, Relaxed);
    }

    /// Another process is about to have the set. False: it cannot be watched.
    pub(super) fn share(&self) -> bool {
        if self.word().is_none() {
            let Some(word) = new_word() else {
                return false;
            };
            self.all.store(word, Release);
        }
        true
    }

    /// This process has changed the set.
    pub(super) fn note(&self) {
        if let Some(word) = self.word() {
            self.known.fetch_add(1, Relaxed);
            word.fetch_add(1, AcqRel);
        }
    }

    /// Whether others have changed it.
    #[inline]
    fn are_foreign(&self) -> bool {
        let Some(word) = self.word() else {
            return false;
        };
        word.load(Acquire) != self.known.load(Relaxed)
    }
}

impl EpollSet {
    /// Looks whether another process has changed the set.
    #[inline]
    pub(crate) fn notice_changes(&'static self) {
        if self.changes.are_foreign() && !self.kernel_only.load(Acquire) {
            self.give_up_records();
        }
    }

    /// Our records of the set may be wrong from now on: whatever its connections have to say, the kernel says.
    #[cold]
    pub(crate) fn give_up_records(&'static self) {
        self.leave_to_kernel();
        if let Some(mut inner) = self.inner.lock() {
            inner.keep_unread();
        }
    }

    /// The connections of the set, each with the descriptor that it was registered by.
    pub(super) fn connections(&self) -> Vec<(libc::c_int, &'static Socket)> {
        let Some(inner) = self.inner.lock() else {
            return Vec::new();
        };
        let members = inner.members.iter();
        members
            .filter_map(|(fd, member)| Some((*fd, member.socket?)))
            .collect()
    }
}

impl Inner {
    /// Only what lies in rings and could not be brought to the kernel is reported from there.
    fn keep_unread(&mut self) {
        self.close_gates();
        for active in &mut self.active {
            active.events &= !WRITE_EVENTS;
        }
    }
}
