//! System calls that leave `errno` and the program's hooked functions alone.
//!
//! The preload library replaces `recv`, `poll` or `syscall` of the C library, and programs look at `errno`
//! after their own calls only: what Millrace itself asks of the kernel goes through [`call`].

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

mod clock;
#[cfg(miri)]
mod interpreted;

pub use clock::{monotonic_ns, trust_clock};

/// One system call, as the tests know it that Miri runs.
///
/// # Safety
/// None is needed.
#[cfg(miri)]
pub unsafe fn call(number: libc::c_long, a: [usize; 6]) -> isize {
    interpreted::call(number, a)
}

/// One system call with up to six arguments. Negative results are negated error numbers.
///
/// # Safety
/// As the system call demands of its arguments.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub unsafe fn call(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the x86-64 system call convention; the kernel clobbers rcx and r11 only.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// One system call with up to six arguments. Negative results are negated error numbers.
///
/// # Safety
/// As the system call demands of its arguments.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
pub unsafe fn call(number: libc::c_long, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the AArch64 system call convention.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    result
}

/// Asks for a cache line that will be written soon. A hint: any address will do.
#[inline]
pub fn will_write(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: it changes nothing and never faults; processors that do not know it pass it over.
    unsafe {
        core::arch::asm!("prefetchw byte ptr [{}]", in(reg) place,
            options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = place;
}

/// Asks for a cache line that will be read soon. A hint: any address will do.
#[inline]
pub fn will_read(place: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: it changes nothing and never faults.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(place.cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = place;
}

/// Turns a raw result into a value or an error.
///
/// # Errors
/// The negated error number.
#[inline]
pub fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-(result as i32)))
}

/// Maps `bytes` of `fd`, shared, readable and writable.
///
/// # Errors
/// What `mmap(2)` says.
pub fn map_shared(fd: RawFd, bytes: usize) -> io::Result<NonNull<u8>> {
    map_file(fd, bytes, libc::PROT_READ | libc::PROT_WRITE)
}

/// Maps `bytes` of `fd`, shared, for reading only.
///
/// # Errors
/// What `mmap(2)` says.
pub fn map_read_only(fd: RawFd, bytes: usize) -> io::Result<NonNull<u8>> {
    map_file(fd, bytes, libc::PROT_READ)
}

fn map_file(fd: RawFd, bytes: usize, protection: libc::c_int) -> io::Result<NonNull<u8>> {
    let protection = protection as usize;
    let arguments = [
        0,
        bytes,
        protection,
        libc::MAP_SHARED as usize,
        fd as usize,
        0,
    ];
    // SAFETY: a new mapping at an address of the kernel's choice harms nobody.
    let address = check(unsafe { call(libc::SYS_mmap, arguments) })?;
    NonNull::new(address as *mut u8).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Maps `bytes` of private memory that costs nothing until it is touched.
///
/// # Errors
/// What `mmap(2)` says.
pub fn map_private(bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: as above.
    let address =
        check(unsafe { call(libc::SYS_mmap, [0, bytes, protection, flags, usize::MAX, 0]) })?;
    NonNull::new(address as *mut u8).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Maps `bytes` of `fd`, shared, in place of what is at `base`. Without a descriptor: fresh memory that costs nothing until it is touched.
///
/// # Errors
/// What `mmap(2)` says; then what was there is there still.
///
/// # Safety
/// The range is a mapping of the caller's, and whoever uses it expects any bytes there, at any time.
pub unsafe fn replace_mapping(
    base: NonNull<u8>,
    bytes: usize,
    fd: Option<RawFd>,
) -> io::Result<()> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let (kind, fd) = match fd {
        Some(fd) => (libc::MAP_SHARED, fd as usize),
        None => (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            usize::MAX,
        ),
    };
    let flags = (kind | libc::MAP_FIXED) as usize;
    let arguments = [base.as_ptr() as usize, bytes, protection, flags, fd, 0];
    // SAFETY: the caller's promise.
    check(unsafe { call(libc::SYS_mmap, arguments) }).map(drop)
}

/// Ends a mapping.
///
/// # Safety
/// The range is a mapping of the caller's, and nobody uses it any more.
pub unsafe fn unmap(base: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        call(
            libc::SYS_munmap,
            [base.as_ptr() as usize, bytes, 0, 0, 0, 0],
        )
    };
}

