//! What a message says: whose it is and its number, and bytes that follow from both, so that one that is torn shows.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Messages of one publisher fall into so many keys.
pub const KEYS: u64 = 16;
/// Of the long ones.
static LONGEST: AtomicU64 = AtomicU64::new(12_000);

/// From now on long ones are so long that one fills a good part of a pool.
pub fn make_long() {
    LONGEST.store(3_000_000, Relaxed);
}

/// Spreads a number over all bits (SplitMix64's finalizer, Steele et al. 2014).
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The length of a message in bytes: mostly short, some long.
pub fn bytes_of(whose: u64, number: u64) -> usize {
    let roll = mix(whose ^ number);
    let limit = if roll & 7 == 0 {
        LONGEST.load(Relaxed)
    } else {
        200
    };
    16 + (roll >> 8) as usize % limit as usize
}

/// Writes a message of this length.
pub fn write(whose: u64, number: u64, bytes: &mut [u8]) {
    let mut state = mix(whose).wrapping_add(number);
    let mut words = [whose, number].into_iter();
    for place in bytes.chunks_mut(8) {
        let word = words.next().unwrap_or_else(|| {
            state = state
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e_f767_814f);
            state ^ (state >> 29)
        });
        place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
    }
}

/// Its number, of a message of this publisher that is whole.
pub fn check(whose: u64, bytes: &[u8]) -> Result<u64, String> {
    let word = |at: usize| {
        bytes
            .get(at..at + 8)
            .and_then(|word| word.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    };
    let number = word(8);
    let wanted = bytes_of(whose, number);
    if word(0) != whose || bytes.len() != wanted {
        let (says, length) = (word(0), bytes.len());
        return Err(format!(
            "{whose:016x} sends {length} bytes of {says:016x}, number {number}: {wanted} are right"
        ));
    }
    let mut expected = vec![0; wanted];
    write(whose, number, &mut expected);
    match expected.iter().zip(bytes).position(|(a, b)| a != b) {
        None => Ok(number),
        Some(at) => Err(format!(
            "{whose:016x}, number {number}: byte {at} of {wanted} is wrong"
        )),
    }
}

/// What a server replies.
pub fn hash(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|word| {
        let mut whole = [0; 8];
        whole[..word.len()].copy_from_slice(word);
        u64::from_le_bytes(whole)
    });
    words.fold(bytes.len() as u64, |hash, word| mix(hash ^ word))
}
