//! epoll over kernel and ring at once.
//!
//! Every registration is also the kernel's. A set looks at the rings of those of its connections that are *active*: their gate
//! is open, or bytes are left in their ring. Before it sleeps it closes those gates; then whatever comes is the kernel's to report, with the
//! kernel's meaning of level, edge, one-shot and exclusive. Work is proportional to the active connections, not to all.
//!
//! Lock order: a connection's receive lock, its list of sets, a set.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::{AcqRel, Acquire, Relaxed, Release}};

use libc::{c_int, epoll_event, sigset_t, timespec};
use millrace_wire::Reason;

use crate::guarded::{Guard, Guarded};
use crate::kernel::kernel;
use crate::socket::{Socket, forget};
use crate::spin::{self, Spinner};
use crate::table::{self, Entry};
use crate::{client, real, thread};

const READ_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
const WRITE_EVENTS: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// The kernel's part of a busy set is looked at after so many calls…
const CALLS_BEFORE_KERNEL: u32 = 16;
/// …or after so long, in nanoseconds.
const NS_BEFORE_KERNEL: u64 = 20_000;
/// While spinning, the same.
const SPIN_NS_BEFORE_KERNEL: u64 = 2_000;
/// An active connection with an open gate that was quiet for so many looks is left to the kernel.
const QUIET_LOOKS_MAX: u32 = 4096;

/// An epoll instance of this process.
#[derive(Debug)]
pub(crate) struct EpollSet {
    inner: Guarded<Inner>,
    /// Threads asleep in the kernel on this set.
    sleepers: AtomicU32,
    /// No connection of the set is opened any more.
    kernel_only: AtomicBool,
    descriptors: AtomicU32,
    spinner: Spinner,
}

#[derive(Debug, Default)]
struct Inner {
    members: HashMap<c_int, Member>,
    /// How many members carry the same data word, when it is more than one.
    by_data: HashMap<u64, u32>,
    active: Vec<Active>,
    /// Members whose registration asks for more than the program did, to wake a sleeper.
    nudged: Vec<c_int>,
    /// Where the next look begins, so that every connection has its turn.
    cursor: usize,
    calls: u32,
    kernel_seen: u64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    socket: Option<&'static Socket>,
    events: u32,
    data: u64,
}

/// A member whose ring is looked at.
#[derive(Clone, Copy, Debug)]
struct Active {
    socket: &'static Socket,
    fd: c_int,
    events: u32,
    data: u64,
    /// Edge-triggered: the tail that has been reported.
    reported: Option<u32>,
    quiet: u32,
}

static FREE: Guarded<Vec<&'static EpollSet>> = Guarded::new(Vec::new());

/// For a forked child: whoever held these locks is not here.
pub(crate) fn unlock_all() {
    FREE.force_unlock();
    for fd in table::all() {
        if let Entry::Set(set) = table::get(fd) {
            set.inner.force_unlock();
        }
    }
}

impl EpollSet {
    /// Begins to follow the epoll instance that `fd` is.
    pub(crate) fn track(fd: c_int) {
        if !table::covers(fd) {
            return;
        }
        let set = FREE.lock().and_then(|mut free| free.pop()).unwrap_or_else(|| {
            Box::leak(Box::new(EpollSet {
                inner: Guarded::default(),
                sleepers: AtomicU32::new(0),
                kernel_only: AtomicBool::new(false),
                descriptors: AtomicU32::new(0),
                spinner: Spinner::new(),
            }))
        });
        set.descriptors.store(1, Relaxed);
        set.sleepers.store(0, Relaxed);
        set.kernel_only.store(false, Relaxed);
        set.spinner.reset();
        forget(fd, table::replace(fd, Entry::Set(set)));
    }

