//! Where something is in a packed ring.

use millrace_wire::virtio::{DESC_AVAIL, DESC_USED, WRAP};

/// A descriptor's number, and in which turn: the wrap counter changes each time that the ring begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) slot: u16,
    pub(crate) wrap: bool,
}

impl Position {
    /// Of a ring that has not been used yet.
    pub(crate) const BEGIN: Position = Position {
        slot: 0,
        wrap: true,
    };

    /// As messages and events have it.
    pub(crate) fn from_word(word: u16) -> Position {
        Position {
            slot: word & !WRAP,
            wrap: word & WRAP != 0,
        }
    }

    /// The same in reverse.
    pub(crate) fn word(self) -> u16 {
        self.slot | if self.wrap { WRAP } else { 0 }
    }

    /// So many descriptors later, at most a turn.
    #[inline]
    pub(crate) fn after(self, count: u16, size: u16) -> Position {
        let slot = u32::from(self.slot) + u32::from(count);
        match slot.checked_sub(u32::from(size)) {
            None => Position {
                slot: slot as u16,
                wrap: self.wrap,
            },
            Some(slot) => Position {
                slot: slot as u16,
                wrap: !self.wrap,
            },
        }
    }

    /// Whether flags there say that the descriptor is the device's.
    #[inline]
    pub(crate) fn is_available(self, flags: u16) -> bool {
        let (available, used) = (flags & DESC_AVAIL != 0, flags & DESC_USED != 0);
        available == self.wrap && used != self.wrap
    }

    /// Whether flags there say that the descriptor is the driver's again.
    #[inline]
    pub(crate) fn is_used(self, flags: u16) -> bool {
        let (available, used) = (flags & DESC_AVAIL != 0, flags & DESC_USED != 0);
        available == self.wrap && used == self.wrap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_go_round() {
        let mut position = Position::BEGIN;
        for turn in 0..4 {
            for slot in (0..6).step_by(2) {
                let wrap = turn % 2 == 0;
                assert_eq!(position, Position { slot, wrap });
                assert_eq!(Position::from_word(position.word()), position);
                position = position.after(2, 6);
            }
        }
        assert_eq!(Position::BEGIN.after(6, 6).word(), 0);
        let given = DESC_AVAIL;
        assert!(Position::BEGIN.is_available(given) && !Position::BEGIN.is_used(given));
        assert!(Position::BEGIN.is_used(DESC_AVAIL | DESC_USED));
        assert!(!Position::BEGIN.is_available(0) && !Position::BEGIN.is_used(0));
    }
}
