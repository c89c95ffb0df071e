//! Receiving on a tracked connection: kernel bytes and ring bytes, in the order in which they were sent.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use libc::c_int;
use millrace_shm::board::{Row, flags};
use millrace_stream::{ReceiveHalf, ReceivePlan, step_of};

use crate::client::{self, CHAOS};
use crate::socket::{Locked, Socket};
use crate::thread::{self, Interrupts};
use crate::vectors::Vectors;
use crate::{Outcome, kernel, spin, table};

mod by_kernel;
mod call;
mod gathering;
mod left;
mod peek;
mod peeked;
mod rest;
mod told;

use by_kernel::{
    await_kernel, await_rest, end_raw, look_in_kernel, make_call, recount, take_from_kernel,
    take_rest, tell_taken,
};
pub(crate) use by_kernel::{by_kernel, deadline_ns, ending, header_of, keep_error, kept_error};
pub(crate) use call::Call;
pub(crate) use gathering::Gathering;
pub(crate) use peeked::Peeked;
use peeked::copy_from_ring;
pub(crate) use told::Told;

/// Flags that the ring can honour.
const RING_FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_PEEK
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// Steps without progress after which a connection is given up.
const FRUITLESS_STEPS_MAX: u32 = 1000;

/// A call that found less than this many bytes returns with them: every further look takes the gate away from its sender.
const LOOK_AGAIN_BYTES: u32 = 4096;

/// So much one call takes before other threads that receive may come between.
const TOGETHER_MAX: usize = 1 << 20;

/// What a call has gathered so far.
struct Progress<'a> {
    vectors: Vectors<'a>,
    got: usize,
    wanted: usize,
    spun: bool,
    /// It took the little that the ring had.
    took_all: bool,
    /// Steps without progress.
    fruitless: u32,
    /// When, of CLOCK_MONOTONIC in nanoseconds, a wait for the kernel's bytes before the ring's is over.
    awaits_until_ns: Option<u64>,
    /// When the call began: a handler that has run since then ends its waits.
    interrupts: Interrupts,
}