    pub(crate) fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, AcqRel);
    }

    pub(crate) fn remove_descriptor(&'static self) {
        if self.descriptors.fetch_sub(1, AcqRel) != 1 {
            return;
        }
        let Some(mut inner) = self.inner.lock() else { return };
        let Inner { members, .. } = std::mem::take(&mut *inner);
        drop(inner);
        for socket in members.values().filter_map(|member| member.socket) {
            if let Some(mut sets) = socket.sets.lock() {
                sets.retain(|set| !std::ptr::eq(*set, self));
            }
        }
        if let Some(mut free) = FREE.lock() {
            free.push(self);
        }
    }

    /// A connection of this set goes.
    pub(crate) fn forget(&self, socket: &'static Socket) {
        let Some(mut inner) = self.inner.lock() else { return };
        inner.active.retain(|active| !std::ptr::eq(active.socket, socket));
        let gone: Vec<c_int> = inner
            .members
            .iter()
            .filter(|(_, member)| member.socket.is_some_and(|found| std::ptr::eq(found, socket)))
            .map(|(fd, _)| *fd)
            .collect();
        for fd in gone {
            inner.remove(fd);
        }
    }

    /// Records a successful `epoll_ctl`.
    fn record(&'static self, epoll: c_int, operation: c_int, fd: c_int, event: Option<epoll_event>) {
        if let (Entry::Set(inner), libc::EPOLL_CTL_ADD) = (table::get(fd), operation) {
            inner.leave_to_kernel();
        }
        let socket = table::socket(fd);
        let sets = socket.and_then(|socket| socket.sets.lock());
        let Some(mut inner) = self.inner.lock() else { return };
        match (operation, event) {
            (libc::EPOLL_CTL_DEL, _) => {
                inner.remove(fd);
                inner.active.retain(|active| active.fd != fd);
                if let Some(mut sets) = sets {
                    sets.retain(|set| !std::ptr::eq(*set, self));
                }
            }
            (_, Some(event)) => {
                let ambiguous = inner.add(fd, Member { socket, events: event.events, data: event.u64 });
                if let (Some(mut sets), Some(socket)) = (sets, socket) {
                    if !sets.iter().any(|set| std::ptr::eq(*set, self)) {
                        sets.push(self);
                    }
                    drop(sets);
                    self.watch(&mut inner, epoll, fd, socket, event);
                    drop(inner);
                    if ambiguous || event.events & ONE_SHOT != 0 || self.kernel_only.load(Acquire) {
                        socket.pin(Reason::EpollAmbiguous);
                    }
                }
            }
            _ => {}
        }
    }

    /// Looks at a newly registered or changed connection: what is in its ring must be found, also by those who sleep on the set already.
    fn watch(&self, inner: &mut Inner, epoll: c_int, fd: c_int, socket: &'static Socket, event: epoll_event) {
        inner.active.retain(|active| active.fd != fd);
        let Some(half) = socket.peek_receive() else { return };
        if self.sleepers.load(Acquire) > 0 {
            half.leave();
        }
        if half.is_open() || !half.is_drained() {
            let active = Active { socket, fd, events: event.events, data: event.u64, reported: None, quiet: 0 };
            inner.active.push(active);
            if self.sleepers.load(Acquire) > 0 && active.event().is_some() {
                inner.nudge(epoll, fd);
            }
        }
    }

    /// Opens a connection's gate on behalf of this set, unless somebody sleeps on it. Its list of sets is locked.
    fn admit(&self, socket: &'static Socket) -> Option<Guard<'_, Inner>> {
        let inner = self.inner.lock()?;
        let watched = inner.members.values().any(|member| member.socket.is_some_and(|found| std::ptr::eq(found, socket)));
        (!watched || self.sleepers.load(Acquire) == 0).then_some(inner)
    }
}

impl Socket {
    /// Opens the ring for the sender, if nobody sleeps on the connection and it is worth it. Needs no lock held by the caller.
    pub(crate) fn open_gate(&'static self, fd: c_int) {
        if self.is_receive_pinned() {
            return;
        }
        let Some(locked) = self.lock_receive(fd) else { return };
        if locked.half.is_open() {
            return;
        }
        let Some(sets) = self.sets.lock() else { return };
        match sets.as_slice() {
            [] => {
                locked.half.try_open();
            }
            [set] => {
                if let Some(mut inner) = set.admit(self)
                    && locked.half.try_open()
                {
                    inner.activate(self);
                }
            }
            // Watched by several sets: only the kernel wakes them all.
            _ => {}
        }
    }
}

impl Inner {
    fn add(&mut self, fd: c_int, member: Member) -> bool {
        self.remove(fd);
        self.members.insert(fd, member);
        let same = self.by_data.entry(member.data).or_insert(0);
        *same += 1;
        *same > 1
    }

