//! What belongs to the process: start-up, fork, descriptors that come and go.

use std::ffi::c_void;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Relaxed, Release},
};

use libc::c_int;
use millrace_shm::board::{Row, flags, holders};
use millrace_shm::sys;
use millrace_wire::Reason;

use crate::socket::Socket;
use crate::table::{self, Closing, Entry};
use crate::{client, epoll, kernel, memory, real, signals, started, thread};

mod fork;
mod numbers;
mod waking;

use fork::{after_fork_in_parent, before_fork, begin_child};
pub(crate) use fork::{bare_fork, count as count_forks, handled_fork, new_token};
pub(crate) use numbers::{
    be_impatient, copy_descriptor, drop_descriptor, instead_of_ours, leave_unconnected,
    new_connection, new_descriptor,
};
pub(crate) use waking::{await_waking, is_awake, is_off, is_waking, load, wake};

/// Zero: nobody has asked yet.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// We may be in another PID namespace than processes with which we share end records: numbers mean nothing between us.
static FOREIGN: AtomicBool = AtomicBool::new(false);
static ENDED: AtomicBool = AtomicBool::new(false);
static SPIN_OVERRIDDEN: AtomicBool = AtomicBool::new(false);

/// Has our handlers of forks come before all others: what those of libraries do before a fork may wait for other threads, which need our
/// locks, and in a child ours have to come first, too. False: there cannot be any.
pub(crate) fn watch_forks() -> bool {
    static ARE_WATCHED: AtomicBool = AtomicBool::new(false);
    if ARE_WATCHED.swap(true, AcqRel) {
        return true;
    }
    // Handlers go with the object that has this address: we stay.
    let whose = (&raw const PROCESS).cast_mut().cast::<c_void>();
    let [prepare, parent, child] = [before_fork, after_fork_in_parent, begin_child]
        .map(|handler: extern "C" fn()| handler as usize);
    // SAFETY: three functions of this library, which is never unloaded.
    let answer = unsafe { real::__register_atfork(prepare, parent, child, whose) };
    ARE_WATCHED.store(answer == 0, Release);
    answer == 0
}

/// The process's number as of the library's waking, or the process's fork.
#[inline]
pub(crate) fn id() -> u32 {
    PROCESS.load(Relaxed)
}

/// How we are known in end records.
pub(crate) fn holder() -> u32 {
    if FOREIGN.load(Relaxed) {
        holders::UNKNOWN
    } else {
        id()
    }
}

/// Whether no other process holds the end, as far as the end record says.
#[inline]
pub(crate) fn holds_alone(row: &Row) -> bool {
    row.identity.is_held_alone()
}

/// As [`holds_alone`], and holders that were killed do not count: a few system calls when there are others.
#[cold]
pub(crate) fn outlives_others(row: &Row) -> bool {
    if !row.identity.has_heirs() {
        count_out_the_dead(row);
    }
    holds_alone(row)
}

/// Holders that were killed are none any more.
pub(crate) fn count_out_the_dead(row: &Row) {
    if row.identity.holders.load(Relaxed) > 1 && !FOREIGN.load(Relaxed) {
        row.identity.forget_dead(sys::thread_exists);
    }
}

/// One more holder. Where there is no place for its number, the dead make room. False: there was none any more.
pub(crate) fn join(row: &Row, process: u32) -> bool {
    if !row.identity.has_place() {
        count_out_the_dead(row);
    }
    row.identity.join(process)
}

/// Whether every holder of an end has been killed, and none is about to say that the record is free.
pub(crate) fn is_left(row: &Row) -> bool {
    !FOREIGN.load(Relaxed) && row.identity.is_left(sys::thread_exists)
}

/// Whether this process is among the holders that are known by number.
pub(crate) fn is_held_here(row: &Row) -> bool {
    row.identity.is_held_by(holder())
}

/// Whether `MILLRACE_SPIN_US` was given.
pub(crate) fn spin_is_overridden() -> bool {
    SPIN_OVERRIDDEN.load(Relaxed)
}

