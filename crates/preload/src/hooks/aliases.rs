//! Second names that the C library has for functions of the program: those that no header file uses, and those for offsets of 64 bits,
//! which they have in any case.

use libc::{
    FILE, c_char, c_int, c_void, fd_set, nfds_t, pollfd, sigaction, size_t, sockaddr, socklen_t,
    ssize_t, timeval,
};

use super::{aio, descriptors, programs, receive, send, signals, sockets, streams, wait};

macro_rules! aliases {
    ($($alias:ident = $module:ident::$name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $alias($($argument: $kind),*) -> $result {
            // SAFETY: the program's own arguments.
            unsafe { $module::$name($($argument),*) }
        }
    )*};
}

aliases! {
    aio_read64 = aio::aio_read(request: *mut c_void) -> c_int;
    aio_write64 = aio::aio_write(request: *mut c_void) -> c_int;
    lio_listio64 = aio::lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int;
    __read = receive::read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t;
    __write = send::write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t;
    __send = send::send(fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int) -> ssize_t;
    __connect = sockets::connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int;
    __close = descriptors::close(fd: c_int) -> c_int;
    __dup2 = descriptors::dup2(fd: c_int, target: c_int) -> c_int;
    __fcntl = descriptors::fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    __sigaction = signals::sigaction(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int;
    ssignal = signals::signal(signal: c_int, handler: usize) -> usize;
    _IO_fdopen = streams::fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    _IO_popen = programs::popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    __poll = wait::poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    __select = wait::select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
}
