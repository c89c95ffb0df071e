//! Numbers of descriptors: what is told of them when they come, are copied, and go.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::c_int;
use millrace_wire::Reason;

use super::{fork, is_borrowed};
use crate::kernel::kernel;
use crate::send::await_messages;
use crate::socket::{Socket, forget};
use crate::table::{self, Closing, Entry};
use crate::{client, kernel, pass, started, uring};

/// See [`be_impatient`].
static ARE_IMPATIENT: AtomicBool = AtomicBool::new(false);

/// A descriptor is about to be closed, or given another meaning. What is returned is kept until that is done.
#[inline]
#[must_use]
pub(crate) fn drop_descriptor(fd: c_int) -> Option<Closing> {
    let entry = table::get(fd);
    if matches!(entry, Entry::Unknown) || is_borrowed() {
        return None;
    }
    let Entry::Socket(socket) = entry else {
        if let Entry::Set(set) = entry {
            set.keep_for_waits(fd);
        }
        forget(fd, table::replace(fd, Entry::Unknown));
        return None;
    };
    let locked = await_messages(socket, fd);
    let (was, closing) = Closing::begin(fd);
    drop(locked);
    forget(fd, was);
    Some(closing)
}

/// `target` now is what `fd` is, which was `entry` before it was copied.
pub(crate) fn copy_descriptor((fd, entry): (c_int, Entry), target: c_int) {
    if target < 0 || fd == target || !table::exists() {
        return;
    }
    if is_borrowed() {
        return started::copied_by_child_of_vfork(fd);
    }
    if table::are_same(fd, target) {
        return;
    }
    client::make_room(target);
    let entry = match entry {
        Entry::Unconnected(_) => {
            leave_unconnected(fd);
            table::get(fd)
        }
        _ => entry,
    };
    if !table::covers(target) {
        // What is done by that number nobody sees, as in another program.
        return pass::note_given(fd, entry);
    }
    let entry = match entry {
        Entry::Socket(socket) if !socket.add_descriptor() => Entry::Unknown,
        Entry::Set(set) if !set.add_descriptor() => Entry::Unknown,
        Entry::Ring => {
            // Requests by another number, or by another program that gets it, would not be seen.
            uring::begin();
            Entry::Unknown
        }
        _ => entry,
    };
    forget(target, table::replace(target, entry));
    uring::entered(target);
    if let Entry::Set(set) = entry
        && !table::is_set(fd, set)
    {
        // As below: what is known of the instance may be of another one.
        set.give_up_records();
        forget(target, table::replace(target, Entry::Unknown));
    }
    if let Entry::Socket(socket) = entry {
        if !table::is(fd, socket) {
            // Another thread has closed it meanwhile, before it was copied or after that: only the kernel knows what the copy is.
            socket.leave_to_streams(target);
            drop(drop_descriptor(target));
            return;
        }
        socket.regain_registrations(target);
    }
    leave_standard_streams(target);
}

/// `copy` is what `fcntl` made of a descriptor by F_DUPFD or F_DUPFD_CLOEXEC, to have the lowest free number from `first` on: where that is
/// ours, ours makes way. Returns the copy's number. No copy, less than zero, stays none.
pub(crate) fn instead_of_ours(command: c_int, first: c_int, copy: c_int) -> c_int {
    let ours = client::descriptor().filter(|ours| (first..copy).contains(ours));
    let Some(ours) = ours.filter(|ours| client::make_way(*ours)) else {
        return copy;
    };
    let flags = if command == libc::F_DUPFD_CLOEXEC {
        libc::O_CLOEXEC
    } else {
        0
    };
    if kernel!(libc::SYS_dup3, copy, ours, flags) == ours as isize {
        kernel!(libc::SYS_close, copy);
        return ours;
    }
    kernel!(libc::SYS_close, ours);
    copy
}

/// A socket gets another descriptor, or goes to another process, before it is connected: of the connection nobody would know both. One that
/// listens becomes none.
pub(crate) fn leave_unconnected(fd: c_int) {
    let entry = table::get(fd);
    if matches!(entry, Entry::Unconnected(_))
        && !kernel::listens(fd)
        // Another thread may connect it now.
        && table::exchange(fd, entry, Entry::Unknown)
    {
        forget(fd, entry);
    }
}

/// A socket that is not connected, `fd`, does not wait, as what it accepts will not: which socket that will be, nobody knows.
pub(crate) fn be_impatient(fd: c_int) {
    if table::socket(fd).is_none() && kernel::tcp_family(fd).is_some() {
        leave_unconnected(fd);
        ARE_IMPATIENT.store(true, Relaxed);
    }
}

/// Below the descriptors of standard input, output and error there are streams, opened or not.
#[inline]
fn leave_standard_streams(fd: c_int) {
    if fd <= libc::STDERR_FILENO
        && let Some(socket) = table::socket(fd)
    {
        socket.leave_to_streams(fd);
    }
}

/// The kernel gave the program a new descriptor: whatever we knew of that number was closed behind our back.
pub(crate) fn new_descriptor(fd: c_int, entry: Entry) {
    if fd >= 0 && table::covers(fd) && !is_borrowed() {
        client::make_room(fd);
        forget(fd, table::replace(fd, entry));
    }
}

/// A new connection on `fd`, which was none yet when `forks` were counted.
pub(crate) fn new_connection((fd, family): (c_int, c_int), active: bool, forks: Option<u32>) {
    if fd >= 0 && !is_borrowed() {
        client::make_room(fd);
        Socket::track(fd, family, active);
        leave_standard_streams(fd);
        let Some(socket) = table::socket(fd) else {
            return;
        };
        if forks.is_none() || forks != fork::count() {
            // A child may have it, and not be among its holders.
            socket.pin(Reason::Forked);
        } else if !active && ARE_IMPATIENT.load(Relaxed) {
            socket.pin(Reason::Unsupported);
        } else if !active {
            client::join_accepted(socket, fd);
        }
    }
}
