//! A tracked TCP connection of this process.
//!
//! | phase    | to       | by       | when                                                        |
//! |----------|----------|----------|-------------------------------------------------------------|
//! | Fresh    | Offered  | `client` | enough calls or bytes                                       |
//! | Offered  | Paired   | `client` | the agent has the other end, we took it, the segment came   |
//! | Offered  | Kernel   | `client` | the agent declined                                          |
//! | Paired   | Joining  | `attach` | a call finds it paired; other calls wait for what follows   |
//! | Joining  | Paired   | `attach` | a raw call is under way                                     |
//! | Fresh    | Joining  | `attach` | its end record moves                                        |
//! | Joining  | Fresh    | `attach` | it has moved, or a raw call is under way                    |
//! | Joining  | Attached | `attach` | no raw call is under way and the positions are known        |
//! | Joining  | Kernel   | `attach` | the kernel's facts do not allow it                          |
//! | any      | Closed   | `release`| the last descriptor of this process went                    |
//! | Attached | Kernel   | nobody   | **forbidden**: cursors matter to the end; pin the row instead |

use std::cell::UnsafeCell;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
};

use libc::c_int;
use millrace_shm::board::{Row, flags};
use millrace_shm::lock::Held;
use millrace_shm::segment::Segment;
use millrace_stream::{ReceiveHalf, SendHalf};
use millrace_wire::Reason;
use smallvec::SmallVec;

use crate::epoll::EpollSet;
mod calls;
mod habits;
mod info;
mod leave;
mod life;
mod network;
mod patience;
mod peer;
mod record;
mod restored;
mod sharing;

pub(crate) use life::{begin_child, forget};
pub(crate) use patience::rests;
pub(crate) use peer::{ERESTARTSYS, keep_error_in};
pub(crate) use record::reset_row;

use habits::Habits;
pub(crate) use habits::Looking;

use crate::guarded::Guarded;
use crate::receive::{Gathering, Peeked, Told};
use crate::send::{Begun, Merging};
use crate::spin::Spinner;
use crate::thread::Busy;
use crate::{client, kernel, process, spin, table};

/// See [`are_rings_known`].
static ARE_RINGS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Whether a connection of this process was ever about to be on the ring. Before that there is nothing to look for but in the kernel.
#[inline]
pub(crate) fn are_rings_known() -> bool {
    // SeqCst: see `epoll::wait`.
    ARE_RINGS_KNOWN.load(SeqCst)
}

/// See the table above.
pub(crate) mod phase {
    pub(crate) const FRESH: u8 = 0;
    pub(crate) const OFFERED: u8 = 1;
    pub(crate) const PAIRED: u8 = 2;
    /// A thread that has the locks of both halves finds out whether it can be attached; or its end record moves.
    pub(crate) const JOINING: u8 = 3;
    pub(crate) const ATTACHED: u8 = 4;
    pub(crate) const KERNEL: u8 = 5;
    pub(crate) const CLOSED: u8 = 6;
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) phase: AtomicU8,
    /// This end connected.
    pub(crate) active: AtomicBool,
    /// AF_INET or AF_INET6.
    pub(crate) family: AtomicU8,
    /// Something went by the kernel since its send queue was last seen with room.
    pub(crate) sent_by_kernel: AtomicBool,
    /// Descriptors of this process.
    descriptors: AtomicU32,
    pub(crate) calls: AtomicU32,
    pub(crate) bytes: AtomicU64,
    pub(crate) offer_id: AtomicU64,
    /// How often it was asked whether others hold the connection while some did.
    questions: AtomicU32,
    /// The agent knows the other end, and we have not said yet that we want the segment.
    pub(crate) matched: AtomicBool,
    /// The end record: a row of the board, or `own_row` when there is none.
    row: AtomicPtr<Row>,
    own_row: Row,
    /// Valid from Paired on; changed only with both locks held.
    segment: UnsafeCell<Option<Segment>>,
    /// Wait sets of this process that watch this connection.
    pub(crate) sets: Guarded<SmallVec<[&'static EpollSet; 2]>>,
    /// They are not known, in this child of a fork that came while another thread was at them.
    pub(crate) has_lost_sets: AtomicBool,
    pub(crate) habits: Habits,
    pub(crate) spinner: Spinner,
    /// When, of `spin::clock`, something was last sent.
    pub(crate) sent_at: AtomicU64,
    /// When, of `spin::clock`, the reader was last looked at, and the head that it had then.
    pub(crate) looked_at: AtomicU64,
    pub(crate) looked_head: AtomicU32,
    shown: network::Shown,
    /// The program's own SO_LINGER, while it is hidden; see `life.rs`.
    linger: AtomicU64,
    /// The life of this process in which the segment was last known to be the one that the peer has, too.
    life: AtomicU64,
    pub(crate) merging: Merging,
    pub(crate) begun: Begun,
    pub(crate) gathering: Gathering,
    pub(crate) told: Told,
    pub(crate) peeked: Peeked,
    /// For senders that wait for room.
    pub(crate) room_spinner: Spinner,
    /// When, of `spin::clock`, a larger ring was last asked for.
    pub(crate) asked_at: AtomicU64,
    /// The program has shut down the direction that it reads.
    pub(crate) is_deaf: AtomicBool,
    /// The peer has shut both directions down past the library, and lives.
    outlives_its_end: AtomicBool,
    /// How far it is left to requests; see `leave.rs`.
    left: AtomicU8,
    /// What was sent by the ring has been flushed for good.
    is_flushed: AtomicBool,
    /// Until when, of CLOCK_MONOTONIC, nothing that lies unread is asked for again.
    draws_again_ns: AtomicU64,
    /// Threads that sleep in `poll` or `select` since before it was attached. They keep no end from joining, but the gate closed.
    pollers: AtomicU32,
}

