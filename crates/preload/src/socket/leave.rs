//! How an end leaves its rings while bytes lie in them: what is unread has to come by the kernel, in its place.

use std::ops::ControlFlow;
use std::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use libc::c_int;
use millrace_shm::board::flags;
use millrace_stream::{ReceiveHalf, SendHalf};
use millrace_wire::Reason;

use super::{Socket, patience};
use crate::epoll::Resent;
use crate::{client, kernel, spin, thread};

/// How long an end that leaves waits for a reader that is awake, in nanoseconds.
const FLUSH_WAIT_NS: u64 = 20_000;
/// Milliseconds before each attempt of an end that leaves to have the agent send what its reader has not read.
const FLUSH_PAUSES_MS: [c_int; 3] = [0, 2, 20];
/// The same of a reader, which has more to lose: what its ring still has is lost with the connection.
const LEAVE_PAUSES_MS: [c_int; 4] = [0, 2, 20, 100];
/// When so many ends in a row were left again and again in vain, further ones are tried once: a program may have thousands.
const VAIN_MAX: u32 = 3;
static VAIN: AtomicU32 = AtomicU32::new(0);
const PINNED: u32 = flags::SEND_PINNED | flags::RECEIVE_PINNED;

/// So many times as long as an attempt to draw back took, there is no other.
const REST_FACTOR: u64 = 10;

/// How far a connection is left to requests that go to the kernel without a call.
mod left {
    pub(super) const NOT: u8 = 0;
    /// All was tried, and bytes stay in the ring.
    pub(super) const WITH_BYTES: u8 = 1;
    pub(super) const EMPTY: u8 = 2;
}

/// Asks the agent again and again, while it answers, until `attempt` has come to an end. Another end that asks, too, and holds its half,
/// gets ours between the attempts.
fn insist(pauses_ms: &[c_int], mut attempt: impl FnMut() -> ControlFlow<()>) {
    let goes_on = !patience::rests() && VAIN.load(Relaxed) < VAIN_MAX;
    patience::spend(|| {
        for &pause_ms in pauses_ms {
            if pause_ms > 0 && !(goes_on && client::answers()) {
                return false;
            }
            kernel::pause(pause_ms);
            if attempt().is_break() {
                return true;
            }
        }
        VAIN.fetch_add(1, Relaxed);
        false
    });
}

impl Socket {
    /// Nothing is sent from here any more, and soon nobody can be asked to send anything again: what the reader does not take from the
    /// ring at once is sent again by the kernel, where that can be done. It then has it whatever becomes of itself. The half is locked.
    pub(super) fn flush(&self, fd: c_int, half: &SendHalf<'_>) {
        patience::spend(|| self.flush_now(fd, half));
    }

    /// False: some of it is left in the ring.
    fn flush_now(&self, fd: c_int, half: &SendHalf<'_>) -> bool {
        half.leave();
        if half.unread() != 0 && !self.is_taken_soon(half) {
            self.send_held(fd);
            client::recall(self, fd, true);
            if half.unread() != 0 {
                return false;
            }
            VAIN.store(0, Relaxed);
        }
        true
    }

    /// Waits a moment, less than asking the agent takes, for a reader that is at work on the ring.
    fn is_taken_soon(&self, half: &SendHalf<'_>) -> bool {
        let Some(mut spin) = self.room_spinner.begin(FLUSH_WAIT_NS, 1) else {
            return false;
        };
        loop {
            if half.unread() == 0 {
                spin.hit();
                return true;
            }
            if half.reader_processor() == spin::processor() || !spin.go_on() {
                return false;
            }
        }
    }

    /// As [`Socket::flush`], more than once where that is of use.
    pub(crate) fn flush_all(&'static self, fd: c_int) {
        let began_ns = kernel::monotonic_ns();
        let mut is_over = true;
        patience::spend(|| {
            insist(&LEAVE_PAUSES_MS, || {
                let Some(locked) = self.lock_send(fd) else {
                    return ControlFlow::Break(());
                };
                is_over = self.flush_now(fd, &locked.half);
                // Nobody can send anything again on a connection that has been reset.
                if is_over || kernel::has_hung_up(fd) {
                    ControlFlow::Break(())
                } else {
                    patience::goes_on(began_ns)
                }
            });
            is_over
        });
    }

    /// What is sent from now on passes no function of ours, so that nobody knows of calls that are under way: what lies in the ring goes
    /// before it. Once, whether that can be done or not.
    pub(crate) fn flush_once(&'static self, fd: c_int) {
        if self.is_attached() && !self.is_flushed.load(Acquire) {
            self.flush_all(fd);
            self.is_flushed.store(true, Release);
        }
    }

