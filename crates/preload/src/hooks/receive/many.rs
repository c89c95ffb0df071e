//! `recvmmsg`.

use std::ptr::null;

use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};

use super::{MSG_CMSG_COMPAT, recvmsg};
use crate::receive::{Call, deadline_ns, kept_error, receive_unjoined};
use crate::socket::ERESTARTSYS;
use crate::thread::Interrupts;
use crate::waits::await_entry;
use crate::{kernel, poll, real, table, thread, user};

#[unsafe(no_mangle)]
pub(in crate::hooks) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    enter!(receives("recvmmsg", fd, flags));
    // SAFETY: the program's own arguments.
    let own = || unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    let beside = flags & (libc::MSG_ERRQUEUE | MSG_CMSG_COMPAT) != 0;
    let Some(socket) = table::called(fd).filter(|_| !beside) else {
        return own();
    };
    let mut result = 0;
    let mut raw = || {
        result = own();
        bytes_of(messages, result)
    };
    let list = &[];
    let by_kernel = !socket.is_joined(fd)
        && receive_unjoined(socket, &Call { fd, list, flags }, &mut raw).is_some();
    if by_kernel {
        return result;
    }
    // An error that is pending comes first here, even before bytes. For no messages the kernel looks for nothing else.
    // SAFETY: the program's own arguments.
    if unsafe { real::recvmmsg(fd, messages, 0, flags, timeout) } < 0 {
        return -1;
    }
    let pending = kept_error(socket, fd);
    if pending != 0 {
        thread::set_errno(pending);
        return -1;
    }
    one_by_one(fd, messages, count, flags, Patience::of(timeout))
}

/// On a stream, one message at a time is what the kernel does too.
fn one_by_one(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    patience: Patience,
) -> c_int {
    let (errno, mut began) = (thread::errno(), thread::interrupts());
    // The next call is told of an error behind messages.
    let end = |index: usize, error| {
        if index > 0
            && error != libc::EAGAIN
            && let Some(socket) = table::socket(fd)
        {
            socket.owe_error(fd, error);
        }
        give_up(index, (errno, error))
    };
    let mut flags_now = flags & !libc::MSG_WAITFORONE;
    for index in 0..count as usize {
        let entry = messages.wrapping_add(index);
        if !user::can_write(entry.cast(), size_of::<mmsghdr>()) {
            return end(index, libc::EFAULT);
        }
        // SAFETY: just found writable.
        let header = unsafe { &raw mut (*entry).msg_hdr };
        let result = match index {
            // SAFETY: as above.
            0 => unsafe { recvmsg(fd, header, flags_now) },
            // SAFETY: as above.
            _ => unsafe { receive_behind(fd, header, flags_now, began) },
        };
        if result < 0 {
            return end(index, thread::errno());
        }
        if index == 0 {
            began = thread::interrupts();
        }
        // SAFETY: as above.
        unsafe { (*entry).msg_len = result as c_uint };
        if flags & libc::MSG_WAITFORONE != 0 {
            flags_now |= libc::MSG_DONTWAIT;
        }
        if patience.is_over() {
            return index as c_int + 1;
        }
    }
    count as c_int
}

/// How many bytes the kernel says that the first `count` messages have.
pub(in crate::hooks) fn bytes_of(messages: *const mmsghdr, count: c_int) -> isize {
    let indexes = 0..usize::try_from(count).unwrap_or(0);
    let entries = indexes.map(|index| messages.wrapping_add(index));
    entries
        .filter(|entry| user::can_read(entry.cast(), size_of::<mmsghdr>()))
        // SAFETY: just found readable.
        .map(|entry| unsafe { (*entry).msg_len } as isize)
        .sum()
}

/// Receives a message of `recvmmsg` behind others. A handler ends its wait also where it asks for calls to go on, since there is something
/// to return; the kernel then keeps its own number for going on, which the next call tells the program.
///
/// # Safety
///
/// As of `recvmsg`.
unsafe fn receive_behind(
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
    began: Interrupts,
) -> ssize_t {
    let mut flags = flags;
    if flags & libc::MSG_DONTWAIT == 0
        && let Some(socket) = table::socket(fd)
        && !socket.is_nonblocking()
    {
        if flags & libc::MSG_WAITALL == 0 {
            let errno = thread::errno();
            // What is there needs no wait.
            // SAFETY: the caller's promise.
            let result = unsafe { recvmsg(fd, message, flags | libc::MSG_DONTWAIT) };
            if result >= 0 || thread::errno() != libc::EAGAIN {
                return result;
            }
            thread::set_errno(errno);
        }
        match await_message(fd, began) {
            0 => flags |= libc::MSG_DONTWAIT,
            -1 if thread::errno() == libc::EINTR => {
                thread::set_errno(ERESTARTSYS);
                return -1;
            }
            _ => {}
        }
    }
    // SAFETY: the caller's promise.
    unsafe { recvmsg(fd, message, flags) }
}

/// Waits for something to receive, for an end, or until SO_RCVTIMEO is over. As `poll` returns: a handler that has run since the call
/// has something ends it, and so does a stop of the process.
fn await_message(fd: c_int, began: Interrupts) -> c_int {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let entry = &raw mut entry;
    let until_ns = deadline_ns(fd);
    loop {
        let left_ns = until_ns.saturating_sub(kernel::monotonic_ns());
        let mut sleep = || match await_entry(entry, left_ns) {
            found @ 0.. => found,
            error => thread::fail(-error),
        };
        let timeout_ns = (until_ns != u64::MAX).then_some(left_ns);
        let found = poll::poll(entry, 1, timeout_ns, null(), &mut sleep);
        if found == 0 && began.end_call(true) {
            return thread::fail(libc::EINTR);
        }
        if found != 0 || left_ns == 0 {
            return found;
        }
    }
}

/// The time-out of `recvmmsg`: the kernel looks at it after each message only, and says what is left of it.
struct Patience {
    timeout: *mut timespec,
    deadline_ns: i64,
}

impl Patience {
    fn of(timeout: *mut timespec) -> Patience {
        if timeout.is_null() || !user::can_write(timeout.cast(), size_of::<timespec>()) {
            return Patience {
                timeout: std::ptr::null_mut(),
                deadline_ns: i64::MAX,
            };
        }
        // SAFETY: just found readable.
        let given = unsafe { timeout.read_unaligned() };
        let given_ns = given.tv_sec.saturating_mul(1_000_000_000);
        let now_ns = kernel::monotonic_ns().cast_signed();
        let deadline_ns = now_ns.saturating_add(given_ns.saturating_add(given.tv_nsec));
        Patience {
            timeout,
            deadline_ns,
        }
    }

    fn is_over(&self) -> bool {
        if self.timeout.is_null() {
            return false;
        }
        let left_ns = self.deadline_ns - kernel::monotonic_ns().cast_signed();
        let left_ns = left_ns.max(0);
        let left = timespec {
            tv_sec: left_ns / 1_000_000_000,
            tv_nsec: left_ns % 1_000_000_000,
        };
        // SAFETY: found writable before; the program gave it to this call.
        unsafe { self.timeout.write_unaligned(left) };
        left_ns == 0
    }
}

/// After `index` messages an error: it counts only when there was no message; else `errno` stays as it was.
pub(in crate::hooks) fn give_up(index: usize, (errno, error): (c_int, c_int)) -> c_int {
    if index > 0 {
        thread::set_errno(errno);
        return index as c_int;
    }
    thread::set_errno(error);
    -1
}
