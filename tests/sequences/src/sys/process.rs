//! Processes and signals of the sequence, and the tester's shared memory.

use super::{Answer, Errno, Fd, answer, count};
use crate::board::Board;
use libc::{c_char, c_int, pid_t};
use std::ffi::{CStr, CString};
use std::mem::{size_of, zeroed};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

/// The signals that the sequences use; all are counted.
pub(crate) const SIGNALS: [(c_int, &str); 4] = [
    (libc::SIGPIPE, "PIPE"),
    (libc::SIGUSR1, "USR1"),
    (libc::SIGIO, "IO"),
    (libc::SIGURG, "URG"),
];

/// How many of each signal of [`SIGNALS`] this process has handled.
static HANDLED: [AtomicU32; SIGNALS.len()] = [const { AtomicU32::new(0) }; SIGNALS.len()];

/// How many signals of the kind at `index` in [`SIGNALS`] were handled.
pub(crate) fn handled(index: usize) -> u32 {
    // Relaxed: a counter; it is read in the process that counts, after the signal's effect was seen.
    HANDLED[index].load(Ordering::Relaxed)
}

extern "C" fn count_signal(signal: c_int) {
    if let Some(index) = SIGNALS.iter().position(|(number, _)| *number == signal) {
        // Relaxed: see `handled`.
        HANDLED[index].fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts `signal` from now on, with or without `SA_RESTART`.
pub(crate) fn install(signal: c_int, restart: bool) -> Answer {
    // SAFETY: a `sigaction` of zeros is valid.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = count_signal as extern "C" fn(c_int) as usize;
    action.sa_flags = if restart { libc::SA_RESTART } else { 0 };
    // SAFETY: the handler only touches an atomic, so it may run at any instant.
    answer(unsafe { libc::sigaction(signal, &action, null_mut()) })
}

/// Sends `signal` to one thread of this process.
pub(crate) fn signal_thread(tid: i32, signal: c_int) -> Answer {
    let process = std::process::id();
    // SAFETY: tgkill takes three numbers; the thread is of this process, so nobody else is hit.
    answer(unsafe { libc::syscall(libc::SYS_tgkill, process, tid, signal) })
}

/// `fork`: 0 in the child.
pub(crate) fn fork() -> Answer {
    // SAFETY: the child goes on in the actor's loop, which uses only what fork copies: descriptors, the shared
    // board, and the heap, which the C library keeps usable in the child.
    answer(unsafe { libc::fork() })
}

/// Ends the process without clean-up.
pub(crate) fn exit_now(status: c_int) -> ! {
    // SAFETY: ends the process; nothing here needs a destructor.
    unsafe { libc::_exit(status) }
}

/// Waits for the child `pid`; describes how it ended.
pub(crate) fn reap(pid: pid_t) -> Result<String, Errno> {
    let mut status = 0;
    loop {
        // SAFETY: the status is ours.
        match answer(unsafe { libc::waitpid(pid, &mut status, 0) }) {
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
            Ok(_) => return Ok(describe_status(status)),
        }
    }
}

fn describe_status(status: c_int) -> String {
    if libc::WIFSIGNALED(status) {
        format!("signal {}", libc::WTERMSIG(status))
    } else {
        format!("exit {}", libc::WEXITSTATUS(status))
    }
}

/// The form of exec that is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum ExecBy {
    Execv,
    Execve,
    Execvp,
    Execl,
    Fexecve,
}

/// Strings as the null-terminated array that exec takes; it borrows them.
fn array(strings: &[CString]) -> Vec<*const c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([null()])
        .collect()
}