    /// What lies unread is sent again by the kernel, where that can be done, and what comes and goes from now on is the kernel's.
    pub(crate) fn leave_rings(&'static self, fd: c_int) {
        if let Some(locked) = self.lock_send(fd) {
            locked.half.leave();
        }
        insist(&FLUSH_PAUSES_MS, || {
            let is_over = kernel::events_now(fd, libc::POLLRDHUP) != 0;
            if self.draw_back_for_program(fd) || is_over {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
    }

    /// Before the process ends, or becomes another program: other threads, that go on until then, open no ring for bytes which nobody
    /// would see. Returns how it was pinned before.
    pub(crate) fn pin_for_end(&self) -> u32 {
        let pinned = flags::RECEIVE_PINNED;
        self.row().identity.flags.fetch_or(pinned, AcqRel) & PINNED
    }

    /// The process goes on to be what it was, by its ring if `pinned_before` lets it, and nobody has pinned it since.
    pub(crate) fn unpin_after_exec(&self, fd: c_int, pinned_before: u32) {
        let unpin = |word: u32| {
            let is_ours = word & PINNED == pinned_before | flags::RECEIVE_PINNED;
            is_ours.then_some(word & !PINNED | pinned_before)
        };
        let word = &self.row().identity.flags;
        if word.fetch_update(AcqRel, Relaxed, unpin).is_ok()
            && pinned_before == 0
            && self.is_attached()
        {
            self.hide_no_delay(fd);
        }
    }

    /// The process becomes another program, which reads by the kernel only.
    pub(crate) fn leave_ring(&'static self, fd: c_int, inherited: bool) {
        if inherited {
            self.bring_back(fd);
            self.send_on(fd);
            self.show_no_delay(fd);
        } else {
            self.end_for_exit(fd);
        }
    }

    /// Whoever reads next cannot see the ring: what lies in it unread is sent again by the kernel. Where that cannot be
    /// done, the connection is reset, so that the loss is seen. The half stays locked meanwhile: nobody may read between
    /// the bytes.
    pub(crate) fn bring_back(&'static self, fd: c_int) {
        self.look_for_kill(fd);
        let mut is_left = false;
        insist(&LEAVE_PAUSES_MS, || {
            let is_over = kernel::events_now(fd, libc::POLLRDHUP) != 0;
            is_left = self.leave_unread(fd);
            // When it is over, nobody can send anything again.
            if is_left || is_over {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        // Another thread may have closed it meanwhile.
        if !is_left
            && let Some(_locked) = self.lock_receive(fd)
            && self.is_still(fd)
        {
            kernel::reset(fd);
        }
    }

    /// False: bytes are left in the ring.
    fn leave_unread(&'static self, fd: c_int) -> bool {
        let Some(locked) = self.lock_receive(fd) else {
            return true;
        };
        locked.half.leave();
        let owes_error = self.owes_error(fd);
        if locked.half.unread() == 0 && !owes_error {
            return true;
        }
        let word = &self.row().identity.flags;
        word.fetch_or(flags::LEAVES, AcqRel);
        let resent = self.recall_unread(fd, &locked.half);
        word.fetch_and(!flags::LEAVES, AcqRel);
        let is_left = locked.half.unread() == 0;
        if is_left && owes_error {
            self.forget_end(fd);
        }
        drop(locked);
        if is_left {
            self.tell_sets(resent);
        }
        is_left
    }

    /// Where the kernel has an error behind the end of the stream, it tells no receiving call: the error stays, the end is forgotten. The
    /// half is locked.
    fn forget_end(&self, fd: c_int) {
        if self.is_still(fd) && kernel::has_error(fd) && kernel::unread(fd) == 0 {
            kernel::reset(fd);
        }
    }

    /// The C library will read and write the connection by a stream, without passing through its exported functions.
    #[cold]
    pub(crate) fn leave_to_streams(&'static self, fd: c_int) {
        let errno = thread::errno();
        self.pin(Reason::Stdio);
        self.flush_once(fd);
        self.bring_back(fd);
        thread::set_errno(errno);
    }

    /// A request names the connection (an io_uring's, or of asynchronous I/O): the kernel, or a thread of the C library, reads (`reads`) or
    /// writes it when it likes. All is done when this returns, also where another thread is at it.
    pub(crate) fn leave_to_requests(&'static self, fd: c_int, reason: Reason, reads: bool) {
        let is_pinned =
            self.row().identity.flags.load(Acquire) & (PINNED | flags::FORKED) == PINNED;
        if !is_pinned || self.may_join() {
            self.pin(reason);
        }
        self.show_no_delay(fd);
        if !self.is_attached() {
            return;
        }
        // Once: nobody waits again for what a peer writes into its ring later, or cannot have sent again.
        if self.left.load(Acquire) == left::NOT {
            self.look_for_kill(fd);
            self.flush_once(fd);
            if !self.is_left_empty(fd) {
                self.leave_rings(fd);
            }
            let left = match self.is_left_empty(fd) {
                true => left::EMPTY,
                false => left::WITH_BYTES,
            };
            self.left.store(left, Release);
        }
        if reads && self.left.load(Acquire) == left::WITH_BYTES {
            self.end_with_bytes(fd);
        }
    }

    /// As [`Socket::leave_to_requests`], of which nobody knows which connection they will name.
    pub(crate) fn leave_unseen(&'static self, fd: c_int) {
        self.leave_to_requests(fd, Reason::IoUring, false);
    }

    /// Whether nothing is unread in a ring that is left. An error that there is then is the kernel's to tell.
    fn is_left_empty(&'static self, fd: c_int) -> bool {
        self.lock_receive(fd).is_none_or(|locked| {
            locked.half.leave();
            let is_empty = locked.half.unread() == 0;
            if is_empty && self.owes_error(fd) {
                self.forget_end(fd);
            }
            is_empty
        })
    }

    /// The kernel is to read on, and bytes that come before are in the ring still: the loss is to be seen.
    #[cold]
    fn end_with_bytes(&'static self, fd: c_int) {
        let Some(locked) = self.lock_receive(fd) else {
            return;
        };
        if locked.half.unread() != 0 && self.is_still(fd) {
            kernel::reset(fd);
        }
        self.left.store(left::EMPTY, Release);
    }

    /// As [`Socket::draw_back`], for a program that gets the connection, too, and cannot read the ring.
    pub(crate) fn draw_back_for_program(&'static self, fd: c_int) -> bool {
        let word = &self.row().identity.flags;
        word.fetch_or(flags::LEAVES, AcqRel);
        let is_empty = self.draw_back_now(fd, true);
        word.fetch_and(!flags::LEAVES, AcqRel);
        is_empty
    }

    /// Tries to have the kernel send again what lies in the ring unread. Where that cannot be done, it is read from the ring: false. After
    /// a wait in vain it is not tried for many times as long: a peer can see to it that each is one.
    pub(crate) fn draw_back(&'static self, fd: c_int) -> bool {
        self.draw_back_now(fd, false)
    }

    fn draw_back_now(&'static self, fd: c_int, insists: bool) -> bool {
        let Some(locked) = self.lock_receive(fd) else {
            return true;
        };
        locked.half.leave();
        // To one that is deaf, and has sent its FIN, the kernel would answer bytes that come now by a reset.
        let mut resent = None;
        let has_shut_down = || !kernel::is_established(fd);
        let began_ns = kernel::monotonic_ns();
        let rests = !insists && began_ns < self.draws_again_ns.load(Relaxed);
        if locked.half.unread() != 0 && !rests && !(self.is_deaf.load(Relaxed) && has_shut_down()) {
            resent = self.recall_unread(fd, &locked.half);
            if locked.half.unread() != 0 {
                let now_ns = kernel::monotonic_ns();
                let rest_ns = (now_ns - began_ns).saturating_mul(REST_FACTOR);
                let again_ns = now_ns.saturating_add(rest_ns);
                self.draws_again_ns.store(again_ns, Relaxed);
            }
        }
        let is_empty = locked.half.unread() == 0;
        drop(locked);
        self.tell_sets(resent);
        is_empty
    }

    /// Asks for what is unread. What the sets have to know of that, if it was sent.
    fn recall_unread(&'static self, fd: c_int, half: &ReceiveHalf<'_>) -> Option<Resent> {
        let is_watched = self.sets.lock().is_some_and(|sets| !sets.is_empty());
        let taken = is_watched.then(|| kernel::taken(fd)).flatten();
        let tail = half.arrived();
        let (in_ring, reach) = (u64::from(half.unread()), half.reach());
        let kernel_position = &self.row().receive.kernel_position;
        let before = kernel_position.load(Relaxed);
        client::recall(self, fd, false);
        if half.unread() != 0 {
            return None;
        }
        VAIN.store(0, Relaxed);
        // The agent has taken what lay in the kernel's queue, and sent it again, too, if some of it had overtaken the ring's.
        let moved = kernel_position.load(Relaxed).wrapping_sub(before);
        let taken = taken?.wrapping_add(moved);
        Some(Resent {
            tail: tail?,
            received: taken.saturating_add(if moved == 0 {
                reach
            } else {
                moved.saturating_add(in_ring)
            }),
            overtaken_by: (moved != 0).then_some(taken),
        })
    }

    fn tell_sets(&'static self, resent: Option<Resent>) {
        let Some(resent) = resent else {
            return;
        };
        let sets = self.sets.lock().map(|sets| sets.clone());
        for set in sets.unwrap_or_default() {
            set.note_resent(self, resent);
        }
    }

    /// Who sends next does not know of the ring, and may be gone when the reader has to leave it: what the reader has not
    /// read is sent again by the kernel, where that can be done. Otherwise it reads it from the ring.
    pub(crate) fn send_on(&'static self, fd: c_int) {
        if let Some(locked) = self.lock_send(fd) {
            locked.half.leave();
            if locked.half.unread() != 0 {
                self.send_held(fd);
                client::recall(self, fd, true);
            }
            locked.half.announce_end();
        }
    }
}
