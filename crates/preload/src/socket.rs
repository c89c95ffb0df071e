//! A tracked TCP connection of this process.
//!
//! | phase    | to       | by       | when                                                        |
//! |----------|----------|----------|-------------------------------------------------------------|
//! | Fresh    | Offered  | `client` | enough calls or bytes                                       |
//! | Offered  | Paired   | `client` | the agent sent the segment                                  |
//! | Offered  | Kernel   | `client` | the agent declined                                          |
//! | Paired   | Attached | `attach` | no raw call is under way and the positions are known        |
//! | Paired   | Kernel   | `attach` | the kernel's facts do not allow it                          |
//! | any      | Closed   | `release`| the last descriptor of this process went                    |
//! | Attached | Kernel   | nobody   | **forbidden**: cursors matter to the end; pin the row instead |

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::{AcqRel, Acquire, Relaxed, SeqCst}};

use libc::c_int;
use millrace_shm::board::{Row, flags, state};
use millrace_shm::lock::Held;
use millrace_shm::segment::Segment;
use millrace_stream::{ReceiveHalf, SendHalf};
use millrace_wire::Reason;

use crate::epoll::EpollSet;
use crate::guarded::Guarded;
use crate::spin::Spinner;
use crate::{client, kernel, process, table, thread};

/// See the table above.
pub(crate) mod phase {
    pub(crate) const FRESH: u8 = 0;
    pub(crate) const OFFERED: u8 = 1;
    pub(crate) const PAIRED: u8 = 2;
    pub(crate) const ATTACHED: u8 = 3;
    pub(crate) const KERNEL: u8 = 4;
    pub(crate) const CLOSED: u8 = 5;
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) phase: AtomicU8,
    /// This end connected.
    pub(crate) active: AtomicBool,
    /// AF_INET or AF_INET6.
    pub(crate) family: AtomicU8,
    /// The kernel's send buffer was full when last used.
    pub(crate) send_blocked: AtomicBool,
    /// Descriptors of this process.
    descriptors: AtomicU32,
    pub(crate) calls: AtomicU32,
    pub(crate) bytes: AtomicU64,
    pub(crate) offer_id: AtomicU64,
    /// The end record: a row of the board, or `own_row` when there is none.
    row: AtomicPtr<Row>,
    own_row: Row,
    /// Valid from Paired on; changed only with both locks held.
    segment: UnsafeCell<Option<Segment>>,
    /// Wait sets of this process that watch this connection.
    pub(crate) sets: Guarded<Vec<&'static EpollSet>>,
    pub(crate) spinner: Spinner,
    /// For senders that wait for room.
    pub(crate) room_spinner: Spinner,
    /// An error that the kernel reported while ring bytes were still to be read.
    pub(crate) error: AtomicI32,
}

// SAFETY: the segment is read under a half's lock in phase Attached and changed under both; the rest are atomics and locks.
unsafe impl Sync for Socket {}

/// Recycled objects.
static FREE: Guarded<Vec<&'static Socket>> = Guarded::new(Vec::new());

/// For a forked child.
pub(crate) fn unlock_all() {
    FREE.force_unlock();
}

