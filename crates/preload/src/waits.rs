//! Waits of a call that has something to return.
//!
//! In the kernel any handler ends the next wait of such a call, and so does a stop of the process. Our calls are several of the kernel's:
//! one that begins with nothing would be restarted after the handler, or would not know of one that has run before. So they wait here, in
//! pieces, and take or give without waiting.

use std::os::fd::IntoRawFd;
use std::ptr::null;

use libc::{c_int, pollfd, timespec};

use crate::guarded::Guarded;
use crate::kernel::{self, kernel};
use crate::socket::Socket;
use crate::thread::{self, Busy, Interrupts};
use crate::{c_library, table};

/// Another thread may close the connection, or a signal have come just before: a wait lasts so long at most, in nanoseconds.
const NS_BEFORE_LOOK: u64 = 20_000_000;
/// After events that were of no use, in nanoseconds: they may stay.
const NS_OF_REST: u64 = 1_000_000;

/// Descriptors of calls that wait, with the cookies of their sockets.
static KEPT: Guarded<Vec<(c_int, u64)>> = Guarded::new(Vec::new());

/// The connection by a descriptor of a call's own, while it waits: another thread may close the program's, or put another connection in its
/// place, and the call goes on with what it began with, as one that sleeps in the kernel does.
///
/// Handlers wait meanwhile, for they may leave by a jump. None runs late: the first signal ends the call.
#[derive(Debug)]
struct Kept {
    fd: c_int,
    cookie: u64,
    _busy: Busy,
}

impl Kept {
    fn new(socket: &'static Socket, fd: c_int) -> Option<Kept> {
        let busy = Busy::new();
        let cookie = cookie(fd)?;
        let mut all = KEPT.lock()?;
        let copy = kernel::high_copy(fd)?.into_raw_fd();
        all.push((copy, cookie));
        drop(all);
        let kept = Kept {
            fd: copy,
            cookie,
            _busy: busy,
        };
        // It was that still when it was copied.
        table::is(fd, socket).then_some(kept)
    }

    fn is_still(&self) -> bool {
        is_still(self.fd, self.cookie)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(mut all) = KEPT.lock() {
            all.retain(|(fd, _)| *fd != self.fd);
            close((self.fd, self.cookie));
        }
    }
}

fn cookie(fd: c_int) -> Option<u64> {
    kernel::option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// Whoever closes all descriptors that it does not know closes these, too.
fn is_still(fd: c_int, known: u64) -> bool {
    cookie(fd) == Some(known)
}

fn close((fd, known): (c_int, u64)) {
    if is_still(fd, known) {
        kernel!(libc::SYS_close, fd);
    }
}

/// Before a fork: none is being made.
pub(crate) fn lock_for_fork() {
    KEPT.lock_for_fork();
}

/// After it, in the parent.
pub(crate) fn unlock_after_fork() {
    KEPT.unlock_after_fork();
}

/// In a forked child, see [`Guarded::begin_child`]: the calls are the parent's.
pub(crate) fn begin_child(forker: u32) {
    KEPT.begin_child(forker);
    if let Some(mut all) = KEPT.lock() {
        all.drain(..).for_each(close);
    }
}

/// Durations of waits, the longest first. The kernel cannot write here what is left of one when the process is stopped (SIGSTOP), and
/// so does not go on by itself when that continues: the wait ends, as a call of TCP's that has something to return.
static PIECES: [timespec; 6] = [
    nanoseconds(NS_BEFORE_LOOK as i64),
    nanoseconds(4_000_000),
    nanoseconds(1_000_000),
    nanoseconds(100_000),
    nanoseconds(10_000),
    nanoseconds(0),
];

const fn nanoseconds(tv_nsec: i64) -> timespec {
    timespec { tv_sec: 0, tv_nsec }
}

/// Sleeps until there are such events, so long at most, or until any handler has run, or the process was stopped. The events, or a negated
/// error number.
pub(crate) fn await_events(fd: c_int, events: i16, patience_ns: u64) -> c_int {
    let mut entry = entry(fd, events);
    match await_entry(&raw mut entry, patience_ns) {
        1.. => c_int::from(entry.revents),
        none => none,
    }
}

/// As [`await_events`], with an entry of ours or the program's: how many have events, or a negated error number.
pub(crate) fn await_entry(entry: *mut pollfd, patience_ns: u64) -> c_int {
    thread::test_cancel();
    let found = await_uncancelled(entry, patience_ns);
    if found <= 0 {
        thread::test_cancel();
    }
    found
}

fn entry(fd: c_int, events: i16) -> pollfd {
    let revents = 0;
    pollfd {
        fd,
        events,
        revents,
    }
}

/// Where waits are no place for it: whether another thread has asked to cancel this one, perhaps before the wait began. Where that cannot
/// be told, the thread ends here if so.
fn is_cancelled() -> bool {
    const SIGCANCEL_OF_MUSL: c_int = 33;
    if c_library::is_musl() {
        // Its handler blocks its signal where the thread is in no call that can be cancelled; nobody else does.
        return thread::blocks(SIGCANCEL_OF_MUSL) && thread::may_be_cancelled();
    }
    thread::test_cancel();
    false
}

/// As [`await_entry`], where no thread is cancelled.
fn await_uncancelled(entry: *mut pollfd, patience_ns: u64) -> c_int {
    let fits = |piece: &&timespec| piece.tv_nsec as u64 <= patience_ns;
    let piece = PIECES.iter().find(fits).map_or(null(), std::ptr::from_ref);
    kernel!(libc::SYS_ppoll, entry, 1usize, piece, 0usize, 0usize) as c_int
}

/// What a wait came to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waited {
    /// There are these.
    Ready(i16),
    /// There are none yet.
    Again,
    /// A handler has run, or waits; the process was stopped; the time is over; or the connection is not there any more.
    Over,
    /// The program may not ask for events: a filter is there.
    Refused,
}

