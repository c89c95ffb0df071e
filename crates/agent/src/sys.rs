//! What no safe wrapper does.
#![allow(
    unsafe_code,
    reason = "system calls that nix does not have, descriptors that were just received, copies out of a ring"
)]

use std::ffi::CStr;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use millrace_shm::segment::Segment;
use millrace_shm::sys::{call, check};
use nix::cmsg_space;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};

mod apart;
mod inlet;

pub(crate) use apart::{Borrowed, Left, Worked, apart};
pub(crate) use inlet::{Inlet, close_apart, refuse_descriptors};

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
pub(crate) fn socket_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    get_u64(socket, libc::SO_COOKIE)
}

/// The device and the inode of a file, without a word to its file system: one that runs in user space need not answer.
pub(crate) fn identity_of(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<FileIdentity> {
    // SAFETY: integers, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the descriptor is open while it is borrowed, the name ends with a zero, and the kernel fills one structure.
    let result = unsafe {
        libc::statx(
            directory.as_raw_fd(),
            name.as_ptr(),
            flags,
            0,
            &raw mut found,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(FileIdentity {
        device: (found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
    })
}

/// What tells a file from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
}

/// A process by a descriptor, which never comes to mean another process.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    let arguments = [pid as usize, 0, 0, 0, 0, 0];
    // SAFETY: plain arguments.
    let made = check(unsafe { call(libc::SYS_pidfd_open, arguments) })?;
    // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(made as RawFd) })
}

/// A duplicate, closed on exec, of another process's descriptor. Needs the right to trace that process.
pub(crate) fn pidfd_getfd(process: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    let arguments = [process.as_raw_fd() as usize, fd as usize, 0, 0, 0, 0];
    // SAFETY: plain arguments.
    let made = check(unsafe { call(libc::SYS_pidfd_getfd, arguments) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(made as RawFd) })
}

/// Whether a process's descriptors could be duplicated: whether we may trace it, and the kernel has such a call and no filter forbids it.
pub(crate) fn may_get_descriptors(process: BorrowedFd<'_>) -> bool {
    // There is no such descriptor, which the kernel finds out when it has found all else in order.
    let refusal = pidfd_getfd(process, -1).err();
    refusal.and_then(|error| error.raw_os_error()) == Some(libc::EBADF)
}

/// A command of `bpf(2)`. What the attributes (`union bpf_attr`) point to must be alive, and as large as the command takes it to be.
pub(crate) fn bpf(command: usize, attributes: &[u8; 128]) -> io::Result<usize> {
    let arguments = [
        command,
        attributes.as_ptr() as usize,
        attributes.len(),
        0,
        0,
        0,
    ];
    // SAFETY: the kernel reads the attributes and copies what they point to; what is not there is its EFAULT.
    check(unsafe { call(libc::SYS_bpf, arguments) })
}

/// The same, of a command that makes a descriptor, closed on exec.
pub(crate) fn bpf_descriptor(command: usize, attributes: &[u8; 128]) -> io::Result<OwnedFd> {
    let made = bpf(command, attributes)?;
    // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(made as RawFd) })
}

/// `bytes` bytes of a ring from `head` on. Not more than `window`, which the ring must have.
pub(crate) fn copy_ring(
    segment: &Segment,
    direction: usize,
    head: u32,
    window: u32,
    bytes: u32,
) -> Vec<u8> {
    let mut copy = vec![0; bytes as usize];
    // SAFETY: `copy` has `bytes` bytes; `read` keeps inside the ring, whatever the arguments.
    unsafe { segment.read(direction, head, window, copy.as_mut_ptr(), bytes) };
    copy
}

/// Puts bytes into a ring at `tail`, as a sender does.
#[cfg(test)]
pub(crate) fn fill_ring(segment: &Segment, direction: usize, tail: u32, window: u32, bytes: &[u8]) {
    assert!(segment.reach(window));
    // SAFETY: the slice has as many bytes as it says.
    unsafe { segment.write(direction, tail, window, bytes.as_ptr(), bytes.len() as u32) };
}

/// `tcp_info` up to `tcpi_notsent_bytes` (`include/uapi/linux/tcp.h`), in words of 64 bits: the state is the first byte, that count the
/// first half of the last word.
type TcpInfo = [u64; 19];
const TIME_OUT: usize = 1;
const BYTES_ACKED: usize = 15;
const BYTES_RECEIVED: usize = 16;
const NOT_SENT: usize = 18;
/// States of a connection (`include/net/tcp_states.h`).
const ESTABLISHED: u8 = 1;
const CLOSE: u8 = 7;
const CLOSE_WAIT: u8 = 8;

fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
    let mut info = TcpInfo::default();
    let mut length = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: as in `get`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match result {
        0 if length as usize == size_of::<TcpInfo>() => Ok(info),
        0 => Err(io::Error::from(io::ErrorKind::InvalidData)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes that a TCP socket was given, and that its peer has not said to have got.
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    queue_bytes(socket, libc::TIOCOUTQ)
}

/// Bytes that a TCP socket has received and nobody has taken.
pub(crate) fn unread(socket: BorrowedFd<'_>) -> io::Result<u64> {
    queue_bytes(socket, libc::FIONREAD)
}

fn queue_bytes(socket: BorrowedFd<'_>, request: libc::Ioctl) -> io::Result<u64> {
    let mut count: libc::c_int = 0;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes one int.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut count) };
    match u64::try_from(count) {
        Ok(count) if result == 0 => Ok(count),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the other end has sent its FIN and this one has not, and no reset has come.
pub(crate) fn is_closed_by_peer_alone(socket: BorrowedFd<'_>) -> bool {
    tcp_info(socket).is_ok_and(|info| info[0].to_ne_bytes()[0] == CLOSE_WAIT)
}

/// Whether the connection is over, and the other end's FIN had come before, so far as what has been received tells: `taken` bytes have been
/// taken from the socket, and the FIN counts as one more.
pub(crate) fn is_over_by_fin(socket: BorrowedFd<'_>, taken: u64) -> bool {
    let (Ok(info), Ok(unread)) = (tcp_info(socket), unread(socket)) else {
        return false;
    };
    let received = info[BYTES_RECEIVED].checked_sub(unread);
    info[0].to_ne_bytes()[0] == CLOSE
        && received.and_then(|count| count.checked_sub(1)) == Some(taken)
}

/// Whether nothing is left of the connection: it was reset, or both ends have sent their FIN.
pub(crate) fn is_over(socket: BorrowedFd<'_>) -> bool {
    tcp_info(socket).is_ok_and(|info| info[0].to_ne_bytes()[0] == CLOSE)
}

/// Resets a connection: bytes are lost, and both ends are to see that.
pub(crate) fn reset(socket: BorrowedFd<'_>) {
    // Linux 6.4 to 6.6: not while somebody sleeps in a call on it.
    let _ = dissolve(socket);
    // SAFETY: plain arguments.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// The socket is as one that has not been connected.
pub(crate) fn dissolve(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: integers, for which zero is a value: AF_UNSPEC, which dissolves.
    let nobody: libc::sockaddr = unsafe { std::mem::zeroed() };
    let bytes = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads one address.
    match unsafe { libc::connect(socket.as_raw_fd(), &raw const nobody, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes that a TCP socket has been given to send since its connection began. `None`: it cannot send any more, or the kernel
/// does not say. The SYN of the end that connected (`active`) counts as one acknowledged byte.
pub(crate) fn sent(socket: BorrowedFd<'_>, active: bool) -> Option<u64> {
    // Acknowledgements come in between: as often as they may.
    for _ in 0..100 {
        let before = tcp_info(socket).ok()?;
        let queued = unacknowledged(socket).ok()?;
        let after = tcp_info(socket).ok()?;
        if !matches!(after[0].to_ne_bytes()[0], ESTABLISHED | CLOSE_WAIT) {
            return None;
        }
        if before[BYTES_ACKED] == after[BYTES_ACKED] {
            return after[BYTES_ACKED]
                .wrapping_add(queued)
                .checked_sub(u64::from(active));
        }
    }
    None
}

/// Bytes that a TCP socket was given and that have not left it: they wait for room at the peer.
pub(crate) fn unsent(socket: BorrowedFd<'_>) -> Option<u64> {
    let [a, b, c, d, ..] = tcp_info(socket).ok()?[NOT_SENT].to_ne_bytes();
    Some(u64::from(u32::from_ne_bytes([a, b, c, d])))
}

/// How long the kernel waits for an acknowledgement until it sends again.
pub(crate) fn time_to_send_again(socket: BorrowedFd<'_>) -> Option<Duration> {
    let [a, b, c, d, ..] = tcp_info(socket).ok()?[TIME_OUT].to_ne_bytes();
    let micros = u32::from_ne_bytes([a, b, c, d]);
    Some(Duration::from_micros(micros.into()))
}

/// Bytes that have been taken from a TCP socket since its connection began. `None`: its stream has ended, or the kernel does not say.
pub(crate) fn taken(socket: BorrowedFd<'_>) -> Option<u64> {
    const FIN_WAIT2: u8 = 5;
    for _ in 0..100 {
        let before = tcp_info(socket).ok()?;
        let queued = unread(socket).ok()?;
        let after = tcp_info(socket).ok()?;
        if !matches!(after[0].to_ne_bytes()[0], ESTABLISHED | FIN_WAIT2) {
            return None;
        }
        if before[BYTES_RECEIVED] == after[BYTES_RECEIVED] {
            return after[BYTES_RECEIVED].checked_sub(queued);
        }
    }
    None
}

/// One of a socket's two buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buffer {
    Send,
    Receive,
}

/// How large a socket's buffer is, in bytes.
pub(crate) fn buffer(socket: BorrowedFd<'_>, which: Buffer) -> io::Result<u32> {
    let option = match which {
        Buffer::Send => libc::SO_SNDBUF,
        Buffer::Receive => libc::SO_RCVBUF,
    };
    get_u32(socket, (libc::SOL_SOCKET, option))
}

/// Makes it twice as large as `bytes` (the kernel doubles what it is told). Needs CAP_NET_ADMIN over the socket's network.
pub(crate) fn force_buffer(socket: BorrowedFd<'_>, which: Buffer, bytes: u32) -> io::Result<()> {
    let option = match which {
        Buffer::Send => libc::SO_SNDBUFFORCE,
        Buffer::Receive => libc::SO_RCVBUFFORCE,
    };
    set_u32(socket, (libc::SOL_SOCKET, option), bytes)
}

/// As [`force_buffer`], up to [`buffer_limit`], which anybody may do.
pub(crate) fn set_buffer(socket: BorrowedFd<'_>, which: Buffer, bytes: u32) -> io::Result<()> {
    let option = match which {
        Buffer::Send => libc::SO_SNDBUF,
        Buffer::Receive => libc::SO_RCVBUF,
    };
    set_u32(socket, (libc::SOL_SOCKET, option), bytes)
}

/// The largest size that a program may choose for a buffer, as [`set_buffer`] takes it.
pub(crate) fn buffer_limit(which: Buffer) -> Option<u32> {
    let path = match which {
        Buffer::Send => "/proc/sys/net/core/wmem_max",
        Buffer::Receive => "/proc/sys/net/core/rmem_max",
    };
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether a socket takes more bytes now.
pub(crate) fn is_writable(socket: BorrowedFd<'_>) -> bool {
    let mut room = [PollFd::new(socket, PollFlags::POLLOUT)];
    poll(&mut room, PollTimeout::ZERO) == Ok(1)
}

/// In [`buffer_locks`]: a program chose the size of the buffer for receiving (`SOCK_RCVBUF_LOCK`).
pub(crate) const RECEIVE_BUFFER_LOCK: u32 = 2;

/// Which of a socket's buffers have a size that a program chose (`SO_BUF_LOCK`). Fails where the kernel is older than 5.16.
pub(crate) fn buffer_locks(socket: BorrowedFd<'_>) -> io::Result<u32> {
    get_u32(socket, (libc::SOL_SOCKET, libc::SO_BUF_LOCK))
}

pub(crate) fn set_buffer_locks(socket: BorrowedFd<'_>, locks: u32) -> io::Result<()> {
    set_u32(socket, (libc::SOL_SOCKET, libc::SO_BUF_LOCK), locks)
}

/// Whether a program's looks into a socket's queue go on where the last one ended (`SO_PEEK_OFF`).
pub(crate) fn peeks_on(socket: BorrowedFd<'_>) -> bool {
    get_u32(socket, (libc::SOL_SOCKET, libc::SO_PEEK_OFF))
        .is_ok_and(|offset| offset.cast_signed() >= 0)
}

/// How much a socket may hold that has not been sent yet (`TCP_NOTSENT_LOWAT`); zero: as the system has it.
pub(crate) fn unsent_limit(socket: BorrowedFd<'_>) -> io::Result<u32> {
    get_u32(socket, (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT))
}

pub(crate) fn set_unsent_limit(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    set_u32(socket, (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), bytes)
}

/// Sets an option of the level IPPROTO_TCP.
pub(crate) fn set_tcp_option(socket: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    set_u32(socket, (libc::IPPROTO_TCP, option), value.cast_unsigned())
}

/// Whether we have the right to repair a connection: without it even what does not exist is refused so. Nothing is changed.
pub(crate) fn may_repair(socket: BorrowedFd<'_>) -> bool {
    const NO_SUCH: i32 = 77;
    let refused = set_tcp_option(socket, libc::TCP_REPAIR, NO_SUCH).err();
    refused.and_then(|error| error.raw_os_error()) != Some(libc::EPERM)
}

/// The value of an option of the level IPPROTO_TCP.
pub(crate) fn tcp_option(socket: BorrowedFd<'_>, option: i32) -> io::Result<u32> {
    get_u32(socket, (libc::IPPROTO_TCP, option))
}

/// `struct tcp_repair_window` (`include/uapi/linux/tcp.h`): the number that the peer's window was told with, that window, the largest that
/// it was, ours, and the number that we told it with.
pub(crate) fn set_repair_window(socket: BorrowedFd<'_>, window: [u32; 5]) -> io::Result<()> {
    set(
        socket,
        (libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW),
        &window,
    )
}

fn get_u32(socket: BorrowedFd<'_>, option: (i32, i32)) -> io::Result<u32> {
    get(socket, option).map(u32::from_ne_bytes)
}

fn set_u32(socket: BorrowedFd<'_>, option: (i32, i32), value: u32) -> io::Result<()> {
    set(socket, option, &[value])
}

/// Sets an option of that level to these numbers.
fn set(socket: BorrowedFd<'_>, (level, option): (i32, i32), value: &[u32]) -> io::Result<()> {
    let length = size_of_val(value) as libc::socklen_t;
    let value = value.as_ptr().cast();
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads the bytes of `value`.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn get_u64(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<u64> {
    get(socket, (libc::SOL_SOCKET, option)).map(u64::from_ne_bytes)
}

/// Whether what is sent and received there is changed on its way, as kernel TLS does.
pub(crate) fn has_upper_protocol(socket: BorrowedFd<'_>) -> bool {
    const TCP_ULP: i32 = 31;
    // Its name; empty where there is none.
    get::<16>(socket, (libc::IPPROTO_TCP, TCP_ULP)).is_ok_and(|name| name[0] != 0)
}

/// The value of an option of that level.
fn get<const BYTES: usize>(
    socket: BorrowedFd<'_>,
    (level, option): (i32, i32),
) -> io::Result<[u8; BYTES]> {
    let mut value = [0; BYTES];
    let mut length = BYTES as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `length` bytes to `value`,
    // which has that many.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(value)
    } else {
        Err(io::Error::last_os_error())
    }
}
