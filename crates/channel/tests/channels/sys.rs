//! Forked children, a filter of system calls, and tokio's loop.

use std::io::Read;
use std::os::fd::AsRawFd;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// What `asked` says in a child of this process.
pub(crate) fn in_a_child(asked: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes system calls of its own only, and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let code = i32::from(!asked());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => {
            waitpid(child, None).unwrap() == WaitStatus::Exited(child, 0)
        }
    }
}

/// A child that lives until its standard input ends.
pub(crate) fn standing_child() -> Pid {
    // SAFETY: the child makes system calls of its own only, and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            wait_for_end_of_input();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => child,
    }
}

pub(crate) fn wait_for_end_of_input() {
    while std::io::stdin()
        .read(&mut [0])
        .is_ok_and(|count| count != 0)
    {}
}

/// Among what the loop of this thread waits for.
pub(crate) fn watch<T: AsRawFd>(participant: T) -> AsyncFd<T> {
    // SAFETY: A participant's descriptor stays open, and the same, until it is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(participant, Interest::READABLE) };
    watched.ok().unwrap()
}

/// From now on the kernel makes no barriers for this thread.
pub(crate) fn refuse_barriers() {
    const NUMBER: u32 = 0;
    let step = |code: u32, jt, jf, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_membarrier as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: both are of this thread alone; the program is whole, and is copied by the kernel.
    let is_set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                0,
                &raw const program,
            ) == 0
    };
    assert!(is_set);
}
