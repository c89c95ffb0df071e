//! Sets that two processes have after a fork. What one of them changes, the other one's records do not know: only the kernel does.
//!
//! Each process counts the changes that it makes itself, and all count together in a word that they share. When the two differ,
//! somebody else has changed the set: from then on it is the kernel's, for this process. The first wait of a process that did not
//! make the set counts as a change: the maker opens no gates under a sleeper that it does not know of. What a child registers that has not
//! used the set otherwise leaves its ring right there, since those who sleep on the set do not know that it has become a member. A child
//! that only ends, or becomes another program, changes nothing.

use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{EpollSet, WRITE_EVENTS, rings::Inner};
use crate::guarded::Guarded;
use crate::kernel::kernel;
use crate::process;
use crate::socket::Socket;
use crate::table::{self, Entry};

const PAGE_BYTES: usize = 4096;
/// Where the next place is, and where the page ends. A place that has been handed out is never used again: a shared set is rare.
static PLACES: Guarded<(usize, usize)> = Guarded::new((0, 0));

/// Whether this process ever had a set with another one: most never have.
static IS_ANY_SHARED: AtomicBool = AtomicBool::new(false);

/// What all processes know of a set.
#[derive(Debug)]
struct Common {
    changes: AtomicU32,
    /// Processes that have it. One that was killed stays counted.
    holders: AtomicU32,
}

/// The count of changes of one set.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// By all processes; null while no other process ever had the set.
    common: AtomicPtr<Common>,
    /// Those that this process knows of.
    known: AtomicU32,
    /// The process that uses the set.
    user: AtomicU32,
}

/// For a forked child: the page is shared with its parent, which goes on handing out places of it.
pub(super) fn begin_child(forker: u32) {
    PLACES.begin_child(forker);
    if let Some(mut places) = PLACES.lock() {
        *places = (0, 0);
    }
}

fn new_place() -> Option<*mut Common> {
    let mut places = PLACES.lock()?;
    let (next, end) = &mut *places;
    if next == end {
        let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let page = kernel!(libc::SYS_mmap, 0usize, PAGE_BYTES, access, kind, -1isize, 0);
        *next = usize::try_from(page).ok()?;
        *end = *next + PAGE_BYTES;
    }
    let place = *next as *mut Common;
    *next += size_of::<Common>();
    Some(place)
}

impl Changes {
    fn common(&self) -> Option<&'static Common> {
        // SAFETY: null, or a place on a shared page, zero at first, that is never unmapped.
        unsafe { self.common.load(Acquire).as_ref() }
    }

    /// A new set, which nobody shares.
    pub(super) fn reset(&self) {
        self.common.store(std::ptr::null_mut(), Relaxed);
        self.known.store(0, Relaxed);
        self.user.store(process::id(), Relaxed);
    }

    /// Another process is about to have the set. False: it cannot be watched.
    pub(super) fn share(&self) -> bool {
        if self.common().is_none() {
            let Some(place) = new_place() else {
                return false;
            };
            // Before the fork: the child has it, too.
            IS_ANY_SHARED.store(true, Relaxed);
            self.common.store(place, Release);
            self.hold(1);
        }
        self.hold(1);
        true
    }

    /// So many more processes have the set, or fewer.
    pub(super) fn hold(&self, more: i32) {
        if let Some(common) = self.common() {
            common.holders.fetch_add(more.cast_unsigned(), AcqRel);
        }
    }

    /// Whether another process has the set.
    #[inline]
    pub(super) fn are_shared(&self) -> bool {
        let common = self.common();
        common.is_some_and(|common| common.holders.load(Acquire) > 1)
    }

    /// Whether another process ever had the set.
    #[inline]
    pub(super) fn are_watched(&self) -> bool {
        self.common().is_some()
    }

    /// Whether no other process has the set, and none that had it has changed it: what this process knows of it is true.
    #[inline]
    pub(super) fn are_all_known(&self) -> bool {
        self.common().is_none_or(|common| {
            common.holders.load(Acquire) <= 1
                && common.changes.load(Acquire) == self.known.load(Relaxed)
        })
    }

    /// This process has changed the set.
    pub(super) fn note(&self) {
        if let Some(common) = self.common() {
            self.known.fetch_add(1, Relaxed);
            common.changes.fetch_add(1, AcqRel);
        }
    }

    /// Whether the set is another process's, which is to hear of what this one registers: a child that has not used it otherwise.
    pub(super) fn are_for_others(&self) -> bool {
        self.are_shared() && (self.user.load(Relaxed) != process::id() || process::is_borrowed())
    }

    /// Whether this process knows of all changes.
    pub(super) fn are_known(&self) -> bool {
        let common = self.common();
        common.is_none_or(|common| common.changes.load(Acquire) == self.known.load(Relaxed))
    }

    /// Whether others have changed it, or we use what others may use. Who is left alone with a set is its user.
    #[inline]
    fn are_foreign(&self) -> bool {
        let Some(common) = self.common() else {
            return false;
        };
        if self.user.load(Relaxed) != process::id() {
            self.user.store(process::id(), Relaxed);
            if common.holders.load(Acquire) > 1 {
                common.changes.fetch_add(1, AcqRel);
            }
        }
        !self.are_known()
    }
}

/// Whether others have changed a set that this process has, too.
pub(crate) fn is_any_changed_by_others() -> bool {
    let is_changed = |fd| match table::get(fd) {
        Entry::Set(set) => !set.changes.are_known(),
        _ => false,
    };
    IS_ANY_SHARED.load(Relaxed) && table::all().any(is_changed)
}

impl EpollSet {
    /// Looks whether another process has changed the set.
    #[inline]
    pub(crate) fn notice_changes(&'static self) {
        let are_wrong = self.changes.are_foreign() || self.is_lost.load(Relaxed);
        // It may be left to the kernel already, for another reason, with records that were right.
        if are_wrong && !self.are_records_given_up() {
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
        // Last: who finds it so may look. Relaxed: what it says is done under the lock, which whoever looks takes.
        self.is_given_up.store(true, Relaxed);
    }

    #[inline]
    pub(super) fn are_records_given_up(&self) -> bool {
        self.is_given_up.load(Relaxed)
    }

    /// The connections of the set, each with the descriptor that it was registered by; all that there are, where that is not known.
    pub(crate) fn connections(&self) -> Vec<(libc::c_int, &'static Socket)> {
        if self.is_lost.load(Relaxed) || !self.changes.are_known() {
            return table::all()
                .filter_map(|fd| Some((fd, table::socket(fd)?)))
                .collect();
        }
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
    pub(super) fn keep_unread(&mut self) {
        self.close_gates(0);
        for active in &mut self.active {
            active.events &= !WRITE_EVENTS;
        }
    }
}
