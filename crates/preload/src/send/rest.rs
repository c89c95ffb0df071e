//! What is left of a message after the ring took its first part goes by the kernel, and what a signal does to it.
//!
//! In the kernel a signal that comes while a call is under way ends its next wait: with the count of what was sent, if anything was. Our
//! calls are several of the kernel's, and one that begins after the handler has run knows nothing of that.

use libc::c_int;
use millrace_shm::board::Row;

use super::room::is_interrupted;
use super::turn::end_parts;
use super::{Call, Course, Several, account, end_raw};
use crate::kernel::{self, kernel};
use crate::receive::{header_of, keep_error};
use crate::socket::Socket;
use crate::thread::{Busy, Interrupts};
use crate::vectors::Vectors;
use crate::waits::{Waited, Waits};
use crate::{Outcome, real, spin, table, thread};

/// The kernel counts time-outs in its timer's ticks: so long at least, in nanoseconds.
const NS_OF_TICK: u64 = 1_000_000;

/// Sends what is left after the ring took the first part. Errors are for the next call: a part has been sent.
pub(super) fn send_rest(
    socket: &'static Socket,
    row: &'static Row,
    call: &Call<'_>,
    vectors: &Vectors<'_>,
    course: &mut Course,
) -> isize {
    let interrupts = course.interrupts;
    if kernel::has_failed(call.fd) {
        // The kernel tells of an error once: the next call takes it.
        account(socket, row, 0);
        return 0;
    }
    let errno = thread::errno();
    let waits = call.flags & libc::MSG_DONTWAIT == 0 && !socket.is_nonblocking();
    // What the kernel takes at once comes before the messages of other threads, and of handlers.
    // Nothing where another thread has closed the connection: the number may be anything.
    let mut busy = Some(course.busy.take().unwrap_or_else(Busy::new));
    let mut last = match table::is(call.fd, socket) {
        true => thread::told(send_at_once(call.fd, call, vectors, QUIETLY)),
        false => 0,
    };
    end_parts(&row.send);
    let mut result = last;
    let taken = last.max(0).cast_unsigned();
    let has_no_room = last >= 0 || thread::errno() == libc::EAGAIN;
    let waits = waits && !is_interrupted(interrupts);
    if waits && has_no_room && taken < vectors.remaining() {
        let mut rest = vectors.clone();
        rest.skip(taken);
        let until_ns = until_ns(call.fd, course.waited);
        let waits = Waits::new(socket, call.fd, until_ns, interrupts);
        drop(course.message.take());
        last = send_in_pieces((socket, row), call, rest, (waits, &mut busy));
        result = if taken > 0 {
            result + last.max(0)
        } else {
            last
        };
    }
    if last < 0 {
        keep_error_of_rest((socket, row), call.fd, thread::errno());
    }
    account(socket, row, result);
    thread::set_errno(errno);
    // Handlers, which may leave by a jump, run when the message is over.
    course.busy = busy;
    result
}

/// The error that ended a message of which a part was sent is for the next call; but for EPIPE after a shutdown of our own, which comes
/// again by itself. It is kept in the `row` of the call: the connection may have been closed meanwhile, and its object be another's.
fn keep_error_of_rest((socket, row): (&'static Socket, &Row), fd: c_int, error: c_int) {
    if error != libc::EPIPE || socket.is_reset_behind_end(fd) {
        keep_error(row, error);
    }
}

/// Until when, of CLOCK_MONOTONIC in nanoseconds, a call may wait that has waited so many cycles for the ring's reader.
fn until_ns(fd: c_int, waited: u64) -> u64 {
    patience_ns(fd).map_or(u64::MAX, |patience_ns| {
        let waited_ns = waited.saturating_mul(1024) / spin::cycles(1024).max(1);
        kernel::monotonic_ns().saturating_add(left_ns(patience_ns, waited_ns))
    })
}

/// What is left of such a time-out.
fn left_ns(patience_ns: u64, waited_ns: u64) -> u64 {
    match waited_ns > NS_OF_TICK {
        true => patience_ns.saturating_sub(waited_ns),
        false => patience_ns,
    }
}

/// How long a call may wait, by SO_SNDTIMEO. None: for ever.
fn patience_ns(fd: c_int) -> Option<u64> {
    let [seconds, micros] = kernel::option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO)?;
    let patience_ns = u64::saturating_mul(seconds, 1_000_000_000).saturating_add(micros * 1000);
    (patience_ns != 0).then_some(patience_ns)
}

