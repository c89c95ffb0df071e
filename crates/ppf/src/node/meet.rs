//! What a packet is.

use millrace_port::Packet;
use millrace_wire::gtpu::{G_PDU, HEADER_BYTES, PORT};

use super::express::{self, Express};
use super::{Interface, Node};
use crate::bearer::{BearerId, Side};
use crate::ethernet::{ARP, Frame, IPV4, IPV6, Mac};
use crate::function::Outer;
use crate::ip::{Header, ICMP, ICMPV6, UDP, UDP_BYTES, Udp, parse_ipv4, parse_ipv6};
use crate::link::LinkCause;
use crate::table::users::User;

/// Of GTP-U's header, where the kind and the number of the tunnel are.
const KIND_AT: usize = 1;
const TEID_AT: usize = 4;

/// A UDP datagram for GTP-U's port.
#[derive(Debug, Clone, Copy)]
pub(super) struct Datagram {
    /// Where the message begins in the frame, and its bytes.
    pub(super) at: usize,
    pub(super) length: usize,
    pub(super) outer: Outer,
    pub(super) checksum: u16,
    /// DSCP and ECN.
    pub(super) class: u8,
    /// The station that it came from.
    pub(super) mac: Mac,
    /// Of what kind the message is, and its tunnel, if it is as long as that.
    pub(super) kind: u8,
    pub(super) teid: u32,
}

/// A packet of IP for ourselves, or for a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Internet {
    pub(super) header: Header,
    /// Where what follows the headers begins in the frame.
    pub(super) at: usize,
    /// The station that it came from.
    pub(super) mac: Mac,
}

/// A fragment of a packet for ourselves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parted {
    /// Where its header of IP begins in the frame, and bytes from there on.
    pub(super) at: usize,
    pub(super) length: usize,
    /// The station that it came from.
    pub(super) mac: Mac,
}

/// What a packet is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Met {
    /// A message as most are.
    Express(Express),
    Message(Datagram),
    /// Of a user without a tunnel, whose bearer is to be looked for.
    Plain {
        user: User,
        at: usize,
        length: usize,
    },
    /// Of a user, without a tunnel, of this bearer; from where in the frame, how many bytes.
    User {
        bearer: BearerId,
        at: usize,
        length: usize,
    },
    Arp {
        at: usize,
    },
    Icmp(Internet),
    Part(Parted),
    Drop(LinkCause),
}

impl Met {
    /// Whose state decides.
    #[inline]
    pub(super) fn bearer(&self) -> Option<BearerId> {
        match self {
            // Messages of a path have no tunnel, and any worker can deal with them.
            Met::Message(datagram) if datagram.teid != 0 => Some(BearerId::of(datagram.teid).0),
            Met::Express(express) if express.teid != 0 => Some(BearerId::of(express.teid).0),
            Met::User { bearer, .. } => Some(*bearer),
            _ => None,
        }
    }
}

impl Node {
    /// What a packet is that came by a port.
    #[inline]
    pub(super) fn meet(&self, port: usize, packet: Packet<'_>) -> Result<Met, LinkCause> {
        match self.meet_express(port, packet) {
            Some(express) => Ok(Met::Express(express)),
            None => self.meet_any(port, packet),
        }
    }

    /// The same, where it is a message as most are.
    #[inline(always)]
    pub(super) fn meet_express(&self, port: usize, packet: Packet<'_>) -> Option<Express> {
        let interface = &self.interfaces[port];
        self.has_express
            .then(|| express::meet(interface, packet))
            .flatten()
    }

    /// The same, as whatever it is.
    pub(super) fn meet_any(&self, port: usize, packet: Packet<'_>) -> Result<Met, LinkCause> {
        let interface = &self.interfaces[port];
        let head = packet.head();
        let frame = Frame::parse(head).ok_or(LinkCause::Truncated)?;
        if frame.vlan != interface.vlan {
            return Err(LinkCause::Vlan);
        }
        let is_group = frame.destination.is_group();
        if (frame.destination != interface.mac && !is_group) || frame.source.is_group() {
            return Err(LinkCause::Station);
        }
        if packet.leaves_work() {
            return Err(LinkCause::Offload);
        }
        let at = frame.bytes;
        match frame.kind {
            IPV4 | IPV6 => {}
            ARP => return Ok(Met::Arp { at }),
            _ => return Err(LinkCause::Protocol),
        }
        let (bytes, available) = (&head[at..], packet.len() - at);
        // Each family has the rest of this for itself: a header is never in memory then, as what both have in common would be.
        match bytes.first().map(|first| first >> 4) {
            Some(4) => {
                let header = parse_ipv4(bytes, available)?;
                if frame.kind != IPV4 {
                    return Err(LinkCause::IpHeader);
                }
                self.meet_internet(interface, &frame, header, packet)
            }
            Some(6) => {
                let header = parse_ipv6(bytes, available)?;
                if frame.kind != IPV6 {
                    return Err(LinkCause::IpHeader);
                }
                self.meet_internet(interface, &frame, header, packet)
            }
            Some(_) => Err(LinkCause::IpHeader),
            None => Err(LinkCause::Truncated),
        }
    }

