//! Calls that block in a thread, and what ends them: bytes, an ending, a signal.

use super::Generator;
use super::model::{EndId, Thing};
use super::transfer::FLAGGED_RECEIVE_FORMS;
use super::waits::EDGE;
use crate::plan::{Call, Flag, Half, Opt, Process, ReceiveBy, Slot, Step, Thread};

/// What ends a blocked call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The peer sends.
    Bytes,
    /// The peer ends its direction.
    PeerShutdown,
    /// The peer resets the connection.
    PeerReset,
    /// The process itself ends the direction.
    OwnShutdown,
    /// A signal, without `SA_RESTART`.
    Signal,
}

impl Generator {
    pub(super) fn interrupt(&mut self, at: Process, thread: Thread, restart: bool) {
        self.steps.push(Step::Interrupt {
            at,
            thread,
            restart,
        });
    }

    /// An end where a read blocks, and whose peer can send.
    pub(super) fn quiet_end(&mut self) -> Option<(EndId, Process, Slot)> {
        let fresh = self.model.fresh();
        let from = self.random.pick_any(&fresh)?;
        let id = from.peer();
        let end = self.model.end(id);
        if self.model.signals || end.nonblock || end.times_out || end.peek_offset || !self.room() {
            return None;
        }
        let (at, slot) = self.holder(id)?;
        Some((id, at, slot))
    }

    /// Small steps beside a blocked call, that do not concern what it waits for. Without `spawns`, no programs
    /// are started: while the C library does that, it blocks all signals, and a child that ends just then makes the
    /// kernel disturb another thread with `SIGCHLD`; an `epoll_wait` there returns EINTR, without any handler.
    fn meanwhile(&mut self, id: EndId, thread: Thread, spawns: bool) {
        self.model.end_mut(id).frozen = true;
        let count = self.random.weighted(&[50, 30, 15, 5]);
        for _ in 0..count {
            self.settle_all();
            match self.random.between(0, 6) {
                0 | 1 => {
                    let bytes = self.message_size(id);
                    self.exchange(id, bytes);
                }
                2 => drop(self.names()),
                3 => drop(self.duplicate()),
                4 if spawns => drop(self.spawn()),
                5 => drop(self.fork()),
                _ => drop(self.poll()),
            }
        }
        self.settle_all();
        if count > 0 {
            // A disturbed call restarts; only then may things go on.
            self.steps.push(Step::Probe { thread });
        }
        self.model.end_mut(id).frozen = false;
    }

    /// An ending that is possible for a call that waits for `id`.
    fn possible_ending(&mut self, id: EndId) -> Ending {
        match self.random.weighted(&[60, 10, 5, 8, 17]) {
            0 => Ending::Bytes,
            1 => Ending::PeerShutdown,
            // Every descriptor of the peer must be at hand, to be closed.
            2 if self.model.end(id.peer()).in_flight > 0 => Ending::Bytes,
            2 => Ending::PeerReset,
            3 => Ending::OwnShutdown,
            _ => Ending::Signal,
        }
    }

    /// Does what ends a blocked call. `thread` waits at `at` for `id`, which is `slot` there.
    fn end_blocked(
        &mut self,
        ending: Ending,
        id: EndId,
        at: Process,
        slot: Slot,
        thread: Thread,
        bytes: u32,
    ) {
        match ending {
            Ending::Bytes => drop(self.send_whole(id.peer(), bytes)),
            Ending::Signal => self.interrupt(at, thread, false),
            Ending::OwnShutdown => {
                let half = Half::Read;
                self.call(at, Call::Shutdown { slot, half });
                self.model.end_mut(id).shut_read = true;
            }
            Ending::PeerShutdown => {
                if let Some((peer, far)) = self.holder(id.peer()) {
                    let half = Half::Write;
                    self.call(peer, Call::Shutdown { slot: far, half });
                    self.model.end_mut(id.peer()).finished = true;
                }
            }
            Ending::PeerReset => self.reset_from(id.peer()),
        }
    }

    /// Closes every descriptor of an end so that the connection is reset.
    fn reset_from(&mut self, id: EndId) {
        let holders = self.model.holders(id);
        if let Some((at, slot)) = holders.first().copied() {
            let option = Opt::Linger;
            let value = 0;
            self.call(
                at,
                Call::SetOption {
                    slot,
                    option,
                    value,
                },
            );
            self.model.end_mut(id).aborts = true;
        }
        for (at, slot) in holders {
            self.call(at, Call::Close { slot });
            // The states are looked at when the blocked call has returned.
            self.model.drop_slot(at, slot);
        }
    }

