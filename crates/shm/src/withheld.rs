//! What a child made by `fork` does not get of its parent: descriptors, in whose place it has empty ones, and shared memory, in whose place
//! it has zeros of its own.
//!
//! The other end of a socket sees that a process has died when nobody has the socket any more, and memory is charged as long as somebody
//! has it mapped. A child that knows nothing of either would keep both for as long as it lives. Numbers and addresses stay taken in the
//! child: what it has of our objects can be dropped there, and does no harm where it is used.
//!
//! Children of `_Fork` and of a bare `clone` are not reached, as they run no handlers of forks. Those of `vfork` and `posix_spawn` are not,
//! either, and become another program at once.

use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use crate::lock::{Held, OwnerLock};
use crate::{Mapping, sys};

/// Held by whoever makes, notes or ends something that is withheld, and by whoever forks. Not across anything that waits; an allocator's
/// own handlers of forks are older than ours, and run when we have it.
static FORKS: OwnerLock = OwnerLock::new();
/// The first entry of the list. It changes under [`FORKS`], as do the entries.
static FIRST: AtomicPtr<Entry> = AtomicPtr::new(null_mut());
/// Forks run our handlers.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);
/// The thread that forks had [`FORKS`] already: it does so in a signal handler.
static IS_NESTED: AtomicBool = AtomicBool::new(false);

/// What is withheld.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub enum What {
    /// Nothing any more: this is a child, and has something else there.
    Nothing,
    /// The same, and there was no empty descriptor for it: the number is not ours.
    Closed,
    /// A descriptor.
    Descriptor(RawFd),
    /// A mapping.
    Memory(NonNull<u8>, usize),
}

struct Entry {
    what: Cell<What>,
    before: Cell<*mut Entry>,
    after: Cell<*mut Entry>,
}

/// What can be withheld.
pub trait Inherited {
    /// What a child would have of it.
    #[doc(hidden)]
    fn what(&self) -> What;
}

impl Inherited for OwnedFd {
    fn what(&self) -> What {
        What::Descriptor(self.as_raw_fd())
    }
}

impl Inherited for Mapping {
    fn what(&self) -> What {
        What::Memory(self.base(), self.bytes())
    }
}

/// Something that children do not get.
pub struct Withheld<T> {
    entry: NonNull<Entry>,
    thing: ManuallyDrop<T>,
}

// SAFETY: the entry is looked at under `FORKS` only, by whichever thread.
unsafe impl<T: Send> Send for Withheld<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Withheld<T> {}

impl<T: fmt::Debug> fmt::Debug for Withheld<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.thing.fmt(f)
    }
}

impl<T> Deref for Withheld<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.thing
    }
}

impl<T: Inherited> Withheld<T> {
    /// Withholds it from children from now on. Where a fork must not come between its making and this: [`between_forks`].
    pub fn new(thing: T) -> Withheld<T> {
        let entry = NonNull::from(Box::leak(Box::new(Entry {
            what: Cell::new(thing.what()),
            before: Cell::new(null_mut()),
            after: Cell::new(null_mut()),
        })));
        between_forks(|| link(entry));
        Withheld {
            entry,
            thing: ManuallyDrop::new(thing),
        }
    }
}

impl<T> Drop for Withheld<T> {
    fn drop(&mut self) {
        between_forks(|| {
            if unlink(self.entry) != What::Closed {
                // SAFETY: nobody uses it after this.
                unsafe { ManuallyDrop::drop(&mut self.thing) };
            }
        });
    }
}

/// Does something while no other thread forks: what it makes and withholds, no child has had. Not for what may wait.
pub fn between_forks<T>(work: impl FnOnce() -> T) -> T {
    struct Lock(Held);
    impl Drop for Lock {
        fn drop(&mut self) {
            FORKS.unlock(self.0);
        }
    }
    let _lock = Lock(FORKS.lock(sys::thread_id()));
    work()
}

