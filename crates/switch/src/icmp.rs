//! "Too big": what is answered to who sent a packet that must not be cut and that does not fit where it would go.
//!
//! A switch has no address of the Internet. The answer is from whom the packet was for, as Linux answers for a tunnel below a bridge:
//! whoever sent it takes it for the answer of its path.

use millrace_port::HEAD_BYTES;

use crate::checksum::Sum;
use crate::parse::{
    Frame, PROTOCOL_ICMP, PROTOCOL_ICMPV6, Packet, TAG_AT, TYPE_IPV4, TYPE_IPV6, TYPE_VLAN, Version,
};

/// The least MTU that may be told (RFC 791, RFC 8200).
const LEAST_V4: u16 = 68;
const LEAST_V6: u16 = 1280;
const HOPS: u8 = 64;

/// A frame that is made here; it fits into a head.
#[derive(Debug)]
pub struct Answer {
    bytes: [u8; HEAD_BYTES],
    length: usize,
}

impl Answer {
    /// All of it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn put(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(HEAD_BYTES - self.length);
        self.bytes[self.length..self.length + count].copy_from_slice(&bytes[..count]);
        self.length += count;
    }
}

/// The answer to a packet with these first bytes, at most [`HEAD_BYTES`]. None: it gets none, because it may be cut, is an error itself, or
/// is no question of one station to another (RFC 1122, section 3.2.2; RFC 4443, section 2.4).
#[must_use]
pub fn too_big(head: &[u8], frame: &Frame, mtu: u16) -> Option<Answer> {
    let packet = Packet::parse(head)?;
    if !packet.whole || frame.destination.is_group() || !may_be_answered(head, &packet) {
        return None;
    }
    let mut answer = Answer {
        bytes: [0; HEAD_BYTES],
        length: 0,
    };
    answer.put(&frame.source.bytes());
    answer.put(&frame.destination.bytes());
    if let Some(tag) = frame.tag {
        answer.put(&TYPE_VLAN.to_be_bytes());
        answer.put(&tag.to_be_bytes());
    }
    debug_assert!(answer.length == TAG_AT || answer.length == TAG_AT + 4);
    match packet.version {
        Version::V4 => too_big_v4(&mut answer, head, &packet, mtu.max(LEAST_V4)),
        Version::V6 => too_big_v6(&mut answer, head, &packet, mtu.max(LEAST_V6)),
    }
    Some(answer)
}

fn may_be_answered(head: &[u8], packet: &Packet) -> bool {
    let is_later_fragment = packet.fragment && packet.ports.is_none();
    let kind = head.get(packet.payload_at).copied();
    let is_error = match packet.protocol {
        // Errors, and what is not known.
        PROTOCOL_ICMP => !matches!(kind, Some(0 | 8 | 13 | 14)),
        PROTOCOL_ICMPV6 => kind.is_none_or(|kind| kind < 128),
        _ => false,
    };
    let is_one = |[high, low]: [u64; 2]| match packet.version {
        // Neither of a group, nor of all, nor of nobody.
        Version::V4 => low != 0 && low >> 28 < 0xe,
        Version::V6 => high >> 56 != 0xff && (high, low) != (0, 0),
    };
    !is_later_fragment && !is_error && is_one(packet.source) && is_one(packet.destination)
}

/// RFC 792, type 3, code 4, with RFC 1191's MTU: then the header and eight bytes.
fn too_big_v4(answer: &mut Answer, head: &[u8], packet: &Packet, mtu: u16) {
    let end = (packet.payload_at + 8).min(head.len());
    let quoted = &head[packet.at..end.max(packet.at)];
    let total = 20 + 8 + quoted.len();
    answer.put(&TYPE_IPV4.to_be_bytes());
    let at = answer.length;
    answer.put(&[0x45, 0]);
    // At most 96.
    answer.put(&(total as u16).to_be_bytes());
    answer.put(&[0, 0, 0, 0, HOPS, PROTOCOL_ICMP, 0, 0]);
    answer.put(&head[packet.at + 16..packet.at + 20]);
    answer.put(&head[packet.at + 12..packet.at + 16]);
    answer.put(&[3, 4, 0, 0, 0, 0]);
    answer.put(&mtu.to_be_bytes());
    answer.put(quoted);
    let mut sum = Sum::default();
    sum.add(&answer.bytes[at..at + 20]);
    answer.bytes[at + 10..at + 12].copy_from_slice(&sum.complement().to_be_bytes());
    let mut sum = Sum::default();
    sum.add(&answer.bytes[at + 20..answer.length]);
    answer.bytes[at + 22..at + 24].copy_from_slice(&sum.complement().to_be_bytes());
}

