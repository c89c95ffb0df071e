//! Descriptors that came with messages.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// One of them.
pub(crate) fn received(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made it for this process, and nothing else knows of it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
