//! The rest of a call that waits for all that it asked for, when it has taken a part from the ring.

use std::os::fd::IntoRawFd;

use libc::c_int;

use super::by_kernel::{await_events, deadline_ns, keep_error, receive_list};
use super::{Call, Progress};
use crate::guarded::Guarded;
use crate::kernel::{self, kernel};
use crate::socket::Socket;
use crate::table;
use crate::thread::{self, Busy};

/// Where other threads may close the connection, or signals have come just before, a wait lasts so long at most, in nanoseconds.
const NS_BEFORE_LOOK: u64 = 20_000_000;

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

/// Waits for the rest in pieces: any handler ends a call that has something to return, and the kernel does not know that this one has, and
/// would restart it. What the program says of waiting meanwhile is for later calls.
pub(super) fn gather_rest(
    socket: &'static Socket,
    call: &Call<'_>,
    progress: &Progress<'_>,
) -> isize {
    let until_ns = deadline_ns(call.fd);
    let flags = call.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let mut rest = progress.vectors.clone();
    let mut total = 0;
    let is_alone = thread::is_alone();
    let kept = (!is_alone).then(|| Kept::new(socket, call.fd)).flatten();
    let fd = kept.as_ref().map_or(call.fd, |kept| kept.fd);
    let is_still = || {
        let kept = kept.as_ref().map(Kept::is_still);
        kept.unwrap_or_else(|| table::is(call.fd, socket))
    };
    while rest.remaining() > 0 {
        let left_ns = until_ns.saturating_sub(kernel::monotonic_ns());
        // What is there already is taken all the same.
        let is_over = progress.interrupts.end_call(true) || thread::has_waiting() || left_ns == 0;
        let patience_ns = match is_over {
            true => 0,
            false if is_alone => left_ns,
            false => left_ns.min(NS_BEFORE_LOOK),
        };
        let found = await_events(fd, patience_ns);
        if found < 0 || found == 0 && is_over || !is_still() {
            break;
        }
        if found == 0 {
            continue;
        }
        match receive_list(fd, &mut rest.list(), flags) {
            taken if taken > 0 => {
                rest.skip(taken.cast_unsigned());
                total += taken;
            }
            error if error == -(libc::EAGAIN as isize) => {}
            0 => break,
            error if total == 0 => return error,
            error => {
                keep_error(socket, -(error as i32));
                break;
            }
        }
    }
    total
}
