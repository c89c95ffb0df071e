//! The connections of one set, and their rings.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use libc::{c_int, epoll_event};
use millrace_shm::board::flags;

use super::closed::Own;
use super::collect::Reports;
use super::repeats::Repeat;
use super::words::{Sharers, WordHasher};
use super::{EDGE, ONE_SHOT, QUIET_LOOKS_MAX, READ_EVENTS, SPECIAL, URGENT_EVENTS, WRITE_EVENTS};
use crate::kernel::{self, kernel};
use crate::socket::Socket;
use crate::{spin, table};

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) members: HashMap<c_int, Member, BuildHasherDefault<WordHasher>>,
    pub(super) by_data: HashMap<u64, Sharers, BuildHasherDefault<WordHasher>>,
    pub(super) active: Vec<Active>,
    /// Connections that the last sleep closed and that were in use before it.
    pub(super) warm: Vec<(c_int, &'static Socket)>,
    /// Members of which the kernel knows an older registration than the program's, or knew it a moment ago.
    pub(super) untold: Vec<c_int>,
    /// Members whose registration asks for more than the program did, to wake a sleeper.
    pub(super) nudged: Vec<c_int>,
    /// Data words of such registrations that have been put right, changed or taken back while somebody slept.
    pub(super) strays: Vec<u64>,
    /// What the kernel will report once more.
    pub(super) repeats: Vec<Repeat>,
    /// When, of [`spin::clock`], the kernel was last asked.
    pub(super) kernel_seen: u64,
    /// It had something to report that the rings do not, and may have it still: its level-triggered registrations say the same again.
    pub(super) kernel_reports: bool,
    /// How often the kernel has been asked in vain since it last knew of something.
    pub(super) kernel_misses: u32,
    /// Its reports left no room for all of the rings'.
    pub(super) rings_refused: bool,
    /// When, of [`spin::clock`], the program was last told of something.
    pub(super) reported_at: u64,
    /// Of the last look, for the next one.
    pub(super) spare: [Reports; 2],
    /// Some connection is a member by two descriptors, or was; or by one that is closed.
    pub(super) has_doubles: bool,
    /// So many members have been in the set by descriptors that were closed.
    pub(super) outlived: c_int,
    /// Threads that spin on the set. One that has left that by a jump stays counted.
    pub(super) lookers: u32,
    /// Threads that slept on the set in another process when that made this one by a fork.
    pub(super) sleepers_elsewhere: u32,
    /// A descriptor of the set for those who spin, while the program closes one.
    pub(super) kept: Option<Own>,
    /// When, of CLOCK_MONOTONIC in nanoseconds, the program closed the last one.
    pub(super) closed_ns: u64,
}

/// A registration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) socket: Option<&'static Socket>,
    /// The descriptor that was registered.
    pub(super) number: c_int,
    /// By which the kernel is asked of the connection: the descriptor that was registered, or, once that is closed, another.
    pub(super) by: c_int,
    pub(super) data: u64,
    /// The events that the program registered; None: it has taken the registration back.
    pub(super) wanted: Option<u32>,
    /// The events that the kernel has.
    pub(super) told: u32,
    /// It was no connection yet when it was registered, and has not become one since.
    pub(super) is_early: bool,
    /// It is among the untold.
    untold: bool,
    /// Registered while another process had the set, which does not know of it.
    pub(super) is_secret: bool,
    /// Its place among the active ones.
    pub(super) slot: Option<u32>,
}

impl Member {
    pub(super) fn new(fd: c_int, socket: Option<&'static Socket>, event: epoll_event) -> Member {
        Member {
            socket,
            number: fd,
            by: fd,
            data: event.u64,
            wanted: Some(event.events),
            told: event.events,
            is_early: false,
            untold: false,
            is_secret: false,
            slot: None,
        }
    }

    pub(super) fn is_of(&self, socket: &'static Socket) -> bool {
        self.socket.is_some_and(|found| std::ptr::eq(found, socket))
    }
}

/// A member whose ring is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub(super) socket: &'static Socket,
    pub(super) fd: c_int,
    /// As its member's.
    pub(super) by: c_int,
    pub(super) events: u32,
    data: u64,
    /// Edge-triggered: up to where what is in the ring has been reported, or had been read when this began.
    pub(super) reported: Option<u32>,
    /// Edge-triggered: bytes that the kernel had received when it was last asked while they could overtake those in the ring.
    pub(super) received: u64,
    /// What the kernel had been given to send when the program was last told that there is room for more.
    pub(super) sent: Option<u64>,
    /// Level-triggered, and reported when the program was last told of something: its place among those, as the kernel's list has it.
    pub(super) listed: Option<u64>,
    origin: Origin,
    pub(super) quiet: u32,
    /// When, of [`spin::clock`], it was last found to have nothing to report, which was before what it has now came.
    pub(super) looked_at: u64,
}

