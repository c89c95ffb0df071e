//! Frames that can be told from each other, and checked.

/// Where a frame has its number: behind the addresses that others may change.
const NUMBER_AT: usize = 14;

/// The length of an exchanged packet.
pub(crate) fn length(number: u64) -> usize {
    60 + (number * 41 % 1455) as usize
}

/// A broadcast frame with a number in it, and bytes that follow from that.
pub(crate) fn filled(number: u64, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length)
        .map(|at| (number as usize * 7 + at) as u8)
        .collect();
    bytes[..14].copy_from_slice(b"\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5");
    bytes[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// The number in a frame. None: it is too short for one.
pub(crate) fn number_of(bytes: &[u8]) -> Option<u64> {
    let number = bytes.get(NUMBER_AT..)?.first_chunk()?;
    Some(u64::from_be_bytes(*number))
}