    fn remove(&mut self, fd: c_int) {
        if let Some(member) = self.members.remove(&fd)
            && let Some(same) = self.by_data.get_mut(&member.data)
        {
            *same -= 1;
            if *same == 0 {
                self.by_data.remove(&member.data);
            }
        }
    }

    /// Looks at the rings of `socket` from now on.
    fn activate(&mut self, socket: &'static Socket) {
        let is_it = |found: &'static Socket| std::ptr::eq(found, socket);
        if self.active.iter().any(|active| is_it(active.socket)) {
            return;
        }
        let found = self.members.iter().find(|(_, member)| member.socket.is_some_and(is_it));
        if let Some((fd, member)) = found {
            self.active.push(Active { socket, fd: *fd, events: member.events, data: member.data, reported: None, quiet: 0 });
        }
    }

    /// Makes the kernel wake those who sleep on the set for a connection whose ring has bytes: the socket is writable,
    /// so asking for that, once, fires. The woken put the registration right.
    fn nudge(&mut self, epoll: c_int, fd: c_int) {
        if let Some(member) = self.members.get(&fd) {
            self.nudged.push(fd);
            modify(epoll, fd, member.events | libc::EPOLLOUT as u32, member.data);
        }
    }

    /// Takes the nudges out of `events` and of the kernel's registrations; what the rings have is reported instead. Returns how many are left.
    fn undo_nudges(&mut self, epoll: c_int, events: &mut [epoll_event]) -> usize {
        for fd in std::mem::take(&mut self.nudged) {
            let Some(member) = self.members.get(&fd) else { continue };
            modify(epoll, fd, member.events, member.data);
            let ring = self.active.iter().find(|active| active.fd == fd).and_then(Active::event);
            for event in events.iter_mut().filter(|event| event.u64 == member.data) {
                let ring_events = ring.map_or(0, |event| event.events);
                event.events = event.events & (!WRITE_EVENTS | member.events) | ring_events;
            }
        }
        let mut kept = 0;
        for index in 0..events.len() {
            if events[index].events != 0 {
                events[kept] = events[index];
                kept += 1;
            }
        }
        kept
    }

    /// Looks at every active ring; fills `events` from `count` on. Returns how many there are now.
    fn collect(&mut self, events: &mut [epoll_event]) -> usize {
        let mut count = 0;
        let mut index = 0;
        let total = self.active.len();
        while index < total.min(self.active.len()) && count < events.len() {
            let position = (self.cursor + index) % self.active.len();
            index += 1;
            let active = &mut self.active[position];
            match active.event() {
                Some(event) => {
                    active.quiet = 0;
                    active.note_reported();
                    events[count] = event;
                    count += 1;
                }
                None => active.quiet += 1,
            }
        }
        if !self.active.is_empty() {
            self.cursor = (self.cursor + index) % self.active.len();
        }
        count
    }

    /// Leaves connections that have been quiet for long to the kernel, so that a busy set looks at few.
    fn retire_quiet(&mut self) {
        self.active.retain(|active| {
            let Some(half) = active.socket.peek_receive() else { return false };
            let quiet = active.quiet > QUIET_LOOKS_MAX && half.is_drained() && half.close(half.tail());
            !quiet
        });
    }

    /// Closes every gate. False: some ring has something to report, so nobody may sleep.
    fn close_gates(&mut self) -> bool {
        let mut may_sleep = true;
        self.active.retain_mut(|active| {
            let Some(half) = active.socket.peek_receive() else { return false };
            let tail = half.tail();
            if half.is_open() && !half.close(tail) {
                may_sleep = false;
                return true;
            }
            if active.event().is_some() {
                may_sleep = false;
            }
            !half.is_drained()
        });
        may_sleep
    }

    fn peer_runs_elsewhere(&self) -> bool {
        let here = spin::processor();
        self.active.iter().any(|active| active.socket.sender_processor() != here)
    }
}

