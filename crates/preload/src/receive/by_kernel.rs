//! What a receiving call gets, or learns, from the kernel.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use libc::{c_int, iovec, timespec};
use millrace_shm::board::{ReceiveState, Row};
use millrace_stream::ReceiveHalf;

use super::rest::gather_rest;
use super::{Call, Progress, Step, has_copy_only};
use crate::client::CHAOS;
use crate::kernel::{self, kernel};
use crate::socket::{Locked, Socket, keep_error_in};
use crate::waits::await_events;
use crate::{Outcome, real, spin, thread};

/// How often a send that is under way is looked at before an end of stream is believed.
const LOOKS_FOR_ERROR: u32 = 1000;
/// Where other threads may receive, a wait for bytes that are on their way lasts so long at most, in nanoseconds.
const NS_OF_WAIT: u64 = 1_000_000;

/// Takes the kernel's own count of what has been taken from it: somebody may have read around the library.
/// False: our count was right.
#[cold]
pub(super) fn recount(socket: &Socket, fd: c_int) -> bool {
    let position = &socket.row().receive.kernel_position;
    match kernel::taken(fd) {
        Some(taken) => position.swap(taken, SeqCst) != taken,
        None => false,
    }
}

/// Takes at most `limit` bytes that the kernel holds before the ring's. A count, or a negated error number.
pub(super) fn take_from_kernel(
    socket: &Socket,
    call: &Call<'_>,
    progress: &mut Progress<'_>,
    limit: u64,
) -> isize {
    let flags = call.flags & (libc::MSG_PEEK | libc::MSG_TRUNC);
    // The half is locked: no handler that reads the same connection comes between the call and its accounting.
    let (target, length) = progress.vectors.chunk();
    let bytes = length.min(usize::try_from(limit).unwrap_or(usize::MAX));
    let taken = kernel::receive_now(call.fd, target, bytes, flags);
    if let Ok(taken) = usize::try_from(taken)
        && !call.has(libc::MSG_PEEK)
    {
        socket
            .row()
            .receive
            .kernel_position
            .fetch_add(taken as u64, SeqCst);
        progress.vectors.advance(taken);
    }
    progress.got += usize::try_from(taken).unwrap_or(0);
    taken
}

/// The ring is empty and the program will not wait: only the kernel knows of an ending, or of bytes sent while the gate was closed.
pub(super) fn look_in_kernel(
    socket: &Socket,
    fd: c_int,
    locked: &Locked<ReceiveHalf<'_>>,
    tail: u32,
) -> Step {
    let mut scratch = 0u8;
    let seen = kernel::receive_now(fd, &raw mut scratch, 1, libc::MSG_PEEK);
    if locked.half.tail() != tail {
        // Bytes came to the ring meanwhile; they were sent before whatever the kernel has to say.
        if seen < 0 {
            keep_error(socket.row(), -(seen as i32));
        }
        return Step::Again;
    }
    if seen == 0 && has_copy_only(socket, fd) {
        return Step::Corrupt;
    }
    if seen <= 0 {
        return Step::End(seen);
    }
    locked.half.close(tail);
    Step::Again
}

/// Sleeps until the kernel has bytes, or for a while, without taking any. Err: the call ends by this error, if it has nothing to return.
pub(super) fn await_kernel(fd: c_int, progress: &mut Progress<'_>) -> Result<(), c_int> {
    if thread::is_alone() && progress.got == 0 {
        // The same restarts, time-outs and errors as the program's own call.
        let mut scratch = 0u8;
        // SAFETY: one byte of ours.
        let result = unsafe { real::recv(fd, (&raw mut scratch).cast(), 1, libc::MSG_PEEK) };
        return if result < 0 {
            Err(thread::errno())
        } else {
            Ok(())
        };
    }
    // Another thread may take the kernel's bytes and leave some of the ring's, of which the kernel does not tell: only for a while.
    let until_ns = match progress.awaits_until_ns {
        Some(until_ns) => until_ns,
        None => *progress.awaits_until_ns.insert(deadline_ns(fd)),
    };
    let now_ns = kernel::monotonic_ns();
    if now_ns >= until_ns {
        return Err(libc::EAGAIN);
    }
    let readable = await_events(
        fd,
        libc::POLLIN | libc::POLLRDHUP,
        (until_ns - now_ns).min(NS_OF_WAIT),
    );
    // A call that is timed is not restarted, nor is one that has a part, also after a stop of the process, which has no handler.
    let any_does = progress.got > 0 || until_ns != u64::MAX;
    let is_stopped = any_does && readable == -libc::EINTR;
    if readable <= 0 && (is_stopped || progress.interrupts.end_call(any_does)) {
        return Err(libc::EINTR);
    }
    Ok(())
}