// SAFETY: the segment is read under a half's lock in phase Attached and changed under both; the rest are atomics and locks.
unsafe impl Sync for Socket {}

impl Socket {
    /// The end record.
    #[inline]
    pub(crate) fn row(&self) -> &'static Row {
        // SAFETY: a row of a board that is never unmapped, or `own_row` of an object that is never freed.
        unsafe { &*self.row.load(Acquire) }
    }

    /// Whether the end record lies on a board, where a forked child and the agent see it.
    pub(crate) fn has_board_row(&self) -> bool {
        !std::ptr::eq(self.row(), &raw const self.own_row)
    }

    /// Whether several descriptors of this process are the connection.
    pub(crate) fn has_copies(&self) -> bool {
        self.descriptors.load(Relaxed) > 1
    }

    /// Whether a direction is pinned to the kernel's road.
    pub(crate) fn is_pinned(&self) -> bool {
        let pinned = flags::SEND_PINNED | flags::RECEIVE_PINNED;
        self.row().identity.flags.load(Relaxed) & pinned != 0
    }

    /// Changes the end record; only before the connection is attached.
    pub(crate) fn use_row(&self, row: &'static Row) {
        self.row.store(std::ptr::from_ref(row).cast_mut(), SeqCst);
    }

    /// Whether it is on the kernel's road for now only.
    pub(crate) fn may_join(&self) -> bool {
        self.phase.load(Acquire) < phase::KERNEL
    }

    /// Whether a call that moves bytes goes by the locks and the ring. In the eager modes the first one waits a little for that.
    #[inline]
    pub(crate) fn is_joined(&'static self, fd: c_int) -> bool {
        if self.phase.load(Acquire) == phase::OFFERED {
            client::wait_eagerly(self, fd);
        }
        self.is_joined_now(fd)
    }

    /// Whether calls on the connection go by the locks and the ring: attached already, or now that the agent has paired it.
    #[inline]
    pub(crate) fn is_joined_now(&'static self, fd: c_int) -> bool {
        match self.phase.load(Acquire) {
            phase::ATTACHED => {
                self.claim();
                true
            }
            phase::OFFERED => {
                client::glance();
                if self.matched.load(Relaxed) {
                    client::take(self);
                }
                self.phase.load(Acquire) == phase::PAIRED && self.try_attach(fd)
            }
            phase::PAIRED => self.try_attach(fd),
            _ => false,
        }
    }

    /// Whether it has been offered, and may come to the ring or is there.
    #[inline]
    pub(crate) fn is_candidate(&self) -> bool {
        (phase::OFFERED..=phase::ATTACHED).contains(&self.phase.load(Relaxed))
    }

    /// Whether the program's calls on it return at once.
    #[inline]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.row().identity.flags.load(Relaxed) & flags::NONBLOCK != 0
    }

    /// Whether the ring is in use. What is joining now is waited for.
    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        match self.phase.load(SeqCst) {
            phase::ATTACHED => true,
            phase::JOINING => self.await_join(),
            _ => false,
        }
    }

    /// Waits for the thread that joins or moves the connection: a few system calls, in which it waits for nobody.
    #[cold]
    pub(crate) fn await_join(&self) -> bool {
        let mut turns = 0u32;
        while self.phase.load(SeqCst) == phase::JOINING {
            turns = turns.wrapping_add(1);
            millrace_shm::sys::give_way(turns);
        }
        self.is_attached()
    }

    /// The direction that this end sends in.
    #[inline]
    fn send_direction(&self) -> usize {
        usize::from(!self.active.load(Relaxed))
    }

    /// Puts the segment in place. Both locks are held, or nobody else knows of the object yet.
    pub(crate) fn set_segment(&self, segment: Option<Segment>) {
        if segment.is_some() {
            // SeqCst: before any gate is opened; see `epoll::wait`.
            ARE_RINGS_KNOWN.store(true, SeqCst);
        }
        // SAFETY: by the caller's promise nobody reads it now.
        unsafe { *self.segment.get() = segment };
    }

    /// Whether `fd` is this connection, attached, and `row`, of which a half is locked, its end record: the object may have been
    /// another connection's when that was looked up.
    #[inline(always)]
    fn is_attached_as(&'static self, fd: c_int, row: &Row) -> bool {
        self.is_attached() && table::is(fd, self) && std::ptr::eq(row, self.row())
    }

    /// Locks the sending half. None: not attached (any more), or `fd` is not this connection any more.
    #[inline(always)]
    pub(crate) fn lock_send(&'static self, fd: c_int) -> Option<Locked<SendHalf<'static>>> {
        let row = self.row();
        let (held, busy) = Busy::lock(&row.send.lock);
        if !self.is_attached_as(fd, row) {
            row.send.lock.unlock(held);
            return None;
        }
        if held == Held::Inherited {
            // It may have asked for a recall before it died.
            client::end_ask(&row.identity);
        }
        // SAFETY: attached, and we hold one of the two locks that a change needs.
        let segment = unsafe { (*self.segment.get()).as_ref() };
        let half = segment.map(|segment| SendHalf::new(row, segment, self.send_direction()));
        half.map(|half| Locked {
            half,
            lock: &row.send.lock,
            held,
            _busy: busy,
            segment,
            direction: self.send_direction(),
        })
    }

    /// Locks the receiving half, as [`Socket::lock_send`] does.
    #[inline(always)]
    pub(crate) fn lock_receive(&'static self, fd: c_int) -> Option<Locked<ReceiveHalf<'static>>> {
        let row = self.row();
        let (held, busy) = Busy::lock(&row.receive.lock);
        if !self.is_attached_as(fd, row) {
            row.receive.lock.unlock(held);
            return None;
        }
        // SAFETY: attached, and we hold one of the two locks that a change needs.
        let segment = unsafe { (*self.segment.get()).as_ref() };
        let direction = 1 - self.send_direction();
        let half = segment.map(|segment| ReceiveHalf::new(row, segment, direction));
        half.map(|half| Locked {
            half,
            lock: &row.receive.lock,
            held,
            _busy: busy,
            segment,
            direction,
        })
    }

    /// A view of the receiving half without its lock, for wait sets: a set forgets a connection, under the set's own
    /// lock, before the segment goes.
    #[inline]
    pub(crate) fn peek_receive(&'static self) -> Option<ReceiveHalf<'static>> {
        if !self.is_attached() {
            return None;
        }
        // SAFETY: attached; `release` takes the connection out of every set before it changes the segment, and callers hold the set's lock.
        let segment = unsafe { (*self.segment.get()).as_ref() }?;
        Some(ReceiveHalf::new(
            self.row(),
            segment,
            1 - self.send_direction(),
        ))
    }

    /// As [`Socket::peek_receive`], of the sending half.
    fn peek_send(&'static self) -> Option<SendHalf<'static>> {
        if !self.is_attached() {
            return None;
        }
        // SAFETY: as in `peek_receive`.
        let segment = unsafe { (*self.segment.get()).as_ref() }?;
        Some(SendHalf::new(self.row(), segment, self.send_direction()))
    }

    /// The processor on which the peer last published, as it says; zero when unknown. For wait sets, as [`Socket::peek_receive`].
    #[inline]
    pub(crate) fn sender_processor(&'static self) -> u32 {
        self.peek_receive()
            .map_or(0, |half| half.sender_processor())
    }

    /// Whether this process may use the ring. Another holder's first use of a connection that the first user still holds
    /// sends both to the kernel's road; when the first user has let go, we take over.
    #[inline]
    pub(crate) fn claim(&'static self) {
        let identity = &self.row().identity;
        if identity.owner.load(Relaxed) != process::id() {
            self.claim_from_another();
        }
    }

    /// From now on both directions of this end take the kernel's road; what lies in the ring is still read from there.
    pub(crate) fn pin(&'static self, reason: Reason) {
        self.pin_flags(flags::SEND_PINNED | flags::RECEIVE_PINNED, reason);
    }

    /// Pins the directions that `which` names.
    pub(crate) fn pin_flags(&'static self, which: u32, reason: Reason) {
        let to_kernel = |now| (now < phase::JOINING).then_some(phase::KERNEL);
        loop {
            let row = self.row();
            row.identity.flags.fetch_or(which, AcqRel);
            if reason != Reason::Forked {
                row.identity.flags.fetch_and(!flags::FORKED, AcqRel);
            }
            row.identity.reason.store(reason as u8, Relaxed);
            match self.phase.fetch_update(SeqCst, Acquire, to_kernel) {
                // It may have another end record after that.
                Err(phase::JOINING) => self.await_join(),
                // Refused: whoever sends by it looks at the flags.
                _ => break,
            };
        }
        self.leave_halves(which, reason);
    }

    /// What is under way in the rings is the last that goes by them in these directions.
    fn leave_halves(&'static self, which: u32, reason: Reason) {
        let shown = self.row().identity.fd.load(Relaxed).cast_signed();
        let fd = match table::is(shown, self) {
            true => Some(shown),
            false => table::all().find(|fd| table::is(*fd, self)),
        };
        let Some(fd) = fd else {
            return;
        };
        if which & flags::SEND_PINNED != 0 {
            match reason {
                // What is sent goes on to be sent by calls of ours.
                Reason::EpollAmbiguous | Reason::AsyncIo | Reason::Unsupported => {}
                _ => self.show_no_delay(fd),
            }
            if let Some(locked) = self.lock_send(fd) {
                locked.half.leave();
            }
        }
        if which & flags::RECEIVE_PINNED != 0
            && let Some(locked) = self.lock_receive(fd)
        {
            if locked.half.is_open() {
                self.is_restored_at(fd, spin::clock());
            }
            locked.half.leave();
        }
    }

    /// A message that goes by the kernel must not wait for an acknowledgement that takes the ring: no delay, whatever the program thinks.
    pub(crate) fn hide_no_delay(&self, fd: c_int) {
        if kernel::option::<c_int>(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY) == Some(0) {
            self.row()
                .identity
                .flags
                .fetch_or(flags::HIDDEN_NO_DELAY, Relaxed);
            kernel::set_no_delay(fd, true);
        }
    }

    /// The kernel's road again, by calls that are not ours: the program's own choice of TCP_NODELAY holds.
    pub(crate) fn show_no_delay(&self, fd: c_int) {
        self.send_held(fd);
        let hidden = flags::HIDDEN_NO_DELAY;
        if self.row().identity.flags.fetch_and(!hidden, AcqRel) & hidden != 0 {
            kernel::set_no_delay(fd, false);
        }
    }

    /// Small messages that the kernel merges (`send/merge.rs`) wait for nothing more.
    pub(crate) fn send_held(&self, fd: c_int) {
        if self.row().identity.flags.load(Relaxed) & flags::HIDDEN_NO_DELAY != 0 {
            kernel::set_no_delay(fd, true);
        }
    }
}

/// A half with its lock held.
#[derive(Debug)]
pub(crate) struct Locked<H> {
    pub(crate) half: H,
    lock: &'static millrace_shm::lock::OwnerLock,
    held: Held,
    _busy: Busy,
    segment: Option<&'static Segment>,
    pub(crate) direction: usize,
}

impl<H> Locked<H> {
    /// Whether this very thread is at work on the half already, and was interrupted by the signal whose handler calls us.
    #[inline]
    pub(crate) fn is_nested(&self) -> bool {
        self.held == Held::Nested
    }

    /// The segment of the connection.
    #[inline]
    pub(crate) fn segment(&self) -> &Segment {
        match self.segment {
            Some(segment) => segment,
            // Locked is made only from a segment.
            None => unreachable!("a locked half has a segment"),
        }
    }
}

impl<H> Drop for Locked<H> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock(self.held);
    }
}
