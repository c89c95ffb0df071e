//! What we ask of the kernel about a connection, without touching `errno`.

use std::mem::size_of;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::{c_int, c_uint};
pub(crate) use millrace_shm::sys::monotonic_ns;
use millrace_wire::Address;

use crate::spin;

/// When, of [`spin::clock`], this process last did something by the kernel that the peer of a connection hears of.
static TOLD_AT: AtomicU64 = AtomicU64::new(0);

/// The process has just done such a thing: what it sends by rings from now on comes after it.
pub(crate) fn note_told() {
    TOLD_AT.store(spin::clock(), Relaxed);
}

/// When that was; zero: never.
#[inline]
pub(crate) fn told_at() -> u64 {
    TOLD_AT.load(Relaxed)
}

/// Calls the kernel; a negative result is a negated error number.
macro_rules! kernel {
    ($number:expr $(, $argument:expr)*) => {{
        let given = [$($argument as usize),*];
        let mut all = [0usize; 6];
        all[..given.len()].copy_from_slice(&given);
        // SAFETY: every pointer passed here is to memory of ours, of the size that the call expects, or the program's own argument.
        unsafe { millrace_shm::sys::call($number, all) }
    }};
}
pub(crate) use kernel;

mod looks;
mod other_end;
mod tcp;
pub(crate) use looks::{
    epoll_now, events_now, has_error, has_failed, has_hung_up, is_writable, poll_now, select_now,
};
pub(crate) use other_end::{OtherEnd, other_end};
pub(crate) use tcp::{
    acknowledged, has_unacknowledged, is_closed_by_peer_alone, is_established, is_over_by_fin,
    left, packets_under_way, received, sent, sent_and_held, taken, unread,
};

/// So long the kernel's answer to a segment of a connection on this machine may take, in nanoseconds.
const NS_OF_ANSWER: u64 = 1_000_000;

/// Descriptors of ours are at or above this number where the limit allows.
const HIGH_DESCRIPTOR: c_int = 900;
/// Of fewer descriptors that a process may have, each may be one that the program needs.
const DESCRIPTORS_MIN: c_int = 64;

/// A copy of a descriptor, which no program will miss the number of: a high one, or else one right below the limit. None: there is no room.
pub(crate) fn high_copy(fd: c_int) -> Option<OwnedFd> {
    let from = |first: c_int| {
        let copy = kernel!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, first);
        let copy = c_int::try_from(copy).ok().filter(|copy| *copy >= 0)?;
        // SAFETY: the kernel has just made it for us.
        Some(unsafe { OwnedFd::from_raw_fd(copy) })
    };
    from(HIGH_DESCRIPTOR).or_else(|| {
        let limit = descriptor_limit()?.min(HIGH_DESCRIPTOR);
        let mut below = (0..limit.ilog2()).map(|power| limit - (1 << power));
        below.find_map(from)
    })
}

/// How many descriptors this process may have, where those are enough.
fn descriptor_limit() -> Option<c_int> {
    let limit = c_int::try_from(soft_descriptor_limit()?).unwrap_or(c_int::MAX);
    (limit >= DESCRIPTORS_MIN).then_some(limit)
}

/// Whether the limit lets the process get a descriptor of that number.
pub(crate) fn may_be_made(fd: c_int) -> bool {
    let is_below = |limit| u64::try_from(fd).is_ok_and(|fd| fd < limit);
    soft_descriptor_limit().is_none_or(is_below)
}

fn soft_descriptor_limit() -> Option<u64> {
    let mut limits = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let result = kernel!(
        libc::SYS_prlimit64,
        0usize,
        libc::RLIMIT_NOFILE,
        0usize,
        &raw mut limits
    );
    (result == 0).then_some(limits.rlim_cur)
}

