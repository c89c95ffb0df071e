//! Which call of the program met which state of its connection, and how often: for `cargo xtask coverage`, in a build of its own.
//!
//! A hook says what it is called and on what; `MILLRACE_COVERAGE` names the file, mapped by all processes of a run, that has a record
//! for each call: its name, then a counter for each road, manner and fill. The state is looked at before the call does anything.

use std::ffi::CStr;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{
    AtomicPtr, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use libc::{c_int, fd_set, pollfd};
use millrace_shm::gate::Gate;
use millrace_shm::sys;

use crate::kernel::kernel;
use crate::table::{self, Entry};
use crate::user;

/// The calls that are counted, in order. A test compares them with the hooks.
const NAMES: [&str; 67] = [
    "_Exit",
    "_Fork",
    "__poll_chk",
    "__ppoll_chk",
    "__read_chk",
    "__recv_chk",
    "__recvfrom_chk",
    "_exit",
    "backtrace_symbols_fd",
    "close",
    "close_range",
    "closefrom",
    "dup",
    "dup2",
    "dup3",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "execv",
    "execve",
    "execveat",
    "execvp",
    "execvpe",
    "fclose",
    "fcntl",
    "fcntl64",
    "fdopen",
    "fexecve",
    "fork",
    "freopen",
    "freopen64",
    "getpeername",
    "getsockopt",
    "ioctl",
    "pidfd_spawn",
    "pidfd_spawnp",
    "poll",
    "popen",
    "posix_spawn",
    "posix_spawnp",
    "ppoll",
    "preadv2",
    "preadv64v2",
    "pselect",
    "pwritev2",
    "pwritev64v2",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "select",
    "send",
    "sendfile",
    "sendfile64",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "shutdown",
    "splice",
    "system",
    "wordexp",
    "write",
    "writev",
];
const NAME_BYTES: usize = 32;
/// Three roads, blocking or not, three fills.
const CELLS: usize = 18;
const RECORD_BYTES: usize = NAME_BYTES + 8 * CELLS;
const FILE_BYTES: usize = NAMES.len() * RECORD_BYTES;

static FILE: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Where the next bytes of a direction go, or come from.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Road {
    /// The end has not joined a ring.
    #[default]
    Kernel,
    /// It has, and the gate is closed.
    Closed,
    /// It has, and the gate is open, or there is something to read behind it.
    Ring,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Fill {
    #[default]
    Empty,
    Partly,
    Full,
}

type State = (Road, Fill);

/// Maps the file. Where there is none, or a shorter one, nothing is counted.
pub(crate) fn start(path: &CStr) {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    let opened = kernel!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
    let Ok(fd) = c_int::try_from(opened) else {
        return;
    };
    let bytes = kernel!(libc::SYS_lseek, fd, 0usize, libc::SEEK_END);
    let mapped = (bytes >= FILE_BYTES.cast_signed())
        .then(|| sys::map_shared(fd, FILE_BYTES).ok())
        .flatten();
    kernel!(libc::SYS_close, fd);
    let Some(base) = mapped else { return };
    for (index, name) in NAMES.iter().enumerate() {
        // SAFETY: the record lies in the mapping, and begins with room for the name; all processes write the same bytes.
        unsafe {
            let place = base.as_ptr().add(index * RECORD_BYTES);
            place.copy_from_nonoverlapping(name.as_ptr(), name.len());
        }
    }
    FILE.store(base.as_ptr(), Release);
}

fn count(name: &str, (road, fill): State, waits: bool) {
    let (Some(base), Ok(index)) = (
        NonNull::new(FILE.load(Acquire)),
        NAMES.binary_search_by(|known| (*known).cmp(name)),
    ) else {
        return;
    };
    let cell = road as usize * 6 + usize::from(!waits) * 3 + fill as usize;
    let offset = index * RECORD_BYTES + NAME_BYTES + 8 * cell;
    // SAFETY: inside the mapping, which stays, and aligned: records and names are multiples of eight bytes.
    let counter = unsafe { base.add(offset).cast::<AtomicU64>().as_ref() };
    counter.fetch_add(1, Relaxed);
}

fn fill(unread: u32, gate: Gate) -> Fill {
    match unread {
        0 => Fill::Empty,
        bytes if u64::from(bytes) >= 1 << gate.window_log2 => Fill::Full,
        _ => Fill::Partly,
    }
}

fn sending(fd: c_int) -> Option<State> {
    let Some(locked) = table::socket(fd)?.lock_send(fd) else {
        return Some(State::default());
    };
    let gate = locked.segment().words(locked.direction).gate.load();
    let road = if gate.open { Road::Ring } else { Road::Closed };
    Some((road, fill(locked.half.unread(), gate)))
}

fn receiving(fd: c_int) -> Option<State> {
    let Some(locked) = table::socket(fd)?.lock_receive(fd) else {
        return Some(State::default());
    };
    let gate = locked.segment().words(locked.direction).gate.load();
    let unread = locked.half.unread();
    let road = if gate.open || unread > 0 {
        Road::Ring
    } else {
        Road::Closed
    };
    Some((road, fill(unread, gate)))
}

fn waits(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT == 0
        && table::socket(fd).is_some_and(|socket| !socket.is_nonblocking())
}

/// A call that sends on `fd`, with flags of `send`.
pub(crate) fn sends(name: &str, fd: c_int, flags: c_int) {
    if let Some(state) = sending(fd) {
        count(name, state, waits(fd, flags));
    }
}

/// A call that receives on `fd`, with flags of `recv`.
pub(crate) fn receives(name: &str, fd: c_int, flags: c_int) {
    if let Some(state) = receiving(fd) {
        count(name, state, waits(fd, flags));
    }
}

/// A call on `fd` that moves no bytes.
pub(crate) fn touches(name: &str, fd: c_int) {
    receives(name, fd, 0);
}

/// A call on the descriptor of a stream of the C library.
pub(crate) fn touches_stream(name: &str, stream: *mut libc::FILE) {
    if !stream.is_null() && table::exists() {
        let errno = crate::thread::errno();
        // SAFETY: the program's stream, which it has not closed yet.
        let fd = unsafe { libc::fileno(stream) };
        crate::thread::set_errno(errno);
        touches(name, fd);
    }
}

/// A call that concerns all descriptors from `first` on.
pub(crate) fn touches_all(name: &str, first: u32) {
    let state = strongest(table::all().filter(|fd| fd.cast_unsigned() >= first));
    count(name, state.unwrap_or_default(), true);
}

/// The state of the connection among them that is nearest to the ring.
fn strongest(descriptors: impl Iterator<Item = c_int>) -> Option<State> {
    descriptors.filter_map(receiving).max()
}

/// A `poll`.
pub(crate) fn polls(name: &str, fds: *const pollfd, length: usize, timeout: Option<u64>) {
    if length > 1 << 20 || !user::can_read(fds.cast(), length * size_of::<pollfd>()) {
        return;
    }
    // SAFETY: just found readable, entry by entry; an unaligned array is copied from as well.
    let entry = |index| unsafe { fds.add(index).read_unaligned() };
    let state = strongest((0..length).map(|index| entry(index).fd));
    note_wait(name, state, timeout);
}

/// A `select` for reading.
pub(crate) fn selects(name: &str, set: *const fd_set, length: c_int, timeout: Option<u64>) {
    let length = usize::try_from(length).unwrap_or(0);
    if length > 1 << 20 || set.is_null() || !user::can_read(set.cast(), length.div_ceil(64) * 8) {
        return;
    }
    // SAFETY: just found readable up to the word of the last bit.
    let word = |index: usize| unsafe { set.cast::<u64>().add(index).read_unaligned() };
    let chosen = (0..length).filter(|fd| word(fd / 64) >> (fd % 64) & 1 == 1);
    note_wait(name, strongest(chosen.map(|fd| fd as c_int)), timeout);
}

/// An `epoll_wait`.
pub(crate) fn waits_on(name: &str, epoll: c_int, timeout: Option<u64>) {
    if let Entry::Set(set) = table::get(epoll) {
        let state = strongest(set.connections().into_iter().map(|(fd, _)| fd));
        note_wait(name, state, timeout);
    }
}

fn note_wait(name: &str, state: Option<State>, timeout: Option<u64>) {
    if let Some(state) = state {
        count(name, state, timeout != Some(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls that concern no connection, or begin one: there is no ring yet.
    const OUTSIDE: [&str; 33] = [
        "__register_atfork",
        "__sysv_signal",
        "accept",
        "accept4",
        "bsd_signal",
        "chroot",
        "connect",
        "dlclose",
        "epoll_create",
        "epoll_create1",
        "fileno",
        "fileno_unlocked",
        "listen",
        "mprotect",
        "munmap",
        "posix_spawn_file_actions_adddup2",
        "prctl",
        "prlimit",
        "prlimit64",
        "pthread_atfork",
        "pthread_setcanceltype",
        "setns",
        "setrlimit",
        "setrlimit64",
        "sigaction",
        "siginterrupt",
        "signal",
        "sigset",
        "sockatmark",
        "socket",
        "syscall",
        "sysv_signal",
        "unshare",
    ];

    #[test]
    fn every_hook_is_counted_or_known_to_be_outside() {
        let source = [
            include_str!("hooks/by_number.rs"),
            include_str!("hooks/descriptors.rs"),
            include_str!("hooks/programs.rs"),
            include_str!("hooks/receive.rs"),
            include_str!("hooks/receive/many.rs"),
            include_str!("hooks/send.rs"),
            include_str!("hooks/signals.rs"),
            include_str!("hooks/sockets.rs"),
            include_str!("hooks/streams.rs"),
            include_str!("hooks/wait.rs"),
        ]
        .concat();
        let hooks = source.split("#[unsafe(no_mangle)]\n").skip(1);
        let hooks = hooks.filter_map(|hook| hook.split_once("fn ")?.1.split_once('('));
        let mut hooks: Vec<&str> = hooks.map(|(name, _)| name).collect();
        hooks.sort_unstable();
        let mut known = [&NAMES[..], &OUTSIDE[..]].concat();
        known.sort_unstable();
        assert_eq!(hooks, known);
        assert!(NAMES.is_sorted() && NAMES.iter().all(|name| name.len() < NAME_BYTES));
        for name in NAMES {
            assert!(source.contains(&format!("\"{name}\",")), "{name}");
        }
    }
}
