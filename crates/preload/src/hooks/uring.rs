//! liburing's ways to set up an io_uring, which make the system call without the C library.

use libc::{c_int, c_uint, c_void, size_t};

use crate::{real, uring};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
    uring::begin();
    // SAFETY: the program's own arguments.
    unsafe { real::io_uring_setup(entries, parameters) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_init(
    entries: c_uint,
    ring: *mut c_void,
    flags: c_uint,
) -> c_int {
    uring::begin();
    // SAFETY: the program's own arguments.
    unsafe { real::io_uring_queue_init(entries, ring, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut c_void,
    parameters: *mut c_void,
) -> c_int {
    uring::begin();
    // SAFETY: the program's own arguments.
    unsafe { real::io_uring_queue_init_params(entries, ring, parameters) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_init_mem(
    entries: c_uint,
    ring: *mut c_void,
    parameters: *mut c_void,
    memory: *mut c_void,
    bytes: size_t,
) -> c_int {
    uring::begin();
    // SAFETY: the program's own arguments.
    unsafe { real::io_uring_queue_init_mem(entries, ring, parameters, memory, bytes) }
}
