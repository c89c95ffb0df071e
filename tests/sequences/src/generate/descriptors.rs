//! Options, names, flags, duplicates.

use super::Generator;
use super::model::{EndId, Thing};
use crate::plan::{Call, DuplicateBy, Opt, Process, Slot};

impl Generator {
    /// Sets or asks an option of some end.
    pub(super) fn options(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        if self.random.chance(50) {
            let option = self.random.pick(&[
                Opt::Error,
                Opt::Type,
                Opt::Domain,
                Opt::Protocol,
                Opt::AcceptConn,
                Opt::ReuseAddr,
                Opt::KeepAlive,
                Opt::Linger,
                Opt::OobInline,
                Opt::PeekOffset,
                Opt::NoDelay,
                Opt::Cork,
                Opt::KeepIdle,
                Opt::UserTimeout,
                Opt::Inq,
                Opt::ReceiveLow,
                Opt::ReceiveTimeout,
                Opt::SendTimeout,
                Opt::Unknown,
            ]);
            self.call(at, Call::GetOption { slot, option });
        } else {
            self.set_some_option(id, at, slot);
        }
        true
    }

    fn set_some_option(&mut self, id: EndId, at: Process, slot: Slot) {
        let (option, value) = self.random.pick(&[
            (Opt::NoDelay, 1),
            (Opt::NoDelay, 0),
            (Opt::KeepAlive, 1),
            (Opt::Linger, -1),
            (Opt::Linger, 1),
            (Opt::KeepIdle, 100),
            (Opt::UserTimeout, 5000),
            (Opt::QuickAck, 1),
            (Opt::QuickAck, 0),
            (Opt::ReceiveLow, 1),
            (Opt::ReceiveLow, 50),
            (Opt::ReceiveTimeout, 0),
            (Opt::ReceiveTimeout, 25),
            (Opt::SendTimeout, 25),
            (Opt::SendTimeout, 0),
            (Opt::Inq, 1),
            (Opt::Inq, 0),
            (Opt::PeekOffset, 0),
            (Opt::PeekOffset, -1),
            (Opt::OobInline, 1),
            (Opt::OobInline, 0),
            (Opt::Unknown, 1),
            (Opt::Error, 1),
            (Opt::Type, 1),
        ]);
        self.call(
            at,
            Call::SetOption {
                slot,
                option,
                value,
            },
        );
        let end = self.model.end_mut(id);
        match option {
            Opt::ReceiveLow => end.low_water = value.unsigned_abs(),
            Opt::ReceiveTimeout => end.times_out = value > 0,
            Opt::PeekOffset => end.peek_offset = value >= 0,
            Opt::OobInline => end.oob_inline = value > 0,
            Opt::Linger => end.aborts = false,
            _ => {}
        }
    }

    /// Names, flags, and how much is there to be read.
    pub(super) fn names(&mut self) -> bool {
        let Some((_, at, slot)) = self.any_end() else {
            return false;
        };
        let call = match self.random.between(0, 3) {
            0 => Call::Name { slot, peer: false },
            1 => Call::Name { slot, peer: true },
            2 => Call::Flags { slot },
            _ => Call::Readable { slot },
        };
        self.call(at, call);
        true
    }

    pub(super) fn nonblock(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        let (on, ioctl) = (self.random.chance(50), self.random.chance(50));
        self.call(at, Call::Nonblock { slot, on, ioctl });
        self.model.end_mut(id).nonblock = on;
        true
    }

    /// Signals for what happens to an end.
    pub(super) fn async_signals(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        // Where a buffer was full, a signal for its room may come at any time.
        if self.model.end(id).was_full {
            return false;
        }
        let on = self.random.chance(70);
        self.call(at, Call::Async { slot, on });
        self.model.signals = true;
        true
    }

