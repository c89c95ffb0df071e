//! Descriptors that the program passes to another process: the receiver knows the kernel's road only.

use libc::{c_int, msghdr};
use millrace_wire::Reason;

use crate::table::{self, Entry};
use crate::user;

/// Pins every connection that a message carries by SCM_RIGHTS.
pub(crate) fn note_passed(header: &msghdr) {
    if header.msg_controllen == 0
        || !user::can_read(header.msg_control.cast(), header.msg_controllen)
    {
        return;
    }
    // SAFETY: the control buffer has just been found readable, and the walk stays inside it.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: as above.
    while let Some(control) = unsafe { next.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: as above.
            let first = unsafe { libc::CMSG_DATA(control) };
            let start = first as usize - std::ptr::from_ref(control) as usize;
            let end = std::ptr::from_ref(control) as usize + control.cmsg_len;
            let limit = header.msg_control as usize + header.msg_controllen;
            let count = control.cmsg_len.saturating_sub(start) / size_of::<c_int>();
            for index in (0..count).take_while(|_| end <= limit) {
                // SAFETY: inside the message, which is inside the buffer.
                let fd = unsafe { first.cast::<c_int>().add(index).read_unaligned() };
                match table::get(fd) {
                    Entry::Socket(socket) => {
                        socket.pin(Reason::PassedFd);
                        socket.bring_back(fd);
                        socket.send_on(fd);
                    }
                    Entry::Set(set) => {
                        set.tell_kernel_by(fd);
                        set.give_up_records();
                    }
                    Entry::Unknown | Entry::Unconnected(_) => {}
                }
            }
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
}
