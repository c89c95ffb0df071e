//! The rest of a call that waits for all that it asked for, when it has taken a part from the ring.

use millrace_shm::board::Row;

use super::by_kernel::{await_list, deadline_ns, keep_error, receive_list};
use super::{Call, Progress};
use crate::kernel;
use crate::socket::Socket;
use crate::waits::{Waited, Waits};

/// Waits for a byte of the kernel's behind those that a call has. False: the call is over.
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
            Waited::Refused => return true,
        }
    }
}

/// Waits for the rest in pieces. A wait of the kernel's own would know nothing of a handler that has run just before, nor of the
/// connection when another thread has closed its descriptor, and would begin anew the time that is set.
pub(super) fn gather_rest(
    (socket, row): (&'static Socket, &Row),
    call: &Call<'_>,
    progress: &Progress<'_>,
) -> isize {
    let flags = call.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let until_ns = (progress.awaits_until_ns).unwrap_or_else(|| deadline_ns(call.fd));
    let mut rest = progress.vectors.clone();
    let mut total = 0;
    let mut waits = Waits::new(socket, call.fd, until_ns, progress.interrupts);
    while rest.remaining() > 0 && await_byte(&mut waits) {
        if waits.are_refused() && !waits.leave_to_kernel() {
            break;
        }
        let taken = match waits.are_refused() {
            true => await_list(waits.fd(), &mut rest.list(), call.flags),
            false => receive_list(waits.fd(), &mut rest.list(), flags),
        };
        match taken {
            taken if taken > 0 => {
                rest.skip(taken.cast_unsigned());
                total += taken;
            }
            error if error == -(libc::EAGAIN as isize) && !waits.are_over() => waits.rest(),
            0 => break,
            error if total == 0 => return error,
            error => {
                keep_error(row, -(error as i32));
                break;
            }
        }
    }
    total
}
