//! Frames that can be told from each other, and checked.
#![allow(dead_code, reason = "each example uses a part of it")]

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

/// Makes an echo request of ICMP in IPv4 its own answer: addresses change places, the kind becomes 0, and the checksum follows.
pub(crate) fn turn_round(head: &mut [u8]) {
    if head.len() < 42 || head[12..14] != [8, 0] || head[23] != 1 || head[34] != 8 {
        return;
    }
    for at in 0..6 {
        head.swap(at, at + 6);
    }
    for at in 26..30 {
        head.swap(at, at + 4);
    }
    head[34] = 0;
    let (sum, carry) = u16::from_be_bytes([head[36], head[37]]).overflowing_add(8 << 8);
    head[36..38].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
}
