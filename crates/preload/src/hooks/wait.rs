//! `poll`, `select` and `epoll`.

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::epoll::{self, Wait};
use crate::table::{self, Entry};
use crate::{poll as polling, real, user};

/// Milliseconds of a C interface; negative means for ever.
fn from_ms(timeout_ms: c_int) -> Option<u64> {
    u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000)
}

/// A C interface's time-out that may be absent. Nonsense is left to the kernel, which refuses it at once.
fn from_timespec(timeout: *const timespec) -> Option<u64> {
    if timeout.is_null() || !user::can_read(timeout.cast(), size_of::<timespec>()) {
        return None;
    }
    // SAFETY: just found readable.
    let timeout = unsafe { timeout.read() };
    let seconds_ns = u64::try_from(timeout.tv_sec)
        .ok()?
        .checked_mul(1_000_000_000)?;
    seconds_ns.checked_add(u64::try_from(timeout.tv_nsec).ok()?)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    cover!(polls("poll", fds, count as usize, from_ms(timeout_ms)));
    // SAFETY: the program's own arguments.
    polling::poll(fds, count, from_ms(timeout_ms), &mut || unsafe {
        real::poll(fds, count, timeout_ms)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: usize,
) -> c_int {
    cover!(polls(
        "__poll_chk",
        fds,
        count as usize,
        from_ms(timeout_ms)
    ));
    check_room(count, room);
    // SAFETY: the program's own arguments.
    unsafe { poll(fds, count, timeout_ms) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cover!(polls("ppoll", fds, count as usize, from_timespec(timeout)));
    // SAFETY: the program's own arguments.
    let mut sleep = || unsafe { real::ppoll(fds, count, timeout, mask) };
    polling::poll(fds, count, from_timespec(timeout), &mut sleep)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    cover!(polls(
        "__ppoll_chk",
        fds,
        count as usize,
        from_timespec(timeout)
    ));
    check_room(count, room);
    // SAFETY: the program's own arguments.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// A fortified program's promise about its array is broken: it ends, as without us.
fn check_room(count: nfds_t, room: usize) {
    if room / size_of::<pollfd>() < count as usize {
        // SAFETY: does not return.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let timeout_ns = if timeout.is_null() || !user::can_read(timeout.cast(), size_of::<timeval>()) {
        None
    } else {
        // SAFETY: just found readable.
        let value = unsafe { timeout.read() };
        Some(
            value
                .tv_sec
                .max(0)
                .cast_unsigned()
                .saturating_mul(1_000_000_000)
                .saturating_add(value.tv_usec.max(0).cast_unsigned() * 1000),
        )
    };
    cover!(selects("select", read, count, timeout_ns));
    // SAFETY: the program's own arguments.
    polling::select(count, [read, write, except], timeout_ns, &mut || unsafe {
        real::select(count, read, write, except, timeout)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cover!(selects("pselect", read, count, from_timespec(timeout)));
    // SAFETY: the program's own arguments.
    let mut sleep = || unsafe { real::pselect(count, read, write, except, timeout, mask) };
    polling::select(
        count,
        [read, write, except],
        from_timespec(timeout),
        &mut sleep,
    )
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    cover!(touches("epoll_ctl", fd));
    // SAFETY: the program's own arguments.
    unsafe { epoll::control(set, operation, fd, event) }
}

fn wait_on(call: Wait, sleep: &mut dyn FnMut() -> c_int) -> c_int {
    match table::get(call.epoll) {
        Entry::Set(set) => epoll::wait(set, call, sleep),
        _ => sleep(),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
) -> c_int {
    cover!(waits_on("epoll_wait", epoll, from_ms(timeout_ms)));
    let call = Wait {
        epoll,
        events,
        count,
        timeout_ns: from_ms(timeout_ms),
        mask: std::ptr::null(),
    };
    // SAFETY: the program's own arguments.
    wait_on(call, &mut || unsafe {
        real::epoll_wait(epoll, events, count, timeout_ms)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    cover!(waits_on("epoll_pwait", epoll, from_ms(timeout_ms)));
    let call = Wait {
        epoll,
        events,
        count,
        timeout_ns: from_ms(timeout_ms),
        mask,
    };
    // SAFETY: the program's own arguments.
    wait_on(call, &mut || unsafe {
        real::epoll_pwait(epoll, events, count, timeout_ms, mask)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    cover!(waits_on("epoll_pwait2", epoll, from_timespec(timeout)));
    let call = Wait {
        epoll,
        events,
        count,
        timeout_ns: from_timespec(timeout),
        mask,
    };
    // SAFETY: the program's own arguments.
    wait_on(call, &mut || unsafe {
        real::epoll_pwait2(epoll, events, count, timeout, mask)
    })
}
