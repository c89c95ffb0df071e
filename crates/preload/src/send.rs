//! Sending on a tracked connection.

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use libc::{c_int, iovec};
use millrace_shm::board::{Row, SendState, flags};
use millrace_shm::gate::Gate;
use millrace_shm::segment::SMALL_RING_BYTES;
use millrace_stream::{SendHalf, SendPlan, step_of};
use millrace_wire::Reason;

use crate::client::{self, CHAOS};
use crate::socket::{Locked, Socket};
use crate::spin::{self, cycles};
use crate::thread;
use crate::vectors::Vectors;
use crate::{Outcome, fault, kernel, table, user};

mod begun;
mod course;
mod merge;
mod rest;
mod room;
mod several;
mod turn;

pub(crate) use begun::{Begun, await_messages};
use course::Course;
pub(crate) use merge::Merging;
use merge::send_merged;
use rest::{send_interrupted, send_one, send_rest};
use room::wait_for_room;
pub(crate) use several::Several;
pub(crate) use turn::leave_to_kernel;
use turn::{Turn, end_parts};

/// Flags that the ring can honour. MSG_MORE and MSG_NOSIGNAL change nothing on it; MSG_EOR and MSG_CONFIRM mean nothing to TCP.
const RING_FLAGS: c_int =
    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR | libc::MSG_CONFIRM;

/// Steps without progress after which a send goes by the kernel.
const FRUITLESS_STEPS_MAX: u32 = 64;
/// A direction that has filled its ring and carried so much is bulk.
const BULK_BYTES: u64 = 8 << 20;
/// After asking for a larger ring, nanoseconds until the next time.
const NS_BETWEEN_QUESTIONS: u64 = 10_000_000;
/// So far ahead of a small message the lines of the ring are asked for, where the reader has been last: a publish waits for them.
const AHEAD_BYTES: u32 = 256;
/// A longer message has them come while it is copied.
const AHEAD_BYTES_MAX: u32 = 4096;
/// The reader's progress is looked at so often, in nanoseconds, to keep the times of unread messages.
const NS_BETWEEN_STAMP_LOOKS: u64 = 1_000;
/// The kernel copies what is sent into pieces of memory of at most this many bytes.
const KERNEL_STEP_BYTES: usize = 32 << 10;

/// One program's call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) fd: c_int,
    pub(crate) list: &'a [iovec],
    pub(crate) flags: c_int,
    /// For one of several messages of the program's call.
    pub(crate) several: Option<&'a Several>,
}

/// Sends `call` on `socket`; `raw` is the program's own system call.
///
/// Forced unwinding (a cancelled thread) may leave `raw`: the count of raw calls then stays up and the connection on the kernel's road.
#[inline]
pub(crate) fn send(
    socket: &'static Socket,
    call: &Call<'_>,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    if socket.is_joined(call.fd) {
        thread::test_cancel();
        return send_joined(socket, call, raw);
    }
    if let Some(several) = call.several {
        several.let_handlers_run();
    }
    match send_unjoined(socket, (call.fd, call.flags), raw) {
        Some(result) => Outcome::Handled(result),
        None => send_joined(socket, call, raw),
    }
}

/// Makes the program's own call on a connection that is on no ring; it returns how many bytes it sent. None: it is on one now.
#[inline]
pub(crate) fn send_unjoined(
    socket: &'static Socket,
    (fd, flags): (c_int, c_int),
    raw: &mut dyn FnMut() -> isize,
) -> Option<isize> {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
        pin_for_flags(socket, flags);
    }
    let row = socket.begin_raw_send(fd)?;
    let result = raw();
    end_unjoined(row, result);
    if result > 0 {
        client::count(fd, socket, result.cast_unsigned());
    }
    Some(result)
}

/// The kernel's alone is what these flags ask for.
#[cold]
fn pin_for_flags(socket: &'static Socket, asked: c_int) {
    let (which, reason) = if asked & libc::MSG_OOB != 0 {
        // Nor does it join any more: what lies unread at the peer is counted up to an urgent byte only.
        (flags::SEND_PINNED, Reason::UrgentData)
    } else if asked & libc::MSG_ZEROCOPY != 0 {
        // What became of the memory the kernel tells by an error, for which programs wait as for bytes.
        (flags::SEND_PINNED | flags::RECEIVE_PINNED, Reason::Zerocopy)
    } else {
        (flags::SEND_PINNED, Reason::Zerocopy)
    };
    socket.pin_flags(which, reason);
}

