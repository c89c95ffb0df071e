//! A program that replaces itself: the rings of this process end with its memory. And programs that it starts beside itself.

use libc::{FILE, c_char, c_int, c_void, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::started::{self, Program};
use crate::{process, real};

type Strings = *const *const c_char;

/// Makes ready for `exec`, and takes it back when that fails.
fn replace(work: impl FnOnce() -> c_int) -> c_int {
    let left = process::leave_for_exec();
    let result = work();
    if let Some(left) = left {
        process::return_from_exec(left);
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
fn start(child: *mut pid_t, spawn: impl FnOnce(*mut pid_t) -> c_int) -> c_int {
    started::around(|| {
        let mut number = 0;
        let result = spawn(&raw mut number);
        if result == 0 && !child.is_null() {
            // SAFETY: the program's own place for it.
            unsafe { child.write(number) };
        }
        match result {
            0 => (result, Program::Runs(number)),
            _ => (result, Program::Gone),
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
    start(child, |child| unsafe {
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
    start(child, |child| unsafe {
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
    started::around_unnamed(|| {
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
    started::around_unnamed(|| {
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

/// The program has ended when this returns.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    enter!(touches_all("system", 0));
    // SAFETY: the program's own arguments.
    started::around(|| (unsafe { real::system(command) }, Program::Gone))
}

/// Commands in what it expands are run by the shell.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn wordexp(
    words: *const c_char,
    found: *mut c_void,
    flags: c_int,
) -> c_int {
    enter!(touches_all("wordexp", 0));
    // SAFETY: the program's own arguments.
    started::around(|| (unsafe { real::wordexp(words, found, flags) }, Program::Gone))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn popen(
    command: *const c_char,
    mode: *const c_char,
) -> *mut FILE {
    enter!(touches_all("popen", 0));
    started::around_unnamed(|| {
        // SAFETY: the program's own arguments.
        let stream = unsafe { real::popen(command, mode) };
        (stream, !stream.is_null())
    })
}