impl<'a> Progress<'a> {
    fn new(vectors: Vectors<'a>) -> Progress<'a> {
        Progress {
            wanted: vectors.remaining(),
            vectors,
            got: 0,
            spun: false,
            took_all: false,
            fruitless: 0,
            awaits_until_ns: None,
            interrupts: thread::interrupts(),
        }
    }
}

enum Step {
    /// Bytes were taken; look for more.
    More,
    /// The gate moved; look again.
    Again,
    /// Nothing more without waiting.
    Enough,
    /// Look at what is there, with so many kernel bytes before the ring's; or wait for all of it.
    Peek(u64, bool),
    /// The peer broke the rules.
    Corrupt,
    /// As `Enough`, after bytes that came by the kernel.
    Rest,
    /// Go by the kernel; the raw call has been announced in the row.
    Raw(&'static Row),
    /// Wait for bytes that the kernel has not got yet, without taking any.
    AwaitKernel,
    /// Look at the ring for a while.
    Spin,
    /// The call ends like this, if nothing was gathered: a count, or a negated error number.
    End(isize),
    /// The descriptor is not this connection any more.
    Gone,
}

/// Receives for `call` on `socket`; `raw` is the program's own system call.
#[inline]
pub(crate) fn receive(
    socket: &'static Socket,
    call: &Call<'_>,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    if socket.is_joined(call.fd) {
        thread::test_cancel();
        return receive_joined(socket, call, raw);
    }
    match receive_unjoined(socket, call, raw) {
        Some(result) => Outcome::Handled(result),
        None => receive_joined(socket, call, raw),
    }
}

/// Makes the program's own call on a connection that is on no ring; it returns how many bytes it received. None: it is on one now.
pub(crate) fn receive_unjoined(
    socket: &'static Socket,
    call: &Call<'_>,
    raw: &mut dyn FnMut() -> isize,
) -> Option<isize> {
    let row = socket.begin_raw_receive(call.fd)?;
    let result = if call.waits(socket) {
        make_call(socket, call, raw)
    } else {
        // It may know that there is something. Whether it does is not worth a question before it is on the ring.
        socket.habits.forget_waits();
        raw()
    };
    // As in `send`: counted before the announcement goes.
    by_kernel::count_message(&row.receive, call, result);
    row.receive.sleepers.fetch_sub(1, SeqCst);
    if result > 0 {
        client::count(call.fd, socket, result.cast_unsigned());
    }
    Some(result)
}

fn receive_joined(
    socket: &'static Socket,
    call: &Call<'_>,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    if call.flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // The error queue and urgent data are beside the stream.
        return Outcome::PassThrough;
    }
    // Whatever else is set, TCP does not look at it.
    let flags = call.flags & RING_FLAGS;
    let call = &Call { flags, ..*call };
    let Some(vectors) = Vectors::new(call.list) else {
        return receive_nothing(socket, call, raw);
    };
    let wanted = vectors.remaining();
    if wanted == 0 {
        return receive_nothing(socket, call, raw);
    }
    if call.waits(socket) {
        socket.gathering.rest();
    }
    let mut progress = Progress::new(vectors);
    loop {
        match step(socket, call, &mut progress) {
            Step::Again => {
                progress.fruitless += 1;
                if progress.fruitless > FRUITLESS_STEPS_MAX {
                    // A gate that never holds still is a hostile sender's.
                    socket.corrupt(call.fd);
                    return Outcome::Errno(libc::ECONNRESET);
                }
            }
            Step::More if progress.got < wanted => {}
            Step::More | Step::Enough => return done(socket, call, &progress),
            Step::Spin => {
                progress.spun = true;
                match spin_for_bytes(socket, call.fd, &progress) {
                    Spun::Look => {}
                    Spun::Interrupted if progress.got > 0 => return done(socket, call, &progress),
                    Spun::Interrupted => return Outcome::Errno(libc::EINTR),
                }
            }
            Step::AwaitKernel => match await_kernel(call.fd, &mut progress) {
                Ok(()) => {}
                Err(error) if progress.got == 0 => return Outcome::Errno(error),
                Err(error) => {
                    keep_error(socket.row(), error);
                    return done(socket, call, &progress);
                }
            },
            Step::Raw(row) if progress.got == 0 => return end_raw(socket, call, row, raw),
            Step::Raw(row) => {
                await_rest(socket, call, row, &mut progress);
                return done(socket, call, &progress);
            }
            Step::End(result) if progress.got > 0 => {
                keep_error(socket.row(), -(result as i32));
                return done(socket, call, &progress);
            }
            Step::Gone if progress.got > 0 => return done(socket, call, &progress),
            // Dealt with under the lock.
            Step::Peek(..) | Step::Corrupt | Step::Rest => return Outcome::Errno(libc::ECONNRESET),
            Step::End(result) if result < 0 => return socket.fail(call.fd, -(result as i32)),
            Step::End(_) => return ending(socket, call.fd),
            Step::Gone => return table::gone(call.fd),
        }
    }
}

/// A call for no bytes, or one that the kernel refuses: it answers at once, with what it knows of endings.
fn receive_nothing(
    socket: &'static Socket,
    call: &Call<'_>,
    raw: &mut dyn FnMut() -> isize,
) -> Outcome {
    let Some(locked) = socket.lock_receive(call.fd) else {
        return table::gone(call.fd);
    };
    if !locked.half.is_drained() {
        return match Vectors::new(call.list) {
            Some(_) => Outcome::Handled(0),
            None => Outcome::PassThrough,
        };
    }
    locked.half.leave();
    let row = socket.row();
    row.receive.sleepers.fetch_add(1, SeqCst);
    drop(locked);
    end_raw(socket, call, row, raw)
}

fn done(socket: &'static Socket, call: &Call<'_>, progress: &Progress<'_>) -> Outcome {
    let row = socket.row();
    let receive = &row.receive;
    socket.note_read(call.fd);
    socket.gathering.note(&row.send, progress.took_all);
    if !call.has(libc::MSG_PEEK) {
        socket.told.reset();
        socket.peeked.forget_taken(receive.head.load(Relaxed));
        receive
            .ring_messages
            .store(receive.ring_messages.load(Relaxed) + 1, Relaxed);
    }
    Outcome::Handled(progress.got.cast_signed())
}

