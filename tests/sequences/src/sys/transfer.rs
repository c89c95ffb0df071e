//! Receiving and sending, in every form that the C library has.

use super::{Answer, Area, Errno, Fd, answer, count, last_errno, vectors};
use libc::{c_char, c_int, c_void, size_t, socklen_t, ssize_t};
use std::ffi::CStr;
use std::mem::{size_of, zeroed};
use std::ptr::{null, null_mut};

// `dprintf`, which the libc crate does not declare, and the fortified variants, which programs built with
// `_FORTIFY_SOURCE` call.
unsafe extern "C" {
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
    fn __read_chk(fd: c_int, buffer: *mut c_void, bytes: size_t, room: size_t) -> ssize_t;
    fn __recv_chk(
        fd: c_int,
        buffer: *mut c_void,
        bytes: size_t,
        room: size_t,
        flags: c_int,
    ) -> ssize_t;
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        bytes: size_t,
        room: size_t,
        flags: c_int,
        address: *mut libc::sockaddr,
        address_bytes: *mut socklen_t,
    ) -> ssize_t;
}

pub(crate) fn read(fd: Fd, area: &Area<'_>) -> Answer {
    // SAFETY: the area is the caller's own memory for as long as it is borrowed, or deliberately unmapped,
    // for which the call answers EFAULT.
    answer(unsafe { libc::read(fd, area.pointer(), area.len()) } as i64)
}

pub(crate) fn read_checked(fd: Fd, area: &Area<'_>) -> Answer {
    // SAFETY: as for `read`; the room stated is the area's own length.
    answer(unsafe { __read_chk(fd, area.pointer(), area.len(), area.len()) } as i64)
}

