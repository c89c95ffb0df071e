//! Looking at bytes without taking them: kernel bytes, the ring's, and kernel bytes behind those, in one call.

use std::sync::atomic::Ordering::SeqCst;

use libc::{c_int, iovec};
use millrace_stream::ReceiveHalf;

use super::by_kernel::{account, keep_error, recount};
use super::{Call, Progress, Step, copy_from_ring};
use crate::kernel::{self, kernel};
use crate::socket::{Locked, Socket};
use crate::{real, thread};

/// Looks at what is there, when something is in the ring. `limit` kernel bytes come before that.
pub(super) fn peek(
    socket: &'static Socket,
    call: &Call<'_>,
    locked: Locked<ReceiveHalf<'_>>,
    progress: &mut Progress<'_>,
    (limit, may_wait): (u64, bool),
) -> Step {
    let Some((head, in_ring, window)) = locked.half.in_ring() else {
        return Step::Again;
    };
    let wanted = progress.wanted;
    let before = wanted.min(usize::try_from(limit).unwrap_or(usize::MAX));
    let middle = (wanted - before).min(in_ring as usize);
    let all = may_wait && call.has(libc::MSG_WAITALL);
    if locked.half.is_open() && all && wanted > before + middle {
        // What is still to come must come to where a sleeper is woken.
        locked.half.leave();
        return Step::Again;
    }
    let behind = if locked.half.is_open() {
        0
    } else {
        wanted - before - middle
    };
    let copied = match copy_from_ring(call, &locked, progress, (before, middle), (head, window)) {
        None if before == 0 => return Step::End(-(libc::EFAULT as isize)),
        copied => copied.unwrap_or(0),
    };
    let mut list = progress.vectors.part(0, before);
    if copied == middle {
        list.extend(progress.vectors.part(before + middle, behind));
    }
    let seen = if before == 0 && !all && (behind == 0 || kernel::unread(call.fd) == 0) {
        // Nothing there, or an error, which is for the next call to take.
        0
    } else if all && before + behind > 0 {
        let row = socket.row();
        row.receive.sleepers.fetch_add(1, SeqCst);
        drop(locked);
        let result = ask(call, &mut list, libc::MSG_WAITALL);
        account(socket, call, row, result);
        result
    } else {
        ask(call, &mut list, libc::MSG_DONTWAIT)
    };
    let Ok(seen) = usize::try_from(seen) else {
        let error = -(seen as i32);
        if before == 0 {
            keep_error(socket, error);
            progress.got = copied;
            return Step::Enough;
        }
        return match error {
            libc::EAGAIN if recount(socket, call.fd) => Step::Again,
            libc::EAGAIN if may_wait => Step::AwaitKernel,
            _ => Step::End(-(error as isize)),
        };
    };
    progress.got = if seen < before { seen } else { seen + copied };
    if progress.got == 0 {
        return Step::End(0);
    }
    Step::Enough
}

/// A `recvmsg` with MSG_PEEK into `list`: a count, or a negated error number.
fn ask(call: &Call<'_>, list: &mut [iovec], how: c_int) -> isize {
    // SAFETY: pointers and integers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = list.len();
    let flags = libc::MSG_PEEK | call.flags & libc::MSG_TRUNC | how;
    if how == libc::MSG_DONTWAIT {
        return kernel!(libc::SYS_recvmsg, call.fd, &raw mut header, flags);
    }
    let errno = thread::errno();
    // SAFETY: the program's own buffers.
    let result = unsafe { real::recvmsg(call.fd, &raw mut header, flags) };
    let error = thread::errno();
    thread::set_errno(errno);
    if result < 0 {
        -(error as isize)
    } else {
        result
    }
}