/// What made a member active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// Bytes that came for it.
    Bytes,
    /// The end of a sleep before which it had been in use.
    Wake,
}

impl Inner {
    /// Takes note of a registration that the kernel has. Returns the member that carried the same data word last, if one does.
    pub(super) fn add(&mut self, fd: c_int, member: Member) -> Option<c_int> {
        self.remove(fd);
        self.members.insert(fd, member);
        let sharers = self.by_data.entry(member.data);
        let sharers = sharers.or_insert(Sharers { count: 0, fd });
        sharers.count += 1;
        let before = std::mem::replace(&mut sharers.fd, fd);
        (sharers.count > 1).then_some(before)
    }

    pub(super) fn remove(&mut self, fd: c_int) {
        self.repeats.retain(|repeat| repeat.fd != fd);
        let was_nudged = self.nudged.contains(&fd);
        self.nudged.retain(|nudged| *nudged != fd);
        let Some(member) = self.members.remove(&fd) else {
            return;
        };
        if was_nudged {
            self.note_stray(member.data);
        }
        if let Some(slot) = member.slot {
            self.deactivate(slot);
        }
        if let Some(sharers) = self.by_data.get_mut(&member.data) {
            sharers.count -= 1;
            if sharers.count == 0 {
                self.by_data.remove(&member.data);
            } else if sharers.fd == fd {
                let mut left = self.members.iter();
                let other = left.find(|(_, left)| left.data == member.data);
                sharers.fd = other.map_or(fd, |(other, _)| *other);
            }
        }
    }

    /// Takes note of a registration that the kernel has not got yet. Its data word stays the same.
    pub(super) fn change(&mut self, fd: c_int, wanted: Option<u32>) {
        let Some(member) = self.members.get_mut(&fd) else {
            return;
        };
        member.wanted = wanted;
        self.repeats.retain(|repeat| repeat.fd != fd);
        if wanted != Some(member.told) && !std::mem::replace(&mut member.untold, true) {
            self.untold.push(fd);
        }
        if let Some(slot) = member.slot {
            self.active[slot as usize].events = wanted.unwrap_or(0);
        } else if wanted.is_some_and(|events| events & WRITE_EVENTS != 0)
            || member.socket.is_some_and(has_open_or_unread_ring)
        {
            self.activate(fd, Origin::Bytes);
        }
    }

    /// Forgets a connection; `fd` is likely its member.
    pub(super) fn forget(&mut self, fd: c_int, socket: &'static Socket) {
        self.warm.retain(|(_, warm)| !std::ptr::eq(*warm, socket));
        while let Some(found) = self.descriptor_of(fd, socket) {
            self.remove(found);
            // Looking through all members for others is for the few connections that may have some.
            if found == fd && !self.has_doubles {
                return;
            }
        }
    }

    /// Whether `socket` is a member, and by which descriptor; `fd` is likely it.
    pub(super) fn descriptor_of(&self, fd: c_int, socket: &'static Socket) -> Option<c_int> {
        if self.has_by(fd, socket) {
            return Some(fd);
        }
        let mut members = self.members.iter();
        let found = members.find(|(_, member)| member.is_of(socket));
        found.map(|(fd, _)| *fd)
    }

    /// Whether `socket` is a member by this descriptor.
    pub(super) fn has_by(&self, fd: c_int, socket: &'static Socket) -> bool {
        let member = self.members.get(&fd);
        member.is_some_and(|member| member.is_of(socket))
    }

    /// Whether `socket` is a member by another descriptor than `fd`, too, which has just become one.
    pub(super) fn has_by_another(&mut self, fd: c_int, socket: &'static Socket) -> bool {
        let found = socket.has_copies()
            && self
                .members
                .iter()
                .any(|(other, member)| *other != fd && member.is_of(socket));
        self.has_doubles |= found;
        found
    }

    /// Whether `socket`, of which a member was just removed, is one still by another descriptor.
    pub(super) fn has_still(&self, socket: &'static Socket) -> bool {
        self.has_doubles && self.descriptor_of(-1, socket).is_some()
    }

