//! What no safe wrapper does.

use std::io::IoSliceMut;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use millrace_shm::segment::Segment;
use millrace_wire::{MAX_BYTES, ToClient};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};

/// The next message and its descriptor; `None` when the agent has hung up.
pub(crate) fn hear(socket: &OwnedFd) -> Option<(ToClient, Option<OwnedFd>)> {
    let (message, descriptors) = hear_all(socket)?;
    Some((message, descriptors.into_iter().next()))
}

/// The next message and its descriptors.
pub(crate) fn hear_all(socket: &OwnedFd) -> Option<(ToClient, Vec<OwnedFd>)> {
    let mut buffer = [0; MAX_BYTES];
    let mut control = nix::cmsg_space!([RawFd; 8]);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received =
        match recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)
        {
            Ok(received) => received,
            Err(nix::errno::Errno::ECONNRESET) => return None,
            Err(errno) => panic!("nothing came: {errno}"),
        };
    let mut descriptors = Vec::new();
    for message in received.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(list) = message {
            for fd in list {
                // SAFETY: the kernel has just made this descriptor for this process.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    let length = received.bytes;
    (length > 0).then(|| (ToClient::parse(&buffer[..length]).unwrap(), descriptors))
}

/// Puts bytes into a ring at `tail`.
pub(crate) fn write_ring(
    segment: &Segment,
    direction: usize,
    tail: u32,
    window: u32,
    bytes: &[u8],
) {
    // SAFETY: the slice has as many bytes as it says.
    unsafe { segment.write(direction, tail, window, bytes.as_ptr(), bytes.len() as u32) };
}

/// A socket option that is a number of 64 bits.
pub(crate) fn number(stream: &TcpStream, option: libc::c_int) -> u64 {
    let mut value = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has that many.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0);
    value
}
