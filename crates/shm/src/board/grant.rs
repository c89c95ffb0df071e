//! What the agent grants to an end.

use crate::atomic::{AtomicU64, Ordering};

/// How much of a large ring one connection may use: a binary logarithm of bytes in the low half, and in the high half the connection's
/// mark. The agent knows that a row is a connection's when it looks, and writes a moment later: then the row may be another's, which has
/// been granted nothing.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Grant(AtomicU64);

impl Grant {
    /// Never that of a row which nothing was granted to.
    const fn mark(connection_id: u64) -> u64 {
        (connection_id & 0x7fff_ffff) | 0x8000_0000
    }

    /// What has been granted to this connection; zero: only the small ring.
    #[inline]
    pub fn log2(&self, connection_id: u64) -> u32 {
        // Acquire: pairs with the Release of `give`.
        let word = self.0.load(Ordering::Acquire);
        if word >> 32 == Grant::mark(connection_id) {
            word as u32
        } else {
            0
        }
    }

    /// Grants it so much.
    pub fn give(&self, connection_id: u64, log2: u32) {
        let word = Grant::mark(connection_id) << 32 | u64::from(log2);
        // Release: pairs with the Acquire of whoever opens, or uses, a larger window.
        self.0.store(word, Ordering::Release);
    }

    /// For a new connection.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_grant_that_comes_late_is_nothing_to_the_next_connection_of_the_row() {
        let grant = Grant::default();
        assert_eq!((grant.log2(0), grant.log2(7)), (0, 0));
        grant.give(7, 16);
        assert_eq!((grant.log2(7), grant.log2(8)), (16, 0));
        grant.clear();
        assert_eq!(grant.log2(8), 0);
        // The agent looked before, and writes now.
        grant.give(7, 12);
        assert_eq!(grant.log2(8), 0);
        grant.give(8, 13);
        assert_eq!((grant.log2(8), grant.log2(7)), (13, 0));
    }
}
