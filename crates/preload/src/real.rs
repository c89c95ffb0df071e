//! The functions that ours stand before: the next definitions of the same names, most often the C library's.
//!
//! They are looked up once, at load time or at the first call before that, and called where the program's own call is meant to
//! happen: they are cancellation points, set `errno` and restart after signals as the program expects.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, fd_set, iovec, mmsghdr, msghdr,
    nfds_t, off_t, pid_t, pollfd, posix_spawn_file_actions_t, posix_spawnattr_t, sigset_t, size_t,
    sockaddr, socklen_t, ssize_t, timespec, timeval,
};

use crate::objects;

/// A function of the C library, looked up once; or of one that may be unloaded, looked up again then.
#[derive(Debug)]
pub(crate) struct Symbol {
    found: AtomicPtr<c_void>,
    name: &'static CStr,
}

impl Symbol {
    pub(crate) const fn new(name: &'static str) -> Symbol {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Symbol {
                found: AtomicPtr::new(std::ptr::null_mut()),
                name,
            },
            Err(_) => panic!("names end with NUL, and have no other"),
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            self.look_up()
        } else {
            found
        }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let found = objects::next(self.name);
        self.found.store(found, Ordering::Relaxed);
        found
    }

    /// A library has been unloaded. Looked up here and not at the next call, which may be in a signal handler.
    fn look_up_again(&self) {
        if may_be_unloaded(self.name) && !self.found.load(Ordering::Relaxed).is_null() {
            self.look_up();
        }
    }
}

/// Whether the function is of a library that comes and goes with a program's plug-ins: liburing and libaio. The C library stays.
fn may_be_unloaded(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.starts_with(b"io_") || name.starts_with(b"__io_")
}

/// Stands in for a function that nobody has but us. A program may have found ours where it looked whether there is one.
extern "C-unwind" fn missing() -> c_int {
    // SAFETY: the thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOSYS };
    -1
}

macro_rules! real {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty $(, or $other:path)?;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of the next library.")]
        ///
        /// # Safety
        /// As the function itself demands.
        #[inline]
        #[allow(non_snake_case, reason = "the C library's names")]
        pub(crate) unsafe fn $name($($argument: $kind),*) -> $result {
            let mut pointer = symbols::$name.get();
            if pointer.is_null() {
                #[allow(unused_variables, reason = "most functions are in every C library")]
                let other = missing as *mut c_void;
                $(let other = $other as *mut c_void;)?
                pointer = other;
            }
            // SAFETY: the symbol of that name has this type by the C library's interface.
            let function: unsafe extern "C-unwind" fn($($kind),*) -> $result = unsafe { std::mem::transmute(pointer) };
            // SAFETY: the caller keeps the function's own conditions.
            unsafe { function($($argument),*) }
        }
    )*

    #[allow(non_upper_case_globals, reason = "the C library's names")]
    mod symbols {
        $(
            pub(super) static $name: super::Symbol = super::Symbol::new(concat!(stringify!($name), "\0"));
        )*
    }

    /// Looks every function up, so that no hook does it inside a signal handler.
    pub(crate) fn look_up_all() {
        $(
            symbols::$name.get();
        )*
    }

    /// A library has been unloaded, perhaps with functions that were found in it.
    pub(crate) fn look_up_unloaded() {
        $(
            symbols::$name.look_up_again();
        )*
    }};
}

real! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t, flags: c_int) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    getpeername(fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, or newer::close_range;
    chroot(path: *const c_char) -> c_int;
    unshare(flags: c_int) -> c_int;
    setns(fd: c_int, kind: c_int) -> c_int;
    setrlimit(resource: c_int, limits: *const libc::rlimit) -> c_int;
    prlimit(process: pid_t, resource: c_int, limits: *const libc::rlimit, before: *mut libc::rlimit) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, target: c_int) -> c_int;
    dup3(fd: c_int, target: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int;
    read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t;
    readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    preadv2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t, or newer::preadv2;
    recv(fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, bytes: size_t, flags: c_int, address: *mut sockaddr, address_bytes: *mut socklen_t) -> ssize_t;
    posix_spawn(child: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    posix_spawnp(child: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int;
    pidfd_spawn(child: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int,
        or newer::pidfd_spawn;
    pidfd_spawnp(child: *mut c_int, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int,
        or newer::pidfd_spawnp;
    posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, target: c_int) -> c_int;
    system(command: *const c_char) -> c_int;
    wordexp(words: *const c_char, found: *mut c_void, flags: c_int) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    aio_read(request: *mut c_void) -> c_int;
    aio_write(request: *mut c_void) -> c_int;
    lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int;
    io_submit(context: *mut c_void, count: libc::c_long, requests: *const c_void) -> c_int;
    io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int;
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int;
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, bytes: size_t) -> c_int;
    io_uring_queue_exit(ring: *mut c_void) -> ();
    io_uring_submit(ring: *mut c_void) -> c_int;
    io_uring_submit_and_wait(ring: *mut c_void, count: c_uint) -> c_int;
    io_uring_submit_and_wait_timeout(ring: *mut c_void, entry: *mut c_void, count: c_uint, timeout: *mut c_void,
        mask: *mut c_void) -> c_int;
    io_uring_submit_and_wait_min_timeout(ring: *mut c_void, entry: *mut c_void, count: c_uint, timeout: *mut c_void, least: c_uint,
        mask: *mut c_void) -> c_int;
    io_uring_submit_and_wait_reg(ring: *mut c_void, entry: *mut c_void, count: c_uint, index: c_int) -> c_int;
    io_uring_submit_and_get_events(ring: *mut c_void) -> c_int;
    __io_uring_get_cqe(ring: *mut c_void, entry: *mut c_void, to_submit: c_uint, count: c_uint, mask: *mut c_void) -> c_int;
    io_uring_enter(fd: c_uint, to_submit: c_uint, min_complete: c_uint, flags: c_uint, mask: *mut c_void) -> c_int;
    io_uring_enter2(fd: c_uint, to_submit: c_uint, min_complete: c_uint, flags: c_uint, argument: *mut c_void,
        bytes: size_t) -> c_int;
    io_uring_register(fd: c_uint, what: c_uint, argument: *mut c_void, count: c_uint) -> c_int;
    io_uring_register_files(ring: *mut c_void, files: *const c_int, count: c_uint) -> c_int;
    io_uring_register_files_tags(ring: *mut c_void, files: *const c_int, tags: *const u64, count: c_uint) -> c_int;
    io_uring_register_files_update(ring: *mut c_void, first: c_uint, files: *const c_int, count: c_uint) -> c_int;
    io_uring_register_files_update_tag(ring: *mut c_void, first: c_uint, files: *const c_int, tags: *const u64, count: c_uint) -> c_int;
    io_uring_close_ring_fd(ring: *mut c_void) -> c_int;
    io_uring_resize_rings(ring: *mut c_void, parameters: *mut c_void) -> c_int;
    io_uring_register_sync_msg(request: *mut c_void) -> c_int;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t;
    writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    pwritev2(fd: c_int, vectors: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t, or newer::pwritev2;
    send(fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, bytes: size_t, flags: c_int, address: *const sockaddr, address_bytes: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, input: c_int, offset: *mut off_t, bytes: size_t) -> ssize_t;
    splice(input: c_int, input_offset: *mut i64, out: c_int, out_offset: *mut i64, bytes: size_t, flags: c_uint) -> ssize_t;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, bytes: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, bytes: socklen_t) -> c_int;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int,
        or newer::epoll_pwait2;
    prctl(what: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int;
    __register_atfork(prepare: usize, parent: usize, child: usize, whose: *mut c_void) -> c_int, or newer::__register_atfork;
    pthread_atfork(prepare: usize, parent: usize, child: usize) -> c_int, or newer::pthread_atfork;
    fork() -> pid_t;
    _Fork() -> pid_t, or newer::_Fork;
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    execveat(directory: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char,
        flags: c_int) -> c_int, or newer::execveat;
    dlclose(library: *mut c_void) -> c_int;
    sigaction(signal: c_int, action: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int, or newer::pthread_setcancelstate;
    pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int, or newer::pthread_setcanceltype;
    getcontext(context: *mut libc::ucontext_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fileno(stream: *mut libc::FILE) -> c_int;
    fileno_unlocked(stream: *mut libc::FILE) -> c_int;
    fclose(stream: *mut libc::FILE) -> c_int;
    backtrace_symbols_fd(places: *const *mut c_void, count: c_int, fd: c_int) -> ();
    freopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
}

/// Functions that not every C library has, as the kernel has them.
mod newer {
    use super::{
        c_char, c_int, c_uint, c_void, epoll_event, iovec, off_t, pid_t,
        posix_spawn_file_actions_t, posix_spawnattr_t, sigset_t, ssize_t, timespec,
    };
    use crate::kernel::kernel;
    use crate::thread::told;

    /// Where there are no threads.
    pub(super) extern "C-unwind" fn pthread_setcancelstate(
        _state: c_int,
        _before: *mut c_int,
    ) -> c_int {
        libc::ENOSYS
    }

    pub(super) extern "C-unwind" fn pthread_setcanceltype(
        _kind: c_int,
        _before: *mut c_int,
    ) -> c_int {
        libc::ENOSYS
    }

    /// Each C library has one of the two.
    #[allow(non_snake_case, reason = "the C library's name")]
    pub(super) extern "C-unwind" fn __register_atfork(
        prepare: usize,
        parent: usize,
        child: usize,
        _whose: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's handlers.
        unsafe { super::pthread_atfork(prepare, parent, child) }
    }

    pub(super) extern "C-unwind" fn pthread_atfork(
        prepare: usize,
        parent: usize,
        child: usize,
    ) -> c_int {
        // SAFETY: the caller's handlers.
        unsafe { super::__register_atfork(prepare, parent, child, std::ptr::null_mut()) }
    }

    pub(super) extern "C-unwind" fn close_range(
        first: c_uint,
        last: c_uint,
        flags: c_int,
    ) -> c_int {
        told(kernel!(libc::SYS_close_range, first, last, flags)) as c_int
    }

    pub(super) extern "C-unwind" fn preadv2(
        fd: c_int,
        vectors: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int,
    ) -> ssize_t {
        // The fifth is the upper half of the offset, for processors whose words are half as long.
        told(kernel!(
            libc::SYS_preadv2,
            fd,
            vectors,
            count,
            offset,
            0usize,
            flags
        ))
    }

    pub(super) extern "C-unwind" fn pwritev2(
        fd: c_int,
        vectors: *const iovec,
        count: c_int,
        offset: off_t,
        flags: c_int,
    ) -> ssize_t {
        told(kernel!(
            libc::SYS_pwritev2,
            fd,
            vectors,
            count,
            offset,
            0usize,
            flags
        ))
    }

    pub(super) extern "C-unwind" fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let bytes_of_mask = size_of::<u64>();
        told(kernel!(
            libc::SYS_epoll_pwait2,
            set,
            events,
            count,
            timeout,
            mask,
            bytes_of_mask
        )) as c_int
    }

    #[allow(non_snake_case, reason = "the C library's name")]
    pub(super) extern "C-unwind" fn _Fork() -> pid_t {
        told(kernel!(
            libc::SYS_clone,
            libc::SIGCHLD,
            0usize,
            0usize,
            0usize,
            0usize
        )) as pid_t
    }

    pub(super) extern "C-unwind" fn pidfd_spawn(
        child: *mut c_int,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char,
        environment: *const *mut c_char,
    ) -> c_int {
        // SAFETY: the program's own arguments.
        start_and_open(child, |number| unsafe {
            super::posix_spawn(number, path, actions, attributes, arguments, environment)
        })
    }

    pub(super) extern "C-unwind" fn pidfd_spawnp(
        child: *mut c_int,
        file: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char,
        environment: *const *mut c_char,
    ) -> c_int {
        // SAFETY: the program's own arguments.
        start_and_open(child, |number| unsafe {
            super::posix_spawnp(number, file, actions, attributes, arguments, environment)
        })
    }

    /// Starts a program, and opens a descriptor of it. Nothing is started where the kernel has none, or none is free.
    fn start_and_open(child: *mut c_int, start: impl FnOnce(*mut pid_t) -> c_int) -> c_int {
        let open = |process: pid_t| kernel!(libc::SYS_pidfd_open, process, 0);
        let errno = |result: isize| c_int::try_from(-result).unwrap_or(libc::EINVAL);
        let tried = open(crate::kernel::process_id().cast_signed());
        if tried < 0 {
            return errno(tried);
        }
        kernel!(libc::SYS_close, tried);
        let mut number = 0;
        let result = start(&raw mut number);
        if result != 0 {
            return result;
        }
        let descriptor = open(number);
        if descriptor < 0 {
            return errno(descriptor);
        }
        // SAFETY: the program's own place for it.
        unsafe { child.write(descriptor as c_int) };
        0
    }

    pub(super) extern "C-unwind" fn execveat(
        directory: c_int,
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
        flags: c_int,
    ) -> c_int {
        told(kernel!(
            libc::SYS_execveat,
            directory,
            path,
            arguments,
            environment,
            flags
        )) as c_int
    }
}
