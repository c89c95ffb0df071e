//! The headers before a message: Ethernet's, IP's and UDP's. What they have in common for all messages to one far end is written once.

use std::net::IpAddr;

use millrace_port::HEAD_BYTES;
use millrace_wire::gtpu::PORT;

use super::Interface;
use crate::checksum::Sum;
use crate::ethernet::{Frame, IPV4, IPV6, Mac, TAGGED_BYTES};
use crate::ip::{IPV4_BYTES, IPV6_BYTES, UDP, UDP_BYTES, Udp, Written, addresses};

const LEAD_BYTES_MAX: usize = TAGGED_BYTES + IPV6_BYTES + UDP_BYTES;

/// Headers without a station, a traffic class, lengths and checksums.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lead {
    bytes: [u8; LEAD_BYTES_MAX],
    ip_at: usize,
    is_v6: bool,
    /// In IPv4 of IP's header; in IPv6 of what UDP's checksum has besides UDP. Without what is not here either.
    sum: Sum,
}

impl Lead {
    /// Of what goes by a port. None: the two addresses are of two families.
    pub(super) fn new(interface: &Interface, source: IpAddr, to: IpAddr) -> Option<Lead> {
        let mut bytes = [0; LEAD_BYTES_MAX];
        let is_v6 = source.is_ipv6();
        let kind = if is_v6 { IPV6 } else { IPV4 };
        let own = (interface.mac, interface.vlan);
        let ip_at = Frame::emit(&mut bytes, Mac::default(), own.0, own.1, kind);
        let ip = Written::new(source, to, UDP, 0);
        ip.emit(&mut bytes[ip_at..])?;
        let end = ip_at + ip.bytes();
        let mut sum = ip.pseudo_sum();
        if !is_v6 {
            let header = &mut bytes[ip_at..end];
            header[2..4].fill(0);
            header[10..12].fill(0);
            sum = Sum::default();
            sum.add(header);
        }
        Udp::emit(&mut bytes[end..], PORT, PORT, 0);
        Some(Lead {
            bytes,
            ip_at,
            is_v6,
            sum,
        })
    }

    /// How many bytes IP's header takes.
    #[inline]
    pub(super) fn ip_bytes(&self) -> usize {
        if self.is_v6 { IPV6_BYTES } else { IPV4_BYTES }
    }

    /// What IP's header says before so many bytes of UDP. None: never, as it was written.
    pub(super) fn written(&self, class: u8, payload: usize) -> Option<Written> {
        let (source, destination) = addresses(&self.bytes[self.ip_at..])?;
        let ip = Written::new(source, destination, UDP, payload);
        Some(Written { class, ..ip })
    }

    /// Writes headers before so many bytes of UDP, its header among them; returns where they end. None: the packet is too long for a length
    /// field.
    #[inline]
    pub(super) fn emit(
        &self,
        (mac, class): (Mac, u8),
        payload: usize,
        to: &mut [u8; HEAD_BYTES],
    ) -> Option<usize> {
        to[..LEAD_BYTES_MAX].copy_from_slice(&self.bytes);
        to[..6].copy_from_slice(&mac.0);
        let ip = &mut to[self.ip_at..];
        let end = if self.is_v6 {
            let length = u16::try_from(payload).ok()?;
            let ip = ip.first_chunk_mut::<IPV6_BYTES>()?;
            ip[0] |= class >> 4;
            ip[1] = class << 4;
            ip[4..6].copy_from_slice(&length.to_be_bytes());
            self.ip_at + IPV6_BYTES
        } else {
            let total = u16::try_from(IPV4_BYTES + payload).ok()?;
            let ip = ip.first_chunk_mut::<IPV4_BYTES>()?;
            let mut sum = self.sum;
            sum.add_word(u16::from(class));
            sum.add_word(total);
            ip[1] = class;
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[10..12].copy_from_slice(&sum.complement().to_be_bytes());
            self.ip_at + IPV4_BYTES
        };
        // It fits, as IP's length does.
        let length = payload as u16;
        to[end + 4..end + 6].copy_from_slice(&length.to_be_bytes());
        Some(end + UDP_BYTES)
    }

    /// The sum of what stands before so many bytes of UDP in its checksum, which only IPv6 asks for. None: IPv4 does not.
    #[inline]
    pub(super) fn pseudo_sum(&self, payload: usize) -> Option<Sum> {
        let mut sum = self.sum;
        // At most 16 bits, as IP's own length is.
        sum.add_word(payload as u16);
        self.is_v6.then_some(sum)
    }
}

const _: () = assert!(LEAD_BYTES_MAX <= HEAD_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bearer::Side;

    #[test]
    fn it_is_what_each_header_writes() {
        let mac = Mac([2, 1, 2, 3, 4, 5]);
        let pairs = [
            ("192.0.2.1", "198.51.100.9"),
            ("2001:db8::1", "2001:db8::9"),
        ];
        for (pair, vlan) in pairs
            .into_iter()
            .flat_map(|pair| [(pair, None), (pair, Some(7))])
        {
            let (source, to) = (pair.0.parse().unwrap(), pair.1.parse().unwrap());
            let interface = Interface {
                name: "n3".to_owned(),
                side: Side::Radio,
                mac: Mac::of_name("n3"),
                vlan,
                addresses: Vec::new(),
                routes: Vec::new(),
                mtu: 1500,
                udp_zero: false,
            };
            let lead = Lead::new(&interface, source, to).unwrap();
            for (class, payload) in [(0, 8), (0xb8, 44), (0xff, 1480), (3, 65_515)] {
                let ip = Written {
                    class,
                    ..Written::new(source, to, UDP, payload)
                };
                let mut plain = [0; HEAD_BYTES];
                let kind = if source.is_ipv4() { IPV4 } else { IPV6 };
                let at = Frame::emit(&mut plain, mac, interface.mac, vlan, kind);
                ip.emit(&mut plain[at..]).unwrap();
                let at = at + ip.bytes();
                Udp::emit(&mut plain[at..], PORT, PORT, payload as u16);
                let mut head = [0; HEAD_BYTES];
                let end = lead.emit((mac, class), payload, &mut head).unwrap();
                assert_eq!((end, &head[..end]), (at + UDP_BYTES, &plain[..end]));
                let written = lead.written(class, payload).unwrap();
                assert_eq!(written.pseudo_sum(), ip.pseudo_sum());
                let wanted = source.is_ipv6().then(|| ip.pseudo_sum());
                let folded = |sum: Option<Sum>| sum.map(Sum::folded);
                assert_eq!(folded(lead.pseudo_sum(payload)), folded(wanted));
            }
            assert_eq!(lead.emit((mac, 0), 65_536, &mut [0; HEAD_BYTES]), None);
            assert!(
                Lead::new(&interface, source, "::ffff:1.2.3.4".parse().unwrap()).is_none()
                    == source.is_ipv4()
            );
        }
    }
}
