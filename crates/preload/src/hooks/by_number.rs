//! System calls that the program makes by number: those that concern us are what the functions of their names are.

use libc::{c_int, c_long, pid_t, timespec};

use super::programs::installs_filter;
use super::uring::before_clone;
use super::{aio, descriptors, programs, receive, send, sockets, wait};
use crate::{kernel, process, real, table, thread, uring, user};

/// Bytes of a signal set, as the kernel has it.
const SIGNAL_SET_BYTES: usize = 8;

/// The result of a function of ours, each argument in its type. A system call by number is no place where a thread can be cancelled.
macro_rules! call {
    ($function:path, $($argument:expr),*) => {{
        let _uncancelled = thread::Uncancelled::new();
        // SAFETY: the program's own arguments, as it would give them to the function.
        Some(unsafe { $function($($argument as _),*) } as c_long)
    }};
}

type Arguments = [usize; 6];
/// The first members of `struct clone_args` (`include/uapi/linux/sched.h`), from the flags to the stack, each of 64 bits.
type CloneArguments = [usize; 6];

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let arguments = [a, b, c, d, e, f];
    bytes(number, arguments)
        .or_else(|| descriptors_and_options(number, arguments))
        .or_else(|| waits(number, arguments))
        .or_else(|| older(number, arguments))
        .or_else(|| forks(number, arguments))
        .or_else(|| rings(number, arguments))
        .unwrap_or_else(|| {
            before(number, arguments);
            // SAFETY: the program's own arguments.
            unsafe { real::syscall(number, a, b, c, d, e, f) }
        })
}

/// Calls that have no function of ours, or whose functions do more.
fn before(number: c_long, [a, b, c, ..]: Arguments) {
    match number {
        libc::SYS_io_submit => aio::before_submit(b, c as *const *const aio::Request),
        libc::SYS_seccomp if installs_filter(a + 1, c) => process::enter_sandbox(),
        libc::SYS_exit_group => process::end(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => process::expect_bare_child(),
        libc::SYS_clone => before_clone(a),
        libc::SYS_clone3 if user::can_read(a as *const u8, size_of::<u64>()) => {
            // SAFETY: found readable; its first word has the flags.
            before_clone(unsafe { (a as *const usize).read_unaligned() });
        }
        libc::SYS_clone3 if !process::is_off() => process::expect_bare_child(),
        _ => {}
    }
}

/// What makes a child with memory and descriptors of its own is a fork that runs no handlers.
fn forks(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    let (flags, stack) = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => (0, 0),
        libc::SYS_clone => (a, b),
        libc::SYS_clone3 if user::can_read(a as *const u8, size_of::<CloneArguments>()) => {
            // SAFETY: found readable.
            let [flags, .., stack] = unsafe { (a as *const CloneArguments).read_unaligned() };
            (flags, stack)
        }
        _ => return None,
    };
    let has = |flag: c_int| flags & flag as usize != 0;
    if stack != 0 || has(libc::CLONE_VM) || has(libc::CLONE_FILES) || process::is_borrowed() {
        return None;
    }
    if has(libc::CLONE_NEWPID) {
        process::part_numbers();
    }
    let child = process::bare_fork(|| {
        // SAFETY: the program's own arguments.
        unsafe { real::syscall(number, a, b, c, d, e, f) as pid_t }
    });
    if child == 0 && has(descriptors::HIDES_PATHS) {
        process::ready_to_be_confined();
    }
    Some(child.into())
}

fn rings(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    // SAFETY: the program's own arguments.
    let raw = |b, c, d| unsafe { real::syscall(number, a, b, c, d, e, f) };
    match number {
        libc::SYS_io_uring_setup => Some(super::uring::setup(b, || raw(b, c, d))),
        libc::SYS_io_uring_enter => {
            let numbers = [b as u32, c as u32, d as u32];
            let result = uring::enter(a as c_int, numbers, |[b, c, d]| {
                raw(b as usize, c as usize, d as usize) as isize
            });
            Some(result as c_long)
        }
        libc::SYS_io_uring_register => {
            uring::before_register(b as u32, c, d as u32);
            Some(raw(b, c, d))
        }
        _ => None,
    }
}

