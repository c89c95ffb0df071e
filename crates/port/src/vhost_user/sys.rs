//! Descriptors that come with messages.
#![allow(unsafe_code, reason = "descriptors from the kernel")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::handed::DESCRIPTORS_MAX;

/// Sends bytes, and descriptors with the first of them; returns how many bytes were sent.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let numbers: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = (!numbers.is_empty()).then(|| ControlMessage::ScmRights(&numbers));
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let parts = [IoSlice::new(bytes)];
    let sent = sendmsg::<()>(socket.as_raw_fd(), &parts, rights.as_slice(), flags, None)?;
    Ok(sent)
}

/// Takes bytes, and adds the descriptors that came with them. None: there are none now. 0: it is over.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<Option<usize>> {
    let mut control = cmsg_space!([RawFd; DESCRIPTORS_MAX]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let received = match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags) {
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(Errno::ECONNRESET) => return Ok(Some(0)),
        other => other?,
    };
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(list) = message {
            for fd in list {
                // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows of it.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    Ok(Some(received.bytes))
}