/// Maps the file behind the shared mapping that begins at `base` once more, from the same place in it on: `bytes` bytes, without
/// its descriptor (`mremap(2)` with an old size of zero).
///
/// # Errors
/// What `mremap(2)` says.
pub fn map_again(base: NonNull<u8>, bytes: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MREMAP_MAYMOVE as usize;
    let arguments = [base.as_ptr() as usize, 0, bytes, flags, 0, 0];
    // SAFETY: leaves the old mapping as it is, and makes a new one at an address of the kernel's choice.
    let address = check(unsafe { call(libc::SYS_mremap, arguments) })?;
    NonNull::new(address as *mut u8).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Allocates the pages of a range of a shared mapping, as a write to each of them would.
///
/// # Errors
/// What `madvise(2)` says; a kernel before 5.14 has no such advice, and the pages are touched instead.
///
/// # Safety
/// The range is mapped, and stays so meanwhile.
pub unsafe fn populate(base: NonNull<u8>, bytes: usize) -> io::Result<()> {
    const MADV_POPULATE_WRITE: usize = 23;
    const PAGE: usize = 4096;
    let arguments = [base.as_ptr() as usize, bytes, MADV_POPULATE_WRITE, 0, 0, 0];
    // SAFETY: changes no contents.
    let result = check(unsafe { call(libc::SYS_madvise, arguments) });
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            for offset in (0..bytes).step_by(PAGE) {
                // SAFETY: inside the range; others may use it at the same time.
                let byte = unsafe {
                    &*base
                        .as_ptr()
                        .add(offset)
                        .cast::<std::sync::atomic::AtomicU8>()
                };
                byte.fetch_or(0, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(())
        }
        other => other.map(drop),
    }
}

/// Makes an anonymous file of fixed size without mode bits, so that it cannot be reopened through `/proc`. Its first `allocated` bytes
/// have memory from the start.
///
/// # Errors
/// What `memfd_create`, `ftruncate`, `fallocate`, `fchmod` or `fcntl` say.
pub fn create_sealed(name: &CStr, bytes: usize, allocated: usize) -> io::Result<OwnedFd> {
    let file = create_file(name, bytes, allocated, 0)?;
    add_seals(file.as_raw_fd(), libc::F_SEAL_SEAL)?;
    Ok(file)
}

/// As [`create_sealed`], all of it allocated, but other seals can be added.
///
/// # Errors
/// As [`create_sealed`].
pub fn create_unsealed(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    create_file(name, bytes, bytes, 0)
}

/// Of x86-64 and most others, by default.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Whether [`SEAL_FUTURE_WRITE`] keeps somebody from mapping huge pages for writing. Before Linux 5.13 the kernel took it and did nothing.
#[must_use]
pub fn seal_holds_on_huge_pages() -> bool {
    let Ok(fd) = create_file(c"millrace-trial", HUGE_PAGE_BYTES, 0, libc::MFD_HUGETLB) else {
        return false;
    };
    let mapped = add_seals(fd.as_raw_fd(), SEAL_FUTURE_WRITE)
        .and_then(|()| crate::Mapping::new(fd.as_fd(), HUGE_PAGE_BYTES));
    mapped.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
}

/// As [`create_unsealed`], of huge pages.
///
/// # Errors
/// As [`create_sealed`]; `EINVAL` when the size is no multiple of a huge page's; `ENOSPC` when the machine has too few of them.
pub fn create_of_huge_pages(name: &CStr, bytes: usize) -> io::Result<OwnedFd> {
    if !bytes.is_multiple_of(HUGE_PAGE_BYTES) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    create_file(name, bytes, bytes, libc::MFD_HUGETLB)
}

fn create_file(
    name: &CStr,
    bytes: usize,
    allocated: usize,
    kind: libc::c_uint,
) -> io::Result<OwnedFd> {
    let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | kind) as usize;
    // SAFETY: the name is a C string.
    let fd = check(unsafe {
        call(
            libc::SYS_memfd_create,
            [name.as_ptr() as usize, flags, 0, 0, 0, 0],
        )
    })?;
    // SAFETY: the kernel has just made this descriptor for us.
    let file = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    // SAFETY: plain arguments.
    check(unsafe { call(libc::SYS_ftruncate, [fd, bytes, 0, 0, 0, 0]) })?;
    if allocated != 0 {
        // SAFETY: plain arguments.
        check(unsafe { call(libc::SYS_fallocate, [fd, 0, 0, allocated, 0, 0]) })?;
    }
    // SAFETY: plain arguments.
    check(unsafe { call(libc::SYS_fchmod, [fd, 0, 0, 0, 0, 0]) })?;
    add_seals(fd as RawFd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    Ok(file)
}

/// `F_SEAL_FUTURE_WRITE`, since Linux 5.1: who has not mapped the memory for writing can do so no more.
pub const SEAL_FUTURE_WRITE: libc::c_int = 0x10;

/// Adds seals to a memory file.
///
/// # Errors
/// What `fcntl(2)` says.
pub fn add_seals(fd: RawFd, seals: libc::c_int) -> io::Result<()> {
    let arguments = [
        fd as usize,
        libc::F_ADD_SEALS as usize,
        seals as usize,
        0,
        0,
        0,
    ];
    // SAFETY: plain arguments.
    check(unsafe { call(libc::SYS_fcntl, arguments) }).map(drop)
}

/// Whether `fd` is a memory file that has all these seals.
#[must_use]
pub fn has_seals(fd: RawFd, wanted: libc::c_int) -> bool {
    // SAFETY: plain arguments.
    let seals = unsafe {
        call(
            libc::SYS_fcntl,
            [fd as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0],
        )
    };
    let wanted = wanted as isize;
    seals >= 0 && seals & wanted == wanted
}

/// Whether `fd` is a memory file of exactly `bytes` bytes whose size is sealed.
#[must_use]
pub fn is_sealed_with_size(fd: RawFd, bytes: usize) -> bool {
    if !has_seals(fd, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) {
        return false;
    }
    // SAFETY: lseek to the end of a file that nobody reads by position.
    let end = unsafe {
        call(
            libc::SYS_lseek,
            [fd as usize, 0, libc::SEEK_END as usize, 0, 0, 0],
        )
    };
    end == bytes as isize
}

/// The calling thread's number, as the kernel knows it.
#[must_use]
pub fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_gettid, [0; 6]) as u32 }
}

