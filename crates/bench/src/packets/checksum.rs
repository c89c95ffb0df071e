//! The checksum of the Internet's headers (RFC 1071).

/// The sum of words, of which the last may have one byte. At most 64 KiB are summed up.
pub(super) fn sum_of(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let last = words.remainder().first();
    let last = last.map_or(0, |last| word(*last, 0));
    last + words.map(|pair| word(pair[0], pair[1])).sum::<u32>()
}

pub(super) fn word(high: u8, low: u8) -> u32 {
    u32::from(high) << 8 | u32::from(low)
}

/// The sum of some words, folded, and its complement.
pub(super) fn complement(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}
