//! The kernel's asynchronous I/O: it reads and writes sockets for the program, where no function of the C library is called.

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
        let fd = unsafe { (&raw const (*request).fd).read_unaligned() } as c_int;
        if let Some(socket) = table::socket(fd) {
            socket.pin(Reason::AsyncIo);
            socket.draw_back(fd);
        }
    }
    thread::set_errno(errno);
}