/// Takes what is there, or does the next thing, under the half's lock: what one call gets without waiting stands together in the stream,
/// whoever else receives.
#[inline]
fn step(socket: &'static Socket, call: &Call<'_>, progress: &mut Progress<'_>) -> Step {
    let Some(locked) = socket.lock_receive(call.fd) else {
        return Step::Gone;
    };
    let limit = progress.wanted.min(progress.got + TOGETHER_MAX);
    loop {
        match step_locked(socket, call, &locked, progress) {
            Step::More if progress.got < limit => {}
            Step::Again if progress.got > 0 && progress.fruitless < FRUITLESS_STEPS_MAX => {
                progress.fruitless += 1;
            }
            Step::Rest => {
                drop(locked);
                if !CHAOS.strikes(3) {
                    socket.open_gate(call.fd, call.waits(socket));
                }
                return Step::Enough;
            }
            Step::Peek(before, may_wait) => {
                return peek::peek(socket, call, locked, progress, (before, may_wait));
            }
            Step::Corrupt => {
                drop(locked);
                socket.corrupt(call.fd);
                return Step::End(-(libc::ECONNRESET as isize));
            }
            step => return step,
        }
    }
}

#[inline]
fn step_locked(
    socket: &'static Socket,
    call: &Call<'_>,
    locked: &Locked<ReceiveHalf<'_>>,
    progress: &mut Progress<'_>,
) -> Step {
    let waits = call.waits(socket);
    let may_wait = waits && (progress.got == 0 || call.has(libc::MSG_WAITALL));
    let peeked = socket.peeked.count(locked.half.head());
    match (socket.told).check(&locked.half, peeked, locked.half.plan()) {
        Ok(ReceivePlan::Ring { .. }) if call.has(libc::MSG_PEEK) => Step::Peek(0, may_wait),
        Ok(ReceivePlan::KernelUpTo { limit }) if call.has(libc::MSG_PEEK) => {
            Step::Peek(limit, may_wait)
        }
        Ok(ReceivePlan::Ring {
            head,
            bytes,
            window,
            open,
        }) => {
            let may_be_all = !call.has(libc::MSG_WAITALL) && (waits || !call.ends_waits(socket));
            let is_all = open && bytes < LOOK_AGAIN_BYTES && may_be_all;
            let ring = (head, bytes, window);
            locked.segment().words(locked.direction).will_move_head();
            take_from_ring((socket, call), locked, progress, ring, is_all)
        }
        Ok(ReceivePlan::KernelUpTo { limit }) => {
            match take_from_kernel(socket, call, progress, limit) {
                taken if taken > 0 => {
                    tell_taken(locked, &socket.row().receive);
                    Step::More
                }
                error if error == -(libc::EAGAIN as isize) && recount(socket, call.fd) => {
                    Step::Again
                }
                error if error == -(libc::EAGAIN as isize) && may_wait => Step::AwaitKernel,
                end => Step::End(end),
            }
        }
        Ok(ReceivePlan::Empty { gate }) => {
            step_empty(socket, call, locked, progress, (gate.tail, may_wait))
        }
        Ok(ReceivePlan::Kernel) if has_copy_only(socket, call.fd) => Step::Corrupt,
        Ok(ReceivePlan::Kernel) => {
            if socket.error() != 0 && kernel::unread(call.fd) == 0 {
                if progress.got > 0 {
                    // It is for a call that has nothing to return.
                    return Step::Enough;
                }
                let error = kept_error(socket, call.fd);
                if error != 0 {
                    return Step::End(-(error as isize));
                }
            }
            if progress.got > 0 {
                return take_rest(socket, call, locked, progress);
            }
            let row = socket.row();
            row.receive.sleepers.fetch_add(1, SeqCst);
            Step::Raw(row)
        }
        Err(_) if recount(socket, call.fd) => Step::Again,
        Err(_) => Step::Corrupt,
    }
}

