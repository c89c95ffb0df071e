//! `write`, `send` and their relatives.

use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t,
};
use millrace_shm::board::flags;
use millrace_wire::Reason;

use crate::hooks::receive::{AT_ITS_END, bytes_of, give_up, stream_flags, vectors};
use crate::send::{Call, Several, send as send_on, send_unjoined};
use crate::socket::Socket;
use crate::vectors::{BYTES_MAX, is_beyond_memory};
use crate::{c_library, headers, hooks::finish, kernel, real, table, thread, user};

/// `sendmmsg` takes no more.
const MESSAGES_MAX: c_uint = 1024;

#[inline]
fn from_buffer(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    flags: c_int,
    raw: &mut dyn FnMut() -> isize,
) -> ssize_t {
    match table::called(fd) {
        // Beyond what memory there can be: the kernel looks at that first.
        Some(_) if bytes > BYTES_MAX && is_beyond_memory(buffer as usize, bytes) => raw(),
        Some(socket) => {
            let list = [iovec {
                iov_base: buffer.cast_mut(),
                iov_len: bytes,
            }];
            finish(
                send_on(
                    socket,
                    &Call {
                        fd,
                        list: &list,
                        flags,
                        several: None,
                    },
                    raw,
                ),
                raw,
            )
        }
        None => raw(),
    }
}

