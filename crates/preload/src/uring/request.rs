//! What requests name. The kernel looks a number up when it begins with a request: within the submission, or later where the request
//! waits for others or goes to a thread of the kernel's.

use std::mem::size_of;

use libc::{c_int, msghdr};
use millrace_wire::Reason;

use super::ring::Queue;
use super::{begin, remember_late};
use crate::process::drop_descriptor;
use crate::table::{self, Entry};
use crate::{headers, pass, thread, user};

/// Flags of requests (`IOSQE_…`).
mod flags {
    pub(super) const FIXED_FILE: u8 = 1;
    pub(super) const DRAIN: u8 = 1 << 1;
    pub(super) const LINK: u8 = 1 << 2;
    pub(super) const HARD_LINK: u8 = 1 << 3;
    pub(super) const ASYNC: u8 = 1 << 4;
    pub(super) const UNKNOWN: u8 = 1 << 7;
}

/// What requests do (`IORING_OP_…`), where that matters here.
mod operation {
    pub(super) const POLL_ADD: u8 = 6;
    pub(super) const SENDMSG: u8 = 9;
    pub(super) const ACCEPT: u8 = 13;
    pub(super) const CONNECT: u8 = 16;
    pub(super) const CLOSE: u8 = 19;
    pub(super) const FILES_UPDATE: u8 = 20;
    pub(super) const SEND: u8 = 26;
    pub(super) const EPOLL_CTL: u8 = 29;
    pub(super) const SPLICE: u8 = 30;
    pub(super) const TEE: u8 = 33;
    pub(super) const SHUTDOWN: u8 = 34;
    pub(super) const SEND_ZC: u8 = 47;
    pub(super) const SENDMSG_ZC: u8 = 48;
    pub(super) const BIND: u8 = 56;
    pub(super) const LISTEN: u8 = 57;
    pub(super) const EPOLL_WAIT: u8 = 59;
    /// The last one of Linux 6.18, PIPE.
    pub(super) const LAST: u8 = 62;

    /// Those that read nothing of what their number is: WRITEV, WRITE_FIXED, WRITE, WRITEV_FIXED, splices to it, and these.
    pub(super) const WRITING: &[u8] = &[
        2, 5, 23, 61, SENDMSG, SEND, SEND_ZC, SENDMSG_ZC, SPLICE, SHUTDOWN, CLOSE,
    ];

    /// Those whose number is no descriptor that they use: time-outs, cancellations, buffers, paths, new descriptors, futexes.
    pub(super) const WITHOUT_FILE: &[u8] = &[
        0, 7, 11, 12, 14, 15, 18, 21, 25, 28, 31, 32, 35, 36, 37, 38, 39, 42, 44, 45, 50, 51, 52,
        53, 54, 62,
    ];
}

/// SPLICE_F_FD_IN_FIXED.
const SPLICE_FROM_FIXED: u32 = 1 << 31;

/// A request, as far as it is looked at (`struct io_uring_sqe` of `linux/io_uring.h`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Request {
    operation: u8,
    flags: u8,
    _priority: u16,
    fd: c_int,
    _offset: u64,
    address: u64,
    length: u32,
    of_operation: u32,
    _data: u64,
    _buffer: [u16; 2],
    other_fd: c_int,
    _rest: [u64; 2],
}

const _: () = assert!(size_of::<Request>() == 64);

/// What was found in a number of requests.
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    /// Requests may wait for earlier ones.
    pub(super) drains: bool,
    /// There is one that the peer of a connection may hear of.
    pub(super) tells: bool,
}

/// Looks at `count` requests from position `from` on: sockets that they name take the kernel's road. None: there is one of which that
/// cannot be said.
pub(super) fn look_at(queue: &Queue, from: u32, count: u32, drains: bool) -> Option<Found> {
    if count > queue.capacity()? {
        return None;
    }
    let mut found = Found {
        drains,
        tells: false,
    };
    let mut is_linked = false;
    for position in (0..count).map(|index| from.wrapping_add(index)) {
        let [place, other] = queue.requests_at(position)?;
        let places = if place == other {
            &[place][..]
        } else {
            &[place, other][..]
        };
        let place_is_sure = places.len() == 1;
        let mut links = false;
        for place in places {
            let place = place.cast::<Request>();
            if !user::can_read(place.cast(), size_of::<Request>()) {
                return None;
            }
            // SAFETY: found readable just before; integers, which another thread may write.
            let request = unsafe { place.read_volatile() };
            found.drains |= request.flags & flags::DRAIN != 0;
            found.tells |= request.tells();
            links |= request.flags & (flags::LINK | flags::HARD_LINK) != 0;
            let is_late = found.drains || is_linked || request.flags & flags::ASYNC != 0;
            if !request.leave_named(is_late, place_is_sure) {
                return None;
            }
        }
        is_linked = links;
    }
    Some(found)
}

impl Request {
    /// Whether the peer of a connection may hear of it.
    fn tells(&self) -> bool {
        let is_for_sockets = matches!(
            self.operation,
            operation::SEND
                | operation::SEND_ZC
                | operation::SENDMSG
                | operation::SENDMSG_ZC
                | operation::CONNECT
                | operation::SHUTDOWN
                | operation::SPLICE
        );
        is_for_sockets || self.flags & flags::FIXED_FILE == 0 && table::socket(self.fd).is_some()
    }

