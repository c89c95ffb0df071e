//! Descriptors that go with messages.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

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
