//! How a connection begins and ends.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, SeqCst},
};

use libc::c_int;
use millrace_shm::board::{Row, flags};
use millrace_shm::lock::Held;
use millrace_stream::{ReceiveHalf, SendHalf};
use millrace_wire::Reason;

use super::habits::Habits;
use super::network::Shown;
use super::{Socket, phase, reset_row};
use crate::guarded::Guarded;
use crate::receive::{Gathering, Peeked, Told};
use crate::send::{Begun, Merging};
use crate::spin::Spinner;
use crate::table::{self, Entry};
use crate::thread::Busy;
use crate::{client, epoll, kernel, process, spin, uring};

/// Recycled objects. Those that were let go of last rest a while: a call that is under way on a connection that another thread has
/// closed must not take the next one of the same descriptor for it.
static FREE: Guarded<VecDeque<&'static Socket>> = Guarded::new(VecDeque::new());

/// There is something in [`Socket::linger`].
const HIDDEN_LINGER: u64 = 1 << 63;

/// So many rest.
const RESTING: usize = 32;

/// In a forked child, see [`Guarded::begin_child`].
pub(crate) fn begin_child(forker: u32) {
    FREE.begin_child(forker);
}

impl Socket {
    /// One that nobody knows of yet.
    pub(crate) fn allocate() -> &'static Socket {
        if let Some(socket) = Socket::recycled() {
            return socket;
        }
        let socket: &'static Socket = Box::leak(Box::new(Socket {
            phase: AtomicU8::new(phase::CLOSED),
            active: AtomicBool::new(false),
            family: AtomicU8::new(0),
            sent_by_kernel: AtomicBool::new(true),
            descriptors: AtomicU32::new(0),
            has_lost_sets: AtomicBool::new(false),
            outlives_its_end: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            offer_id: AtomicU64::new(0),
            matched: AtomicBool::new(false),
            questions: AtomicU32::new(0),
            row: AtomicPtr::new(std::ptr::null_mut()),
            own_row: Row::default(),
            segment: UnsafeCell::new(None),
            sets: Guarded::default(),
            habits: Habits::default(),
            spinner: Spinner::new(),
            sent_at: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            looked_head: AtomicU32::new(0),
            shown: Shown::default(),
            merging: Merging::default(),
            begun: Begun::default(),
            gathering: Gathering::default(),
            told: Told::default(),
            peeked: Peeked::default(),
            room_spinner: Spinner::new(),
            asked_at: AtomicU64::new(0),
            linger: AtomicU64::new(0),
            life: AtomicU64::new(0),
            is_deaf: AtomicBool::new(false),
            left: AtomicU8::new(0),
            is_flushed: AtomicBool::new(false),
            draws_again_ns: AtomicU64::new(0),
            pollers: AtomicU32::new(0),
        }));
        socket
            .row
            .store(std::ptr::from_ref(&socket.own_row).cast_mut(), Relaxed);
        socket
    }

    fn recycled() -> Option<&'static Socket> {
        let mut free = FREE.lock()?;
        if free.len() <= RESTING {
            return None;
        }
        let socket = free.pop_front()?;
        if socket.is_quiet() {
            return Some(socket);
        }
        // A thread that slept in a call when it was closed counts itself out when it wakes up.
        free.push_back(socket);
        None
    }

    /// Begins to track the connection that `fd` is.
    pub(crate) fn track(fd: c_int, family: c_int, active: bool) {
        if !table::covers(fd) {
            return;
        }
        let socket = Socket::allocate();
        if process::leave_if_scarce() {
            return;
        }
        socket.active.store(active, Relaxed);
        socket
            .family
            .store(if family == libc::AF_INET { 4 } else { 6 }, Relaxed);
        socket.sent_by_kernel.store(true, Relaxed);
        socket.descriptors.store(1, Relaxed);
        socket.calls.store(0, Relaxed);
        socket.bytes.store(0, Relaxed);
        socket.offer_id.store(0, Relaxed);
        socket.matched.store(false, Relaxed);
        socket.life.store(0, Relaxed);
        socket.questions.store(0, Relaxed);
        socket.habits.reset();
        socket.spinner.reset();
        socket.room_spinner.reset();
        socket.gathering.reset();
        socket.told.reset();
        socket.peeked.reset();
        socket.asked_at.store(0, Relaxed);
        socket.shown.reset();
        socket.linger.store(0, Relaxed);
        socket.has_lost_sets.store(false, Relaxed);
        socket.outlives_its_end.store(false, Relaxed);
        socket.is_deaf.store(false, Relaxed);
        socket.left.store(0, Relaxed);
        socket.is_flushed.store(false, Relaxed);
        socket.draws_again_ns.store(0, Relaxed);
        let row = client::take_row().unwrap_or(&socket.own_row);
        reset_row(row);
        client::list(row, fd, family, active);
        socket
            .row
            .store(std::ptr::from_ref(row).cast_mut(), Relaxed);
        socket.phase.store(phase::FRESH, SeqCst);
        let entry = Entry::Socket(socket);
        if !active {
            forget(fd, table::replace(fd, entry));
        } else if table::exchange(fd, Entry::Unconnected(family), entry) {
            epoll::adopt(fd, socket);
        } else {
            // Another thread has copied it meanwhile, or closed it, or made a child.
            return socket.remove_descriptor(fd);
        }
        uring::entered(fd);
        client::tracked(fd, socket);
    }

    /// Another descriptor of this process refers to the connection. False: the last one has gone.
    pub(crate) fn add_descriptor(&self) -> bool {
        let more = |count| (count != 0).then_some(count + 1);
        self.descriptors.fetch_update(AcqRel, Relaxed, more).is_ok()
    }

    /// A descriptor goes. When it was the last one of the last process, unread bytes in the ring make the kernel reset
    /// the connection, as unread bytes in its own queue would.
    fn remove_descriptor(&'static self, fd: c_int) {
        self.settle_registrations(fd);
        if self.descriptors.load(Acquire) > 1 {
            self.pass_calls();
        }
        if self.descriptors.fetch_sub(1, AcqRel) != 1 {
            self.show_another_descriptor(fd);
            self.outlive_registrations(fd);
            return;
        }
        let was_new = self.stay();
        let row = self.row();
        process::count_out_the_dead(row);
        client::LEAVING.fetch_add(1, AcqRel);
        let last = row.identity.leave(process::holder());
        // Of others nobody is known, and whoever is there knows the kernel's road only.
        let is_over = last && !row.identity.has_heirs();
        if !last && row.identity.owner.load(Relaxed) == process::id() {
            row.identity.owner.store(0, Relaxed);
        }
        let stays_watched = !is_over && self.is_watched_here();
        self.leave_sets(fd);
        let (receive_held, _receiving) = Busy::lock(&row.receive.lock);
        let (send_held, _sending) = Busy::lock(&row.send.lock);
        let was = self.phase.swap(phase::CLOSED, SeqCst);
        if was == phase::ATTACHED && is_over {
            self.end_ring(fd);
        } else if was == phase::ATTACHED && (last || client::is_listed_here(self)) {
            self.leave_sent(fd);
        }
        if stays_watched || last && !is_over {
            self.leave_received(fd);
        }
        if receive_held != Held::Nested && send_held != Held::Nested {
            self.set_segment(None);
        }
        self.peeked.reset();
        if last {
            // Whoever has waited for the locks finds that the record is this connection's no more, before it is another's.
            row.identity.connection_id.store(0, Relaxed);
        }
        row.send.lock.unlock(send_held);
        row.receive.lock.unlock(receive_held);
        // What was declined has no number any more; what went back to the kernel's road for other causes is known to the agent still.
        // While another process holds the end, it may have to recall what is in the ring.
        let offer_id = self.offer_id.load(Relaxed);
        if !was_new && offer_id != 0 && (last || was != phase::ATTACHED) {
            client::withdraw(offer_id);
        }
        if self.has_board_row() {
            client::leave_row(row, last);
        }
        client::LEAVING.fetch_sub(1, AcqRel);
        if let Some(mut free) = FREE.lock() {
            free.push_back(self);
        }
    }

    /// Waits for calls that have looked the descriptor up and go by its number: those that come later find it gone.
    fn pass_calls(&self) {
        let row = self.row();
        for lock in [&row.receive.lock, &row.send.lock] {
            let (held, _busy) = Busy::lock(lock);
            lock.unlock(held);
        }
    }

    /// The end record names a descriptor that the agent may borrow: one goes, others stay.
    fn show_another_descriptor(&'static self, fd: c_int) {
        let identity = &self.row().identity;
        let shown = &identity.fd;
        let mut gone = fd;
        while shown.load(SeqCst) == gone.cast_unsigned()
            && identity.owner.load(Relaxed) == process::id()
            && let Some(other) = table::all().find(|other| table::is(*other, self))
        {
            // SeqCst: another thread that closes this one, too, has said so in the table before it looks here.
            shown.store(other.cast_unsigned(), SeqCst);
            if table::is(other, self) {
                return;
            }
            gone = other;
        }
    }

    /// Nobody reads from here any more: closes the gate, and turns unread bytes into a reset.
    fn end_ring(&'static self, fd: c_int) {
        // SAFETY: both locks are held by the caller.
        let Some(segment) = (unsafe { (*self.segment.get()).as_ref() }) else {
            return;
        };
        let send = SendHalf::new(self.row(), segment, self.send_direction());
        self.flush(fd, &send);
        send.announce_end();
        let half = ReceiveHalf::new(self.row(), segment, 1 - self.send_direction());
        half.leave();
        if half.unread() != 0 && self.is_still(fd) {
            self.hide_linger(fd);
            kernel::reset_on_close(fd);
        } else {
            self.show_linger(fd);
            if !self.is_receive_pinned() {
                // What the peer has sent to another copy of the ring is unread, too.
                self.is_restored_at(fd, spin::clock());
            }
        }
    }

    /// The program's own SO_LINGER gives way to a reset, for now: where the process ends, other threads may go on for a while, and read.
    fn hide_linger(&self, fd: c_int) {
        if self.linger.load(Relaxed) == 0
            && let Some([is_on, seconds]) =
                kernel::option::<[c_int; 2]>(fd, libc::SOL_SOCKET, libc::SO_LINGER)
        {
            let word = u64::from(is_on.cast_unsigned()) << 32 | u64::from(seconds.cast_unsigned());
            self.linger.store(HIDDEN_LINGER | word, Relaxed);
        }
    }

    /// The program has set another one.
    pub(crate) fn forget_linger(&self) {
        self.linger.store(0, Relaxed);
    }

    /// Something was read.
    #[inline]
    pub(crate) fn note_read(&'static self, fd: c_int) {
        if self.linger.load(Relaxed) != 0 {
            self.show_linger_when_read(fd);
        }
    }

    #[cold]
    fn show_linger_when_read(&'static self, fd: c_int) {
        let locked = self.lock_receive(fd);
        if locked.is_some_and(|locked| locked.half.unread() == 0) {
            self.show_linger(fd);
        }
    }

    /// See [`Socket::hide_linger`].
    pub(crate) fn show_linger(&self, fd: c_int) {
        let word = self.linger.swap(0, Relaxed);
        if word != 0 && self.is_still(fd) {
            let is_on = ((word & !HIDDEN_LINGER) >> 32) as c_int;
            kernel::set_linger(fd, [is_on, word as c_int]);
        }
    }

    /// Others keep the connection, but the agent can borrow its descriptor here only: what was sent must not stay in the ring.
    fn leave_sent(&self, fd: c_int) {
        // SAFETY: both locks are held by the caller.
        let segment = unsafe { (*self.segment.get()).as_ref() };
        let half = segment.map(|segment| SendHalf::new(self.row(), segment, self.send_direction()));
        if let Some(half) = half.filter(|half| half.unread() != 0) {
            self.flush(fd, &half);
        }
    }

    /// Others keep the connection, and know of no ring any more, as a set of this process does that goes on to report it: what comes, and
    /// what lies unread, is the kernel's.
    fn leave_received(&self, fd: c_int) {
        let word = &self.row().identity.flags;
        word.fetch_or(flags::SEND_PINNED | flags::RECEIVE_PINNED, AcqRel);
        word.fetch_and(!flags::FORKED, AcqRel);
        // SAFETY: both locks are held by the caller.
        let Some(segment) = (unsafe { (*self.segment.get()).as_ref() }) else {
            return;
        };
        let half = ReceiveHalf::new(self.row(), segment, 1 - self.send_direction());
        half.leave();
        if half.unread() != 0 {
            client::recall(self, fd, false);
        }
    }

    /// The program dissolved the connection (`connect` to AF_UNSPEC): its descriptor may be connected again. Where wait sets have it, only
    /// the kernel knows what it will be to them.
    pub(crate) fn dissolve(&'static self) {
        self.pin(Reason::NotEstablished);
        let family = if self.family.load(Relaxed) == 4 {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let is_watched = self.sets.lock().is_none_or(|sets| !sets.is_empty());
        let descriptors: Vec<c_int> = table::all().filter(|fd| table::is(*fd, self)).collect();
        for fd in descriptors {
            if let Some(locked) = self.lock_receive(fd) {
                locked.half.discard();
            }
            self.show_no_delay(fd);
            let entry = if is_watched {
                Entry::Unknown
            } else {
                Entry::Unconnected(family)
            };
            // Another thread may have closed it meanwhile.
            if table::exchange(fd, Entry::Socket(self), entry) {
                forget(fd, Entry::Socket(self));
            }
        }
    }

    /// The program shuts its sending direction down: what is in the ring comes before the kernel's FIN.
    pub(crate) fn end_sending(&'static self, fd: c_int) {
        if let Some(locked) = self.lock_send(fd) {
            let word = &self.row().identity.flags;
            word.fetch_or(flags::SEND_PINNED, AcqRel);
            // The receiving direction stays as it is pinned, too.
            word.fetch_and(!flags::FORKED, AcqRel);
            let words = locked.segment().words(locked.direction);
            words
                .sender_flags
                .fetch_or(millrace_shm::segment::ENDED, Relaxed);
        }
        self.flush_all(fd);
        if let Some(locked) = self.lock_send(fd) {
            locked.half.announce_end();
        }
    }

    /// The process ends, or becomes another program, and with it this connection ends.
    pub(crate) fn end_for_exit(&'static self, fd: c_int) {
        // In the order that all take them in who need both: another process may be leaving the connection now.
        let receive = self.lock_receive(fd);
        let send = self.lock_send(fd);
        if send.is_some() && receive.is_some() {
            self.end_ring(fd);
        }
    }

    /// The process ends, or becomes another program, and others keep the connection. The agent knows of it by this process only, and could
    /// bring nothing back any more: nothing is left in the rings, and they are used no more.
    pub(crate) fn hand_over(&'static self, fd: c_int) {
        if self.is_attached() {
            self.pin(Reason::Forked);
            let word = &self.row().identity.flags;
            word.fetch_and(!flags::FORKED, AcqRel);
            self.draw_back_for_program(fd);
            self.flush_all(fd);
        }
    }

    /// Whether a set of this process may go on to report the connection: one that has it, or one that others have changed, of which it is
    /// not known. Whether this process will ever wait on it is not known either.
    fn is_watched_here(&self) -> bool {
        let sets = self.sets.lock();
        sets.is_some_and(|sets| !sets.is_empty()) || epoll::is_any_changed_by_others()
    }

    fn leave_sets(&'static self, fd: c_int) {
        let sets = self
            .sets
            .lock()
            .map(|mut sets| std::mem::take(&mut *sets))
            .unwrap_or_default();
        for set in sets {
            set.forget(fd, self);
        }
    }
}

/// What a descriptor was is gone: drops our count of it.
pub(crate) fn forget(fd: c_int, entry: Entry) {
    match entry {
        Entry::Socket(socket) => socket.remove_descriptor(fd),
        Entry::Set(set) => set.remove_descriptor(),
        Entry::Unconnected(_) => epoll::disown(fd),
        Entry::Ring => uring::forget(fd),
        Entry::Unknown => {}
    }
}
