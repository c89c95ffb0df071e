//! Registrations that change all the time: reading and writing in turn, while others wait, in sets that two processes have, of
//! duplicates. All of them level-triggered, so that what comes out is certain.

use super::Generator;
use super::model::{EndId, Thing};
use super::waits::{IN, ONESHOT, OUT, RDHUP};
use crate::plan::{Call, DuplicateBy, Half, Process, Slot, Step};
use crate::sys::EpollBy;

/// A registration, as the generator believes it to be.
#[derive(Clone, Copy)]
struct Registered {
    id: EndId,
    slot: Slot,
    /// Taken back by `EPOLL_CTL_DEL`, perhaps to be added again.
    there: bool,
}

impl Generator {
    /// A set is told of reading and writing in turn, with messages and looks in between.
    pub(super) fn epoll_alternate(&mut self) -> bool {
        let Some((at, set, mut members)) = self.watched_set() else {
            return false;
        };
        for _ in 0..self.random.between(2, 8) {
            self.change_one(at, set, &mut members);
            self.disturb(&members);
            self.look(at, set);
        }
        true
    }

    /// The same by two processes that have the set after a fork.
    pub(super) fn epoll_shared(&mut self) -> bool {
        let Some((at, set, mut members)) = self.watched_set() else {
            return false;
        };
        for _ in 0..self.random.between(0, 2) {
            self.change_one(at, set, &mut members);
        }
        let child = self.model.processes.len() as Process;
        if !self.fork_of(at) {
            return true;
        }
        for _ in 0..self.random.between(2, 6) {
            let one = self.random.pick(&[at, child]);
            match self.random.between(0, 2) {
                0 => self.change_one(one, set, &mut members),
                1 => self.disturb(&members),
                _ => {}
            }
            let other = self.random.pick(&[at, child]);
            self.look(other, set);
        }
        true
    }

