//! Which bearers have tunnels that peers say they have not: looked for a few slots at a time, and for many tunnels at once.
//!
//! An index by the peers' numbers would cost each of a million bearers as much as half of its line, for what seldom happens; and a peer
//! that forgot all its tunnels says so for each.

use std::collections::HashMap;

use super::Table;
use super::users::Hash;
use crate::bearer::{BearerId, Side};
use crate::event::Event;
use crate::paths::PathId;

/// Tunnels that are looked for, at most. Peers say it again when they get more.
const WANTED_MAX: usize = 1024;
/// Slots that are looked at in one step.
const STEP: usize = 256;

/// What is looked for, and where.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// A path and a tunnel on it, and how many slots are still to be looked at.
    wanted: HashMap<u64, usize, Hash>,
    at: usize,
    /// So many slots there were at the last look.
    slots: usize,
}

fn key(path: PathId, teid: u32) -> u64 {
    u64::from(path.0) << 32 | u64::from(teid)
}

impl Search {
    pub(crate) fn is_over(&self) -> bool {
        self.wanted.is_empty()
    }
}

impl Table {
    /// Begins to look for a tunnel, if there is room for one more.
    pub(crate) fn look_for(&mut self, path: PathId, teid: u32) -> bool {
        if self.search.wanted.len() >= WANTED_MAX {
            return false;
        }
        let slots = self.slots.end();
        if self.search.is_over() {
            self.search.slots = slots;
        }
        self.search.wanted.entry(key(path, teid)).or_insert(slots);
        true
    }

    /// Looks on.
    pub(crate) fn look_on(&mut self) {
        if self.search.is_over() {
            return;
        }
        let slots = self.slots.end();
        // Those that are new stand before others that are still to be looked at.
        let grown = slots.saturating_sub(self.search.slots);
        if grown > 0 {
            self.search.slots = slots;
            let wanted = self.search.wanted.values_mut();
            wanted.for_each(|left| *left += grown);
        }
        for _ in 0..STEP.min(slots) {
            let at = self.search.at % slots;
            self.search.at = at + 1;
            self.look_at(at);
        }
        self.search.wanted.retain(|_, left| {
            *left = left.saturating_sub(STEP);
            *left > 0
        });
    }

    pub(super) fn look_at(&mut self, slot: usize) {
        let Some(hot) = self.slots.get_mut(slot).filter(|hot| hot.is_there()) else {
            return;
        };
        let id = BearerId::new(slot, hot.generation.into());
        for side in Side::BOTH {
            let is_tunnel = hot.has_peer(side) && !hot.is_plain(side);
            if is_tunnel
                && self
                    .search
                    .wanted
                    .contains_key(&key(hot.path(side), hot.teid(side)))
                && hot.lose(side)
            {
                self.events.push(Event::Lost(id, side));
            }
        }
    }
}
