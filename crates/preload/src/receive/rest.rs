//! The rest of a call that waits for all that it asked for, when it has taken a part from the ring.

use super::by_kernel::{deadline_ns, keep_error, receive_list};
use super::{Call, Progress};
use crate::socket::Socket;
use crate::waits::{Waited, Waits};

/// Waits for the rest in pieces: any handler ends a call that has something to return, and the kernel does not know that this one has, and
/// would restart it.
pub(super) fn gather_rest(
    socket: &'static Socket,
    call: &Call<'_>,
    progress: &Progress<'_>,
) -> isize {
    const EVENTS: i16 = libc::POLLIN | libc::POLLRDHUP;
    let flags = call.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let mut rest = progress.vectors.clone();
    let mut total = 0;
    let mut waits = Waits::new(socket, call.fd, deadline_ns(call.fd), progress.interrupts);
    while rest.remaining() > 0 {
        match waits.once(EVENTS) {
            Waited::Ready => {}
            Waited::Again => continue,
            Waited::Over => break,
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
