//! Messages in parts, of several threads: one does not come between the parts of another, as in the kernel.

use std::sync::atomic::Ordering::Relaxed;

use libc::c_int;
use millrace_shm::board::{SendState, flags};
use millrace_shm::sys;
use millrace_stream::SendHalf;
use millrace_wire::Reason;

use crate::socket::{Locked, Socket};
use crate::spin::{self, cycles};
use crate::thread;

/// Of a message in parts so much goes without those of other threads between them: the kernel interrupts a long one, too, when its
/// buffer is full.
const WHOLE_MAX: usize = 256 << 10;
/// Nanoseconds after which a thread that left a message in the middle, by a jump out of a signal handler, is not waited for any more.
const TURN_WAIT_NS: u64 = 1_000_000_000;
/// Times the processor is given away before we ask whether that thread is alive.
const YIELDS_BEFORE_QUESTION: u32 = 64;

/// The wait for another thread that is in the middle of its message.
#[derive(Debug, Default)]
pub(super) struct Turn {
    since: u64,
    yields: u32,
}

impl Turn {
    #[cold]
    pub(super) fn pass(&mut self) {
        if self.yields == 0 {
            self.since = spin::clock();
        }
        self.yields += 1;
        sys::give_way(self.yields);
    }

    /// Whether another thread's message has to end first. The half is locked.
    #[inline]
    pub(super) fn is_others(&self, send: &SendState) -> bool {
        let sender = send.in_parts.load(Relaxed);
        sender != 0 && sender != thread::id() && !self.is_forsaken(send, sender)
    }

    #[cold]
    fn is_forsaken(&self, send: &SendState, sender: u32) -> bool {
        let asks = self.yields % YIELDS_BEFORE_QUESTION == YIELDS_BEFORE_QUESTION - 1;
        let is_forsaken = asks
            && (!sys::thread_exists(sender)
                || spin::clock().wrapping_sub(self.since) > cycles(TURN_WAIT_NS));
        if is_forsaken {
            send.in_parts.store(0, Relaxed);
        }
        is_forsaken
    }
}

/// The sending half, locked when no other thread is in the middle of its message. None: `fd` is not this connection any more.
pub(super) fn lock_in_turn(
    socket: &'static Socket,
    fd: c_int,
) -> Option<Locked<SendHalf<'static>>> {
    let mut turn = Turn::default();
    loop {
        let locked = socket.lock_send(fd)?;
        if !turn.is_others(&socket.row().send) {
            return Some(locked);
        }
        drop(locked);
        turn.pass();
    }
}

/// The program is about to send by a call that passes no function of ours: what is sent from now on goes by the kernel, and what another
/// thread is in the middle of comes before it.
pub(crate) fn leave_to_kernel(socket: &'static Socket, fd: c_int, reason: Reason) {
    socket.pin_flags(flags::SEND_PINNED, reason);
    drop(lock_in_turn(socket, fd));
    socket.look_for_kill(fd);
    socket.flush_once(fd);
}

/// So many bytes of this thread's message are sent by the ring. The half is locked.
#[inline]
pub(super) fn note_part(send: &SendState, sent: usize, is_last: bool) {
    if is_last || sent >= WHOLE_MAX {
        end_parts(send);
    } else {
        send.in_parts.store(thread::id(), Relaxed);
    }
}

/// This thread's message has ended, or goes on where others may come between.
#[inline]
pub(super) fn end_parts(send: &SendState) {
    let sender = send.in_parts.load(Relaxed);
    if sender != 0 && sender == thread::id() {
        send.in_parts.store(0, Relaxed);
    }
}
