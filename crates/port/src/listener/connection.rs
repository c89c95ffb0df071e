//! What comes by a connection: bytes, and descriptors with them.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{
    MsgFlags, Shutdown, SockType, getsockopt, recv, recvmsg as peek, setsockopt, shutdown, sockopt,
};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use super::sys::Connection;
use crate::handed::{DESCRIPTORS_MAX, Gifts};

impl Connection {
    /// None of what comes by it, so far.
    pub(crate) fn no_gifts(&self) -> Gifts {
        Gifts::new(self.debts())
    }

    /// Takes bytes, or a datagram, and adds the descriptors that came with them. None: there are none now. 0: it is over.
    ///
    /// # Errors
    /// What the kernel says; `EMFILE` when it had no room for all descriptors.
    pub(crate) fn receive(
        &self,
        buffer: &mut [u8],
        gifts: &mut Gifts,
    ) -> io::Result<Option<usize>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = match recvmsg(self, &mut parts, &mut control, flags) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET) => return Ok(Some(0)),
            other => other?,
        };
        // Those that there was room for are there, also where it was too little.
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptors.for_each(|fd| gifts.push(fd));
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::MFILE.into());
        }
        Ok(Some(received.bytes))
    }

    /// Looks at bytes, or a datagram, as [`Connection::receive`] would take them, and leaves all where it is.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        match recv(self.as_fd().as_raw_fd(), buffer, flags) {
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(None),
            Err(nix::Error::ECONNRESET) => Ok(Some(0)),
            other => Ok(Some(other?)),
        }
    }
}

/// A connection that is closed, with something in its queue. Who closes so has the peer's queue thrown away as well, and with it the reason
/// that was told there: so all is read first. Descriptors that come with it are closed by that.
#[derive(Debug)]
pub(super) struct Unread(pub(super) OwnedFd);

impl Drop for Unread {
    fn drop(&mut self) {
        let mut buffer = [0; 4096];
        let take = |buffer: &mut [u8]| recv(self.0.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT);
        // Nothing more comes, so there is an end.
        while take(&mut buffer).is_ok_and(|length| length > 0) {}
    }
}

/// Whether something waits in the queue of a connection that is to be closed, to which nothing more can come.
pub(super) fn has_rest(socket: BorrowedFd<'_>) -> bool {
    // A datagram may be without bytes: it has its sender, for which there is no room here, and that is told. A stream has no such message.
    let is_stream = getsockopt(&socket, sockopt::SockType) == Ok(SockType::Stream);
    if !is_stream {
        let _ = setsockopt(&socket, sockopt::PassCred, &true);
    }
    // The peer sees its end now, whenever it is closed.
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let seen = peek::<()>(socket.as_raw_fd(), &mut parts, None, flags);
    let is_cut = |flags: MsgFlags| !is_stream && flags.contains(MsgFlags::MSG_CTRUNC);
    seen.is_ok_and(|seen| seen.bytes > 0 || is_cut(seen.flags))
}
