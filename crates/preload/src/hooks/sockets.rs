//! Connections that begin, change and end: `socket`, `connect`, `accept`, `shutdown`, options.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, SeqCst};

use libc::{c_int, c_void, sockaddr, socklen_t};
use millrace_shm::board::flags;
use millrace_wire::Reason;

use crate::attach::TCP_TX_DELAY;
use crate::process::{new_connection, new_descriptor};
use crate::socket::Socket;
use crate::table::{self, Entry};
use crate::{client, kernel, process, real, thread, user};

/// Of `linux/tcp.h`.
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    enter!();
    let stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    let tcp = stream
        && matches!(protocol, 0 | libc::IPPROTO_TCP)
        && matches!(domain, libc::AF_INET | libc::AF_INET6);
    if tcp {
        process::wake();
    }
    // SAFETY: the program's own arguments.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    new_descriptor(
        fd,
        if tcp {
            Entry::Unconnected(domain)
        } else {
            Entry::Unknown
        },
    );
    fd
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    enter!();
    // SAFETY: the program's own arguments.
    let result = unsafe { real::listen(fd, backlog) };
    if result == 0 && matches!(table::get(fd), Entry::Unconnected(_)) {
        let errno = thread::errno();
        client::prepare();
        thread::set_errno(errno);
    }
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn connect(
    fd: c_int,
    address: *const sockaddr,
    bytes: socklen_t,
) -> c_int {
    enter!();
    if let Some(socket) = table::socket(fd)
        && socket.is_attached()
        && is_unspecified(address, bytes)
    {
        socket.flush_all(fd);
        if table::is_gone(fd, socket) {
            return bad_descriptor();
        }
    }
    let forks = process::count_forks();
    // SAFETY: the program's own arguments.
    let result = unsafe { real::connect(fd, address, bytes) };
    let errno = thread::errno();
    let begun = result == 0 || errno == libc::EINPROGRESS || errno == libc::EINTR;
    match table::get(fd) {
        Entry::Unconnected(family) if begun => new_connection((fd, family), true, forks),
        // A second call asks how the first went, or (AF_UNSPEC) dissolves the connection.
        Entry::Socket(socket) if result == 0 && is_unspecified(address, bytes) => socket.dissolve(),
        _ => {}
    }
    kernel::note_told();
    thread::set_errno(errno);
    result
}

/// Another thread has closed the connection while the call was prepared. The number may be another's by now, which the call is not for.
#[cold]
fn bad_descriptor() -> c_int {
    thread::set_errno(libc::EBADF);
    -1
}

fn is_unspecified(address: *const sockaddr, bytes: socklen_t) -> bool {
    if (bytes as usize) < size_of::<libc::sa_family_t>() || !user::can_read(address.cast(), 2) {
        return false;
    }
    // SAFETY: just found readable.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    c_int::from(family) == libc::AF_UNSPEC
}

/// Tracks what `accept` returned.
fn accepted(listener: c_int, fd: c_int) {
    if fd < 0 || process::is_off() {
        return;
    }
    let errno = thread::errno();
    let forks = process::count_forks();
    let family = match table::get(listener) {
        Entry::Unconnected(family) => Some(family),
        _ => kernel::tcp_family(fd),
    };
    match family {
        Some(family) => {
            // The program was started with what it listens on.
            process::wake();
            new_connection((fd, family), false, forks);
        }
        None => new_descriptor(fd, Entry::Unknown),
    }
    thread::set_errno(errno);
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn accept(
    listener: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
) -> c_int {
    enter!();
    // SAFETY: the program's own arguments.
    let fd = unsafe { real::accept(listener, address, bytes) };
    accepted(listener, fd);
    fd
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn accept4(
    listener: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
    flags: c_int,
) -> c_int {
    enter!();
    // SAFETY: the program's own arguments.
    let fd = unsafe { real::accept4(listener, address, bytes, flags) };
    accepted(listener, fd);
    fd
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    enter!(touches("shutdown", fd));
    let Some(socket) = table::called(fd) else {
        // SAFETY: the program's own arguments.
        return unsafe { real::shutdown(fd, how) };
    };
    // One whose peer was killed is over already.
    socket.look_for_kill(fd);
    let joined = socket.is_joined_now(fd);
    // One that does not join before it is shut down does not join meanwhile.
    let announced = (!joined).then(|| socket.begin_raw_send(fd)).flatten();
    if announced.is_none() {
        before_shutdown(socket, fd, how);
    }
    if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
        socket.is_deaf.store(true, Relaxed);
    }
    // Whoever has the lock may have taken out of the peer's queue what it is about to send again: no end comes before that.
    let locked = (joined && how != libc::SHUT_RD).then(|| socket.lock_send(fd));
    let result = if table::is_gone(fd, socket) {
        bad_descriptor()
    } else {
        // SAFETY: the program's own arguments.
        unsafe { real::shutdown(fd, how) }
    };
    drop(locked);
    kernel::note_told();
    if let Some(row) = announced {
        row.send.raw.fetch_sub(1, SeqCst);
    }
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
) -> c_int {
    enter!(touches("getpeername", fd));
    if let Some(socket) = table::called(fd) {
        // A connection that is reset has no peer.
        socket.look_for_kill(fd);
    }
    // SAFETY: the program's own arguments.
    unsafe { real::getpeername(fd, address, bytes) }
}

/// An attached connection's ring ends before the kernel's road does.
fn before_shutdown(socket: &'static Socket, fd: c_int, how: c_int) {
    let errno = thread::errno();
    if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
        socket.end_sending(fd);
    }
    if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
        socket.pin_flags(flags::RECEIVE_PINNED, Reason::NotEstablished);
        // With the bytes of a full queue taken out for a moment more would come, after the shutdown, and meet a reset.
        if kernel::has_queue_room(fd) {
            socket.draw_back(fd);
        } else if let Some(locked) = socket.lock_receive(fd) {
            locked.half.leave();
        }
    }
    thread::set_errno(errno);
}

