//! A program that replaces itself: the rings of this process end with its memory.

use libc::{c_char, c_int};

use crate::{process, real};

type Strings = *const *const c_char;

/// Makes ready for `exec`, and takes it back when that fails.
fn replace(work: impl FnOnce() -> c_int) -> c_int {
    let left = process::leave_for_exec();
    let result = work();
    process::return_from_exec(left);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    cover!(touches_all("execve", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execve(path, arguments, environment) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    cover!(touches_all("execv", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execv(path, arguments) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    cover!(touches_all("execvp", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execvp(file, arguments) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    cover!(touches_all("execvpe", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execvpe(file, arguments, environment) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    cover!(touches_all("fexecve", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::fexecve(fd, arguments, environment) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    cover!(touches_all("execveat", 0));
    // SAFETY: the program's own arguments.
    replace(|| unsafe { real::execveat(directory, path, arguments, environment, flags) })
}
