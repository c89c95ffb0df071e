//! As much of a kernel as the tests need under Miri, which interprets programs and knows no system calls in assembler.
//!
//! A memory file is mapped in one place only, and stays.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::{HashMap, HashSet};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, PoisonError};

const PAGE: usize = 4096;

/// A memory file: where it is mapped, how long it is, and its seals.
#[derive(Default)]
struct File {
    base: usize,
    bytes: usize,
    seals: usize,
}

#[derive(Default)]
struct Kernel {
    files: HashMap<usize, File>,
    threads: HashSet<u32>,
}

static KERNEL: LazyLock<Mutex<Kernel>> = LazyLock::new(Mutex::default);
static THREADS: AtomicU32 = AtomicU32::new(0);

struct Thread(u32);

impl Drop for Thread {
    fn drop(&mut self) {
        kernel(|kernel| kernel.threads.remove(&self.0));
    }
}

thread_local! {
    static THREAD: Thread = {
        let id = THREADS.fetch_add(1, Relaxed) + 1;
        kernel(|kernel| kernel.threads.insert(id));
        Thread(id)
    };
}

fn kernel<T>(work: impl FnOnce(&mut Kernel) -> T) -> T {
    work(&mut KERNEL.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Zeroed memory for good.
fn memory(bytes: usize) -> usize {
    let layout = Layout::from_size_align(bytes, PAGE).expect("a size");
    // SAFETY: nobody asks for no bytes.
    unsafe { alloc_zeroed(layout) }.expose_provenance()
}

/// One system call; see [`super::call`].
pub(super) fn call(number: libc::c_long, a: [usize; 6]) -> isize {
    let error = |error: i32| -(error as isize);
    match number {
        libc::SYS_memfd_create => {
            let file = std::fs::File::open("/dev/null").expect("a descriptor");
            let fd = file.into_raw_fd() as usize;
            kernel(|kernel| kernel.files.insert(fd, File::default()));
            fd as isize
        }
        libc::SYS_gettid => THREAD.with(|thread| thread.0 as isize),
        libc::SYS_tkill if kernel(|kernel| kernel.threads.contains(&(a[0] as u32))) => 0,
        libc::SYS_tkill => error(libc::ESRCH),
        libc::SYS_waitid => error(libc::ECHILD),
        libc::SYS_sched_yield => {
            std::thread::yield_now();
            0
        }
        libc::SYS_mmap if a[3] & libc::MAP_FIXED as usize != 0 => error(libc::EINVAL),
        libc::SYS_mmap if a[3] & libc::MAP_ANONYMOUS as usize != 0 => memory(a[1]) as isize,
        libc::SYS_mmap => of_file(a[4], |file| file.base as isize),
        libc::SYS_mremap => kernel(|kernel| {
            let found = kernel.files.values().find(|file| file.base == a[0]);
            found.map_or(error(libc::EFAULT), |file| file.base as isize)
        }),
        libc::SYS_ftruncate => of_file(a[0], |file| {
            (file.base, file.bytes) = (memory(a[1]), a[1]);
            0
        }),
        libc::SYS_fcntl if a[1] == libc::F_GET_SEALS as usize => {
            of_file(a[0], |file| file.seals as isize)
        }
        libc::SYS_fcntl => of_file(a[0], |file| {
            file.seals |= a[2];
            0
        }),
        libc::SYS_lseek => of_file(a[0], |file| file.bytes as isize),
        libc::SYS_munmap | libc::SYS_madvise | libc::SYS_fallocate | libc::SYS_fchmod => 0,
        _ => error(libc::ENOSYS),
    }
}

fn of_file(fd: usize, work: impl FnOnce(&mut File) -> isize) -> isize {
    kernel(|kernel| {
        kernel
            .files
            .get_mut(&fd)
            .map_or(-(libc::EBADF as isize), work)
    })
}
