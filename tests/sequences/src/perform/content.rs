//! The bytes that are sent, and whether the bytes received are those.

use super::Context;
use crate::board::Identity;
use crate::plan::Slot;

impl Context {
    /// The next `bytes` bytes of the stream that `slot` sends.
    pub(super) fn content(&self, slot: Slot, bytes: usize) -> Vec<u8> {
        let Some(end) = self.end(slot) else {
            return vec![b'x'; bytes];
        };
        let position = self.board.sent(end);
        (0..bytes as u64)
            .map(|offset| end.byte(position + offset))
            .collect()
    }

    /// Notes bytes that `slot` sent.
    pub(super) fn account_sent(&self, slot: Slot, bytes: usize) {
        if let Some(end) = self.end(slot) {
            self.board.add_sent(end, bytes);
        }
    }

    /// Notes bytes that `end` received.
    pub(super) fn account_received(&self, end: Option<Identity>, bytes: usize) {
        if let Some(end) = end {
            self.board.add_received(end, bytes);
        }
    }

    /// Whether `bytes` is what `end` has to receive next, `ahead` bytes on. What a slot is must be asked before
    /// the call: another thread may replace it meanwhile.
    pub(super) fn judge(&self, end: Option<Identity>, bytes: &[u8], ahead: usize) -> String {
        let Some(end) = end else {
            return format!("of {:#x}", sum(bytes));
        };
        let position = self.board.received(end) + ahead as u64;
        match first_wrong(end.peer(), position, bytes) {
            None => "good".into(),
            Some(index) => format!("odd at {index} {:#x}", sum(bytes)),
        }
    }
}

/// The index of the first byte that is not the one which `sender`'s stream has there.
fn first_wrong(sender: Identity, position: u64, bytes: &[u8]) -> Option<usize> {
    (position..)
        .zip(bytes)
        .position(|(position, byte)| sender.byte(position) != *byte)
}

/// FNV-1a, to tell two wrong contents apart.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| {
        (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}
