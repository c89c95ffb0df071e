//! Programs that are started beside this one, and get connections that it keeps.
//!
//! They know the kernel's road only, or will find out for themselves what else there is. As after a fork, both use the connection as
//! the kernel has it until one of them is left. Which connections they get is seen from `FD_CLOEXEC`, and from copies made for them.

use libc::{c_int, pid_t};
use millrace_shm::board::holders::{STRANGER, UNKNOWN};
use millrace_wire::Reason;

use crate::socket::Socket;
use crate::table::Entry;
use crate::{client, kernel, process, table, thread};

/// In a child of `vfork`, which shares our memory: it is about to become another program.
pub(crate) fn by_child_of_vfork() {
    for (fd, socket) in inherited() {
        share(fd, socket, kernel::process_id() | STRANGER);
    }
}

/// In a child of `vfork`: `fd` has been copied, for the program that it will be.
pub(crate) fn copied_by_child_of_vfork(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        share(fd, socket, kernel::process_id() | STRANGER);
    }
}

/// A program that is started later gets a copy of `fd`.
pub(crate) fn will_be_copied(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        let errno = thread::errno();
        socket.pin(Reason::PassedFd);
        socket.leave_rings(fd);
        thread::set_errno(errno);
    }
}

/// What has become of a program.
pub(crate) enum Program {
    /// It was not started, or has ended.
    Gone,
    Runs(pid_t),
    /// Its number is not known: what it got stays on the kernel's road.
    RunsUnknown,
}

/// Runs `start`, which starts a program.
pub(crate) fn around<T>(start: impl FnOnce() -> (T, Program)) -> T {
    if !table::exists() || process::is_borrowed() {
        return start().0;
    }
    let token = process::new_token();
    let errno = thread::errno();
    let mut shared = inherited();
    shared.retain(|(fd, socket)| share(*fd, socket, token));
    thread::set_errno(errno);
    let (result, program) = start();
    for (_, socket) in shared {
        let identity = &socket.row().identity;
        match program {
            Program::Gone => drop(identity.leave(token)),
            Program::Runs(child) => identity.name(token, child as u32 | STRANGER),
            Program::RunsUnknown => identity.name(token, UNKNOWN),
        }
    }
    result
}

/// Runs `start`, which starts a program, does not tell its number, and returns true if it has done so.
pub(crate) fn around_unnamed<T>(start: impl FnOnce() -> (T, bool)) -> T {
    around(|| {
        // No fork comes meanwhile: its child would keep the descriptor.
        let before = client::hold_still(kernel::last_child);
        let (result, started) = start();
        let program = match client::hold_still(kernel::last_child) {
            _ if !started => Program::Gone,
            Some(child) if before != Some(child) => Program::Runs(child),
            _ => Program::RunsUnknown,
        };
        (result, program)
    })
}

/// The connections that a program gets that is started now. Sockets that it gets before they are connected are followed no more.
fn inherited() -> Vec<(c_int, &'static Socket)> {
    table::all()
        .filter(|fd| matches!(table::get(*fd), Entry::Unconnected(_)))
        .filter(|fd| kernel::stays_open_on_exec(*fd))
        .for_each(process::leave_unconnected);
    let mut found: Vec<(c_int, &'static Socket)> = table::all()
        .filter_map(|fd| table::socket(fd).map(|socket| (fd, socket)))
        .filter(|(fd, _)| kernel::stays_open_on_exec(*fd))
        .collect();
    found.sort_unstable_by_key(|(fd, socket)| (std::ptr::from_ref(*socket) as usize, *fd));
    found.dedup_by(|a, b| std::ptr::eq(a.1, b.1));
    found
}

/// `with`, a process's number or what stands for one, becomes a holder. False: it is one already. A connection that is new does not join
/// then: the program may be in the kernel with it.
fn share(fd: c_int, socket: &'static Socket, with: u32) -> bool {
    let is_new = client::share(|| {
        let row = socket.row();
        let is_new = !row.identity.is_held_by(with);
        if is_new {
            process::join(row, with);
        }
        is_new
    });
    if is_new {
        socket.leave_to_program(fd);
    }
    is_new
}
