//! Forks: parent and child hold every connection that there is.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use libc::pid_t;
use millrace_shm::board::{Row, holders, state};
use millrace_wire::Reason;

use super::{FOREIGN, PROCESS, holder, join, sockets, waking};
use crate::guarded::Guarded;
use crate::local::local;
use crate::socket::{self, Socket, phase};
use crate::table::Entry;
use crate::{client, epoll, hooks, kernel, memory, table, thread, uring, user, waits};

/// So long the library's waking waits for a fork, milliseconds.
const AWAITED_MS: u32 = 200;

/// Our PID namespace as of the last fork; zero when it is not known.
static NAMESPACE: AtomicU64 = AtomicU64::new(0);
/// Forks of this process, and other ways in which it gave connections to a child.
static CHILDREN: AtomicU32 = AtomicU32::new(0);

/// Forks that have begun, and that are over.
static BEGUN: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicU32 = AtomicU32::new(0);

/// End records of connections that children are about to get, and what stands for these. Changes with introductions or holders kept.
static GIVEN: Guarded<Vec<(u32, &'static Row)>> = Guarded::new(Vec::new());

/// What stands for a child that this thread is about to make.
pub(crate) fn new_token() -> u32 {
    holders::token(thread::id(), CHILDREN.fetch_add(1, Relaxed))
}

/// How many forks there have been. None: one is under way.
pub(crate) fn count() -> Option<u32> {
    // SeqCst: pairs with the one in `before_fork`: either that finds what was put into the table before this, or this finds the fork.
    fence(SeqCst);
    // In this order: one that begins in between is under way.
    let ended = ENDED.load(Acquire);
    (BEGUN.load(Acquire) == ended).then_some(ended)
}

/// A fork begins: from here on the library does not wake before it is over.
fn begin() {
    loop {
        // Release, and Acquire in `count`: only the number counts. The table is ordered by the fence.
        BEGUN.fetch_add(1, Release);
        // SeqCst: see `count`, and `await_others`.
        fence(SeqCst);
        if !waking::is_waking() {
            return;
        }
        ENDED.fetch_add(1, Release);
        waking::await_waking();
    }
}

/// Whether the calling thread is between the two halves of a fork.
pub(super) fn is_under_way_here() -> bool {
    local().forks.get() || local().sleeping_forks.get() != 0
}

/// Waits until no fork is under way, before the library wakes; those that come wait for that. False: one takes too long.
pub(super) fn await_others() -> bool {
    for _ in 0..AWAITED_MS {
        if count().is_some() {
            return true;
        }
        kernel::pause(1);
    }
    false
}

/// Before a fork by whatever function of the C library: both processes will hold every connection.
pub(super) extern "C" fn before_fork() {
    if waking::is_off() {
        return;
    }
    begin();
    if !table::exists() {
        // A handler may come between that makes one, too.
        let forks = &local().sleeping_forks;
        return forks.set(forks.get() + 1);
    }
    table::all().for_each(super::leave_unconnected);
    uring::share_all();
    epoll::share_all();
    for (_, socket) in sockets() {
        client::put_on_board(socket);
    }
    join_introduced();
    client::stop_introductions();
    // From here on no handler comes between that makes a fork itself.
    local().forks.set(true);
    let child = new_token();
    let earlier = local().child.replace(child);
    let sockets = sockets();
    if !sockets.is_empty() && NAMESPACE.load(Relaxed) == 0 {
        NAMESPACE.store(kernel::pid_namespace(), Relaxed);
    }
    let given = sockets.into_iter().filter_map(|(_, it)| give(it, child));
    note_given(earlier, child, given);
    waits::lock_for_fork();
    epoll::lock_for_fork();
    memory::lock_for_fork();
}

/// The child becomes a holder. The connection's end record, unless another thread has just closed it: then the child does not have it.
fn give(socket: &'static Socket, child: u32) -> Option<&'static Row> {
    let row = socket.row();
    if !socket.has_board_row() {
        // Each process will have a copy, in which the other's children do not appear: never alone again.
        row.identity.join_unnamed();
        return Some(row);
    }
    if join(row, child) {
        return Some(row);
    }
    row.identity.take_back(child, false);
    None
}

/// Notes which end records the child's token stands in, for those who name it: connections may come and go meanwhile. `earlier` is that of
/// the thread's last fork, which may have passed our hooks by.
fn note_given(earlier: u32, token: u32, rows: impl Iterator<Item = &'static Row>) {
    if let Some(mut given) = GIVEN.lock() {
        given.retain(|(whose, _)| *whose != earlier);
        given.extend(rows.map(|row| (token, row)));
    }
}

/// Takes into use what the agent has introduced. A child could not, and an end that its parent then closes would never come to its ring.
fn join_introduced() {
    for fd in table::all() {
        if let Some(socket) = table::socket(fd).filter(|socket| !socket.is_attached()) {
            client::await_segment(socket);
            if socket.phase.load(Acquire) == phase::PAIRED {
                socket.is_joined_now(fd);
            }
        }
    }
}

/// After it, in the parent.
pub(super) extern "C" fn after_fork_in_parent() {
    let sleeping = &local().sleeping_forks;
    if local().forks.replace(false) {
        memory::unlock_after_fork();
        epoll::unlock_after_fork();
        waits::unlock_after_fork();
        client::resume_introductions();
        thread::end_fork();
        uring::share_all();
    } else if sleeping.get() != 0 {
        sleeping.set(sleeping.get() - 1);
    } else {
        return;
    }
    ENDED.fetch_add(1, Release);
}

/// `fork`, which runs the handlers above, and tells them neither the child's number nor that there is none.
pub(crate) fn handled_fork(make: impl FnOnce() -> pid_t) -> pid_t {
    if !table::exists() {
        return make();
    }
    let child = make();
    name_child(child);
    child
}

/// `_Fork`, which runs no fork handlers.
pub(crate) fn bare_fork(make: impl FnOnce() -> pid_t) -> pid_t {
    if waking::is_off() {
        return make();
    }
    before_fork();
    let child = make();
    if child == 0 {
        begin_child();
    } else {
        if local().forks.get() {
            name_child(child);
        }
        after_fork_in_parent();
    }
    child
}

/// In the parent: the child that this thread made is known by its number, even if it was killed before it could say so. When none came
/// of it, its share of every connection is taken back.
fn name_child(child: pid_t) {
    if child == 0 {
        return;
    }
    if child < 0 {
        epoll::hold_all(-1, false);
    }
    let token = local().child.get();
    for row in client::keep_holders(|| take_given(token)) {
        match u32::try_from(child) {
            Ok(child) => row.identity.name(token, child),
            // Another thread has closed it meanwhile.
            Err(_) if row.identity.take_back(token, true) => {
                row.identity.state.store(state::FREE, Release);
            }
            Err(_) => {}
        }
    }
}

/// The end records of connections that the child got, which `token` stands for.
fn take_given(token: u32) -> Vec<&'static Row> {
    let Some(mut given) = GIVEN.lock() else {
        return Vec::new();
    };
    let of_it = given.iter().filter(|(whose, _)| *whose == token);
    let rows = of_it.map(|(_, row)| *row).collect();
    given.retain(|(whose, _)| *whose != token);
    rows
}

/// In the child: another thread of the parent was about to close these connections, and the child never had them.
fn leave_closed(token: u32, mut kept: Vec<*const Row>) {
    kept.sort_unstable();
    let given = take_given(token).into_iter();
    for row in given.filter(|row| kept.binary_search(&std::ptr::from_ref(*row)).is_err()) {
        row.identity.name(token, holder());
        if row.identity.is_held_by(holder()) && row.identity.leave(holder()) {
            row.identity.state.store(state::FREE, Release);
        }
    }
    if let Some(mut others) = GIVEN.lock() {
        others.clear();
    }
}

/// In the child: another thread of the parent was about to follow these connections, of which the child is no holder.
fn drop_others(token: u32) {
    let Some(given) = GIVEN.lock() else {
        return;
    };
    let of_it = given.iter().filter(|(whose, _)| *whose == token);
    let mut rows: Vec<*const Row> = of_it.map(|(_, row)| std::ptr::from_ref(*row)).collect();
    rows.sort_unstable();
    for fd in table::all() {
        if let Some(socket) = table::socket(fd)
            && rows
                .binary_search(&std::ptr::from_ref(socket.row()))
                .is_err()
        {
            table::replace(fd, Entry::Unknown);
        }
    }
}

/// In the child: the thread that forked is its main thread.
fn begin_thread() {
    thread::begin_child();
    user::watch_main_thread();
}

pub(super) extern "C" fn begin_child() {
    let sleeping = &local().sleeping_forks;
    if sleeping.get() != 0 {
        // Those that a handler of ours has interrupted go on here, too.
        sleeping.set(sleeping.get() - 1);
        let ended = BEGUN.load(Relaxed).wrapping_sub(sleeping.get());
        ENDED.store(ended, Release);
        waking::begin_child();
    }
    if !local().forks.replace(false) {
        return begin_thread();
    }
    let forker = thread::id();
    memory::unlock_after_fork();
    let parent = PROCESS.swap(kernel::process_id(), Relaxed);
    // Not so in a new PID namespace, and when the parent has gone already.
    if kernel::kernel!(libc::SYS_getppid) != parent as isize {
        let namespace = kernel::pid_namespace();
        if namespace == 0 || namespace != NAMESPACE.swap(namespace, Relaxed) {
            FOREIGN.store(true, Relaxed);
        }
    }
    begin_thread();
    table::begin_child();
    socket::begin_child(forker);
    waits::begin_child(forker);
    epoll::begin_child(forker);
    hooks::begin_child(forker);
    uring::begin_child(forker);
    client::forget_parent();
    client::forget_tracer();
    GIVEN.begin_child(forker);
    ENDED.store(BEGUN.load(Relaxed), Release);
    drop_others(local().child.get());
    let sockets = sockets();
    for (_, socket) in &sockets {
        socket.row().identity.name(local().child.get(), holder());
    }
    let kept = sockets
        .iter()
        .map(|(_, socket)| std::ptr::from_ref(socket.row()));
    leave_closed(local().child.get(), kept.collect());
    for (_, socket) in sockets {
        if !socket.sets.begin_child(forker) {
            socket.has_lost_sets.store(true, Relaxed);
        }
        socket.forget_threads();
        socket.peeked.begin_child(forker);
        match socket.phase.load(Acquire) {
            phase::ATTACHED => {}
            // The introduction that is under way is the parent's. If the parent lets go, the child offers the connection itself.
            _ if socket.has_board_row() && !socket.is_pinned() => {
                socket.set_segment(None);
                socket.phase.store(phase::FRESH, Relaxed);
            }
            // An end record that is on no board is a copy now.
            _ => socket.pin(Reason::Forked),
        }
    }
}