fn send_joined(
    socket: &'static Socket,
    call: &Call<'_>,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    if call.flags & !RING_FLAGS != 0 {
        pin_for_flags(socket, call.flags);
    }
    let Some(mut vectors) = Vectors::new(call.list) else {
        return send_raw(socket, call.fd, 0, raw);
    };
    let total = vectors.remaining();
    let interrupts = call.several.map_or_else(thread::interrupts, Several::began);
    let mut course = Course::begin(interrupts);
    let mut turn = Turn::default();
    while course.sent < total {
        match send_step(socket, call, &mut vectors, &mut course, &mut turn) {
            Step::Ring(bytes) => course.advance(bytes),
            Step::Unknown(bytes) => course.ask_for(&vectors, bytes),
            Step::Again => {}
            Step::OthersTurn => turn.pass(),
            Step::Gone => break,
            Step::Fault => {
                return if course.sent > 0 {
                    done(socket.row(), course.sent)
                } else {
                    Outcome::Errno(libc::EFAULT)
                };
            }
            Step::Kernel(row) if course.sent == 0 && course.interrupts.end_call(true) => {
                return send_interrupted(socket, row, call, &vectors, (course.interrupts, raw));
            }
            Step::Kernel(row) if course.sent == 0 => {
                let mut send = || {
                    send_merged(socket, call, &vectors)
                        .unwrap_or_else(|| send_one((socket, row), call, &vectors, (0, raw)))
                };
                return end_raw(socket, call.fd, row, &mut send);
            }
            Step::Kernel(row) => {
                let rest = send_rest(socket, row, call, &vectors, &mut course);
                return done(row, course.sent + rest.max(0).cast_unsigned());
            }
        }
    }
    if course.sent == 0 {
        if total == 0 {
            // Of a reset it hears as any other.
            socket.look_for_kill(call.fd);
        }
        return send_raw(socket, call.fd, total, raw);
    }
    done(socket.row(), course.sent)
}

fn done(row: &Row, sent: usize) -> Outcome {
    end_parts(&row.send);
    let messages = &row.send.ring_messages;
    messages.store(messages.load(Relaxed) + 1, Relaxed);
    Outcome::Handled(sent.cast_signed())
}

