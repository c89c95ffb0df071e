//! Congestion that a tunnel's packets meet is told to what they carry (RFC 6040).

use crate::offload::set_ipv4_byte;
use crate::parse::{Packet, Version};

const MASK: u8 = 3;
const NOT_CAPABLE: u8 = 0;
const CAPABLE_1: u8 = 1;
const CAPABLE_0: u8 = 2;
const CONGESTED: u8 = 3;

/// What the outer header says of a frame: as the inner one, and nothing where there is none (section 4.1, normal mode).
pub(super) fn outer(head: &[u8]) -> u8 {
    Packet::parse(head).map_or(NOT_CAPABLE, |packet| packet.traffic_class & MASK)
}

/// What the inner header says afterwards (section 4.2, figure 4). None: the packet is dropped.
fn combined(inner: u8, outer: u8) -> Option<u8> {
    match (inner & MASK, outer & MASK) {
        (NOT_CAPABLE, CONGESTED) => None,
        (NOT_CAPABLE, _) => Some(NOT_CAPABLE),
        (CONGESTED, _) | (_, CONGESTED) => Some(CONGESTED),
        (CAPABLE_0, CAPABLE_1) => Some(CAPABLE_1),
        (inner, _) => Some(inner),
    }
}

/// Changes a frame that came with an outer header of this class. False: it is to be dropped. What carries no packet of the Internet cannot
/// say that there was congestion, and is no worse for it.
pub(super) fn decapsulate(frame: &mut [u8], outer: u8) -> bool {
    if outer & MASK == NOT_CAPABLE || outer & MASK == CAPABLE_0 {
        return true;
    }
    let Some(packet) = Packet::parse(frame) else {
        return true;
    };
    let Some(inner) = combined(packet.traffic_class, outer) else {
        return false;
    };
    let class = packet.traffic_class & !MASK | inner;
    if class == packet.traffic_class {
        return true;
    }
    match packet.version {
        Version::V4 => set_ipv4_byte(frame, packet.at, 1, class),
        Version::V6 => {
            let byte = &mut frame[packet.at + 1];
            *byte = *byte & 0x0f | class << 4;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_rfc() {
        // Rows: the inner header; columns: Not-ECT, ECT(0), ECT(1), CE.
        let outer = [NOT_CAPABLE, CAPABLE_0, CAPABLE_1, CONGESTED];
        let table = [
            (NOT_CAPABLE, [Some(0), Some(0), Some(0), None]),
            (CAPABLE_0, [Some(2), Some(2), Some(1), Some(3)]),
            (CAPABLE_1, [Some(1), Some(1), Some(1), Some(3)]),
            (CONGESTED, [Some(3), Some(3), Some(3), Some(3)]),
        ];
        for (inner, expected) in table {
            assert_eq!(outer.map(|outer| combined(inner, outer)), expected);
        }
    }

    #[test]
    fn a_header_says_what_the_table_says_and_its_checksum_is_right() {
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0xba, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let sum = |frame: &[u8]| {
            let mut sum = crate::checksum::Sum::default();
            sum.add(&frame[14..34]);
            sum
        };
        let checksum = sum(&frame).complement();
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        assert!(decapsulate(&mut frame, CONGESTED));
        assert_eq!((frame[15], sum(&frame).folded()), (0xbb, 0xffff));
        frame[15] = 0xb8;
        assert!(!decapsulate(&mut frame, CONGESTED) && decapsulate(&mut frame, CAPABLE_1));
        let mut other = vec![0; 60];
        assert!(decapsulate(&mut other, CONGESTED));
        let mut v6 = vec![0; 12];
        v6.extend([0x86, 0xdd, 0x6b, 0xa5, 0, 0, 0, 0, 59, 64]);
        v6.extend([0; 32]);
        assert!(decapsulate(&mut v6, CONGESTED));
        assert_eq!(v6[14..16], [0x6b, 0xb5]);
    }
}
