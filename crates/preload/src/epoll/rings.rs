//! The connections of one set, and their rings.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, epoll_event, timespec};

use super::{EDGE, QUIET_LOOKS_MAX, READ_EVENTS, WRITE_EVENTS};
use crate::kernel::kernel;
use crate::socket::Socket;
use crate::spin;

#[derive(Debug, Default)]
pub(super) struct Inner {
    pub(super) members: HashMap<c_int, Member>,
    /// How many members carry the same data word, when it is more than one.
    pub(super) by_data: HashMap<u64, u32>,
    pub(super) active: Vec<Active>,
    /// Members whose registration asks for more than the program did, to wake a sleeper.
    pub(super) nudged: Vec<c_int>,
    /// Where the next look begins, so that every connection has its turn.
    pub(super) cursor: usize,
    pub(super) calls: u32,
    pub(super) kernel_seen: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) socket: Option<&'static Socket>,
    pub(super) events: u32,
    pub(super) data: u64,
}

/// A member whose ring is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Active {
    pub(super) socket: &'static Socket,
    pub(super) fd: c_int,
    pub(super) events: u32,
    pub(super) data: u64,
    /// Edge-triggered: the tail that has been reported.
    pub(super) reported: Option<u32>,
    pub(super) quiet: u32,
}

impl Inner {
    pub(super) fn add(&mut self, fd: c_int, member: Member) -> bool {
        self.remove(fd);
        self.members.insert(fd, member);
        let same = self.by_data.entry(member.data).or_insert(0);
        *same += 1;
        *same > 1
    }

    pub(super) fn remove(&mut self, fd: c_int) {
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
    pub(super) fn activate(&mut self, socket: &'static Socket) {
        let is_it = |found: &'static Socket| std::ptr::eq(found, socket);
        if self.active.iter().any(|active| is_it(active.socket)) {
            return;
        }
        let found = self
            .members
            .iter()
            .find(|(_, member)| member.socket.is_some_and(is_it));
        if let Some((fd, member)) = found {
            self.active.push(Active {
                socket,
                fd: *fd,
                events: member.events,
                data: member.data,
                reported: None,
                quiet: 0,
            });
        }
    }

    /// Makes the kernel wake those who sleep on the set for a connection whose ring has bytes: the socket is writable,
    /// so asking for that, once, fires. The woken put the registration right.
    pub(super) fn nudge(&mut self, epoll: c_int, fd: c_int) {
        if let Some(member) = self.members.get(&fd) {
            self.nudged.push(fd);
            modify(
                epoll,
                fd,
                member.events | libc::EPOLLOUT as u32,
                member.data,
            );
        }
    }

    /// Takes the nudges out of `events` and of the kernel's registrations; what the rings have is reported instead.
    /// Returns how many are left.
    pub(super) fn undo_nudges(&mut self, epoll: c_int, events: &mut [epoll_event]) -> usize {
        for fd in std::mem::take(&mut self.nudged) {
            let Some(member) = self.members.get(&fd) else {
                continue;
            };
            modify(epoll, fd, member.events, member.data);
            let ring = self
                .active
                .iter()
                .find(|active| active.fd == fd)
                .and_then(Active::event);
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
    pub(super) fn collect(&mut self, events: &mut [epoll_event]) -> usize {
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
    pub(super) fn retire_quiet(&mut self) {
        self.active.retain(|active| {
            let Some(half) = active.socket.peek_receive() else {
                return false;
            };
            // The tail comes first: bytes that are published after this look make the close fail.
            let tail = half.tail();
            let quiet = active.quiet > QUIET_LOOKS_MAX && half.is_drained() && half.close(tail);
            !quiet
        });
    }

    /// Closes every gate. False: some ring has something to report, so nobody may sleep.
    pub(super) fn close_gates(&mut self) -> bool {
        let mut may_sleep = true;
        self.active.retain_mut(|active| {
            let Some(half) = active.socket.peek_receive() else {
                return false;
            };
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

    pub(super) fn peer_runs_elsewhere(&self) -> bool {
        let here = spin::processor();
        self.active
            .iter()
            .any(|active| active.socket.sender_processor() != here)
    }
}

impl Active {
    /// What is to be reported for the ring now.
    #[inline]
    pub(super) fn event(&self) -> Option<epoll_event> {
        let wanted = self.events & READ_EVENTS;
        if wanted == 0 {
            return None;
        }
        let tail = self.socket.peek_receive()?.ready()?;
        if self.events & EDGE != 0 && self.reported == Some(tail) {
            return None;
        }
        let writable = self.events & WRITE_EVENTS;
        let events = if writable != 0 && self.is_writable() {
            wanted | writable
        } else {
            wanted
        };
        Some(epoll_event {
            events,
            u64: self.data,
        })
    }

    pub(super) fn note_reported(&mut self) {
        self.reported = self.socket.peek_receive().map(|half| half.tail());
    }

    pub(super) fn is_writable(&self) -> bool {
        if !self.socket.send_blocked.load(Relaxed) {
            return true;
        }
        let mut entry = libc::pollfd {
            fd: self.fd,
            events: libc::POLLOUT,
            revents: 0,
        };
        let now = timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        kernel!(
            libc::SYS_ppoll,
            &raw mut entry,
            1usize,
            &raw const now,
            0usize,
            0usize
        );
        entry.revents & libc::POLLOUT != 0
    }
}

fn modify(epoll: c_int, fd: c_int, events: u32, data: u64) {
    let event = epoll_event { events, u64: data };
    kernel!(
        libc::SYS_epoll_ctl,
        epoll,
        libc::EPOLL_CTL_MOD,
        fd,
        &raw const event
    );
}
