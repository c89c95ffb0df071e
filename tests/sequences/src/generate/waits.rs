//! `poll`, `select` and `epoll`.

use super::Generator;
use super::model::{EndId, Thing};
use crate::perform::NEVER_OPEN;
use crate::plan::{Call, PollBy, Process, Slot};
use crate::sys::EpollBy;

/// The events that `poll` may be asked for.
const POLL_EVENTS: [i16; 9] = [
    libc::POLLIN,
    libc::POLLPRI,
    libc::POLLOUT,
    libc::POLLRDHUP,
    libc::POLLRDNORM,
    libc::POLLRDBAND,
    libc::POLLWRNORM,
    libc::POLLWRBAND,
    libc::POLLIN | libc::POLLOUT,
];

pub(super) const IN: u32 = libc::EPOLLIN as u32;
pub(super) const OUT: u32 = libc::EPOLLOUT as u32;
pub(super) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
pub(super) const EDGE: u32 = libc::EPOLLET as u32;
pub(super) const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

impl Generator {
    pub(super) fn any_poll(&mut self) -> PollBy {
        self.random.pick(&[
            PollBy::Poll,
            PollBy::PollChk,
            PollBy::Ppoll,
            PollBy::PpollMasked,
            PollBy::PpollChk,
            PollBy::Select,
            PollBy::Pselect,
        ])
    }

    pub(super) fn any_epoll_wait(&mut self) -> EpollBy {
        self.random.pick(&[
            EpollBy::Wait,
            EpollBy::Pwait,
            EpollBy::PwaitMasked,
            EpollBy::Pwait2,
        ])
    }

    /// One look at one descriptor.
    pub(super) fn poll_once(
        &mut self,
        at: Process,
        by: PollBy,
        slot: Slot,
        events: i16,
        timeout_ms: i32,
    ) {
        let items = vec![(slot, events)];
        self.call(
            at,
            Call::Poll {
                by,
                items,
                timeout_ms,
            },
        );
    }

    /// Waits for bytes that are on their way, where the wait is certain to end.
    pub(super) fn poll_for_input(&mut self, at: Process, slot: Slot, id: EndId) {
        let end = self.model.end(id);
        if end.queued > 0 && end.queued >= end.low_water {
            let by = self.any_poll();
            self.poll_once(at, by, slot, libc::POLLIN, 2000);
        }
    }

    /// Looks at some descriptors of a process.
    pub(super) fn poll(&mut self) -> bool {
        let running = self.model.running();
        let Some(at) = self.random.pick_any(&running) else {
            return false;
        };
        let mut slots: Vec<Slot> = self.model.processes[usize::from(at)]
            .slots
            .iter()
            .filter(|(_, (thing, _))| !self.is_frozen(*thing))
            .map(|(slot, _)| *slot)
            .collect();
        let by = self.any_poll();
        if self.random.chance(5) {
            slots.push(NEVER_OPEN);
        }
        let mut items = Vec::new();
        for _ in 0..self.random.between(1, 4) {
            if let Some(slot) = self.random.pick_any(&slots) {
                slots.retain(|other| *other != slot);
                let events = self.random.pick(&POLL_EVENTS) | self.random.pick(&POLL_EVENTS);
                items.push((slot, events));
            }
        }
        let timeout_ms = match self.random.between(0, 9) {
            0 if self.waits_left > 0 => {
                self.waits_left -= 1;
                self.random.between(1, 8) as i32
            }
            _ => 0,
        };
        self.call(
            at,
            Call::Poll {
                by,
                items,
                timeout_ms,
            },
        );
        true
    }

    fn is_frozen(&self, thing: Thing) -> bool {
        matches!(thing, Thing::End(id) if self.model.end(id).frozen)
    }

    pub(super) fn epoll_create(&mut self) -> bool {
        let running = self.model.running();
        let Some(at) = self.random.pick_any(&running) else {
            return false;
        };
        if !self.room() {
            return false;
        }
        let set = self.new_set(at);
        for _ in 0..self.random.between(0, 2) {
            self.epoll_add(at, set);
        }
        true
    }

    pub(super) fn new_set(&mut self, at: Process) -> Slot {
        let slot = self.new_slot();
        let cloexec = self.random.chance(40);
        self.call(at, Call::EpollCreate { slot, cloexec });
        let number = self.model.sets.len();
        self.model.sets.push(Vec::new());
        self.model.open(at, slot, Thing::Epoll(number), cloexec);
        slot
    }

