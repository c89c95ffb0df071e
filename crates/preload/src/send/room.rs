//! Waiting for room in a full ring.

use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;
use millrace_shm::gate::Gate;
use millrace_stream::SendHalf;

use super::{Call, Course};
use crate::client::CHAOS;
use crate::socket::{Locked, Socket};
use crate::spin::{self, Spin, cycles};
use crate::thread::{self, Interrupts};

/// How long a sender waits for room while the reader makes progress, in nanoseconds per step of progress.
const ROOM_WAIT_NS: u64 = 50_000;
/// How long it waits in all while the reader's progress is not on the ring, in nanoseconds.
const ROOM_WAIT_MAX_NS: u64 = 2_000_000;
/// [`ROOM_WAIT_NS`] when the program asked not to block.
const ROOM_WAIT_NONBLOCKING_NS: u64 = 20_000;
/// One call waits so much in all for each byte that it has sent, in nanoseconds, and one such wait more: a reader that makes room byte by
/// byte would hold it up for as long as it likes.
const ROOM_WAIT_NS_PER_BYTE: u64 = 16;
/// The same when the program asked not to block: some times what the kernel takes to copy.
const ROOM_WAIT_NONBLOCKING_NS_PER_BYTE: u64 = 4;
/// A wait counts as so long at least, in nanoseconds: small pieces cost time, too.
const NS_OF_WAIT_MIN: u64 = 500;

/// Waits, unlocked, while the ring is full and its reader takes bytes. False: it is time to send by the kernel.
pub(super) fn wait_for_room(
    socket: &'static Socket,
    call: &Call<'_>,
    locked: Locked<SendHalf<'static>>,
    (gate, head): (Gate, u32),
    course: &mut Course,
) -> bool {
    let segment_words = locked.segment().words(locked.direction);
    let same_processor = segment_words.receiver_cpu.load(Relaxed) == spin::processor();
    drop(locked);
    let nonblocking = call.flags & libc::MSG_DONTWAIT != 0 || socket.is_nonblocking();
    let (patience_ns, ns_per_byte) = if nonblocking {
        (ROOM_WAIT_NONBLOCKING_NS, ROOM_WAIT_NONBLOCKING_NS_PER_BYTE)
    } else {
        (ROOM_WAIT_NS, ROOM_WAIT_NS_PER_BYTE)
    };
    let most = cycles(patience_ns + ns_per_byte * course.sent as u64);
    // Where the kernel has no room either, a handler that has run has ended the call.
    let is_over = course.waited > most || is_interrupted(course.interrupts);
    if same_processor || is_over || CHAOS.strikes(2) {
        return false;
    }
    let Some(mut spin): Option<Spin<'_>> = socket.room_spinner.begin(patience_ns, 1) else {
        return false;
    };
    let wait = (nonblocking, course.interrupts);
    let has_room = spin_for_room(socket, call.fd, &mut spin, (gate, head), wait);
    course.waited += spin.spent().max(cycles(NS_OF_WAIT_MIN));
    has_room
}

/// Whether a handler has run since then, or waits until the call ends.
pub(super) fn is_interrupted(since: Interrupts) -> bool {
    since.end_call(true) || thread::has_waiting()
}

/// As [`wait_for_room`], where that is worth it.
fn spin_for_room(
    socket: &'static Socket,
    fd: c_int,
    spin: &mut Spin<'_>,
    (gate, head): (Gate, u32),
    (nonblocking, interrupts): (bool, Interrupts),
) -> bool {
    let mut taken = None;
    loop {
        let Some(locked) = socket.lock_send(fd) else {
            return true;
        };
        let words = locked.segment().words(locked.direction);
        let moved = words.head.load(Relaxed).wrapping_sub(head).cast_signed() > 0;
        if moved || words.gate.load() != gate {
            spin.hit();
            return true;
        }
        // Before it comes to the ring the reader takes what lies in the kernel: progress, too.
        let now = words.kernel_taken.load(Relaxed);
        if taken.is_some_and(|before| before != now) && !nonblocking {
            spin.prolong(cycles(ROOM_WAIT_MAX_NS));
        }
        taken = Some(now);
        drop(locked);
        let is_over = is_interrupted(interrupts) || socket.begun.is_awaited(spin::clock());
        if is_over || !spin.go_on() {
            return false;
        }
    }
}
