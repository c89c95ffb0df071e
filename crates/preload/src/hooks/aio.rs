//! Asynchronous I/O, by the kernel and by threads of the C library: they read and write sockets for the program, where no function of the C
//! library is called.

use libc::{c_int, c_long, c_void};
use millrace_wire::Reason;

use crate::table::{self, Entry};
use crate::{real, thread, user};

/// A request, as far as it matters here (`struct iocb` of `linux/aio_abi.h`).
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Request {
    _before: [u32; 4],
    operation: u16,
    _priority: u16,
    fd: u32,
    _after: [u64; 5],
}

const _: () = assert!(size_of::<Request>() == 64);

/// IOCB_CMD_PWRITE and IOCB_CMD_PWRITEV.
const WRITES: [u16; 2] = [1, 8];
/// LIO_WRITE of the C library.
const LIO_WRITE: c_int = 1;

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
        // SAFETY: as above; integers.
        let request = unsafe { request.read_unaligned() };
        leave(request.fd as c_int, !WRITES.contains(&request.operation));
    }
    thread::set_errno(errno);
}

fn leave(fd: c_int, reads: bool) {
    match table::get(fd) {
        Entry::Socket(socket) => socket.leave_to_requests(fd, Reason::AsyncIo, reads),
        // Whether it has something to report is asked of the kernel.
        Entry::Set(set) => set.leave_to_kernel(),
        Entry::Unknown | Entry::Unconnected(_) | Entry::Ring => {}
    }
}

/// The same for a request of the C library (`struct aiocb`), which begins with the descriptor. Of a list each says what it does.
fn before_request(request: *const c_void, writes: Option<bool>) {
    let errno = thread::errno();
    let words = request.cast::<c_int>();
    if user::can_read(words.cast(), 2 * size_of::<c_int>()) {
        // SAFETY: just found readable.
        let [fd, operation] = unsafe { words.cast::<[c_int; 2]>().read_unaligned() };
        leave(fd, !writes.unwrap_or(operation == LIO_WRITE));
    }
    thread::set_errno(errno);
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn aio_read(request: *mut c_void) -> c_int {
    before_request(request, Some(false));
    // SAFETY: the program's own arguments.
    unsafe { real::aio_read(request) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn aio_write(request: *mut c_void) -> c_int {
    before_request(request, Some(true));
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
        before_request(unsafe { place.read_unaligned() }, None);
    }
    // SAFETY: the program's own arguments.
    unsafe { real::lio_listio(mode, list, count, event) }
}
