//! io_uring: the kernel sends, receives and waits for the program, where no function of the C library is called.
//!
//! What the program submits is looked at before the kernel sees it: by the functions of liburing and the C library's `syscall`. A socket
//! that a request names takes the kernel's road from then on. What cannot be seen takes the whole process there: a ring that the kernel
//! reads unasked, one that another process has, too, requests that we do not know, and one that was set up unseen, where liburing was
//! linked into the program. Its memory is seen when the next connection is about to be offered.

use std::collections::VecDeque;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

use libc::{c_int, c_void};
use millrace_wire::Reason;

use crate::guarded::Guarded;
use crate::process::{drop_descriptor, new_descriptor};
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::{client, kernel, process, spin, thread, user};

mod request;
mod ring;

pub(crate) use request::{before_register, before_register_list};
use ring::Liburing;
pub(crate) use ring::{Parameters, Ring};

/// The process's memory is looked at so often at most, in nanoseconds.
const NS_BETWEEN_LOOKS: u64 = 1_000_000_000;
/// So many numbers are remembered.
const LATE_MAX: usize = 1024;
/// So many rings that are gone.
const GONE_MAX: usize = 64;
/// The memory is looked at again so often where another thread sets a ring up.
const LOOKS_MAX: u32 = 100;
/// IORING_ENTER_GETEVENTS.
const GET_EVENTS: u32 = 1;
/// IORING_ENTER_REGISTERED_RING.
const REGISTERED_RING: u32 = 1 << 4;

/// When, of [`spin::clock`], that was last done; zero: never.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// Every connection has taken the kernel's road: nothing is looked at any more.
static IS_LEFT: AtomicBool = AtomicBool::new(false);
/// The rings whose submissions are seen.
static RINGS: Guarded<Vec<Ring>> = Guarded::new(Vec::new());
/// Inodes of rings that the program has let go of: their memory may stay a while, and no submission passes by it.
static GONE: Guarded<VecDeque<u64>> = Guarded::new(VecDeque::new());
/// Set-ups that have begun, and that have ended.
static BEGUN: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicU32 = AtomicU32::new(0);
/// Beginnings and ends of forks.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Numbers that the kernel may look up after the submission that names them.
static LATE: Guarded<Vec<c_int>> = Guarded::new(Vec::new());
static HAS_LATE: AtomicBool = AtomicBool::new(false);

/// The whole process takes the kernel's road.
#[cold]
pub(crate) fn begin() {
    process::await_waking();
    if !process::is_off() && !process::is_borrowed() && !IS_LEFT.load(Acquire) {
        // What cannot be sent again is read from the ring, by calls of the C library.
        process::leave_rings(Reason::IoUring, Socket::leave_unseen);
        // Not before that is done: who submits something meanwhile does it, too.
        IS_LEFT.store(true, Release);
    }
}

fn is_watched() -> bool {
    table::exists() && !IS_LEFT.load(Acquire) && !process::is_borrowed()
}

/// Looks now and then whether the process has one that was set up, or submitted to, unseen.
pub(crate) fn look() {
    let now = spin::clock();
    let looked_at = LOOKED_AT.load(Relaxed);
    if looked_at == 0 || now.wrapping_sub(looked_at) > spin::cycles(NS_BETWEEN_LOOKS) {
        LOOKED_AT.store(now, Relaxed);
        if !are_all_seen() {
            begin();
        }
    }
}

fn are_all_seen() -> bool {
    for _ in 0..LOOKS_MAX {
        let (ended, begun) = (ENDED.load(Acquire), BEGUN.load(Acquire));
        let Some(rings) = RINGS.lock() else {
            return true;
        };
        let are_as_left = rings.iter().all(Ring::is_as_left);
        let mut known: Vec<u64> = rings.iter().map(|ring| ring.inode).collect();
        drop(rings);
        known.extend(GONE.lock().iter().flat_map(|gone| gone.iter()));
        // No fork comes meanwhile: its child would keep the descriptor.
        if are_as_left && !client::hold_still(|| ring::is_mapped(&known)) {
            return true;
        }
        if !are_as_left || begun == ended && BEGUN.load(Acquire) == begun {
            return false;
        }
        millrace_shm::sys::yield_now();
    }
    false
}

