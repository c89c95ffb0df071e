//! A descriptor that the kernel has made.
#![allow(unsafe_code, reason = "a descriptor from the kernel")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{SockFlag, accept4};

/// The next who wants to connect. None: nobody does now.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    match accept4(listener.as_fd().as_raw_fd(), flags) {
        // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows of it.
        Ok(fd) => Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) })),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