/// How long a call waits, by SO_RCVTIMEO. None: for ever.
pub(super) fn patience_of(fd: c_int) -> Option<timespec> {
    let zero = [0i64; 2];
    let given = kernel::option::<[i64; 2]>(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO).unwrap_or(zero);
    (given != zero).then(|| timespec {
        tv_sec: given[0],
        tv_nsec: given[1] * 1000,
    })
}

/// When a call that begins now is over, by SO_RCVTIMEO.
pub(crate) fn deadline_ns(fd: c_int) -> u64 {
    patience_of(fd).map_or(u64::MAX, |patience| {
        let patience_ns = patience.tv_sec.unsigned_abs().saturating_mul(1_000_000_000);
        (kernel::monotonic_ns().saturating_add(patience_ns))
            .saturating_add(patience.tv_nsec.unsigned_abs())
    })
}

/// Makes the program's own call, which has been announced in `row`, and opens the ring when it brought something.
pub(super) fn end_raw(
    socket: &'static Socket,
    call: &Call<'_>,
    row: &'static Row,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    let started = spin::clock();
    let result = make_call(socket, call, raw);
    if result > 0 {
        socket.spinner.slept(started);
    }
    account(socket, call, row, result);
    let is_end = || call.wanted() > 0 || !call.list.is_empty() && kernel::unread(call.fd) == 0;
    if result == 0 && is_end() {
        return ending(socket, call.fd);
    }
    Outcome::Handled(result)
}

/// Makes the program's own call, and takes note of what it says of how the program waits.
pub(super) fn make_call(socket: &Socket, call: &Call<'_>, raw: &mut dyn FnMut() -> isize) -> isize {
    let habits = &socket.habits;
    // Where the gate is closed for good, the program may allow no further system call. Most connections end before they are offered: what
    // is to be learnt costs them nothing.
    let is_settled = habits.is_waited_for_beside() || socket.is_receive_pinned();
    if is_settled || !socket.is_candidate() {
        return raw();
    }
    if !call.waits(socket) {
        let started = spin::clock();
        let result = raw();
        let got = usize::try_from(result).unwrap_or(0);
        if got < call.wanted() && habits.are_in_calls_alone() {
            habits.end_calls();
        }
        if got > 0 {
            habits.note_found(started, got < call.wanted());
        } else if result < 0 && thread::errno() == libc::EAGAIN {
            habits.note_nothing();
        }
        return result;
    }
    let Some(slept_before) = habits.ask_for_waits() else {
        return raw();
    };
    if call.has(libc::MSG_WAITALL) && kernel::unread(call.fd) > 0 {
        // That it waits for the rest says nothing.
        habits.note_found(spin::clock(), false);
        let result = raw();
        habits.note_rest();
        return result;
    }
    let result = raw();
    if result > 0 {
        habits.note_call(slept_before);
    }
    result
}

/// Counts what a call took from the kernel. False: nothing.
pub(super) fn count_message(receive: &ReceiveState, call: &Call<'_>, result: isize) -> bool {
    let took = result > 0 && !call.has(libc::MSG_PEEK);
    if took {
        receive
            .kernel_position
            .fetch_add(result.cast_unsigned() as u64, SeqCst);
        receive
            .kernel_messages
            .store(receive.kernel_messages.load(Relaxed) + 1, Relaxed);
    }
    took
}

pub(super) fn account(socket: &'static Socket, call: &Call<'_>, row: &Row, result: isize) {
    let receive = &row.receive;
    let took = count_message(receive, call, result);
    // Release: pairs with the Acquire in `ReceiveHalf::try_open`; the position comes before the count goes down.
    receive.sleepers.fetch_sub(1, Release);
    if took {
        let errno = thread::errno();
        if let Some(locked) = socket.lock_receive(call.fd) {
            tell_taken(&locked, receive);
        }
        if !CHAOS.strikes(3) {
            socket.open_gate(call.fd, call.waits(socket));
        }
        thread::set_errno(errno);
    }
}

/// Lets the sender know how much has been taken from the kernel.
pub(super) fn tell_taken(locked: &Locked<ReceiveHalf<'_>>, receive: &ReceiveState) {
    let words = locked.segment().words(locked.direction);
    let position = receive.kernel_position.load(Relaxed);
    words.kernel_taken.store(position, Relaxed);
}

