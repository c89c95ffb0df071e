//! epoll over kernel and ring at once.
//!
//! Every registration is also the kernel's. A set looks at the rings of those of its connections that are *active*: their
//! gate is open, or bytes are left in their ring. Before it sleeps it closes those gates; then whatever comes is the kernel's
//! to report, with the kernel's meaning of level, edge, one-shot and exclusive. Work is proportional to the active
//! connections, not to all.
//!
//! Lock order: a connection's receive lock, its list of sets, a set.

use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};

use libc::{c_int, epoll_event};
use millrace_stream::ReceiveHalf;
use millrace_wire::Reason;
use smallvec::SmallVec;

use crate::guarded::{Guard, Guarded};
use crate::socket::{Looking, Socket, forget};
use crate::spin::Spinner;
use crate::table::{self, Entry};
use crate::{client, process, uring};

mod closed;
mod collect;
mod early;
mod instances;
mod interest;
mod kills;
mod nudges;
mod outlived;
mod registered;
mod repeats;
mod rings;
mod shared;
mod wait;
mod words;

pub(crate) use early::{adopt, disown};
pub(crate) use interest::{control, hold_all, share_all, tell_all};
pub(crate) use repeats::Resent;
use rings::{Inner, Member, Origin, has_open_or_unread_ring};
use shared::Changes;
pub(crate) use shared::is_any_changed_by_others;
use wait::{Looked, close_before_sleep, reopen_gates};
pub(crate) use wait::{Wait, wait};

const READ_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const WRITE_EVENTS: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
/// Bytes that arrive wake those, too, who ask for these.
const URGENT_EVENTS: u32 = (libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// EPOLLEXCLUSIVE, EPOLLWAKEUP, EPOLLONESHOT and EPOLLET: what is registered with these takes effect at once.
const SPECIAL: u32 = 0xf000_0000;
/// While the rings have something to report, the kernel is asked so often, in nanoseconds.
const NS_BEFORE_KERNEL: u64 = 20_000;
/// Longer by so much, in nanoseconds, for each registration that it must be told first: ten times what that costs…
const NS_PER_UNTOLD: u64 = 4_000;
/// …up to so many.
const UNTOLD_MAX: usize = 50;
/// While spinning, so often when it has just known something; less and less, down to [`NS_BEFORE_KERNEL`], when it never does.
const SPIN_NS_BEFORE_KERNEL: u64 = 2_000;
/// An active connection with an open gate that was quiet for so many looks is left to the kernel.
const QUIET_LOOKS_MAX: u32 = 4096;

/// An epoll instance of this process.
#[derive(Debug)]
pub(crate) struct EpollSet {
    inner: Guarded<Inner>,
    /// The program was seen to wait on it. One that waits by an instruction of its own is not, and has it from the kernel alone.
    is_waited_on: AtomicBool,
    /// Until then, how it looks whether there is something.
    looking: Looking,
    /// Threads asleep in the kernel on this set.
    sleepers: AtomicU32,
    /// No connection of the set is opened any more.
    kernel_only: AtomicBool,
    /// Whether our records of it may be wrong, because others have changed it.
    is_given_up: AtomicBool,
    /// It is not known which connections it has: a fork cut another thread's change in two.
    is_lost: AtomicBool,
    /// What other processes do to it.
    changes: Changes,
    descriptors: AtomicU32,
    spinner: Spinner,
    /// It may have members that are no connections yet.
    has_early: AtomicBool,
    /// The one that was made before it.
    older: Option<&'static EpollSet>,
}

/// Whether the program was seen to wait on some set.
static IS_ANY_WAITED_ON: AtomicBool = AtomicBool::new(false);
static FREE: Guarded<Vec<&'static EpollSet>> = Guarded::new(Vec::new());
/// The sets that a fork keeps still. Changes while introductions are stopped.
static KEPT: Guarded<Vec<&'static EpollSet>> = Guarded::new(Vec::new());

/// The sets of a connection, and the members of a set, both locked.
type Records<'a> = (
    Option<Guard<'a, SmallVec<[&'static EpollSet; 2]>>>,
    Guard<'a, Inner>,
);

