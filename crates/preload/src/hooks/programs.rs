//! A program that replaces itself: the rings of this process end with its memory. Programs that it starts beside itself, libraries that it
//! lets go of, and what it confines itself to.

use std::ffi::CStr;
use std::ptr;

use libc::{FILE, c_char, c_int, c_void, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::started::{self, Program};
use crate::{client, process, real};

type Strings = *const *const c_char;

/// Makes ready for `exec`, and takes it back when that fails.
fn replace(work: impl FnOnce() -> c_int) -> c_int {
    let left = process::leave_for_exec();
    let result = work();
    match left {
        Some(left) => process::return_from_exec(left),
        None if process::is_borrowed() => started::stay_child_of_vfork(),
        None => {}
    }
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    enter!(touches_all("execve", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execve(path, arguments, environment) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    enter!(touches_all("execv", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execv(path, arguments) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    enter!(touches_all("execvp", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execvp(file, arguments) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    enter!(touches_all("execvpe", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execvpe(file, arguments, environment) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    enter!(touches_all("fexecve", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::fexecve(fd, arguments, environment) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    enter!(touches_all("execveat", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execveat(directory, path, arguments, environment, flags) })
}

type SpawnStrings = *const *mut c_char;

/// Starts a program by `spawn`, which is to say its number.
fn start(
    child: *mut pid_t,
    actions: *const posix_spawn_file_actions_t,
    spawn: impl FnOnce(*mut pid_t) -> c_int,
) -> c_int {
    started::around(actions, || {
        let mut number = 0;
        let result = spawn(&raw mut number);
        if result == 0 && !child.is_null() {
            // SAFETY: the program's own place for it.
            unsafe { child.write(number) };
        }
        match result {
            0 => (result, Program::Runs(number)),
            _ => (result, Program::NotStarted),
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn(
    child: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: SpawnStrings,
    environment: SpawnStrings,
) -> c_int {
    enter!(touches_all("posix_spawn", 0));
    // SAFETY: the program's own arguments.
    start(child, actions, |child| unsafe {
        real::posix_spawn(child, path, actions, attributes, arguments, environment)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawnp(
    child: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: SpawnStrings,
    environment: SpawnStrings,
) -> c_int {
    enter!(touches_all("posix_spawnp", 0));
    // SAFETY: the program's own arguments.
    start(child, actions, |child| unsafe {
        real::posix_spawnp(child, file, actions, attributes, arguments, environment)
    })
}

/// As `posix_spawn`, and tells no number but a descriptor.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pidfd_spawn(
    child: *mut c_int,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: SpawnStrings,
    environment: SpawnStrings,
) -> c_int {
    enter!(touches_all("pidfd_spawn", 0));
    started::around_unnamed(actions, || {
        // SAFETY: the program's own arguments.
        let result =
            unsafe { real::pidfd_spawn(child, path, actions, attributes, arguments, environment) };
        (result, result == 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pidfd_spawnp(
    child: *mut c_int,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    arguments: SpawnStrings,
    environment: SpawnStrings,
) -> c_int {
    enter!(touches_all("pidfd_spawnp", 0));
    started::around_unnamed(actions, || {
        // SAFETY: the program's own arguments.
        let result =
            unsafe { real::pidfd_spawnp(child, file, actions, attributes, arguments, environment) };
        (result, result == 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    target: c_int,
) -> c_int {
    started::will_be_copied(fd);
    // SAFETY: the program's own arguments.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, target) }
}

/// The program, if there is one, has ended when this returns.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    enter!(touches_all("system", 0));
    started::around(ptr::null(), || {
        // SAFETY: the program's own arguments.
        let result = unsafe { real::system(command) };
        (result, Program::ended_if(!command.is_null()))
    })
}

const WRDE_NOCMD: c_int = 1 << 2;

/// Whether what is to be expanded may have a command in it.
fn has_command(words: &CStr) -> bool {
    let words = words.to_bytes();
    words.contains(&b'`') || words.windows(2).any(|pair| pair == b"$(")
}

/// Commands in what it expands are run by the shell.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn wordexp(
    words: *const c_char,
    found: *mut c_void,
    flags: c_int,
) -> c_int {
    enter!(touches_all("wordexp", 0));
    // SAFETY: the program's own string.
    let starts = flags & WRDE_NOCMD == 0 && has_command(unsafe { CStr::from_ptr(words) });
    started::around(ptr::null(), || {
        // SAFETY: the program's own arguments.
        let result = unsafe { real::wordexp(words, found, flags) };
        (result, Program::ended_if(starts))
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn popen(
    command: *const c_char,
    mode: *const c_char,
) -> *mut FILE {
    enter!(touches_all("popen", 0));
    started::around_unnamed(ptr::null(), || {
        // SAFETY: the program's own arguments.
        let stream = unsafe { real::popen(command, mode) };
        (stream, !stream.is_null())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn dlclose(library: *mut c_void) -> c_int {
    // SAFETY: the program's own argument.
    let result = unsafe { real::dlclose(library) };
    real::look_up_unloaded();
    result
}

/// Whether a seccomp mode (as `prctl` counts them: 1 strict, 2 by a filter) comes into force. Without a filter it is a question only.
pub(super) fn installs_filter(mode: usize, filter: usize) -> bool {
    mode == libc::SECCOMP_MODE_STRICT as usize
        || mode == libc::SECCOMP_MODE_FILTER as usize && filter != 0
}

const PR_SET_TSC: c_int = 26;
const PR_TSC_SIGSEGV: libc::c_ulong = 2;
const PR_SET_SYSCALL_USER_DISPATCH: c_int = 59;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn prctl(
    what: c_int,
    a: libc::c_ulong,
    b: libc::c_ulong,
    c: libc::c_ulong,
    d: libc::c_ulong,
) -> c_int {
    if what == libc::PR_SET_SECCOMP && installs_filter(a as usize, b as usize) {
        process::enter_sandbox();
    }
    let hides = what == libc::PR_SET_DUMPABLE && a == 0;
    if hides || what == client::PR_SET_PTRACER && client::keep_tracer(a) {
        process::hide_from_agent();
    }
    // Our clock is the counter that the first takes away, and by the second system calls may pass only where others are made.
    if matches!(
        (what, a),
        (PR_SET_TSC, PR_TSC_SIGSEGV) | (PR_SET_SYSCALL_USER_DISPATCH, 1..)
    ) {
        process::enter_sandbox();
    }
    // SAFETY: the program's own arguments.
    unsafe { real::prctl(what, a, b, c, d) }
}
