//! In-flight memory: one record for each ring.
//!
//! ```text
//!   split   features u64 | version u16 | size u16 | last batch u16 | used u16 | entries of 16 bytes …
//!   packed  features u64 | version u16 | size u16 | free u16 | old free u16 | used u16 | old used u16
//!           | used wrap u8 | old used wrap u8 | to 32 bytes | entries of 32 bytes …
//! ```
//!
//! An entry begins with a byte that is 1 while its chain is taken. Whoever gives chains back in the order that they came in needs none of
//! them: what it has taken is what the ring has from the used position on.

/// In bytes from a record's start: the layout's version, 0 until it is in use.
pub const VERSION: usize = 8;
/// The only one.
pub const VERSION_NUMBER: u16 = 1;
/// How many entries there are.
pub const SIZE: usize = 10;
/// Split: the used ring's index, after everything of the last batch was written.
pub const SPLIT_USED: usize = 14;
/// Packed, in eight bytes: the slot where the next chain is given back, and the same before the last batch was, of two bytes each, little
/// endian; then the wrap counter of either, of one byte each.
pub const PACKED_POSITIONS: usize = 16;
/// Packed, in an entry: the next free one.
pub const PACKED_ENTRY_NEXT: usize = 2;

/// Where entries begin, and the size of each.
#[must_use]
pub const fn entries(is_packed: bool) -> (usize, usize) {
    if is_packed { (32, 32) } else { (16, 16) }
}

/// Bytes of a ring's record, which begins on a line.
#[must_use]
pub const fn record_bytes(is_packed: bool, size: u16) -> usize {
    let (first, each) = entries(is_packed);
    (first + each * size as usize).next_multiple_of(64)
}