impl Active {
    /// What is to be reported for the ring now.
    #[inline]
    fn event(&self) -> Option<epoll_event> {
        let wanted = self.events & READ_EVENTS;
        if wanted == 0 {
            return None;
        }
        let tail = self.socket.peek_receive()?.ready()?;
        if self.events & EDGE != 0 && self.reported == Some(tail) {
            return None;
        }
        let writable = self.events & WRITE_EVENTS;
        let events = if writable != 0 && self.is_writable() { wanted | writable } else { wanted };
        Some(epoll_event { events, u64: self.data })
    }

    fn note_reported(&mut self) {
        self.reported = self.socket.peek_receive().map(|half| half.tail());
    }

    fn is_writable(&self) -> bool {
        if !self.socket.send_blocked.load(Relaxed) {
            return true;
        }
        let mut entry = libc::pollfd { fd: self.fd, events: libc::POLLOUT, revents: 0 };
        let now = timespec { tv_sec: 0, tv_nsec: 0 };
        kernel!(libc::SYS_ppoll, &raw mut entry, 1usize, &raw const now, 0usize, 0usize);
        entry.revents & libc::POLLOUT != 0
    }
}

fn modify(epoll: c_int, fd: c_int, events: u32, data: u64) {
    let event = epoll_event { events, u64: data };
    kernel!(libc::SYS_epoll_ctl, epoll, libc::EPOLL_CTL_MOD, fd, &raw const event);
}

/// `epoll_ctl`.
///
/// # Safety
/// As `epoll_ctl(2)`.
pub(crate) unsafe fn control(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the program's own arguments.
    let result = unsafe { real::epoll_ctl(epoll, operation, fd, event) };
    if result == 0
        && let Entry::Set(set) = table::get(epoll)
    {
        // SAFETY: the kernel has just read it, or the operation needs none.
        let event = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
        set.record(epoll, operation, fd, event);
    }
    result
}

/// One program's call of the `epoll_wait` family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) epoll: c_int,
    pub(crate) events: *mut epoll_event,
    pub(crate) count: c_int,
    /// Nanoseconds; None for ever.
    pub(crate) timeout_ns: Option<u64>,
    pub(crate) mask: *const sigset_t,
}

/// The whole family: looks at rings and kernel, spins if it is worth it, then `sleep`s in the program's own call.
pub(crate) fn wait(set: &'static EpollSet, call: Wait, sleep: &mut dyn FnMut() -> c_int) -> c_int {
    client::glance();
    let room = usize::try_from(call.count).unwrap_or(0);
    if room == 0 || !crate::user::can_write(call.events.cast(), room * size_of::<epoll_event>()) {
        set.close_gates();
        return sleep();
    }
    // SAFETY: just found writable; the program gives the buffer to this call.
    let events = unsafe { std::slice::from_raw_parts_mut(call.events, room) };
    loop {
        let had_active = set.has_active();
        if had_active && let Some(result) = look_until_sleep(set, &call, events) {
            return result;
        }
        if close_before_sleep(set)
            && let Some(result) = sleep_and_wake(set, &call, events, sleep)
        {
            return result;
        }
    }
}

/// Looks, and spins if it is worth it. None: there is nothing, and it is time to sleep.
fn look_until_sleep(set: &EpollSet, call: &Wait, events: &mut [epoll_event]) -> Option<c_int> {
    let interrupts = thread::interrupts();
    let mut spin: Option<spin::Spin<'_>> = None;
    loop {
        if let Some(count) = look(set, call, events, spin.is_some()) {
            if let Some(spin) = spin.filter(|spin| spin.age() > 0) {
                spin.hit();
            }
            return Some(count);
        }
        if call.timeout_ns == Some(0) {
            return Some(0);
        }
        if thread::interrupts() != interrupts {
            thread::set_errno(libc::EINTR);
            return Some(-1);
        }
        match &mut spin {
            None => spin = Some(begin_spin(set, call)?),
            Some(spin) => {
                if !spin.go_on() {
                    return None;
                }
            }
        }
    }
}

fn begin_spin<'a>(set: &'a EpollSet, call: &Wait) -> Option<spin::Spin<'a>> {
    let elsewhere = set.inner.lock().is_some_and(|inner| inner.peer_runs_elsewhere());
    if !elsewhere {
        return None;
    }
    set.spinner.begin(call.timeout_ns.unwrap_or(u64::MAX))
}

