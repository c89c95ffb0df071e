//! The library's side of the control protocol: one connection to the agent, made when the process has its first TCP connection.
//!
//! Nothing here waits for the agent (but in the eager modes, which tests use). Whatever fails leaves connections on the kernel's road.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use libc::c_int;
use millrace_shm::board::{Board, Row, state};
use millrace_stream::Chaos;
use millrace_wire::{Grow, Mode, Reason, ToAgent, VERSION_MIN};

mod boards;
mod link;
mod recalls;
mod session;

use boards::Boards;
pub(crate) use link::{PR_SET_PTRACER, forget_tracer, keep_tracer};
use recalls::RECALLING;
pub(crate) use recalls::{answers, end_ask, recall};
use session::Client;
pub(crate) use session::{has_addresses, list};

use crate::guarded::Guarded;
use crate::kernel;
use crate::socket::{Socket, phase};
use crate::{process, table, uring};

/// After a failed attempt to reach the agent, nanoseconds until the next.
const RETRY_NS: u64 = 1_000_000_000;
/// Milliseconds that the first connection of a process waits for the agent's welcome, in the eager modes.
const WELCOME_WAIT_MS: u64 = 500;
/// In the eager modes, milliseconds that a first call waits for its connection's introduction…
const EAGER_WAIT_MS: u64 = 20;
/// …when it may not block, and before that an `accept`: the program has others to serve, the connection's other end perhaps among them.
const EAGER_WAIT_SHORT_MS: u64 = 2;
/// …unless so many introductions in a row were waited for in vain: the other ends are not under Millrace.
const EAGER_VAIN_MAX: u32 = 100;
/// Milliseconds that a fork waits for a segment, from when it was asked for.
const SEGMENT_WAIT_MS: u64 = 20;
static EAGER_VAIN: AtomicU32 = AtomicU32::new(0);

/// Switched on by `MILLRACE_MODE=chaos:SEED`.
pub(crate) static CHAOS: Chaos = Chaos::new(0);

static MODE: AtomicU8 = AtomicU8::new(Mode::Default as u8);
static OFFER_AFTER_CALLS: AtomicU32 = AtomicU32::new(u32::MAX);
static OFFER_AFTER_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);
static BOARD: AtomicPtr<Board> = AtomicPtr::new(std::ptr::null_mut());
static MAIL_SEEN: AtomicU32 = AtomicU32::new(0);
/// The agent's descriptor, or -1.
static DESCRIPTOR: AtomicU32 = AtomicU32::new(u32::MAX);
/// No connection of this process may be offered any more.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// See [`keep_away`].
static KEEPS_AWAY: AtomicBool = AtomicBool::new(false);
/// Why a new connection is not on the ring.
static FIRST_REASON: AtomicU8 = AtomicU8::new(Reason::TooShort as u8);

/// Threads that have let go of an end record, and have not said yet that it is free.
pub(crate) static LEAVING: AtomicU32 = AtomicU32::new(0);

/// Held while the agent's answers are read and it is told things, but not while it is waited for: all connections begin and end under it.
static CLIENT: Guarded<Option<Client>> = Guarded::new(None);
/// Held while a connection's end record moves, and while other processes become its holders: by one thread at a time. Comes after the
/// locks of halves, and before `CLIENT`.
static MOVING: Guarded<()> = Guarded::new(());

/// Says how eager to be.
pub(crate) fn set_mode(mode: Mode, chaos_seed: u64) {
    MODE.store(mode as u8, Relaxed);
    CHAOS.reseed(if mode == Mode::Chaos {
        chaos_seed.max(1)
    } else {
        0
    });
}

/// Says where the agent is.
pub(crate) fn configure(path: CString) {
    if let Some(mut client) = CLIENT.lock() {
        *client = Some(Client {
            path,
            fd: None,
            asked_at_ns: None,
            retry_at_ns: 0,
            version: VERSION_MIN,
            next_offer: 1,
            boards: Boards::new(),
            offers: HashMap::new(),
            withdrawals: Vec::new(),
            rows_free: Vec::new(),
            rows_in_use: Vec::new(),
            rows_used: 0,
            rows_searched: 0,
        });
    }
}

/// In the modes for tests: every connection is offered at once, and every program is taken for one that waits by functions of ours.
pub(crate) fn is_eager() -> bool {
    MODE.load(Relaxed) != Mode::Default as u8
}

