//! Asynchronous I/O, by the kernel and by threads of the C library: they read and write sockets for the program, where no function of the C
//! library is called.

use libc::{c_int, c_long, c_void};
use millrace_wire::Reason;

use crate::{real, table, thread, user};

/// A request, of which only the descriptor matters here (`struct iocb` of `linux/aio_abi.h`).
#[repr(C)]
pub(super) struct Request {
    _before: [u32; 5],
    fd: u32,
    _after: [u64; 5],
}

/// libaio makes the system call without the C library.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_submit(
    context: *mut c_void,
    count: c_long,
    requests: *const *const Request,
) -> c_int {
    before_submit(usize::try_from(count).unwrap_or(0), requests);
    // SAFETY: the program's own arguments.
    unsafe { real::io_submit(context, count, requests.cast()) }
}

/// Connections that requests are about take the kernel's road, with what is unread in their rings.
pub(super) fn before_submit(count: usize, requests: *const *const Request) {
    let errno = thread::errno();
    for index in 0..count {
        let place = requests.wrapping_add(index);
        if !user::can_read(place.cast(), size_of::<*const Request>()) {
            break;
        }
        // SAFETY: just found readable.
        let request = unsafe { place.read_unaligned() };
        if !user::can_read(request.cast(), size_of::<Request>()) {
            break;
        }
        // SAFETY: as above.
        leave(unsafe { (&raw const (*request).fd).read_unaligned() } as c_int);
    }
    thread::set_errno(errno);
}

fn leave(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        socket.pin(Reason::AsyncIo);
        socket.draw_back(fd);
    }
}

/// The same for a request of the C library (`struct aiocb`), which begins with the descriptor.
fn before_request(request: *const c_void) {
    let errno = thread::errno();
    if user::can_read(request.cast(), size_of::<c_int>()) {
        // SAFETY: just found readable.
        leave(unsafe { request.cast::<c_int>().read_unaligned() });
    }
    thread::set_errno(errno);
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn aio_read(request: *mut c_void) -> c_int {
    before_request(request);
    // SAFETY: the program's own arguments.
    unsafe { real::aio_read(request) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn aio_write(request: *mut c_void) -> c_int {
    before_request(request);
    // SAFETY: the program's own arguments.
    unsafe { real::aio_write(request) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn lio_listio(
    mode: c_int,
    list: *const *mut c_void,
    count: c_int,
    event: *mut c_void,
) -> c_int {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        let place = list.wrapping_add(index);
        if !user::can_read(place.cast(), size_of::<*mut c_void>()) {
            break;
        }
        // SAFETY: just found readable.
        before_request(unsafe { place.read_unaligned() });
    }
    // SAFETY: the program's own arguments.
    unsafe { real::lio_listio(mode, list, count, event) }
}