/// The program may have made children that run no fork handlers: only the kernel tells them from us. Where we do not see such calls, it
/// is so from the start.
static MAY_BE_BORROWED: AtomicBool = AtomicBool::new(cfg!(not(target_arch = "x86_64")));

/// `vfork`, `clone`, or a system call of theirs is about to be made.
pub(crate) fn expect_bare_child() {
    if is_off() {
        return;
    }
    // The child has our memory, and may close its descriptors of the sets before anything else.
    tell_sets();
    waking::learn_id();
    MAY_BE_BORROWED.store(true, Relaxed);
    thread::expect_bare_child();
}

/// Whether we run in a child that shares the parent's memory (`vfork`): such a child must not change what we know.
#[inline]
pub(crate) fn is_borrowed() -> bool {
    MAY_BE_BORROWED.load(Relaxed) && !is_off() && kernel::process_id() != id()
}

/// Whether we run in a child that this thread has made by `vfork`, where `fd` is not the connection that it is in the parent: the child
/// may have put something else there.
#[inline]
pub(crate) fn is_other_in_child(fd: c_int, socket: &Socket) -> bool {
    MAY_BE_BORROWED.load(Relaxed) && thread::is_in_bare_child() && socket.is_known_other(fd)
}

/// Every descriptor of a connection, those of one beside each other, the lowest first. The table is gone through once, however many
/// there are.
fn descriptors() -> Vec<(c_int, &'static Socket)> {
    let mut found: Vec<(c_int, &'static Socket)> = table::all()
        .filter_map(|fd| table::socket(fd).map(|socket| (fd, socket)))
        .collect();
    found.sort_unstable_by_key(|(fd, socket)| (std::ptr::from_ref(*socket) as usize, *fd));
    found
}

/// Every connection of the process, once, with its lowest descriptor.
fn sockets() -> Vec<(c_int, &'static Socket)> {
    let mut found = descriptors();
    found.dedup_by(|a, b| std::ptr::eq(a.1, b.1));
    found
}

/// A descriptor of the connection: the one that it had just now, or another when another thread has closed that since.
fn still_names(fd: c_int, socket: &'static Socket) -> Option<c_int> {
    if table::is(fd, socket) {
        return Some(fd);
    }
    table::all().find(|fd| table::is(*fd, socket))
}

/// The process ends: what other processes hold goes on without it.
pub(crate) fn end() {
    if !table::exists() || is_borrowed() || ENDED.swap(true, Relaxed) {
        return;
    }
    epoll::hold_all(-1, false);
    for (fd, socket) in sockets() {
        let Some(fd) = still_names(fd, socket) else {
            continue;
        };
        let identity = &socket.row().identity;
        if outlives_others(socket.row()) {
            socket.pin_for_end();
            socket.end_for_exit(fd);
            continue;
        }
        leave_to_others(fd, socket);
        if identity.owner.load(Relaxed) == id() {
            identity.owner.store(0, Relaxed);
        }
    }
}

/// What other holders could not have sent again later goes by the kernel.
fn hand_over(fd: c_int, socket: &'static Socket) {
    if client::is_listed_here(socket) || socket.row().identity.has_heirs() {
        socket.hand_over(fd);
    }
}

/// This process ends, or has the connection no more as another program. False: nobody else is known to have it, so it keeps its place, and
/// its death frees the end record.
fn leave_to_others(fd: c_int, socket: &'static Socket) -> bool {
    hand_over(fd, socket);
    socket.row().identity.leave_to_others(holder())
}

/// What is to be taken back when an exec fails.
pub(crate) struct Left {
    socket: &'static Socket,
    fd: c_int,
    holder: LeftHolder,
}

/// What became of this process as a holder.
enum LeftHolder {
    /// It is the only one. How the connection was pinned.
    Alone(u32),
    /// The new program holds the connection.
    Stranger,
    /// Others hold it.
    Gone,
}

/// The process is about to replace itself: it reads no ring any more, and its other threads open none.
///
/// The new program goes on by the kernel. Bytes that lie in a ring unread would be missing from its stream, so such a connection is
/// ended where everybody sees it, by a reset, if the new program would get it.
pub(crate) fn leave_for_exec() -> Option<Vec<Left>> {
    if !table::exists() {
        return None;
    }
    if is_borrowed() {
        started::by_child_of_vfork();
        return None;
    }
    epoll::tell_all();
    epoll::hold_all(-1, true);
    let mut left = Vec::new();
    let descriptors = descriptors();
    for named in descriptors.chunk_by(|a, b| std::ptr::eq(a.1, b.1)) {
        let Some((fd, socket)) = named
            .first()
            .and_then(|&(fd, socket)| Some((still_names(fd, socket)?, socket)))
        else {
            continue;
        };
        let inherited = named
            .iter()
            .any(|(fd, socket)| table::is(*fd, socket) && kernel::stays_open_on_exec(*fd));
        let mut note = |holder| left.push(Left { socket, fd, holder });
        if outlives_others(socket.row()) {
            note(LeftHolder::Alone(socket.pin_for_end()));
            socket.leave_ring(fd, inherited);
            continue;
        }
        if !inherited {
            if leave_to_others(fd, socket) {
                note(LeftHolder::Gone);
            }
            continue;
        }
        hand_over(fd, socket);
        let identity = &socket.row().identity;
        note(LeftHolder::Stranger);
        // While the agent still knows of us by our number: the sender may ask it for the same.
        socket.draw_back_for_program(fd);
        // It still counts as a holder.
        identity.become_stranger(holder(), false);
        if identity.are_strangers() {
            socket.leave_ring(fd, true);
        } else {
            socket.leave_to_program(fd);
        }
    }
    Some(left)
}

/// `exec` failed: the connections are ours again.
pub(crate) fn return_from_exec(left: Vec<Left>) {
    epoll::hold_all(1, true);
    for Left { socket, fd, holder } in left {
        let identity = &socket.row().identity;
        match holder {
            LeftHolder::Alone(pinned) if table::is(fd, socket) => {
                socket.unpin_after_exec(fd, pinned);
                // What lies unread in the ring will be read.
                socket.show_linger(fd);
            }
            LeftHolder::Alone(..) => {}
            LeftHolder::Stranger => identity.become_stranger(self::holder(), true),
            LeftHolder::Gone => drop(identity.join(self::holder())),
        }
    }
}

/// The program is about to forbid itself system calls, perhaps those that we make: from now on the library is as if it were not there.
/// What lies in the rings unread is sent again by the kernel.
pub(crate) fn enter_sandbox() {
    leave_for_good(Reason::Sandboxed);
}

/// The agent may be out of reach soon: whoever has connections makes itself known to it now.
pub(crate) fn ready_to_be_confined() {
    if table::exists() && !is_borrowed() && table::all().any(|fd| table::socket(fd).is_some()) {
        let errno = thread::errno();
        client::reach();
        thread::set_errno(errno);
    }
}

/// A thread is about to have descriptors of its own: where there are others, a number says nothing any more.
pub(crate) fn part_descriptors() {
    if !thread::is_alone() {
        leave_for_good(Reason::Unsupported);
    }
}

/// A child is about to have this process's descriptors and not its memory, or its memory and not its descriptors: what one of them does to
/// a number, the other's table does not say, or says and it is not so.
pub(crate) fn be_half_shared() {
    leave_for_good(Reason::Unsupported);
}

/// A child is about to have copies of this process's sets, and to run no fork handlers.
pub(crate) fn share_sets() {
    if !is_off() && table::exists() && !is_borrowed() {
        epoll::share_all();
    }
}

/// An object is about to be loaded whose calls of the C library pass no hook.
pub(crate) fn be_bypassed() {
    leave_for_good(Reason::Unsupported);
}

/// Children will be in another PID namespace. What they and this process have in common knows threads by their numbers.
pub(crate) fn part_numbers() {
    leave_for_good(Reason::Unsupported);
}

/// The kernel hears of every registration that it has not got yet. Not from a child of `vfork`: by our numbers it may have other sets.
fn tell_sets() {
    if table::exists() && !is_borrowed() {
        let errno = thread::errno();
        epoll::tell_all();
        thread::set_errno(errno);
    }
}

/// There is no memory to follow anything more with. False: there is.
#[inline]
pub(crate) fn leave_if_scarce() -> bool {
    let is_scarce = memory::is_scarce();
    if is_scarce {
        leave_for_good(Reason::NoMemory);
    }
    is_scarce
}

/// The process leaves all rings, and the library is as if it were not there.
#[cold]
fn leave_for_good(reason: Reason) {
    loop {
        await_waking();
        if is_off() || is_borrowed() || waking::stay_asleep() {
            return;
        }
        if table::exists() {
            leave_rings(reason, |socket, fd| socket.bring_back(fd));
            waking::turn_off();
            table::abandon();
            return signals::give_back();
        }
    }
}

/// The program is about to become one that the agent may not trace, so that nothing which it has sent could be brought back from a ring:
/// what is there is sent again by the kernel, in both directions, or else read from the ring while its reader is there.
pub(crate) fn hide_from_agent() {
    await_waking();
    if !is_off() && !is_borrowed() {
        leave_rings(Reason::Untraceable, |socket, fd| {
            socket.draw_back(fd);
            socket.flush_all(fd);
        });
    }
}

/// Every connection takes the kernel's road from now on; `empty` deals with what lies unread in its ring.
pub(crate) fn leave_rings(reason: Reason, empty: impl Fn(&'static Socket, c_int)) {
    let errno = thread::errno();
    client::stop(reason);
    epoll::share_all();
    for (fd, socket) in sockets() {
        socket.pin(reason);
        if let Some(fd) = still_names(fd, socket) {
            // Later calls ask for nothing.
            socket.show_no_delay(fd);
            empty(socket, fd);
        }
    }
    client::keep_away();
    thread::set_errno(errno);
}

/// O_NONBLOCK was set or cleared.
pub(crate) fn set_nonblocking(fd: c_int, nonblocking: bool) {
    if let Some(socket) = table::socket(fd) {
        // Whoever joins it just now may have asked the kernel before.
        socket.await_join();
        let word = &socket.row().identity.flags;
        if nonblocking {
            word.fetch_or(flags::NONBLOCK, AcqRel);
            let errno = thread::errno();
            socket.stop_waiting_in_calls(fd);
            thread::set_errno(errno);
        } else {
            word.fetch_and(!flags::NONBLOCK, AcqRel);
        }
    }
}

/// Closes a range of descriptors, but for ours; `work` closes one unbroken range.
pub(crate) fn close_range(first: u32, last: u32, work: &mut dyn FnMut(u32, u32) -> c_int) -> c_int {
    let ours = client::descriptor().and_then(|fd| u32::try_from(fd).ok());
    match ours.filter(|ours| (first..=last).contains(ours) && !is_borrowed()) {
        Some(ours) => {
            let before = if ours > first {
                work(first, ours - 1)
            } else {
                0
            };
            let after = if ours < last { work(ours + 1, last) } else { 0 };
            if before != 0 { before } else { after }
        }
        None => work(first, last),
    }
}

/// Forgets a range of descriptors that is about to be closed. What is returned is kept until that is done.
#[must_use]
pub(crate) fn drop_range(first: u32, last: u32) -> Vec<Closing> {
    let inside = table::all().filter(|fd| (first..=last).contains(&fd.cast_unsigned()));
    // Sets first: of one that goes with its connections nobody hears anything of them.
    let (sets, others): (Vec<c_int>, Vec<c_int>) =
        inside.partition(|fd| matches!(table::get(*fd), Entry::Set(_)));
    let all = sets.into_iter().chain(others);
    all.filter_map(drop_descriptor).collect()
}
