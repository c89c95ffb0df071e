//! The system calls that the standard library does not offer; all of this crate's `unsafe`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Set by the signal handler, read by whoever waits.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    /// With status 0.
    pub success: bool,
    /// Its status; None: a signal ended it.
    pub status: Option<u8>,
    /// What it and the children it waited for have used.
    pub processor: Times,
}

/// Processor time, in the program and in the kernel for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// In the program.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
}

impl Times {
    /// Both together.
    #[must_use]
    pub fn total(self) -> Duration {
        self.user + self.system
    }

    /// What has been used since it was `earlier`.
    #[must_use]
    pub fn since(self, earlier: Times) -> Times {
        Times {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

impl std::iter::Sum for Times {
    fn sum<I: Iterator<Item = Times>>(times: I) -> Times {
        times.fold(Times::default(), |sum, each| Times {
            user: sum.user + each.user,
            system: sum.system + each.system,
        })
    }
}

extern "C" fn note_interrupt(_signal: libc::c_int) {
    // Relaxed: the flag guards no other data.
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on SIGINT, SIGTERM and SIGHUP interrupt waiting instead of ending the process, so that
/// everything that was started can be stopped and removed. What is ignored (`nohup`) stays ignored.
pub fn catch_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: a zeroed sigaction is a valid one: default action, empty mask, no flags (no
        // SA_RESTART, so that poll returns).
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: `action` lives across the call.
        unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        if action.sa_sigaction == libc::SIG_IGN {
            continue;
        }
        action.sa_sigaction = note_interrupt as *const () as usize;
        // SAFETY: `action` lives across the call, and the handler only stores to an atomic.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Whether a signal asked us to stop.
pub fn interrupted() -> bool {
    // Relaxed: the flag guards no other data.
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Orphans among our descendants become our children, so that they can be found and ended.
pub fn adopt_orphans() {
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// The command's process gets a group of its own (Ctrl-C reaches us alone), and SIGTERM when we die.
pub fn bind_to_parent(command: &mut Command) {
    command.process_group(0);
    die_with_parent(command, libc::SIGTERM);
}

/// The command's process gets `signal` when we die.
pub fn die_with_parent(command: &mut Command, signal: i32) {
    let set = move || {
        // SAFETY: prctl with numbers only is async-signal-safe.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // SAFETY: the closure makes one async-signal-safe call and does not allocate.
    unsafe { command.pre_exec(set) };
}

/// Sends a signal to a process, or with a negative number to a group. A process that is gone is no error.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: plain numbers.
    unsafe { libc::kill(pid, signal) };
}

/// Waits for a child to end, at most `timeout`; `None` when it has not, or when a signal interrupted us.
pub fn wait_child(pid: i32, timeout: Duration) -> io::Result<Option<Exit>> {
    // SAFETY: plain numbers; the result is a new descriptor or -1.
    let number = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let number = RawFd::try_from(number).unwrap_or(-1);
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made just now and is nobody else's.
    let watched = unsafe { OwnedFd::from_raw_fd(number) };
    let mut entry = libc::pollfd {
        fd: watched.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let limit = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one valid entry.
    if unsafe { libc::poll(&raw mut entry, 1, limit) } < 1 {
        return Ok(None);
    }
    reap(pid)
}

/// Collects a child that has ended (`-1`: any); `None` when there is none.
pub fn reap(pid: i32) -> io::Result<Option<Exit>> {
    let mut status = 0;
    // SAFETY: rusage is numbers only: zeroes are valid.
    let mut usage: libc::rusage = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: both pointers are to live variables.
    match unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        _ => Ok(Some(Exit {
            success: libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            status: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status) as u8),
            processor: Times {
                user: duration(usage.ru_utime),
                system: duration(usage.ru_stime),
            },
        })),
    }
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

/// Processor time of all threads, past and present, of another process, to the nanosecond.
pub fn processor_time(pid: i32) -> Option<Duration> {
    let mut clock = 0;
    // SAFETY: `clock` is a live variable.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a live variable; a clock of a dead process is refused.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    Some(Duration::new(
        u64::try_from(time.tv_sec).ok()?,
        u32::try_from(time.tv_nsec).ok()?,
    ))
}

/// The calling thread runs on this processor only. Whether it may.
pub fn run_on(processor: usize) -> bool {
    // SAFETY: a set of processors is bits only: zeroes are valid.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    if processor >= 8 * size_of::<libc::cpu_set_t>() {
        return false;
    }
    // SAFETY: the number is within the set.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: `set` lives across the call, and its size is told.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0 }
}

/// Ticks in a second of the times in `/proc/PID/stat`.
pub fn ticks_per_second() -> u64 {
    // SAFETY: a plain number.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

/// Two numbers of 64 bits in a new file, as memory until the process ends.
///
/// # Errors
/// The file cannot be made, or not be mapped.
pub fn counters(path: &Path) -> io::Result<[&'static AtomicU64; 2]> {
    const BYTES: usize = 2 * size_of::<AtomicU64>();
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true);
    let file = file.open(path)?;
    file.set_len(BYTES as u64)?;
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping where the kernel likes, of a descriptor that is open; nothing that is there is replaced.
    let place = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            BYTES,
            access,
            shared,
            file.as_raw_fd(),
            0,
        )
    };
    if place == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let first: *mut u64 = place.cast();
    // SAFETY: the second number begins within the mapping, which has `BYTES`.
    let second = unsafe { first.add(1) };
    // SAFETY: pages are aligned for the number, and the mapping is never taken away; atomics may be changed by others. Whoever shortened
    // the file would end us by SIGBUS, and read or write nothing else.
    let counter = |place: *mut u64| unsafe { AtomicU64::from_ptr(place) };
    Ok([counter(first), counter(second)])
}

/// Our effective user number.
pub fn effective_user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Raises the limit on open descriptors to the hard limit, and says what it is now.
pub fn raise_descriptor_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a live variable.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a live variable.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    limit.rlim_cur
}
