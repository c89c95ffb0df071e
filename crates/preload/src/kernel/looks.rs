//! What is ready now. A filter may know only the call that the program makes by itself: where it refuses ours, that is made.

use libc::{c_int, epoll_event, pollfd, sigset_t, timespec};

const BYTES_OF_MASK: usize = 8;

/// `ppoll` of these, which waits for nothing. Returns a count, or a negated error number.
pub(crate) fn poll_now(list: &mut [pollfd], mask: *const sigset_t) -> isize {
    // The kernel writes what is left of it.
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let found = kernel!(
        libc::SYS_ppoll,
        list.as_mut_ptr(),
        list.len(),
        &raw mut now,
        mask,
        BYTES_OF_MASK
    );
    #[cfg(target_arch = "x86_64")]
    if is_refused(found) {
        return kernel!(libc::SYS_poll, list.as_mut_ptr(), list.len(), 0usize);
    }
    found
}

/// `epoll_pwait`, which waits for nothing. Returns a count, or a negated error number.
pub(crate) fn epoll_now(set: c_int, events: &mut [epoll_event], mask: *const sigset_t) -> isize {
    let found = kernel!(
        libc::SYS_epoll_pwait,
        set,
        events.as_mut_ptr(),
        events.len(),
        0usize,
        mask,
        BYTES_OF_MASK
    );
    #[cfg(target_arch = "x86_64")]
    if is_refused(found) {
        let room = events.len();
        return kernel!(libc::SYS_epoll_wait, set, events.as_mut_ptr(), room, 0usize);
    }
    found
}

/// `pselect6` of such sets, which waits for nothing. Returns a count, or a negated error number.
pub(crate) fn select_now(length: usize, sets: [*mut u64; 3], mask: *const sigset_t) -> isize {
    let [reads, writes, others] = sets;
    let masked = (mask, BYTES_OF_MASK);
    let mut now = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let found = kernel!(
        libc::SYS_pselect6,
        length,
        reads,
        writes,
        others,
        &raw mut now,
        &raw const masked
    );
    #[cfg(target_arch = "x86_64")]
    if is_refused(found) {
        // Its fields are as wide.
        let now = &raw mut now;
        return kernel!(libc::SYS_select, length, reads, writes, others, now);
    }
    found
}

/// Whether that is no answer which the kernel itself gives to such a call.
#[cfg(target_arch = "x86_64")]
#[inline]
fn is_refused(result: isize) -> bool {
    let error = -(result as c_int);
    let is_own = matches!(
        error,
        libc::EBADF | libc::EFAULT | libc::EINTR | libc::EINVAL | libc::ENOMEM
    );
    result < 0 && !is_own
}

/// Which of `events` `fd` has now, with those that need no asking.
pub(crate) fn events_now(fd: c_int, events: i16) -> i16 {
    let mut list = [pollfd {
        fd,
        events,
        revents: 0,
    }];
    poll_now(&mut list, std::ptr::null());
    list[0].revents
}

/// Whether there is an error that the kernel has not told.
pub(crate) fn has_error(fd: c_int) -> bool {
    events_now(fd, 0) & libc::POLLERR != 0
}

/// Whether the connection has an error for the next call, or neither direction is left.
pub(crate) fn has_failed(fd: c_int) -> bool {
    events_now(fd, 0) != 0
}

/// Whether neither direction is left.
pub(crate) fn has_hung_up(fd: c_int) -> bool {
    events_now(fd, 0) & libc::POLLHUP != 0
}

/// Whether a write would not wait: there is room, or an error.
pub(crate) fn is_writable(fd: c_int) -> bool {
    events_now(fd, libc::POLLOUT) != 0
}
