//! `epoll_ctl`, of which the kernel hears when it matters.
//!
//! Many programs change what they wait for with every message: off and on, reading and writing in turn. For a connection on the
//! ring the kernel's opinion matters only when it is asked, so changes of a level-triggered registration wait until then. A set that
//! another process or another set may look at hears of everything at once.

use std::sync::atomic::Ordering::Acquire;

use libc::{c_int, epoll_event};
use millrace_wire::Reason;

use super::rings::Inner;
use super::{EXCLUSIVE, EpollSet, ONE_SHOT, Records, SPECIAL, WRITE_EVENTS};
use crate::socket::{self, Socket};
use crate::table::{self, Entry};
use crate::{kernel, process, real, thread, user};

/// `epoll_ctl`.
///
/// # Safety
/// As `epoll_ctl(2)`.
pub(crate) unsafe fn control(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the program's own arguments.
    let mut raw = || unsafe { real::epoll_ctl(epoll, operation, fd, event) };
    loop {
        let Entry::Set(set) = table::get(epoll) else {
            let result = raw();
            if result == 0 && operation != libc::EPOLL_CTL_DEL {
                leave_to_unknown(fd);
            }
            return result;
        };
        let socket = table::called(fd);
        if let Some(socket) = socket {
            if socket.is_attached() && set.defer(operation, (fd, socket), event) {
                return 0;
            }
        } else if let (Entry::Set(inner), libc::EPOLL_CTL_ADD) = (table::get(fd), operation) {
            inner.leave_to_kernel();
        }
        if let Some(result) = set.change(epoll, operation, (fd, socket, event), &mut raw) {
            if result == 0 && operation != libc::EPOLL_CTL_DEL && set.changes.are_for_others() {
                leave_to_unknown(fd);
            }
            return result;
        }
    }
}

/// A set that we do not know has `fd`: it came from another program, or past us; or one that others wait on, who do not know that it has.
/// Nobody looks at rings for them.
#[cold]
fn leave_to_unknown(fd: c_int) {
    let errno = thread::errno();
    match table::get(fd) {
        Entry::Socket(socket) => {
            socket.pin(Reason::EpollAmbiguous);
            socket.draw_back(fd);
        }
        Entry::Unconnected(_) => process::leave_unconnected(fd),
        Entry::Set(inner) => inner.leave_to_kernel(),
        Entry::Ring | Entry::Unknown => {}
    }
    thread::set_errno(errno);
}

/// Another process is about to get the sets of this one.
pub(crate) fn share_all() {
    let mut seen: Vec<&'static EpollSet> = Vec::new();
    for (_, set) in sets() {
        if seen.iter().any(|other| std::ptr::eq(*other, set)) {
            continue;
        }
        seen.push(set);
        if !set.changes.share() {
            set.give_up_records();
        }
    }
    tell_all();
}

/// So many more processes, or fewer, have the sets of this one; those that an exec closes, if `on_exec`.
pub(crate) fn hold_all(more: i32, on_exec: bool) {
    let mut seen: Vec<&'static EpollSet> = Vec::new();
    for (epoll, set) in sets() {
        let stays = on_exec && kernel::stays_open_on_exec(epoll);
        if !stays && !seen.iter().any(|other| std::ptr::eq(*other, set)) {
            seen.push(set);
            set.changes.hold(more);
        }
    }
}

/// A program that is about to start may inherit the sets of this process.
pub(crate) fn tell_all() {
    for (epoll, set) in sets() {
        set.tell_kernel_by(epoll);
    }
}

pub(super) fn sets() -> impl Iterator<Item = (c_int, &'static EpollSet)> {
    table::all().filter_map(|fd| match table::get(fd) {
        Entry::Set(set) => Some((fd, set)),
        _ => None,
    })
}

