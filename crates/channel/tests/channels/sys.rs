//! Forked children, and tokio's loop.

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
