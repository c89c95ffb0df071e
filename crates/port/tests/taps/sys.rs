//! What is asked of a queue that ports do not ask.
#![allow(unsafe_code, reason = "ioctl of a device")]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Has the kernel take no more of a queue's packets than of so many bytes, as long as they have not gone on.
pub(crate) fn limit_sent(fd: BorrowedFd<'_>, bytes: c_int) {
    // SAFETY: the kernel reads an int there.
    let set = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETSNDBUF, &raw const bytes) };
    assert_eq!(set, 0);
}