    /// A receive call that blocks, and its flags that matter: whether it peeks, and whether it waits for all.
    fn blocking_receive(&mut self, slot: Slot, wanted: u32) -> (Call, bool, bool) {
        let by = self.random.pick(&[
            ReceiveBy::Read,
            ReceiveBy::Readv,
            ReceiveBy::Preadv2,
            ReceiveBy::Recv,
            ReceiveBy::Recvfrom,
            ReceiveBy::Recvmsg,
            ReceiveBy::Recvmmsg,
            ReceiveBy::Splice,
            ReceiveBy::ReadChk,
            ReceiveBy::RecvChk,
        ]);
        let mut flags = Vec::new();
        let flagged = FLAGGED_RECEIVE_FORMS.contains(&by);
        let peeks = flagged && self.random.chance(12);
        let all = flagged && self.random.chance(25);
        if peeks {
            flags.push(Flag::Peek);
        }
        if all {
            flags.push(Flag::WaitAll);
        }
        if by == ReceiveBy::Recvmmsg {
            flags.push(Flag::WaitForOne);
        }
        let parts = self.random.between(1, 3) as u8;
        let call = Call::Receive {
            slot,
            by,
            bytes: wanted,
            parts,
            flags,
            bad: false,
        };
        (call, peeks, all)
    }

    /// A thread blocks in a receive call.
    pub(super) fn blocked_receive(&mut self) -> bool {
        let Some((id, at, slot)) = self.quiet_end() else {
            return false;
        };
        let wanted = self.random.between(1, 6000);
        let (call, peeks, all) = self.blocking_receive(slot, wanted);
        let ending = self.possible_ending(id);
        let thread = self.start(at, call);
        if self.random.chance(25) {
            self.interrupt(at, thread, true);
            self.steps.push(Step::Probe { thread });
        }
        self.meanwhile(id, thread, true);
        // A sleeping reader is woken when what it has not copied yet reaches the low-water mark.
        let low = self.model.end(id).low_water;
        let mut bytes = low + self.random.between(0, 3000);
        if all && ending == Ending::Bytes {
            bytes = wanted.max(low) + self.random.between(0, 100);
            if !peeks && wanted > 1 && low == 1 && self.random.chance(50) {
                // In two pieces: the thread wakes up and sleeps again.
                let first = self.random.between(1, wanted - 1);
                self.send_whole(id.peer(), first);
                bytes = wanted - first;
                self.model.end_mut(id).queued = 0;
            }
        }
        self.end_blocked(ending, id, at, slot, thread, bytes);
        self.join(at, thread);
        if ending == Ending::Bytes {
            self.model.end_mut(id).queued = bytes;
            if !peeks {
                self.took(id, wanted);
            }
        }
        if ending == Ending::Signal || ending == Ending::Bytes {
            self.settle_all();
        } else {
            self.settle_states(id.conn);
        }
        true
    }

    /// A thread blocks in `poll` or `select`.
    pub(super) fn blocked_poll(&mut self) -> bool {
        let Some((id, at, slot)) = self.quiet_end() else {
            return false;
        };
        let by = self.any_poll();
        let mut items = vec![(slot, libc::POLLIN | self.random.pick(&[0, libc::POLLRDHUP]))];
        if self.random.chance(30)
            && let Some((owner, pipe)) = self.pipe()
            && owner == at
        {
            items.push((pipe, libc::POLLIN));
        }
        let timeout_ms = self.random.pick(&[-1, 3000]);
        let call = Call::Poll {
            by,
            items,
            timeout_ms,
        };
        self.wait_blocked(id, at, slot, call)
    }

    /// A thread makes a waiting call on a quiet end, and something ends it.
    fn wait_blocked(&mut self, id: EndId, at: Process, slot: Slot, call: Call) -> bool {
        let ending = self.possible_ending(id);
        let spawns = matches!(call, Call::Poll { .. });
        let thread = self.start(at, call);
        self.meanwhile(id, thread, spawns);
        let bytes = self.model.end(id).low_water + self.random.between(0, 1000);
        self.end_blocked(ending, id, at, slot, thread, bytes);
        self.join(at, thread);
        if !matches!(ending, Ending::Bytes | Ending::Signal) {
            self.settle_states(id.conn);
        }
        true
    }