/// Offers nothing more from this process.
pub(crate) fn stop(reason: Reason) {
    FIRST_REASON.store(reason as u8, Relaxed);
    STOPPED.store(true, Relaxed);
}

/// Connects to the agent, if that has not been done.
pub(crate) fn reach() {
    with_client(Client::reach);
}

/// As [`stop`], and the agent is not reached any more.
fn stop_for_good(reason: Reason) {
    stop(reason);
    keep_away();
}

/// The agent is not to be reached any more: it has been asked for whatever it can bring back.
pub(crate) fn keep_away() {
    KEEPS_AWAY.store(true, Relaxed);
}

/// Whether that is so. A process that uses io_uring makes itself known to it all the same: the other ends of its connections would be
/// shown as if they waited for it.
fn keeps_away() -> bool {
    KEEPS_AWAY.load(Relaxed) && first_reason() != Reason::IoUring as u8
}

/// Why a connection that begins now is not on the ring.
pub(crate) fn first_reason() -> u8 {
    FIRST_REASON.load(Relaxed)
}

/// The kernel gave the program `fd`: where that is the number of our connection to the agent, it was closed past this library.
#[inline]
pub(crate) fn make_room(fd: c_int) {
    if descriptor() == Some(fd)
        && let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
        && client.fd.as_ref().is_some_and(|own| own.as_raw_fd() == fd)
    {
        std::mem::forget(client.fd.take());
        client.lose_agent();
    }
}

/// The program is about to put a descriptor of its own on `target`: ours makes way, or goes.
pub(crate) fn move_away(target: c_int) {
    if !make_way(target)
        && descriptor() == Some(target)
        && !process::is_borrowed()
        && let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
        && descriptor() == Some(target)
    {
        client.lose_agent();
    }
}

/// Our descriptor takes another number than `target`, on which the caller puts another now. False: it is not there, or stays.
pub(crate) fn make_way(target: c_int) -> bool {
    if descriptor() == Some(target)
        && !process::is_borrowed()
        && let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
        && descriptor() == Some(target)
        && let Some(moved) = kernel::high_copy(target)
    {
        DESCRIPTOR.store(moved.as_raw_fd().cast_unsigned(), Relaxed);
        // The old one is closed by what is put there.
        std::mem::forget(client.fd.replace(moved));
        return true;
    }
    false
}

fn board() -> Option<&'static Board> {
    // SAFETY: boards are leaked, and their addresses stay mapped.
    unsafe { BOARD.load(Acquire).as_ref() }
}

/// The agent's descriptor, for hooks that must not let the program close it.
pub(crate) fn descriptor() -> Option<RawFd> {
    RawFd::try_from(DESCRIPTOR.load(Relaxed)).ok()
}

/// Reaches for the agent, if that has not been done: a listening program will have connections.
pub(crate) fn prepare() {
    if board().is_none()
        && let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        client.reach();
        client.read_mail();
    }
}

/// A free end record on the board.
pub(crate) fn take_row() -> Option<&'static Row> {
    prepare();
    let mut guard = CLIENT.lock()?;
    let client = guard.as_mut()?;
    // Under the lock: whoever loses the agent has the numbers begin anew, and on the board before they are those of living connections.
    let board = board()?;
    let index = match client
        .free_row(board)
        .or_else(|| client.find_left_row(board))
    {
        Some(index) => index,
        None if client.rows_used < board.row_count() => {
            client.rows_used += 1;
            board.header().rows_used.store(client.rows_used, Relaxed);
            client.rows_used - 1
        }
        None => return None,
    };
    let row = board.row(index)?;
    row.identity.hold_alone(process::holder());
    client.boards.enter(row);
    Some(row)
}

/// A connection of this process has its end record there no more. `last`: no process's connection has. Rows of a parent's board are
/// the parent's to reuse.
pub(crate) fn leave_row(row: &'static Row, last: bool) {
    if let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        if last {
            // Under the lock: it is found free from now on, and must not be found twice.
            row.identity.state.store(state::FREE, Release);
            client.rows_free.extend(row_index(row));
        }
        client.boards.leave(row, board());
    } else if last {
        row.identity.state.store(state::FREE, Release);
    }
}

fn row_index(row: &Row) -> Option<u32> {
    board()?.index_of(row)
}

/// A connection begins. In the eager modes it is offered at once.
pub(crate) fn tracked(fd: c_int, socket: &'static Socket) {
    if is_eager() && socket.phase.load(Relaxed) == phase::FRESH {
        offer(fd, socket);
    }
}

