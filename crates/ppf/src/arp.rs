//! Address resolution of IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use crate::ethernet::{IPV4, Mac};

/// Bytes of a message.
pub(crate) const BYTES: usize = 28;
const ETHERNET: u16 = 1;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arp {
    /// It asks; otherwise it answers.
    pub(crate) is_request: bool,
    /// Who sends it.
    pub(crate) mac: Mac,
    pub(crate) address: Ipv4Addr,
    /// Whom it is for, or about.
    pub(crate) target_mac: Mac,
    pub(crate) target: Ipv4Addr,
}

impl Arp {
    /// The message that bytes begin with. None: it is none, or not of IPv4 over Ethernet, or its sender is a group.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Arp> {
        let (message, _) = bytes.split_first_chunk::<BYTES>()?;
        let word = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
        if word(0) != ETHERNET || word(2) != IPV4 || message[4..6] != [6, 4] {
            return None;
        }
        let is_request = match word(6) {
            REQUEST => true,
            REPLY => false,
            _ => return None,
        };
        let mac = |at: usize| {
            let mut octets = [0; 6];
            octets.copy_from_slice(&message[at..at + 6]);
            Mac(octets)
        };
        let address = |at: usize| {
            let octets = [
                message[at],
                message[at + 1],
                message[at + 2],
                message[at + 3],
            ];
            Ipv4Addr::from(octets)
        };
        let arp = Arp {
            is_request,
            mac: mac(8),
            address: address(14),
            target_mac: mac(18),
            target: address(24),
        };
        (!arp.mac.is_group()).then_some(arp)
    }

    pub(crate) fn emit(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..2].copy_from_slice(&ETHERNET.to_be_bytes());
        bytes[2..4].copy_from_slice(&IPV4.to_be_bytes());
        bytes[4..6].copy_from_slice(&[6, 4]);
        let operation = if self.is_request { REQUEST } else { REPLY };
        bytes[6..8].copy_from_slice(&operation.to_be_bytes());
        bytes[8..14].copy_from_slice(&self.mac.0);
        bytes[14..18].copy_from_slice(&self.address.octets());
        bytes[18..24].copy_from_slice(&self.target_mac.0);
        bytes[24..28].copy_from_slice(&self.target.octets());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_parsed_as_it_was_written() {
        for is_request in [true, false] {
            let arp = Arp {
                is_request,
                mac: Mac([2, 0, 0, 0, 0, 1]),
                address: Ipv4Addr::new(192, 0, 2, 1),
                target_mac: Mac::default(),
                target: Ipv4Addr::new(192, 0, 2, 2),
            };
            let bytes = arp.emit();
            assert_eq!(Arp::parse(&bytes), Some(arp));
            assert_eq!(Arp::parse(&bytes[..BYTES - 1]), None);
            for (at, wrong) in [(0, 9), (3, 9), (4, 8), (5, 16), (7, 3), (8, 3)] {
                let mut bytes = bytes;
                bytes[at] = wrong;
                assert_eq!(Arp::parse(&bytes), None, "{at}");
            }
        }
    }
}
