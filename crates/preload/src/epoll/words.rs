//! The hash of a set's tables.

use std::hash::Hasher;

/// For descriptors and data words: numbers of the program's own, of which nobody makes colliding ones.
#[derive(Debug, Default)]
pub(super) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 << 8 | u64::from(*byte));
        }
    }

    #[inline]
    fn write_i32(&mut self, number: i32) {
        self.write_u64(u64::from(number.cast_unsigned()));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // The table takes the place from the low bits and a tag from the high ones.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
