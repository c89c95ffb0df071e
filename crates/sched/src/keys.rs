//! Keys of flows, for what packets of a packet core have to tell them apart by. A program may have any other.

use crate::toeplitz::Toeplitz;

/// Of a tunnel's QoS flow: outer addresses are the same for all tunnels between two nodes. Two of them may have one key, and are one flow
/// then, which costs nothing but company.
#[inline]
#[must_use]
pub fn tunnel(teid: u32, qfi: u8) -> u32 {
    // A QFI has six bits, and TEIDs differ in their low ones first.
    teid ^ u32::from(qfi) << 26
}

/// Of the addresses of an IP packet, and of its ports where it has them: what is inside of a tunnel, say. All fragments of a packet have
/// the addresses' alone, as only the first has ports. None: it is no IP packet, or cut off.
#[must_use]
pub fn addresses(hash: &Toeplitz, packet: &[u8]) -> Option<u32> {
    match packet.first()? >> 4 {
        4 => {
            let header_bytes = usize::from(packet[0] & 15) * 4;
            let addresses = packet.get(12..20)?;
            let is_fragment = packet[6] & 0x3f != 0 || packet[7] != 0;
            if header_bytes < 20 || is_fragment || !has_ports(packet[9]) {
                return Some(hash.hash(addresses));
            }
            Some(of(
                hash,
                addresses,
                packet.get(header_bytes..header_bytes + 4),
            ))
        }
        6 => {
            let addresses = packet.get(8..40)?;
            // Behind an extension header ports are not looked for: it may be a fragment's.
            let ports = packet.get(40..44).filter(|_| has_ports(packet[6]));
            Some(of(hash, addresses, ports))
        }
        _ => None,
    }
}

/// TCP, UDP, and SCTP.
fn has_ports(protocol: u8) -> bool {
    matches!(protocol, 6 | 17 | 132)
}

fn of(hash: &Toeplitz, addresses: &[u8], ports: Option<&[u8]>) -> u32 {
    let mut input = [0; 36];
    let ports = ports.unwrap_or_default();
    let bytes = addresses.len() + ports.len();
    input[..addresses.len()].copy_from_slice(addresses);
    input[addresses.len()..bytes].copy_from_slice(ports);
    hash.hash(&input[..bytes])
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::toeplitz::{STANDARD_KEY, SYMMETRIC_KEY};

    fn v4(protocol: u8, fragment: u16) -> Vec<u8> {
        let mut packet = vec![0x46, 0, 0, 32, 0, 1];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, protocol, 0, 0, 66, 9, 149, 187, 161, 142, 100, 80]);
        // Four bytes of options; ports 2794 and 1766.
        packet.extend([1, 1, 1, 0, 0x0a, 0xea, 0x06, 0xe6, 0, 0, 0, 0]);
        packet
    }

    #[test]
    fn the_specification_s_example_has_its_hash() {
        let hash = Toeplitz::new(&STANDARD_KEY);
        let (by_all, by_addresses) = (Some(0x51cc_c178), Some(0x323e_8fc2));
        assert_eq!(addresses(&hash, &v4(17, 0)), by_all);
        assert_eq!(
            addresses(&hash, &v4(6, 0x4000)),
            by_all,
            "it may not be fragmented"
        );
        assert_eq!(addresses(&hash, &v4(1, 0)), by_addresses);
        for fragment in [0x2000, 0x2001, 0x0001, 0x1fff, 0x0100] {
            assert_eq!(addresses(&hash, &v4(17, fragment)), by_addresses);
        }
    }

    #[test]
    fn both_directions_have_one_key_and_what_is_cut_off_none_or_the_addresses() {
        let hash = Toeplitz::new(&SYMMETRIC_KEY);
        let mut packet = vec![0x60, 0, 0, 0, 0, 8, 17, 64];
        packet.extend((0..32).map(|at| at * 7));
        let mut back = packet.clone();
        back[8..].rotate_left(16);
        packet.extend([1, 2, 3, 4]);
        back.extend([3, 4, 1, 2]);
        let key = addresses(&hash, &packet);
        assert!(key.is_some());
        assert_eq!(addresses(&hash, &back), key);
        assert_eq!(addresses(&hash, &packet[..39]), None);
        assert!(addresses(&hash, &packet[..43]).is_some());
        assert_eq!(addresses(&hash, &[]), None);
        assert_eq!(addresses(&hash, &[0x55; 60]), None);
        for length in 0..44 {
            let _ = addresses(&hash, &v4(17, 0)[..length.min(32)]);
        }
    }

    #[test]
    fn bearers_of_one_tunnel_are_apart() {
        assert_ne!(tunnel(7, 1), tunnel(7, 2));
        assert_ne!(tunnel(7, 1), tunnel(8, 1));
    }
}
