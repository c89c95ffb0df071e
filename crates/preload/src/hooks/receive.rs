//! `read`, `recv` and their relatives.

use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use millrace_wire::Reason;

use crate::receive::{Call, receive};
use crate::vectors::{BYTES_MAX, is_beyond_memory};
use crate::{headers, hooks::finish, real, table, thread, user};

mod many;

pub(super) use many::{bytes_of, give_up, recvmmsg};

/// Of `recvmsg`: the kernel's own.
const MSG_CMSG_COMPAT: c_int = i32::MIN;

/// Receives into one buffer; `raw` is the program's own call.
#[inline]
fn into_buffer(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    flags: c_int,
    raw: &mut dyn FnMut() -> isize,
) -> ssize_t {
    match table::called(fd) {
        // Beyond what memory there can be: the kernel looks at that first.
        Some(_) if bytes > BYTES_MAX && is_beyond_memory(buffer as usize, bytes) => raw(),
        Some(socket) => {
            let list = [iovec {
                iov_base: buffer,
                iov_len: bytes,
            }];
            finish(
                receive(
                    socket,
                    &Call {
                        fd,
                        list: &list,
                        flags,
                    },
                    raw,
                ),
                raw,
            )
        }
        None => raw(),
    }
}

/// The program's array of buffers, if it can be read and the kernel would take it.
pub(super) fn vectors<'a>(list: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if count > 1024 || !user::can_read(list.cast(), count * size_of::<iovec>()) {
        return None;
    }
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: just found readable; the program gives it to this call.
    Some(unsafe { std::slice::from_raw_parts(list, count) })
}

/// As [`read_into`], of several buffers.
#[inline]
fn into_vectors(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
    raw: &mut dyn FnMut() -> isize,
) -> ssize_t {
    match table::called(fd).map(|socket| (socket, vectors(list, count))) {
        Some((socket, Some(list))) if list.iter().any(|vector| vector.iov_len != 0) => {
            finish(receive(socket, &Call { fd, list, flags }, raw), raw)
        }
        _ => raw(),
    }
}

