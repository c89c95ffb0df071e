//! liburing, which makes its system calls without the C library: what sets a ring up, submits, registers, and ends it.
//!
//! Whatever else it has submits nothing: where the kernel knows IORING_FEAT_EXT_ARG, that is so for waits with a time-out, too.

use libc::{c_int, c_long, c_uint, c_void, size_t};

use crate::uring::{self, Parameters, Ring};
use crate::{process, real};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
    uring::around_setup(
        // SAFETY: the program's own arguments.
        || unsafe { real::io_uring_setup(entries, parameters) },
        |fd| Ring::by_number(fd, parameters.cast::<Parameters>()),
        |fd| fd >= 0,
    )
}

/// `io_uring_setup` by number.
pub(super) fn setup(parameters: usize, raw: impl FnOnce() -> c_long) -> c_long {
    uring::around_setup(
        raw,
        |fd| Ring::by_number(fd as c_int, parameters as *const Parameters),
        |fd| fd >= 0,
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_init(
    entries: c_uint,
    ring: *mut c_void,
    flags: c_uint,
) -> c_int {
    uring::around_setup(
        // SAFETY: the program's own arguments.
        || unsafe { real::io_uring_queue_init(entries, ring, flags) },
        |_| Ring::by_liburing(ring),
        |result| result == 0,
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut c_void,
    parameters: *mut c_void,
) -> c_int {
    uring::around_setup(
        // SAFETY: the program's own arguments.
        || unsafe { real::io_uring_queue_init_params(entries, ring, parameters) },
        |_| Ring::by_liburing(ring),
        |result| result == 0,
    )
}

/// The ring is in memory of the program's own, where it is not found.
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

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_queue_exit(ring: *mut c_void) {
    uring::before_exit(ring);
    // SAFETY: the program's own arguments.
    unsafe { real::io_uring_queue_exit(ring) }
}

/// Functions that show the kernel what is in the ring of their first argument.
macro_rules! submits {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(ring: *mut c_void $(, $argument: $kind)*) -> c_int {
            // SAFETY: the program's own arguments.
            uring::around_flush(ring, || unsafe { real::$name(ring $(, $argument)*) })
        }
    )*};
}

submits! {
    io_uring_submit();
    io_uring_submit_and_wait(count: c_uint);
    io_uring_submit_and_wait_timeout(entry: *mut c_void, count: c_uint, timeout: *mut c_void, mask: *mut c_void);
    io_uring_submit_and_wait_min_timeout(entry: *mut c_void, count: c_uint, timeout: *mut c_void, least: c_uint, mask: *mut c_void);
    io_uring_submit_and_wait_reg(entry: *mut c_void, count: c_uint, index: c_int);
    io_uring_submit_and_get_events();
}

/// Most waits come here, and submit nothing.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __io_uring_get_cqe(
    ring: *mut c_void,
    entry: *mut c_void,
    to_submit: c_uint,
    count: c_uint,
    mask: *mut c_void,
) -> c_int {
    // SAFETY: the program's own arguments.
    let get = || unsafe { real::__io_uring_get_cqe(ring, entry, to_submit, count, mask) };
    if to_submit == 0 {
        get()
    } else {
        uring::around_flush(ring, get)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_enter(
    fd: c_uint,
    to_submit: c_uint,
    min_complete: c_uint,
    flags: c_uint,
    mask: *mut c_void,
) -> c_int {
    let numbers = [to_submit, min_complete, flags];
    uring::enter(
        fd.cast_signed(),
        numbers,
        |[to_submit, min_complete, flags]| {
            // SAFETY: the program's own arguments.
            unsafe { real::io_uring_enter(fd, to_submit, min_complete, flags, mask) as isize }
        },
    ) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_enter2(
    fd: c_uint,
    to_submit: c_uint,
    min_complete: c_uint,
    flags: c_uint,
    argument: *mut c_void,
    bytes: size_t,
) -> c_int {
    let numbers = [to_submit, min_complete, flags];
    uring::enter(
        fd.cast_signed(),
        numbers,
        |[to_submit, min_complete, flags]| {
            // SAFETY: the program's own arguments.
            unsafe {
                real::io_uring_enter2(fd, to_submit, min_complete, flags, argument, bytes) as isize
            }
        },
    ) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_uring_register(
    fd: c_uint,
    what: c_uint,
    argument: *mut c_void,
    count: c_uint,
) -> c_int {
    uring::before_register(what, argument as usize, count);
    // SAFETY: the program's own arguments.
    unsafe { real::io_uring_register(fd, what, argument, count) }
}

/// Functions that register a list of descriptors with a ring.
macro_rules! registers {
    ($($name:ident($($before:ident: $of_before:ty,)* => files, $($after:ident: $of_after:ty,)* => count);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            ring: *mut c_void, $($before: $of_before,)* files: *const c_int, $($after: $of_after,)* count: c_uint,
        ) -> c_int {
            uring::before_register_list(files as usize, count);
            // SAFETY: the program's own arguments.
            unsafe { real::$name(ring, $($before,)* files, $($after,)* count) }
        }
    )*};
}

registers! {
    io_uring_register_files(=> files, => count);
    io_uring_register_files_tags(=> files, tags: *const u64, => count);
    io_uring_register_files_update(first: c_uint, => files, => count);
    io_uring_register_files_update_tag(first: c_uint, => files, tags: *const u64, => count);
}

/// Functions after which requests would not be seen.
macro_rules! hides {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            uring::begin();
            // SAFETY: the program's own arguments.
            unsafe { real::$name($($argument),*) }
        }
    )*};
}

hides! {
    io_uring_close_ring_fd(ring: *mut c_void);
    io_uring_resize_rings(ring: *mut c_void, parameters: *mut c_void);
    io_uring_register_sync_msg(request: *mut c_void);
}

/// A child or a thread is about to begin, by these flags of `clone`, that runs no fork handlers.
pub(super) fn before_clone(flags: usize) {
    let has = |flag: c_int| flags & flag as usize != 0;
    let (memory, descriptors) = (has(libc::CLONE_VM), has(libc::CLONE_FILES));
    if memory != descriptors && !(memory && has(libc::CLONE_VFORK)) {
        // What is known of descriptors is not known by those who have them, or it is by others as well.
        process::be_half_shared();
    } else if !memory {
        uring::share_all();
        process::share_sets();
    }
    process::expect_bare_child();
}
