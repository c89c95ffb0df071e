//! What each descriptor of this process is, as far as we care.
//!
//! A lookup is one load. Entries point to objects that are recycled but never freed, so that a thread
//! that looked just before another one closed still finds memory; under an object's lock it looks again.

use std::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use libc::c_int;
use millrace_shm::sys;

use crate::epoll::EpollSet;
use crate::socket::Socket;
use crate::{Outcome, kernel, process};

mod closing;

pub(crate) use closing::{Closing, begin_child, settle};

/// Descriptors from this number on are left to the kernel.
const CAPACITY: usize = 1 << 20;

/// What a descriptor is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// Not ours.
    Unknown,
    /// A TCP socket of that address family that has no connection yet.
    Unconnected(c_int),
    /// A connection.
    Socket(&'static Socket),
    /// An epoll instance.
    Set(&'static EpollSet),
    /// An io_uring whose submissions are seen.
    Ring,
}

const TAG_UNCONNECTED: usize = 1;
const TAG_SOCKET: usize = 2;
const TAG_SET: usize = 3;
const TAG_RING: usize = 4;
/// A connection that the thread whose number is above is closing, or putting something else in the place of. To who looks: not ours.
const TAG_CLOSING: usize = 5;
const TAG_MASK: usize = 7;

impl Entry {
    fn pack(self) -> usize {
        match self {
            Entry::Unknown => 0,
            Entry::Unconnected(family) => (family.cast_unsigned() as usize) << 3 | TAG_UNCONNECTED,
            Entry::Socket(socket) => std::ptr::from_ref(socket) as usize | TAG_SOCKET,
            Entry::Set(set) => std::ptr::from_ref(set) as usize | TAG_SET,
            Entry::Ring => TAG_RING,
        }
    }

    #[inline]
    fn unpack(word: usize) -> Entry {
        let address = word & !TAG_MASK;
        match word & TAG_MASK {
            TAG_UNCONNECTED => Entry::Unconnected((word >> 3) as c_int),
            // SAFETY: only `pack` makes such words, from references that live for ever; 8-aligned.
            TAG_SOCKET => Entry::Socket(unsafe { &*(address as *const Socket) }),
            // SAFETY: as above.
            TAG_SET => Entry::Set(unsafe { &*(address as *const EpollSet) }),
            TAG_RING => Entry::Ring,
            _ => Entry::Unknown,
        }
    }
}

static ENTRIES: AtomicPtr<AtomicUsize> = AtomicPtr::new(std::ptr::null_mut());
/// One more than the highest descriptor that ever had an entry.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);

/// Memory for the table; null: there is none.
pub(crate) fn reserve() -> *mut AtomicUsize {
    let memory = sys::map_private(CAPACITY * size_of::<AtomicUsize>());
    memory.map_or(std::ptr::null_mut(), |memory| memory.as_ptr().cast())
}

/// Makes the table of memory that was reserved for it. Without it every lookup says [`Entry::Unknown`].
pub(crate) fn create(entries: *mut AtomicUsize) {
    ENTRIES.store(entries, Release);
}

/// Gives the table up: from now on every lookup says [`Entry::Unknown`].
pub(crate) fn abandon() {
    ENTRIES.store(std::ptr::null_mut(), Release);
}

#[inline]
fn slot(fd: c_int) -> Option<&'static AtomicUsize> {
    let entries = ENTRIES.load(Acquire);
    let index = usize::try_from(fd).ok().filter(|index| *index < CAPACITY)?;
    if entries.is_null() {
        return None;
    }
    // SAFETY: the mapping has CAPACITY words and lives for ever; zeroed memory is a valid atomic.
    Some(unsafe { &*entries.add(index) })
}

/// What `fd` is.
#[inline]
pub(crate) fn get(fd: c_int) -> Entry {
    match slot(fd).map(|slot| Entry::unpack(slot.load(Acquire))) {
        // Its numbers are its own, and what it puts there is not seen here.
        Some(Entry::Socket(socket)) if process::is_other_in_child(fd, socket) => Entry::Unknown,
        Some(entry) => entry,
        None => Entry::Unknown,
    }
}

/// The connection that `fd` is, if it is one.
#[inline]
pub(crate) fn socket(fd: c_int) -> Option<&'static Socket> {
    match get(fd) {
        Entry::Socket(socket) => Some(socket),
        _ => None,
    }
}

/// Whether `fd` is still this connection.
#[inline]
pub(crate) fn is(fd: c_int, socket: &'static Socket) -> bool {
    slot(fd).is_some_and(|slot| slot.load(Acquire) == Entry::Socket(socket).pack())
}