    /// A thread blocks in `epoll_wait`.
    pub(super) fn blocked_epoll(&mut self) -> bool {
        let Some((id, at, slot)) = self.quiet_end() else {
            return false;
        };
        let set = self.new_set(at);
        let mode = if self.model.end(id).was_full {
            self.random.pick(&[0, libc::EPOLLONESHOT])
        } else {
            self.random
                .pick(&[0, libc::EPOLLONESHOT, libc::EPOLLET, libc::EPOLLEXCLUSIVE])
        };
        let events = (libc::EPOLLIN | mode) as u32;
        self.call(at, Call::EpollAdd { set, slot, events });
        if events & EDGE != 0 {
            self.registered(Thing::End(id), events);
        }
        let mut waited = set;
        if self.random.chance(20) {
            waited = self.new_set(at);
            let events = libc::EPOLLIN as u32;
            self.call(
                at,
                Call::EpollAdd {
                    set: waited,
                    slot: set,
                    events,
                },
            );
        }
        if let Some(Thing::Epoll(number)) = self.model.thing(at, set) {
            self.model.sets[number].push(slot);
        }
        let call = if self.random.chance(20) {
            let by = self.any_poll();
            let items = vec![(waited, libc::POLLIN)];
            Call::Poll {
                by,
                items,
                timeout_ms: -1,
            }
        } else {
            let by = self.any_epoll_wait();
            let timeout_ms = self.random.pick(&[-1, 3000]);
            Call::EpollWait {
                by,
                set: waited,
                room: 8,
                timeout_ms,
            }
        };
        self.wait_blocked(id, at, slot, call)
    }

    /// Two threads, perhaps of two processes, block in a read of one end. Each byte ends one of them.
    pub(super) fn two_readers(&mut self) -> bool {
        let Some((id, at, slot)) = self.quiet_end() else {
            return false;
        };
        if self.model.end(id).low_water > 1 {
            return false;
        }
        let Some((other, other_slot)) = self.holder(id) else {
            return false;
        };
        let by = self
            .random
            .pick(&[ReceiveBy::Read, ReceiveBy::Recv, ReceiveBy::Recvmsg]);
        let call = |slot| Call::Receive {
            slot,
            by,
            bytes: 50,
            parts: 1,
            flags: Vec::new(),
            bad: false,
        };
        let first = self.start(at, call(slot));
        let second = self.start(other, call(other_slot));
        for _ in 0..2 {
            self.send_whole(id.peer(), 1);
            let any = vec![first, second];
            self.steps.push(Step::Join { any });
        }
        self.joined(at, first);
        self.joined(other, second);
        let end = self.model.end_mut(id);
        end.queued = 0;
        end.unsettled = false;
        true
    }

    /// A descriptor is closed, or replaced, while a thread blocks in a read of it.
    pub(super) fn closed_under(&mut self) -> bool {
        let Some((id, at, slot)) = self.quiet_end() else {
            return false;
        };
        let call = Call::Receive {
            slot,
            by: ReceiveBy::Recv,
            bytes: 100,
            parts: 1,
            flags: Vec::new(),
            bad: false,
        };
        let pipe = self.random.chance(50).then(|| self.open_pipe(at));
        let thread = self.start(at, call);
        if let Some(pipe) = pipe {
            let by = crate::plan::DuplicateBy::Dup2;
            let (to, over) = (slot, true);
            self.call(
                at,
                Call::Duplicate {
                    slot: pipe,
                    to,
                    by,
                    over,
                },
            );
        } else {
            self.call(at, Call::Close { slot });
        }
        // The thread holds the socket until its call returns.
        self.steps.push(Step::Probe { thread });
        if self.random.chance(50) {
            self.interrupt(at, thread, false);
        } else {
            let low = self.model.end(id).low_water;
            self.send_whole(id.peer(), low);
            let end = self.model.end_mut(id);
            end.queued = 0;
            end.unsettled = false;
        }
        self.join(at, thread);
        self.closed_slot(at, slot);
        if pipe.is_some() {
            self.model.open(at, slot, Thing::Pipe, false);
        }
        true
    }
}
