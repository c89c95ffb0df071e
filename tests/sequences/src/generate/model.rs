//! What the generator believes of the sequence so far: who holds which end, what is there to be read, who has
//! ended. It need not be exact. It serves to make steps that are meaningful and do not block by accident, and to know
//! what to wait for before the next step; what really comes out is in the traces.

use crate::plan::{Awaited, Family, Process, Slot, Thread};
use std::collections::BTreeMap;

/// A connection's number and a side of it: 0 connected, 1 accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct EndId {
    pub(super) conn: u8,
    pub(super) side: u8,
}

impl EndId {
    pub(super) fn peer(self) -> Self {
        EndId {
            conn: self.conn,
            side: 1 - self.side,
        }
    }
}

/// One end of a connection.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about the socket"
)]
pub(super) struct End {
    /// Bytes that are there to be read.
    pub(super) queued: u32,
    /// Bytes were sent to it, and nobody has waited for them.
    pub(super) unsettled: bool,
    /// It has ended its direction.
    pub(super) finished: bool,
    pub(super) shut_read: bool,
    /// Nobody holds it any more.
    pub(super) closed: bool,
    /// It was reset, by the peer or by itself.
    pub(super) reset: bool,
    /// Descriptors of it that wait in a mail box.
    pub(super) in_flight: u32,
    pub(super) nonblock: bool,
    pub(super) low_water: u32,
    pub(super) times_out: bool,
    pub(super) aborts: bool,
    pub(super) small_buffers: bool,
    pub(super) oob_inline: bool,
    pub(super) peek_offset: bool,
    /// It may be in an edge-triggered set: nothing with an uncertain number of wake-ups may be done.
    pub(super) edge: bool,
    /// It was filled up: the kernel may tell of room at any later time, so no edge may depend on it.
    pub(super) was_full: bool,
    /// A thread waits for it: nothing may arrive, and nobody may read.
    pub(super) frozen: bool,
}

impl End {
    pub(super) fn new() -> Self {
        End {
            queued: 0,
            unsettled: false,
            finished: false,
            shut_read: false,
            closed: false,
            reset: false,
            in_flight: 0,
            nonblock: false,
            low_water: 1,
            times_out: false,
            aborts: false,
            small_buffers: false,
            oob_inline: false,
            peek_offset: false,
            edge: false,
            was_full: false,
            frozen: false,
        }
    }
}

/// What a slot is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Thing {
    End(EndId),
    Listener(u8),
    Epoll(usize),
    Pipe,
}

/// A listening socket.
#[derive(Clone, Debug)]
pub(super) struct Listener {
    pub(super) family: Family,
    /// What an accepted end inherits.
    pub(super) template: End,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessModel {
    pub(super) alive: bool,
    pub(super) stopped: bool,
    pub(super) parent: Option<Process>,
    /// What each slot is, and whether it is close-on-exec.
    pub(super) slots: BTreeMap<Slot, (Thing, bool)>,
    /// Threads that are in a call.
    pub(super) threads: Vec<Thread>,
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) ends: BTreeMap<EndId, End>,
    pub(super) listeners: Vec<Listener>,
    pub(super) processes: Vec<ProcessModel>,
    /// By epoll set, the slots that were added.
    pub(super) sets: Vec<Vec<Slot>>,
    /// Whether any end sends signals: a thread that sleeps might get one.
    pub(super) signals: bool,
}

impl Model {
    pub(super) fn end(&self, id: EndId) -> &End {
        &self.ends[&id]
    }

    pub(super) fn end_mut(&mut self, id: EndId) -> &mut End {
        self.ends.entry(id).or_insert_with(End::new)
    }

    /// Processes that can be told to do something.
    pub(super) fn running(&self) -> Vec<Process> {
        (0..self.processes.len() as u8)
            .filter(|process| {
                let process = &self.processes[usize::from(*process)];
                process.alive && !process.stopped
            })
            .collect()
    }

    /// Who can use the end, and by which slot.
    pub(super) fn holders(&self, id: EndId) -> Vec<(Process, Slot)> {
        self.slots(|thing| thing == Thing::End(id))
    }

    /// All slots of running processes that are such a thing.
    pub(super) fn slots(&self, wanted: impl Fn(Thing) -> bool) -> Vec<(Process, Slot)> {
        let mut found = Vec::new();
        for process in self.running() {
            for (slot, (thing, _)) in &self.processes[usize::from(process)].slots {
                if wanted(*thing) {
                    found.push((process, *slot));
                }
            }
        }
        found
    }