/// Before the kernel's bytes are taken: whether this process was restored while the gate was open. Where it has been closed for good, what
/// comes is the kernel's, and the program may allow no further system call.
fn has_copy_only(socket: &Socket, fd: c_int) -> bool {
    !socket.is_receive_pinned() && socket.is_restored_at(fd, spin::clock())
}

/// The gate is open, the ring empty at `tail`.
fn step_empty(
    socket: &'static Socket,
    call: &Call<'_>,
    locked: &Locked<ReceiveHalf<'_>>,
    progress: &Progress<'_>,
    (tail, may_wait): (u32, bool),
) -> Step {
    if socket.error() != 0 {
        if progress.got > 0 {
            return Step::Enough;
        }
        let error = kept_error(socket, call.fd);
        if error != 0 {
            return Step::End(-(error as isize));
        }
    }
    if locked.half.kernel_hinted() || CHAOS.strikes(4) {
        locked.half.close(tail);
        return Step::Again;
    }
    if !may_wait && call.ends_waits(socket) {
        // It gets less than it has room for, and may be followed by a wait that is not seen.
        if locked.half.close(tail) {
            socket.habits.end_calls();
        }
        return Step::Again;
    }
    if !may_wait {
        return if progress.got > 0 {
            Step::Enough
        } else {
            look_in_kernel(socket, call.fd, locked, tail)
        };
    }
    if !progress.spun {
        return Step::Spin;
    }
    locked.half.close(tail);
    Step::Again
}

/// Takes from the ring what the call has room for.
#[inline]
fn take_from_ring(
    (socket, call): (&Socket, &Call<'_>),
    locked: &Locked<ReceiveHalf<'_>>,
    progress: &mut Progress<'_>,
    (head, available, window): (u32, u32, u32),
    is_all: bool,
) -> Step {
    let wanted = u32::try_from(progress.wanted - progress.got).unwrap_or(u32::MAX);
    let bytes = CHAOS.cut(available.min(wanted).min(step_of(window)));
    let part = (0, bytes as usize);
    let copied = copy_from_ring((socket, call), locked, progress, part, (head, window));
    let Some(copied) = copied else {
        return Step::End(-(libc::EFAULT as isize));
    };
    if !locked.half.commit(head, copied as u32) {
        return Step::Again;
    }
    locked.half.widen(window);
    progress.vectors.skip(copied);
    note_processor(locked);
    progress.got += copied;
    progress.took_all = is_all && copied == available as usize;
    if progress.took_all {
        Step::Enough
    } else {
        Step::More
    }
}

/// Lets the sender know where we run, so that it does not wait for room on our own processor.
#[inline]
fn note_processor(locked: &Locked<ReceiveHalf<'_>>) {
    let words = locked.segment().words(locked.direction);
    let here = spin::processor();
    if words.receiver_cpu.load(Relaxed) != here {
        words.receiver_cpu.store(here, Relaxed);
    }
}

#[derive(PartialEq, Eq)]
enum Spun {
    Look,
    Interrupted,
}

/// Looks at the ring for a while, unlocked between looks. Any handler ends a call that `has_some` bytes already, others only those that
/// do not restart calls.
fn spin_for_bytes(socket: &'static Socket, fd: c_int, progress: &Progress<'_>) -> Spun {
    let Some(mut spin) = socket.spinner.begin_for_bytes(u64::MAX, 1) else {
        return Spun::Look;
    };
    loop {
        let Some(locked) = socket.lock_receive(fd) else {
            return Spun::Look;
        };
        let words = locked.segment().words(locked.direction);
        if !locked.half.is_drained() {
            spin.hit();
            return Spun::Look;
        }
        if locked.half.kernel_hinted()
            || !locked.half.is_open()
            || words.sender_cpu.load(Relaxed) == spin::processor()
        {
            return Spun::Look;
        }
        drop(locked);
        if progress.interrupts.end_call(progress.got > 0) {
            return Spun::Interrupted;
        }
        if !spin.go_on() {
            return Spun::Look;
        }
    }
}

impl Socket {
    /// Pinned connections never open; see [`flags::RECEIVE_PINNED`].
    pub(crate) fn is_receive_pinned(&self) -> bool {
        self.row().identity.flags.load(Relaxed) & flags::RECEIVE_PINNED != 0
    }
}
