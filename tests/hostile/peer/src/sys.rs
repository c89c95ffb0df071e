//! System calls, and raw stores to shared memory.

use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use millrace_shm::Mapping;
use millrace_shm::gate::GateWord;

fn count(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

fn owned(fd: RawFd) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn seqpacket(flags: i32) -> Result<OwnedFd> {
    // SAFETY: plain arguments.
    owned(unsafe {
        libc::socket(
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags,
            0,
        )
    })
}

fn address(path: &str) -> libc::sockaddr_un {
    // SAFETY: integers, for which zero is a value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let room = address.sun_path.len() - 1;
    for (place, byte) in address.sun_path[..room].iter_mut().zip(path.bytes()) {
        *place = byte.cast_signed();
    }
    address
}

const ADDRESS_BYTES: libc::socklen_t = size_of::<libc::sockaddr_un>() as libc::socklen_t;

/// Connects to a socket of sequenced packets; its calls do not wait.
pub(crate) fn connect(path: &str) -> Result<OwnedFd> {
    let socket = seqpacket(libc::SOCK_NONBLOCK)?;
    let address = address(path);
    // SAFETY: an address of that length.
    let result = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            ADDRESS_BYTES,
        )
    };
    count(result as isize).map(|_| socket)
}

pub(crate) fn listen(path: &str) -> Result<OwnedFd> {
    let socket = seqpacket(0)?;
    let address = address(path);
    // SAFETY: an address of that length.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            ADDRESS_BYTES,
        )
    };
    count(result as isize)?;
    // SAFETY: plain arguments.
    count(unsafe { libc::listen(socket.as_raw_fd(), 64) } as isize).map(|_| socket)
}

pub(crate) fn accept(listener: &OwnedFd) -> Result<OwnedFd> {
    // SAFETY: no address is asked for.
    owned(unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_NONBLOCK,
        )
    })
}

/// Sends one packet with descriptors beside it, at most 253.
pub(crate) fn transmit(socket: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) -> Result<usize> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = [0u64; 256];
    // SAFETY: pointers and integers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !descriptors.is_empty() {
        let length = size_of_val(descriptors) as u32;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: computes a size.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as usize;
        assert!(header.msg_controllen <= size_of_val(&control));
        // SAFETY: the header has room for one message of that size.
        let message = unsafe { &mut *libc::CMSG_FIRSTHDR(&raw const header) };
        message.cmsg_level = libc::SOL_SOCKET;
        message.cmsg_type = libc::SCM_RIGHTS;
        // SAFETY: computes a size.
        message.cmsg_len = unsafe { libc::CMSG_LEN(length) } as usize;
        // SAFETY: the message has room for all of them.
        unsafe {
            libc::CMSG_DATA(message)
                .cast::<RawFd>()
                .copy_from_nonoverlapping(descriptors.as_ptr(), descriptors.len());
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: all of it lives until the call returns.
    count(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) })
}

/// Receives one packet, and the first descriptor beside it.
pub(crate) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<(usize, Option<OwnedFd>)> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut control = [0u64; 8];
    // SAFETY: pointers and integers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all of it lives until the call returns.
    let bytes = count(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    // SAFETY: the kernel has filled header and control buffer.
    let Some(message) = (unsafe { libc::CMSG_FIRSTHDR(&raw const header).as_ref() }) else {
        return Ok((bytes, None));
    };
    if message.cmsg_type != libc::SCM_RIGHTS {
        return Ok((bytes, None));
    }
    // SAFETY: such a message carries at least one descriptor.
    let number = unsafe { libc::CMSG_DATA(message).cast::<RawFd>().read_unaligned() };
    Ok((bytes, owned(number).ok()))
}

pub(crate) fn wait_readable(socket: &impl AsRawFd, patience: Duration) -> bool {
    let mut entry = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one entry.
    let found = unsafe { libc::poll(&raw mut entry, 1, milliseconds) };
    found == 1
}

/// SO_COOKIE, or SO_NETNS_COOKIE.
pub(crate) fn cookie(socket: BorrowedFd<'_>, option: i32) -> u64 {
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

/// A memory file of that size, with these seals.
pub(crate) fn memory(bytes: usize, seals: i32) -> Result<OwnedFd> {
    // SAFETY: the name is a C string.
    let file = owned(unsafe {
        libc::memfd_create(
            c"gift".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        )
    })?;
    resize(&file, bytes)?;
    // SAFETY: plain arguments.
    count(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } as isize).map(|_| file)
}

pub(crate) fn resize(file: &OwnedFd, bytes: usize) -> Result<()> {
    // SAFETY: plain arguments.
    count(unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } as isize).map(drop)
}

/// Gives the memory of a part of a file back; it reads as zeros from then on.
pub(crate) fn punch(file: &OwnedFd, offset: usize, bytes: usize) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
    // SAFETY: plain arguments.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) };
}

