//! Waiting for descriptors: `poll`, `select` and `epoll` in all their forms.

use super::{Answer, Errno, Fd, answer, count};
use libc::{c_int, c_uint, c_ulong, nfds_t, size_t};
use std::ptr::{null, null_mut};

// The fortified variants of poll.
unsafe extern "C" {
    fn __poll_chk(items: *mut libc::pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int;
    fn __ppoll_chk(
        items: *mut libc::pollfd,
        n: nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
        room: size_t,
    ) -> c_int;
}

/// A number of milliseconds as `timespec`; `None` for a negative one, which means forever.
fn timespec(timeout_ms: i32) -> Option<libc::timespec> {
    (timeout_ms >= 0).then(|| libc::timespec {
        tv_sec: i64::from(timeout_ms / 1000),
        tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000,
    })
}

fn pointer<T>(value: &Option<T>) -> *const T {
    value.as_ref().map_or(null(), |value| value)
}

/// A signal mask that holds nothing back.
fn empty_mask() -> libc::sigset_t {
    // SAFETY: a `sigset_t` of zeros is valid, and is the empty set on Linux.
    unsafe { std::mem::zeroed() }
}

pub(crate) fn poll(items: &mut [libc::pollfd], timeout_ms: i32) -> Answer {
    // SAFETY: the items are ours, and as many as stated.
    answer(unsafe { libc::poll(items.as_mut_ptr(), count(items.len()), timeout_ms) })
}

pub(crate) fn poll_checked(items: &mut [libc::pollfd], timeout_ms: i32) -> Answer {
    let room = size_of_val(items);
    // SAFETY: as for `poll`; the room is the items' own size.
    answer(unsafe { __poll_chk(items.as_mut_ptr(), count(items.len()), timeout_ms, room) })
}

pub(crate) fn ppoll(items: &mut [libc::pollfd], timeout_ms: i32, masked: bool) -> Answer {
    let (limit, mask) = (timespec(timeout_ms), masked.then(empty_mask));
    // SAFETY: as for `poll`; time-out and mask are ours, or null.
    answer(unsafe {
        libc::ppoll(
            items.as_mut_ptr(),
            count(items.len()),
            pointer(&limit),
            pointer(&mask),
        )
    })
}

pub(crate) fn ppoll_checked(items: &mut [libc::pollfd], timeout_ms: i32) -> Answer {
    let (limit, room) = (timespec(timeout_ms), size_of_val(items));
    // SAFETY: as for `ppoll`; the room is the items' own size.
    answer(unsafe {
        __ppoll_chk(
            items.as_mut_ptr(),
            count(items.len()),
            pointer(&limit),
            null(),
            room,
        )
    })
}

/// A set of descriptors for `select`, of any size.
#[derive(Clone)]
pub(crate) struct FdSet(Vec<c_ulong>);

impl FdSet {
    const BITS: usize = c_ulong::BITS as usize;

    /// An empty set with room for descriptors below `limit`, and never less than the C library's `fd_set`.
    pub(crate) fn new(limit: usize) -> Self {
        FdSet(vec![0; limit.max(1024).div_ceil(Self::BITS)])
    }

    pub(crate) fn insert(&mut self, fd: Fd) {
        let index: usize = fd.try_into().unwrap_or_default();
        self.0[index / Self::BITS] |= 1 << (index % Self::BITS);
    }

    pub(crate) fn contains(&self, fd: Fd) -> bool {
        let index: usize = fd.try_into().unwrap_or_default();
        self.0[index / Self::BITS] & (1 << (index % Self::BITS)) != 0
    }

    fn pointer(&mut self) -> *mut libc::fd_set {
        self.0.as_mut_ptr().cast()
    }
}

/// `select` over descriptors below `limit`: read, write and exceptional sets.
pub(crate) fn select(limit: usize, sets: &mut [FdSet; 3], timeout_ms: i32) -> Answer {
    let mut limit_time = (timeout_ms >= 0).then(|| libc::timeval {
        tv_sec: i64::from(timeout_ms / 1000),
        tv_usec: i64::from(timeout_ms % 1000) * 1000,
    });
    let time = limit_time.as_mut().map_or(null_mut(), |time| time);
    let [read, write, except] = sets;
    // SAFETY: each set has room for `limit` descriptors; the time-out is ours, or null.
    answer(unsafe {
        libc::select(
            count(limit),
            read.pointer(),
            write.pointer(),
            except.pointer(),
            time,
        )
    })
}

pub(crate) fn pselect(limit: usize, sets: &mut [FdSet; 3], timeout_ms: i32) -> Answer {
    let (limit_time, mask) = (timespec(timeout_ms), Some(empty_mask()));
    let [read, write, except] = sets;
    // SAFETY: as for `select`; the mask is ours.
    answer(unsafe {
        libc::pselect(
            count(limit),
            read.pointer(),
            write.pointer(),
            except.pointer(),
            pointer(&limit_time),
            pointer(&mask),
        )
    })
}

pub(crate) fn epoll_create(cloexec: bool) -> Answer {
    if cloexec {
        // SAFETY: takes no pointer.
        answer(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })
    } else {
        // SAFETY: takes no pointer.
        answer(unsafe { libc::epoll_create(8) })
    }
}

