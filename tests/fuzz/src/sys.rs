//! Copies to and from rings and pools, words of shared memory, and the agent's socket.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64};

use millrace_shm::Mapping;
use millrace_shm::gate::GateWord;
use millrace_shm::segment::Segment;

pub(crate) fn write(segment: &Segment, (direction, tail): (usize, u32), window: u32, bytes: &[u8]) {
    // SAFETY: there are that many bytes.
    unsafe { segment.write(direction, tail, window, bytes.as_ptr(), bytes.len() as u32) };
}

pub(crate) fn read(
    segment: &Segment,
    (direction, head): (usize, u32),
    window: u32,
    target: &mut [u8],
) {
    // SAFETY: there is that much room.
    unsafe {
        segment.read(
            direction,
            head,
            window,
            target.as_mut_ptr(),
            target.len() as u32,
        )
    };
}

pub(crate) fn gate_word(gate: &GateWord) -> &AtomicU64 {
    // SAFETY: the gate is one 64-bit atomic word, and transparent.
    unsafe { &*std::ptr::from_ref(gate).cast() }
}

/// The word of four bytes at `offset`.
pub(crate) fn word(memory: &Mapping, offset: usize) -> &AtomicU32 {
    assert!(offset.is_multiple_of(4) && offset < memory.bytes());
    // SAFETY: inside the mapping, as just asserted: it is of whole pages.
    let place = unsafe { memory.base().add(offset) };
    // SAFETY: an atomic, aligned, and mapped as long as `memory`.
    unsafe { place.cast::<AtomicU32>().as_ref() }
}

/// `bytes` bytes from `start` on.
pub(crate) fn copy_out(memory: &Mapping, start: usize, bytes: usize) -> Vec<u8> {
    assert!(start + bytes <= memory.bytes());
    let mut copy = vec![0; bytes];
    // SAFETY: inside the mapping, as just asserted.
    let from = unsafe { memory.base().add(start) };
    // SAFETY: so many bytes are mapped there, and so long is the copy.
    unsafe { std::ptr::copy(from.as_ptr(), copy.as_mut_ptr(), bytes) };
    copy
}

/// Writes these bytes from `start` on.
pub(crate) fn copy_in(memory: &Mapping, start: usize, bytes: &[u8]) {
    assert!(start + bytes.len() <= memory.bytes());
    // SAFETY: inside the mapping, as just asserted.
    let to = unsafe { memory.base().add(start) };
    // SAFETY: so many bytes are mapped there, for writing.
    unsafe { std::ptr::copy(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
}

/// Waits for a connection, whatever signals come meanwhile.
pub(crate) fn accept(listener: &OwnedFd) -> Result<OwnedFd> {
    loop {
        let (address, bytes) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: nobody wants the address.
        let fd = unsafe { libc::accept4(listener.as_raw_fd(), address, bytes, libc::SOCK_CLOEXEC) };
        if fd >= 0 {
            // SAFETY: the kernel has just made it for us.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        let error = Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Connects to a socket of sequenced packets; its calls do not wait.
pub(crate) fn connect(path: &Path) -> Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain arguments.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: integers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in address
        .sun_path
        .iter_mut()
        .zip(path.as_os_str().as_encoded_bytes())
    {
        *place = byte.cast_signed();
    }
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an address of that length.
    let result = unsafe { libc::connect(fd, (&raw const address).cast(), bytes) };
    if result != 0 {
        return Err(Error::last_os_error());
    }
    Ok(socket)
}

/// Sends a packet. False: it did not go.
pub(crate) fn transmit(socket: &OwnedFd, bytes: &[u8]) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: a buffer of that length.
    unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            flags,
        ) >= 0
    }
}

/// Takes a packet, without what comes beside it.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> isize {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: a buffer of that length.
    unsafe {
        libc::recv(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            flags,
        )
    }
}

/// SO_COOKIE, or SO_NETNS_COOKIE.
pub(crate) fn cookie(socket: &impl AsRawFd, option: i32) -> u64 {
    let (mut value, mut bytes) = (0u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: a word of that size. Where the kernel has no such option it stays zero.
    unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut bytes,
        );
    }
    value
}

/// Whether the other end of a pair of sockets says no more, or is gone.
pub(crate) fn is_left(end: &OwnedFd) -> bool {
    let mut socket = libc::pollfd {
        fd: end.as_raw_fd(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    // SAFETY: one entry, of ours.
    unsafe { libc::poll(&raw mut socket, 1, 0) == 1 }
}

/// A descriptor that came with a message.
pub(crate) fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just made it for us.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