/// Options that take the connection, or a direction of it, to the kernel's road.
fn pinning_option(level: c_int, name: c_int, value: impl Fn() -> Option<c_int>) -> Option<Reason> {
    const TCP_REPAIR: c_int = 19;
    const TCP_ULP: c_int = 31;
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
            if value().is_some_and(|value| !(0..=1).contains(&value)) =>
        {
            // The kernel takes a negative one for the largest.
            Some(Reason::LowWater)
        }
        (libc::SOL_SOCKET, libc::SO_PEEK_OFF) if value().is_some_and(|value| value >= 0) => {
            Some(Reason::Unsupported)
        }
        // Of an unsigned long, too, these are the lower bytes.
        (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE)
            if value().is_some_and(|value| value != -1) =>
        {
            Some(Reason::Shaped)
        }
        (libc::IPPROTO_TCP, TCP_TX_DELAY) if value().is_some_and(|value| value != 0) => {
            Some(Reason::Shaped)
        }
        // Not to wait at all, which the kernel tells as it tells for ever. Of the seconds these are the lower bytes.
        (libc::SOL_SOCKET, name) if is_time_out(name) && value().is_some_and(|value| value < 0) => {
            Some(Reason::Unsupported)
        }
        // The last with times of 64 bits everywhere: SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_NEW.
        (
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMP | libc::SO_TIMESTAMPNS | libc::SO_TIMESTAMPING | 63..=65,
        ) if value().is_some_and(|value| value != 0) => Some(Reason::Unsupported),
        // They see packets.
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_BPF) => {
            Some(Reason::Unsupported)
        }
        (libc::IPPROTO_TCP, TCP_ULP) => Some(Reason::Ktls),
        (libc::IPPROTO_TCP, TCP_REPAIR) => Some(Reason::Repair),
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => Some(Reason::FastOpen),
        _ => None,
    }
}

/// Options that also concern the bytes that are unread already, as only the kernel can honour them.
fn is_for_unread(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && (matches!(name, libc::SO_PEEK_OFF | libc::SO_RCVLOWAT) || is_time_out(name))
}