/// Counts a call on a connection that is not attached, and offers it when it has proved long enough.
#[inline]
pub(crate) fn count(fd: c_int, socket: &'static Socket, bytes: usize) {
    let calls = socket.calls.load(Relaxed).saturating_add(1);
    let bytes = socket.bytes.load(Relaxed).saturating_add(bytes as u64);
    socket.calls.store(calls, Relaxed);
    socket.bytes.store(bytes, Relaxed);
    let long = calls >= OFFER_AFTER_CALLS.load(Relaxed) || bytes >= OFFER_AFTER_BYTES.load(Relaxed);
    if socket.phase.load(Relaxed) == phase::FRESH {
        if long {
            offer(fd, socket);
        } else if calls % 64 == 4 {
            prepare();
            // One that began before there was a board is listed from now on.
            has_row_here(socket);
        }
    }
}

#[cold]
fn offer(fd: c_int, socket: &'static Socket) {
    if STOPPED.load(Relaxed) {
        return;
    }
    uring::look();
    if STOPPED.load(Relaxed) || !has_row_here(socket) {
        return;
    }
    let Some(mut guard) = CLIENT.lock() else {
        return;
    };
    let Some(client) = guard.as_mut() else { return };
    if socket.phase.load(Relaxed) != phase::FRESH || !table::is(fd, socket) {
        // Another thread has offered or closed it meanwhile.
        return;
    }
    if let Err(reason) = client.offer(fd, socket) {
        socket.row().identity.reason.store(reason as u8, Relaxed);
        if !matches!(reason, Reason::NoAgent | Reason::TooShort) {
            session::pass(socket, phase::FRESH, phase::KERNEL);
        }
    }
}

/// Whether the end record lies on this process's board: a forked child's lies on its parent's.
pub(crate) fn is_listed_here(socket: &Socket) -> bool {
    row_index(socket.row()).is_some()
}

/// Whether the end record lies on this process's board. One that began before there was a board, or on the board of a parent that has let
/// go of it, is moved.
fn has_row_here(socket: &'static Socket) -> bool {
    if is_listed_here(socket) {
        return true;
    }
    let Some(_moving) = MOVING.lock() else {
        return false;
    };
    // Another thread may have moved or closed it meanwhile.
    is_listed_here(socket)
        || socket.phase.load(Acquire) == phase::FRESH
            && socket.is_held_alone()
            && take_row().is_some_and(|row| socket.move_to(row))
}

/// Sees to it that a connection's end record lies on the board, if there is one: a fork copies others.
pub(crate) fn put_on_board(socket: &'static Socket) {
    if socket.phase.load(Relaxed) == phase::FRESH && !socket.has_board_row() {
        has_row_here(socket);
    }
}

/// Tells the agent that a connection's end has gone.
pub(crate) fn withdraw(offer_id: u64) {
    with_client(|client| client.withdraw(offer_id));
    // A segment that has come for what was closed would hold memory for as long as nobody reads it.
    glance();
}

/// Does something with what CLIENT guards. None: this very thread does already, or there is nothing.
fn with_client<T>(work: impl FnOnce(&mut Client) -> T) -> Option<T> {
    CLIENT.lock()?.as_mut().map(work)
}

/// Asks for a larger ring to send into.
pub(crate) fn grow(offer_id: u64) {
    with_client(|client| client.send(&ToAgent::Grow(Grow { offer_id })));
}

/// Asks for the segment of a connection of which the agent knows the other end, when that could not be done at once.
#[cold]
pub(crate) fn take(socket: &'static Socket) {
    with_client(|client| client.take(socket));
}

/// Waits for a segment that was asked for just now.
pub(crate) fn await_segment(socket: &Socket) {
    let is_offered = || socket.phase.load(Acquire) == phase::OFFERED;
    if !is_offered() {
        return;
    }
    let taken_at_ns = with_client(|client| client.taken_at_ns(socket)).unwrap_or(0);
    let deadline = taken_at_ns + SEGMENT_WAIT_MS * 1_000_000;
    while is_offered() && kernel::monotonic_ns() < deadline {
        glance();
        millrace_shm::sys::yield_now();
    }
}

/// Looks whether the agent has sent anything, at the cost of a load when it has not.
#[inline]
pub(crate) fn glance() {
    if let Some(board) = board()
        && board.mail() != MAIL_SEEN.load(Relaxed)
        && table::exists()
    {
        read_mail();
    }
}