pub(crate) fn epoll_ctl(set: Fd, operation: c_int, fd: Fd, events: u32, label: u64) -> Answer {
    let mut event = libc::epoll_event { events, u64: label };
    // SAFETY: the event is ours.
    answer(unsafe { libc::epoll_ctl(set, operation, fd, &mut event) })
}

/// The form of `epoll_wait` that is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum EpollBy {
    Wait,
    Pwait,
    PwaitMasked,
    Pwait2,
}

/// Waits for at most `room` events; returns their masks and labels in the kernel's order.
pub(crate) fn epoll_wait(
    by: EpollBy,
    set: Fd,
    room: usize,
    timeout_ms: i32,
) -> Result<Vec<(u32, u64)>, Errno> {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; room];
    let (list, size) = (events.as_mut_ptr(), count(room));
    let mask = empty_mask();
    let limit = timespec(timeout_ms);
    let result = match by {
        // SAFETY: the list is ours and has the stated room.
        EpollBy::Wait => unsafe { libc::epoll_wait(set, list, size, timeout_ms) },
        // SAFETY: as above; no mask is passed.
        EpollBy::Pwait => unsafe { libc::epoll_pwait(set, list, size, timeout_ms, null()) },
        // SAFETY: as above; the mask is ours.
        EpollBy::PwaitMasked => unsafe { libc::epoll_pwait(set, list, size, timeout_ms, &mask) },
        // SAFETY: as above; the time-out is ours, or null.
        EpollBy::Pwait2 => unsafe {
            libc::epoll_pwait2(set, list, size, pointer(&limit).cast_mut(), null())
        },
    };
    let ready = answer(result)?;
    events.truncate(ready);
    Ok(events
        .iter()
        .map(|event| (event.events, event.u64))
        .collect())
}

/// `ioctl` with an int that the kernel fills in, as `FIONREAD`, `SIOCOUTQ` and `SIOCATMARK` do.
pub(crate) fn ioctl_get(fd: Fd, request: c_ulong) -> Result<c_int, Errno> {
    let mut value: c_int = 0;
    // SAFETY: the requests used here write one int.
    answer(unsafe { libc::ioctl(fd, request, &raw mut value) })?;
    Ok(value)
}

/// `ioctl` with an int that the kernel reads, as `FIONBIO` does.
pub(crate) fn ioctl_set(fd: Fd, request: c_ulong, mut value: c_int) -> Answer {
    // SAFETY: the requests used here read one int.
    answer(unsafe { libc::ioctl(fd, request, &raw mut value) })
}

/// `close_range` with the flags given.
pub(crate) fn close_range(first: Fd, last: Fd, flags: c_int) -> Answer {
    let (first, last): (c_uint, c_uint) = (first as _, last as _);
    // SAFETY: takes no pointer; only descriptors of the sequence lie in the ranges used.
    answer(unsafe { libc::close_range(first, last, flags) })
}