    /// Looks at the ring of the member `fd` from now on.
    pub(super) fn activate(&mut self, fd: c_int, origin: Origin) {
        let Some(member) = self.members.get_mut(&fd) else {
            return;
        };
        if let (Some(socket), None) = (member.socket, member.slot) {
            member.slot = Some(self.active.len() as u32);
            self.active.push(Active {
                socket,
                fd,
                by: member.by,
                events: member.wanted.unwrap_or(0),
                data: member.data,
                reported: socket.peek_receive().map(|half| half.head()),
                received: 0,
                sent: None,
                listed: None,
                origin,
                quiet: 0,
                looked_at: 0,
            });
        }
    }

    /// Looks no more at the ring of the member, just removed, that had this place.
    fn deactivate(&mut self, slot: u32) {
        self.active.swap_remove(slot as usize);
        if let Some(moved) = self.active.get(slot as usize)
            && let Some(member) = self.members.get_mut(&moved.fd)
        {
            member.slot = Some(slot);
        }
    }

    /// Keeps those active that `keep` says.
    fn retain_active(&mut self, mut keep: impl FnMut(&Active) -> bool) {
        let members = &mut self.members;
        let mut count = 0;
        self.active.retain(|active| {
            let kept = keep(active);
            if let Some(member) = members.get_mut(&active.fd) {
                member.slot = kept.then_some(count);
            }
            count += u32::from(kept);
            kept
        });
    }

    /// Whether `fd` is a member of which another process with the set does not know.
    pub(super) fn is_secret(&self, fd: c_int) -> bool {
        self.members.get(&fd).is_some_and(|member| member.is_secret)
    }

    /// Whether the member `fd` has something to report now.
    pub(super) fn is_member_ready(&self, fd: c_int) -> bool {
        let slot = self.members.get(&fd).and_then(|member| member.slot);
        slot.is_some_and(|slot| self.active[slot as usize].event().is_some())
    }

    /// One-shot registrations of which `events` tell are off until they are changed. The kernel, `epoll`, has done that with those that it
    /// reported itself, and must not hear of them: a change would arm them for errors. `source` says of an event whether the kernel has it,
    /// and which active member has it in its ring.
    pub(super) fn disarm(
        &mut self,
        epoll: c_int,
        events: &[epoll_event],
        source: impl Fn(usize) -> (bool, Option<usize>),
    ) {
        for (slot, active) in self.active.iter_mut().enumerate() {
            if active.events & ONE_SHOT == 0 {
                continue;
            }
            let sharers = self.by_data.get(&active.data);
            let is_shared = sharers.is_some_and(|sharers| sharers.count > 1);
            let is_of_it = |place: &usize| {
                events[*place].u64 == active.data && (!is_shared || source(*place).1 == Some(slot))
            };
            if let Some(place) = (0..events.len()).find(is_of_it) {
                active.events &= SPECIAL;
                if !source(place).0 {
                    let data = active.data;
                    register(epoll, libc::EPOLL_CTL_MOD, active.fd, active.events, data);
                }
            }
        }
    }

    /// Leaves connections that have been quiet for long to the kernel, so that a busy set looks at few.
    pub(super) fn retire_quiet(&mut self) {
        self.retain_active(|active| {
            let Some(half) = active.socket.peek_receive() else {
                return false;
            };
            // The tail comes first: bytes that are published after this look make the close fail.
            let tail = half.tail();
            let quiet = active.quiet > QUIET_LOOKS_MAX && half.is_drained() && half.close(tail);
            !quiet
        });
    }

    /// Closes every gate, in so many tries. False: there is something to report, so nobody may sleep.
    pub(super) fn close_gates(&mut self, tries: u32) -> bool {
        let mut may_sleep = true;
        let now = spin::clock();
        let mut warm = std::mem::take(&mut self.warm);
        warm.clear();
        self.retain_active(|active| {
            let Some(half) = active.socket.peek_receive() else {
                return false;
            };
            let tail = half.tail();
            if half.is_open() {
                if !half.close_in(tries, tail) {
                    may_sleep = false;
                    return true;
                }
                // Of one that has been reset the kernel tells. Whoever closes the descriptor says so in the table, and waits for the set.
                if table::is(active.by, active.socket) {
                    active.socket.is_restored_at(active.by, now);
                }
                if active.origin == Origin::Bytes || !half.was_idle(tail) {
                    warm.push((active.fd, active.socket));
                }
            }
            if active.event().is_some() {
                may_sleep = false;
                return true;
            }
            !half.is_drained()
        });
        self.warm = warm;
        may_sleep
    }

