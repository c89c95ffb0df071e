//! io_uring: the kernel sends, receives and waits for the program, where no function of the C library is called.
//!
//! So a process that has an io_uring takes the kernel's road. It is seen when it is set up, by the C library's `syscall` or by liburing.
//! Where that was linked into the program, nothing is called; then its memory is seen when the next connection is about to be offered.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use millrace_wire::Reason;

use crate::kernel::kernel;
use crate::socket::Socket;
use crate::{client, process, spin, table};

/// The process's memory is looked at so often at most, in nanoseconds.
const NS_BETWEEN_LOOKS: u64 = 1_000_000_000;
/// How the kernel calls an io_uring's memory.
const MARK: &[u8] = b"anon_inode:[io_uring]";

/// When, of [`spin::clock`], that was last done; zero: never.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);

/// The process gets one, or has one.
pub(crate) fn begin() {
    if table::exists() && !process::is_borrowed() {
        // What cannot be sent again is read from the ring, by calls of the C library.
        process::leave_rings(Reason::IoUring, Socket::leave_rings);
    }
}

/// Looks now and then whether the process has one that was set up unseen.
pub(crate) fn look() {
    let now = spin::clock();
    let looked_at = LOOKED_AT.load(Relaxed);
    if looked_at == 0 || now.wrapping_sub(looked_at) > spin::cycles(NS_BETWEEN_LOOKS) {
        LOOKED_AT.store(now, Relaxed);
        // No fork comes meanwhile: its child would keep the descriptor.
        if client::hold_still(is_mapped) {
            begin();
        }
    }
}

fn is_mapped() -> bool {
    let path = c"/proc/self/maps";
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let maps = kernel!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags);
    if maps < 0 {
        return false;
    }
    let mut text = vec![0u8; 4096];
    let mut kept = 0;
    let found = loop {
        let room = text.len() - kept;
        let read = kernel!(libc::SYS_read, maps, text[kept..].as_mut_ptr(), room);
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else {
            break false;
        };
        let length = kept + read;
        if text[..length]
            .windows(MARK.len())
            .any(|place| place == MARK)
        {
            break true;
        }
        // The mark may go on in the next part.
        kept = length.min(MARK.len() - 1);
        text.copy_within(length - kept..length, 0);
    };
    kernel!(libc::SYS_close, maps);
    found
}