impl Socket {
    fn allocate() -> &'static Socket {
        if let Some(socket) = FREE.lock().and_then(|mut free| free.pop()) {
            return socket;
        }
        let socket: &'static Socket = Box::leak(Box::new(Socket {
            phase: AtomicU8::new(phase::CLOSED),
            active: AtomicBool::new(false),
            family: AtomicU8::new(0),
            send_blocked: AtomicBool::new(false),
            descriptors: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            offer_id: AtomicU64::new(0),
            row: AtomicPtr::new(std::ptr::null_mut()),
            own_row: Row::default(),
            segment: UnsafeCell::new(None),
            sets: Guarded::new(Vec::new()),
            spinner: Spinner::new(),
            room_spinner: Spinner::new(),
            error: AtomicI32::new(0),
        }));
        socket.row.store(std::ptr::from_ref(&socket.own_row).cast_mut(), Relaxed);
        socket
    }

    /// Begins to track the connection that `fd` is.
    pub(crate) fn track(fd: c_int, family: c_int, active: bool) {
        if !table::covers(fd) {
            return;
        }
        let socket = Socket::allocate();
        socket.active.store(active, Relaxed);
        socket.family.store(if family == libc::AF_INET { 4 } else { 6 }, Relaxed);
        socket.send_blocked.store(false, Relaxed);
        socket.descriptors.store(1, Relaxed);
        socket.calls.store(0, Relaxed);
        socket.bytes.store(0, Relaxed);
        socket.offer_id.store(0, Relaxed);
        socket.spinner.reset();
        socket.room_spinner.reset();
        socket.error.store(0, Relaxed);
        let row = client::take_row().unwrap_or(&socket.own_row);
        reset_row(row);
        socket.row.store(std::ptr::from_ref(row).cast_mut(), Relaxed);
        socket.phase.store(phase::FRESH, SeqCst);
        forget(fd, table::replace(fd, Entry::Socket(socket)));
        client::tracked(fd, socket);
    }

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

    /// Changes the end record; only before the connection is attached.
    pub(crate) fn use_row(&self, row: &'static Row) {
        if !std::ptr::eq(row, self.row()) {
            reset_row(row);
        }
        self.row.store(std::ptr::from_ref(row).cast_mut(), SeqCst);
    }

    /// Announces a receiving call that goes straight to the kernel. None: attached meanwhile, go by the lock.
    #[inline]
    pub(crate) fn begin_raw_receive(&self) -> Option<&'static Row> {
        loop {
            let row = self.row();
            row.receive.sleepers.fetch_add(1, SeqCst);
            if self.is_attached() {
                row.receive.sleepers.fetch_sub(1, SeqCst);
                return None;
            }
            if std::ptr::eq(row, self.row()) {
                return Some(row);
            }
            row.receive.sleepers.fetch_sub(1, SeqCst);
        }
    }

    /// Announces a sending call that goes straight to the kernel, as [`Socket::begin_raw_receive`].
    #[inline]
    pub(crate) fn begin_raw_send(&self) -> Option<&'static Row> {
        loop {
            let row = self.row();
            row.send.raw.fetch_add(1, SeqCst);
            if self.is_attached() {
                row.send.raw.fetch_sub(1, SeqCst);
                return None;
            }
            if std::ptr::eq(row, self.row()) {
                return Some(row);
            }
            row.send.raw.fetch_sub(1, SeqCst);
        }
    }

    /// Whether calls on the connection go by the locks and the ring: attached already, or now that the agent has paired it.
    #[inline]
    pub(crate) fn is_joined(&'static self, fd: c_int) -> bool {
        match self.phase.load(Acquire) {
            phase::ATTACHED => {
                self.claim();
                true
            }
            phase::OFFERED => {
                client::wait_eagerly(self);
                client::glance();
                self.phase.load(Acquire) == phase::PAIRED && self.try_attach(fd)
            }
            phase::PAIRED => self.try_attach(fd),
            _ => false,
        }
    }

    /// Whether the program's calls on it return at once.
    #[inline]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.row().identity.flags.load(Relaxed) & flags::NONBLOCK != 0
    }

    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        self.phase.load(Acquire) == phase::ATTACHED
    }

    /// The direction that this end sends in.
    #[inline]
    fn send_direction(&self) -> usize {
        usize::from(!self.active.load(Relaxed))
    }

    /// Puts the segment in place. Both locks are held, or nobody else knows of the object yet.
    pub(crate) fn set_segment(&self, segment: Option<Segment>) {
        // SAFETY: by the caller's promise nobody reads it now.
        unsafe { *self.segment.get() = segment };
    }

    /// Locks the sending half. None: not attached (any more), or `fd` is not this connection any more.
    #[inline]
    pub(crate) fn lock_send(&'static self, fd: c_int) -> Option<Locked<SendHalf<'static>>> {
        let row = self.row();
        let held = row.send.lock.lock(thread::id());
        if !self.is_attached() || !table::is(fd, self) {
            row.send.lock.unlock(held);
            return None;
        }
        // SAFETY: attached, and we hold one of the two locks that a change needs.
        let segment = unsafe { (*self.segment.get()).as_ref() };
        let half = segment.map(|segment| SendHalf::new(row, segment, self.send_direction()));
        half.map(|half| Locked { half, lock: &row.send.lock, held, segment, direction: self.send_direction() })
    }

    /// Locks the receiving half, as [`Socket::lock_send`] does.
    #[inline]
    pub(crate) fn lock_receive(&'static self, fd: c_int) -> Option<Locked<ReceiveHalf<'static>>> {
        let row = self.row();
        let held = row.receive.lock.lock(thread::id());
        if !self.is_attached() || !table::is(fd, self) {
            row.receive.lock.unlock(held);
            return None;
        }
        // SAFETY: attached, and we hold one of the two locks that a change needs.
        let segment = unsafe { (*self.segment.get()).as_ref() };
        let direction = 1 - self.send_direction();
        let half = segment.map(|segment| ReceiveHalf::new(row, segment, direction));
        half.map(|half| Locked { half, lock: &row.receive.lock, held, segment, direction })
    }

    /// A view of the receiving half without its lock, for wait sets: a set forgets a connection, under the set's own lock, before the segment goes.
    #[inline]
    pub(crate) fn peek_receive(&'static self) -> Option<ReceiveHalf<'static>> {
        if !self.is_attached() {
            return None;
        }
        // SAFETY: attached; `release` takes the connection out of every set before it changes the segment, and callers hold the set's lock.
        let segment = unsafe { (*self.segment.get()).as_ref() }?;
        Some(ReceiveHalf::new(self.row(), segment, 1 - self.send_direction()))
    }

    /// The processor on which the peer last published, as it says; zero when unknown.
    #[inline]
    pub(crate) fn sender_processor(&'static self) -> u32 {
        if !self.is_attached() {
            return 0;
        }
        // SAFETY: as in `peek_receive`.
        let segment = unsafe { (*self.segment.get()).as_ref() };
        segment.map_or(0, |segment| segment.words(1 - self.send_direction()).sender_cpu.load(Relaxed))
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

    #[cold]
    fn claim_from_another(&'static self) {
        let identity = &self.row().identity;
        if identity.holders.load(Acquire) <= 1 {
            identity.owner.store(process::id(), Relaxed);
        } else if identity.flags.load(Relaxed) & flags::RECEIVE_PINNED == 0 {
            self.pin(Reason::Forked);
        }
    }

    /// From now on both directions of this end take the kernel's road; what lies in the ring is still read from there.
    pub(crate) fn pin(&'static self, reason: Reason) {
        self.pin_flags(flags::SEND_PINNED | flags::RECEIVE_PINNED, reason);
    }

    /// Pins the directions that `which` names.
    pub(crate) fn pin_flags(&'static self, which: u32, reason: Reason) {
        let row = self.row();
        row.identity.flags.fetch_or(which, AcqRel);
        row.identity.reason.store(reason as u8, Relaxed);
        if self.phase.load(Acquire) < phase::ATTACHED {
            self.phase.store(phase::KERNEL, SeqCst);
        }
        for fd in table::all().filter(|fd| table::is(*fd, self)) {
            if which & flags::RECEIVE_PINNED != 0
                && let Some(locked) = self.lock_receive(fd)
            {
                locked.half.leave();
            }
            if which & flags::SEND_PINNED != 0
                && let Some(locked) = self.lock_send(fd)
            {
                locked.half.leave();
            }
            return;
        }
    }

    /// Another descriptor of this process refers to the connection.
    pub(crate) fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, AcqRel);
    }

    /// A descriptor goes. When it was the last one of the last process, unread bytes in the ring make the kernel reset
    /// the connection, as unread bytes in its own queue would.
    fn remove_descriptor(&'static self, fd: c_int) {
        if self.descriptors.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        let row = self.row();
        let last = row.identity.holders.fetch_sub(1, AcqRel) == 1;
        if !last && row.identity.owner.load(Relaxed) == process::id() {
            row.identity.owner.store(0, Relaxed);
        }
        self.leave_sets();
        let receive_held = row.receive.lock.lock(thread::id());
        let send_held = row.send.lock.lock(thread::id());
        let was = self.phase.swap(phase::CLOSED, SeqCst);
        if was == phase::ATTACHED && last {
            self.end_ring(fd);
        }
        if receive_held != Held::Nested && send_held != Held::Nested {
            self.set_segment(None);
        }
        row.send.lock.unlock(send_held);
        row.receive.lock.unlock(receive_held);
        if was != phase::FRESH && was != phase::KERNEL {
            client::withdraw(self.offer_id.load(Relaxed));
        }
        if last {
            row.identity.state.store(state::FREE, Relaxed);
            client::give_row(row);
        }
        if let Some(mut free) = FREE.lock() {
            free.push(self);
        }
    }

    /// Nobody reads from here any more: closes the gate, and turns unread bytes into a reset.
    fn end_ring(&'static self, fd: c_int) {
        // SAFETY: both locks are held by the caller.
        let Some(segment) = (unsafe { (*self.segment.get()).as_ref() }) else { return };
        let half = ReceiveHalf::new(self.row(), segment, 1 - self.send_direction());
        half.leave();
        SendHalf::new(self.row(), segment, self.send_direction()).announce_end();
        if half.unread() != 0 {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            kernel::kernel!(libc::SYS_setsockopt, fd, libc::SOL_SOCKET, libc::SO_LINGER, &raw const linger, size_of::<libc::linger>());
        }
    }

    /// The program shuts its sending direction down: what is in the ring comes before the kernel's FIN.
    pub(crate) fn end_sending(&'static self, fd: c_int) {
        if let Some(locked) = self.lock_send(fd) {
            self.row().identity.flags.fetch_or(flags::SEND_PINNED, AcqRel);
            let words = locked.segment().words(locked.direction);
            words.sender_flags.fetch_or(millrace_shm::segment::ENDED, Relaxed);
            locked.half.leave();
            locked.half.announce_end();
        }
    }

    /// The process ends and with it this connection.
    pub(crate) fn end_for_exit(&'static self, fd: c_int) {
        if self.is_attached() {
            self.end_ring(fd);
        }
    }

    fn leave_sets(&'static self) {
        let sets = self.sets.lock().map(|mut sets| std::mem::take(&mut *sets)).unwrap_or_default();
        for set in sets {
            set.forget(self);
        }
    }
}

use crate::table::Entry;

/// What a descriptor was is gone: drops our count of it.
pub(crate) fn forget(fd: c_int, entry: Entry) {
    match entry {
        Entry::Socket(socket) => socket.remove_descriptor(fd),
        Entry::Set(set) => set.remove_descriptor(),
        Entry::Unknown | Entry::Unconnected(_) => {}
    }
}

fn reset_row(row: &Row) {
    let Row { identity, send, receive } = row;
    for word in [&send.tail, &send.pending, &send.epoch, &send.head_seen, &send.raw] {
        word.store(0, Relaxed);
    }
    for word in [&receive.head, &receive.opened_at, &receive.sleepers, &receive.idle_opens, &receive.skipped_opens] {
        word.store(0, Relaxed);
    }
    for word in [&send.kernel_position, &send.ring_bytes, &send.ring_messages, &send.kernel_messages,
        &receive.kernel_position, &receive.ring_bytes, &receive.ring_messages, &receive.kernel_messages, &identity.connection_id] {
        word.store(0, Relaxed);
    }
    identity.flags.store(0, Relaxed);
    identity.reason.store(Reason::TooShort as u8, Relaxed);
    identity.owner.store(process::id(), Relaxed);
    identity.holders.store(1, Relaxed);
}

/// A half with its lock held.
#[derive(Debug)]
pub(crate) struct Locked<H> {
    pub(crate) half: H,
    lock: &'static millrace_shm::lock::OwnerLock,
    held: Held,
    segment: Option<&'static Segment>,
    pub(crate) direction: usize,
}

impl<H> Locked<H> {
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