fn bytes(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    match number {
        libc::SYS_read => call!(receive::read, a, b, c),
        libc::SYS_readv => call!(receive::readv, a, b, c),
        // The kernel has the position in two arguments.
        libc::SYS_preadv2 => call!(receive::preadv2, a, b, c, d, f),
        libc::SYS_recvfrom => call!(receive::recvfrom, a, b, c, d, e, f),
        libc::SYS_recvmsg => call!(receive::recvmsg, a, b, c),
        libc::SYS_recvmmsg => call!(receive::recvmmsg, a, b, c, d, e),
        libc::SYS_write => call!(send::write, a, b, c),
        libc::SYS_writev => call!(send::writev, a, b, c),
        libc::SYS_pwritev2 => call!(send::pwritev2, a, b, c, d, f),
        libc::SYS_sendto => call!(send::sendto, a, b, c, d, e, f),
        libc::SYS_sendmsg => call!(send::sendmsg, a, b, c),
        libc::SYS_sendmmsg => call!(send::sendmmsg, a, b, c, d),
        libc::SYS_sendfile => call!(send::sendfile, a, b, c, d),
        libc::SYS_splice => call!(send::splice, a, b, c, d, e, f),
        _ => None,
    }
}

fn descriptors_and_options(number: c_long, [a, b, c, d, e, _]: Arguments) -> Option<c_long> {
    match number {
        libc::SYS_socket => call!(sockets::socket, a, b, c),
        libc::SYS_listen => call!(sockets::listen, a, b),
        libc::SYS_connect => call!(sockets::connect, a, b, c),
        libc::SYS_accept => call!(sockets::accept, a, b, c),
        libc::SYS_accept4 => call!(sockets::accept4, a, b, c, d),
        libc::SYS_shutdown => call!(sockets::shutdown, a, b),
        libc::SYS_setsockopt => call!(sockets::setsockopt, a, b, c, d, e),
        libc::SYS_getsockopt => call!(sockets::getsockopt, a, b, c, d, e),
        libc::SYS_getpeername => call!(sockets::getpeername, a, b, c),
        libc::SYS_close => call!(descriptors::close, a),
        libc::SYS_close_range => call!(descriptors::close_range, a, b, c),
        libc::SYS_dup => call!(descriptors::dup, a),
        libc::SYS_dup3 => call!(descriptors::dup3, a, b, c),
        libc::SYS_fcntl => call!(descriptors::fcntl, a, b, c),
        libc::SYS_ioctl => call!(descriptors::ioctl, a, b, c),
        // The C library keeps two for itself.
        libc::SYS_rt_sigaction
            if d == SIGNAL_SET_BYTES && !(32..=33).contains(&a) && table::exists() =>
        {
            Some(super::signals::by_number(a as c_int, b, c) as c_long)
        }
        libc::SYS_chroot => call!(descriptors::chroot, a),
        libc::SYS_setrlimit => call!(descriptors::setrlimit, a, b),
        libc::SYS_prlimit64 => call!(descriptors::prlimit, a, b, c, d),
        libc::SYS_setns => call!(descriptors::setns, a, b),
        libc::SYS_unshare => call!(descriptors::unshare, a),
        libc::SYS_prctl => call!(programs::prctl, a, b, c, d, e),
        libc::SYS_munmap => call!(descriptors::munmap, a, b),
        libc::SYS_mprotect => call!(descriptors::mprotect, a, b, c),
        libc::SYS_execve => call!(programs::execve, a, b, c),
        libc::SYS_execveat => call!(programs::execveat, a, b, c, d, e),
        _ => None,
    }
}