/// Before a fork: no thread is in the middle of a change to a set.
pub(crate) fn lock_for_fork() {
    if let Some(mut kept) = KEPT.lock() {
        for set in EpollSet::all() {
            set.inner.lock_for_fork();
            kept.push(set);
        }
    }
}

/// After it, in the parent.
pub(crate) fn unlock_after_fork() {
    if let Some(mut kept) = KEPT.lock() {
        for set in kept.drain(..) {
            set.inner.unlock_after_fork();
        }
    }
}

/// In a forked child, see [`Guarded::begin_child`].
pub(crate) fn begin_child(forker: u32) {
    FREE.begin_child(forker);
    KEPT.begin_child(forker);
    if let Some(mut kept) = KEPT.lock() {
        kept.clear();
    }
    shared::begin_child(forker);
    for set in EpollSet::all() {
        if !set.inner.begin_child(forker) {
            set.is_lost.store(true, Relaxed);
        }
        set.end_waits_of_others();
    }
}

impl EpollSet {
    /// Begins to follow the epoll instance that `fd` is.
    pub(crate) fn track(fd: c_int) {
        if !table::covers(fd) {
            return;
        }
        let set = FREE
            .lock()
            .and_then(|mut free| {
                let place = free.iter().rposition(|set| !set.is_waited_on_still())?;
                Some(free.swap_remove(place))
            })
            .unwrap_or_else(EpollSet::allocate);
        if process::leave_if_scarce() {
            return;
        }
        set.drop_records();
        set.descriptors.store(1, Relaxed);
        set.is_waited_on.store(client::is_eager(), Relaxed);
        set.looking.reset();
        set.kernel_only.store(false, Relaxed);
        set.is_given_up.store(false, Relaxed);
        set.is_lost.store(false, Relaxed);
        set.changes.reset();
        set.spinner.reset();
        set.has_early.store(false, Relaxed);
        forget(fd, table::replace(fd, Entry::Set(set)));
        uring::entered(fd);
    }

    /// Another descriptor refers to the instance. False: the last one has gone.
    pub(crate) fn add_descriptor(&self) -> bool {
        let more = |count| (count != 0).then_some(count + 1);
        self.descriptors.fetch_update(AcqRel, Relaxed, more).is_ok()
    }

    pub(crate) fn remove_descriptor(&'static self) {
        if self.descriptors.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        self.changes.hold(-1);
        if !self.stay_for_waits() {
            self.drop_records();
        }
        if let Some(mut free) = FREE.lock() {
            free.push(self);
        }
    }

    fn drop_records(&'static self) {
        let Some(mut inner) = self.inner.lock() else {
            return;
        };
        let Inner { members, .. } = std::mem::take(&mut *inner);
        drop(inner);
        for socket in members.values().filter_map(|member| member.socket) {
            self.pass_habit_to(socket);
            if let Some(mut sets) = socket.sets.lock() {
                sets.retain(|set| !std::ptr::eq(*set, self));
            }
        }
    }

    /// A connection of this set goes.
    pub(crate) fn forget(&self, fd: c_int, socket: &'static Socket) {
        if let Some(mut inner) = self.inner.lock() {
            inner.forget(fd, socket);
        }
    }

    /// Records that a registration was taken back.
    fn record_end(
        &'static self,
        fd: c_int,
        socket: Option<&'static Socket>,
        (sets, mut inner): Records<'_>,
    ) {
        inner.remove(fd);
        if let Some(socket) = socket {
            self.pass_habit_to(socket);
        }
        if let Some(mut sets) = sets
            && !socket.is_some_and(|socket| inner.has_still(socket))
        {
            sets.retain(|set| !std::ptr::eq(*set, self));
        }
    }

