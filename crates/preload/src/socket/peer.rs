//! What became of the other end, where nobody could say so.
//!
//! A process that is killed leaves its gate open, and bytes in its ring that the kernel knows nothing of: it sends FIN, where TCP resets a
//! connection of which bytes have not been read. Whoever shuts a direction down by purpose has said so in the segment before.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use libc::c_int;
use millrace_shm::board::{Row, flags};
use millrace_shm::segment::ENDED;
use millrace_stream::SendHalf;
use millrace_wire::Reason;

use super::{Locked, Socket};
use crate::kernel::{self, OtherEnd, kernel};
use crate::{spin, table, thread};

/// The kernel's own, of a call that goes on when the handler has run. A later call tells the program of it as of any error.
pub(crate) const ERESTARTSYS: c_int = 512;

/// A sender that goes on sending looks after its reader so often, in nanoseconds.
const NS_BETWEEN_LOOKS: u64 = 1_000_000;
/// A thread that has sent nothing for so long looks at once: that costs less than a hundredth of the pause, and what became of the reader
/// meanwhile may be why it sends.
const NS_OF_PAUSE: u64 = 50_000;
/// Between whose looks there is less, that sender is busy.
const NS_OF_BUSY: u64 = 2_000_000;

/// As [`Socket::keep_error`], of the end record that a call began with.
pub(crate) fn keep_error_in(row: &Row, error: c_int) {
    // Release: pairs with the Acquire in `Socket::error`.
    row.identity.error.store(error.cast_unsigned(), Release);
}

impl Socket {
    /// Looks whether the reader has gone, now and then; then the bytes go by the kernel, which answers as it does to a writer whose
    /// reader is gone.
    #[inline]
    pub(crate) fn look_after_reader(
        &'static self,
        fd: c_int,
        locked: &Locked<SendHalf<'_>>,
        now: u64,
    ) {
        let pause = now.wrapping_sub(self.sent_at.load(Relaxed));
        self.sent_at.store(now, Relaxed);
        let pauses = pause >= spin::cycles(NS_OF_PAUSE)
            && thread::since_noted(now) >= spin::cycles(NS_OF_PAUSE);
        if pauses {
            // A reader that waits has gone to sleep. One of many, whose senders are at work on others, is awake.
            locked.half.doubt_gate();
        }
        let age = now.wrapping_sub(self.looked_at.load(Relaxed));
        if age >= spin::cycles(NS_BETWEEN_LOOKS) {
            self.looked_at.store(now, Relaxed);
            let is_soon = age < spin::cycles(NS_OF_BUSY);
            if is_soon {
                self.was_not_stopped(now);
            }
            if locked.half.is_open() && self.is_restored_at(fd, now) {
                // The kernel tells whoever sends.
                return locked.half.leave();
            }
            self.show_to_network(fd, locked, now);
            let busy = !pauses && is_soon;
            self.look_now(fd, locked, libc::POLLRDHUP | libc::POLLIN, busy);
        } else if pauses {
            // Not for bytes: they are there whenever the program answers before it has read all.
            self.look_now(fd, locked, libc::POLLRDHUP, false);
        }
    }

    #[cold]
    fn look_now(
        &'static self,
        fd: c_int,
        locked: &Locked<SendHalf<'_>>,
        what: libc::c_short,
        busy: bool,
    ) {
        let head = locked.segment().read_head(locked.direction);
        let moves = self.looked_head.swap(head, Relaxed) != head;
        // Whoever took something a moment ago is asked about when it takes nothing more.
        let reads_on = moves && (busy || locked.half.unread() != 0 && peer_has_ended(locked));
        // With the gate shut nothing more goes to the ring; but of who dies with unread bytes in it TCP tells the next send.
        let matters = locked.half.is_open() || locked.half.unread() != 0;
        if reads_on || !matters {
            return;
        }
        let events = kernel::events_now(fd, what);
        if events & !libc::POLLIN != 0 {
            self.notice_kill(fd, locked);
        }
        if events != 0 {
            // It has gone, or its end may be behind bytes that have no room here.
            locked.half.leave();
        }
    }

