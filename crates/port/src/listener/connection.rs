//! What comes by a connection: bytes, and descriptors with them.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::socket::{
    MsgFlags, Shutdown, SockType, getsockopt, recvmsg as peek, setsockopt, shutdown, sockopt,
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
}

/// Whether something waits in the queue of a connection that is to be closed, to which nothing more can come.
pub(super) fn has_rest(socket: BorrowedFd<'_>) -> bool {
    // A datagram may be without bytes: it has its sender, for which there is no room here, and that is told. A stream has no such message.
    let is_stream = getsockopt(&socket, sockopt::SockType) == Ok(SockType::Stream);
    if !is_stream {
        let _ = setsockopt(&socket, sockopt::PassCred, &true);
    }
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Read);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    let seen = peek::<()>(socket.as_raw_fd(), &mut parts, None, flags);
    let is_cut = |flags: MsgFlags| !is_stream && flags.contains(MsgFlags::MSG_CTRUNC);
    seen.is_ok_and(|seen| seen.bytes > 0 || is_cut(seen.flags))
}
