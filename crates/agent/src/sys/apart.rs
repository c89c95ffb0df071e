//! A process that does one thing, and goes on when the one that made it is killed.

use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use millrace_shm::sys::call;
use nix::fcntl::OFlag;
use nix::unistd::{pipe2, write};

/// The stack of a process that does something apart.
const STACK_BYTES: usize = 1 << 20;
/// Whoever sleeps for so long in all, so that no signal wakes it, may do so for ever.
const STUCK_MAX: Duration = Duration::from_secs(2);
/// Until that is looked at.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// So long a process may need to end that has done its work, and one that is killed in the middle.
const END_MAX: Duration = Duration::from_secs(1);
const KILL_MAX: Duration = Duration::from_millis(200);

/// Calls on other programs' files, in the middle of which nothing is half done with the memory. What they still write to it is the worker's
/// own.
const WHOLE_CALLS: [libc::c_long; 14] = [
    libc::SYS_bind,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_ioctl,
    libc::SYS_openat,
    libc::SYS_pidfd_getfd,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// What such a process does, and where it says what came of it.
struct Task<W> {
    work: Option<W>,
    says: OwnedFd,
    /// The descriptors that it needs, in order.
    keeps: Vec<RawFd>,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Worked {
    /// The byte that it came to. `None`: it did not come to its end.
    pub(crate) said: Option<u8>,
    /// It could not be ended. Where this and the byte are missing, it was killed, perhaps while at work on this process's memory.
    pub(crate) left: Option<Left>,
}

/// A process that was killed, and sleeps in the kernel where no signal wakes it: in a call on a file whose owner does not answer. It does
/// nothing more of its own, and this process's memory is whole.
#[derive(Debug)]
pub(crate) struct Left {
    worker: i32,
    /// The kernel may write to it still.
    _stack: Vec<u8>,
}

impl Left {
    pub(crate) fn number(&self) -> i32 {
        self.worker
    }

    /// Whether it has ended after all. To be asked no more then.
    pub(crate) fn has_ended(&self) -> bool {
        let arguments = [self.worker as usize, 0, libc::WNOHANG as usize, 0, 0, 0];
        // SAFETY: no status is asked for.
        unsafe { call(libc::SYS_wait4, arguments) != 0 }
    }
}

/// A duplicate of a socket that was proved. The worker does not close it, but ends with it: whoever had it beside may have let go of it
/// meanwhile, and a close that is the last one waits for as long as its owner has said (SO_LINGER). One at the end of a process does not.
#[derive(Debug)]
pub(crate) struct Borrowed {
    socket: ManuallyDrop<OwnedFd>,
    ends_with_worker: bool,
}

impl Borrowed {
    pub(crate) fn new(socket: OwnedFd, ends_with_worker: bool) -> Borrowed {
        Borrowed {
            socket: ManuallyDrop::new(socket),
            ends_with_worker,
        }
    }
}

impl AsFd for Borrowed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.ends_with_worker {
            // SAFETY: it is used no more.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        }
    }
}

/// Does `work` in a process of its own, which goes on when this one is killed, and returns what it came to. Not done in `patience`, it is
/// killed; so is one that is stuck in a system call.
///
/// It has this process's memory, so that it is made as soon as a thread, and descriptors of its own: of this process's no more than those
/// of `keeps`, and the first three. This process does nothing but wait meanwhile. One that was killed may have been at work on the heap:
/// whoever gets neither a byte nor what is left does little more, and ends.
///
/// # Errors
/// What the kernel says (`EAGAIN`…): no such process could be made.
pub(crate) fn apart<W: FnOnce() -> u8>(
    patience: Duration,
    mut keeps: Vec<RawFd>,
    work: W,
) -> io::Result<Worked> {
    let (said, says) = pipe2(OFlag::O_CLOEXEC)?;
    let mut stack: Vec<u8> = Vec::with_capacity(STACK_BYTES);
    keeps.push(says.as_raw_fd());
    keeps.sort_unstable();
    let mut task = Task {
        work: Some(work),
        says,
        keeps,
    };
    // SAFETY: the end of the allocation, which is as long as that.
    let top = unsafe { stack.as_mut_ptr().add(STACK_BYTES) };
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the stack (which has no alignment to keep: the C library sees to it) and the task are there until the process has ended, or
    // does nothing more of its own.
    let worker = unsafe { libc::clone(perform::<W>, top.cast(), flags, (&raw mut task).cast()) };
    if worker < 0 {
        return Err(io::Error::last_os_error());
    }
    // Its own descriptor is open until it ends. Nothing here may touch `errno` or the heap, which are the worker's, too.
    close_quietly(task.says.as_raw_fd());
    let end = End::of(worker);
    let byte = read_byte(&said, worker, patience);
    let has_ended = byte.is_some() && end.comes_in(END_MAX) || {
        kill(worker);
        end.comes_in(if byte.is_some() { END_MAX } else { KILL_MAX })
    };
    std::mem::forget(task.says);
    let is_whole = || byte.is_some() || Sleep::of(worker).is_some_and(|sleep| sleep.is_whole());
    let mut left = None;
    if has_ended {
        wait(worker);
    } else if is_whole() {
        let _stack = stack;
        left = Some(Left { worker, _stack });
    } else {
        std::mem::forget(stack);
    }
    Ok(Worked { said: byte, left })
}

extern "C" fn perform<W: FnOnce() -> u8>(task: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `apart` passes its task, and touches it no more until this process has ended.
    let task = unsafe { &mut *task.cast::<Task<W>>() };
    close_others(&task.keeps);
    let work = task.work.take();
    let outcome = catch_unwind(AssertUnwindSafe(|| work.map(|work| work())));
    if let Ok(Some(byte)) = outcome {
        let _ = write(&task.says, &[byte]);
    }
    0
}

/// Closes all but the first three descriptors and these. They would be open for as long as this process is stuck: the agent's place, and
/// its clients' sockets. A kernel before 5.9 leaves them.
fn close_others(keeps: &[RawFd]) {
    let mut from = 3;
    for kept in keeps.iter().map(|fd| fd.cast_unsigned()) {
        if kept > from {
            close_range(from, kept - 1);
        }
        from = from.max(kept + 1);
    }
    close_range(from, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    let arguments = [first as usize, last as usize, 0, 0, 0, 0];
    // SAFETY: this process has a table of its own, and uses none of these.
    unsafe { call(libc::SYS_close_range, arguments) };
}

fn close_quietly(fd: RawFd) {
    // SAFETY: the caller's own descriptor, which it uses no more.
    unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

fn kill(worker: i32) {
    let arguments = [worker as usize, libc::SIGKILL as usize, 0, 0, 0, 0];
    // SAFETY: plain arguments; it is a child that nobody has waited for.
    unsafe { call(libc::SYS_kill, arguments) };
}

/// Waits for a process to end. It may be gone already, where children are not waited for.
fn wait(worker: i32) {
    // SAFETY: no status is asked for.
    let wait = || unsafe { call(libc::SYS_wait4, [worker as usize, 0, 0, 0, 0, 0]) };
    while wait() == -(libc::EINTR as isize) {}
}

/// Waits for a descriptor to be readable. Does not touch `errno`.
fn is_readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let timeout = libc::timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        };
        let arguments = [
            &raw mut polled as usize,
            1,
            &raw const timeout as usize,
            0,
            0,
            0,
        ];
        // SAFETY: both are there for the call.
        match unsafe { call(libc::SYS_ppoll, arguments) } {
            error if error == -(libc::EINTR as isize) => {}
            ready => return ready == 1,
        }
    }
}

