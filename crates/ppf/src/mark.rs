//! What outer headers say of priority and congestion: DSCP of a bearer's own or copied from the user's packet, and ECN as RFC 6040 has it.

/// Congestion was experienced.
pub(crate) const CE: u8 = 0b11;
const NOT_ECT: u8 = 0b00;
const ECT_0: u8 = 0b10;
const ECT_1: u8 = 0b01;
/// Bits of ECN in a traffic class; those above are the DSCP.
pub(crate) const ECN_MASK: u8 = 0b11;

const V4_HEADER_BYTES: usize = 20;
const V6_HEADER_BYTES: usize = 40;
/// So many bytes of an IPv4 packet hold its traffic class and its checksum.
pub(crate) const V4_MARKED_BYTES: usize = 12;

/// Which DSCP outer headers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marking {
    /// This one, 0 to 63.
    Fixed(u8),
    /// The user's packet's; 0 if that is not of the Internet's.
    Copied,
}

impl Default for Marking {
    fn default() -> Self {
        Marking::Fixed(0)
    }
}

impl Marking {
    const COPIED: u8 = 0xff;

    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Marking::Fixed(dscp) => dscp & 0x3f,
            Marking::Copied => Marking::COPIED,
        }
    }

    pub(crate) fn of_byte(byte: u8) -> Marking {
        match byte {
            Marking::COPIED => Marking::Copied,
            dscp => Marking::Fixed(dscp),
        }
    }
}

/// The traffic class of a user's packet, if it is one of the Internet's and says its length truly.
#[inline]
pub(crate) fn class_of(packet: &[u8]) -> Option<u8> {
    class_of_start(packet, packet.len())
}

/// The same of one that begins with these bytes, and has so many.
#[inline]
pub(crate) fn class_of_start(start: &[u8], bytes: usize) -> Option<u8> {
    let &[first, second, third, fourth, fifth, sixth, ..] = start else {
        return None;
    };
    let word = |high: u8, low: u8| usize::from(u16::from_be_bytes([high, low]));
    let said = word(third, fourth);
    match first >> 4 {
        4 if said == bytes && said >= V4_HEADER_BYTES => Some(second),
        6 if bytes >= V6_HEADER_BYTES && word(fifth, sixth) + V6_HEADER_BYTES == bytes => {
            Some(first << 4 | second >> 4)
        }
        _ => None,
    }
}

/// The traffic class of an outer header for a packet that came in no tunnel: its ECN is the packet's (RFC 6040, 4.1, normal mode).
#[inline]
pub(crate) fn encapsulated(marking: u8, class: Option<u8>) -> u8 {
    dscp(marking, class) | class.unwrap_or(0) & ECN_MASK
}

/// The same for one that came in another tunnel: what that one met stays with it until the packet leaves the last, where it becomes the
/// packet's or drops it (4.2).
#[inline]
pub(crate) fn relayed(marking: u8, outer: u8, class: Option<u8>) -> u8 {
    let ecn = if outer & ECN_MASK == CE {
        CE
    } else {
        class.unwrap_or(outer) & ECN_MASK
    };
    dscp(marking, class) | ecn
}

fn dscp(marking: u8, class: Option<u8>) -> u8 {
    match marking {
        Marking::COPIED => class.unwrap_or(0) & !ECN_MASK,
        dscp => dscp << 2,
    }
}

/// What ECN a packet has that leaves a tunnel (RFC 6040, 4.2, figure 4). None: it is to be dropped, as its sender would not understand that
/// there is congestion.
pub(crate) fn decapsulated(inner: u8, outer: u8) -> Option<u8> {
    match (inner & ECN_MASK, outer & ECN_MASK) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (ECT_0, NOT_ECT) => Some(ECT_0),
        (ECT_1, NOT_ECT | ECT_0) => Some(ECT_1),
        (CE, _) => Some(CE),
        (_, outer) => Some(outer),
    }
}

/// Writes the first bytes of a packet, of which there are 12, with another ECN; returns how many were written.
pub(crate) fn rewrite(packet: &[u8], ecn: u8, to: &mut [u8]) -> Option<usize> {
    let start = packet.get(..V4_MARKED_BYTES)?;
    let to = to.get_mut(..V4_MARKED_BYTES)?;
    to.copy_from_slice(start);
    if start[0] >> 4 == 6 {
        to[1] = start[1] & !(ECN_MASK << 4) | (ecn & ECN_MASK) << 4;
        return Some(V4_MARKED_BYTES);
    }
    to[1] = start[1] & !ECN_MASK | ecn & ECN_MASK;
    // RFC 1624: the sum without the word that was, and with the one that is.
    let word = |bytes: &[u8], at: usize| u32::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let mut sum = (!word(start, 10) & 0xffff) + (!word(start, 0) & 0xffff) + word(to, 0);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    to[10..].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    Some(V4_MARKED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inner::{checksum, v4_packet, v6_packet};

    #[test]
    fn figure_4_of_rfc_6040() {
        // Rows: the packet's; columns: the outer header's, Not-ECT, ECT(0), ECT(1), CE.
        let columns = [NOT_ECT, ECT_0, ECT_1, CE];
        let rows = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE), Some(CE), Some(CE), Some(CE)]),
        ];
        for (inner, wanted) in rows {
            for (outer, wanted) in columns.into_iter().zip(wanted) {
                assert_eq!(
                    decapsulated(inner, outer),
                    wanted,
                    "{inner:02b} {outer:02b}"
                );
            }
        }
    }

    #[test]
    fn a_packet_s_class_is_copied_or_mapped() {
        let v4 = v4_packet([192, 0, 2, 1], [192, 0, 2, 2], 0xba, b"hello");
        let v6 = v6_packet(1, 2, 0xba, b"hello");
        for packet in [&v4, &v6] {
            assert_eq!(class_of(packet), Some(0xba));
            assert_eq!(class_of(&packet[..packet.len() - 1]), None);
            assert_eq!(
                encapsulated(Marking::Copied.to_byte(), class_of(packet)),
                0xba
            );
            let marking = Marking::Fixed(46).to_byte();
            assert_eq!(encapsulated(marking, class_of(packet)), 46 << 2 | 0b10);
            // What the tunnel met goes on.
            assert_eq!(relayed(marking, CE, class_of(packet)), 46 << 2 | CE);
            assert_eq!(relayed(marking, 0, class_of(packet)), 46 << 2 | 0b10);
        }
        assert_eq!(class_of(b"no packet of the Internet's"), None);
        assert_eq!(relayed(0, ECT_0, None), ECT_0);
        assert_eq!(encapsulated(Marking::Copied.to_byte(), None), 0);
    }

    #[test]
    fn a_packet_with_another_ecn_is_right_in_all_else() {
        for class in 0..=255 {
            let v4 = v4_packet([10, class, 2, 1], [192, 0, 2, 2], class, b"hello");
            let v6 = v6_packet(1, 2, class, b"hello");
            for ecn in 0..4 {
                for packet in [&v4, &v6] {
                    let mut changed = packet.clone();
                    assert_eq!(rewrite(packet, ecn, &mut changed), Some(12));
                    assert_eq!(class_of(&changed), Some(class & !3 | ecn));
                    if changed[0] == 0x45 {
                        assert_eq!(checksum(0, &changed[..20]), 0);
                    }
                }
            }
        }
    }
}
