//! System calls.

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::ledger::Ledger;

/// Events of one wait.
const EVENTS: usize = 64;

/// What a descriptor is ready for, or watched for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ready {
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

pub(crate) fn map(file: &File) -> Result<&'static Ledger> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let place = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Ledger>(),
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if place == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    // SAFETY: mapped for good, long enough, aligned to a page, and every bit pattern is a value of its atomic words.
    Ok(unsafe { &*place.cast() })
}

fn count(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}

/// Receives by one of the calls that can; `way` chooses.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8], way: u64) -> Result<usize> {
    let (start, length) = (buffer.as_mut_ptr().cast(), buffer.len());
    // SAFETY: the buffer is ours to write for that length.
    count(match way % 3 {
        0 => unsafe { libc::recv(fd, start, length, 0) },
        1 => unsafe { libc::read(fd, start, length) },
        _ => {
            let (first, second) = buffer.split_at_mut(length / 2);
            let parts = [first, second].map(|part| libc::iovec {
                iov_base: part.as_mut_ptr().cast(),
                iov_len: part.len(),
            });
            unsafe { libc::readv(fd, parts.as_ptr(), 2) }
        }
    })
}

/// Sends by one of the calls that can; `way` chooses.
pub(crate) fn transmit(fd: RawFd, bytes: &[u8], way: u64) -> Result<usize> {
    let (start, length) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the bytes can be read for that length.
    count(match way % 3 {
        0 => unsafe { libc::send(fd, start, length, libc::MSG_NOSIGNAL) },
        1 => unsafe { libc::write(fd, start, length) },
        _ => {
            let (first, second) = bytes.split_at(length / 2);
            let parts = [first, second].map(|part| libc::iovec {
                iov_base: part.as_ptr().cast_mut().cast(),
                iov_len: part.len(),
            });
            unsafe { libc::writev(fd, parts.as_ptr(), 2) }
        }
    })
}

pub(crate) fn close(fd: RawFd) {
    // SAFETY: a number; whoever owns it is in a process that never uses it again.
    unsafe { libc::close(fd) };
}

pub(crate) fn fork() -> i32 {
    // SAFETY: callers have a single thread.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork: {}", Error::last_os_error());
    child
}

pub(crate) fn wait_for(child: i32) {
    // SAFETY: no status is asked for.
    while unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } < 0
        && Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    {}
}

/// Children that end leave nothing behind.
pub(crate) fn ignore_children() {
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Children that end can be waited for.
pub(crate) fn default_children() {
    // SAFETY: no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Milliseconds for a wait, rounded up; -1 is for ever.
fn milliseconds(patience: Option<Duration>) -> i32 {
    patience.map_or(-1, |patience| {
        i32::try_from(patience.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    })
}

pub(crate) fn poll(
    wants: impl Iterator<Item = (RawFd, Ready)>,
    patience: Option<Duration>,
) -> Vec<(RawFd, Ready)> {
    let mut entries: Vec<libc::pollfd> = wants
        .map(|(fd, want)| libc::pollfd {
            fd,
            events: if want.readable { libc::POLLIN } else { 0 }
                | if want.writable { libc::POLLOUT } else { 0 },
            revents: 0,
        })
        // Errors and hang-ups would be reported all the same, again and again.
        .filter(|entry| entry.events != 0)
        .collect();
    // SAFETY: a vector of that length.
    unsafe {
        libc::poll(
            entries.as_mut_ptr(),
            entries.len() as libc::nfds_t,
            milliseconds(patience),
        )
    };
    let broken = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
    entries
        .iter()
        .filter(|entry| entry.revents != 0)
        .map(|entry| {
            let has = |bits| entry.revents & bits != 0;
            (
                entry.fd,
                Ready {
                    readable: has(libc::POLLIN | broken),
                    writable: has(libc::POLLOUT | broken),
                },
            )
        })
        .collect()
}

/// An epoll set. Closing a descriptor takes it out.
pub(crate) struct EpollSet(OwnedFd);

impl EpollSet {
    pub(crate) fn new() -> EpollSet {
        // SAFETY: a new descriptor, checked below.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0, "no epoll set: {}", Error::last_os_error());
        // SAFETY: the kernel has just made it for us.
        EpollSet(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Watches a descriptor for the first time, or after [`EpollSet::remove`].
    pub(crate) fn add(&self, fd: RawFd, want: Ready, edge: bool) {
        self.control(libc::EPOLL_CTL_ADD, fd, want, edge);
    }

    pub(crate) fn modify(&self, fd: RawFd, want: Ready) {
        self.control(libc::EPOLL_CTL_MOD, fd, want, false);
    }

    pub(crate) fn remove(&self, fd: RawFd) {
        self.control(libc::EPOLL_CTL_DEL, fd, Ready::default(), false);
    }

    fn control(&self, operation: i32, fd: RawFd, want: Ready, edge: bool) {
        let mut bits = if edge { libc::EPOLLET } else { 0 };
        bits |= if want.readable { libc::EPOLLIN } else { 0 };
        bits |= if want.writable { libc::EPOLLOUT } else { 0 };
        let mut event = libc::epoll_event {
            events: bits.cast_unsigned(),
            u64: u64::from(fd.cast_unsigned()),
        };
        // SAFETY: the event is ours.
        let result = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &raw mut event) };
        assert_eq!(result, 0, "epoll_ctl: {}", Error::last_os_error());
    }

    pub(crate) fn wait(&self, patience: Option<Duration>) -> Vec<(RawFd, Ready)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: an array of that length.
        let found = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS as i32,
                milliseconds(patience),
            )
        };
        let broken = libc::EPOLLERR | libc::EPOLLHUP;
        events[..usize::try_from(found).unwrap_or(0)]
            .iter()
            .map(|event| {
                let (bits, number) = (event.events.cast_signed(), event.u64);
                let has = |wanted: i32| bits & wanted != 0;
                let ready = Ready {
                    readable: has(libc::EPOLLIN | broken),
                    writable: has(libc::EPOLLOUT | broken),
                };
                (number as RawFd, ready)
            })
            .collect()
    }
}
