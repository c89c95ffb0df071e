//! One queue's packets in one direction, on their way past the faults.

use std::time::Instant;

use super::fate::{Fate, Hold, Plan};
use super::store::{Due, Store};
use super::{FaultCounts, PIECE};
use crate::burst::{Burst, Packet};
use crate::port::Port;

/// A packet of `Lane::out`.
#[derive(Debug, Clone, Copy)]
struct Mark {
    is_double: bool,
    is_corrupted: bool,
    is_unheld: bool,
}

/// What a lane is told whenever it is asked for something.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) plan: &'a Plan,
    pub(super) queue: usize,
    pub(super) now: Instant,
    /// How long a packet waits for others to be reordered behind.
    pub(super) patience: std::time::Duration,
}

#[derive(Debug)]
pub(super) struct Lane {
    /// Packets that have come so far.
    number: u64,
    pub(super) store: Store,
    /// What comes from the port, and how much of it was looked at.
    input: Burst,
    seen: usize,
    /// What goes to the port.
    out: Burst,
    marks: Vec<Mark>,
    copy: Vec<u8>,
}

fn flip(bytes: &mut [u8], random: u64) {
    if !bytes.is_empty() {
        let bit = random % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
}

impl Lane {
    pub(super) fn new(held_max: usize) -> Lane {
        Lane {
            number: 0,
            store: Store::new(held_max),
            input: Burst::new(PIECE),
            seen: 0,
            // A packet and its double.
            out: Burst::new(PIECE + 1),
            marks: Vec::with_capacity(PIECE + 1),
            copy: Vec::new(),
        }
    }

    /// Whether something is here that a receiver would get at once.
    pub(super) fn has_more(&self, now: Instant) -> bool {
        self.seen < self.input.len() || self.store.due(now, self.number.checked_sub(1)).is_some()
    }

    /// The peer is gone: what has come and was not looked at is gone with it. Returns how many packets that are.
    pub(super) fn forget(&mut self) -> u64 {
        let count = self.input.len() - self.seen;
        self.seen = self.input.len();
        count as u64
    }

    /// What becomes of a packet now: none is held where there is no room.
    fn fate(&self, context: &Context<'_>, number: u64) -> (Fate, bool) {
        // No more queues than that.
        let mut fate = context.plan.fate(context.queue as u32, number);
        let is_unheld = !fate.is_lost && fate.hold != Hold::Not && !self.store.has_room();
        if is_unheld {
            fate.hold = Hold::Not;
        }
        (fate, is_unheld)
    }

    fn hold(
        &mut self,
        context: &Context<'_>,
        packet: Packet<'_>,
        fate: &Fate,
        counts: &mut FaultCounts,
    ) {
        let due = match fate.hold {
            Hold::For(time) => {
                counts.delayed += 1;
                Due {
                    at: context.now + time,
                    behind: u64::MAX,
                }
            }
            Hold::Behind(distance) => {
                counts.reordered += 1;
                Due {
                    at: context.now + context.patience,
                    behind: self.number + u64::from(distance),
                }
            }
            Hold::Not => return,
        };
        self.store.hold(packet, fate.is_doubled, due, |bytes| {
            if let Some(random) = fate.corrupts {
                flip(bytes, random);
                counts.corrupted += 1;
            }
        });
    }

    /// Fills a burst from the port; what was held comes when it is due.
    pub(super) fn receive<P: Port + ?Sized>(
        &mut self,
        context: &Context<'_>,
        port: &mut P,
        burst: &mut Burst,
        counts: &mut FaultCounts,
    ) {
        let mut has_asked = false;
        loop {
            let last = self.number.checked_sub(1);
            while let Some(place) = self.store.due(context.now, last) {
                if burst.is_full() {
                    return;
                }
                let held = self.store.get_mut(place);
                burst.push(&held.bytes);
                burst.set_offload(burst.len() - 1, held.offload);
                counts.pass(held.bytes.len());
                if std::mem::take(&mut held.is_doubled) {
                    // It is the next, and has only been counted so far.
                    counts.doubled += 1;
                    continue;
                }
                self.store.forget(place);
            }
            if burst.is_full() {
                return;
            }
            if self.seen == self.input.len() {
                // Once: where everything is lost, a fast peer would have this go on for ever.
                if has_asked {
                    return;
                }
                has_asked = true;
                self.seen = 0;
                if port.receive(context.queue, &mut self.input) == 0 {
                    return;
                }
            }
            self.take(context, burst, counts);
            if self.seen == self.input.len() {
                // All of it was copied.
                port.release(context.queue);
            }
        }
    }

    /// Lets the next packet of the input go its way. There is room in the burst.
    fn take(&mut self, context: &Context<'_>, burst: &mut Burst, counts: &mut FaultCounts) {
        let (fate, is_unheld) = self.fate(context, self.number);
        let input = std::mem::replace(&mut self.input, Burst::new(0));
        if let Some(packet) = input.get(self.seen) {
            counts.offered += 1;
            counts.unheld += u64::from(is_unheld);
            if fate.is_lost {
                counts.lost += 1;
            } else if fate.hold != Hold::Not {
                self.hold(context, packet, &fate, counts);
            } else {
                self.copy.clear();
                packet.append_to(&mut self.copy);
                if let Some(random) = fate.corrupts {
                    flip(&mut self.copy, random);
                    counts.corrupted += 1;
                }
                burst.push(&self.copy);
                burst.set_offload(burst.len() - 1, packet.offload());
                counts.pass(self.copy.len());
                if fate.is_doubled && self.store.has_room() {
                    // It is due at once, and so the next, in another burst perhaps.
                    let due = Due {
                        at: context.now,
                        behind: 0,
                    };
                    let copy = &self.copy;
                    let change = |bytes: &mut [u8]| bytes.copy_from_slice(copy);
                    self.store.hold(packet, false, due, change);
                    counts.doubled += 1;
                }
            }
        }
        self.input = input;
        self.seen += 1;
        self.number += 1;
    }

    /// Sends what is due of what was held. False: not all, since the port has no room.
    pub(super) fn flush<P: Port + ?Sized>(
        &mut self,
        context: &Context<'_>,
        port: &mut P,
        counts: &mut FaultCounts,
    ) -> bool {
        let last = self.number.checked_sub(1);
        while let Some(place) = self.store.due(context.now, last) {
            let held = self.store.get(place);
            self.out.clear();
            for number in 0..=usize::from(held.is_doubled) {
                self.out.push(&held.bytes);
                self.out.set_offload(number, held.offload);
            }
            if context.queue >= port.transmit_queues() {
                self.out.clear();
                self.out.push(&held.bytes);
                port.give_up(context.queue, &self.out, 0);
                counts.gone += 1;
            } else {
                let taken = port.transmit(context.queue, &self.out, 0);
                if taken == 0 {
                    return false;
                }
                counts.passed += taken as u64;
                counts.doubled += taken as u64 - 1;
            }
            self.store.forget(place);
        }
        true
    }

    /// Sends packets from number `first` on; returns how many were taken.
    pub(super) fn transmit<P: Port + ?Sized>(
        &mut self,
        context: &Context<'_>,
        port: &mut P,
        burst: &Burst,
        first: usize,
        counts: &mut FaultCounts,
    ) -> usize {
        let mut next = first;
        while self.flush(context, port, counts) && next < burst.len() {
            let gathered = self.gather(context, burst, next);
            if gathered == 0 {
                self.divert(context, burst, next, counts);
                next += 1;
                continue;
            }
            let sent = port.transmit(context.queue, &self.out, 0);
            let taken = self.settle(sent, counts);
            next += taken;
            if taken < gathered {
                break;
            }
        }
        next.saturating_sub(first)
    }

    /// Copies the packets from number `next` on that are sent at once; returns how many. Up to one that something is held back behind.
    fn gather(&mut self, context: &Context<'_>, burst: &Burst, next: usize) -> usize {
        self.out.clear();
        self.marks.clear();
        let mut gathered = 0;
        for packet in burst.iter().skip(next) {
            let number = self.number + gathered as u64;
            let (fate, is_unheld) = self.fate(context, number);
            let is_diverted = fate.is_lost || fate.hold != Hold::Not;
            if is_diverted || self.out.len() >= PIECE || number > self.store.next_behind() {
                break;
            }
            self.copy.clear();
            packet.append_to(&mut self.copy);
            if let Some(random) = fate.corrupts {
                flip(&mut self.copy, random);
            }
            for is_double in [false, true] {
                if is_double && !fate.is_doubled {
                    break;
                }
                self.out.push(&self.copy);
                self.out.set_offload(self.out.len() - 1, packet.offload());
                self.marks.push(Mark {
                    is_double,
                    is_corrupted: fate.corrupts.is_some(),
                    is_unheld,
                });
            }
            gathered += 1;
        }
        gathered
    }

    /// Counts what was sent of what was gathered; returns how many packets that were. A double that there was no room for is not made.
    fn settle(&mut self, sent: usize, counts: &mut FaultCounts) -> usize {
        let mut taken = 0;
        for mark in &self.marks[..sent] {
            counts.passed += 1;
            if mark.is_double {
                counts.doubled += 1;
            } else {
                taken += 1;
                counts.offered += 1;
                counts.corrupted += u64::from(mark.is_corrupted);
                counts.unheld += u64::from(mark.is_unheld);
            }
        }
        self.number += taken as u64;
        taken
    }

    /// Loses a packet, or holds it back.
    fn divert(
        &mut self,
        context: &Context<'_>,
        burst: &Burst,
        next: usize,
        counts: &mut FaultCounts,
    ) {
        let (fate, _) = self.fate(context, self.number);
        if let Some(packet) = burst.get(next) {
            counts.offered += 1;
            if fate.is_lost {
                counts.lost += 1;
            } else {
                self.hold(context, packet, &fate, counts);
            }
        }
        self.number += 1;
    }
}