/// The last are SO_RCVTIMEO_NEW and SO_SNDTIMEO_NEW, with times of 64 bits everywhere.
fn is_time_out(name: c_int) -> bool {
    matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | 66 | 67)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    bytes: socklen_t,
) -> c_int {
    enter!(touches("setsockopt", fd));
    let number = || {
        let is_int = bytes as usize >= size_of::<c_int>()
            && user::can_read(value.cast(), size_of::<c_int>());
        // SAFETY: just found readable.
        is_int.then(|| unsafe { value.cast::<c_int>().read_unaligned() })
    };
    if level == libc::SOL_SOCKET && is_time_out(name) && number().is_some_and(|value| value < 0) {
        // When it is connected, or has been accepted from a listener, the kernel does not tell that any more.
        process::be_impatient(fd);
    }
    if let Some(socket) = table::socket(fd)
        && let Some(reason) = pinning_option(level, name, number)
    {
        let errno = thread::errno();
        socket.pin(reason);
        if reason == Reason::Ktls {
            // What the reader has not read by then, only the ring can give it: the kernel's road encrypts what is sent again.
            socket.flush_all(fd);
            socket.bring_back(fd);
        } else if reason == Reason::Repair || is_for_unread(level, name) {
            socket.draw_back(fd);
        }
        if reason == Reason::Repair {
            // Whoever copies the connection's state has the kernel's only.
            socket.flush_all(fd);
        }
        thread::set_errno(errno);
        if table::is_gone(fd, socket) {
            return bad_descriptor();
        }
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::setsockopt(fd, level, name, value, bytes) };
    if result == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY) {
        note_no_delay(fd, value);
    }
    // Whoever joins it just now may have asked the kernel before.
    if result == 0
        && (level, name) == (libc::IPPROTO_TCP, libc::TCP_INQ)
        && let Some(socket) = table::socket(fd).filter(|socket| socket.await_join())
    {
        // SAFETY: the kernel has just read it.
        socket.set_tells_left(unsafe { value.cast::<c_int>().read_unaligned() } != 0);
    }
    if result == 0
        && (level, name) == (libc::SOL_SOCKET, libc::SO_LINGER)
        && let Some(socket) = table::socket(fd)
    {
        socket.forget_linger();
    }
    result
}

/// The program set TCP_NODELAY. On an attached connection the kernel has it on, whatever the program thinks.
fn note_no_delay(fd: c_int, value: *const c_void) {
    // Whoever joins it just now may have asked the kernel before.
    let Some(socket) = table::socket(fd).filter(|socket| socket.await_join()) else {
        return;
    };
    // Nobody gives it back meanwhile.
    let Some(_locked) = socket.lock_send(fd) else {
        return;
    };
    // SAFETY: the kernel has just read it.
    let on = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
    let word = &socket.row().identity.flags;
    if on {
        // Somebody may have done so just before.
        kernel::set_no_delay(fd, true);
        word.fetch_and(!flags::HIDDEN_NO_DELAY, AcqRel);
    } else if word.load(Relaxed) & flags::SEND_PINNED == 0 {
        word.fetch_or(flags::HIDDEN_NO_DELAY, AcqRel);
        kernel::set_no_delay(fd, true);
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    bytes: *mut socklen_t,
) -> c_int {
    enter!(touches("getsockopt", fd));
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO)
        && let Some(socket) = table::socket(fd)
    {
        socket.look_for_end(fd);
        let mut result = -1;
        socket.complete_info(fd, value.cast(), || {
            // SAFETY: the program's own arguments.
            result = unsafe { real::getsockopt(fd, level, name, value, bytes) };
            // SAFETY: the kernel has just written it.
            (result == 0).then(|| unsafe { bytes.read_unaligned() } as usize)
        });
        return result;
    }
    if (level, name) == (libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE)
        && let Some(socket) = table::socket(fd)
    {
        let errno = thread::errno();
        socket.leave_to_requests(fd, Reason::Zerocopy, true);
        thread::set_errno(errno);
    }
    // Another thread may show the program's choice again meanwhile.
    let is_hidden = (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY)
        && table::socket(fd).is_some_and(|socket| {
            socket.row().identity.flags.load(Relaxed) & flags::HIDDEN_NO_DELAY != 0
        });
    // SAFETY: the program's own arguments.
    let result = unsafe { real::getsockopt(fd, level, name, value, bytes) };
    if result == 0
        && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && let Some(socket) = table::socket(fd)
    {
        // SAFETY: the kernel has just written both.
        let (told, bytes) = unsafe { (value.cast::<c_int>(), bytes.read_unaligned() as usize) };
        // SAFETY: as above; the kernel writes the whole number or a part of it.
        if bytes == size_of::<c_int>() && unsafe { told.read_unaligned() } == 0 {
            let error = socket.take_error(fd);
            // SAFETY: as above.
            unsafe { told.write_unaligned(error) };
        }
    }
    if result == 0
        && (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY)
        && let Some(socket) = table::socket(fd)
        && (is_hidden || socket.row().identity.flags.load(Relaxed) & flags::HIDDEN_NO_DELAY != 0)
    {
        // SAFETY: the kernel has just written both, and no more bytes than `bytes` says.
        unsafe {
            value
                .cast::<u8>()
                .write_bytes(0, bytes.read_unaligned() as usize)
        };
    }
    result
}