/// Sends what is left whenever there is room, until any handler has run: a part has been sent, of which the kernel does not know.
/// Handlers wait meanwhile, `busy`, but where a part sleeps. A count, or -1 with the error.
#[cold]
fn send_in_pieces(
    (socket, row): (&'static Socket, &Row),
    call: &Call<'_>,
    mut rest: Vectors<'_>,
    (mut waits, busy): (Waits, &mut Option<Busy>),
) -> isize {
    let mut sent = 0;
    while rest.remaining() > 0 {
        match waits.once(libc::POLLOUT) {
            Waited::Ready(_) | Waited::Refused => {}
            Waited::Again => continue,
            Waited::Over => break,
        }
        let part = if waits.are_refused() {
            drop(busy.take());
            if let Some(several) = call.several {
                several.let_handlers_run();
            }
            if !waits.leave_to_kernel() {
                break;
            }
            send_asleep(call, &rest)
        } else {
            // No place for a cancellation, as `waits` has a descriptor of its own.
            send_at_once(waits.fd(), call, &rest, QUIETLY)
        };
        if part >= 0 {
            rest.skip(part.cast_unsigned());
            sent += part;
        } else if part == -(libc::EAGAIN as isize) {
            if waits.are_over() {
                break;
            }
            waits.rest();
        } else {
            if sent > 0 {
                keep_error_of_rest((socket, row), waits.fd(), -(part as i32));
                break;
            }
            thread::set_errno(-(part as i32));
            return -1;
        }
    }
    sent
}

/// Sends a message of which nothing is on the ring, where a handler has run since the call began: without a wait.
#[cold]
pub(super) fn send_interrupted(
    socket: &'static Socket,
    row: &'static Row,
    call: &Call<'_>,
    vectors: &Vectors<'_>,
    (interrupts, raw): (Interrupts, &mut dyn FnMut() -> isize),
) -> Outcome {
    let errno = thread::errno();
    let is_due = socket.error() != 0 || !table::is(call.fd, socket);
    if is_due || call.flags & libc::MSG_DONTWAIT != 0 || socket.is_nonblocking() {
        return end_raw(socket, call.fd, row, raw);
    }
    let sent = send_list(call, vectors, libc::MSG_DONTWAIT);
    let error = thread::errno();
    thread::set_errno(errno);
    let is_first = call.several.is_none() && patience_ns(call.fd).is_none();
    let is_restarted = is_first && !interrupts.end_call(false);
    if sent < 0 && error == libc::EAGAIN && is_restarted {
        return end_raw(socket, call.fd, row, raw);
    }
    account(socket, row, sent);
    match (sent < 0, error) {
        (false, _) => Outcome::Handled(sent),
        (true, libc::EAGAIN) => Outcome::Errno(libc::EINTR),
        (true, error) => Outcome::Errno(error),
    }
}

/// Sends a message that may be one of several of the program's call, in whose waits handlers wait, too; `blocking` would be a call by
/// itself. A count, or -1 with the error.
pub(super) fn send_one(
    (socket, row): (&'static Socket, &Row),
    call: &Call<'_>,
    vectors: &Vectors<'_>,
    (how, blocking): (c_int, &mut dyn FnMut() -> isize),
) -> isize {
    let waits = call.flags & libc::MSG_DONTWAIT == 0 && !socket.is_nonblocking();
    match call.several {
        Some(several) if waits && table::is(call.fd, socket) => {
            send_one_of_several((socket, row), call, vectors, (how, several))
                .unwrap_or_else(blocking)
        }
        _ => blocking(),
    }
}

/// None: the next call meets an error that comes again, and has the signal for it.
#[cold]
fn send_one_of_several(
    (socket, row): (&'static Socket, &Row),
    call: &Call<'_>,
    vectors: &Vectors<'_>,
    (how, several): (c_int, &Several),
) -> Option<isize> {
    let errno = thread::errno();
    let until_ns = until_ns(call.fd, 0);
    loop {
        let taken = send_at_once(call.fd, call, vectors, how);
        if taken < 0 && taken != -(libc::EAGAIN as isize) {
            return Some(thread::told(taken));
        }
        let taken = taken.max(0);
        let mut rest = vectors.clone();
        rest.skip(taken.cast_unsigned());
        let waits = Waits::new(socket, call.fd, until_ns, several.began());
        match send_in_pieces((socket, row), call, rest, (waits, &mut None)) {
            0 if taken == 0 => {
                let error = match kernel::monotonic_ns() < until_ns {
                    true => libc::EINTR,
                    false => libc::EAGAIN,
                };
                let may_restart = until_ns == u64::MAX && !several.has_some();
                if may_restart && several.begin_again() && table::is(call.fd, socket) {
                    continue;
                }
                return Some(thread::told(-(error as isize)));
            }
            more @ 0.. => return Some(taken + more),
            _ if taken > 0 => {
                keep_error_of_rest((socket, row), call.fd, thread::errno());
                thread::set_errno(errno);
                return Some(taken);
            }
            _ if thread::errno() == libc::EPIPE => return None,
            error => return Some(error),
        }
    }
}

/// Errors are for the next call: this one has no signal for them.
const QUIETLY: c_int = libc::MSG_NOSIGNAL;

/// [`send_list`] that may wait: a count, or a negated error number.
fn send_asleep(call: &Call<'_>, vectors: &Vectors<'_>) -> isize {
    let errno = thread::errno();
    let sent = send_list(call, vectors, QUIETLY);
    let error = thread::errno();
    thread::set_errno(errno);
    if sent < 0 { -(error as isize) } else { sent }
}

/// [`send_list`] without a wait, by a descriptor that may be another, where no thread may be cancelled: a count, or a negated error number.
fn send_at_once(fd: c_int, call: &Call<'_>, vectors: &Vectors<'_>, how: c_int) -> isize {
    let mut list = vectors.list();
    let header = header_of(&mut list);
    let flags = call.flags | how | libc::MSG_DONTWAIT;
    kernel!(libc::SYS_sendmsg, fd, &raw const header, flags)
}

/// The program's call for what is left of its buffers, with further flags.
pub(super) fn send_list(call: &Call<'_>, vectors: &Vectors<'_>, how: c_int) -> isize {
    let mut list = vectors.list();
    let header = header_of(&mut list);
    let flags = call.flags | how;
    // SAFETY: the program's own buffers.
    unsafe { real::sendmsg(call.fd, &raw const header, flags) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_the_reader_counts() {
        let left = |waited| left_ns(5 * NS_OF_TICK, waited * NS_OF_TICK) / NS_OF_TICK;
        assert_eq!([1, 2, 6].map(left), [5, 3, 0]);
    }
}
