//! What the standard library calls and not every C library has, or not under this name.
//!
//! Programs see nothing of it: the names stay inside the library. But for the keys of threads they are the way to a panic's backtrace
//! only, and what that can do without is refused. `open64` and its like are not in every musl, `fstat64` is in no old glibc, and of
//! `realpath` there are two.

use std::ffi::c_void;
use std::ptr::null_mut;

use libc::{c_char, c_int, pthread_key_t};

use crate::kernel::kernel;
use crate::objects::{self, Destructor};
use crate::thread::{self, told};
use crate::unwinder;

/// Defines names of the C library inside this one: each goes on to a function.
macro_rules! inside {
    ($($name:literal goes to $function:path;)*) => {$(
        core::arch::global_asm!(
            ".pushsection .text.millrace_lacking, \"ax\", %progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", %function"),
            concat!($name, ":"),
            jump!(),
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            function = sym $function,
        );
    )*};
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

inside! {
    "_dl_find_object" goes to unwinder::find_object;
    "fstat64" goes to fstat;
    "lseek64" goes to lseek;
    "mmap64" goes to mmap;
    "open64" goes to open;
    "readlink" goes to readlink;
    "stat64" goes to stat;
    "getcwd" goes to refuse;
    "realpath" goes to refuse;
    "pthread_key_create" goes to create_key;
    "pthread_setspecific" goes to set_specific;
}

extern "C" fn fstat(fd: c_int, found: *mut libc::stat) -> c_int {
    told(kernel!(libc::SYS_fstat, fd, found)) as c_int
}

extern "C" fn stat(path: *const c_char, found: *mut libc::stat) -> c_int {
    told(kernel!(libc::SYS_newfstatat, libc::AT_FDCWD, path, found)) as c_int
}

extern "C" fn lseek(fd: c_int, offset: i64, from: c_int) -> i64 {
    told(kernel!(libc::SYS_lseek, fd, offset, from)) as i64
}

extern "C" fn mmap(
    place: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    told(kernel!(
        libc::SYS_mmap,
        place,
        bytes,
        access,
        flags,
        fd,
        offset
    )) as *mut c_void
}

extern "C" fn open(path: *const c_char, flags: c_int, mode: c_int) -> c_int {
    told(kernel!(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode)) as c_int
}

extern "C" fn readlink(path: *const c_char, place: *mut c_char, bytes: usize) -> isize {
    told(kernel!(
        libc::SYS_readlinkat,
        libc::AT_FDCWD,
        path,
        place,
        bytes
    ))
}

extern "C" fn refuse() -> *mut c_void {
    thread::set_errno(libc::ENOSYS);
    null_mut()
}

/// Where there are no keys there are no threads: what would be done at their end is left to the end of the process.
extern "C" fn create_key(key: *mut pthread_key_t, destructor: Option<Destructor>) -> c_int {
    match objects::keys() {
        // SAFETY: the caller's arguments.
        Some(keys) => unsafe { (keys.create)(key, destructor) },
        None => 0,
    }
}

extern "C" fn set_specific(key: pthread_key_t, value: *const c_void) -> c_int {
    match objects::keys() {
        // SAFETY: the caller's arguments.
        Some(keys) => unsafe { (keys.set)(key, value) },
        None => 0,
    }
}
