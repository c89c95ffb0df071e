//! Sleepers on a set are woken for a connection whose ring has bytes when it becomes a member: the kernel does not know of them.

use libc::{c_int, epoll_event};

use super::rings::{Inner, register};
use super::{EDGE, EXCLUSIVE, ONE_SHOT, SPECIAL, WRITE_EVENTS};
use crate::kernel;

/// So many words are remembered of which sleepers may bring nudges. What matters is what a thread has just got of the kernel: the oldest
/// word would have to have waited for the set's lock while so many others came.
const STRAYS_MAX: usize = 256;

impl Inner {
    /// Makes the kernel wake those who sleep on the set for a connection whose ring has bytes. False: that takes the bytes themselves,
    /// for its registration is one-shot or cannot be changed, there is no room to tell of, or events would not say whose room.
    pub(super) fn nudge(&mut self, epoll: c_int, fd: c_int) -> bool {
        let Some(member) = self.members.get(&fd).copied() else {
            return true;
        };
        if member.told & (EXCLUSIVE | ONE_SHOT) != 0
            || self.is_ambiguous(fd)
            || !has_room(member.by)
        {
            return false;
        }
        self.nudge_by_room(epoll, fd);
        // Room that comes after this is an event.
        has_room(member.by)
    }

    /// The socket is writable, so asking for that, once, fires. The woken put the registration right. Where the program has just asked for
    /// it the kernel wakes somebody itself; another change would be another edge.
    pub(super) fn nudge_by_room(&mut self, epoll: c_int, fd: c_int) {
        let member = self.members.get(&fd);
        if let Some(member) = member.filter(|member| member.told & WRITE_EVENTS == 0) {
            self.nudged.push(fd);
            let events = member.told | libc::EPOLLOUT as u32;
            register(epoll, libc::EPOLL_CTL_MOD, fd, events, member.data);
        }
    }

    /// Whether the kernel may report what is there for sleepers only.
    pub(super) fn has_nudges(&self) -> bool {
        !self.nudged.is_empty() || !self.strays.is_empty()
    }

    /// Takes the nudges out of `events` and of the kernel's registrations; what the rings have is reported instead.
    /// Where `others_sleep`, the kernel goes on to wake them: by level one after the other, until the bytes are read; by edge for those
    /// whose event is not among these, for it may have woken a second one already. Returns how many are left.
    pub(super) fn undo_nudges(
        &mut self,
        epoll: c_int,
        events: &mut [epoll_event],
        others_sleep: bool,
    ) -> usize {
        for fd in std::mem::take(&mut self.nudged) {
            let Some(member) = self.members.get(&fd) else {
                continue;
            };
            let ring = member
                .slot
                .and_then(|slot| self.active[slot as usize].event());
            let wanted = self.wanted_by(member.data);
            let (mut is_given, mut is_told) = (false, ring.is_some());
            for event in events.iter_mut().filter(|event| event.u64 == member.data) {
                let ring_events = ring.map_or(0, |event| event.events);
                event.events = event.events & (!WRITE_EVENTS | wanted) | ring_events;
                is_given = true;
                is_told |= event.events != 0;
            }
            let once = member.told & ONE_SHOT != 0;
            let is_for_others = !once && (member.told & EDGE == 0 || !is_given);
            if others_sleep && ring.is_some() && is_for_others {
                self.nudged.push(fd);
                continue;
            }
            // A one-shot registration is spent by what is reported.
            let events_left = if once && is_told {
                member.told & SPECIAL
            } else {
                member.told
            };
            let data = member.data;
            register(epoll, libc::EPOLL_CTL_MOD, fd, events_left, data);
            if others_sleep {
                self.note_stray(data);
            }
        }
        let strays = &self.strays;
        for event in events.iter_mut() {
            if strays.contains(&{ event.u64 }) {
                event.events &= !WRITE_EVENTS | self.wanted_by(event.u64);
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

    /// A registration with this data word is a nudge no more. One of the sleepers may have come out of the kernel with it already.
    pub(super) fn note_stray(&mut self, data: u64) {
        self.strays.retain(|stray| *stray != data);
        if self.strays.len() == STRAYS_MAX {
            self.strays.remove(0);
        }
        self.strays.push(data);
    }

    /// The member's descriptor is about to be closed: no call can change its registration then.
    pub(super) fn settle_nudge(&mut self, epoll: c_int, fd: c_int) {
        if let Some(member) = self.members.get(&fd).filter(|_| self.nudged.contains(&fd)) {
            register(epoll, libc::EPOLL_CTL_MOD, fd, member.told, member.data);
        }
    }
}

/// Whether the kernel would take bytes.
fn has_room(fd: c_int) -> bool {
    kernel::events_now(fd, libc::POLLOUT) & libc::POLLOUT != 0
}

#[cfg(test)]
mod tests {
    use super::super::rings::Member;
    use super::*;

    const NUMBER: c_int = 5;
    const DATA: u64 = 7;

    fn event(events: c_int) -> epoll_event {
        epoll_event {
            events: events as u32,
            u64: DATA,
        }
    }

    fn nudged() -> Inner {
        let mut inner = Inner::default();
        inner.add(NUMBER, Member::new(NUMBER, None, event(libc::EPOLLIN)));
        inner.nudged.push(NUMBER);
        inner
    }

    #[test]
    fn who_comes_out_of_the_kernel_with_a_nudge_that_is_undone_is_told_of_nothing() {
        for others_sleep in [true, false] {
            let mut inner = nudged();
            let mut events = [event(libc::EPOLLOUT)];
            assert_eq!(inner.undo_nudges(-1, &mut events, others_sleep), 0);
            assert_eq!(inner.has_nudges(), others_sleep);
        }
        let mut inner = nudged();
        inner.undo_nudges(-1, &mut [event(libc::EPOLLOUT)], true);
        let mut events = [event(libc::EPOLLOUT | libc::EPOLLIN)];
        assert_eq!(inner.undo_nudges(-1, &mut events, true), 1);
        assert_eq!({ events[0].events }, libc::EPOLLIN as u32);
    }

    #[test]
    fn words_of_nudges_are_remembered_once_and_the_latest_only() {
        let mut inner = Inner::default();
        for data in 0..2 * STRAYS_MAX as u64 {
            for _ in 0..2 {
                inner.note_stray(data);
            }
        }
        assert_eq!(inner.strays.len(), STRAYS_MAX);
        assert_eq!(inner.strays.last(), Some(&(2 * STRAYS_MAX as u64 - 1)));
        for _ in 0..STRAYS_MAX {
            inner.add(NUMBER, Member::new(NUMBER, None, event(libc::EPOLLIN)));
            inner.nudged.push(NUMBER);
            inner.remove(NUMBER);
        }
        assert_eq!(inner.strays.iter().filter(|data| **data == DATA).count(), 1);
    }
}
