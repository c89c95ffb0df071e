//! What a host says by ICMP: echoes (RFC 792, RFC 4443), and the neighbour discovery of IPv6 (RFC 4861).

use std::net::{IpAddr, Ipv6Addr};

use crate::checksum::{Sum, adjusted};
use crate::ethernet::Mac;
use crate::ip::{ICMPV6, pseudo_sum};

/// Bytes of an echo's header.
pub(crate) const ECHO_BYTES: usize = 8;
/// Bytes of a solicitation or advertisement of ours, with its option.
pub(crate) const NEIGHBOUR_BYTES: usize = 32;
/// What neighbour discovery has as its hops: nobody outside of the link can say that.
pub(crate) const NEIGHBOUR_HOPS: u8 = 255;

const ECHO: [u8; 2] = [8, 128];
const ECHO_REPLY: [u8; 2] = [0, 129];
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options with a link-layer address: of a solicitation's sender, of an advertisement's target.
const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;
/// Of an advertisement: it was asked for; what was known before counts no more.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// The header that answers an echo whose header is this; `is_v6`: of ICMP for IPv6. Its checksum is right if that of the question was.
/// None: it is no question.
pub(crate) fn answer_echo(header: [u8; ECHO_BYTES], is_v6: bool) -> Option<[u8; ECHO_BYTES]> {
    let place = usize::from(is_v6);
    if header[0] != ECHO[place] || header[1] != 0 {
        return None;
    }
    let mut answer = header;
    answer[0] = ECHO_REPLY[place];
    let before = u16::from_be_bytes([header[2], header[3]]);
    let word = |kind: u8| u16::from(kind) << 8;
    // Addresses change places, which no sum sees.
    let after = adjusted(before, word(header[0]), word(answer[0]));
    answer[2..4].copy_from_slice(&after.to_be_bytes());
    Some(answer)
}

/// A message of neighbour discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neighbour {
    /// It asks; otherwise it answers.
    pub(crate) is_solicitation: bool,
    /// Whose station is asked for, or told.
    pub(crate) target: Ipv6Addr,
    /// The asker's station, or the target's, where it is said.
    pub(crate) mac: Option<Mac>,
    /// Of an answer: it was asked for.
    pub(crate) is_solicited: bool,
    /// Of an answer: it is right also where another station was known.
    pub(crate) overrides: bool,
}

impl Neighbour {
    /// The message that a packet has, all of whose bytes are here, from its ICMP header on. None: it is not what RFC 4861, 7.1 asks for.
    pub(crate) fn parse(
        bytes: &[u8],
        source: Ipv6Addr,
        destination: Ipv6Addr,
        hops: u8,
    ) -> Option<Neighbour> {
        let (fixed, options) = bytes.split_first_chunk::<24>()?;
        if hops != NEIGHBOUR_HOPS || fixed[1] != 0 || !is_right(bytes, source, destination) {
            return None;
        }
        let is_solicitation = match fixed[0] {
            SOLICITATION => true,
            ADVERTISEMENT => false,
            _ => return None,
        };
        let mut octets = [0; 16];
        octets.copy_from_slice(&fixed[8..24]);
        let target = Ipv6Addr::from(octets);
        let wanted = if is_solicitation {
            SOURCE_MAC
        } else {
            TARGET_MAC
        };
        let mac = find_mac(options, wanted)?;
        let is_unspecified = source.is_unspecified();
        // Who has no address yet cannot say a station; an answer to a group was not asked for by it.
        let is_solicited = !is_solicitation && fixed[4] & SOLICITED != 0;
        let is_wrong = target.is_multicast()
            || is_solicitation && is_unspecified && mac.is_some()
            || is_solicitation && is_unspecified && destination != solicited_group(target)
            || is_solicited && destination.is_multicast();
        (!is_wrong).then_some(Neighbour {
            is_solicitation,
            target,
            mac,
            is_solicited,
            overrides: !is_solicitation && fixed[4] & OVERRIDE != 0,
        })
    }

    /// The message, which goes from `source` to `destination`.
    pub(crate) fn emit(&self, source: Ipv6Addr, destination: Ipv6Addr) -> [u8; NEIGHBOUR_BYTES] {
        let mut bytes = [0; NEIGHBOUR_BYTES];
        bytes[0] = ADVERTISEMENT;
        bytes[24] = TARGET_MAC;
        if self.is_solicitation {
            bytes[0] = SOLICITATION;
            bytes[24] = SOURCE_MAC;
        } else {
            let bit = |bit: u8, is_set: bool| if is_set { bit } else { 0 };
            bytes[4] = bit(OVERRIDE, self.overrides) | bit(SOLICITED, self.is_solicited);
        }
        bytes[8..24].copy_from_slice(&self.target.octets());
        bytes[25] = 1;
        bytes[26..32].copy_from_slice(&self.mac.unwrap_or_default().0);
        let mut sum = pseudo_sum(source.into(), destination.into(), ICMPV6, NEIGHBOUR_BYTES);
        sum.add(&bytes);
        bytes[2..4].copy_from_slice(&sum.complement().to_be_bytes());
        bytes
    }
}