/// The waits of one call. What the program says of waiting meanwhile is for later calls.
#[derive(Debug)]
pub(crate) struct Waits {
    socket: &'static Socket,
    fd: c_int,
    kept: Option<Kept>,
    /// When, of CLOCK_MONOTONIC in nanoseconds, they are over.
    until_ns: u64,
    /// When the call began.
    interrupts: Interrupts,
    /// What the last one came to.
    found: c_int,
}

impl Waits {
    pub(crate) fn new(
        socket: &'static Socket,
        fd: c_int,
        until_ns: u64,
        interrupts: Interrupts,
    ) -> Waits {
        let is_alone = thread::is_alone();
        Waits {
            socket,
            fd,
            kept: (!is_alone).then(|| Kept::new(socket, fd)).flatten(),
            until_ns,
            interrupts,
            found: 0,
        }
    }

    /// By which the connection is used meanwhile.
    pub(crate) fn fd(&self) -> c_int {
        self.kept.as_ref().map_or(self.fd, |kept| kept.fd)
    }

    /// Waits for a while. What is there already is told also when the time is over.
    pub(crate) fn once(&mut self, events: i16) -> Waited {
        let is_over = self.are_over();
        let patience_ns = match is_over {
            true => 0,
            false => self.left_ns().min(NS_BEFORE_LOOK),
        };
        let is_place = c_library::cancels_with_a_part();
        let mut entry = entry(self.fd(), events);
        self.found = match is_place {
            true => await_entry(&raw mut entry, patience_ns),
            false => await_uncancelled(&raw mut entry, patience_ns),
        };
        if self.found == -libc::EINTR || !self.is_still() {
            return Waited::Over;
        }
        match self.found {
            ..=0 if is_over => Waited::Over,
            ..0 => Waited::Refused,
            0 if !is_place && is_cancelled() => Waited::Over,
            0 => Waited::Again,
            1.. => Waited::Ready(entry.revents),
        }
    }

    /// What was to be there was not: an error that concerns others, or another thread has it.
    pub(crate) fn rest(&self) {
        await_uncancelled(&mut entry(-1, 0), NS_OF_REST);
    }

    /// Whether a wait would not begin any more.
    pub(crate) fn are_over(&self) -> bool {
        self.interrupts.end_call(true) || thread::has_waiting() || self.left_ns() == 0
    }

    pub(crate) fn are_refused(&self) -> bool {
        self.found < 0
    }

    /// Before the kernel's own call sleeps, where waits are refused: handlers, which may leave by a jump, run meanwhile, and the program's
    /// descriptor is used from now on. False: one has run, or it is another connection's.
    pub(crate) fn leave_to_kernel(&mut self) -> bool {
        self.kept = None;
        !self.are_over() && self.is_still()
    }

    fn left_ns(&self) -> u64 {
        self.until_ns.saturating_sub(kernel::monotonic_ns())
    }

    fn is_still(&self) -> bool {
        match &self.kept {
            Some(kept) => kept.is_still(),
            None => table::is(self.fd, self.socket),
        }
    }
}
