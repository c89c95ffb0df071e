//! Where a captured frame's headers are, and its packet's end.

use super::super::checksum::{complement, sum_of};
use super::super::pattern::MACS_END;

const IPV4: usize = 0x0800;
const IPV6: usize = 0x86dd;
/// Tags of VLANs: IEEE 802.1Q, its service tag, and the one that was used before.
const TAGS: [usize; 3] = [0x8100, 0x88a8, 0x9100];
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP_V6: u8 = 58;
const SCTP: u8 = 132;
/// Headers of IPv6 that go before others (RFC 8200, section 4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;
/// Where IPv4's header has its checksum, and its addresses.
const SUM_AT: usize = 10;
const ADDRESSES_AT: usize = 12;
const HEADER_BYTES: usize = 20;
const V6_ADDRESSES_AT: usize = 8;
const V6_HEADER_BYTES: usize = 40;

/// Places are counted from the frame's beginning.
pub(super) struct Headers {
    is_v6: bool,
    ip_at: usize,
    protocol: u8,
    transport_at: usize,
    /// It is a part of a packet.
    is_fragment: bool,
    /// It may go on to another address in the end, which its checksum is of.
    is_routed: bool,
    /// Behind all headers that are known.
    pub(super) payload_at: usize,
    /// Behind the packet.
    pub(super) end: usize,
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    let [high, low] = bytes.get(at..)?.first_chunk()?;
    Some(usize::from(u16::from_be_bytes([*high, *low])))
}

impl Headers {
    /// None: it has no whole packet of IPv4 or IPv6.
    pub(super) fn parse(frame: &[u8]) -> Option<Headers> {
        let mut ip_at = MACS_END + 2;
        let kind = loop {
            let kind = half(frame, ip_at - 2)?;
            if !TAGS.contains(&kind) {
                break kind;
            }
            ip_at += 4;
        };
        let mut headers = match (kind, *frame.get(ip_at)? >> 4) {
            (IPV4, 4) => Headers::of_v4(frame, ip_at)?,
            (IPV6, 6) => Headers::of_v6(frame, ip_at)?,
            _ => return None,
        };
        if !headers.is_fragment {
            headers.payload_at += match headers.protocol {
                UDP | ICMP | ICMP_V6 => 8,
                TCP => usize::from(*frame.get(headers.transport_at + 12)? >> 4) * 4,
                _ => 0,
            };
        }
        (headers.end <= frame.len()).then_some(headers)
    }

    fn of_v4(frame: &[u8], ip_at: usize) -> Option<Headers> {
        let bytes = usize::from(frame[ip_at] & 0xf) * 4;
        // There are more of it, or there were.
        let is_fragment = half(frame, ip_at + 6)? & 0x3fff != 0;
        let transport_at = ip_at + bytes;
        let end = ip_at + half(frame, ip_at + 2)?;
        (bytes >= HEADER_BYTES && end >= transport_at).then_some(Headers {
            is_v6: false,
            ip_at,
            protocol: *frame.get(ip_at + 9)?,
            transport_at,
            is_fragment,
            is_routed: false,
            payload_at: transport_at,
            end,
        })
    }

    fn of_v6(frame: &[u8], ip_at: usize) -> Option<Headers> {
        let end = ip_at + V6_HEADER_BYTES + half(frame, ip_at + 4)?;
        let mut protocol = *frame.get(ip_at + 6)?;
        let mut at = ip_at + V6_HEADER_BYTES;
        let (mut is_fragment, mut is_routed) = (false, false);
        while [HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION].contains(&protocol) {
            let [next, units] = *frame.get(at..)?.first_chunk()?;
            is_fragment |= protocol == FRAGMENT;
            is_routed |= protocol == ROUTING;
            at += match protocol {
                FRAGMENT => 8,
                _ => (usize::from(units) + 1) * 8,
            };
            protocol = next;
        }
        (end >= at).then_some(Headers {
            is_v6: true,
            ip_at,
            protocol,
            transport_at: at,
            is_fragment,
            is_routed,
            payload_at: at,
            end,
        })
    }

    fn addresses<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        match self.is_v6 {
            true => &frame[self.ip_at + V6_ADDRESSES_AT..self.ip_at + V6_HEADER_BYTES],
            false => &frame[self.ip_at + ADDRESSES_AT..self.ip_at + HEADER_BYTES],
        }
    }

    /// What frames of one flow have in common.
    pub(super) fn flow(&self, frame: &[u8]) -> Vec<u8> {
        let ports = match self.protocol {
            TCP | UDP | SCTP if !self.is_fragment => {
                frame.get(self.transport_at..self.transport_at + 4)
            }
            _ => None,
        };
        [
            &frame[MACS_END..self.ip_at],
            self.addresses(frame),
            &[self.protocol],
            ports.unwrap_or_default(),
        ]
        .concat()
    }

    /// Makes the checksums right. UDP may have none, and has none then.
    pub(super) fn mend(&self, frame: &mut [u8]) {
        if !self.is_v6 {
            let header = &mut frame[self.ip_at..self.transport_at];
            header[SUM_AT..SUM_AT + 2].fill(0);
            let sum = complement(sum_of(header));
            header[SUM_AT..SUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
        }
        let at = match self.protocol {
            UDP if half(frame, self.transport_at + 6) != Some(0) => self.transport_at + 6,
            TCP => self.transport_at + 16,
            _ => return,
        };
        if self.is_fragment || self.is_routed {
            return;
        }
        frame[at..at + 2].fill(0);
        let segment = &frame[self.transport_at..self.end];
        let around = u32::from(self.protocol) + segment.len() as u32;
        let sum = sum_of(self.addresses(frame)) + around + sum_of(segment);
        let sum = match (self.protocol, complement(sum)) {
            (UDP, 0) => u16::MAX,
            (_, sum) => sum,
        };
        frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}