pub(crate) fn readv(fd: Fd, areas: &[Area<'_>]) -> Answer {
    // SAFETY: an `Area` has the layout of an `iovec`, and each is as for `read`.
    answer(unsafe { libc::readv(fd, vectors(areas), count(areas.len())) } as i64)
}

pub(crate) fn preadv2(fd: Fd, areas: &[Area<'_>], offset: i64, flags: c_int) -> Answer {
    // SAFETY: as for `readv`.
    answer(unsafe { libc::preadv2(fd, vectors(areas), count(areas.len()), offset, flags) } as i64)
}

pub(crate) fn pread(fd: Fd, area: &Area<'_>) -> Answer {
    // SAFETY: as for `read`.
    answer(unsafe { libc::pread(fd, area.pointer(), area.len(), 0) } as i64)
}

pub(crate) fn pwrite(fd: Fd, area: &Area<'_>) -> Answer {
    // SAFETY: as for `write`.
    answer(unsafe { libc::pwrite(fd, area.pointer(), area.len(), 0) } as i64)
}

pub(crate) fn recv(fd: Fd, area: &Area<'_>, flags: c_int) -> Answer {
    // SAFETY: as for `read`.
    answer(unsafe { libc::recv(fd, area.pointer(), area.len(), flags) } as i64)
}

pub(crate) fn recv_checked(fd: Fd, area: &Area<'_>, flags: c_int) -> Answer {
    // SAFETY: as for `read`; the room stated is the area's own length.
    answer(unsafe { __recv_chk(fd, area.pointer(), area.len(), area.len(), flags) } as i64)
}

/// Receives, and asks for the sender's address. Also returns the length of the address that came back.
pub(crate) fn recvfrom(
    fd: Fd,
    area: &Area<'_>,
    flags: c_int,
    checked: bool,
) -> (Answer, socklen_t) {
    // SAFETY: a `sockaddr_storage` of zeros is valid.
    let mut address: libc::sockaddr_storage = unsafe { zeroed() };
    let mut bytes: socklen_t = count(size_of::<libc::sockaddr_storage>());
    let pointer = (&raw mut address).cast();
    let result = if checked {
        // SAFETY: as for `read`; the address and its length are ours and of the stated size.
        unsafe {
            __recvfrom_chk(
                fd,
                area.pointer(),
                area.len(),
                area.len(),
                flags,
                pointer,
                &mut bytes,
            )
        }
    } else {
        // SAFETY: as for `read`; the address and its length are ours and of the stated size.
        unsafe { libc::recvfrom(fd, area.pointer(), area.len(), flags, pointer, &mut bytes) }
    };
    (answer(result as i64), bytes)
}

/// What a received message carried beside its bytes.
#[derive(Default)]
pub(crate) struct Received {
    /// `msg_flags`.
    pub(crate) flags: c_int,
    /// `msg_namelen`.
    pub(crate) name_bytes: socklen_t,
    /// `TCP_CM_INQ`'s number, where that control message came.
    pub(crate) inq: Option<c_int>,
    /// The descriptor of an `SCM_RIGHTS` control message, where one came.
    pub(crate) descriptor: Option<Fd>,
    /// How many other control messages there were.
    pub(crate) others: usize,
}

/// Room for control messages, aligned as they must be.
#[repr(align(8))]
struct Control([u8; 128]);

pub(crate) fn recvmsg(fd: Fd, areas: &[Area<'_>], flags: c_int) -> (Answer, Received) {
    // SAFETY: a `sockaddr_storage` of zeros is valid.
    let mut address: libc::sockaddr_storage = unsafe { zeroed() };
    let mut control = Control([0; 128]);
    let mut message = header(areas);
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = count(size_of::<libc::sockaddr_storage>());
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: the header points at areas as for `readv`, and at an address and a control buffer of ours.
    let result = answer(unsafe { libc::recvmsg(fd, &mut message, flags) } as i64);
    let mut received = Received::default();
    if result.is_ok() {
        received.flags = message.msg_flags;
        received.name_bytes = message.msg_namelen;
        read_control(&message, &mut received);
    }
    (result, received)
}

/// Collects what is known among the control messages of a received message.
fn read_control(message: &libc::msghdr, received: &mut Received) {
    // SAFETY: the header describes a control buffer of ours that the kernel has filled.
    let mut item = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !item.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return null or a whole header within the buffer.
        let head = unsafe { item.read_unaligned() };
        // SAFETY: as above; the data follows the header.
        let data = unsafe { libc::CMSG_DATA(item) }.cast::<c_int>();
        match (head.cmsg_level, head.cmsg_type) {
            (libc::IPPROTO_TCP, libc::TCP_CM_INQ) => {
                // SAFETY: this control message holds one int.
                received.inq = Some(unsafe { data.read_unaligned() });
            }
            (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                // SAFETY: only one descriptor is ever sent, one int.
                received.descriptor = Some(unsafe { data.read_unaligned() });
            }
            _ => received.others += 1,
        }
        // SAFETY: as for CMSG_FIRSTHDR, with a header that it returned.
        item = unsafe { libc::CMSG_NXTHDR(message, item) };
    }
}

/// A message header over `areas`, without name and control messages.
fn header(areas: &[Area<'_>]) -> libc::msghdr {
    // SAFETY: a `msghdr` of zeros is valid: it has no name, no areas and no control messages.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = vectors(areas).cast_mut();
    message.msg_iovlen = areas.len();
    message
}

/// Receives into one message per area; returns the bytes of each message received.
pub(crate) fn recvmmsg(
    fd: Fd,
    areas: &[Area<'_>],
    flags: c_int,
) -> Result<Vec<(u32, c_int)>, Errno> {
    let mut messages = headers(areas);
    // SAFETY: each header points at one area, as for `read`.
    let result = unsafe {
        libc::recvmmsg(
            fd,
            messages.as_mut_ptr(),
            count(messages.len()),
            flags as _,
            null_mut(),
        )
    };
    let received = answer(result)?;
    Ok(messages
        .iter()
        .take(received)
        .map(|message| (message.msg_len, message.msg_hdr.msg_flags))
        .collect())
}

/// Sends one message per area; returns the bytes of each message sent.
pub(crate) fn sendmmsg(fd: Fd, areas: &[Area<'_>], flags: c_int) -> Result<Vec<u32>, Errno> {
    let mut messages = headers(areas);
    // SAFETY: each header points at one area, as for `write`.
    let result =
        unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count(messages.len()), flags as _) };
    let sent = answer(result)?;
    Ok(messages
        .iter()
        .take(sent)
        .map(|message| message.msg_len)
        .collect())
}

fn headers(areas: &[Area<'_>]) -> Vec<libc::mmsghdr> {
    areas
        .chunks(1)
        .map(|area| libc::mmsghdr {
            msg_hdr: header(area),
            msg_len: 0,
        })
        .collect()
}

pub(crate) fn write(fd: Fd, area: &Area<'_>) -> Answer {
    // SAFETY: the area is the caller's own memory, or deliberately unmapped: EFAULT.
    answer(unsafe { libc::write(fd, area.pointer(), area.len()) } as i64)
}

pub(crate) fn writev(fd: Fd, areas: &[Area<'_>]) -> Answer {
    // SAFETY: an `Area` has the layout of an `iovec`, and each is as for `write`.
    answer(unsafe { libc::writev(fd, vectors(areas), count(areas.len())) } as i64)
}

pub(crate) fn pwritev2(fd: Fd, areas: &[Area<'_>], offset: i64, flags: c_int) -> Answer {
    // SAFETY: as for `writev`.
    answer(unsafe { libc::pwritev2(fd, vectors(areas), count(areas.len()), offset, flags) } as i64)
}

pub(crate) fn send(fd: Fd, area: &Area<'_>, flags: c_int) -> Answer {
    // SAFETY: as for `write`.
    answer(unsafe { libc::send(fd, area.pointer(), area.len(), flags) } as i64)
}

/// `sendto` with an address, which TCP ignores on a connected socket.
pub(crate) fn sendto(fd: Fd, area: &Area<'_>, flags: c_int, addressed: bool) -> Answer {
    // SAFETY: a `sockaddr_in` of zeros is valid.
    let mut address: libc::sockaddr_in = unsafe { zeroed() };
    address.sin_family = count(usize::from(libc::AF_INET as u8));
    let (pointer, bytes) = if addressed {
        (
            (&raw const address).cast(),
            count(size_of::<libc::sockaddr_in>()),
        )
    } else {
        (null(), 0)
    };
    // SAFETY: as for `write`; the address is ours and of the stated size.
    answer(unsafe { libc::sendto(fd, area.pointer(), area.len(), flags, pointer, bytes) } as i64)
}

pub(crate) fn sendmsg(fd: Fd, areas: &[Area<'_>], flags: c_int) -> Answer {
    let message = header(areas);
    // SAFETY: the header points at areas as for `writev`.
    answer(unsafe { libc::sendmsg(fd, &message, flags) } as i64)
}

/// Sends `note` and the descriptor `passed` through the Unix socket `fd`.
pub(crate) fn send_rights(fd: Fd, note: &mut [u8], passed: Fd) -> Answer {
    let areas = [Area::of(note)];
    let mut message = header(&areas);
    let mut control = Control([0; 128]);
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(count(size_of::<c_int>())) } as usize;
    // SAFETY: the header describes a control buffer of ours with room for one message.
    let item = unsafe { libc::CMSG_FIRSTHDR(&message) };
    let head = libc::cmsghdr {
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
        cmsg_len: unsafe { libc::CMSG_LEN(count(size_of::<c_int>())) } as usize,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    // SAFETY: `item` points into `control`, which is aligned and has room for a header and one int.
    unsafe { item.write(head) };
    // SAFETY: as above.
    let data = unsafe { libc::CMSG_DATA(item) }.cast::<c_int>();
    // SAFETY: as above.
    unsafe { data.write_unaligned(passed) };
    // SAFETY: the header points at memory of ours throughout.
    answer(unsafe { libc::sendmsg(fd, &message, 0) } as i64)
}

/// `sendfile` of `bytes` from the file's start, by an offset of ours or by the file's own.
pub(crate) fn sendfile(to: Fd, from: Fd, bytes: usize, own_offset: bool) -> Answer {
    let mut offset: libc::off_t = 0;
    let pointer = if own_offset {
        null_mut()
    } else {
        &raw mut offset
    };
    // SAFETY: the offset is ours, or null.
    answer(unsafe { libc::sendfile(to, from, pointer, bytes) } as i64)
}

pub(crate) fn sendfile64(to: Fd, from: Fd, bytes: usize) -> Answer {
    let mut offset: libc::off64_t = 0;
    // SAFETY: the offset is ours.
    answer(unsafe { libc::sendfile64(to, from, &mut offset, bytes) } as i64)
}

pub(crate) fn splice(from: Fd, to: Fd, bytes: usize, flags: u32) -> Answer {
    // SAFETY: no offsets are passed.
    answer(unsafe { libc::splice(from, null_mut(), to, null_mut(), bytes, flags) } as i64)
}

pub(crate) fn tee(from: Fd, to: Fd, bytes: usize) -> Answer {
    // SAFETY: `tee` takes no pointer.
    answer(unsafe { libc::tee(from, to, bytes, 0) } as i64)
}

pub(crate) fn copy_file_range(from: Fd, to: Fd, bytes: usize) -> Answer {
    // SAFETY: no offsets are passed.
    answer(unsafe { libc::copy_file_range(from, null_mut(), to, null_mut(), bytes, 0) } as i64)
}

/// `dprintf(fd, "%s", text)`.
pub(crate) fn print_to(fd: Fd, text: &CStr) -> Answer {
    // SAFETY: the format takes one string, and `text` is one.
    answer(unsafe { dprintf(fd, c"%s".as_ptr(), text.as_ptr()) })
}

/// Opens a stream over `fd`, writes `bytes` to it in two pieces, and closes it (and so `fd`).
pub(crate) fn stdio_write(fd: Fd, bytes: &[u8]) -> Answer {
    // SAFETY: the mode is a C string.
    let stream = unsafe { libc::fdopen(fd, c"w".as_ptr()) };
    if stream.is_null() {
        return Err(last_errno());
    }
    let mut written = 0;
    for piece in bytes.chunks(bytes.len().div_ceil(2).max(1)) {
        // SAFETY: the stream is open, and the piece is memory of ours.
        written += unsafe { libc::fwrite(piece.as_ptr().cast(), 1, piece.len(), stream) };
    }
    // SAFETY: the stream is open; it is not used after.
    answer(unsafe { libc::fclose(stream) }).map(|_| written)
}

/// Opens a stream over `fd`, reads exactly `bytes` from it, and closes it (and so `fd`).
pub(crate) fn stdio_read(fd: Fd, bytes: &mut [u8]) -> Answer {
    // SAFETY: the mode is a C string.
    let stream = unsafe { libc::fdopen(fd, c"r".as_ptr()) };
    if stream.is_null() {
        return Err(last_errno());
    }
    // Unbuffered, so that no byte beyond those asked for is taken from the connection.
    // SAFETY: the stream is open and nothing was read yet.
    unsafe { libc::setvbuf(stream, null_mut(), libc::_IONBF, 0) };
    // SAFETY: the stream is open, and the memory is ours.
    let taken = unsafe { libc::fread(bytes.as_mut_ptr().cast(), 1, bytes.len(), stream) };
    // SAFETY: the stream is open; it is not used after.
    answer(unsafe { libc::fclose(stream) }).map(|_| taken)
}