    pub(super) fn thing(&self, at: Process, slot: Slot) -> Option<Thing> {
        let (thing, _) = self.processes[usize::from(at)].slots.get(&slot)?;
        Some(*thing)
    }

    pub(super) fn open(&mut self, at: Process, slot: Slot, thing: Thing, cloexec: bool) {
        self.processes[usize::from(at)]
            .slots
            .insert(slot, (thing, cloexec));
    }

    /// Whether any process, running or not, or a mail box holds the end.
    fn is_held(&self, id: EndId) -> bool {
        let holds = |process: &ProcessModel| {
            process.alive
                && process
                    .slots
                    .values()
                    .any(|(thing, _)| *thing == Thing::End(id))
        };
        self.end(id).in_flight > 0 || self.processes.iter().any(holds)
    }

    /// Forgets a slot; true when that was the last of an end, which then closes.
    pub(super) fn drop_slot(&mut self, at: Process, slot: Slot) -> Option<EndId> {
        let (thing, _) = self.processes[usize::from(at)].slots.remove(&slot)?;
        let Thing::End(id) = thing else { return None };
        (!self.is_held(id) && !self.end(id).closed).then(|| {
            self.close_end(id);
            id
        })
    }

    /// What the kernel does when the last descriptor of an end is closed.
    fn close_end(&mut self, id: EndId) {
        let both_finished = self.end(id).finished && self.end(id.peer()).finished;
        let end = self.end_mut(id);
        end.closed = true;
        let alive = !end.reset && !both_finished;
        let aborts = end.aborts || end.queued > 0;
        end.finished = true;
        if alive && aborts {
            end.reset = true;
            self.end_mut(id.peer()).reset = true;
        }
    }

    /// The state that `TCP_INFO` comes to tell of the end.
    pub(super) fn state(&self, id: EndId) -> Awaited {
        let (own, peer) = (self.end(id), self.end(id.peer()));
        match (own.finished, peer.finished) {
            _ if own.reset => Awaited::Closed,
            (true, true) => Awaited::Closed,
            (true, false) => Awaited::HalfClosed,
            (false, true) => Awaited::PeerClosed,
            (false, false) => Awaited::Open,
        }
    }

    /// Whether a read finds the end of the stream, or an error, once the bytes are read.
    pub(super) fn ended(&self, id: EndId) -> bool {
        let end = self.end(id);
        end.reset || end.shut_read || self.end(id.peer()).finished
    }

    /// Whether a read of `bytes` returns at once on a socket that blocks.
    pub(super) fn readable(&self, id: EndId, bytes: u32) -> bool {
        let end = self.end(id);
        self.ended(id) || end.queued >= end.low_water.min(bytes).max(1)
    }

    /// Whether bytes can be sent from this end and be received at the other.
    pub(super) fn flows(&self, from: EndId) -> bool {
        let (own, peer) = (self.end(from), self.end(from.peer()));
        let sends = !own.closed && !own.reset && !own.finished;
        let deaf = peer.closed || peer.reset || (peer.finished && peer.shut_read);
        sends && !deaf && !peer.frozen
    }

    /// Whether bytes sent from this end provoke a reset: the peer has closed, or shut down both directions.
    pub(super) fn provokes(&self, from: EndId) -> bool {
        let (own, peer) = (self.end(from), self.end(from.peer()));
        let sends = !own.closed && !own.reset && !own.finished;
        sends && !peer.reset && !peer.frozen && (peer.closed || peer.finished && peer.shut_read)
    }

    /// Ends whose descriptors are held and where something can still be observed.
    pub(super) fn held_ends(&self) -> Vec<EndId> {
        let held = |id: &EndId| !self.end(*id).frozen && !self.holders(*id).is_empty();
        self.ends.keys().copied().filter(held).collect()
    }

    /// Ends from which bytes flow, with somebody on both sides.
    pub(super) fn senders(&self) -> Vec<EndId> {
        self.ends
            .keys()
            .copied()
            .filter(|id| {
                self.flows(*id)
                    && !self.holders(*id).is_empty()
                    && !self.holders(id.peer()).is_empty()
            })
            .collect()
    }

    /// Connections that are whole: both ends held, nothing ended, nothing unread, nobody waiting.
    pub(super) fn fresh(&self) -> Vec<EndId> {
        self.senders()
            .into_iter()
            .filter(|id| {
                let (own, peer) = (self.end(*id), self.end(id.peer()));
                self.flows(id.peer())
                    && own.queued == 0
                    && peer.queued == 0
                    && !self.ended(*id)
                    && !self.ended(id.peer())
            })
            .collect()
    }
}
