//! `poll`, `select` and `epoll`.

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::epoll::{self, Wait};
use crate::table::{self, Entry};
use crate::{c_library, kernel, poll as polling, real, user};

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

/// Whether the kernel refuses a time-out, or a mask, before it looks at anything.
fn is_refused(timeout: *const timespec, mask: *const sigset_t) -> bool {
    // Those of the kernel have 64 bits.
    if !mask.is_null() && !user::can_read(mask.cast(), 8) {
        return true;
    }
    if timeout.is_null() || !user::can_read(timeout.cast(), size_of::<timespec>()) {
        return !timeout.is_null();
    }
    // SAFETY: just found readable.
    let timeout = unsafe { timeout.read() };
    timeout.tv_sec < 0 || !(0..1_000_000_000).contains(&timeout.tv_nsec)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
) -> c_int {
    enter!(polls("poll", fds, count as usize, from_ms(timeout_ms)));
    // SAFETY: the program's own arguments.
    let mut sleep = || unsafe { real::poll(fds, count, timeout_ms) };
    let timeout_ns = from_ms(timeout_ms);
    polling::poll(fds, count, timeout_ns, std::ptr::null(), &mut sleep)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    room: usize,
) -> c_int {
    enter!(polls(
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
    enter!(polls("ppoll", fds, count as usize, from_timespec(timeout)));
    // SAFETY: the program's own arguments.
    let mut sleep = || unsafe { real::ppoll(fds, count, timeout, mask) };
    if is_refused(timeout, mask) {
        return sleep();
    }
    polling::poll(fds, count, from_timespec(timeout), mask, &mut sleep)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    enter!(polls(
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
    // SAFETY: the program's own arguments.
    let own = || unsafe { real::select(count, read, write, except, timeout) };
    select_by(own, count, [read, write, except], timeout)
}

/// The system call. Unlike the C library, it touches no time-out that is out of reach.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe extern "C-unwind" fn select_by_number(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let own = || {
        let answer = kernel::kernel!(libc::SYS_select, count, read, write, except, timeout);
        crate::thread::told(answer) as c_int
    };
    select_by(own, count, [read, write, except], timeout)
}

fn select_by(
    own: impl Fn() -> c_int,
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: *mut timeval,
) -> c_int {
    let Some(patience) = Patience::of(timeout) else {
        return own();
    };
    enter!(selects("select", sets[0], count, patience.given_ns()));
    let mut slept = false;
    let mut sleep = || {
        slept = true;
        own()
    };
    let given_ns = patience.given_ns();
    let result = polling::select(count, sets, given_ns, std::ptr::null(), &mut sleep);
    if !slept {
        patience.tell();
    }
    result
}

/// The time-out of `select`, of which the kernel says what is left.
struct Patience {
    timeout: *mut timeval,
    given_ns: u64,
    begun_ns: u64,
}

impl Patience {
    /// None: it is refused.
    fn of(timeout: *mut timeval) -> Option<Patience> {
        if timeout.is_null() {
            return Some(Patience {
                timeout,
                given_ns: 0,
                begun_ns: 0,
            });
        }
        if !user::can_read(timeout.cast(), size_of::<timeval>()) {
            return None;
        }
        // SAFETY: just found readable.
        let value = unsafe { timeout.read() };
        let seconds = u64::try_from(value.tv_sec).ok()?;
        let microseconds = u64::try_from(value.tv_usec).ok()?;
        let of_seconds = seconds.saturating_mul(1_000_000_000);
        Some(Patience {
            timeout,
            given_ns: of_seconds.saturating_add(microseconds.saturating_mul(1000)),
            begun_ns: kernel::monotonic_ns(),
        })
    }

    fn given_ns(&self) -> Option<u64> {
        (!self.timeout.is_null()).then_some(self.given_ns)
    }

    fn tell(&self) {
        if self.timeout.is_null() || c_library::is_musl() {
            return;
        }
        let passed_ns = kernel::monotonic_ns().saturating_sub(self.begun_ns);
        let left_ns = self.given_ns.saturating_sub(passed_ns);
        let left = timeval {
            tv_sec: (left_ns / 1_000_000_000).cast_signed(),
            tv_usec: (left_ns % 1_000_000_000 / 1000).cast_signed(),
        };
        if !user::can_write(self.timeout.cast(), size_of::<timeval>()) {
            // The kernel does not mind.
            return;
        }
        // SAFETY: just found writable; the program gave it to this call.
        unsafe { self.timeout.write(left) };
    }
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
    enter!(selects("pselect", read, count, from_timespec(timeout)));
    // SAFETY: the program's own arguments.
    let mut sleep = || unsafe { real::pselect(count, read, write, except, timeout, mask) };
    if is_refused(timeout, mask) {
        return sleep();
    }
    let sets = [read, write, except];
    polling::select(count, sets, from_timespec(timeout), mask, &mut sleep)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    enter!(touches("epoll_ctl", fd));
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
    enter!(waits_on("epoll_wait", epoll, from_ms(timeout_ms)));
    let call = Wait {
        epoll,
        events,
        count,
        timeout_ns: from_ms(timeout_ms),
        mask: std::ptr::null(),
        is_own: false,
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
    enter!(waits_on("epoll_pwait", epoll, from_ms(timeout_ms)));
    let call = Wait {
        epoll,
        events,
        count,
        timeout_ns: from_ms(timeout_ms),
        mask,
        is_own: false,
    };
    // SAFETY: the program's own arguments.
    let mut sleep = || unsafe { real::epoll_pwait(epoll, events, count, timeout_ms, mask) };
    if is_refused(std::ptr::null(), mask) {
        return sleep();
    }
    wait_on(call, &mut sleep)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    enter!(waits_on("epoll_pwait2", epoll, from_timespec(timeout)));
    let call = Wait {
        epoll,
        events,
        count,
        timeout_ns: from_timespec(timeout),
        mask,
        is_own: false,
    };
    // SAFETY: the program's own arguments.
    let mut sleep = || unsafe { real::epoll_pwait2(epoll, events, count, timeout, mask) };
    if is_refused(timeout, mask) {
        return sleep();
    }
    wait_on(call, &mut sleep)
}
