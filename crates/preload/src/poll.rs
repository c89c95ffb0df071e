//! `poll` and `select` over kernel and ring at once.
//!
//! Both gather a [`Watch`], the descriptors whose rings matter to the call, and go through the same steps as `epoll_wait`: look at
//! the rings, look at the kernel, spin if it is worth it, close the gates, sleep in the program's own call.

use std::sync::atomic::Ordering::{AcqRel, Release};

use libc::{c_int, nfds_t, pollfd, sigset_t};
use millrace_shm::board::Row;
use smallvec::SmallVec;

use crate::epoll::EpollSet;
use crate::kernel;
use crate::socket::Socket;
use crate::spin::{self, Spin};
use crate::table::{self, Entry};
use crate::thread::WaitInterrupts;
use crate::{client, thread, user};

mod select;

pub(crate) use select::select;

const READ_EVENTS: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITE_EVENTS: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// While spinning, the kernel is asked after so long, in nanoseconds.
const SPIN_NS_BEFORE_KERNEL: u64 = 2_000;
/// A mask that blocks every one.
static ALL_SIGNALS: u64 = u64::MAX;

/// What a call waits for that may be in a ring.
#[derive(Debug, Default)]
struct Watch {
    sockets: SmallVec<[Joined; 16]>,
    /// Connections that another thread may bring to the ring while this one sleeps.
    others: SmallVec<[(c_int, &'static Socket); 16]>,
    sets: SmallVec<[(c_int, &'static EpollSet); 4]>,
    /// Connections that owe the program an error: all that the kernel tells of them is told at once, and that.
    owing: SmallVec<[c_int; 4]>,
    /// To sleep.
    tries: u32,
}

/// A connection on the ring. Its end record is where a sleep is announced and ended: another thread may close the connection meanwhile.
#[derive(Clone, Copy, Debug)]
struct Joined {
    fd: c_int,
    socket: &'static Socket,
    row: &'static Row,
}

impl Joined {
    fn new(fd: c_int, socket: &'static Socket) -> Joined {
        let row = socket.row();
        Joined { fd, socket, row }
    }
}

impl Watch {
    /// Adds a descriptor to what a call that waits so long is about.
    fn add(&mut self, fd: c_int, timeout_ns: Option<u64>) {
        table::settle(fd);
        if let Some(socket) = table::socket(fd) {
            match timeout_ns {
                Some(0) if socket.is_receive_pinned() => {}
                Some(0) => socket.habits.note_nothing(),
                _ => socket.habits.note_wait_beside(),
            }
        }
        match table::get(fd) {
            Entry::Socket(socket) if socket.is_joined_now(fd) => {
                self.sockets.push(Joined::new(fd, socket));
            }
            Entry::Socket(socket) if socket.may_join() && !thread::is_alone() => {
                self.others.push((fd, socket));
            }
            Entry::Set(set) => {
                if timeout_ns != Some(0) {
                    set.note_wait();
                }
                set.tell_kernel_by(fd);
                self.sets.push((fd, set));
            }
            _ => {}
        }
    }

    /// Looks whether it owes an error, which is told whatever the call waits for.
    fn look_for_debt(&mut self, fd: c_int) {
        if table::socket(fd).is_some_and(|socket| socket.owed_error() != 0) {
            self.owing.push(fd);
        }
    }

    /// Whether a call that waits so long at most can be left to the kernel.
    fn is_needless(&self, timeout_ns: Option<u64>) -> bool {
        let never_sleeps = timeout_ns == Some(0);
        self.sockets.is_empty()
            && self.sets.is_empty()
            && self.owing.is_empty()
            && (self.others.is_empty() || never_sleeps)
    }

    /// Descriptors that are readable because of a ring.
    fn ready(&self) -> impl Iterator<Item = c_int> + '_ {
        let sockets = self.sockets.iter().filter(|Joined { fd, socket, .. }| {
            socket.error() != socket.owed_error()
                || (socket.lock_receive(*fd))
                    .is_some_and(|locked| socket.told.is_ready(&locked.half))
        });
        let sets = self.sets.iter().filter(|(_, set)| set.is_ready());
        sockets
            .map(|joined| joined.fd)
            .chain(sets.map(|(fd, _)| *fd))
    }

    fn any_ready(&self) -> bool {
        !self.owing.is_empty() || self.ready().next().is_some()
    }

    /// Whether the kernel may know something that a spinning reader should look at.
    fn kernel_hinted(&self) -> bool {
        self.sockets.iter().any(|Joined { fd, socket, .. }| {
            let locked = socket.lock_receive(*fd);
            locked.is_some_and(|locked| locked.half.kernel_hinted())
        })
    }

    /// Closes every gate and keeps it closed until [`Watch::end_sleep`]. False: something has come, or another thread has brought a
    /// connection to the ring; no sleep has begun.
    fn begin_sleep(&mut self) -> bool {
        let mut joined: SmallVec<[Joined; 4]> = SmallVec::new();
        self.others.retain(|(fd, socket)| {
            let may_sleep = socket.begin_poll();
            if !may_sleep {
                joined.push(Joined::new(*fd, socket));
            }
            may_sleep
        });
        if !joined.is_empty() {
            self.end_polls();
            self.sockets.extend(joined);
            return false;
        }
        self.tries += 1;
        let may_sleep = self.close_gates();
        if !may_sleep {
            self.end_polls();
        }
        may_sleep
    }

    fn close_gates(&self) -> bool {
        for (index, joined) in self.sockets.iter().enumerate() {
            if !begin_sleep_on(*joined, self.tries) {
                self.end_sleep_on(index, 0);
                return false;
            }
        }
        for (index, (epoll, set)) in self.sets.iter().enumerate() {
            if !set.begin_sleep(*epoll, self.tries) {
                self.end_sleep_on(self.sockets.len(), index);
                return false;
            }
        }
        true
    }

    fn end_sleep(&self) {
        self.end_sleep_on(self.sockets.len(), self.sets.len());
        self.end_polls();
    }

    fn end_polls(&self) {
        for (_, socket) in &self.others {
            socket.end_poll();
        }
    }

    fn end_sleep_on(&self, sockets: usize, sets: usize) {
        for joined in &self.sockets[..sockets] {
            // Release: as at the end of a raw receive.
            joined.row.receive.sleepers.fetch_sub(1, Release);
        }
        for (_, set) in &self.sets[..sets] {
            set.end_sleep();
        }
    }

    /// The mask for a look at the kernel, which ends by a signal where it has nothing to report: not by one where a ring has.
    fn mask(&self, mask: *const sigset_t) -> *const sigset_t {
        if self.any_ready() {
            (&raw const ALL_SIGNALS).cast()
        } else {
            mask
        }
    }

    fn begin_spin(&self, limit_ns: u64) -> Option<Spin<'_>> {
        let here = spin::processor();
        let first = self.sockets.first()?.socket;
        let runs_elsewhere = |Joined { fd, socket, .. }: &Joined| {
            let locked = socket.lock_receive(*fd);
            locked.is_none_or(|locked| locked.half.sender_processor() != here)
        };
        let is_worth_it = first.spinner.is_willing() && self.sockets.iter().all(runs_elsewhere);
        is_worth_it.then(|| first.spinner.begin_for_bytes(limit_ns, 1))?
    }

    fn note_slept(&self, started: u64) {
        if let Some(joined) = self.sockets.first() {
            joined.socket.spinner.slept(started);
        }
    }
}

fn begin_sleep_on(Joined { fd, socket, row }: Joined, tries: u32) -> bool {
    let Some(locked) = socket.lock_receive(fd) else {
        row.receive.sleepers.fetch_add(1, AcqRel);
        return true;
    };
    // The tail comes first: bytes that are published after this look make the close below fail.
    let tail = locked.half.tail();
    if locked.half.ready().is_some() {
        return false;
    }
    row.receive.sleepers.fetch_add(1, AcqRel);
    let was_open = locked.half.is_open();
    let closed = locked.half.close_in(tries, tail);
    if !closed {
        row.receive.sleepers.fetch_sub(1, AcqRel);
    }
    if was_open {
        // Of one that has been reset the kernel tells.
        socket.is_restored_at(fd, spin::clock());
    }
    closed
}

/// The common course. `ask` makes the kernel's call with no waiting and adds the ready rings; `sleep` makes the program's own.
fn wait(
    watch: &mut Watch,
    (timeout_ns, mask): (Option<u64>, *const sigset_t),
    ask: &mut dyn FnMut(&Watch) -> c_int,
    sleep: &mut dyn FnMut() -> c_int,
) -> c_int {
    thread::test_cancel();
    let interrupts = WaitInterrupts::of(mask);
    loop {
        if watch.any_ready() || timeout_ns == Some(0) {
            let result = ask(watch);
            // Another thread may have taken what was there: that is no reason to return.
            if result != 0 || timeout_ns == Some(0) {
                return result;
            }
        }
        if let Some(mut spin) = watch.begin_spin(timeout_ns.unwrap_or(u64::MAX)) {
            let mut asked = 0;
            loop {
                let ready = watch.any_ready();
                if ready
                    || watch.kernel_hinted()
                    || spin.age() - asked > spin::cycles(SPIN_NS_BEFORE_KERNEL)
                {
                    asked = spin.age();
                    let result = ask(watch);
                    if result != 0 {
                        spin.hit();
                        return result;
                    }
                }
                if interrupts.have_come() {
                    thread::set_errno(libc::EINTR);
                    return -1;
                }
                if !spin.go_on() {
                    break;
                }
            }
        }
        if watch.begin_sleep() {
            let started = spin::clock();
            let result = sleep();
            watch.end_sleep();
            if result > 0 {
                watch.note_slept(started);
            }
            return result;
        }
    }
}

/// Before a call: those that wait for nothing that the kernel reports when the peer's end comes. Where that was a kill, and TCP would have
/// reset the connection, the kernel reports it from now on.
fn look_for_kills(list: &[pollfd]) {
    let end = READ_EVENTS | WRITE_EVENTS | libc::POLLRDHUP;
    for entry in list.iter().filter(|entry| entry.events & end == 0) {
        if let Some(socket) = table::socket(entry.fd) {
            socket.look_for_kill(entry.fd);
        }
    }
}

/// After the kernel's part of a call: where a peer was killed and TCP would have reset the connection, that is what is reported, and an
/// error that the program has not heard of. Who waits for reading hears of the FIN from the kernel; who does not is looked after.
fn show_kills(list: &mut [pollfd]) {
    let end = READ_EVENTS | libc::POLLRDHUP;
    for entry in list.iter_mut().filter(|entry| entry.revents != 0) {
        let Some(socket) = table::socket(entry.fd).filter(|socket| socket.is_attached()) else {
            continue;
        };
        let may_be_kill = entry.events & end == 0 || entry.revents & !WRITE_EVENTS != 0;
        if may_be_kill && socket.look_for_kill(entry.fd) || socket.error() != 0 {
            entry.revents |= kernel::events_now(entry.fd, entry.events) | libc::POLLERR;
        }
        if socket.was_peer_killed() {
            entry.revents |= libc::POLLHUP;
        }
    }
}

/// What the kernel has to report now, and the rings.
fn ask_poll(list: &mut [pollfd], mask: *const sigset_t, watch: &Watch) -> c_int {
    let result = kernel::poll_now(list, watch.mask(mask));
    if result < 0 {
        return thread::told(result) as c_int;
    }
    show_kills(list);
    let ready: SmallVec<[c_int; 32]> = watch.ready().collect();
    for entry in list.iter_mut() {
        if ready.contains(&entry.fd) {
            entry.revents |= entry.events & READ_EVENTS;
        }
        if watch.owing.contains(&entry.fd) {
            entry.revents |= libc::POLLERR;
        }
    }
    list.iter().filter(|entry| entry.revents != 0).count() as c_int
}

/// How many there are. None: the kernel is to say.
fn length_of(count: impl TryInto<usize>) -> Option<usize> {
    count.try_into().ok().filter(|_| table::exists())
}

/// `poll` and `ppoll`; `sleep` is the program's own call.
pub(crate) fn poll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ns: Option<u64>,
    mask: *const sigset_t,
    sleep: &mut dyn FnMut() -> c_int,
) -> c_int {
    let Some(length) = length_of(count) else {
        return sleep();
    };
    client::glance();
    let bytes = length.saturating_mul(size_of::<pollfd>());
    if length == 0 || !user::can_read(fds.cast(), bytes) {
        return sleep();
    }
    if !user::can_write(fds.cast(), bytes) {
        return thread::fail(libc::EFAULT);
    }
    // SAFETY: just found writable; the program gives the array to this call.
    let list = unsafe { std::slice::from_raw_parts_mut(fds, length) };
    let mut watch = Watch::default();
    let reads = |entry: &pollfd| entry.events & READ_EVENTS != 0;
    for entry in list.iter() {
        watch.look_for_debt(entry.fd);
        if reads(entry) {
            watch.add(entry.fd, timeout_ns);
        }
    }
    look_for_kills(list);
    if watch.is_needless(timeout_ns) {
        let result = sleep();
        if result > 0 {
            show_kills(list);
        }
        return result;
    }
    let mut ask = |watch: &Watch| ask_poll(list, mask, watch);
    let mut slept = false;
    let mut sleep = || {
        slept = true;
        sleep()
    };
    let result = wait(&mut watch, (timeout_ns, mask), &mut ask, &mut sleep);
    if slept && result > 0 {
        show_kills(list);
    }
    result
}
