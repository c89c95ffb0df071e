//! The rest of a call that waits for all that it asked for, when it has taken a part from the ring.

use super::by_kernel::{await_list, deadline_ns, keep_error, receive_list};
use super::{Call, Progress};
use crate::kernel;
use crate::socket::Socket;
use crate::thread;
use crate::waits::{Waited, Waits};

/// Waits for a byte of the kernel's behind those that a call has of the ring. False: the call is over.
///
/// With none of its own the kernel's call would be restarted after a handler, and would go on across the mark of urgent data.
pub(super) fn await_byte(waits: &mut Waits) -> bool {
    const EVENTS: i16 = libc::POLLIN | libc::POLLRDHUP;
    let mut events = EVENTS | libc::POLLPRI;
    loop {
        match waits.once(events) {
            Waited::Over => return false,
            _ if kernel::is_at_mark(waits.fd()) => return false,
            Waited::Ready(found) if found != libc::POLLPRI => return true,
            // The mark comes later, behind bytes that are not there yet.
            Waited::Ready(_) => events = EVENTS,
            Waited::Again => {}
        }
    }
}

/// Waits for the rest. What the kernel waits for once it has a byte ends as it should; but a time that is set is the whole call's, and
/// another thread may close the descriptor between the two.
pub(super) fn gather_rest(
    socket: &'static Socket,
    call: &Call<'_>,
    progress: &Progress<'_>,
) -> isize {
    let flags = call.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let until_ns = deadline_ns(call.fd);
    let mut rest = progress.vectors.clone();
    let mut total = 0;
    let mut waits = Waits::new(socket, call.fd, until_ns, progress.interrupts);
    while rest.remaining() > 0 && await_byte(&mut waits) {
        if until_ns == u64::MAX && thread::is_alone() {
            return await_list(call.fd, &mut rest.list(), call.flags);
        }
        match receive_list(waits.fd(), &mut rest.list(), flags) {
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