/// Adds a seal that would keep the others from writing.
pub(crate) fn seal(file: &OwnedFd) -> bool {
    // SAFETY: plain arguments.
    unsafe {
        libc::fcntl(
            file.as_raw_fd(),
            libc::F_ADD_SEALS,
            libc::F_SEAL_FUTURE_WRITE,
        ) == 0
    }
}

pub(crate) fn allocated_bytes(file: &OwnedFd) -> u64 {
    let file = std::fs::File::from(file.try_clone().expect("a descriptor"));
    file.metadata().map_or(0, |data| {
        std::os::unix::fs::MetadataExt::blocks(&data) * 512
    })
}

pub(crate) fn shut_down(socket: &impl AsFd, how: i32) {
    // SAFETY: plain arguments.
    unsafe { libc::shutdown(socket.as_fd().as_raw_fd(), how) };
}

/// Runs `what` in a child, and waits for its end.
pub(crate) fn in_child(what: impl FnOnce()) {
    // SAFETY: this program has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        what();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: no status is asked for.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

/// Loads a byte of shared memory.
pub(crate) fn load(mapping: &Mapping, offset: usize) -> u8 {
    byte(mapping, offset).load(Relaxed)
}

/// Stores a byte anywhere in shared memory.
pub(crate) fn store(mapping: &Mapping, offset: usize, value: u8) {
    byte(mapping, offset).store(value, Relaxed);
}

fn byte(mapping: &Mapping, offset: usize) -> &AtomicU8 {
    assert!(offset < mapping.bytes());
    // SAFETY: within the mapping.
    let place = unsafe { mapping.base().add(offset) };
    // SAFETY: a byte of memory that everybody accesses by atomics or raw copies.
    unsafe { place.cast::<AtomicU8>().as_ref() }
}

/// The word that a gate is.
pub(crate) fn gate_word(gate: &GateWord) -> &AtomicU64 {
    // SAFETY: the gate is one 64-bit atomic word, and transparent.
    unsafe { &*std::ptr::from_ref(gate).cast() }
}

/// Copies from a ring to `buffer`.
pub(crate) fn read_ring(
    segment: &millrace_shm::segment::Segment,
    (direction, head): (usize, u32),
    window: u32,
    buffer: &mut [u8],
) {
    // SAFETY: the buffer is that long.
    unsafe {
        segment.read(
            direction,
            head,
            window,
            buffer.as_mut_ptr(),
            buffer.len() as u32,
        )
    };
}

/// Copies `bytes` to a ring.
pub(crate) fn write_ring(
    segment: &millrace_shm::segment::Segment,
    (direction, tail): (usize, u32),
    window: u32,
    bytes: &[u8],
) {
    // SAFETY: there are that many bytes.
    unsafe { segment.write(direction, tail, window, bytes.as_ptr(), bytes.len() as u32) };
}

/// Ends this program by a signal in so many seconds; in none: not any more.
pub(crate) fn end_in(seconds: u32) {
    // SAFETY: plain arguments.
    unsafe { libc::alarm(seconds) };
}

/// Starts a program that gets the socket, too, and waits for its end.
pub(crate) fn start_with(socket: &impl AsRawFd) {
    // SAFETY: plain arguments.
    unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_SETFD, 0) };
    // SAFETY: a C string.
    unsafe { libc::system(c"true".as_ptr()) };
}

/// The calling thread's number.
pub(crate) fn thread_number() -> u32 {
    // SAFETY: it asks for a number.
    unsafe { libc::gettid() }.cast_unsigned()
}

/// Has the kernel read from `stream` so many times, by asynchronous requests of a byte each.
pub(crate) fn read_by_requests(stream: &impl AsFd, count: usize) {
    let (mut context, mut byte) = (0usize, 0u8);
    // SAFETY: the kernel writes one word.
    let made = unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) };
    assert_eq!(made, 0, "asynchronous requests");
    let fd = stream.as_fd().as_raw_fd();
    // `struct iocb` of `linux/aio_abi.h`: a read is operation 0.
    let place = (&raw mut byte) as u64;
    let request = [
        0,
        0,
        u64::from(fd.cast_unsigned()) << 32,
        place,
        1,
        0,
        0,
        0u64,
    ];
    let list = [&raw const request];
    let mut event = [0u64; 4];
    for _ in 0..count {
        // SAFETY: one request, which is complete before its memory goes.
        unsafe { libc::syscall(libc::SYS_io_submit, context, 1usize, list.as_ptr()) };
        let (place, none) = (event.as_mut_ptr(), std::ptr::null::<libc::timespec>());
        // SAFETY: room for one event.
        unsafe { libc::syscall(libc::SYS_io_getevents, context, 1usize, 1usize, place, none) };
    }
    // SAFETY: nothing is under way in it.
    unsafe { libc::syscall(libc::SYS_io_destroy, context) };
}