    /// A second descriptor for some end.
    pub(super) fn duplicate(&mut self) -> bool {
        if !self.room() {
            return false;
        }
        let ends = self.model.slots(|thing| matches!(thing, Thing::End(_)));
        let Some((at, slot)) = self.random.pick_any(&ends) else {
            return false;
        };
        if self.random.chance(10) {
            let dup3 = self.random.chance(50);
            self.call(at, Call::DuplicateSelf { slot, dup3 });
            return true;
        }
        let Some(thing) = self.model.thing(at, slot) else {
            return false;
        };
        let to = self.new_slot();
        let by = self.random.pick(&[
            DuplicateBy::Dup,
            DuplicateBy::Dup2,
            DuplicateBy::Dup3,
            DuplicateBy::Dup3CloseOnExec,
            DuplicateBy::Fcntl,
            DuplicateBy::FcntlCloseOnExec,
            DuplicateBy::FcntlHigh,
        ]);
        let over = false;
        self.call(at, Call::Duplicate { slot, to, by, over });
        let cloexec = matches!(
            by,
            DuplicateBy::Dup3CloseOnExec | DuplicateBy::FcntlCloseOnExec
        );
        self.model.open(at, to, thing, cloexec);
        true
    }

    /// A descriptor is replaced by a duplicate of another.
    pub(super) fn duplicate_over(&mut self) -> bool {
        let Some((id, at, slot)) = self.any_end() else {
            return false;
        };
        if !self.room() {
            return false;
        }
        let mut targets: Vec<Slot> = Vec::new();
        for (other, (thing, _)) in &self.model.processes[usize::from(at)].slots {
            let fits = match thing {
                // The last descriptor of another end is replaced only now and then: that ends the connection.
                Thing::End(end) => {
                    !self.model.end(*end).frozen && self.model.holders(*end).len() > 1
                }
                Thing::Pipe => true,
                _ => false,
            };
            if fits && *other != slot {
                targets.push(*other);
            }
        }
        let to = match self.random.pick_any(&targets) {
            Some(to) => to,
            None => self.open_pipe(at),
        };
        let by = self.random.pick(&[
            DuplicateBy::Dup2,
            DuplicateBy::Dup3,
            DuplicateBy::Dup3CloseOnExec,
        ]);
        let over = true;
        self.call(at, Call::Duplicate { slot, to, by, over });
        self.closed_slot(at, to);
        let cloexec = by == DuplicateBy::Dup3CloseOnExec;
        self.model.open(at, to, Thing::End(id), cloexec);
        true
    }

    /// Closes a descriptor of an end that has others, or something that is no end.
    pub(super) fn close_copy(&mut self) -> bool {
        let mut copies = Vec::new();
        for id in self.model.held_ends() {
            let holders = self.model.holders(id);
            if holders.len() > 1 {
                copies.extend(holders);
            }
        }
        if self.random.chance(15) {
            copies.extend(
                self.model
                    .slots(|thing| matches!(thing, Thing::Pipe | Thing::Epoll(_))),
            );
        }
        let Some((at, slot)) = self.random.pick_any(&copies) else {
            return false;
        };
        self.close_slot(at, slot);
        true
    }

    /// Closes a slot by some call.
    pub(super) fn close_slot(&mut self, at: Process, slot: Slot) {
        let call = if self.random.chance(20) {
            let cloexec = false;
            Call::CloseRange { slot, cloexec }
        } else {
            Call::Close { slot }
        };
        self.call(at, call);
        self.closed_slot(at, slot);
    }

    pub(super) fn close_on_exec(&mut self) -> bool {
        let ends = self.model.slots(|thing| matches!(thing, Thing::End(_)));
        let Some((at, slot)) = self.random.pick_any(&ends) else {
            return false;
        };
        let on = self.random.chance(50);
        let range = on && self.random.chance(30);
        let call = if range {
            Call::CloseRange {
                slot,
                cloexec: true,
            }
        } else {
            Call::CloseOnExec { slot, on }
        };
        self.call(at, call);
        if let Some(thing) = self.model.thing(at, slot) {
            self.model.open(at, slot, thing, on);
        }
        true
    }
}