impl EpollSet {
    /// Takes note of the change, if the kernel need not hear of it now. False: it must.
    #[inline(never)]
    fn defer(
        &self,
        operation: c_int,
        (fd, socket): (c_int, &'static Socket),
        event: *const epoll_event,
    ) -> bool {
        let wanted = match operation {
            libc::EPOLL_CTL_DEL => None,
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD
                if user::can_read(event.cast(), size_of::<epoll_event>()) =>
            {
                // SAFETY: just found readable.
                Some(unsafe { event.read_unaligned() })
            }
            _ => return false,
        };
        // Whoever closes the descriptor says so in the table, and then waits for the set.
        let Some(mut inner) = self.inner.lock().filter(|_| table::is(fd, socket)) else {
            return false;
        };
        let Some(member) = inner.members.get(&fd) else {
            return false;
        };
        let allowed = match wanted {
            None => member.wanted.is_some(),
            Some(event) => {
                event.u64 == member.data
                    && event.events & SPECIAL == 0
                    && member.wanted.is_some() == (operation == libc::EPOLL_CTL_MOD)
            }
        };
        let waits_for_nobody = !self.has_sleepers()
            && self.is_waited_on()
            && self.changes.are_all_known()
            && !self.kernel_only.load(Acquire);
        let same = member
            .socket
            .is_some_and(|found| std::ptr::eq(found, socket));
        if !allowed || !waits_for_nobody || !same || member.told & SPECIAL != 0 {
            return false;
        }
        // A child of vfork: the program that it becomes may have the set, and nobody else tells the kernel before that.
        if thread::is_in_bare_child() {
            return false;
        }
        inner.change(fd, wanted.map(|event| event.events));
        true
    }

    /// Makes the program's own call and takes note of it, in one step for all others: what another thread hears of by the kernel, and what
    /// it takes back or closes then, comes after it. None: to be tried again, for a descriptor has got another meaning meanwhile, or the
    /// kernel had to hear of something else first.
    fn change(
        &'static self,
        epoll: c_int,
        operation: c_int,
        (fd, socket, event): (c_int, Option<&'static Socket>, *mut epoll_event),
        raw: &mut dyn FnMut() -> c_int,
    ) -> Option<c_int> {
        let sets = socket.and_then(|socket| socket.sets.lock());
        let inner = self.inner.lock();
        // Whoever closes one of them says so in the table, and then waits for these locks.
        let is_same = match socket {
            Some(socket) => table::is(fd, socket),
            None => table::socket(fd).is_none(),
        };
        if !is_same || !table::is_set(epoll, self) {
            return None;
        }
        // The kernel hears of this change at once, and before it of those that came before.
        if inner
            .as_ref()
            .is_some_and(|inner| inner.untold.contains(&fd))
        {
            drop((inner, sets));
            self.tell_kernel_by(epoll);
            return None;
        }
        let result = raw();
        let Some(mut inner) = inner.filter(|_| result == 0) else {
            return Some(result);
        };
        let event = if event.is_null() {
            None
        } else {
            // SAFETY: the kernel has just read it.
            Some(unsafe { event.read_unaligned() })
        };
        if operation == libc::EPOLL_CTL_MOD
            && self.is_known_to_all()
            && inner.note_events(fd, socket, event)
        {
            return Some(result);
        }
        self.note_change(epoll, operation, (fd, socket, event), (sets, inner));
        Some(result)
    }

    /// Takes note of a change that the kernel has made.
    #[inline(never)]
    fn note_change(
        &'static self,
        epoll: c_int,
        operation: c_int,
        (fd, socket, event): (c_int, Option<&'static Socket>, Option<epoll_event>),
        (sets, mut inner): Records<'_>,
    ) {
        if operation != libc::EPOLL_CTL_ADD {
            inner.regain_by_number(fd);
        }
        self.changes.note();
        match event {
            _ if operation == libc::EPOLL_CTL_DEL => self.record_end(fd, socket, (sets, inner)),
            Some(event) => self.record(epoll, (fd, socket), event, (sets, inner)),
            None => {}
        }
    }

    /// Whether all that ever waited on it did so in this process, by functions of ours.
    fn is_known_to_all(&self) -> bool {
        self.is_waited_on() && !self.changes.are_watched() && !self.kernel_only.load(Acquire)
    }

    /// Tells the kernel whatever it has not heard of yet.
    pub(crate) fn tell_kernel_by(&'static self, epoll: c_int) {
        let Some(mut inner) = self.inner.lock() else {
            return;
        };
        if inner.untold.is_empty() {
            return;
        }
        // Another thread may have closed this descriptor of the set.
        let Some(epoll) = self.number(epoll) else {
            return;
        };
        let gone = inner.tell_kernel(epoll);
        drop(inner);
        for socket in gone {
            self.part_from(socket);
        }
    }

    /// As [`EpollSet::tell_kernel_by`], by any descriptor of the set.
    pub(crate) fn tell_kernel(&'static self) {
        self.tell_kernel_by(-1);
    }

    /// A descriptor of the set: likely this one.
    pub(super) fn number(&'static self, likely: c_int) -> Option<c_int> {
        if table::is_set(likely, self) {
            return Some(likely);
        }
        sets()
            .find(|(_, set)| std::ptr::eq(*set, self))
            .map(|(epoll, _)| epoll)
    }

    /// Whether the kernel's registration of `fd` is another than the program's.
    fn owes(&self, fd: c_int) -> bool {
        self.inner
            .lock()
            .is_some_and(|inner| inner.untold.contains(&fd) || inner.nudged.contains(&fd))
    }

    fn settle(&'static self, fd: c_int) {
        self.tell_kernel();
        if let Some(mut inner) = self.inner.lock()
            && let Some(epoll) = self.number(-1)
        {
            inner.settle_nudge(epoll, fd);
        }
    }

    /// A connection is no member any more, unless it has become one again.
    fn part_from(&'static self, socket: &'static Socket) {
        let Some(mut sets) = socket.sets.lock() else {
            return;
        };
        let Some(inner) = self.inner.lock() else {
            return;
        };
        if inner.descriptor_of(-1, socket).is_none() {
            self.pass_habit_to(socket);
            sets.retain(|set| !std::ptr::eq(*set, self));
        }
    }
}

impl Inner {
    /// Takes note of what the kernel has for a member that has no ring and of which nothing else changes than the events. False: more does.
    fn note_events(
        &mut self,
        fd: c_int,
        socket: Option<&'static Socket>,
        event: Option<epoll_event>,
    ) -> bool {
        let (Some(event), Some(socket)) = (event, socket) else {
            return false;
        };
        let Some(member) = self.members.get_mut(&fd) else {
            return false;
        };
        let Some(wanted) = &mut member.wanted else {
            return false;
        };
        let is_same = member.socket.is_some_and(|it| std::ptr::eq(it, socket))
            && member.data == event.u64
            && !member.is_secret
            && (member.told | event.events) & (ONE_SHOT | EXCLUSIVE) == 0;
        let has_reports = !self.repeats.is_empty() || !self.nudged.is_empty();
        if !is_same || has_reports || member.slot.is_some() || socket.peek_receive().is_some() {
            return false;
        }
        (*wanted, member.told) = (event.events, event.events);
        self.kernel_reports |= event.events & WRITE_EVENTS != 0;
        true
    }
}

impl Socket {
    /// A descriptor of the connection is about to be closed: its registrations outlive it where the connection does.
    pub(crate) fn settle_registrations(&'static self, fd: c_int) {
        if !socket::are_rings_known() {
            return;
        }
        let sets = self
            .sets
            .lock()
            .filter(|sets| sets.iter().any(|set| set.owes(fd)));
        let Some(sets) = sets.map(|sets| sets.clone()) else {
            return;
        };
        for set in sets {
            set.settle(fd);
        }
    }
}
