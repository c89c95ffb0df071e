//! A process that shares a board and is killed within its lock.
#![cfg(not(loom))]

use std::os::fd::AsFd;

use millrace_shm::board::{self, Board};
use millrace_shm::lock::Held;
use millrace_shm::sys;

/// The child is a zombie while its parent waits for the lock: nobody else can reap it.
#[test]
fn a_child_that_nobody_has_waited_for_is_succeeded() {
    let fd = board::create(1).unwrap();
    let board = Board::attach(fd.as_fd()).unwrap();
    let lock = &board.row(0).unwrap().send.lock;
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        lock.lock(sys::thread_id());
        // SAFETY: ends the child at once, with the lock held.
        unsafe { libc::_exit(0) };
    }
    while lock.lock(u32::MAX) == Held::Owned {
        lock.unlock(Held::Owned);
    }
    // SAFETY: our own child.
    let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    assert_eq!(waited, child, "the lock leaves the child to be waited for");
}
