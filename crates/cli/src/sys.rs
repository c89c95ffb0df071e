//! What no safe wrapper does, and the beginning of the process.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

/// As a Rust program exits that panicked.
#[cfg(not(test))]
const PANICKED: u8 = 101;

/// Where the C library begins the program.
///
/// # Safety
/// `argv` is what the C library passes: `argc` pointers to strings that live as long as the process.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: the contract of this function.
    let arguments = unsafe { arguments(argc, argv) };
    // Nothing must unwind into the C library.
    std::panic::catch_unwind(|| crate::dispatch(arguments))
        .map_or(c_int::from(PANICKED), c_int::from)
}

/// The command line as the C library passes it.
///
/// # Safety
/// `argv` points to `argc` pointers to strings, all of which live during the call.
unsafe fn arguments(argc: c_int, argv: *const *const c_char) -> Vec<OsString> {
    let count = usize::try_from(argc).unwrap_or(0);
    let mut arguments = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the index is below `argc`.
        let place = unsafe { argv.add(index) };
        // SAFETY: the place is within the array.
        let argument = unsafe { *place };
        // SAFETY: the argument is a string that lives during the call.
        let text = unsafe { CStr::from_ptr(argument) };
        arguments.push(OsStr::from_bytes(text.to_bytes()).to_owned());
    }
    arguments
}

/// Marks every descriptor above standard error to be closed when this process executes another program, or makes one.
/// Where the kernel cannot (before Linux 5.11), descriptors that the caller left open are inherited.
pub(crate) fn close_others_on_exec() {
    // SAFETY: only sets a flag on descriptors; none is closed, so none that is in use is lost.
    let _ = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as c_int) };
}
