//! What is left of a message after the ring took its first part goes by the kernel.

use libc::c_int;
use millrace_shm::board::Row;

use super::turn::end_parts;
use super::{Call, account};
use crate::receive::keep_error;
use crate::socket::Socket;
use crate::vectors::Vectors;
use crate::{kernel, real, table, thread};

/// Sends what is left after the ring took the first part. Errors are for the next call: a part has been sent.
pub(super) fn send_rest(
    socket: &'static Socket,
    row: &'static Row,
    call: &Call<'_>,
    vectors: &Vectors<'_>,
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
    let mut last = send(vectors, libc::MSG_DONTWAIT);
    end_parts(&row.send);
    let mut result = last;
    let taken = last.max(0).cast_unsigned();
    let has_no_room = last >= 0 || thread::errno() == libc::EAGAIN;
    if waits && has_no_room && taken < vectors.remaining() {
        let mut rest = vectors.clone();
        rest.skip(taken);
        last = send(&rest, 0);
        result = if taken > 0 {
            result + last.max(0)
        } else {
            last
        };
    }
    if last < 0 {
        keep_error(socket, thread::errno());
    }
    account(socket, row, result);
    thread::set_errno(errno);
    result
}

/// The program's call for what is left of its buffers.
fn send_list(call: &Call<'_>, vectors: &Vectors<'_>, how: c_int) -> isize {
    let mut list = vectors.list();
    // SAFETY: pointers and integers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = list.len();
    let flags = call.flags | libc::MSG_NOSIGNAL | how;
    // SAFETY: the program's own buffers.
    unsafe { real::sendmsg(call.fd, &raw const header, flags) }
}