enum Step {
    /// So many bytes are published.
    Ring(usize),
    /// The gate moved, or room may have come.
    Again,
    /// Another thread is in the middle of its message.
    OthersTurn,
    /// The next bytes go by the kernel; the raw call has been announced in the row.
    Kernel(&'static Row),
    /// Nobody has asked yet whether so many bytes of the program's buffer can be read.
    Unknown(usize),
    /// They cannot.
    Fault,
    /// The descriptor is not this connection any more.
    Gone,
}

#[inline]
fn send_step(
    socket: &'static Socket,
    call: &Call<'_>,
    vectors: &mut Vectors<'_>,
    course: &mut Course,
    turn: &mut Turn,
) -> Step {
    let want = vectors.remaining();
    let Some(locked) = socket.lock_send(call.fd) else {
        return Step::Gone;
    };
    if turn.is_others(&socket.row().send) {
        return Step::OthersTurn;
    }
    if locked.is_nested() || course.fruitless > FRUITLESS_STEPS_MAX {
        // What we interrupted may be copying to the same place; and a gate that never holds still is a hostile reader's.
        return Step::Kernel(begin_raw(socket, call.fd, &locked, want));
    }
    course.fruitless += 1;
    let now = spin::clock();
    let is_awaited = course.message.is_some() && socket.begun.is_awaited(now);
    if CHAOS.strikes(6) || is_awaited || course.is_cut() {
        locked.half.leave();
    }
    locked.segment().words(locked.direction).will_write();
    socket.look_after_reader(call.fd, &locked, now);
    match locked.half.plan(want) {
        Ok(SendPlan::Ring {
            gate,
            bytes,
            window,
            first,
        }) => {
            if first {
                begin_epoch(socket, call.fd, &locked, gate);
            }
            let part = (CHAOS.cut(bytes.min(step_of(window))), window);
            let step = ring_step(&locked, gate, part, (vectors, course.asked), now);
            course.note_step(socket, &step, want);
            step
        }
        Ok(SendPlan::Full { gate, head, widens }) => {
            // What will be replaced by a larger window as soon as it is drained is no room.
            let from = if widens { gate.tail } else { head };
            let waited = wait_for_room(socket, call, locked, (gate, from), course);
            if !waited && let Some(locked) = socket.lock_send(call.fd) {
                locked.half.overflow(gate);
            }
            let sent = socket.row().send.ring_bytes.load(Relaxed);
            let is_small = gate.window_log2 == SMALL_RING_BYTES.ilog2() || sent > BULK_BYTES;
            if !widens && is_small && may_ask_for_more(socket) {
                ask_for_more(socket);
            }
            Step::Again
        }
        Ok(SendPlan::Kernel) if locked.half.is_outgrown_by(want) && may_ask_for_more(socket) => {
            drop(locked);
            ask_for_more(socket);
            Step::Again
        }
        Ok(SendPlan::Kernel) => Step::Kernel(begin_raw(socket, call.fd, &locked, want)),
        Err(_) => {
            drop(locked);
            socket.corrupt(call.fd);
            Step::Again
        }
    }
}

/// The ring is small for what is sent: asks the agent for a larger one. The half is not locked: whoever holds the introductions still may
/// wait for its lock.
#[cold]
fn ask_for_more(socket: &Socket) {
    socket.asked_at.store(spin::clock(), Relaxed);
    client::grow(socket.offer_id.load(Relaxed));
}

/// Not again and again.
fn may_ask_for_more(socket: &Socket) -> bool {
    let asked_at = socket.asked_at.load(Relaxed);
    asked_at == 0 || spin::clock().wrapping_sub(asked_at) > cycles(NS_BETWEEN_QUESTIONS)
}

/// Takes the kernel's own count of what went by it: bytes that passed around the library count too.
#[cold]
fn begin_epoch(socket: &Socket, fd: c_int, locked: &Locked<SendHalf<'_>>, gate: Gate) {
    spin::note_reader(locked.half.reader_processor());
    socket.merging.use_ring();
    socket.hide_no_delay_again(fd);
    // The half is locked: no handler that sends by the kernel comes between the count and its use.
    let counted = (locked.half.kernel_position(), false);
    let sent = kernel::sent_and_held(fd, socket.active.load(Relaxed));
    let (position, is_held) = sent.unwrap_or(counted);
    if is_held {
        // The beginning of a message that was said to go on (MSG_MORE, TCP_CORK), which it does here. TCP_NODELAY is set, and pushes.
        kernel::set_no_delay(fd, true);
    }
    locked.half.begin_epoch(gate, position);
}

/// Whether this holds of all of the memory of the next `bytes` bytes.
fn all_chunks(
    vectors: &Vectors<'_>,
    mut bytes: usize,
    holds: impl Fn(*const u8, usize) -> bool,
) -> bool {
    let mut cursor = vectors.clone();
    loop {
        let (source, length) = cursor.chunk();
        let part = length.min(bytes);
        if part == 0 {
            return true;
        }
        if !holds(source, part) {
            return false;
        }
        cursor.advance(part);
        bytes -= part;
    }
}

/// Copies up to `bytes` to the ring and publishes them at once.
#[inline]
fn ring_step(
    locked: &Locked<SendHalf<'_>>,
    gate: Gate,
    (bytes, window): (u32, u32),
    (vectors, asked): (&mut Vectors<'_>, usize),
    now: u64,
) -> Step {
    let needed = KERNEL_STEP_BYTES.max(bytes as usize);
    let has_asked = asked >= needed;
    let is_there = |source, part| match has_asked {
        true => user::may_read(source, part),
        false => user::is_known(source, part),
    };
    let refused = match has_asked {
        true => Step::Fault,
        false => Step::Unknown(needed),
    };
    // Of what the kernel would take at once it takes all or nothing.
    if (bytes as usize) < vectors.remaining() && !all_chunks(vectors, KERNEL_STEP_BYTES, is_there) {
        return refused;
    }
    if bytes <= AHEAD_BYTES_MAX {
        let next = gate.tail.wrapping_add(bytes.max(AHEAD_BYTES));
        locked
            .segment()
            .will_write(locked.direction, next, window, bytes);
    }
    let mut cursor = vectors.clone();
    let mut copied = 0;
    while copied < bytes {
        let (source, length) = cursor.chunk();
        let part = (bytes - copied).min(u32::try_from(length).unwrap_or(u32::MAX));
        let to = gate.tail.wrapping_add(copied);
        if !is_there(source, part as usize) {
            return refused;
        }
        // SAFETY: the memory is the program's buffer; a part that is not there ends the copy.
        let copy = || unsafe {
            locked
                .segment()
                .write(locked.direction, to, window, source, part)
        };
        if !fault::guarded(copy) {
            // As in the kernel, nothing of this part has been sent.
            user::forget();
            return Step::Fault;
        }
        cursor.advance(part as usize);
        copied += part;
    }
    locked.half.note_processor(spin::processor());
    let tail = gate.tail.wrapping_add(copied);
    let stamped = locked.half.stamp(tail, now, kernel::told_at());
    if !locked.half.commit(gate, copied) {
        locked.half.take_stamp_back(stamped);
        return Step::Again;
    }
    let between = cycles(NS_BETWEEN_STAMP_LOOKS);
    locked.half.look_after_stamps(now, between);
    *vectors = cursor;
    Step::Ring(copied as usize)
}

/// Makes the program's own call, which only the kernel can serve: in order after what is in the ring, and counted.
pub(crate) fn by_kernel(
    socket: &'static Socket,
    fd: c_int,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    if socket.is_joined(fd) {
        // It does not look after its reader, as one that may go by the ring.
        socket.look_for_kill(fd);
        return send_raw(socket, fd, 0, raw);
    }
    let Some(row) = socket.begin_raw_send(fd) else {
        return send_raw(socket, fd, 0, raw);
    };
    let result = raw();
    end_unjoined(row, result);
    Outcome::Handled(result)
}

/// Ends a call that [`Socket::begin_raw_send`] announced. It is counted before the announcement goes: at the join the
/// kernel's own count takes the place of ours.
fn end_unjoined(row: &Row, result: isize) {
    count_kernel_message(&row.send, result);
    // A peer without Millrace does not look at any ring.
    if row.identity.reason.load(Relaxed) != Reason::NotBothEnds as u8 {
        kernel::note_told();
    }
    row.send.raw.fetch_sub(1, SeqCst);
}

fn count_kernel_message(send: &SendState, result: isize) {
    if result > 0 {
        send.kernel_position
            .fetch_add(result.cast_unsigned() as u64, SeqCst);
        send.kernel_messages
            .store(send.kernel_messages.load(Relaxed) + 1, Relaxed);
    }
}

/// Announces and makes the program's own call.
fn send_raw(
    socket: &'static Socket,
    fd: c_int,
    bytes: usize,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    let Some(locked) = turn::lock_in_turn(socket, fd) else {
        return table::gone(fd);
    };
    let row = begin_raw(socket, fd, &locked, bytes);
    drop(locked);
    end_raw(socket, fd, row, raw)
}

/// Announces that bytes go by the kernel.
fn begin_raw(
    socket: &Socket,
    fd: c_int,
    locked: &Locked<SendHalf<'_>>,
    bytes: usize,
) -> &'static Row {
    socket.settle_no_delay(fd);
    spin::note_reader(locked.half.reader_processor());
    locked.half.stamp_kernel(spin::clock());
    locked.half.begin_kernel(bytes);
    socket.row()
}

/// Makes the program's own call, which has been announced in `row`.
#[inline]
fn end_raw(
    socket: &'static Socket,
    fd: c_int,
    row: &'static Row,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    if row.identity.flags.load(Relaxed) & flags::SEND_PINNED != 0 {
        // The program may have shut this direction down: then the kernel does not tell of a reset that it does not know of.
        socket.look_for_kill(fd);
    }
    let error = socket.take_kept_error(fd);
    if error != 0 && error != libc::EPIPE {
        // The kernel told a receiving call of it, which had bytes to return. EPIPE comes again, with its signal.
        account(socket, row, 0);
        return Outcome::Errno(error);
    }
    let result = raw();
    account(socket, row, result);
    Outcome::Handled(result)
}

fn account(socket: &Socket, row: &Row, result: isize) {
    let send = &row.send;
    count_kernel_message(send, result);
    kernel::note_told();
    socket.sent_by_kernel.store(true, Release);
    // Release: pairs with the Acquire in `SendHalf::plan`; the position comes before the count goes down.
    send.raw.fetch_sub(1, Release);
}
