//! What the program asks for.

use libc::{c_int, iovec};

use crate::socket::Socket;

/// One program's call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) fd: c_int,
    pub(crate) list: &'a [iovec],
    pub(crate) flags: c_int,
}

impl Call<'_> {
    #[inline]
    pub(super) fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Bytes that it has room for.
    pub(super) fn wanted(&self) -> usize {
        let lengths = self.list.iter().map(|vector| vector.iov_len);
        lengths.fold(0, usize::saturating_add)
    }

    /// Whether it waits for bytes where there are none.
    #[inline]
    pub(super) fn waits(&self, socket: &Socket) -> bool {
        !self.has(libc::MSG_DONTWAIT) && !socket.is_nonblocking()
    }

    /// Whether it does not wait, where the gate is open for calls that do.
    #[inline]
    pub(super) fn ends_waits(&self, socket: &Socket) -> bool {
        !self.waits(socket) && socket.habits.are_in_calls_alone()
    }
}
