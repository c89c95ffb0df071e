//! Descriptors that the program passes to another process: the receiver knows the kernel's road only.

use libc::{c_int, msghdr};
use millrace_wire::Reason;

use crate::table::{self, Entry};
use crate::{headers, process, thread, uring, user};

/// Pins every connection that a message carries by SCM_RIGHTS.
pub(crate) fn note_passed(header: &msghdr) {
    let bytes = headers::count(header.msg_controllen);
    if bytes == 0 || !user::can_read(header.msg_control.cast(), bytes) {
        return;
    }
    for fd in headers::descriptors(header) {
        note_given(fd, table::get(fd));
    }
}

/// What `fd` is, `entry`, gets another descriptor whose calls nobody sees.
#[cold]
pub(crate) fn note_given(fd: c_int, entry: Entry) {
    let errno = thread::errno();
    match entry {
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
    thread::set_errno(errno);
}