/// After ring bytes, with the half still locked: what the kernel has behind them by now. With MSG_WAITALL, the rest is still to be
/// waited for.
pub(super) fn take_rest(
    socket: &'static Socket,
    call: &Call<'_>,
    locked: &Locked<ReceiveHalf<'_>>,
    progress: &mut Progress<'_>,
) -> Step {
    let row = socket.row();
    if kernel::is_at_mark(call.fd) {
        // One call does not read across the mark of urgent data.
        return Step::Enough;
    }
    let mut taken = 0;
    // Where there are none, there may be an error, which is for the next call to take.
    if kernel::unread(call.fd) > 0 {
        let flags = call.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
        taken = receive_list(call.fd, &mut progress.vectors.list(), flags);
        count_message(&row.receive, call, taken);
    }
    if taken < 0 {
        keep_error(row, -(taken as i32));
        return Step::Enough;
    }
    progress.vectors.skip(taken.cast_unsigned());
    progress.got += taken.cast_unsigned();
    if taken > 0 {
        tell_taken(locked, &row.receive);
    }
    if call.has(libc::MSG_WAITALL) && call.waits(socket) && progress.got < progress.wanted {
        row.receive.sleepers.fetch_add(1, SeqCst);
        return Step::Raw(row);
    }
    if taken > 0 { Step::Rest } else { Step::Enough }
}

/// The system call alone: a count, or a negated error number.
pub(super) fn receive_list(fd: c_int, list: &mut [iovec], flags: c_int) -> isize {
    let mut header = header_of(list);
    kernel!(libc::SYS_recvmsg, fd, &raw mut header, flags)
}

/// A message of these buffers.
pub(crate) fn header_of(list: &mut [iovec]) -> libc::msghdr {
    // SAFETY: pointers and integers, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = list.as_mut_ptr();
    header.msg_iovlen = list.len();
    header
}

/// As `receive_list`, for a call that may wait: a thread can be cancelled in it.
pub(super) fn await_list(fd: c_int, list: &mut [iovec], flags: c_int) -> isize {
    let errno = thread::errno();
    let mut header = header_of(list);
    // SAFETY: the program's own buffers.
    let result = unsafe { real::recvmsg(fd, &raw mut header, flags) };
    let error = thread::errno();
    thread::set_errno(errno);
    if result < 0 {
        -(error as isize)
    } else {
        result
    }
}

/// The rest of a call with MSG_WAITALL, which has been announced in `row`.
pub(super) fn await_rest(
    socket: &'static Socket,
    call: &Call<'_>,
    row: &'static Row,
    progress: &mut Progress<'_>,
) {
    let result = gather_rest((socket, row), call, progress);
    if result < 0 {
        keep_error(row, -(result as i32));
    }
    account(socket, call, row, result);
    progress.got += usize::try_from(result).unwrap_or(0);
}

/// The kernel told of an error, which it does once, where there was something else to return: the next call that has nothing returns it.
pub(crate) fn keep_error(row: &Row, error: i32) {
    if !matches!(error, 0 | libc::EAGAIN | libc::EINTR | libc::EFAULT) {
        keep_error_in(row, error);
    }
}

/// The error that was kept for a receiving call, or zero. EPIPE is for sends: the stream had ended before.
pub(crate) fn kept_error(socket: &Socket, fd: c_int) -> i32 {
    match socket.error() {
        0 | libc::EPIPE => 0,
        _ => socket.take_kept_error(fd),
    }
}

/// What a receiving call comes to for which the kernel had the end of the stream: that, or the error that went before it.
#[cold]
pub(crate) fn ending(socket: &'static Socket, fd: c_int) -> Outcome {
    let raw = &socket.row().send.raw;
    for _ in 0..LOOKS_FOR_ERROR {
        // A send that the kernel has just told has not kept it yet. On a connection that is gone none waits.
        if raw.load(Acquire) == 0 || !kernel::has_hung_up(fd) {
            break;
        }
        millrace_shm::sys::yield_now();
    }
    socket.look_for_end(fd);
    socket.note_end(fd);
    let error = match socket.error() {
        libc::EPIPE => 0,
        _ => socket.take_error_of_end(fd),
    };
    match error {
        0 => Outcome::Handled(0),
        error => Outcome::Errno(error),
    }
}

/// Makes the program's own call, which only the kernel can serve, on a drained ring whose gate is closed for good.
pub(crate) fn by_kernel(
    socket: &'static Socket,
    fd: c_int,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    let row = socket.row();
    if socket.error() != 0 && kernel::unread(fd) == 0 {
        let error = kept_error(socket, fd);
        if error != 0 {
            return Outcome::Errno(error);
        }
    }
    row.receive.sleepers.fetch_add(1, SeqCst);
    let result = raw();
    account(
        socket,
        &Call {
            fd,
            list: &[],
            flags: 0,
        },
        row,
        result,
    );
    Outcome::Handled(result)
}