#[cold]
fn read_mail() {
    if let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        // Not the board that was glanced at: another thread may have got a new one since.
        if let Some(board) = board() {
            MAIL_SEEN.store(board.mail(), Relaxed);
        }
        client.read_mail();
    }
}

/// In the eager modes: waits a little for the introduction of a connection whose first call that moves bytes this is.
#[cold]
pub(crate) fn wait_eagerly(socket: &'static Socket, fd: c_int) {
    let is_first = is_eager() && socket.calls.fetch_add(1, AcqRel) == 0;
    if !is_first || !may_be_introduced(fd) {
        return;
    }
    let status = kernel::status_flags(fd).unwrap_or(0);
    let patience_ms = if status & libc::O_NONBLOCK != 0 {
        EAGER_WAIT_SHORT_MS
    } else {
        EAGER_WAIT_MS
    };
    let vain = if wait_for_introduction(socket, patience_ms) {
        0
    } else {
        EAGER_VAIN.load(Relaxed) + 1
    };
    EAGER_VAIN.store(vain, Relaxed);
}

/// In the eager modes: joins a connection that has been accepted, if its other end is there to be introduced. Otherwise its first calls
/// would have to do that, and the program's next steps would be further apart than they are.
pub(crate) fn join_accepted(socket: &'static Socket, fd: c_int) {
    if is_eager() && may_be_introduced(fd) && wait_for_introduction(socket, EAGER_WAIT_SHORT_MS) {
        socket.is_joined_now(fd);
    }
}

/// Whether there is hope for an introduction: others were not waited for in vain, and neither end has shut down.
fn may_be_introduced(fd: c_int) -> bool {
    EAGER_VAIN.load(Relaxed) < EAGER_VAIN_MAX && kernel::is_established(fd)
}

/// Waits so long for the introduction of a connection that has been offered. False: it has not come.
fn wait_for_introduction(socket: &Socket, patience_ms: u64) -> bool {
    let deadline = kernel::monotonic_ns() + patience_ms * 1_000_000;
    let is_awaited =
        || socket.phase.load(Acquire) == phase::OFFERED && !socket.matched.load(Relaxed);
    // Not asleep: whoever sees the thread sleep believes that it is in the program's own call.
    while is_awaited() && kernel::monotonic_ns() < deadline {
        glance();
        millrace_shm::sys::yield_now();
    }
    !is_awaited()
}

/// For a forked child: the parent's connection to the agent is the parent's; a new one is made when needed.
pub(crate) fn forget_parent() {
    resume_introductions();
    RECALLING.force_unlock();
    LEAVING.store(0, Relaxed);
    DESCRIPTOR.store(u32::MAX, Relaxed);
    BOARD.store(std::ptr::null_mut(), Relaxed);
    if let Some(mut guard) = CLIENT.lock()
        && let Some(client) = guard.as_mut()
    {
        client.fd = None;
        client.asked_at_ns = None;
        client.withdrawals.clear();
        client.retry_at_ns = 0;
        client.offers.clear();
        client.rows_free.clear();
        client.rows_in_use.clear();
        client.rows_used = 0;
        client.boards.vacate_unused(None);
    }
}

/// Keeps introductions away until [`resume_introductions`], so that a fork copies no half-made state.
pub(crate) fn stop_introductions() {
    let (moving, mut client) = (MOVING.lock(), CLIENT.lock());
    // What came later the parent could not use while the child has the connection, too, and the other end would wait for it in vain.
    if let Some(client) = client.as_mut().and_then(|client| client.as_mut()) {
        client.untake_all();
    }
    std::mem::forget((moving, client));
}

/// See [`stop_introductions`].
pub(crate) fn resume_introductions() {
    CLIENT.force_unlock();
    MOVING.force_unlock();
}

/// Keeps this process from giving connections to others during a closure, which waits for no introduction.
pub(crate) fn keep_holders<T>(work: impl FnOnce() -> T) -> T {
    let _moving = MOVING.lock();
    work()
}

/// Gives a connection to another process in a closure: nobody joins it meanwhile, or moves its end record.
pub(crate) fn share<T>(work: impl FnOnce() -> T) -> T {
    keep_holders(|| hold_still(work))
}

/// Keeps introductions away while a closure joins one.
pub(crate) fn hold_still<T>(work: impl FnOnce() -> T) -> T {
    let _guard = CLIENT.lock();
    work()
}
