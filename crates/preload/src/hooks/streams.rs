//! The C library's streams on sockets: it reads, writes and closes them without passing here. A stream that has to read what lies in a
//! ring and cannot be brought to the kernel is one of ours, which reads and writes by the hooks.

use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use millrace_wire::Reason;

use super::{descriptors, receive, send};
use crate::guarded::Guarded;
use crate::process;
use crate::send::await_messages;
use crate::socket::forget;
use crate::table::{self, Entry};
use crate::{real, thread};

/// Streams of ours, by address, and their descriptors.
static OURS: Guarded<Vec<(usize, c_int)>> = Guarded::new(Vec::new());

/// In a forked child, see [`Guarded::begin_child`].
pub(crate) fn begin_child(forker: u32) {
    OURS.begin_child(forker);
}

/// `cookie_io_functions_t` of the C library.
#[repr(C)]
struct Functions {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C-unwind" {
    /// The C library's; missing from the libc crate.
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

unsafe extern "C-unwind" fn read(
    cookie: *mut c_void,
    buffer: *mut c_char,
    bytes: size_t,
) -> ssize_t {
    // SAFETY: the C library's own buffer, or the program's.
    unsafe { receive::read(cookie as c_int, buffer.cast(), bytes) }
}

/// Unlike `write`, all or an error.
unsafe extern "C-unwind" fn write(
    cookie: *mut c_void,
    buffer: *const c_char,
    bytes: size_t,
) -> ssize_t {
    let mut written = 0;
    while written < bytes {
        // SAFETY: inside the C library's own buffer, or the program's.
        let rest = unsafe { buffer.add(written) };
        // SAFETY: as above.
        match usize::try_from(unsafe { send::write(cookie as c_int, rest.cast(), bytes - written) })
        {
            Ok(part) => written += part,
            Err(_) => break,
        }
    }
    written.cast_signed()
}

unsafe extern "C-unwind" fn seek(_: *mut c_void, _: *mut off64_t, _: c_int) -> c_int {
    thread::set_errno(libc::ESPIPE);
    -1
}

unsafe extern "C-unwind" fn close(cookie: *mut c_void) -> c_int {
    let fd = cookie as c_int;
    if let Some(mut ours) = OURS.lock() {
        ours.retain(|(_, stream)| *stream != fd);
    }
    // SAFETY: the stream's descriptor.
    unsafe { descriptors::close(fd) }
}

/// The descriptor of a stream of ours, where the C library knows of none.
fn number(stream: *mut FILE, known: c_int) -> c_int {
    if known >= 0 || !table::exists() {
        return known;
    }
    let errno = thread::errno();
    let ours = OURS.lock();
    let mut ours = ours.iter().flat_map(|ours| ours.iter());
    let found = ours.find(|(address, _)| *address == stream as usize);
    thread::set_errno(errno);
    found.map_or(known, |(_, fd)| *fd)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fileno(stream: *mut FILE) -> c_int {
    // SAFETY: the program's own argument.
    number(stream, unsafe { real::fileno(stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fileno_unlocked(stream: *mut FILE) -> c_int {
    // SAFETY: the program's own argument.
    number(stream, unsafe { real::fileno_unlocked(stream) })
}

/// Whether a stream of that mode reads.
fn reads(mode: *const c_char) -> bool {
    // SAFETY: the program's own argument, a C string.
    let mode = unsafe { std::ffi::CStr::from_ptr(mode) }.to_bytes();
    mode.first() == Some(&b'r') || mode.contains(&b'+')
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    enter!(touches("fdopen", fd));
    let Some(socket) = table::socket(fd) else {
        // The connection that it becomes, the C library reads and writes without passing here.
        process::leave_unconnected(fd);
        // SAFETY: the program's own arguments.
        return unsafe { real::fdopen(fd, mode) };
    };
    let errno = thread::errno();
    socket.pin(Reason::Stdio);
    socket.flush_once(fd);
    let stays = reads(mode) && !socket.draw_back(fd);
    thread::set_errno(errno);
    if !stays {
        // SAFETY: the program's own arguments.
        return unsafe { real::fdopen(fd, mode) };
    }
    let functions = Functions {
        read,
        write,
        seek,
        close,
    };
    // SAFETY: the program's own mode; the functions take the descriptor for what it is.
    let stream = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !stream.is_null()
        && let Some(mut ours) = OURS.lock()
    {
        ours.push((stream as usize, fd));
    }
    stream
}

/// `work` closes what is below `stream`. Its last bytes go out first, so the connection is let go of only after that.
fn close_below<T>(stream: *mut FILE, work: impl FnOnce() -> T) -> T {
    // What a child of `vfork` closes is its own.
    if stream.is_null() || !table::exists() || process::is_borrowed() {
        return work();
    }
    let errno = thread::errno();
    // SAFETY: the program's stream, which it has not closed yet.
    let fd = unsafe { fileno(stream) };
    thread::set_errno(errno);
    let Some(socket) = table::socket(fd) else {
        return work();
    };
    socket.settle_registrations(fd);
    let _uncancelled = thread::Uncancelled::new();
    drop(await_messages(socket, fd));
    let result = work();
    let errno = thread::errno();
    // The number may be another's by now.
    let entry = Entry::Socket(socket);
    if table::exchange(fd, entry, Entry::Unknown) {
        forget(fd, entry);
    }
    thread::set_errno(errno);
    result
}

/// The C library writes to the descriptor without passing here.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn backtrace_symbols_fd(
    places: *const *mut c_void,
    count: c_int,
    fd: c_int,
) {
    enter!(touches("backtrace_symbols_fd", fd));
    if let Some(socket) = table::socket(fd) {
        crate::send::leave_to_kernel(socket, fd, Reason::Stdio);
    }
    // SAFETY: the program's own arguments.
    unsafe { real::backtrace_symbols_fd(places, count, fd) };
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    enter!(touches_stream("fclose", stream));
    // SAFETY: the program's own argument.
    close_below(stream, || unsafe { real::fclose(stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    enter!(touches_stream("freopen", stream));
    // SAFETY: the program's own arguments.
    close_below(stream, || unsafe { real::freopen(path, mode, stream) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    enter!(touches_stream("freopen64", stream));
    // SAFETY: the program's own arguments.
    unsafe { freopen(path, mode, stream) }
}
