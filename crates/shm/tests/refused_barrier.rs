//! A sleeper whose barrier is refused, by a filter that comes after it was promised, does not sleep that time, and promises none any more.
//! In a process of its own: what the kernel refuses is known of the whole process.
#![allow(unsafe_code, reason = "a filter of system calls")]
#![cfg(all(not(loom), not(miri)))]

use std::os::fd::AsFd;
use std::sync::Arc;

use millrace_shm::link::{self, Link, SubscribeEnd};
use millrace_shm::sys;

#[test]
fn a_promise_that_cannot_be_kept_is_no_sleep() {
    if !sys::gets_barriers() {
        eprintln!("not tested: this kernel makes no barriers");
        return;
    }
    let memory = link::create(4, 1).unwrap();
    let link = Arc::new(Link::attach(memory.as_fd(), 4, 1).unwrap());
    let mut end = SubscribeEnd::new(link, 0, false);
    refuse_barriers();
    assert!(!end.sleep(), "the other end goes by a promise");
    assert!(!sys::gets_barriers());
    assert!(end.sleep(), "nothing is there, and nothing was promised");
}

/// From now on the kernel makes no barriers for this thread.
fn refuse_barriers() {
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