    /// Records a registration.
    fn record(
        &'static self,
        epoll: c_int,
        (fd, socket): (c_int, Option<&'static Socket>),
        event: epoll_event,
        (sets, mut inner): Records<'_>,
    ) {
        let mut member = Member::new(fd, socket, event);
        member.is_secret = self.changes.are_shared();
        let mut other = inner.add(fd, member);
        // One that is on the kernel's road for good loses nothing by it.
        if socket.is_some_and(|socket| !socket.is_receive_pinned()) || early::is_early(fd) {
            other = other.and_then(|other| inner.sharer_that_is_there(epoll, fd, other));
        }
        // It may have something to say of that at once, as the ring has: together that is one edge.
        inner.kernel_reports |= socket.is_none() || event.events & WRITE_EVENTS != 0;
        let sharer = other.and_then(|other| inner.sharer(other));
        let ambiguous =
            other.is_some() || socket.is_some_and(|socket| inner.has_by_another(fd, socket));
        let (Some(mut sets), Some(socket)) = (sets, socket) else {
            early::note(self, &mut inner, fd);
            drop(inner);
            leave_shared_word(sharer);
            early::look_again(fd);
            return;
        };
        if !sets.iter().any(|set| std::ptr::eq(*set, self)) {
            sets.push(self);
        }
        drop(sets);
        let is_known = self.watch(&mut inner, epoll, fd, socket);
        if self.kernel_only.load(Acquire) && !self.changes.are_all_known() {
            // Another process may change it at once.
            inner.keep_unread();
        }
        drop(inner);
        leave_shared_word(sharer);
        let mut is_empty = true;
        let is_unseen = !self.will_be_waited_on_for(socket);
        if is_unseen {
            socket.habits.reset();
        }
        if self.changes.are_shared() || !is_known || is_unseen {
            // Who else has the set, or waits on it unseen, knows nothing of the ring; and for some the kernel wakes nobody without bytes.
            is_empty = socket.draw_back(fd);
        }
        if ambiguous || event.events & ONE_SHOT != 0 || self.kernel_only.load(Acquire) {
            socket.pin(Reason::EpollAmbiguous);
            is_empty = socket.draw_back(fd);
        }
        if !is_known
            && !is_empty
            && let Some(mut inner) = self.inner.lock()
        {
            inner.nudge_by_room(epoll, fd);
        }
    }

    /// Looks at a newly registered or changed connection: what is in its ring must be found, also by those who sleep on the set already.
    /// False: these do not get to know of it.
    fn watch(&self, inner: &mut Inner, epoll: c_int, fd: c_int, socket: &'static Socket) -> bool {
        let has_sleepers = self.has_sleepers();
        if has_sleepers && let Some(half) = socket.peek_receive() {
            half.leave();
        }
        if has_open_or_unread_ring(socket) {
            inner.activate(fd, Origin::Bytes);
            if has_sleepers && inner.is_member_ready(fd) {
                return inner.nudge(epoll, fd);
            }
        }
        true
    }

    /// Opens the gate that `half` is about, and looks at its ring from now on, unless somebody sleeps on the set.
    fn open(&self, socket: &'static Socket, fd: c_int, half: &ReceiveHalf<'_>, origin: Origin) {
        let Some(mut inner) = self.inner.lock() else {
            return;
        };
        let watched = inner.descriptor_of(fd, socket);
        let is_secret = |fd| inner.is_secret(fd) && self.changes.are_shared();
        if watched.is_some() && self.has_sleepers() || watched.is_some_and(is_secret) {
            return;
        }
        if half.try_open()
            && let Some(fd) = watched
        {
            self.pass_habit_to(socket);
            inner.activate(fd, origin);
        }
    }

    /// Whether threads sleep on it in the kernel, or are about to.
    #[inline]
    fn has_sleepers(&self) -> bool {
        // SeqCst: pairs with the count before a sleep for which nothing is locked.
        self.sleepers.load(SeqCst) > 0
    }

    /// The program has looked at it, without waiting, and found something or not. Who looks all the time waits so.
    pub(crate) fn note_look(&self, has_found: bool) {
        if self.is_waited_on() {
            return;
        }
        if has_found {
            self.looking.find();
        } else if self.looking.look_in_vain() {
            self.note_wait();
        }
    }

    /// The program is about to wait on it.
    #[inline]
    pub(crate) fn note_wait(&self) {
        if !self.is_waited_on() {
            self.is_waited_on.store(true, Relaxed);
            IS_ANY_WAITED_ON.store(true, Relaxed);
        }
    }

    /// Whether the program will wait on it, as far as one can tell, for one that becomes a member: some have a new set for each wait.
    fn will_be_waited_on_for(&self, socket: &Socket) -> bool {
        self.is_waited_on()
            || IS_ANY_WAITED_ON.load(Relaxed) && socket.habits.is_waited_for_beside()
    }

    /// Who was waited for by this set is so still when it has left it.
    fn pass_habit_to(&self, socket: &Socket) {
        if self.is_waited_on() {
            socket.habits.note_wait_beside();
        }
    }

    #[inline]
    fn is_waited_on(&self) -> bool {
        self.is_waited_on.load(Relaxed)
    }
}

impl Socket {
    /// Opens the ring for the sender after bytes came for a call that would have waited for them, if `waits`: where nobody sleeps on the
    /// connection, and the program was seen to wait for it. Needs no lock held by the caller.
    pub(crate) fn open_gate(&'static self, fd: c_int, waits: bool) {
        self.open_gate_after(fd, Origin::Bytes, waits);
    }