/// Whether a thread of that number exists in our pid namespace, and may still run.
#[must_use]
pub fn thread_exists(thread: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let result = unsafe { call(libc::SYS_tkill, [thread as usize, 0, 0, 0, 0, 0]) };
    result != -(libc::ESRCH as isize) && !is_unreaped_child(thread)
}

/// Whether a child of ours has ended but has not been waited for: it keeps its number, and whoever waits for what it
/// holds does not get to wait for it. The child stays to be waited for.
fn is_unreaped_child(process: u32) -> bool {
    // SAFETY: integers and unions of integers, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let arguments = [
        libc::P_PID as usize,
        process as usize,
        &raw mut info as usize,
        options as usize,
        0,
        0,
    ];
    // SAFETY: the kernel fills in `info`, which lives long enough.
    let result = unsafe { call(libc::SYS_waitid, arguments) };
    // SAFETY: a success fills in the fields for a child; none found leaves the zero.
    result == 0 && unsafe { info.si_pid() } != 0
}

/// Whether a thread of that number has ended, though nobody has waited for it yet, whoever is to. Takes no descriptor, and asks in our pid
/// namespace: to look into the memory of a thread that has let go of it is no such process. Where that may not be asked the answer is no.
#[must_use]
pub fn has_ended(thread: u32) -> bool {
    let mut byte = 0u8;
    let here = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // Most often there is nothing, which is an error of another kind.
    let there = libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 1,
    };
    let arguments = [
        thread as usize,
        &raw const here as usize,
        1,
        &raw const there as usize,
        1,
        0,
    ];
    // SAFETY: the kernel writes to the byte at most, which lives long enough.
    let result = unsafe { call(libc::SYS_process_vm_readv, arguments) };
    result == -(libc::ESRCH as isize)
}

const MEMBARRIER_CMD_GLOBAL_EXPEDITED: usize = 1 << 1;
const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: usize = 1 << 2;

/// Whether barriers are made and got: 0: not asked yet; 1: no; 2: yes.
static BARRIERS: AtomicU8 = AtomicU8::new(0);

/// Whether this process's threads get the barriers of [`make_barriers`], whoever makes them, and it can make some; asks for it the first
/// time. Linux 4.16.
#[inline]
#[must_use]
pub fn gets_barriers() -> bool {
    #[cold]
    fn ask() -> bool {
        let command = MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
        // SAFETY: plain arguments.
        let asked = unsafe { call(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]) };
        BARRIERS.store(1 + u8::from(asked == 0), Ordering::Relaxed);
        asked == 0
    }
    match BARRIERS.load(Ordering::Relaxed) {
        0 => ask(),
        state => state == 2,
    }
}

/// A full barrier in all running threads of the processes that asked for it. False: a filter of system calls refuses it by now, and
/// [`gets_barriers`] says no from now on.
#[must_use]
pub fn make_barriers() -> bool {
    let arguments = [MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0, 0, 0, 0];
    // SAFETY: plain arguments.
    let is_made = unsafe { call(libc::SYS_membarrier, arguments) } == 0;
    if !is_made {
        BARRIERS.store(1, Ordering::Relaxed);
    }
    is_made
}

/// Lets another runnable thread have the processor.
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Lets any other thread have the processor for a moment, also one that may have it only when nobody else wants it.
pub fn nap() {
    let moment = libc::timespec {
        tv_sec: 0,
        tv_nsec: 50_000,
    };
    // SAFETY: a structure of ours.
    unsafe {
        call(
            libc::SYS_nanosleep,
            [&raw const moment as usize, 0, 0, 0, 0, 0],
        )
    };
}

/// Gives the processor away in the `turn`th turn of a wait for another thread: now and then also to one that a scheduling policy puts
/// behind us, which [`yield_now`] does not.
pub fn give_way(turn: u32) {
    match turn % TURNS_OF_NAP {
        0 => nap(),
        _ => yield_now(),
    }
}

/// A wait naps so often.
const TURNS_OF_NAP: u32 = 64;
