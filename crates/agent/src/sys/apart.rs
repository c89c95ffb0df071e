//! A process that does one thing, and goes on when the one that made it is killed.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use millrace_shm::sys::call;
use nix::fcntl::OFlag;
use nix::unistd::{pipe2, write};

/// The stack of a process that does something apart.
const STACK_BYTES: usize = 1 << 20;

/// What such a process does, and where it says what came of it.
struct Task<W> {
    work: Option<W>,
    says: OwnedFd,
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

/// Does `work` in a process of its own, which goes on when this one is killed, and returns the byte that it came to. `None`: it was killed,
/// or is now, since it was not done in `patience`.
///
/// It has this process's memory, so that it is made as soon as a thread, and descriptors of its own. This process does nothing but
/// wait meanwhile. One that was killed may have been at work on the heap: whoever gets `None` does little more, and ends.
///
/// # Errors
/// What the kernel says (`EAGAIN`…): no such process could be made.
pub(crate) fn apart<W: FnOnce() -> u8>(patience: Duration, work: W) -> io::Result<Option<u8>> {
    let (said, says) = pipe2(OFlag::O_CLOEXEC)?;
    let mut stack: Vec<u8> = Vec::with_capacity(STACK_BYTES);
    let mut task = Task {
        work: Some(work),
        says,
    };
    // SAFETY: the end of the allocation, which is as long as that.
    let top = unsafe { stack.as_mut_ptr().add(STACK_BYTES) };
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    // SAFETY: the stack (which has no alignment to keep: the C library sees to it) and the task are there until the process has ended.
    let worker = unsafe { libc::clone(perform::<W>, top.cast(), flags, (&raw mut task).cast()) };
    if worker < 0 {
        return Err(io::Error::last_os_error());
    }
    // Its own descriptor is open until it ends. Nothing here may touch `errno`, which is the worker's, too.
    close_quietly(task.says.as_raw_fd());
    let byte = read_byte(&said, patience);
    if byte.is_none() {
        // SAFETY: plain arguments; it is a child that nobody has waited for.
        unsafe {
            call(
                libc::SYS_kill,
                [worker as usize, libc::SIGKILL as usize, 0, 0, 0, 0],
            )
        };
    }
    // SAFETY: no status is asked for. It may be gone already, where children are not waited for.
    let wait = || unsafe { call(libc::SYS_wait4, [worker as usize, 0, 0, 0, 0, 0]) };
    while wait() == -(libc::EINTR as isize) {}
    std::mem::forget(task.says);
    Ok(byte)
}

extern "C" fn perform<W: FnOnce() -> u8>(task: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `apart` passes its task, and touches it no more until this process has ended.
    let task = unsafe { &mut *task.cast::<Task<W>>() };
    let work = task.work.take();
    let outcome = catch_unwind(AssertUnwindSafe(|| work.map(|work| work())));
    if let Ok(Some(byte)) = outcome {
        let _ = write(&task.says, &[byte]);
    }
    0
}

fn close_quietly(fd: RawFd) {
    // SAFETY: the caller's own descriptor, which it uses no more.
    unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// The byte that comes by a pipe, if one comes in time. Does not touch `errno`.
fn read_byte(pipe: &OwnedFd, patience: Duration) -> Option<u8> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled = libc::pollfd {
            fd: pipe.as_raw_fd(),
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
            1 => break,
            error if error == -(libc::EINTR as isize) => {}
            _ => return None,
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