/// For no bytes the kernel does not ask the connection, as it does for `write`.
#[inline]
fn from_vectors(
    fd: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
    raw: &mut dyn FnMut() -> isize,
) -> ssize_t {
    match table::called(fd).map(|socket| (socket, vectors(list, count))) {
        Some((socket, Some(list))) if list.iter().any(|vector| vector.iov_len != 0) => {
            let several = None;
            let call = Call {
                fd,
                list,
                flags,
                several,
            };
            finish(send_on(socket, &call, raw), raw)
        }
        _ => raw(),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn write(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
) -> ssize_t {
    enter!(sends("write", fd, 0));
    // SAFETY: the program's own arguments.
    from_buffer(fd, buffer, bytes, 0, &mut || unsafe {
        real::write(fd, buffer, bytes)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn send(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    flags: c_int,
) -> ssize_t {
    enter!(sends("send", fd, flags));
    // SAFETY: the program's own arguments.
    from_buffer(fd, buffer, bytes.min(BYTES_MAX), flags, &mut || unsafe {
        real::send(fd, buffer, bytes, flags)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_bytes: socklen_t,
) -> ssize_t {
    enter!(sends("sendto", fd, flags));
    // An established TCP socket ignores the address, but checks that it can be read: the kernel's own call does when there is one.
    // SAFETY: the program's own arguments.
    let mut raw = || unsafe { real::sendto(fd, buffer, bytes, flags, address, address_bytes) };
    if address.is_null()
        || user::can_read(address.cast(), address_bytes as usize) && address_bytes <= 128
    {
        from_buffer(fd, buffer, bytes.min(BYTES_MAX), flags, &mut raw)
    } else {
        raw()
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn writev(
    fd: c_int,
    list: *const iovec,
    count: c_int,
) -> ssize_t {
    enter!(sends("writev", fd, 0));
    // SAFETY: the program's own arguments.
    from_vectors(
        fd,
        list,
        usize::try_from(count).unwrap_or(usize::MAX),
        0,
        &mut || unsafe { real::writev(fd, list, count) },
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    enter!(sends("sendmsg", fd, flags));
    // SAFETY: the program's own arguments.
    unsafe { send_message(fd, message, flags, None) }
}

/// As `sendmsg`; `several` as [`Call`] has it.
///
/// # Safety
/// As of `sendmsg`.
unsafe fn send_message(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
    several: Option<&Several>,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut raw = || unsafe { real::sendmsg(fd, message, flags) };
    let socket = table::called(fd);
    if !user::can_read(message.cast(), size_of::<msghdr>()) {
        return raw();
    }
    // SAFETY: just found readable; the program gives it to this call.
    let header = unsafe { &*message };
    let Some(socket) = socket else {
        crate::pass::note_passed(header);
        if let Some(several) = several {
            several.let_handlers_run();
        }
        return raw();
    };
    if !headers::takes_name(header) {
        return raw();
    }
    leave_control(socket, header);
    match vectors(header.msg_iov, headers::count(header.msg_iovlen)) {
        Some(list) => {
            let call = Call {
                fd,
                list,
                flags,
                several,
            };
            finish(send_on(socket, &call, &mut raw), || {
                if let Some(several) = several {
                    several.let_handlers_run();
                }
                raw()
            })
        }
        None => raw(),
    }
}

/// Control messages are for the kernel to judge.
fn leave_control(socket: &'static Socket, header: &msghdr) {
    if headers::count(header.msg_controllen) != 0 {
        socket.pin_flags(flags::SEND_PINNED, Reason::Unsupported);
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    enter!(sends("sendmmsg", fd, flags));
    // SAFETY: the program's own arguments.
    let own = || unsafe { real::sendmmsg(fd, messages, count, flags) };
    let Some(socket) = table::called(fd) else {
        for_headers(messages, count, crate::pass::note_passed);
        return own();
    };
    // That of musl is calls for one message each.
    if !c_library::is_musl() && !socket.is_joined(fd) {
        for_headers(messages, count, |header| leave_control(socket, header));
        let mut result = 0;
        let mut raw = || {
            result = own();
            bytes_of(messages, result)
        };
        if send_unjoined(socket, (fd, flags), &mut raw).is_some() {
            return result;
        }
    }
    let several = (!c_library::is_musl()).then(Several::begin);
    let result = one_by_one(fd, messages, (count, flags), several.as_ref());
    let error = thread::errno();
    // Handlers run here.
    drop(several);
    thread::set_errno(error);
    result
}

fn for_headers(messages: *const mmsghdr, count: c_uint, each: impl Fn(&msghdr)) {
    for index in 0..count.min(MESSAGES_MAX) as usize {
        let entry = messages.wrapping_add(index);
        if user::can_read(entry.cast(), size_of::<mmsghdr>()) {
            // SAFETY: just found readable.
            each(unsafe { &(*entry).msg_hdr });
        }
    }
}

fn one_by_one(
    fd: c_int,
    messages: *mut mmsghdr,
    (count, flags): (c_uint, c_int),
    several: Option<&Several>,
) -> c_int {
    let errno = thread::errno();
    let fail = |index, error| {
        let after = if c_library::is_musl() { error } else { errno };
        give_up(index, (after, error))
    };
    let count = count.min(MESSAGES_MAX);
    for index in 0..count as usize {
        let entry = messages.wrapping_add(index);
        if !user::can_read(entry.cast(), size_of::<msghdr>()) {
            return fail(index, libc::EFAULT);
        }
        // SAFETY: just found readable.
        let result = unsafe { send_message(fd, &raw const (*entry).msg_hdr, flags, several) };
        if result < 0 {
            return fail(index, thread::errno());
        }
        // SAFETY: an address of the program's.
        let sent = unsafe { &raw mut (*entry).msg_len };
        // Not before: the message is sent in any case.
        if !user::can_write(sent.cast(), size_of::<c_uint>()) {
            return fail(index, libc::EFAULT);
        }
        // SAFETY: just found writable.
        unsafe { sent.write(result as c_uint) };
        // SAFETY: the vectors of a message that has just been sent.
        if result.cast_unsigned() < unsafe { length(&(*entry).msg_hdr) } {
            // The rest of this message comes before the next one.
            return index as c_int + 1;
        }
        if let Some(several) = several {
            several.note_sent();
        }
    }
    count as c_int
}

/// How long a message is, as the kernel takes it.
///
/// # Safety
/// Its vectors are readable.
unsafe fn length(header: &msghdr) -> usize {
    let count = headers::count(header.msg_iovlen);
    if count == 0 {
        return 0;
    }
    // SAFETY: by the caller's promise.
    let list = unsafe { std::slice::from_raw_parts(header.msg_iov, count) };
    let bytes = |all: usize, part: &iovec| all.saturating_add(part.iov_len);
    list.iter().fold(0, bytes).min(BYTES_MAX)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    enter!(sends("pwritev2", fd, 0));
    // SAFETY: the program's own arguments.
    let mut raw = || unsafe { real::pwritev2(fd, list, count, offset, flags) };
    if offset != AT_ITS_END {
        return raw();
    }
    match (stream_flags(flags), table::called(fd)) {
        (Some(flags), _) => {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            from_vectors(fd, list, count, flags, &mut raw)
        }
        (None, Some(socket)) => finish(crate::send::by_kernel(socket, fd, &mut raw), raw),
        (None, None) => raw(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    list: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    enter!(sends("pwritev64v2", fd, 0));
    // SAFETY: the program's own arguments.
    unsafe { pwritev2(fd, list, count, offset, flags) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut raw = || unsafe { real::sendfile(out, input, offset, bytes) };
    let Some(socket) = table::called(out) else {
        return send_to_pipe((input, out), (offset, bytes), &mut raw);
    };
    enter!(sends("sendfile", out, 0));
    // It is no place for a cancellation, whatever is called for it.
    let _uncancelled = thread::Uncancelled::new();
    let outcome = crate::file::send_file(socket, out, input, offset, bytes, &mut raw);
    finish(outcome, raw)
}

/// What `sendfile` sends to a pipe may be a connection, as if it were spliced there.
fn send_to_pipe(
    (input, out): (c_int, c_int),
    (offset, bytes): (*mut off_t, size_t),
    raw: &mut dyn FnMut() -> isize,
) -> ssize_t {
    // A connection has no places to read at, and goes to no file: the kernel says so.
    let takes = |_: &&_| offset.is_null() && isize::try_from(bytes).is_ok() && kernel::is_pipe(out);
    let Some(socket) = table::called(input).filter(takes) else {
        return raw();
    };
    enter!(receives("sendfile", input, 0));
    let _uncancelled = thread::Uncancelled::new();
    let mut rest = |bytes| {
        // SAFETY: no offset; the other arguments are the program's own.
        unsafe { real::sendfile(out, input, std::ptr::null_mut(), bytes) }
    };
    let outcome = crate::file::splice_out(socket, (input, out), (bytes, 0), raw, &mut rest);
    finish(outcome, raw)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendfile64(
    out: c_int,
    input: c_int,
    offset: *mut off_t,
    bytes: size_t,
) -> ssize_t {
    enter!(sends("sendfile64", out, 0));
    // SAFETY: the program's own arguments.
    unsafe { sendfile(out, input, offset, bytes) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn splice(
    input: c_int,
    input_offset: *mut i64,
    out: c_int,
    out_offset: *mut i64,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    enter!(sends("splice", out, 0));
    enter!(receives("splice", input, 0));
    let mut call = |flags| {
        // SAFETY: the program's own arguments.
        unsafe { real::splice(input, input_offset, out, out_offset, bytes, flags) }
    };
    // SPLICE_F_MOVE to SPLICE_F_GIFT.
    if flags & !0xf != 0 || isize::try_from(bytes).is_err() {
        return call(flags);
    }
    if let Some(socket) = table::called(out) {
        let outcome = crate::file::splice_in(socket, out, (bytes, flags), &mut call);
        return finish(outcome, || call(flags));
    }
    let mut raw = || call(flags);
    let mut rest = |bytes| {
        let nowhere = std::ptr::null_mut();
        // SAFETY: no offsets; the other arguments are the program's own.
        unsafe { real::splice(input, nowhere, out, nowhere, bytes, flags) }
    };
    // A socket and a pipe have no places to read or write at: the kernel says so.
    match table::called(input) {
        Some(socket) if input_offset.is_null() && out_offset.is_null() => {
            let (ends, size) = ((input, out), (bytes, flags));
            let outcome = crate::file::splice_out(socket, ends, size, &mut raw, &mut rest);
            finish(outcome, raw)
        }
        _ => raw(),
    }
}