    fn open_gate_after(&'static self, fd: c_int, origin: Origin, waits: bool) {
        if self.is_receive_pinned() {
            return;
        }
        let Some(locked) = self.lock_receive(fd) else {
            return;
        };
        if locked.half.is_open() || self.is_polled_unjoined() {
            return;
        }
        let Some(sets) = self.sets.lock() else { return };
        match sets.as_slice() {
            [] if self.habits.allow_ring(waits) => {
                self.tell_unseen(false);
                locked.half.try_open();
            }
            [set] if set.is_waited_on() || self.habits.allow_ring(waits) => {
                self.tell_unseen(false);
                set.open(self, fd, &locked.half, origin)
            }
            [] | [_] => self.tell_unseen(true),
            // Only the kernel wakes them all.
            _ => {}
        }
    }
}

/// Another member of its set carries a connection's data word from now on: an event of a ring and one of the kernel would not say whose
/// they are. Edges of which the program was told stay where they are: sent again, they would be new ones.
fn leave_shared_word(sharer: Option<(c_int, &'static Socket, bool)>) {
    let Some((fd, socket, has_news)) = sharer.filter(|(fd, socket, _)| table::is(*fd, socket))
    else {
        return;
    };
    if !socket.is_receive_pinned() || has_open_or_unread_ring(socket) {
        socket.pin(Reason::EpollAmbiguous);
        if has_news {
            socket.draw_back(fd);
        }
    }
}

/// For `poll` and `select` on the set's descriptor.
impl EpollSet {
    fn has_active(&self) -> bool {
        self.inner
            .lock()
            .is_some_and(|inner| !inner.active.is_empty())
    }

    /// Whether a ring of the set has something to report.
    pub(crate) fn is_ready(&'static self) -> bool {
        self.notice_changes();
        self.inner.lock().is_some_and(|inner| inner.is_ready())
    }

    /// Begins a sleep on the set, which is `epoll`, in so many tries. False: something has come, and no sleep has begun.
    pub(crate) fn begin_sleep(&'static self, epoll: c_int, tries: u32) -> bool {
        self.notice_changes();
        close_before_sleep(self, epoll, tries, Looked::Briefly)
    }

    /// Ends a sleep.
    pub(crate) fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, AcqRel);
        reopen_gates(self);
    }

    fn close_gates(&self) {
        if let Some(mut inner) = self.inner.lock() {
            inner.close_gates(0);
        }
    }

    /// The set was put into another one: what its connections have to say, only the kernel can pass on.
    pub(crate) fn leave_to_kernel(&'static self) {
        self.kernel_only.store(true, Release);
        self.tell_kernel();
        for (fd, socket) in self.connections() {
            socket.pin(Reason::EpollAmbiguous);
            if table::is(fd, socket) {
                socket.draw_back(fd);
            }
        }
    }
}
