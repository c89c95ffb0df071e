//! How many bytes a receiving call has left, which is told beside those that it took (TCP_INQ, `tcp(7)`).

use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, cmsghdr, msghdr};
use millrace_shm::board::flags;
use millrace_stream::ReceiveHalf;

use super::by_kernel::recount;
use crate::socket::Socket;
use crate::{headers, kernel, user};

const HEADER_BYTES: usize = size_of::<cmsghdr>();
/// Of a control message with a number, and with what follows up to the next one.
const MESSAGE_BYTES: usize = HEADER_BYTES + size_of::<c_int>();
const SPACE: usize = MESSAGE_BYTES.next_multiple_of(size_of::<usize>());

impl Socket {
    /// Whether receiving calls say how many bytes they leave.
    #[inline]
    pub(crate) fn tells_left(&self) -> bool {
        self.row().identity.flags.load(Relaxed) & flags::TELLS_LEFT != 0
    }

    pub(crate) fn set_tells_left(&self, tells: bool) {
        let word = &self.row().identity.flags;
        match tells {
            true => word.fetch_or(flags::TELLS_LEFT, Relaxed),
            false => word.fetch_and(!flags::TELLS_LEFT, Relaxed),
        };
    }

    /// What is unread, on the ring and with the kernel. The end of the stream counts as one, read or not: the kernel has a reader go on.
    fn left(&'static self, fd: c_int) -> c_int {
        let locked = self.lock_receive(fd);
        let of_kernel = kernel::left(fd, self.row().receive.kernel_position.load(Relaxed));
        let in_ring = locked.map_or(0, |locked| self.left_in_ring(fd, &locked.half, of_kernel));
        of_kernel.saturating_add(in_ring)
    }

    /// What a reader gets from the ring behind the kernel's bytes, of which there are so many now. The half is locked.
    pub(crate) fn left_in_ring(
        &self,
        fd: c_int,
        half: &ReceiveHalf<'_>,
        of_kernel: c_int,
    ) -> c_int {
        let of_kernel = u64::try_from(of_kernel).unwrap_or(0);
        let mut in_ring = half.unread_behind(of_kernel);
        if in_ring == 0 && half.unread() != 0 && recount(self, fd) {
            in_ring = half.unread_behind(of_kernel);
        }
        // What is told of is there until it is read.
        self.told.is_ready(half);
        in_ring.cast_signed()
    }

    /// Says how many bytes a receiving call has left, in the control messages that its program has room for. Returns how many bytes they
    /// took, and flags of the message.
    pub(crate) fn tell_left(&'static self, fd: c_int, header: &msghdr) -> (usize, c_int) {
        let room = headers::count(header.msg_controllen);
        if header.msg_control.is_null() || room < HEADER_BYTES {
            return (0, libc::MSG_CTRUNC);
        }
        let left = self.left(fd);
        let bytes = MESSAGE_BYTES.min(room);
        let flags = match bytes {
            MESSAGE_BYTES => 0,
            _ => libc::MSG_CTRUNC,
        };
        let place = header.msg_control.cast::<u8>();
        if !user::can_write(place, bytes) {
            return (0, flags);
        }
        let words = [
            (bytes as u64).to_ne_bytes(),
            two(libc::IPPROTO_TCP, libc::TCP_CM_INQ),
            two(left, 0),
        ];
        let message = words.as_flattened();
        // SAFETY: just found writable; the program gave it to this call.
        unsafe { place.copy_from_nonoverlapping(message.as_ptr(), bytes) };
        (SPACE.min(room), flags)
    }
}

fn two(first: c_int, second: c_int) -> [u8; 8] {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    [a, b, c, d, e, f, g, h]
}