/// Does something with each descriptor that is open, as the kernel lists them; it may close it. Where there is no list, for want of
/// `/proc` or of a number, with each number that is likely. Without memory of its own: a child of a process with threads does so.
#[cold]
pub(crate) fn each_descriptor(mut work: impl FnMut(c_uint)) {
    /// Of `struct linux_dirent64`: where its length and its name are.
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    const LIKELY_MAX: c_uint = 1 << 16;
    let path = c"/proc/self/fd".as_ptr();
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let list = kernel!(libc::SYS_openat, libc::AT_FDCWD, path, flags, 0);
    if list < 0 {
        return (0..LIKELY_MAX).for_each(work);
    }
    let mut entries = [0u8; 2048];
    while let Ok(bytes @ 1..) = usize::try_from(kernel!(
        libc::SYS_getdents64,
        list,
        entries.as_mut_ptr(),
        entries.len()
    )) {
        let mut rest = entries.get(..bytes).unwrap_or_default();
        while let Some(&[low, high]) = rest.get(LENGTH_AT..LENGTH_AT + 2) {
            let (entry, next) =
                rest.split_at(usize::from(u16::from_ne_bytes([low, high])).min(rest.len()));
            rest = next;
            let digits = entry
                .get(NAME_AT..)
                .unwrap_or_default()
                .split(|byte| *byte == 0)
                .next();
            let number =
                digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<c_uint>().ok());
            // The list's own is open until the end.
            if let Some(number) = number.filter(|number| *number as isize != list) {
                work(number);
            }
        }
    }
    kernel!(libc::SYS_close, list);
}

/// Reads a socket option of fixed size.
pub(crate) fn option<T: Copy + Default>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    let mut value = T::default();
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let result = kernel!(
        libc::SYS_getsockopt,
        fd,
        level,
        name,
        &raw mut value,
        &raw mut bytes
    );
    (result == 0 && bytes as usize == size_of::<T>()).then_some(value)
}

/// Sets TCP_NODELAY.
///
/// While answers take the ring, nothing carries the acknowledgements of what went by the kernel, and Nagle's algorithm would hold
/// back the next small message until the receiver's delayed acknowledgement, 40 ms later.
pub(crate) fn set_no_delay(fd: c_int, on: bool) {
    let value = c_int::from(on);
    kernel!(
        libc::SYS_setsockopt,
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_NODELAY,
        &raw const value,
        size_of::<c_int>()
    );
}

/// Does nothing for some milliseconds.
pub(crate) fn pause(milliseconds: c_int) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(milliseconds) * 1_000_000,
    };
    if milliseconds > 0 {
        kernel!(libc::SYS_nanosleep, &raw const time, 0usize);
    }
}

/// Resets the connection now: whoever has it gets ECONNRESET, and no byte. Of one that is over the error stays as it is, and a receiving
/// call is told of it even if a FIN had come before.
pub(crate) fn reset(fd: c_int) {
    // SAFETY: integers, for which zero is a value: AF_UNSPEC, which dissolves.
    let nobody: libc::sockaddr = unsafe { std::mem::zeroed() };
    kernel!(
        libc::SYS_connect,
        fd,
        &raw const nobody,
        size_of::<libc::sockaddr>()
    );
    kernel!(libc::SYS_shutdown, fd, libc::SHUT_RDWR);
}

/// As [`reset`], which would take away what the program has not read yet. False: there is something, or the kernel refuses.
pub(crate) fn reset_drained(fd: c_int) -> bool {
    if unread(fd) != 0 {
        return false;
    }
    reset(fd);
    has_error(fd)
}

/// The peer has closed, and has left bytes unread of which the kernel does not know: has it send one that nobody takes, together with our
/// FIN, so that the answer is a reset like that which it would have sent itself. False: no answer has come. Only where nobody has the
/// other end: to whoever had it the byte would be the stream's.
pub(crate) fn provoke_reset(fd: c_int) -> bool {
    let byte = 0u8;
    let flags = libc::MSG_MORE | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    kernel!(
        libc::SYS_sendto,
        fd,
        &raw const byte,
        1usize,
        flags,
        0usize,
        0usize
    );
    // Behind our FIN a reset is ECONNRESET; before it, with the peer's there, it would be EPIPE.
    kernel!(libc::SYS_shutdown, fd, libc::SHUT_RDWR);
    let until_ns = monotonic_ns() + NS_OF_ANSWER;
    while !has_error(fd) {
        if monotonic_ns() > until_ns {
            return false;
        }
        millrace_shm::sys::yield_now();
    }
    true
}