/// Runs `set_up`, and follows the ring that comes of it, as `ring` finds it.
pub(crate) fn around_setup<T: Copy>(
    set_up: impl FnOnce() -> T,
    ring: impl FnOnce(T) -> Option<Ring>,
    is_done: impl FnOnce(T) -> bool,
) -> T {
    process::wake();
    let forks = FORKS.load(Acquire);
    BEGUN.fetch_add(1, AcqRel);
    let result = set_up();
    if is_done(result) && is_watched() {
        let errno = thread::errno();
        follow(ring(result), forks);
        thread::set_errno(errno);
    }
    ENDED.fetch_add(1, AcqRel);
    result
}

/// Follows a ring; `None` is one that cannot be followed.
fn follow(ring: Option<Ring>, forks: u32) {
    let Some(ring) = ring.filter(|ring| table::covers(ring.fd)) else {
        return begin();
    };
    new_descriptor(ring.fd, Entry::Ring);
    let is_followed = RINGS.lock().is_some_and(|mut rings| {
        // Before Linux 5.16 all have one inode, and could not be told from others that were set up unseen.
        let is_alone = rings.iter().all(|other| other.inode != ring.inode);
        rings.push(ring);
        is_alone
    });
    if !is_followed || FORKS.load(Acquire) != forks {
        begin();
    }
}

/// The program lets go of the ring that `fd` was.
pub(crate) fn forget(fd: c_int) {
    let (Some(mut gone), Some(mut rings)) = (GONE.lock(), RINGS.lock()) else {
        return begin();
    };
    while let Some(place) = rings.iter().position(|ring| ring.fd == fd) {
        gone.push_back(rings.swap_remove(place).inode);
    }
    let more = gone.len().saturating_sub(GONE_MAX);
    gone.drain(..more);
}

/// liburing is about to unmap and close a ring.
pub(crate) fn before_exit(ring: *const c_void) {
    // It does so without the C library.
    user::forget();
    if let Some(ring) = Liburing::read(ring)
        && matches!(table::get(ring.fd), Entry::Ring)
    {
        drop(drop_descriptor(ring.fd));
    }
}

/// Another process gets the rings of this one, or may have got them: what it submits is not seen here.
pub(crate) fn share_all() {
    FORKS.fetch_add(1, AcqRel);
    if is_watched() && RINGS.lock().is_none_or(|rings| !rings.is_empty()) {
        begin();
    }
}

/// In a forked child: the rings are the parent's, so that it leaves everything to the kernel if it uses one.
pub(crate) fn begin_child(forker: u32) {
    RINGS.begin_child(forker);
    LATE.begin_child(forker);
    GONE.begin_child(forker);
    // Other threads' are not here.
    ENDED.store(BEGUN.load(Relaxed), Relaxed);
    if let Some(mut rings) = RINGS.lock() {
        rings.clear();
    }
}

/// Up to where the kernel will read.
#[derive(Clone, Copy)]
enum Reach {
    /// So many requests, if there are so many.
    Count(u32),
    /// What liburing has, and is about to show.
    Position(u32),
}

/// A submission that is under way, whose requests have been looked at.
struct Seen {
    fd: c_int,
    inode: u64,
    count: u32,
    tells: bool,
}

/// Looks at the requests that the kernel is about to read. None: the whole process is on the kernel's road.
fn before(fd: c_int, reach: Reach) -> Option<Seen> {
    if !is_watched() {
        return None;
    }
    let errno = thread::errno();
    let seen = look_at_requests(fd, reach);
    if seen.is_none() {
        begin();
    }
    thread::set_errno(errno);
    seen
}