/// A call of files: for no bytes the kernel does not ask the connection, and tells of no error of it.
#[inline]
fn read_into(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut raw = || unsafe { real::read(fd, buffer, bytes) };
    if bytes == 0 {
        return raw();
    }
    into_buffer(fd, buffer, bytes, 0, &mut raw)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn read(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
) -> ssize_t {
    enter!(receives("read", fd, 0));
    read_into(fd, buffer, bytes)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    room: size_t,
) -> ssize_t {
    enter!(receives("__read_chk", fd, 0));
    check_room(bytes, room);
    read_into(fd, buffer, bytes)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    flags: c_int,
) -> ssize_t {
    enter!(receives("recv", fd, flags));
    // SAFETY: the program's own arguments.
    into_buffer(fd, buffer, bytes.min(BYTES_MAX), flags, &mut || unsafe {
        real::recv(fd, buffer, bytes, flags)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    enter!(receives("__recv_chk", fd, flags));
    check_room(bytes, room);
    // SAFETY: the program's own arguments.
    into_buffer(fd, buffer, bytes.min(BYTES_MAX), flags, &mut || unsafe {
        real::recv(fd, buffer, bytes, flags)
    })
}

/// A fortified program's promise about its buffer is broken: the C library's own check ends it, as without us.
fn check_room(bytes: size_t, room: size_t) {
    if bytes > room {
        // SAFETY: does not return.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_bytes: *mut socklen_t,
) -> ssize_t {
    enter!(receives("recvfrom", fd, flags));
    let mut raw_ran = false;
    let result = into_buffer(fd, buffer, bytes.min(BYTES_MAX), flags, &mut || {
        raw_ran = true;
        // SAFETY: the program's own arguments.
        unsafe { real::recvfrom(fd, buffer, bytes, flags, address, address_bytes) }
    });
    if raw_ran || result < 0 || address.is_null() {
        return result;
    }
    match tell_no_address(address_bytes) {
        Ok(()) => result,
        Err(error) => {
            thread::set_errno(error);
            -1
        }
    }
}

/// TCP has no source address to tell: that it has no bytes is told after the message was received.
fn tell_no_address(bytes: *mut socklen_t) -> Result<(), c_int> {
    if bytes.is_null() || !user::can_read(bytes.cast(), size_of::<socklen_t>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: just found readable.
    if unsafe { bytes.read_unaligned() }.cast_signed() < 0 {
        return Err(libc::EINVAL);
    }
    if !user::can_write(bytes.cast(), size_of::<socklen_t>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: just found writable.
    unsafe { bytes.write_unaligned(0) };
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_bytes: *mut socklen_t,
) -> ssize_t {
    enter!(receives("__recvfrom_chk", fd, flags));
    check_room(bytes, room);
    // SAFETY: the program's own arguments.
    unsafe { recvfrom(fd, buffer, bytes, flags, address, address_bytes) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn readv(
    fd: c_int,
    list: *const iovec,
    count: c_int,
) -> ssize_t {
    enter!(receives("readv", fd, 0));
    // SAFETY: the program's own arguments.
    into_vectors(
        fd,
        list,
        usize::try_from(count).unwrap_or(usize::MAX),
        0,
        &mut || unsafe { real::readv(fd, list, count) },
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvmsg(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    enter!(receives("recvmsg", fd, flags));
    // SAFETY: the program's own arguments.
    let own = || unsafe { real::recvmsg(fd, message, flags) };
    let Some(socket) = table::called(fd).filter(|_| flags & MSG_CMSG_COMPAT == 0) else {
        return own();
    };
    if !user::can_read(message.cast(), size_of::<msghdr>()) {
        return own();
    }
    // SAFETY: just found readable; the program gives it to this call.
    let (list, count, name_bytes) = unsafe {
        let header = &*message;
        let name_bytes = if header.msg_name.is_null() {
            0
        } else {
            header.msg_namelen
        };
        (header.msg_iov, header.msg_iovlen, name_bytes)
    };
    if name_bytes.cast_signed() < 0 {
        return own();
    }
    let Some(list) = vectors(list, headers::count(count)) else {
        return own();
    };
    let mut raw_ran = false;
    let mut raw = || {
        raw_ran = true;
        own()
    };
    let outcome = receive(socket, &Call { fd, list, flags }, &mut raw);
    let result = finish(outcome, &mut raw);
    if !raw_ran && result >= 0 {
        if !user::can_write(message.cast(), size_of::<msghdr>()) {
            // As the kernel, which looks when it has received.
            thread::set_errno(libc::EFAULT);
            return -1;
        }
        // SAFETY: just found writable. TCP has no source address to tell.
        let header = unsafe { &mut *message };
        let (control_bytes, more_flags) = match socket.tells_left() {
            true => socket.tell_left(fd, header),
            false => (0, 0),
        };
        // The kernel echoes this flag.
        header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC | more_flags;
        header.msg_controllen = control_bytes;
        if !header.msg_name.is_null() {
            header.msg_namelen = 0;
        }
    }
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    enter!(receives("preadv2", fd, 0));
    // SAFETY: the program's own arguments.
    let mut raw = || unsafe { real::preadv2(fd, list, count, offset, flags) };
    if offset != AT_ITS_END {
        return raw();
    }
    let Some(flags) = stream_flags(flags) else {
        return by_kernel(fd, &mut raw);
    };
    into_vectors(
        fd,
        list,
        usize::try_from(count).unwrap_or(usize::MAX),
        flags,
        &mut raw,
    )
}

/// The offset of `preadv2` and `pwritev2` that is a stream's own. Of any other the kernel says that a connection has none.
pub(super) const AT_ITS_END: off_t = -1;

/// What the flags of `preadv2` and `pwritev2` mean on a stream. None: only the kernel knows.
pub(super) fn stream_flags(flags: c_int) -> Option<c_int> {
    // A connection is on no disk, and has one place to write at.
    const OF_FILES: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;
    match flags & !OF_FILES {
        0 => Some(0),
        libc::RWF_NOWAIT => Some(libc::MSG_DONTWAIT),
        _ => None,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    enter!(receives("preadv64v2", fd, 0));
    // SAFETY: the program's own arguments.
    unsafe { preadv2(fd, list, count, offset, flags) }
}

/// A variant that only the kernel knows reads the stream: what lies in the ring has to come by the kernel before.
fn by_kernel(fd: c_int, raw: &mut dyn FnMut() -> isize) -> ssize_t {
    let Some(socket) = table::called(fd) else {
        return raw();
    };
    let errno = thread::errno();
    socket.leave_to_requests(fd, Reason::Unsupported, true);
    thread::set_errno(errno);
    finish(crate::receive::by_kernel(socket, fd, raw), raw)
}
