//! The C library's streams on sockets: it reads, writes and closes them without passing here.

use libc::{FILE, c_char, c_int};

use crate::process::drop_descriptor;
use crate::{real, table, thread};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    if let Some(socket) = table::socket(fd) {
        socket.leave_to_streams(fd);
    }
    // SAFETY: the program's own arguments.
    unsafe { real::fdopen(fd, mode) }
}

/// `work` closes what is below `stream`. Its last bytes go out first, so the connection is let go of only after that.
fn close_below<T>(stream: *mut FILE, work: impl FnOnce() -> T) -> T {
    if stream.is_null() || !table::exists() {
        return work();
    }
    let errno = thread::errno();
    // SAFETY: the program's stream, which it has not closed yet.
    let fd = unsafe { libc::fileno(stream) };
    thread::set_errno(errno);
    let Some(socket) = table::socket(fd) else {
        return work();
    };
    socket.settle_registrations(fd);
    let result = work();
    let errno = thread::errno();
    if table::is(fd, socket) {
        drop_descriptor(fd);
    }
    thread::set_errno(errno);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the program's own argument.
    close_below(stream, || unsafe { real::fclose(stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's own arguments.
    close_below(stream, || unsafe { real::freopen(path, mode, stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's own arguments.
    unsafe { freopen(path, mode, stream) }
}
