//! Descriptors that the kernel has made, and one that leaves its owner before that is gone.
#![allow(
    unsafe_code,
    reason = "a descriptor from the kernel, and one that another thread closes"
)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{SockFlag, accept4};

use super::connection::{Unread, has_rest};
use crate::handed::Debts;

/// A connection with a peer. What the peer has put into its queue goes with it, and nobody waits for that.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: ManuallyDrop<OwnedFd>,
    debts: Debts,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd, debts: &Debts) -> Connection {
        Connection {
            socket: ManuallyDrop::new(socket),
            debts: debts.clone(),
        }
    }

    /// What comes by it from now on is somebody else's to close.
    pub(crate) fn with_debts(mut self, debts: &Debts) -> Connection {
        self.debts = debts.clone();
        self
    }

    pub(super) fn debts(&self) -> &Debts {
        &self.debts
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let has_rest = has_rest(self.socket.as_fd());
        // SAFETY: it is used no more.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        if has_rest {
            self.debts.close(1, Unread(socket));
        }
    }
}

/// The next who wants to connect. None: nobody does now.
pub(crate) fn accept(listener: &OwnedFd, debts: &Debts) -> io::Result<Option<Connection>> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    match accept4(listener.as_fd().as_raw_fd(), flags) {
        Ok(fd) => {
            // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows of it.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            Ok(Some(Connection::new(socket, debts)))
        }
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