    /// Tells the kernel the registrations that it has not got yet. Returns the connections that are members no longer.
    pub(super) fn tell_kernel(&mut self, epoll: c_int) -> Vec<&'static Socket> {
        let mut gone = Vec::new();
        let mut untold = std::mem::take(&mut self.untold);
        for fd in untold.drain(..) {
            let Some(member) = self.members.get_mut(&fd) else {
                continue;
            };
            member.untold = false;
            match member.wanted {
                Some(wanted) if wanted == member.told => {}
                Some(wanted) => {
                    member.told = wanted;
                    register(epoll, libc::EPOLL_CTL_MOD, fd, wanted, member.data);
                }
                None => {
                    register(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
                    gone.extend(member.socket);
                    self.remove(fd);
                }
            }
        }
        self.untold = untold;
        gone
    }

    pub(super) fn is_ready(&self) -> bool {
        self.active.iter().any(|active| active.event().is_some())
    }

    /// Whether the kernel has, or will soon have, something to say of an active connection: bytes, or an ending; or of another one, before
    /// what a ring has to say.
    pub(super) fn kernel_hinted(&self, now: u64) -> bool {
        self.active.iter().any(|active| {
            let half = active.socket.peek_receive();
            half.is_some_and(|half| {
                half.kernel_hinted() || half.follows_kernel(self.kernel_seen, now)
            })
        })
    }

    /// Whether whoever may send ran on other processors last: to spin keeps nobody of them from it.
    pub(super) fn peers_run_elsewhere(&self) -> bool {
        let here = spin::processor();
        self.active
            .iter()
            .all(|active| active.socket.sender_processor() != here)
    }
}

impl Active {
    /// What is to be reported for the connection now. Edges of writability are the kernel's to report.
    #[inline]
    pub(super) fn event(&self) -> Option<epoll_event> {
        let (mut events, mut is_moment) = (0, false);
        let read = self.events & READ_EVENTS;
        let edge = self.events & EDGE != 0;
        // Writability alone the kernel reports, when there is a moment to report.
        let once = self.events & (EDGE | ONE_SHOT) != 0;
        let write = self.events & WRITE_EVENTS;
        if read != 0 || edge && self.events & URGENT_EVENTS != 0 {
            let half = self.socket.peek_receive()?;
            match self.unread_tail(&half) {
                Some(tail) if !(edge && self.reported == Some(tail)) => {
                    (events, is_moment) = (read, true)
                }
                // What came since has been read already: that it came is a moment to report what there is else. What the kernel has now it
                // reports itself.
                None if edge && self.reported != Some(half.head()) && !half.kernel_hinted() => {
                    return (write != 0 && self.is_writable()).then(|| self.report(write));
                }
                _ => {}
            }
        }
        if write != 0 && (is_moment || !once) && self.is_writable() {
            events |= write;
        }
        (events != 0).then(|| self.report(events))
    }

    pub(super) fn report(&self, events: u32) -> epoll_event {
        epoll_event {
            events,
            u64: self.data,
        }
    }

    /// Whether the kernel would take bytes. Its queue is as empty as when last looked at, unless something was sent by it since, or a call
    /// that fills it is under way.
    fn is_writable(&self) -> bool {
        let row = self.socket.row();
        let may_fill = row.send.raw.load(Acquire) != 0
            || row.identity.flags.load(Acquire) & flags::SEND_PINNED != 0;
        let sent = &self.socket.sent_by_kernel;
        if !may_fill && !sent.load(Acquire) {
            return true;
        }
        // SeqCst, and before the question: whoever sends by it meanwhile says so after that, in `send::account`.
        sent.store(false, SeqCst);
        let writable = kernel::events_now(self.by, libc::POLLOUT) & libc::POLLOUT != 0;
        if !writable {
            sent.store(true, Release);
        }
        writable
    }
}

/// Tells the kernel.
pub(super) fn register(epoll: c_int, operation: c_int, fd: c_int, events: u32, data: u64) {
    let event = epoll_event { events, u64: data };
    kernel!(libc::SYS_epoll_ctl, epoll, operation, fd, &raw const event);
}

/// Whether the ring matters to those who wait for the connection.
pub(super) fn has_open_or_unread_ring(socket: &'static Socket) -> bool {
    socket
        .peek_receive()
        .is_some_and(|half| half.is_open() || !half.is_drained())
}
