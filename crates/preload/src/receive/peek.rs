//! Looking at bytes without taking them: kernel bytes, the ring's, and kernel bytes behind those, in one call.

use std::sync::atomic::Ordering::SeqCst;

use libc::{c_int, iovec};
use millrace_stream::ReceiveHalf;

use super::by_kernel::{account, await_list, keep_error, patience_of, receive_list, recount};
use super::rest::await_byte;
use super::{Call, Progress, Step, copy_from_ring};
use crate::socket::{Locked, Socket};
use crate::waits::Waits;
use crate::{kernel, table};

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
    let behind = match locked.half.is_open() {
        true => 0,
        false => wanted - before - middle,
    };
    keep(socket, call, &locked, (head, window), middle);
    let part = (before, middle);
    let copied = match copy_from_ring((socket, call), &locked, progress, part, (head, window)) {
        None if before == 0 => return Step::End(-(libc::EFAULT as isize)),
        copied => copied.unwrap_or(0),
    };
    let mut list = progress.vectors.part(0, before);
    if copied == middle {
        list.extend(progress.vectors.part(before + middle, behind));
    }
    let flags = libc::MSG_PEEK | call.flags & libc::MSG_TRUNC;
    let seen = if before == 0 && !all && (behind == 0 || kernel::unread(call.fd) == 0) {
        // Nothing there, or an error, which is for the next call to take.
        0
    } else if all && before + behind > 0 {
        socket.row().receive.sleepers.fetch_add(1, SeqCst);
        drop(locked);
        let is_first = middle > 0 && before == 0;
        let result = look_on(socket, call, progress, (&mut list, flags, is_first));
        if middle > 0 && !is_there(socket, call.fd, (head, middle)) {
            // Sent again by the kernel, or taken by another thread, meanwhile: not to be seen twice.
            return Step::Again;
        }
        result
    } else {
        receive_list(call.fd, &mut list, flags | libc::MSG_DONTWAIT)
    };
    let Ok(seen) = usize::try_from(seen) else {
        let error = -(seen as i32);
        if before == 0 {
            keep_error(socket.row(), error);
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

/// Looks at the kernel's bytes, and waits for all. `is_first`: the ring's have been seen, and none of the kernel's come before them; then
/// the kernel's call is to wait once it has a byte. A time that is set is the whole call's.
fn look_on(
    socket: &'static Socket,
    call: &Call<'_>,
    progress: &Progress<'_>,
    (list, flags, is_first): (&mut [iovec], c_int, bool),
) -> isize {
    let is_over = progress.interrupts.end_call(true);
    let mut how = libc::MSG_WAITALL;
    if is_first && (is_over || patience_of(call.fd).is_none()) {
        let mut waits = Waits::new(socket, call.fd, u64::MAX, progress.interrupts);
        if !await_byte(&mut waits) || !table::is(call.fd, socket) {
            account(socket, call, socket.row(), 0);
            return 0;
        }
        if waits.are_over() {
            how = libc::MSG_DONTWAIT;
        }
        // Here `waits` ends: handlers do not wait for the kernel's call.
    }
    let result = await_list(call.fd, list, flags | how);
    account(socket, call, socket.row(), result);
    result
}

/// What is seen now is there to be taken, and is what is taken then.
fn keep(
    socket: &Socket,
    call: &Call<'_>,
    locked: &Locked<ReceiveHalf<'_>>,
    ring: (u32, u32),
    bytes: usize,
) {
    socket.told.is_ready(&locked.half);
    if !call.has(libc::MSG_TRUNC) {
        socket.peeked.keep(locked, ring, bytes);
    }
}

/// Whether so many bytes from `head` on are in the ring still.
fn is_there(socket: &'static Socket, fd: c_int, (head, bytes): (u32, usize)) -> bool {
    socket.lock_receive(fd).is_none_or(|locked| {
        let in_ring = locked.half.in_ring();
        in_ring.is_some_and(|(now, count, _)| now == head && count as usize >= bytes)
    })
}