/// Has the kernel tell its error, or zero.
pub(crate) fn take_error(fd: c_int) -> c_int {
    option(fd, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0)
}

/// Makes the kernel answer the last close with a reset, as it does when its own queue has unread bytes.
pub(crate) fn reset_on_close(fd: c_int) {
    set_linger(fd, [1, 0]);
}

/// What the last close does (`struct linger`).
pub(crate) fn set_linger(fd: c_int, linger: [c_int; 2]) {
    kernel!(
        libc::SYS_setsockopt,
        fd,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        &raw const linger,
        size_of_val(&linger)
    );
}

/// A non-blocking `recv` that leaves `errno` alone.
pub(crate) fn receive_now(fd: c_int, buffer: *mut u8, bytes: usize, flags: c_int) -> isize {
    kernel!(
        libc::SYS_recvfrom,
        fd,
        buffer,
        bytes,
        flags | libc::MSG_DONTWAIT,
        0usize,
        0usize
    )
}

/// Whether it is a socket that listens.
pub(crate) fn listens(fd: c_int) -> bool {
    option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1)
}

/// A socket address, as v4-mapped where it is IPv4. None: another family.
fn address(fd: c_int, number: libc::c_long) -> Option<Address> {
    // SAFETY: integers only.
    let mut storage: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    if kernel!(number, fd, &raw mut storage, &raw mut bytes) != 0 {
        return None;
    }
    let port = u16::from_be(storage.sin6_port);
    match c_int::from(storage.sin6_family) {
        libc::AF_INET6 => Some(Address {
            ip: storage.sin6_addr.s6_addr,
            port,
        }),
        libc::AF_INET => {
            // SAFETY: a sockaddr_in is shorter than a sockaddr_in6, and the family says that it is one.
            let storage: libc::sockaddr_in = unsafe { std::mem::transmute_copy(&storage) };
            let ip = std::net::Ipv4Addr::from(u32::from_be(storage.sin_addr.s_addr))
                .to_ipv6_mapped()
                .octets();
            Some(Address { ip, port })
        }
        _ => None,
    }
}

/// `getsockname` and `getpeername`.
pub(crate) fn addresses(fd: c_int) -> Option<(Address, Address)> {
    Some((
        address(fd, libc::SYS_getsockname)?,
        address(fd, libc::SYS_getpeername)?,
    ))
}

/// File status flags.
pub(crate) fn status_flags(fd: c_int) -> Option<c_int> {
    let result = kernel!(libc::SYS_fcntl, fd, libc::F_GETFL, 0usize);
    c_int::try_from(result).ok().filter(|flags| *flags >= 0)
}

/// The address family, when `fd` is a TCP socket over IP.
pub(crate) fn tcp_family(fd: c_int) -> Option<c_int> {
    let family = option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)?;
    let protocol = option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
    let kind = option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_TYPE)?;
    let is_tcp = protocol == libc::IPPROTO_TCP && kind == libc::SOCK_STREAM;
    (is_tcp && matches!(family, libc::AF_INET | libc::AF_INET6)).then_some(family)
}

/// Whether a program that this process becomes gets `fd`.
pub(crate) fn stays_open_on_exec(fd: c_int) -> bool {
    let flags = kernel!(libc::SYS_fcntl, fd, libc::F_GETFD, 0usize);
    flags >= 0 && flags & libc::FD_CLOEXEC as isize == 0
}

