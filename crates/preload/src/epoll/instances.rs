//! Every instance that was ever followed: they are used again, and never freed.

use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32,
    Ordering::{Acquire, SeqCst},
};

use super::EpollSet;
use super::shared::Changes;
use crate::guarded::Guarded;
use crate::socket::Looking;
use crate::spin::Spinner;

/// The one that was made last.
static NEWEST: AtomicPtr<EpollSet> = AtomicPtr::new(std::ptr::null_mut());

impl EpollSet {
    /// A new one, in the list of all.
    pub(super) fn allocate() -> &'static EpollSet {
        let set = Box::into_raw(Box::new(EpollSet {
            inner: Guarded::default(),
            is_waited_on: AtomicBool::new(false),
            looking: Looking::default(),
            sleepers: AtomicU32::new(0),
            kernel_only: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            changes: Changes::default(),
            descriptors: AtomicU32::new(0),
            spinner: Spinner::new(),
            has_early: AtomicBool::new(false),
            older: None,
        }));
        let mut newest = NEWEST.load(Acquire);
        loop {
            // SAFETY: nobody else knows of it yet; the other one is none, or never freed.
            unsafe { (*set).older = newest.as_ref() };
            // SeqCst: it is in the list before it has members; see `early`.
            match NEWEST.compare_exchange(newest, set, SeqCst, Acquire) {
                // SAFETY: it is never freed.
                Ok(_) => return unsafe { &*set },
                Err(other) => newest = other,
            }
        }
    }

    /// All that were ever followed, those that are closed among them.
    pub(super) fn all() -> impl Iterator<Item = &'static EpollSet> {
        // SAFETY: null, or one that is never freed.
        let newest = unsafe { NEWEST.load(SeqCst).as_ref() };
        std::iter::successors(newest, |set| set.older)
    }
}