    /// The same of one of IP, behind Ethernet's header.
    #[inline(always)]
    fn meet_internet(
        &self,
        interface: &Interface,
        frame: &Frame,
        header: Header,
        packet: Packet<'_>,
    ) -> Result<Met, LinkCause> {
        let (at, is_group) = (frame.bytes, frame.destination.is_group());
        let head = packet.head();
        let bytes = &head[at..];
        if !interface.has(header.destination) {
            return meet_other(interface.side, is_group, header, at, frame.source);
        }
        // One's own address in a frame for all is nobody's honest packet (RFC 1122, 3.3.6).
        if is_group {
            return Err(LinkCause::Station);
        }
        let header = match header.at_its_end(bytes) {
            Err(LinkCause::Fragment) => {
                return Ok(Met::Part(Parted {
                    at,
                    length: header.bytes + header.payload,
                    mac: frame.source,
                }));
            }
            header => header?,
        };
        let behind = at + header.bytes;
        let internet = Internet {
            header,
            at: behind,
            mac: frame.source,
        };
        match (header.protocol, header.source.is_ipv4()) {
            (UDP, _) => {
                let rest = head.get(behind..).ok_or(LinkCause::Truncated)?;
                meet_udp(interface.side, &internet, rest, packet)
            }
            (ICMP, true) | (ICMPV6, false) => Ok(Met::Icmp(internet)),
            _ => Err(LinkCause::Protocol),
        }
    }
}

/// What a packet is that is not for our address.
#[inline(always)]
fn meet_other(
    side: Side,
    is_group: bool,
    header: Header,
    at: usize,
    mac: Mac,
) -> Result<Met, LinkCause> {
    if header.destination.is_multicast() && header.protocol == ICMPV6 {
        return Ok(Met::Icmp(Internet {
            header,
            at: at + header.bytes,
            mac,
        }));
    }
    // A user is at the core network's side when packets for its address come from there, and at the radio network's with its own.
    let user = match side {
        Side::Core => header.destination,
        Side::Radio => header.source,
    };
    if is_group {
        return Err(LinkCause::Destination);
    }
    Ok(Met::Plain {
        user: User::of(user),
        at,
        length: header.bytes + header.payload,
    })
}

/// What a UDP datagram for us is, which begins with these bytes of a packet.
#[inline(always)]
fn meet_udp(
    side: Side,
    internet: &Internet,
    bytes: &[u8],
    packet: Packet<'_>,
) -> Result<Met, LinkCause> {
    let header = &internet.header;
    let udp = Udp::parse(bytes, header.payload)?;
    if udp.destination != PORT {
        return Err(LinkCause::UdpPort);
    }
    let at = internet.at + UDP_BYTES;
    let (kind, teid) = match bytes[UDP_BYTES..].first_chunk() {
        // One that is too short has no tunnel; the function says what it is.
        _ if udp.length - UDP_BYTES < HEADER_BYTES => (0, 0),
        Some(first) => kind_and_teid(first),
        None => far_kind_and_teid(packet, at),
    };
    Ok(Met::Message(Datagram {
        at,
        length: udp.length - UDP_BYTES,
        outer: Outer {
            side,
            source: header.source,
            destination: header.destination,
            source_port: udp.source,
        },
        checksum: udp.checksum,
        class: header.class,
        mac: internet.mac,
        kind,
        teid,
    }))
}

/// Of what kind a message is that begins so, and its tunnel.
#[inline(always)]
fn kind_and_teid(first: &[u8; HEADER_BYTES]) -> (u8, u32) {
    let [.., t0, t1, t2, t3] = *first;
    (first[KIND_AT], u32::from_be_bytes([t0, t1, t2, t3]))
}

/// The same of one whose first bytes are not all in the head, behind many of IPv6's extension headers. Whoever changes them later on has
/// the message go to a worker that does not know its tunnel.
#[cold]
fn far_kind_and_teid(packet: Packet<'_>, at: usize) -> (u8, u32) {
    let mut first = [0; HEADER_BYTES];
    packet.copy_to(at, &mut first);
    kind_and_teid(&first)
}

const _: () = assert!(HEADER_BYTES == TEID_AT + 4 && G_PDU == 255);