/// One look at the rings and, when it is due, at the kernel. None: nothing anywhere.
fn look(set: &EpollSet, call: &Wait, events: &mut [epoll_event], spinning: bool) -> Option<c_int> {
    let mut inner = set.inner.lock()?;
    let from_rings = inner.collect(events);
    inner.calls += 1;
    let now = spin::clock();
    let patience_ns = if spinning { SPIN_NS_BEFORE_KERNEL } else { NS_BEFORE_KERNEL };
    let idle_look = from_rings == 0 && !spinning;
    let due = idle_look || inner.calls >= CALLS_BEFORE_KERNEL && !spinning || now.wrapping_sub(inner.kernel_seen) > spin::cycles(patience_ns);
    if !due {
        return (from_rings > 0).then_some(from_rings as c_int);
    }
    inner.calls = 0;
    inner.kernel_seen = now;
    inner.retire_quiet();
    drop(inner);
    let count = merge_kernel(call, events, from_rings);
    (count > 0).then_some(count as c_int)
}

/// Adds what the kernel reports now to the first `count` events. An event for data that is there already is one event.
fn merge_kernel(call: &Wait, events: &mut [epoll_event], count: usize) -> usize {
    if count == events.len() {
        return count;
    }
    let (ours, room) = events.split_at_mut(count);
    let found = kernel!(libc::SYS_epoll_pwait, call.epoll, room.as_mut_ptr(), room.len(), 0usize, call.mask, 8usize);
    let found = usize::try_from(found).unwrap_or(0).min(room.len());
    let mut kept = 0;
    for index in 0..found {
        let event = room[index];
        let data = event.u64;
        match ours.iter_mut().find(|known| known.u64 == data) {
            Some(known) => known.events |= event.events,
            None => {
                room[kept] = event;
                kept += 1;
            }
        }
    }
    count + kept
}

/// Makes it safe to sleep. False: something has come.
fn close_before_sleep(set: &EpollSet) -> bool {
    let Some(mut inner) = set.inner.lock() else { return true };
    set.sleepers.fetch_add(1, AcqRel);
    let may_sleep = inner.close_gates();
    if !may_sleep {
        set.sleepers.fetch_sub(1, AcqRel);
    }
    may_sleep
}

/// Sleeps in the program's own call. None: it was only nudged.
fn sleep_and_wake(set: &EpollSet, call: &Wait, events: &mut [epoll_event], sleep: &mut dyn FnMut() -> c_int) -> Option<c_int> {
    let started = spin::clock();
    let result = sleep();
    set.sleepers.fetch_sub(1, AcqRel);
    let Ok(count) = usize::try_from(result) else { return Some(result) };
    if count == 0 {
        return Some(0);
    }
    set.spinner.slept(started);
    let Some(mut inner) = set.inner.lock() else { return Some(result) };
    if inner.nudged.is_empty() {
        return Some(result);
    }
    let kept = inner.undo_nudges(call.epoll, &mut events[..count]);
    (kept > 0).then_some(kept as c_int)
}

/// For `poll` and `select` on the set's descriptor.
impl EpollSet {
    fn has_active(&self) -> bool {
        self.inner.lock().is_some_and(|inner| !inner.active.is_empty())
    }

    /// Whether a ring of the set has something to report.
    pub(crate) fn is_ready(&self) -> bool {
        self.inner.lock().is_some_and(|inner| inner.active.iter().any(|active| active.event().is_some()))
    }

    /// Begins a sleep on the set. False: something has come, and no sleep has begun.
    pub(crate) fn begin_sleep(&self) -> bool {
        close_before_sleep(self)
    }

    /// Ends a sleep.
    pub(crate) fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, AcqRel);
    }

    fn close_gates(&self) {
        if let Some(mut inner) = self.inner.lock() {
            inner.close_gates();
        }
    }

    /// The set was put into another one: what its connections have to say, only the kernel can pass on.
    pub(crate) fn leave_to_kernel(&'static self) {
        self.kernel_only.store(true, Release);
        let sockets: Vec<_> = match self.inner.lock() {
            Some(inner) => inner.members.values().filter_map(|member| member.socket).collect(),
            None => return,
        };
        for socket in sockets {
            socket.pin(Reason::EpollAmbiguous);
        }
    }
}