fn is_right(bytes: &[u8], source: Ipv6Addr, destination: Ipv6Addr) -> bool {
    let mut sum: Sum = pseudo_sum(
        IpAddr::V6(source),
        IpAddr::V6(destination),
        ICMPV6,
        bytes.len(),
    );
    sum.add(bytes);
    sum.folded() == 0xffff
}

/// The station that options name, if they do. None: one of them cannot be.
fn find_mac(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while let Some((&kind, _)) = options.split_first() {
        let units = usize::from(*options.get(1)?);
        if units == 0 {
            return None;
        }
        let (option, rest) = options.split_at_checked(units * 8)?;
        if kind == wanted && units == 1 {
            let mut octets = [0; 6];
            octets.copy_from_slice(&option[2..8]);
            found = Some(Mac(octets));
        }
        options = rest;
    }
    Some(found.filter(|mac| !mac.is_group()))
}

/// The group that an address's owner listens to (RFC 4291, 2.7.1).
pub(crate) fn solicited_group(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xff, 0x02]);
    octets[11..].copy_from_slice(&[1, 0xff, a, b, c]);
    Ipv6Addr::from(octets)
}

/// The station of a group (RFC 2464, 7).
pub(crate) fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Ipv6Addr {
        "2001:db8::1".parse().unwrap()
    }

    fn other() -> Ipv6Addr {
        "2001:db8::2:3:4".parse().unwrap()
    }

    #[test]
    fn a_message_is_parsed_as_it_was_written() {
        for is_solicitation in [true, false] {
            let message = Neighbour {
                is_solicitation,
                target: other(),
                mac: Some(Mac([2, 0, 0, 0, 0, 9])),
                is_solicited: !is_solicitation,
                overrides: !is_solicitation,
            };
            let bytes = message.emit(own(), other());
            let parse = |bytes: &[u8], hops| Neighbour::parse(bytes, own(), other(), hops);
            assert_eq!(parse(&bytes, NEIGHBOUR_HOPS), Some(message));
            assert_eq!(parse(&bytes, 254), None, "it came from afar");
            for at in [0, 1, 3, 8, 25, 31] {
                let mut bytes = bytes;
                bytes[at] ^= 1;
                assert_eq!(parse(&bytes, NEIGHBOUR_HOPS), None, "{at}");
            }
            for length in 0..bytes.len() {
                assert_eq!(parse(&bytes[..length], NEIGHBOUR_HOPS), None);
            }
        }
    }

    #[test]
    fn options_that_cannot_be_end_it() {
        assert_eq!(find_mac(&[], SOURCE_MAC), Some(None));
        assert_eq!(find_mac(&[5, 0, 0, 0, 0, 0, 0, 0], SOURCE_MAC), None);
        assert_eq!(find_mac(&[5, 2, 0, 0, 0, 0, 0, 0], SOURCE_MAC), None);
        assert_eq!(find_mac(&[5], SOURCE_MAC), None);
        let two = [14, 1, 0, 0, 0, 0, 0, 0, SOURCE_MAC, 1, 2, 3, 4, 5, 6, 7];
        assert_eq!(
            find_mac(&two, SOURCE_MAC),
            Some(Some(Mac([2, 3, 4, 5, 6, 7])))
        );
    }

    #[test]
    fn groups_are_those_of_the_rfcs() {
        let group = solicited_group("4037::1:800:200e:8c6c".parse().unwrap());
        assert_eq!(group, "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(group), Mac([0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]));
    }

    #[test]
    fn an_echo_is_answered_with_a_right_checksum() {
        let body = [1, 2, 3, 4, 5, 6];
        for is_v6 in [false, true] {
            let seed = if is_v6 {
                pseudo_sum(own().into(), other().into(), ICMPV6, 14)
            } else {
                Sum::default()
            };
            let mut header = [ECHO[usize::from(is_v6)], 0, 0, 0, 0, 7, 0, 1];
            let mut sum = seed;
            sum.add(&header);
            sum.add(&body);
            header[2..4].copy_from_slice(&sum.complement().to_be_bytes());
            let answer = answer_echo(header, is_v6).unwrap();
            assert_eq!(
                (answer[0], &answer[4..]),
                (ECHO_REPLY[usize::from(is_v6)], &header[4..])
            );
            let mut sum = seed;
            sum.add(&answer);
            sum.add(&body);
            assert_eq!(sum.folded(), 0xffff);
            assert_eq!(answer_echo(answer, is_v6), None);
        }
    }
}