/// Says when a process ends, where the kernel can (Linux 5.3). Before, it is waited for.
struct End(Option<OwnedFd>);

impl End {
    fn of(worker: i32) -> End {
        End(super::pidfd_open(worker).ok())
    }

    fn comes_in(&self, timeout: Duration) -> bool {
        let pidfd = self.0.as_ref();
        pidfd.is_none_or(|pidfd| is_readable(pidfd.as_fd(), timeout))
    }
}

/// The byte that comes by a pipe, if one comes in time, and its sender is not stuck. Does not touch `errno`.
fn read_byte(pipe: &OwnedFd, worker: i32, patience: Duration) -> Option<u8> {
    let began = Instant::now();
    let mut asleep = Duration::ZERO;
    loop {
        let left = patience.checked_sub(began.elapsed())?;
        if is_readable(pipe.as_fd(), left.min(LOOK_PAUSE)) {
            break;
        }
        // In one call or in many: it is killed in the middle of one, and not when it has just been let go on.
        if Sleep::of(worker).is_some_and(|sleep| sleep.is_whole()) {
            asleep += LOOK_PAUSE;
            if asleep >= STUCK_MAX {
                return None;
            }
        }
    }
    let mut byte = 0u8;
    let arguments = [
        pipe.as_raw_fd() as usize,
        &raw mut byte as usize,
        1,
        0,
        0,
        0,
    ];
    // SAFETY: there is room for one byte.
    (unsafe { call(libc::SYS_read, arguments) } == 1).then_some(byte)
}

/// A system call in which a process sleeps so that no signal wakes it: its number, its arguments, and where it was made, as the kernel
/// writes it (`proc_pid_syscall(5)`).
struct Sleep {
    text: [u8; Self::BYTES],
    bytes: usize,
}

impl Sleep {
    const BYTES: usize = 256;

