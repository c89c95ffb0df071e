//! What no safe wrapper does.
#![allow(
    unsafe_code,
    reason = "one getsockopt on a borrowed descriptor, one descriptor that was just received"
)]

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};

/// Receives one message, and the first descriptor that comes with it.
pub(crate) fn receive_with_descriptor(
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = cmsg_space!([RawFd; 1]);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received =
        recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let mut descriptors = Vec::new();
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(list) = message {
            // SAFETY: the kernel has just made these descriptors for this process, and nothing else knows of them.
            descriptors.extend(
                list.into_iter()
                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
            );
        }
    }
    Ok((received.bytes, descriptors.into_iter().next()))
}

/// The cookie of the network namespace that a socket is in. Fails where the kernel is older than 5.14.
pub(crate) fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    get_u64(socket, libc::SO_NETNS_COOKIE)
}

/// The number that the kernel gives to a socket for its life, and never again.
#[cfg(test)]
pub(crate) fn socket_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    get_u64(socket, libc::SO_COOKIE)
}

fn get_u64(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<u64> {
    let mut value = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `length` bytes to `value`,
    // which has that many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}