    /// An error that is known, and that no program has heard of yet; zero: none.
    #[inline]
    pub(crate) fn error(&self) -> c_int {
        self.row().identity.error.load(Acquire).cast_signed()
    }

    /// It is to be told by whoever is asked first, in whichever process that has the connection.
    pub(crate) fn keep_error(&self, error: c_int) {
        keep_error_in(self.row(), error);
    }

    /// As [`Socket::keep_error`], of an error that the connection goes on after. A send tells of it too, once it asks the kernel.
    pub(crate) fn owe_error(&'static self, fd: c_int, error: c_int) {
        self.keep_error(error);
        if self.is_attached()
            && let Some(locked) = self.lock_send(fd)
        {
            locked.half.leave();
        }
    }

    /// An error that is owed, without which the connection is as before; zero: none.
    pub(crate) fn owed_error(&self) -> c_int {
        match self.error() {
            error @ (libc::EFAULT | ERESTARTSYS) => error,
            _ => 0,
        }
    }

    /// Takes the error that was kept, if there is one.
    #[inline]
    pub(crate) fn take_kept_error(&self, fd: c_int) -> c_int {
        if self.error() == 0 {
            return 0;
        }
        if self.error() == libc::ECONNRESET && self.was_peer_killed() && self.is_still(fd) {
            // The kernel's answer, if it came too late to be the error that is told, is the same error.
            kernel::take_error(fd);
        }
        let word = &self.row().identity.error;
        word.swap(0, AcqRel).cast_signed()
    }

