//! Sleepers on a set are woken for a connection whose ring has bytes when it becomes a member: the kernel does not know of them.

use libc::{c_int, epoll_event};

use super::rings::{Inner, register};
use super::{ONE_SHOT, SPECIAL, WRITE_EVENTS};

impl Inner {
    /// Makes the kernel wake those who sleep on the set for a connection whose ring has bytes: the socket is writable,
    /// so asking for that, once, fires. The woken put the registration right.
    pub(super) fn nudge(&mut self, epoll: c_int, fd: c_int) {
        if let Some(member) = self.members.get(&fd) {
            self.nudged.push(fd);
            let events = member.told | libc::EPOLLOUT as u32;
            register(epoll, libc::EPOLL_CTL_MOD, fd, events, member.data);
        }
    }

    /// Takes the nudges out of `events` and of the kernel's registrations; what the rings have is reported instead.
    /// Returns how many are left.
    pub(super) fn undo_nudges(&mut self, epoll: c_int, events: &mut [epoll_event]) -> usize {
        for fd in std::mem::take(&mut self.nudged) {
            let Some(member) = self.members.get(&fd) else {
                continue;
            };
            let ring = member
                .slot
                .and_then(|slot| self.active[slot as usize].event());
            // A one-shot registration is spent by what the ring reports.
            let is_spent = member.told & ONE_SHOT != 0 && ring.is_some();
            let events_left = if is_spent {
                member.told & SPECIAL
            } else {
                member.told
            };
            register(epoll, libc::EPOLL_CTL_MOD, fd, events_left, member.data);
            let wanted = member.wanted.unwrap_or(0);
            for event in events.iter_mut().filter(|event| event.u64 == member.data) {
                let ring_events = ring.map_or(0, |event| event.events);
                event.events = event.events & (!WRITE_EVENTS | wanted) | ring_events;
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

    /// The member's descriptor is about to be closed: no call can change its registration then.
    pub(super) fn settle_nudge(&mut self, epoll: c_int, fd: c_int) {
        if let Some(member) = self.members.get(&fd).filter(|_| self.nudged.contains(&fd)) {
            register(epoll, libc::EPOLL_CTL_MOD, fd, member.told, member.data);
        }
    }
}