/// Puts an entry first. The list is whole from `FIRST` on at every moment.
fn link(entry: NonNull<Entry>) {
    watch_forks();
    let first = FIRST.load(Relaxed);
    // SAFETY: made by the caller, and freed by `unlink` only.
    unsafe { entry.as_ref() }.after.set(first);
    // SAFETY: entries that are in the list have not been freed.
    if let Some(first) = unsafe { first.as_ref() } {
        first.before.set(entry.as_ptr());
    }
    FIRST.store(entry.as_ptr(), Relaxed);
}

/// Takes an entry out and frees it; returns what it said last.
fn unlink(entry: NonNull<Entry>) -> What {
    // SAFETY: `link` has put it in, and nobody else takes it out.
    let entry = unsafe { Box::from_raw(entry.as_ptr()) };
    let (before, after) = (entry.before.get(), entry.after.get());
    // SAFETY: entries that are in the list have not been freed.
    match unsafe { before.as_ref() } {
        Some(before) => before.after.set(after),
        None => FIRST.store(after, Relaxed),
    }
    // SAFETY: as above.
    if let Some(after) = unsafe { after.as_ref() } {
        after.before.set(before);
    }
    entry.what.get()
}

/// Has forks run our handlers from now on. A fork that another thread has begun before does not: whoever will withhold something says so
/// here first, before there is anything.
pub fn watch_forks() {
    // Miri knows no forks.
    if cfg!(miri) || IS_WATCHED.swap(true, Relaxed) {
        return;
    }
    // SAFETY: three functions that do what they may in a fork. Where there is no memory for that, children get what they always did.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(begin_child)) };
}

unsafe extern "C" fn before_fork() {
    let held = FORKS.lock(sys::thread_id());
    IS_NESTED.store(held == Held::Nested, Relaxed);
}

unsafe extern "C" fn after_fork() {
    if !IS_NESTED.load(Relaxed) {
        FORKS.unlock(Held::Owned);
    }
}

/// Makes system calls only, and takes no lock: other threads of the parent may have had any.
unsafe extern "C" fn begin_child() {
    if IS_NESTED.load(Relaxed) {
        // The list may be about to change below on the stack, by this thread, which has another number now.
        FORKS.unlock(Held::Owned);
        FORKS.lock(sys::thread_id());
        return;
    }
    let mut empty = None;
    let mut next = FIRST.load(Relaxed);
    // SAFETY: entries that are in the list have not been freed, and this is the only thread.
    while let Some(entry) = unsafe { next.as_ref() } {
        let left = match entry.what.replace(What::Nothing) {
            What::Descriptor(fd) => put_empty(fd, &mut empty),
            What::Memory(base, bytes) => {
                // SAFETY: the range is a mapping of its owner's, who expects what others write there.
                let _ = unsafe { sys::replace_mapping(base, bytes, None) };
                What::Nothing
            }
            other => other,
        };
        entry.what.set(left);
        next = entry.after.get();
    }
    FORKS.unlock(Held::Owned);
}

/// Puts an empty descriptor in the place of one that the child is not to have. `empty`: where there is one already.
fn put_empty(fd: RawFd, empty: &mut Option<RawFd>) -> What {
    let call = |number, a: RawFd, b: RawFd, flags: libc::c_int| {
        let arguments = [a as usize, b as usize, flags as usize, 0, 0, 0];
        // SAFETY: plain arguments; the descriptors are ours.
        unsafe { sys::call(number, arguments) }
    };
    if let Some(empty) = *empty {
        call(libc::SYS_dup3, empty, fd, libc::O_CLOEXEC);
        return What::Nothing;
    }
    // First, so that there is a number for the empty one.
    call(libc::SYS_close, fd, 0, 0);
    let made = call(
        libc::SYS_eventfd2,
        0,
        libc::EFD_CLOEXEC | libc::EFD_NONBLOCK,
        0,
    );
    let Some(made) = RawFd::try_from(made).ok().filter(|made| *made >= 0) else {
        return What::Closed;
    };
    if made != fd {
        call(libc::SYS_dup3, made, fd, libc::O_CLOEXEC);
        call(libc::SYS_close, made, 0, 0);
    }
    *empty = Some(fd);
    What::Nothing
}

#[cfg(test)]
mod tests;