fn waits(number: c_long, [a, b, c, d, e, f]: Arguments) -> Option<c_long> {
    if number == libc::SYS_epoll_create1 {
        return call!(descriptors::epoll_create1, a);
    }
    if !table::exists() {
        return None;
    }
    match number {
        libc::SYS_epoll_ctl => call!(wait::epoll_ctl, a, b, c, d),
        libc::SYS_epoll_pwait if is_mask(e, f) => call!(wait::epoll_pwait, a, b, c, d, e),
        libc::SYS_epoll_pwait2 if is_mask(e, f) => call!(wait::epoll_pwait2, a, b, c, d, e),
        libc::SYS_ppoll if is_mask(d, e) => {
            let remaining = Remaining::of(c);
            let result = call!(wait::ppoll, a, b, c, d);
            remaining.tell();
            result
        }
        libc::SYS_pselect6 => {
            let mask = mask_at(f)?;
            let remaining = Remaining::of(e);
            let result = call!(wait::pselect, a, b, c, d, e, mask);
            remaining.tell();
            result
        }
        _ => None,
    }
}

/// Calls that newer processors' kernels do not have.
#[cfg(target_arch = "x86_64")]
fn older(number: c_long, [a, b, c, d, e, _]: Arguments) -> Option<c_long> {
    match number {
        libc::SYS_dup2 => call!(descriptors::dup2, a, b),
        libc::SYS_poll => call!(wait::poll, a, b, c),
        libc::SYS_select => call!(wait::select_by_number, a, b, c, d, e),
        libc::SYS_epoll_create => call!(descriptors::epoll_create, a),
        libc::SYS_epoll_wait => call!(wait::epoll_wait, a, b, c, d),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_number: c_long, _arguments: Arguments) -> Option<c_long> {
    None
}

/// The signal mask that stands at `place` with its length. None: the kernel is to say what is wrong with it.
fn mask_at(place: usize) -> Option<usize> {
    let place = place as *const [usize; 2];
    if place.is_null() {
        return Some(0);
    }
    if !user::can_read(place.cast(), size_of::<[usize; 2]>()) {
        return None;
    }
    // SAFETY: just found readable.
    let [mask, bytes] = unsafe { place.read_unaligned() };
    is_mask(mask, bytes).then_some(mask)
}

/// Whether the kernel would take these as a signal mask.
fn is_mask(mask: usize, bytes: usize) -> bool {
    mask == 0 || bytes == SIGNAL_SET_BYTES
}

/// Nanoseconds of a second. The longest time-outs have more of them than 64 bits hold.
const NS: i128 = 1_000_000_000;

/// The kernel says how much of a time-out was left, which the functions keep to themselves.
struct Remaining {
    timeout: *mut timespec,
    /// None: nothing is said.
    deadline_ns: Option<i128>,
}

impl Remaining {
    fn of(timeout: usize) -> Remaining {
        let timeout = timeout as *mut timespec;
        let deadline_ns = if user::can_write(timeout.cast(), size_of::<timespec>()) {
            // SAFETY: just found readable.
            let given = unsafe { timeout.read_unaligned() };
            // The kernel refuses such a time-out, and says nothing.
            let is_refused = given.tv_sec < 0 || !(0..NS).contains(&i128::from(given.tv_nsec));
            let given_ns = i128::from(given.tv_sec) * NS + i128::from(given.tv_nsec);
            // The kernel counts no further either.
            let deadline_ns = given_ns + i128::from(kernel::monotonic_ns());
            (!is_refused).then(|| deadline_ns.min(i128::from(i64::MAX) * NS))
        } else {
            None
        };
        Remaining {
            timeout,
            deadline_ns,
        }
    }

    fn tell(self) {
        let Some(deadline_ns) = self.deadline_ns else {
            return;
        };
        let left = (deadline_ns - i128::from(kernel::monotonic_ns())).max(0);
        // SAFETY: found writable before; the program gave it to this call.
        unsafe {
            self.timeout.write_unaligned(timespec {
                tv_sec: i64::try_from(left / NS).unwrap_or(i64::MAX),
                tv_nsec: (left % NS) as i64,
            });
        }
    }
}