    /// Takes what it names to the kernel's road. False: the whole process must go there. `is_sure`: the kernel will find this request.
    fn leave_named(&self, is_late: bool, is_sure: bool) -> bool {
        if self.flags & flags::UNKNOWN != 0 || self.operation > operation::LAST {
            return false;
        }
        match self.operation {
            // What a set tells of the rings is not the kernel's to tell.
            operation::EPOLL_CTL | operation::EPOLL_WAIT => false,
            operation::FILES_UPDATE => !is_late && names_all(self.address as usize, self.length),
            operation::SENDMSG | operation::SENDMSG_ZC => {
                self.leave_file(is_late, is_sure) && self.leave_passed(is_late)
            }
            operation::SPLICE | operation::TEE => {
                let is_fixed = self.of_operation & SPLICE_FROM_FIXED != 0;
                (is_fixed || leave(self.other_fd, is_late, true))
                    && self.leave_file(is_late, is_sure)
            }
            operation if operation::WITHOUT_FILE.contains(&operation) => true,
            _ => self.leave_file(is_late, is_sure),
        }
    }

    fn leave_file(&self, is_late: bool, is_sure: bool) -> bool {
        if self.flags & flags::FIXED_FILE != 0 {
            // It went to the kernel's road when the program registered it.
            return true;
        }
        match (self.operation, table::get(self.fd)) {
            // What comes of it is not followed, and the listener is no connection.
            (operation::ACCEPT | operation::BIND | operation::LISTEN, Entry::Unconnected(_)) => {
                true
            }
            // As when it is put into another set.
            (operation::POLL_ADD, Entry::Set(set)) if !is_late => {
                set.leave_to_kernel();
                true
            }
            // One of those that were registered.
            (operation::CLOSE, _) if self.other_fd != 0 => true,
            (operation::CLOSE, Entry::Ring | Entry::Set(_)) if !is_late && is_sure => {
                drop(drop_descriptor(self.fd));
                true
            }
            (operation::CLOSE, Entry::Socket(socket)) if !is_late && is_sure => {
                socket.leave_to_requests(self.fd, Reason::IoUring, false);
                drop(drop_descriptor(self.fd));
                true
            }
            _ => leave(
                self.fd,
                is_late,
                !operation::WRITING.contains(&self.operation),
            ),
        }
    }

    /// Descriptors that a message carries go to another process.
    fn leave_passed(&self, is_late: bool) -> bool {
        let header = self.address as *const msghdr;
        if !user::can_read(header.cast(), size_of::<msghdr>()) {
            // The kernel reads it now, and says so.
            return true;
        }
        // SAFETY: found readable just before.
        let header = unsafe { header.read_unaligned() };
        if headers::count(header.msg_controllen) != 0 {
            pass::note_passed(&header);
        }
        !is_late || headers::count(header.msg_controllen) == 0
    }
}

/// What `fd` is takes the kernel's road, and the request `reads` it, or asks whether it can. False: only the whole process can.
fn leave(fd: c_int, is_late: bool, reads: bool) -> bool {
    if is_late && !remember_late(fd) {
        return false;
    }
    match table::get(fd) {
        Entry::Socket(socket) => {
            socket.leave_to_requests(fd, Reason::IoUring, reads);
            true
        }
        Entry::Unconnected(_) => {
            // Its connection will not be followed.
            drop(drop_descriptor(fd));
            true
        }
        Entry::Set(_) => false,
        Entry::Unknown | Entry::Ring => true,
    }
}

/// The program registers a list of descriptors.
pub(crate) fn before_register_list(list: usize, count: u32) {
    if super::is_watched() {
        let errno = thread::errno();
        if !names_all(list, count) {
            begin();
        }
        thread::set_errno(errno);
    }
}

/// As a request that names each descriptor of a list. False: the whole process must go to the kernel's road.
fn names_all(list: usize, count: u32) -> bool {
    let list = list as *const c_int;
    if !user::can_read(list.cast(), count as usize * size_of::<c_int>()) {
        // The kernel fails where we do, but may have taken a part.
        return false;
    }
    (0..count as usize).all(|index| {
        // SAFETY: inside the list, which is readable.
        leave(unsafe { list.add(index).read_unaligned() }, false, true)
    })
}

/// What the program registers with a ring, by what the kernel calls it (`IORING_REGISTER_…`): requests name it by another number.
pub(crate) fn before_register(what: u32, argument: usize, count: u32) {
    const WITH_REGISTERED_RING: u32 = 1 << 31;
    const SPARSE: u32 = 1;
    if !super::is_watched() {
        return;
    }
    let errno = thread::errno();
    let words = argument as *const u64;
    let read = |index: usize| {
        let place = words.wrapping_add(index);
        let is_there = user::can_read(place.cast(), size_of::<u64>());
        // SAFETY: found readable just before.
        is_there.then(|| unsafe { place.read_unaligned() })
    };
    let is_known = match what & !WITH_REGISTERED_RING {
        // FILES: the list itself.
        2 => argument == 0 || names_all(argument, count),
        // FILES_UPDATE: where they go, and the list.
        6 => read(1).is_some_and(|list| names_all(list as usize, count)),
        // FILES2: how many, flags, reserved, and the list.
        13 => read(0).is_some_and(|first| {
            let (count, flags) = (first as u32, (first >> 32) as u32);
            flags & SPARSE != 0 || read(2).is_some_and(|list| names_all(list as usize, count))
        }),
        // FILES_UPDATE2: where they go, the list, tags, and how many.
        14 => read(1).is_some_and(|list| {
            read(3).is_some_and(|count| names_all(list as usize, count as u32))
        }),
        // SEND_MSG_RING submits a request, RESIZE_RINGS changes the memory.
        31 | 33 => false,
        0..=30 | 32 | 34 | 35 => true,
        _ => false,
    };
    if !is_known {
        begin();
    }
    thread::set_errno(errno);
}