    /// Events and modes for a descriptor. An edge is only asked for where the number of wake-ups is certain.
    fn epoll_mask(&mut self, thing: Thing) -> u32 {
        let kinds = [
            IN,
            IN,
            IN | OUT,
            OUT,
            IN | RDHUP,
            IN | OUT | RDHUP | PRI,
            RDHUP,
            0,
        ];
        let mut mask = self.random.pick(&kinds);
        let edges = match thing {
            Thing::End(id) => !self.model.end(id).was_full,
            _ => true,
        };
        if edges && self.random.chance(40) {
            mask |= EDGE;
        }
        if self.random.chance(20) {
            mask |= ONESHOT;
        }
        mask
    }

    /// Notes what a registration forbids from now on.
    pub(super) fn registered(&mut self, thing: Thing, mask: u32) {
        if let Thing::End(id) = thing
            && mask & EDGE != 0
        {
            self.model.end_mut(id).edge = true;
        }
    }

    /// Adds a descriptor of the process to a set.
    fn epoll_add(&mut self, at: Process, set: Slot) -> bool {
        let things = self.model.processes[usize::from(at)].slots.clone();
        let candidates: Vec<(Slot, Thing)> = things
            .iter()
            .map(|(slot, (thing, _))| (*slot, *thing))
            .filter(|(slot, thing)| *slot != set && !self.is_frozen(*thing))
            .filter(|(_, thing)| matches!(thing, Thing::End(_) | Thing::Listener(_) | Thing::Pipe))
            .collect();
        let Some((slot, thing)) = self.random.pick_any(&candidates) else {
            return false;
        };
        let mut events = self.epoll_mask(thing);
        if self.random.chance(10) {
            events = (events & (IN | OUT | EDGE)) | EXCLUSIVE;
        }
        self.call(at, Call::EpollAdd { set, slot, events });
        self.registered(thing, events);
        if let Some(Thing::Epoll(number)) = self.model.thing(at, set) {
            self.model.sets[number].push(slot);
        }
        true
    }

    /// A set that some process has.
    fn any_set(&mut self) -> Option<(Process, Slot, usize)> {
        let sets = self.model.slots(|thing| matches!(thing, Thing::Epoll(_)));
        let (at, slot) = self.random.pick_any(&sets)?;
        match self.model.thing(at, slot) {
            Some(Thing::Epoll(number)) => Some((at, slot, number)),
            _ => None,
        }
    }

    pub(super) fn epoll_change(&mut self) -> bool {
        let Some((at, set, number)) = self.any_set() else {
            return false;
        };
        let members = self.model.sets[number].clone();
        let member = self.random.pick_any(&members);
        match (member, self.random.between(0, 3)) {
            (Some(slot), 0) => {
                self.call(at, Call::EpollDelete { set, slot });
                self.model.sets[number].retain(|other| *other != slot);
                true
            }
            (Some(slot), 1 | 2) => {
                let Some(thing) = self.model.thing(at, slot) else {
                    return false;
                };
                if self.is_frozen(thing) {
                    return false;
                }
                let events = self.epoll_mask(thing);
                self.call(at, Call::EpollModify { set, slot, events });
                self.registered(thing, events);
                true
            }
            _ => self.epoll_add(at, set),
        }
    }

    pub(super) fn epoll_wait(&mut self) -> bool {
        let Some((at, set, number)) = self.any_set() else {
            return false;
        };
        if self.model.ends.values().any(|end| end.frozen) {
            return false;
        }
        let members = self.model.sets[number].len() as u8;
        if members > 1 && self.random.chance(30) {
            let rounds = members + 1;
            self.call(at, Call::EpollTour { set, rounds });
            return true;
        }
        let by = self.any_epoll_wait();
        let timeout_ms = if self.waits_left > 0 && self.random.chance(8) {
            self.waits_left -= 1;
            5
        } else {
            0
        };
        for _ in 0..self.random.between(1, 2) {
            self.call(
                at,
                Call::EpollWait {
                    by,
                    set,
                    room: 16,
                    timeout_ms,
                },
            );
        }
        true
    }

    /// Puts a set into another, or into itself, or polls it.
    pub(super) fn epoll_nest(&mut self) -> bool {
        let (Some((at, outer, _)), Some((_, inner, _))) = (self.any_set(), self.any_set()) else {
            return false;
        };
        if self.model.thing(at, inner).is_none() {
            return false;
        }
        if self.random.chance(40) {
            let by = self.any_poll();
            self.poll_once(at, by, inner, libc::POLLIN, 0);
            return true;
        }
        let events = IN | self.random.pick(&[0, 0, EDGE, ONESHOT]);
        let slot = inner;
        self.call(
            at,
            Call::EpollAdd {
                set: outer,
                slot,
                events,
            },
        );
        true
    }
}
