//! Descriptors that are closed, copied and controlled; processes that fork and end.

use libc::{c_int, c_uint, c_ulong, pid_t};
use millrace_wire::Reason;

use crate::kernel::kernel;
use crate::process::{
    close_range as split_range, copy_descriptor, drop_descriptor, drop_range, instead_of_ours,
    set_nonblocking,
};
use crate::table::{self, Closing, Entry};
use crate::{client, kernel, process, real, thread, uring, user};

/// Our connection to the agent is not the program's: for it, the number is free.
fn is_hidden(fd: c_int) -> bool {
    if client::descriptor() == Some(fd) && !process::is_borrowed() {
        thread::set_errno(libc::EBADF);
        return true;
    }
    false
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    enter!(touches("close", fd));
    if is_hidden(fd) {
        return -1;
    }
    if table::called(fd).is_none() {
        let _closing = drop_descriptor(fd);
        // SAFETY: the program's own arguments.
        return unsafe { real::close(fd) };
    }
    thread::test_cancel();
    // Half of it is done no more than none.
    let _uncancelled = thread::Uncancelled::new();
    let _closing = drop_descriptor(fd);
    // SAFETY: the program's own arguments.
    let result = unsafe { real::close(fd) };
    kernel::note_told();
    result
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close_range(
    first: c_uint,
    last: c_uint,
    flags: c_int,
) -> c_int {
    enter!(touches_all("close_range", first));
    const CLOEXEC: c_int = 4;
    const UNSHARE: c_int = 2;
    if first > last || flags & !(CLOEXEC | UNSHARE) != 0 {
        // SAFETY: plain arguments, which the kernel refuses.
        return unsafe { real::close_range(first, last, flags) };
    }
    if flags & UNSHARE != 0 {
        process::part_descriptors();
    }
    split_range(first, last, &mut |first, last| {
        let _closing = (flags & CLOEXEC == 0).then(|| drop_range(first, last));
        // SAFETY: plain arguments.
        unsafe { real::close_range(first, last, flags) }
    })
}

/// Who comes after it, a child or a program that is started, finds no agent.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn chroot(path: *const libc::c_char) -> c_int {
    process::ready_to_be_confined();
    // SAFETY: the program's own argument.
    let result = unsafe { real::chroot(path) };
    if result == 0 {
        process::enter_sandbox();
    }
    result
}