/// Whether the receive queue is far from full: nobody waits to send more.
pub(crate) fn has_queue_room(fd: c_int) -> bool {
    let size = option::<c_int>(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
    unread(fd) <= u64::from(size.cast_unsigned()) / 4
}

/// Whether the mark of urgent data comes before the next byte of the kernel's queue.
pub(crate) fn is_at_mark(fd: c_int) -> bool {
    const SIOCATMARK: usize = 0x8905;
    let mut answer: c_int = 0;
    kernel!(libc::SYS_ioctl, fd, SIOCATMARK, &raw mut answer) == 0 && answer != 0
}

/// Whether `fd` is a pipe.
pub(crate) fn is_pipe(fd: c_int) -> bool {
    // SAFETY: integers, for which zero is a value.
    let mut facts: libc::stat = unsafe { std::mem::zeroed() };
    let result = kernel!(libc::SYS_fstat, fd, &raw mut facts);
    result == 0 && facts.st_mode & libc::S_IFMT == libc::S_IFIFO
}

/// The effective user.
pub(crate) fn user_id() -> u32 {
    kernel!(libc::SYS_geteuid) as u32
}

/// The process's number; not cached, so that a child of `vfork` is seen to be one.
pub(crate) fn process_id() -> u32 {
    kernel!(libc::SYS_getpid) as u32
}

/// Which of the `CLONE_NEW…` a namespace is, that is open; zero where the kernel does not say.
pub(crate) fn namespace_kind(fd: c_int) -> c_int {
    // `linux/nsfs.h`.
    const NS_GET_NSTYPE: usize = 0xb703;
    let kind = kernel!(libc::SYS_ioctl, fd, NS_GET_NSTYPE);
    kind.max(0) as c_int
}

/// A number for our PID namespace, or zero where `/proc` does not tell.
pub(crate) fn pid_namespace() -> u64 {
    // SAFETY: integers, for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let path = c"/proc/self/ns/pid";
    let result = kernel!(
        libc::SYS_newfstatat,
        libc::AT_FDCWD,
        path.as_ptr(),
        &raw mut status,
        0usize
    );
    if result == 0 { status.st_ino } else { 0 }
}

/// The child that this thread made last, of those that are left; none where `/proc` does not tell.
pub(crate) fn last_child() -> Option<libc::pid_t> {
    let path = c"/proc/thread-self/children";
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let children = kernel!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
    if children < 0 {
        return None;
    }
    let (mut last, mut number) = (None, 0);
    let mut text = [0u8; 512];
    loop {
        let read = kernel!(libc::SYS_read, children, text.as_mut_ptr(), text.len());
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else {
            break;
        };
        // Each number has a space behind it.
        for byte in &text[..read] {
            if byte.is_ascii_digit() {
                number = 10 * number + libc::pid_t::from(byte - b'0');
            } else {
                last = Some(std::mem::take(&mut number));
            }
        }
    }
    kernel!(libc::SYS_close, children);
    last
}

/// Whether it is a file with contents of its own: of others, as in /proc, the kernel may refuse to send.
pub(crate) fn is_file(fd: c_int) -> bool {
    // SAFETY: integers, for which zero is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let told = kernel!(libc::SYS_fstat, fd, &raw mut status) == 0;
    told && status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_size > 0
}

/// How many descriptors the process has room for now: `select` looks at no others.
#[cold]
pub(crate) fn descriptors_max() -> usize {
    const NAME: &[u8] = b"\nFDSize:\t";
    let path = c"/proc/thread-self/status";
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let status = kernel!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
    let mut text = [0u8; 1024];
    let read = kernel!(libc::SYS_read, status, text.as_mut_ptr(), text.len());
    kernel!(libc::SYS_close, status);
    let text = &text[..usize::try_from(read).unwrap_or(0)];
    let at = text.windows(NAME.len()).position(|part| part == NAME);
    let digits = at.map_or(&[][..], |at| &text[at + NAME.len()..]);
    let digits = digits.iter().take_while(|digit| digit.is_ascii_digit());
    let number = digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    // Where that is not told, as many as there can be.
    if number == 0 { 1 << 20 } else { number }
}