    /// Touches neither `errno` nor the heap. `None`: it does not sleep like that, or the kernel does not say.
    fn of(worker: i32) -> Option<Sleep> {
        let mut stat = [0; 128];
        let bytes = read_of(worker, "stat", &mut stat)?;
        // The state stands behind the name (`proc_pid_stat(5)`).
        let name_end = stat[..bytes].iter().rposition(|byte| *byte == b')')?;
        if stat.get(name_end + 2) != Some(&b'D') {
            return None;
        }
        let mut text = [0; Self::BYTES];
        let bytes = read_of(worker, "syscall", &mut text)?;
        text[0].is_ascii_digit().then_some(Sleep { text, bytes })
    }

    /// Whether the memory is as it is to be meanwhile.
    fn is_whole(&self) -> bool {
        let mut words = self.text[..self.bytes].split(|byte| *byte == b' ');
        let number = words.next().and_then(|word| std::str::from_utf8(word).ok());
        let number = number.and_then(|word| word.parse().ok());
        number.is_some_and(|number| WHOLE_CALLS.contains(&number))
    }
}

/// Reads the beginning of a file of a process in `/proc`. Touches neither `errno` nor the heap.
fn read_of(worker: i32, name: &str, buffer: &mut [u8]) -> Option<usize> {
    let mut path = [0u8; 64];
    write!(&mut path[..63], "/proc/{worker}/{name}").ok()?;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let arguments = [
        libc::AT_FDCWD as usize,
        path.as_ptr() as usize,
        flags,
        0,
        0,
        0,
    ];
    // SAFETY: the path ends with a zero.
    let made = unsafe { call(libc::SYS_openat, arguments) };
    let made = RawFd::try_from(made).ok().filter(|fd| *fd >= 0)?;
    let arguments = [
        made as usize,
        buffer.as_mut_ptr() as usize,
        buffer.len(),
        0,
        0,
        0,
    ];
    // SAFETY: there is room for as many bytes.
    let count = unsafe { call(libc::SYS_read, arguments) };
    close_quietly(made);
    usize::try_from(count).ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::FromRawFd;

    use super::*;

    /// `include/uapi/linux/userfaultfd.h`.
    const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
    const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;
    const UFFDIO_ZEROPAGE: libc::Ioctl = 0xc020_aa04_u32 as libc::Ioctl;
    const PAGE: usize = 4096;

    /// A page that nobody can read before it is given. `None`: this process may not have such memory.
    fn withheld_page() -> Option<(OwnedFd, usize)> {
        // SAFETY: plain arguments.
        let made = unsafe {
            call(
                libc::SYS_userfaultfd,
                [libc::O_CLOEXEC as usize, 0, 0, 0, 0, 0],
            )
        };
        let made = RawFd::try_from(made).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the kernel has just made this descriptor for this process, and nothing else knows of it.
        let faults = unsafe { OwnedFd::from_raw_fd(made) };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0) };
        let page = page as usize;
        let mut api = [0xaa, 0, 0u64];
        // Missing pages.
        let mut register = [page as u64, PAGE as u64, 1, 0];
        let done = control(&faults, UFFDIO_API, &mut api)
            && control(&faults, UFFDIO_REGISTER, &mut register);
        done.then_some((faults, page))
    }

    fn control(faults: &OwnedFd, request: libc::Ioctl, argument: &mut [u64]) -> bool {
        // SAFETY: as many words as the request has.
        unsafe { libc::ioctl(faults.as_raw_fd(), request, argument.as_mut_ptr()) == 0 }
    }

    #[test]
    fn a_worker_that_waits_for_a_socket_which_is_in_use_for_ever_is_left() {
        let Some((faults, page)) = withheld_page() else {
            eprintln!("not tested: memory that withholds pages takes CAP_SYS_PTRACE");
            return;
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap();
        let fd = near.as_raw_fd();
        let patience = Duration::from_secs(60);
        std::thread::scope(|scope| {
            // SAFETY: the page is mapped until the test has ended.
            let sending = scope.spawn(move || unsafe { libc::send(fd, page as *const _, 1, 0) });
            std::thread::sleep(Duration::from_millis(200));
            let keeps = vec![fd];
            let worked = apart(patience, keeps, || {
                u8::from(super::super::is_over(near.as_fd()))
            })
            .unwrap();
            assert_eq!(worked.said, None);
            let left = worked.left.unwrap();
            assert!(!left.has_ended());
            let mut zeros = [page as u64, PAGE as u64, 0, 0];
            assert!(control(&faults, UFFDIO_ZEROPAGE, &mut zeros));
            assert_eq!(sending.join().unwrap(), 1);
            while !left.has_ended() {
                std::thread::yield_now();
            }
        });
    }
}