    /// Whether EPIPE is an error of the connection, which the kernel tells once: a reset behind the peer's end. To who sends after its own
    /// shutdown it comes again and again, and nobody else is told of it.
    pub(crate) fn is_reset_behind_end(&'static self, fd: c_int) -> bool {
        let taken = self.row().receive.kernel_position.load(Acquire);
        let has_ended = |locked: Locked<SendHalf<'_>>| {
            let words = locked.segment().words(locked.direction);
            words.sender_flags.load(Relaxed) & ENDED != 0
        };
        kernel::is_over_by_fin(fd, taken) && !self.lock_send(fd).is_none_or(has_ended)
    }

    /// Whether the peer was found killed: to the program the connection is over, whatever the kernel has of it.
    pub(crate) fn was_peer_killed(&self) -> bool {
        self.row().identity.flags.load(Acquire) & flags::PEER_KILLED != 0
    }

    /// As [`Socket::take_kept_error`]; or the kernel's, which tells no receiving call of a reset that came behind a FIN.
    pub(crate) fn take_error_of_end(&self, fd: c_int) -> c_int {
        match self.take_kept_error(fd) {
            0 if self.was_peer_killed() => kernel::take_error(fd),
            error => error,
        }
    }

    /// Whether there is an error of which whoever has the connection next would not hear from a receiving call of its own.
    pub(super) fn owes_error(&self, fd: c_int) -> bool {
        self.error() != 0 || self.was_peer_killed() && kernel::has_error(fd)
    }

    /// As [`Socket::take_error_of_end`], after a look for a killed peer.
    pub(crate) fn take_error(&'static self, fd: c_int) -> c_int {
        self.look_for_kill(fd);
        self.take_error_of_end(fd)
    }

    /// As [`Socket::notice_kill`], of a connection that need not be attached.
    pub(crate) fn look_for_kill(&'static self, fd: c_int) -> bool {
        self.is_attached()
            && self
                .lock_send(fd)
                .is_some_and(|locked| self.notice_kill(fd, &locked))
    }

    /// As [`Socket::look_for_kill`], when the program is told of an end, or asks: nobody reads our ring after one that nobody announced.
    #[cold]
    pub(crate) fn look_for_end(&'static self, fd: c_int) {
        if !self.is_attached() {
            return;
        }
        if let Some(locked) = self.lock_send(fd) {
            let is_announced = peer_has_ended(&locked) || peer_has_left(&locked);
            if !is_announced && kernel::is_closed_by_peer_alone(fd) {
                locked.half.leave();
            }
            self.notice_kill(fd, &locked);
        }
    }

    /// Whether it is worth to look for that: bytes of ours are unread, or an error has been found before. For wait sets, as
    /// [`Socket::peek_receive`].
    pub(crate) fn may_be_reset(&'static self) -> bool {
        self.error() != 0 || self.peek_send().is_some_and(|half| half.unread() != 0)
    }

    /// If the peer was killed with bytes of ours unread: the connection is reset, as far as the program can see. True: so it was.
    ///
    /// Of several processes that have the connection one hears of that. One that is killed meanwhile leaves it to the others, or to nobody.
    fn notice_kill(&self, fd: c_int, locked: &Locked<SendHalf<'_>>) -> bool {
        let leaves_unread =
            || locked.half.unread() != 0 && !peer_has_ended(locked) && !peer_has_left(locked);
        if !leaves_unread() {
            return false;
        }
        let identity = &self.row().identity;
        if kernel::is_closed_by_peer_alone(fd) && self.is_still(fd) {
            // One that lives has read and said so before its FIN, but perhaps after we had looked for that.
            if !leaves_unread() {
                return false;
            }
            let other_end = kernel::other_end(fd, !self.outlives_its_end.load(Relaxed));
            if other_end == OtherEnd::Lives {
                // It shut its direction down past the library.
                self.outlives_its_end.store(true, Relaxed);
                return false;
            }
            let was_killed =
                identity.flags.fetch_or(flags::PEER_KILLED, AcqRel) & flags::PEER_KILLED != 0;
            if was_killed && other_end == OtherEnd::Unknown {
                // The end record has told of it, or will: once is enough, also when the last bytes have been read meanwhile.
                if kernel::reset_drained(fd) {
                    kernel::take_error(fd);
                }
                return false;
            }
            // Whoever else has the connection, or will, hears of it there. To one that may live no byte goes.
            let is_reset = match other_end {
                OtherEnd::Gone => kernel::provoke_reset(fd),
                _ => kernel::reset_drained(fd),
            };
            if !is_reset && !was_killed {
                self.keep_error(libc::ECONNRESET);
            }
            return is_reset || !was_killed;
        }
        // This end had shut its own direction down, and the kernel was not seen between the two endings.
        let taken = self.row().receive.kernel_position.load(Acquire);
        let is_new = identity.flags.load(Relaxed) & flags::PEER_KILLED == 0
            && kernel::is_over_by_fin(fd, taken)
            && leaves_unread()
            && identity.flags.fetch_or(flags::PEER_KILLED, AcqRel) & flags::PEER_KILLED == 0;
        if is_new {
            self.keep_error(libc::ECONNRESET);
        }
        is_new
    }

    /// The peer broke the rules: the connection ends, as if reset; nothing else suffers.
    #[cold]
    pub(crate) fn corrupt(&'static self, fd: c_int) {
        self.row().identity.flags.fetch_or(flags::CORRUPT, AcqRel);
        self.pin(Reason::CorruptPeer);
        if table::is(fd, self) {
            kernel!(libc::SYS_shutdown, fd, libc::SHUT_RDWR);
        }
    }
}

fn peer_has_ended(locked: &Locked<SendHalf<'_>>) -> bool {
    let words = locked.segment().words(1 - locked.direction);
    words.sender_flags.load(Relaxed) & ENDED != 0
}

/// Whether the peer has said that there is an end to look for in the kernel: it closed, and the kernel tells of that as it was. Our own
/// counts could take the reset of a close for a FIN, where bytes passed the library by.
fn peer_has_left(locked: &Locked<SendHalf<'_>>) -> bool {
    let words = locked.segment().words(1 - locked.direction);
    words.kernel_hint.load(Relaxed) == u64::MAX
}
