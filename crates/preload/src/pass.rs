//! Descriptors that the program passes to another process: the receiver knows the kernel's road only.

use libc::msghdr;
use millrace_wire::Reason;

use crate::table::{self, Entry};
use crate::{headers, process, uring, user};

/// Pins every connection that a message carries by SCM_RIGHTS.
pub(crate) fn note_passed(header: &msghdr) {
    let bytes = headers::count(header.msg_controllen);
    if bytes == 0 || !user::can_read(header.msg_control.cast(), bytes) {
        return;
    }
    for fd in headers::descriptors(header) {
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
            Entry::Ring => uring::begin(),
            Entry::Unconnected(_) => process::leave_unconnected(fd),
            Entry::Unknown => {}
        }
    }
}