/// Whether the process may have no more descriptors soon, one to the agent among them.
fn limits_descriptors(resource: c_int, limits: *const libc::rlimit) -> bool {
    resource == libc::RLIMIT_NOFILE as c_int && !limits.is_null()
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn setrlimit(
    resource: c_int,
    limits: *const libc::rlimit,
) -> c_int {
    if limits_descriptors(resource, limits) {
        process::ready_to_be_confined();
    }
    // SAFETY: the program's own arguments.
    unsafe { real::setrlimit(resource, limits) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setrlimit64(resource: c_int, limits: *const libc::rlimit) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { setrlimit(resource, limits) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn prlimit(
    process: pid_t,
    resource: c_int,
    limits: *const libc::rlimit,
    before: *mut libc::rlimit,
) -> c_int {
    if limits_descriptors(resource, limits) {
        process::ready_to_be_confined();
    }
    // SAFETY: the program's own arguments.
    unsafe { real::prlimit(process, resource, limits, before) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn prlimit64(
    process: pid_t,
    resource: c_int,
    limits: *const libc::rlimit,
    before: *mut libc::rlimit,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { prlimit(process, resource, limits, before) }
}

/// Behind these the agent's socket may have another place, or none, or be somebody else's.
pub(super) const HIDES_PATHS: c_int = libc::CLONE_NEWNS | libc::CLONE_NEWUSER;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    if flags & libc::CLONE_FILES != 0 {
        process::part_descriptors();
    }
    if flags & HIDES_PATHS != 0 {
        process::ready_to_be_confined();
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::unshare(flags) };
    if result == 0 && flags & libc::CLONE_NEWPID != 0 {
        process::part_numbers();
    }
    result
}

/// Children will be in another PID namespace, if it is one.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn setns(fd: c_int, kind: c_int) -> c_int {
    let kinds = if kind == 0 {
        kernel::namespace_kind(fd)
    } else {
        kind
    };
    if kinds & HIDES_PATHS != 0 {
        process::ready_to_be_confined();
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::setns(fd, kind) };
    if result == 0 && kinds & libc::CLONE_NEWPID != 0 {
        process::part_numbers();
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    enter!(touches_all("closefrom", first.max(0).cast_unsigned()));
    split_range(
        first.max(0).cast_unsigned(),
        c_uint::MAX,
        &mut |first, last| {
            let _closing = drop_range(first, last);
            // SAFETY: plain arguments.
            match unsafe { real::close_range(first, last, 0) } {
                0 => 0,
                _ => close_one_by_one(first, last),
            }
        },
    );
}

/// What the kernel, before Linux 5.9, or a filter refuses to do at once: `closefrom` cannot fail.
#[cold]
fn close_one_by_one(first: c_uint, last: c_uint) -> c_int {
    kernel::each_descriptor(|fd| {
        if (first..=last).contains(&fd) {
            kernel!(libc::SYS_close, fd);
        }
    });
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    enter!(touches("dup", fd));
    if is_hidden(fd) {
        return -1;
    }
    let entry = table::entry_called(fd);
    // SAFETY: the program's own arguments.
    let copy = unsafe { real::dup(fd) };
    copy_descriptor((fd, entry), copy);
    copy
}

/// `target` is about to be closed by a copy of `fd`, if that is a descriptor at all. What is returned is kept until that is done.
#[must_use]
fn make_way(fd: c_int, target: c_int) -> Option<Closing> {
    table::settle(fd);
    table::settle(target);
    let may_matter = table::exists() && fd != target && !table::are_same(fd, target);
    let is_followed = !matches!(table::get(target), Entry::Unknown);
    let is_done = may_matter
        && kernel::status_flags(fd).is_some()
        // One that is open stays so when the limit comes to lie below it, and is replaced by nothing then.
        && (!is_followed || kernel::may_be_made(target));
    is_done.then(|| drop_descriptor(target)).flatten()
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup2(fd: c_int, target: c_int) -> c_int {
    enter!(touches("dup2", fd));
    if is_hidden(fd) {
        return -1;
    }
    client::move_away(target);
    let _closing = make_way(fd, target);
    let entry = table::get(fd);
    // SAFETY: the program's own arguments.
    let copy = unsafe { real::dup2(fd, target) };
    copy_descriptor((fd, entry), copy);
    copy
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup3(fd: c_int, target: c_int, flags: c_int) -> c_int {
    enter!(touches("dup3", fd));
    if is_hidden(fd) {
        return -1;
    }
    let _closing = (flags & !libc::O_CLOEXEC == 0).then(|| {
        client::move_away(target);
        make_way(fd, target)
    });
    let entry = table::get(fd);
    // SAFETY: the program's own arguments.
    let copy = unsafe { real::dup3(fd, target, flags) };
    copy_descriptor((fd, entry), copy);
    copy
}

/// What the result of `fcntl` means to us. Returns what the program gets.
fn controlled(fd: c_int, entry: Entry, command: c_int, argument: c_int, result: c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        let copy = instead_of_ours(command, argument, result);
        copy_descriptor((fd, entry), copy);
        return copy;
    }
    if command == libc::F_SETFL && result >= 0 {
        set_nonblocking(fd, argument & libc::O_NONBLOCK != 0);
    }
    result
}

/// The program will have a signal whenever bytes come: those that are there must not come again.
fn begin_signals(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        let errno = thread::errno();
        socket.pin(Reason::AsyncIo);
        socket.draw_back(fd);
        thread::set_errno(errno);
    }
}

/// Into what is to be appended to, the kernel splices nothing.
fn leave_append(fd: c_int) {
    if let Some(socket) = table::socket(fd) {
        let errno = thread::errno();
        socket.pin(Reason::Unsupported);
        thread::set_errno(errno);
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    enter!(touches("fcntl", fd));
    if is_hidden(fd) {
        return -1;
    }
    if command == libc::F_SETFL && argument as c_int & libc::O_ASYNC != 0 {
        begin_signals(fd);
    }
    if command == libc::F_SETFL && argument as c_int & libc::O_APPEND != 0 {
        leave_append(fd);
    }
    let entry = table::entry_called(fd);
    if let (Entry::Ring, libc::F_SETFD) = (entry, command)
        && argument as c_int & libc::FD_CLOEXEC == 0
    {
        uring::begin();
    }
    // SAFETY: the program's own arguments; an absent third one is not looked at.
    let result = unsafe { real::fcntl(fd, command, argument) };
    controlled(fd, entry, command, argument as c_int, result)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    enter!(touches("fcntl64", fd));
    // SAFETY: the program's own arguments.
    unsafe { fcntl(fd, command, argument) }
}

const SIOCATMARK: c_ulong = 0x8905;

/// What is unread in the kernel, which `raw` asks, and in the ring: at one moment, whoever reads, or has it sent again, beside us.
fn count_unread(fd: c_int, count: *mut c_int, raw: &mut dyn FnMut() -> c_int) -> c_int {
    let socket = table::called(fd);
    let locked = socket.and_then(|socket| socket.lock_receive(fd));
    let result = raw();
    if let (Some(socket), Some(locked)) = (socket, locked.filter(|_| result == 0)) {
        // SAFETY: the kernel has just written it.
        let of_kernel = unsafe { count.read_unaligned() };
        let in_ring = socket.left_in_ring(fd, &locked.half, of_kernel);
        // SAFETY: as above.
        unsafe { count.write_unaligned(of_kernel.saturating_add(in_ring)) };
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut is_at_mark: c_int = 0;
    // SAFETY: the kernel writes one number.
    match unsafe { ioctl(fd, SIOCATMARK, &raw mut is_at_mark as usize) } {
        0 => is_at_mark,
        failed => failed,
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn ioctl(
    fd: c_int,
    request: c_ulong,
    argument: usize,
) -> c_int {
    if matches!(table::entry_called(fd), Entry::Unknown) && !is_hidden(fd) {
        // It may wait, and is no place for a cancellation: a thread that may be cancelled anywhere stays so.
        // SAFETY: the program's own arguments.
        return unsafe { real::ioctl(fd, request, argument) };
    }
    enter!(touches("ioctl", fd));
    if is_hidden(fd) {
        return -1;
    }
    const FIOASYNC: c_ulong = 0x5452;
    if request == FIOASYNC {
        begin_signals(fd);
    }
    let mut raw = || {
        // SAFETY: the program's own arguments.
        unsafe { real::ioctl(fd, request, argument) }
    };
    if request == libc::FIONREAD {
        return count_unread(fd, argument as *mut c_int, &mut raw);
    }
    let result = raw();
    let Some(socket) = table::socket(fd).filter(|_| result == 0) else {
        return result;
    };
    let value = argument as *mut c_int;
    match request {
        // SAFETY: the kernel has just read it.
        libc::FIONBIO => set_nonblocking(fd, unsafe { value.read_unaligned() } != 0),
        SIOCATMARK
            if socket
                .lock_receive(fd)
                .is_some_and(|locked| locked.half.unread() > 0) =>
        {
            // SAFETY: as above. Unread ring bytes come before any mark.
            unsafe { value.write_unaligned(0) };
        }
        _ => {}
    }
    result
}

fn new_set(make: impl FnOnce() -> c_int) -> c_int {
    process::wake();
    let fd = make();
    if fd >= 0 && !process::is_borrowed() {
        crate::epoll::EpollSet::track(fd);
    }
    fd
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    new_set(|| unsafe { real::epoll_create(size) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    new_set(|| unsafe { real::epoll_create1(flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fork() -> pid_t {
    enter!(touches_all("fork", 0));
    // SAFETY: no arguments.
    process::handled_fork(|| unsafe { real::fork() })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Fork() -> pid_t {
    enter!(touches_all("_Fork", 0));
    // SAFETY: no arguments.
    process::bare_fork(|| unsafe { real::_Fork() })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    thread::set_cancel_type(kind, before)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __register_atfork(
    prepare: usize,
    parent: usize,
    child: usize,
    whose: *mut libc::c_void,
) -> c_int {
    process::watch_forks();
    // SAFETY: the program's own arguments.
    unsafe { real::__register_atfork(prepare, parent, child, whose) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_atfork(prepare: usize, parent: usize, child: usize) -> c_int {
    process::watch_forks();
    // SAFETY: the program's own arguments.
    unsafe { real::pthread_atfork(prepare, parent, child) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    enter!(touches_all("_exit", 0));
    process::end();
    // SAFETY: does not return.
    unsafe { millrace_shm::sys::call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    unreachable!("the process has ended")
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    enter!(touches_all("_Exit", 0));
    // SAFETY: does not return.
    unsafe { _exit(status) }
}

/// Runs when the program ends by `exit` or by returning from `main`.
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = {
    extern "C" fn end() {
        let _ = std::panic::catch_unwind(process::end);
    }
    end
};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn munmap(address: *mut libc::c_void, bytes: usize) -> c_int {
    user::forget();
    // SAFETY: the program's own arguments.
    let answer =
        unsafe { millrace_shm::sys::call(libc::SYS_munmap, [address as usize, bytes, 0, 0, 0, 0]) };
    thread::told(answer) as c_int
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn mprotect(
    address: *mut libc::c_void,
    bytes: usize,
    protection: c_int,
) -> c_int {
    user::forget();
    // SAFETY: the program's own arguments.
    let answer = unsafe {
        millrace_shm::sys::call(
            libc::SYS_mprotect,
            [address as usize, bytes, protection as usize, 0, 0, 0],
        )
    };
    thread::told(answer) as c_int
}
