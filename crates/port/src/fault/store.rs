//! Packets that are held back, at most so many.

use std::time::Instant;

use crate::burst::Packet;
use crate::offload::Offload;

/// When a packet goes on: when this time has come, or a packet of a higher number than this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) at: Instant,
    pub(super) behind: u64,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    pub(super) offload: Offload,
    pub(super) is_doubled: bool,
    due: Due,
    /// How many were held before.
    order: u64,
}

/// The packets. Those that went on leave their memory to the next, so that in the long run nothing is allocated.
///
/// Who is due is found by looking at all of them: there are few, and this is for tests.
#[derive(Debug)]
pub(super) struct Store {
    held: Vec<Held>,
    spare: Vec<Vec<u8>>,
    room: usize,
    order: u64,
    /// The earliest of all that are held.
    next_at: Option<Instant>,
    next_behind: u64,
}

impl Store {
    pub(super) fn new(room: usize) -> Store {
        Store {
            held: Vec::with_capacity(room),
            spare: Vec::with_capacity(room),
            room,
            order: 0,
            next_at: None,
            next_behind: u64::MAX,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.held.len() < self.room
    }

    /// When the next is due, if no packets come before.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.next_at
    }

    /// The number of the packet behind which the next is due.
    pub(super) fn next_behind(&self) -> u64 {
        self.next_behind
    }

    /// Holds a copy of a packet, of which `change` makes what it is to be. There is room.
    pub(super) fn hold(
        &mut self,
        packet: Packet<'_>,
        is_doubled: bool,
        due: Due,
        change: impl FnOnce(&mut [u8]),
    ) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        packet.append_to(&mut bytes);
        change(&mut bytes);
        self.held.push(Held {
            bytes,
            offload: packet.offload(),
            is_doubled,
            due,
            order: self.order,
        });
        self.order += 1;
        self.next_at = Some(self.next_at.map_or(due.at, |at| at.min(due.at)));
        self.next_behind = self.next_behind.min(due.behind);
    }

    /// The place of the next that is due, when the last packet that came had this number.
    pub(super) fn due(&self, now: Instant, last: Option<u64>) -> Option<usize> {
        let has_come = |due: &Due| due.at <= now || last.is_some_and(|last| due.behind <= last);
        let earliest = Due {
            at: self.next_at?,
            behind: self.next_behind,
        };
        if !has_come(&earliest) {
            return None;
        }
        let all = self.held.iter().enumerate();
        let due = all.filter(|(_, held)| has_come(&held.due));
        let first = due.min_by_key(|(_, held)| (held.due.at, held.order));
        first.map(|(place, _)| place)
    }

    pub(super) fn get(&self, place: usize) -> &Held {
        &self.held[place]
    }

    pub(super) fn get_mut(&mut self, place: usize) -> &mut Held {
        &mut self.held[place]
    }

    /// Forgets one that has gone on.
    pub(super) fn forget(&mut self, place: usize) {
        let held = self.held.swap_remove(place);
        self.spare.push(held.bytes);
        let all = || self.held.iter().map(|held| held.due);
        self.next_at = all().map(|due| due.at).min();
        self.next_behind = all().map(|due| due.behind).min().unwrap_or(u64::MAX);
    }
}
