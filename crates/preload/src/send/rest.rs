//! What is left of a message after the ring took its first part goes by the kernel, and what a signal does to it.
//!
//! In the kernel a signal that comes while a call is under way ends its next wait: with the count of what was sent, if anything was. Our
//! calls are several of the kernel's, and one that begins after the handler has run knows nothing of that.

use libc::c_int;
use millrace_shm::board::Row;

use super::turn::end_parts;
use super::{Call, account, end_raw};
use crate::receive::keep_error;
use crate::socket::Socket;
use crate::thread::Interrupts;
use crate::vectors::Vectors;
use crate::{Outcome, kernel, real, table, thread};

/// Sends what is left after the ring took the first part. Errors are for the next call: a part has been sent.
pub(super) fn send_rest(
    socket: &'static Socket,
    row: &'static Row,
    call: &Call<'_>,
    vectors: &Vectors<'_>,
    interrupts: Interrupts,
) -> isize {
    if kernel::has_failed(call.fd) {
        // The kernel tells of an error once: the next call takes it.
        account(socket, row, 0);
        return 0;
    }
    let errno = thread::errno();
    let waits = call.flags & libc::MSG_DONTWAIT == 0 && !socket.is_nonblocking();
    // What the kernel takes at once comes before the messages of other threads.
    // Nothing where another thread has closed the connection: the number may be anything.
    let send = |vectors: &Vectors<'_>, how| match table::is(call.fd, socket) {
        true => send_list(call, vectors, how),
        false => 0,
    };
    let mut last = send(vectors, QUIETLY | libc::MSG_DONTWAIT);
    end_parts(&row.send);
    let mut result = last;
    let taken = last.max(0).cast_unsigned();
    let has_no_room = last >= 0 || thread::errno() == libc::EAGAIN;
    let waits = waits && !interrupts.end_call(true);
    if waits && has_no_room && taken < vectors.remaining() {
        let mut rest = vectors.clone();
        rest.skip(taken);
        last = send(&rest, QUIETLY);
        result = if taken > 0 {
            result + last.max(0)
        } else {
            last
        };
    }
    if last < 0 && (thread::errno() != libc::EPIPE || socket.is_reset_behind_end(call.fd)) {
        keep_error(socket, thread::errno());
    }
    account(socket, row, result);
    thread::set_errno(errno);
    result
}

/// Sends a message of which nothing is on the ring, where a handler has run since the call began: without a wait.
#[cold]
pub(super) fn send_interrupted(
    socket: &'static Socket,
    row: &'static Row,
    call: &Call<'_>,
    vectors: &Vectors<'_>,
    (interrupts, raw): (Interrupts, &mut dyn FnMut() -> isize),
) -> Outcome {
    let errno = thread::errno();
    let is_due = socket.error() != 0 || !table::is(call.fd, socket);
    if is_due || call.flags & libc::MSG_DONTWAIT != 0 || socket.is_nonblocking() {
        return end_raw(socket, call.fd, row, raw);
    }
    let sent = send_list(call, vectors, libc::MSG_DONTWAIT);
    let error = thread::errno();
    thread::set_errno(errno);
    let limit = kernel::option::<[i64; 2]>(call.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO);
    let is_restarted = limit == Some([0; 2]) && !interrupts.end_call(false);
    if sent < 0 && error == libc::EAGAIN && is_restarted {
        return end_raw(socket, call.fd, row, raw);
    }
    account(socket, row, sent);
    match (sent < 0, error) {
        (false, _) => Outcome::Handled(sent),
        (true, libc::EAGAIN) => Outcome::Errno(libc::EINTR),
        (true, error) => Outcome::Errno(error),
    }
}

/// Errors are for the next call: this one has no signal for them.
const QUIETLY: c_int = libc::MSG_NOSIGNAL;

/// The program's call for what is left of its buffers.
fn send_list(call: &Call<'_>, vectors: &Vectors<'_>, how: c_int) -> isize {
    let mut list = vectors.list();
    // SAFETY: pointers and integers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = list.len();
    let flags = call.flags | how;
    // SAFETY: the program's own buffers.
    unsafe { real::sendmsg(call.fd, &raw const header, flags) }
}
