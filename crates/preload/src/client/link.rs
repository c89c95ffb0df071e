//! The socket to the agent.

use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};

use libc::c_int;

use super::HIGH_DESCRIPTOR;
use crate::kernel::{self, kernel};

/// Whether root or our own user listens at the other end.
fn is_trusted(fd: c_int) -> bool {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let result = kernel!(
        libc::SYS_getsockopt,
        fd,
        libc::SOL_SOCKET,
        libc::SO_PEERCRED,
        &raw mut peer,
        &raw mut bytes
    );
    // In a user namespace that does not map the agent's user, root shows as the overflow user.
    let overflow_user = 65534;
    result == 0 && (peer.uid == 0 || peer.uid == overflow_user || peer.uid == kernel::user_id())
}

/// A connection to the agent, non-blocking, on a high descriptor.
pub(super) fn connect(path: &CString) -> Option<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let number = kernel!(libc::SYS_socket, libc::AF_UNIX, kind, 0usize);
    let number = c_int::try_from(number).ok().filter(|number| *number >= 0)?;
    // SAFETY: the kernel has just made it for us.
    let low = unsafe { OwnedFd::from_raw_fd(number) };
    // SAFETY: integers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return None;
    }
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    let connected = kernel!(
        libc::SYS_connect,
        number,
        &raw const address,
        size_of::<libc::sockaddr_un>()
    );
    if connected != 0 || !is_trusted(number) {
        return None;
    }
    let high = kernel!(
        libc::SYS_fcntl,
        number,
        libc::F_DUPFD_CLOEXEC,
        HIGH_DESCRIPTOR
    );
    match c_int::try_from(high) {
        // SAFETY: the kernel has just made it for us.
        Ok(high) if high >= 0 => Some(unsafe { OwnedFd::from_raw_fd(high) }),
        _ => Some(low),
    }
}

/// The descriptor that came with a message.
pub(super) fn passed_descriptor(header: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel has filled header and control buffer.
    let control = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
    if control.cmsg_level != libc::SOL_SOCKET || control.cmsg_type != libc::SCM_RIGHTS {
        return None;
    }
    // SAFETY: such a message carries at least one descriptor.
    let number = unsafe { libc::CMSG_DATA(control).cast::<c_int>().read_unaligned() };
    // SAFETY: the kernel has just made it for us.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}