/// RFC 4443, section 3.2, with as much of the packet as there is room for in a head.
fn too_big_v6(answer: &mut Answer, head: &[u8], packet: &Packet, mtu: u16) {
    answer.put(&TYPE_IPV6.to_be_bytes());
    let at = answer.length;
    let room = HEAD_BYTES - at - 48;
    let end = (packet.at + room).min(head.len());
    let quoted = &head[packet.at..end];
    answer.put(&[0x60, 0, 0, 0]);
    // Less than a head.
    answer.put(&((8 + quoted.len()) as u16).to_be_bytes());
    answer.put(&[PROTOCOL_ICMPV6, HOPS]);
    answer.put(&head[packet.at + 24..packet.at + 40]);
    answer.put(&head[packet.at + 8..packet.at + 24]);
    answer.put(&[2, 0, 0, 0, 0, 0]);
    answer.put(&mtu.to_be_bytes());
    answer.put(quoted);
    let mut sum = Sum::default();
    sum.add(&answer.bytes[at + 8..answer.length]);
    sum.add_word((answer.length - at - 40) as u16);
    sum.add_word(PROTOCOL_ICMPV6.into());
    answer.bytes[at + 42..at + 44].copy_from_slice(&sum.complement().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(version: Version, flags: u8, protocol: u8, kind: u8) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 10];
        match version {
            Version::V4 => {
                bytes.extend([8, 0, 0x45, 0, 5, 0xdc, 0, 1, flags, 0, 64, protocol, 0, 0]);
                bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            }
            Version::V6 => {
                bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 5, 0xb4, protocol, 64]);
                bytes.extend([0xfd; 16]);
                bytes.extend([0xfc; 16]);
            }
        }
        bytes.extend([kind, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        bytes.resize(128, 0x5a);
        bytes
    }

    fn answer(bytes: &[u8], mtu: u16) -> Option<Vec<u8>> {
        let frame = Frame::parse(bytes).unwrap();
        too_big(bytes, &frame, mtu).map(|answer| answer.as_bytes().to_vec())
    }

    fn folded(parts: &[&[u8]]) -> u16 {
        let mut sum = Sum::default();
        parts.iter().for_each(|part| sum.add(part));
        sum.folded()
    }

    #[test]
    fn ipv4_is_told_the_mtu() {
        let asked = frame(Version::V4, 0x40, 6, 0);
        let told = answer(&asked, 1400).unwrap();
        assert_eq!(told[..12], [&asked[6..12], &asked[..6]].concat());
        let packet = Packet::parse(&told).unwrap();
        assert_eq!((packet.at, packet.length), (18, told.len() - 18));
        assert_eq!(packet.source, [0, 0x0a00_0002]);
        assert_eq!(told[38..40], [3, 4]);
        assert_eq!(told[44..46], 1400u16.to_be_bytes());
        assert_eq!(told[46..], asked[18..18 + 28]);
        assert_eq!(folded(&[&told[18..38]]), 0xffff);
        assert_eq!(folded(&[&told[38..]]), 0xffff);
    }

    #[test]
    fn ipv6_is_told_the_mtu_and_not_less_than_the_least() {
        let asked = frame(Version::V6, 0, 17, 0);
        let told = answer(&asked, 600).unwrap();
        let packet = Packet::parse(&told).unwrap();
        assert_eq!((packet.protocol, packet.length), (58, told.len() - 18));
        assert_eq!(told[58..60], [2, 0]);
        assert_eq!(told[64..66], 1280u16.to_be_bytes());
        assert_eq!(told[66..], asked[18..18 + told.len() - 66]);
        let length = ((told.len() - 58) as u16).to_be_bytes();
        assert_eq!(folded(&[&told[26..], &length, &[0, 58]]), 0xffff);
    }

    #[test]
    fn who_need_not_be_told_is_not() {
        assert!(
            answer(&frame(Version::V4, 0, 6, 0), 1400).is_none(),
            "may be cut"
        );
        assert!(
            answer(&frame(Version::V4, 0x40, 1, 8), 1400).is_some(),
            "an echo"
        );
        assert!(
            answer(&frame(Version::V4, 0x40, 1, 3), 1400).is_none(),
            "an error"
        );
        assert!(
            answer(&frame(Version::V6, 0, 58, 2), 1400).is_none(),
            "an error"
        );
        let mut group = frame(Version::V4, 0x40, 6, 0);
        group[34] = 0xe0;
        assert!(answer(&group, 1400).is_none(), "for a group");
        let mut group = frame(Version::V4, 0x40, 6, 0);
        group[0] = 0x01;
        assert!(answer(&group, 1400).is_none(), "to a group's MAC address");
    }
}