/// Whether both numbers are of one connection, or of one epoll instance, so that a copy of one over the other changes nothing.
pub(crate) fn are_same(fd: c_int, other: c_int) -> bool {
    match get(fd) {
        Entry::Socket(socket) => is(other, socket),
        Entry::Set(set) => is_set(other, set),
        _ => false,
    }
}

/// Whether `fd` is this connection no more, and what a call comes to is not that of whatever has the number now: see [`gone`].
#[inline]
pub(crate) fn is_gone(fd: c_int, socket: &'static Socket) -> bool {
    !is(fd, socket) && matches!(gone(fd), Outcome::Errno(_))
}

/// What `fd` is, for a call that begins. Another thread that is closing it is waited for.
#[inline]
pub(crate) fn entry_called(fd: c_int) -> Entry {
    settle(fd);
    get(fd)
}

/// The connection that `fd` is, if it is one, for a call that begins.
#[inline]
pub(crate) fn called(fd: c_int) -> Option<&'static Socket> {
    let word = slot(fd)?.load(Acquire);
    match Entry::unpack(word) {
        Entry::Socket(socket) => (!process::is_other_in_child(fd, socket)).then_some(socket),
        Entry::Unknown if word & TAG_MASK == TAG_CLOSING => {
            settle(fd);
            self::socket(fd)
        }
        _ => None,
    }
}

/// Whether `fd` is still this epoll instance.
pub(crate) fn is_set(fd: c_int, set: &'static EpollSet) -> bool {
    slot(fd).is_some_and(|slot| slot.load(Acquire) == Entry::Set(set).pack())
}

/// Sets what `fd` is and returns what it was.
pub(crate) fn replace(fd: c_int, entry: Entry) -> Entry {
    match slot(fd) {
        Some(slot) => {
            if !matches!(entry, Entry::Unknown) {
                let end = fd.cast_unsigned() as usize + 1;
                if HIGH_WATER.load(Relaxed) < end {
                    HIGH_WATER.fetch_max(end, Relaxed);
                }
            }
            // SeqCst: see `uring::entered`.
            Entry::unpack(slot.swap(entry.pack(), SeqCst))
        }
        None => Entry::Unknown,
    }
}

/// Sets what `fd` is, if it is still `from`.
pub(crate) fn exchange(fd: c_int, from: Entry, to: Entry) -> bool {
    let exchange = |slot: &AtomicUsize| {
        // SeqCst: see `epoll::adopt` and `uring::entered`.
        let exchanged = slot.compare_exchange(from.pack(), to.pack(), SeqCst, Acquire);
        exchanged.is_ok()
    };
    slot(fd).is_some_and(exchange)
}

/// What a call comes to whose connection another thread has closed, or put something else in the place of, since the call began. The
/// number may be anything by now: what it has is not for this call, which the kernel would not let have it either.
#[cold]
pub(crate) fn gone(fd: c_int) -> Outcome {
    if closing::is_under_way(fd) {
        return Outcome::Errno(libc::EBADF);
    }
    // Not closed: we have given the table up, or the program has dissolved the connection.
    let is_there = !exists()
        || match get(fd) {
            Entry::Unconnected(_) => true,
            Entry::Unknown => kernel::tcp_family(fd).is_some(),
            Entry::Socket(_) | Entry::Set(_) | Entry::Ring => false,
        };
    if is_there {
        Outcome::PassThrough
    } else {
        Outcome::Errno(libc::EBADF)
    }
}

/// Descriptors that may have entries, in rising order.
pub(crate) fn all() -> impl Iterator<Item = c_int> {
    (0..HIGH_WATER.load(Relaxed) as c_int).filter(|fd| !matches!(get(*fd), Entry::Unknown))
}

/// Whether the library does anything in this process.
pub(crate) fn exists() -> bool {
    !ENTRIES.load(Acquire).is_null()
}

/// Whether descriptors of that number can have entries at all.
pub(crate) fn covers(fd: c_int) -> bool {
    slot(fd).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One table for all tests, which run beside each other.
    pub(super) fn create_once() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| create(reserve()));
    }

    #[test]
    fn what_is_beyond_the_table_is_left_to_the_kernel() {
        create_once();
        let last = CAPACITY as c_int - 1;
        for (fd, is_followed) in [
            (last, true),
            (last + 1, false),
            (c_int::MAX, false),
            (-1, false),
        ] {
            replace(fd, Entry::Unconnected(libc::AF_INET));
            let is_there = matches!(get(fd), Entry::Unconnected(libc::AF_INET));
            assert_eq!(is_there, is_followed, "{fd}");
        }
        replace(last, Entry::Unknown);
    }
}
