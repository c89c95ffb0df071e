//! Programs that are started beside this one, and get connections that it keeps.
//!
//! They know the kernel's road only, or will find out for themselves what else there is. As after a fork, both use the connection as
//! the kernel has it. So it stays when the program has ended, since what it has started may go on with it. Which connections they get
//! is seen from `FD_CLOEXEC`, and from copies made for them.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, Release},
};

use libc::{c_int, pid_t, posix_spawn_file_actions_t};
use millrace_shm::board::holders::{STRANGER, UNKNOWN};
use millrace_shm::board::{Row, state};
use millrace_wire::Reason;

use crate::socket::Socket;
use crate::table::Entry;
use crate::{client, kernel, process, table, thread};

/// Descriptors below this number are told from each other by [`COPIED`].
const NUMBERS: usize = 1024;
/// A bit for each number that was ever said to be copied at the start of a program. Whoever says so may keep that for long, and what has
/// the number when a program is started is a connection perhaps only since then. Where the list lies it may be moved from: every program
/// that is started with such a list counts. Nothing else is ordered by these.
static COPIED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];
/// A larger number was said to be copied: it may be any.
static ANY_IS_COPIED: AtomicBool = AtomicBool::new(false);

/// The bit of a number.
fn copied_bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?;
    Some((COPIED.get(number / 64)?, 1 << (number % 64)))
}

/// Whether a program that is started with a list of what is done then may get a copy of `fd`.
fn may_be_copied(fd: c_int) -> bool {
    ANY_IS_COPIED.load(Relaxed)
        || copied_bit(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// In a child of `vfork`, which shares our memory: it is about to become another program.
pub(crate) fn by_child_of_vfork() {
    for (fd, socket) in inherited(false) {
        share(fd, socket, kernel::process_id() | STRANGER);
    }
}

/// In a child of `vfork`: it is what it was.
pub(crate) fn stay_child_of_vfork() {
    let child = kernel::process_id() | STRANGER;
    for (_, socket) in inherited(false) {
        leave(
            || socket.row().identity.take_back(child, false),
            socket.row(),
        );
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
    match copied_bit(fd) {
        Some((word, bit)) => drop(word.fetch_or(bit, Relaxed)),
        None if fd >= 0 => ANY_IS_COPIED.store(true, Relaxed),
        None => {}
    }
    if let Some(socket) = table::socket(fd) {
        let errno = thread::errno();
        socket.pin(Reason::PassedFd);
        socket.leave_rings(fd);
        thread::set_errno(errno);
    }
}

/// What has become of a program.
pub(crate) enum Program {
    NotStarted,
    /// What it has started goes on, perhaps.
    Ended,
    Runs(pid_t),
    /// Its number is not known: what it got stays on the kernel's road.
    RunsUnknown,
}

impl Program {
    pub(crate) fn ended_if(started: bool) -> Program {
        if started {
            Program::Ended
        } else {
            Program::NotStarted
        }
    }
}

/// Runs `start`, which starts a program; `actions` is the list of what is done then.
pub(crate) fn around<T>(
    actions: *const posix_spawn_file_actions_t,
    start: impl FnOnce() -> (T, Program),
) -> T {
    if !table::exists() || process::is_borrowed() {
        return start().0;
    }
    let token = process::new_token();
    let errno = thread::errno();
    // A record on a board stays the connection's while the token counts there. The socket may be another's when the program has ended.
    let shared: Vec<(&Row, bool)> = inherited(!actions.is_null())
        .into_iter()
        .filter_map(|(fd, socket)| Some((share(fd, socket, token)?, socket.has_board_row())))
        .collect();
    thread::set_errno(errno);
    let (result, program) = start();
    for (row, stays) in shared {
        match program {
            Program::NotStarted => leave(|| row.identity.take_back(token, stays), row),
            Program::Ended => leave(|| row.identity.leave_to_heirs(token, stays), row),
            Program::Runs(child) => row.identity.name(token, child as u32 | STRANGER),
            Program::RunsUnknown => row.identity.name(token, UNKNOWN),
        }
    }
    result
}

/// Runs `start`, which starts a program, does not tell its number, and returns true if it has done so.
pub(crate) fn around_unnamed<T>(
    actions: *const posix_spawn_file_actions_t,
    start: impl FnOnce() -> (T, bool),
) -> T {
    around(actions, || {
        // No fork comes meanwhile: its child would keep the descriptor.
        let before = client::hold_still(kernel::last_child);
        let (result, started) = start();
        let program = match client::hold_still(kernel::last_child) {
            _ if !started => Program::NotStarted,
            Some(child) if before != Some(child) => Program::Runs(child),
            _ => Program::RunsUnknown,
        };
        (result, program)
    })
}

/// The connections that a program gets that is started now, perhaps `by_copies` also. Sockets that it gets before they are connected are
/// followed no more.
fn inherited(by_copies: bool) -> Vec<(c_int, &'static Socket)> {
    let is_inherited = |fd: c_int| kernel::stays_open_on_exec(fd) || by_copies && may_be_copied(fd);
    table::all()
        .filter(|fd| matches!(table::get(*fd), Entry::Unconnected(_)))
        .filter(|fd| is_inherited(*fd))
        .for_each(process::leave_unconnected);
    let mut found: Vec<(c_int, &'static Socket)> = table::all()
        .filter_map(|fd| table::socket(fd).map(|socket| (fd, socket)))
        .filter(|(fd, _)| is_inherited(*fd))
        .collect();
    found.sort_unstable_by_key(|(fd, socket)| (std::ptr::from_ref(*socket) as usize, *fd));
    found.dedup_by(|a, b| std::ptr::eq(a.1, b.1));
    found
}

/// `with`, a process's number or what stands for one, becomes a holder in this record. None: it is one already, or another thread has just
/// closed the connection. One that is new does not join then: the program may be in the kernel with it.
fn share(fd: c_int, socket: &'static Socket, with: u32) -> Option<&'static Row> {
    let row = client::share(|| {
        let row = socket.row();
        if row.identity.is_held_by(with) {
            return None;
        }
        if !process::join(row, with) {
            row.identity.take_back(with, false);
            return None;
        }
        Some(row)
    })?;
    socket.leave_to_program(fd);
    Some(row)
}

/// Has a holder of a record go. The record is free if that was the last, while a program was being started: not before it is said here does
/// anybody use it again. A child of `vfork`, which may be killed at any time, counts nothing in its parent meanwhile.
fn leave(goes: impl FnOnce() -> bool, row: &Row) {
    if goes() {
        row.identity.state.store(state::FREE, Release);
    }
}