    /// A new set of one process with some of its ends in it, which may be duplicates.
    fn watched_set(&mut self) -> Option<(Process, Slot, Vec<Registered>)> {
        let (_, at, _) = self.any_end()?;
        if !self.room() {
            return None;
        }
        let set = self.new_set(at);
        let mut members = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            let own: Vec<(Slot, EndId)> = self.model.processes[usize::from(at)]
                .slots
                .iter()
                .filter_map(|(slot, (thing, _))| match thing {
                    Thing::End(id) if !self.model.end(*id).frozen => Some((*slot, *id)),
                    _ => None,
                })
                .collect();
            let Some((mut slot, id)) = self.random.pick_any(&own) else {
                break;
            };
            if self.random.chance(25) && self.room() {
                slot = self.plain_copy(at, slot, id);
            }
            if members
                .iter()
                .any(|member: &Registered| member.slot == slot)
            {
                continue;
            }
            let events = self.turn();
            self.call(at, Call::EpollAdd { set, slot, events });
            let there = true;
            members.push(Registered { id, slot, there });
        }
        if let Some(Thing::Epoll(number)) = self.model.thing(at, set) {
            self.model.sets[number].extend(members.iter().map(|member| member.slot));
        }
        (!members.is_empty()).then_some((at, set, members))
    }

    /// A duplicate of an end's descriptor.
    fn plain_copy(&mut self, at: Process, slot: Slot, id: EndId) -> Slot {
        let to = self.new_slot();
        let by = self
            .random
            .pick(&[DuplicateBy::Dup, DuplicateBy::Fcntl, DuplicateBy::Dup3]);
        let over = false;
        self.call(at, Call::Duplicate { slot, to, by, over });
        self.model.open(at, to, Thing::End(id), false);
        to
    }

    /// What a program waits for in turn.
    fn turn(&mut self) -> u32 {
        self.random
            .pick(&[IN, IN, OUT, OUT, IN | OUT, IN | RDHUP, 0])
    }

    /// Changes one registration, takes it back, or makes it again; now and then wrongly.
    fn change_one(&mut self, at: Process, set: Slot, members: &mut [Registered]) {
        for _ in 0..self.random.between(1, 3) {
            let index = self.random.between(0, members.len() as u32 - 1) as usize;
            let Registered { slot, there, .. } = members[index];
            let events = if self.random.chance(4) {
                IN | ONESHOT
            } else {
                self.turn()
            };
            let held = self.model.thing(at, slot).is_some();
            match (there, self.random.between(0, 9)) {
                (true, 0..=5) | (false, 0) => {
                    self.call(at, Call::EpollModify { set, slot, events });
                }
                (true, 6..=8) => {
                    self.call(at, Call::EpollDelete { set, slot });
                    members[index].there = !held;
                }
                (false, 1) => self.call(at, Call::EpollDelete { set, slot }),
                _ => {
                    self.call(at, Call::EpollAdd { set, slot, events });
                    members[index].there |= held;
                }
            }
        }
    }

    /// Something happens to a member: bytes come, or are taken, or a duplicate of it goes.
    fn disturb(&mut self, members: &[Registered]) {
        let member = self.random.pick(members);
        let id = member.id;
        match self.random.between(0, 9) {
            0..=3 if self.model.flows(id.peer()) => {
                let bytes = self.message_size(id.peer()).max(1);
                self.send_whole(id.peer(), bytes);
                self.settle(id);
            }
            4..=6 if self.model.end(id).queued > 0 => drop(self.receive_from(id)),
            7 | 8 if self.model.flows(id) => {
                let bytes = self.message_size(id).max(1);
                self.send_whole(id, bytes);
                self.settle(id.peer());
            }
            9 if self.model.holders(id).len() > 1 && self.random.chance(30) => {
                let holders = self.model.holders(id);
                let (at, slot) = self.random.pick(&holders);
                self.close_slot(at, slot);
            }
            _ => {}
        }
    }

    /// What the set has to say at once.
    fn look(&mut self, at: Process, set: Slot) {
        let by = self.any_epoll_wait();
        for _ in 0..self.random.between(1, 2) {
            let (room, timeout_ms) = (16, 0);
            self.call(
                at,
                Call::EpollWait {
                    by,
                    set,
                    room,
                    timeout_ms,
                },
            );
        }
    }

    /// A thread sleeps in `epoll_wait`; a registration changes under it, and that or what follows wakes it.
    pub(super) fn epoll_change_asleep(&mut self) -> bool {
        let Some((id, at, slot)) = self.quiet_end() else {
            return false;
        };
        if self.model.end(id).was_full || self.model.end(id).low_water > 1 {
            return false;
        }
        let set = self.new_set(at);
        let there = self.random.chance(70);
        if there {
            let events = self.random.pick(&[IN, 0, RDHUP]);
            self.call(at, Call::EpollAdd { set, slot, events });
        }
        if let Some(Thing::Epoll(number)) = self.model.thing(at, set) {
            self.model.sets[number].push(slot);
        }
        let by = self.any_epoll_wait();
        let (room, timeout_ms) = (8, self.random.pick(&[-1, 3000]));
        let call = Call::EpollWait {
            by,
            set,
            room,
            timeout_ms,
        };
        let thread = self.start(at, call);
        // Bytes may be there before the registration that asks for them.
        let early = self.random.chance(40);
        let events = match (early, self.random.between(0, 2)) {
            (true, _) => IN,
            (false, 0) => OUT,
            (false, 1) => IN | OUT,
            (false, _) => IN,
        };
        if there && self.random.chance(40) {
            self.call(at, Call::EpollDelete { set, slot });
            if early {
                self.send_whole(id.peer(), 10);
                self.settle(id);
            }
            self.call(at, Call::EpollAdd { set, slot, events });
        } else if there {
            let silent = 0;
            if early {
                self.call(
                    at,
                    Call::EpollModify {
                        set,
                        slot,
                        events: silent,
                    },
                );
                self.send_whole(id.peer(), 10);
                self.settle(id);
            }
            self.call(at, Call::EpollModify { set, slot, events });
        } else {
            if early {
                self.send_whole(id.peer(), 10);
                self.settle(id);
            }
            self.call(at, Call::EpollAdd { set, slot, events });
        }
        if events == IN && !early {
            self.steps.push(Step::Probe { thread });
            self.send_whole(id.peer(), 100);
        }
        self.join(at, thread);
        self.settle_all();
        true
    }

    /// A connection is filled up; whoever waits for room has it when the other end has read.
    pub(super) fn epoll_room(&mut self) -> bool {
        let senders = self.model.senders();
        let Some(from) = self.random.pick_any(&senders) else {
            return false;
        };
        let end = self.model.end(from);
        let small = end.small_buffers || self.model.end(from.peer()).small_buffers;
        if !self.fit_for_bulk(from) || small || end.was_full || !self.room() {
            return false;
        }
        let (Some((writer, slot)), Some((reader, far))) =
            (self.holder(from), self.holder(from.peer()))
        else {
            return false;
        };
        let set = self.new_set(writer);
        let first = self.random.pick(&[IN, OUT, IN | OUT]);
        self.call(
            writer,
            Call::EpollAdd {
                set,
                slot,
                events: first,
            },
        );
        let chunk = self.random.pick(&[16_384, 65_536]);
        self.call(writer, Call::Fill { slot, chunk });
        self.look(writer, set);
        let events = OUT;
        if first != OUT {
            self.call(writer, Call::EpollModify { set, slot, events });
        }
        self.look(writer, set);
        let (by, room, timeout_ms) = (EpollBy::Wait, 8, 4000);
        let call = Call::EpollWait {
            by,
            set,
            room,
            timeout_ms,
        };
        let sleeps = reader != writer || self.random.chance(50);
        let thread = sleeps.then(|| self.start(writer, call.clone()));
        self.read_all(from.peer(), reader, far);
        match thread {
            Some(thread) => self.join(writer, thread),
            None => self.call(writer, call),
        }
        self.model.end_mut(from).was_full = true;
        self.look(writer, set);
        if self.random.chance(30) {
            let half = Half::Write;
            self.call(reader, Call::Shutdown { slot: far, half });
            self.model.end_mut(from.peer()).finished = true;
            self.settle_states(from.conn);
            self.look(writer, set);
        }
        true
    }
}