fn look_at_requests(fd: c_int, reach: Reach) -> Option<Seen> {
    let is_it = |ring: &&mut Ring| ring.fd == fd;
    let (queue, ring, count) = {
        let mut rings = RINGS.lock()?;
        let mut ring = rings.iter_mut().find(is_it)?;
        if ring.queue.is_none() {
            let (inode, offsets) = (ring.inode, ring.offsets);
            drop(rings);
            let found = client::hold_still(|| ring::find_queue(inode, offsets))?;
            rings = RINGS.lock()?;
            ring = rings.iter_mut().find(is_it)?;
            ring.queue = Some(found);
        }
        let queue = ring.queue?;
        let head = queue.head()?;
        // Two at once could take each other's requests for their own; and what was submitted before was not all seen.
        if ring.is_busy || head != ring.head {
            return None;
        }
        let shown = queue.tail()?.wrapping_sub(head);
        let count = match reach {
            Reach::Count(count) => count.min(shown),
            Reach::Position(tail) => tail.wrapping_sub(head).max(shown),
        };
        ring.is_busy = true;
        (queue, *ring, count)
    };
    let found = request::look_at(&queue, ring.head, count, ring.drains)?;
    if found.drains != ring.drains {
        RINGS.lock()?.iter_mut().find(is_it)?.drains = true;
    }
    Some(Seen {
        fd,
        inode: ring.inode,
        count,
        tells: found.tells,
    })
}

/// The kernel has read what was looked at.
fn after(seen: &Seen) {
    if seen.tells {
        kernel::note_told();
    }
    let is_theirs = |ring: &&mut Ring| ring.fd == seen.fd && ring.inode == seen.inode;
    if let Some(mut rings) = RINGS.lock()
        && let Some(ring) = rings.iter_mut().find(is_theirs)
    {
        ring.is_busy = false;
        match ring.queue.and_then(|queue| queue.head()) {
            Some(head) => ring.head = head,
            // Whoever submits next finds that nothing fits.
            None => ring.queue = None,
        }
    }
}

/// Runs `submit`, which has the kernel read whatever is in the program's ring.
pub(crate) fn around_flush<T>(ring: *const c_void, submit: impl FnOnce() -> T) -> T {
    if !is_watched() {
        return submit();
    }
    let seen = match Liburing::read(ring) {
        Some(ring) => before(ring.fd, Reach::Position(ring.tail_here)),
        None => {
            begin();
            None
        }
    };
    let result = submit();
    if let Some(seen) = seen {
        after(&seen);
    }
    result
}

/// `io_uring_enter`, with the arguments that we may change.
pub(crate) fn enter(
    fd: c_int,
    [to_submit, min_complete, flags]: [u32; 3],
    raw: impl FnOnce([u32; 3]) -> isize,
) -> isize {
    let seen = if to_submit == 0 {
        None
    } else if flags & REGISTERED_RING != 0 {
        // The number is none of a descriptor.
        begin();
        None
    } else {
        before(fd, Reach::Count(to_submit))
    };
    let Some(seen) = seen else {
        return raw([to_submit, min_complete, flags]);
    };
    let result = raw(if seen.count == to_submit {
        [to_submit, min_complete, flags]
    } else {
        // Not what another thread adds meanwhile. The kernel waits for nothing where it found fewer than it should.
        [seen.count, 0, flags & !GET_EVENTS]
    });
    after(&seen);
    result
}

/// The kernel may look `fd` up at any time from now on. False: that cannot be remembered.
fn remember_late(fd: c_int) -> bool {
    let Some(mut late) = LATE.lock() else {
        return false;
    };
    if !late.contains(&fd) {
        if late.len() == LATE_MAX {
            return false;
        }
        late.push(fd);
    }
    HAS_LATE.store(true, Relaxed);
    // Pairs with what `entered` asks after a change of the table: one of us sees the other.
    fence(SeqCst);
    true
}

/// `fd` is something else in the table now. Where the kernel may look the number up by itself, that is for the kernel.
pub(crate) fn entered(fd: c_int) {
    // SeqCst, after a change of the table that is so, too: pairs with the fence in `remember_late`.
    if !HAS_LATE.load(SeqCst) || LATE.lock().is_some_and(|late| !late.contains(&fd)) {
        return;
    }
    match table::get(fd) {
        Entry::Socket(socket) => socket.leave_to_requests(fd, Reason::IoUring, true),
        Entry::Set(_) => begin(),
        Entry::Unknown | Entry::Unconnected(_) | Entry::Ring => {}
    }
}