/// Replaces this process by `file`; returns only when that failed. `environment` replaces the present one, which
/// only `Execve` and `Fexecve` can do: where it is given, the others act as `Execve`.
pub(crate) fn exec(
    by: ExecBy,
    file: &CStr,
    arguments: &[CString],
    environment: Option<&[CString]>,
) -> Errno {
    let argv = array(arguments);
    if let Some(environment) = environment {
        let envp = array(environment);
        // SAFETY: all strings and both arrays outlive the call, which copies them.
        unsafe { libc::execve(file.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        return super::last_errno();
    }
    match by {
        // SAFETY: as above.
        ExecBy::Execv => unsafe { libc::execv(file.as_ptr(), argv.as_ptr()) },
        // SAFETY: as above; `environ` is the process's own, and no other thread changes it.
        ExecBy::Execve => unsafe { libc::execve(file.as_ptr(), argv.as_ptr(), environ()) },
        // SAFETY: as for execv.
        ExecBy::Execvp => unsafe { libc::execvp(file.as_ptr(), argv.as_ptr()) },
        ExecBy::Execl => exec_list(file, &argv),
        ExecBy::Fexecve => exec_descriptor(file, &argv),
    };
    super::last_errno()
}

/// `execl` with the three arguments that an actor's image is started with.
fn exec_list(file: &CStr, argv: &[*const c_char]) -> c_int {
    let nothing: *const c_char = null();
    let [zero, one, two, ..] = *argv else {
        return -1;
    };
    // SAFETY: the list of C strings ends with null; all outlive the call.
    unsafe { libc::execl(file.as_ptr(), zero, one, two, nothing) }
}

fn exec_descriptor(file: &CStr, argv: &[*const c_char]) -> c_int {
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(file.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    // SAFETY: as for execve in `exec`.
    unsafe { libc::fexecve(fd, argv.as_ptr(), environ()) }
}

unsafe extern "C" {
    #[link_name = "environ"]
    static ENVIRON: *const *const c_char;
}

fn environ() -> *const *const c_char {
    // SAFETY: the C library's variable is set before `main`, and nothing here changes it.
    unsafe { ENVIRON }
}

/// How `true` is started and waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum SpawnBy {
    PosixSpawn,
    PosixSpawnp,
    Vfork,
    Fork,
    System,
    Popen,
}

const TRUE: &CStr = c"/bin/true";

/// Starts `true`, which inherits whatever is not close-on-exec, and waits for its end.
pub(crate) fn spawn_true(by: SpawnBy) -> Result<String, Errno> {
    let argv = [TRUE.as_ptr(), null()];
    match by {
        SpawnBy::System => {
            // SAFETY: the command is a C string.
            let status = unsafe { libc::system(TRUE.as_ptr()) };
            answer(status)?;
            Ok(describe_status(status))
        }
        SpawnBy::Popen => run_popen(),
        SpawnBy::Vfork => reap(vfork_exec(&argv)?),
        SpawnBy::Fork => match fork()? {
            0 => {
                // SAFETY: the arrays are C strings ended by null.
                unsafe { libc::execve(TRUE.as_ptr(), argv.as_ptr(), environ()) };
                exit_now(127)
            }
            pid => reap(count(pid)),
        },
        SpawnBy::PosixSpawn | SpawnBy::PosixSpawnp => {
            let mut pid = 0;
            let path = by == SpawnBy::PosixSpawnp;
            let spawn = if path {
                libc::posix_spawnp
            } else {
                libc::posix_spawn
            };
            let (arguments, environment) = (argv.as_ptr().cast(), environ().cast());
            // SAFETY: pid, path and arrays are ours; no attributes and no file actions are given.
            let result = unsafe {
                spawn(
                    &mut pid,
                    TRUE.as_ptr(),
                    null(),
                    null(),
                    arguments,
                    environment,
                )
            };
            if result != 0 {
                return Err(Errno(result));
            }
            reap(pid)
        }
    }
}

/// `vfork`, with nothing but `execve` in the child.
#[inline(never)]
fn vfork_exec(argv: &[*const c_char; 2]) -> Result<pid_t, Errno> {
    let (file, arguments, environment) = (TRUE.as_ptr(), argv.as_ptr(), environ());
    // SAFETY: the child runs on this stack until it execs. It only calls `execve` and `_exit` with values that
    // were computed before, and writes no variable that the parent reads after.
    #[expect(deprecated, reason = "vfork itself is under test")]
    let pid = unsafe { libc::vfork() };
    if pid == 0 {
        // SAFETY: arrays of C strings ended by null, alive in the waiting parent.
        unsafe { libc::execve(file, arguments, environment) };
        exit_now(127);
    }
    answer(pid).map(count)
}

fn run_popen() -> Result<String, Errno> {
    // SAFETY: command and mode are C strings.
    let stream = unsafe { libc::popen(TRUE.as_ptr(), c"r".as_ptr()) };
    if stream.is_null() {
        return Err(super::last_errno());
    }
    // SAFETY: the stream came from popen and is not used after.
    let status = unsafe { libc::pclose(stream) };
    answer(status)?;
    Ok(describe_status(status))
}

/// A descriptor of the tester's own, for calls that go to the kernel directly.
pub(crate) fn borrow(fd: Fd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: only used with descriptors that are opened at the start and stay open, and to ask the kernel
    // whether a number is open, for which a closed one is an answer too.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

/// A pair of connected Unix datagram sockets, moved to numbers of at least `lowest`.
pub(crate) fn mail_box(lowest: Fd) -> Result<(Fd, Fd), Errno> {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for two descriptors.
    answer(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, ends.as_mut_ptr()) })?;
    let lift = |fd| -> Result<Fd, Errno> {
        let lifted = super::fcntl(fd, libc::F_DUPFD, lowest)?;
        super::close(fd)?;
        Ok(count(lifted))
    };
    Ok((lift(ends[0])?, lift(ends[1])?))
}

/// Maps the board that the descriptor holds, for the rest of the process's life.
pub(crate) fn map_board(fd: Fd) -> Result<&'static Board, Errno> {
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            null_mut(),
            size_of::<Board>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(super::last_errno());
    }
    // SAFETY: the mapping has a board's size and is never unmapped; a board consists of atomics only, for
    // which every content is valid and which may be shared between processes.
    Ok(unsafe { &*address.cast::<Board>() })
}
