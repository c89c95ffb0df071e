//! The way of most messages: a user's packet in IPv4 without options or a checksum in UDP, with no more than a PDU session container, for a
//! bearer that has nothing but its line and perhaps a QoS flow, into another tunnel in IPv4 or out of the last one.
//!
//! Here is done what `meet`, the function and `send` do with such a one, and nothing that it does not need, so that all of it stays in the
//! processor's registers. Whatever is otherwise in any respect is not decided here: nothing was changed then, and the packet takes the
//! usual way. Both do the same with every packet, which the tests see to (`tests/express.rs`).

use std::net::{IpAddr, Ipv4Addr};

use millrace_port::{HEAD_BYTES, Packet};
use millrace_wire::gtpu::{
    EXTENSION_PDU_SESSION, G_PDU, HEADER_BYTES, Header, LONG_HEADER_BYTES, PORT,
};

use super::hop::Towards;
use super::send::Part;
use super::{Interface, Node, Outs};
use crate::bearer::{BearerId, Side};
use crate::checksum::Sum;
use crate::ethernet::{self, Frame, IPV4, Mac};
use crate::function::{change_flow, put_container};
use crate::ip::{IPV4_BYTES, MORE_FRAGMENTS, OFFSET_MASK, UDP, UDP_BYTES};
use crate::link::LinkCause;
use crate::mark;
use crate::neighbour::Way;
use crate::table::hot::{Flow, Hot, NO_EXTRA};

/// IPv4, and a header without options.
const V4_PLAIN: u8 = 0x45;
/// GTP-U's flags without any option, and with extension headers only.
const FLAGS: u8 = 0x30;
const FLAGS_EXTENSION: u8 = 0x34;
/// Bytes of a PDU session container without options, in units of 4.
const CONTAINER_BYTES: usize = 4;
/// Where UDP and GTP-U begin behind Ethernet's header, and what is looked at of all: users' packets have 20 bytes more at least.
const UDP_AT: usize = IPV4_BYTES;
const GTPU_AT: usize = UDP_AT + UDP_BYTES;
const LOOKED_AT: usize = GTPU_AT + LONG_HEADER_BYTES + CONTAINER_BYTES;

const _: () = assert!(ethernet::TAGGED_BYTES + LOOKED_AT + IPV4_BYTES <= HEAD_BYTES);

/// A message that can go this way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Express {
    pub(super) teid: u32,
    /// Where the user's packet begins in the frame, and its bytes.
    at: u16,
    bytes: u16,
    /// DSCP and ECN of the outer header.
    class: u8,
    has_container: bool,
}

impl Express {
    /// Whether the bearer treats it as most bearers do, and passes it from this side.
    #[inline]
    fn is_for(&self, hot: &Hot, from: Side) -> bool {
        passes(hot, from.other()) && !hot.is_plain(from)
    }

    /// What goes into another tunnel.
    #[inline]
    fn load<'a>(&self, packet: Packet<'a>, flow: Flow, to: Side) -> Option<Load<'a>> {
        let at = usize::from(self.at);
        let container = match flow {
            Flow::Kept if self.has_container => Container::Kept,
            Flow::Kept | Flow::Removed => Container::None,
            Flow::Set(flow) if self.has_container => {
                let mut came = *packet.head().get(..at)?.last_chunk()?;
                change_flow(&mut came, flow);
                Container::New(came)
            }
            Flow::Set(flow) => container(to, flow)?,
            Flow::Mapped => return None,
        };
        let kept = match container {
            Container::Kept => CONTAINER_BYTES,
            Container::None | Container::New(_) => 0,
        };
        Some(Load {
            part: Part {
                packet,
                at: at - kept,
                length: usize::from(self.bytes) + kept,
            },
            bytes: self.bytes.into(),
            outer: Some(self.class),
            container,
        })
    }
}

/// What goes into a tunnel.
struct Load<'a> {
    /// What is behind the header, and the bytes of the user's packet at its end.
    part: Part<'a>,
    bytes: usize,
    /// DSCP and ECN of the tunnel that it came by, if it came by one.
    outer: Option<u8>,
    container: Container,
}

/// The PDU session container in front of a user's packet.
#[derive(Clone, Copy)]
enum Container {
    None,
    /// As it came, right before the packet.
    Kept,
    New([u8; CONTAINER_BYTES]),
}

/// A new one of a QoS flow. Who has a paging policy has more than a line.
#[inline]
fn container(to: Side, flow: u8) -> Option<Container> {
    let mut bytes = [0; CONTAINER_BYTES];
    let count = put_container(to, flow, None, &mut bytes).ok()?;
    (count == bytes.len()).then_some(Container::New(bytes))
}

/// Whether a bearer passes packets to a side, and has nothing but its line: no map of flows either, then.
#[inline]
fn passes(hot: &Hot, to: Side) -> bool {
    hot.extra == NO_EXTRA && hot.is_open(to)
}

/// Whether a user's packet that begins so is of IPv4, without options, and as long as it says.
#[inline]
fn is_whole(inner: &[u8; IPV4_BYTES], bytes: usize) -> bool {
    inner[0] == V4_PLAIN && usize::from(u16::from_be_bytes([inner[2], inner[3]])) == bytes
}

/// The user's address in such a packet on a side without tunnels: the core network's sends to it, and it sends to the core network.
#[inline]
fn user(inner: &[u8; IPV4_BYTES], towards: Side) -> u32 {
    match towards {
        Side::Core => long(inner, 12),
        Side::Radio => long(inner, 16),
    }
}

#[inline]
fn long(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// What a frame is, if it can go this way.
#[inline(always)]
pub(super) fn meet(interface: &Interface, packet: Packet<'_>) -> Option<Express> {
    let frame = packet.head().first_chunk::<{ ethernet::TAGGED_BYTES }>()?;
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (kind, ip_at) = match interface.vlan {
        None => (word(12), ethernet::HEADER_BYTES),
        Some(_) => (word(16), ethernet::TAGGED_BYTES),
    };
    let is_tagged = |vlan| word(12) == ethernet::VLAN && word(14) & ethernet::VLAN_MASK == vlan;
    let is_for_us = frame[..6] == interface.mac.0
        && frame[6] & 1 == 0
        && kind == IPV4
        && interface.vlan.is_none_or(is_tagged)
        && !packet.leaves_work();
    if !is_for_us {
        return None;
    }
    let bytes = packet.head()[ip_at..].first_chunk::<LOOKED_AT>()?;
    meet_message(interface, bytes, ip_at, packet.len() - ip_at)
}

/// The same of a packet of IP that begins with these bytes, at this place in the frame, of which so many came.
#[inline(always)]
fn meet_message(
    interface: &Interface,
    bytes: &[u8; LOOKED_AT],
    ip_at: usize,
    available: usize,
) -> Option<Express> {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let (flags, kind) = (bytes[GTPU_AT], bytes[GTPU_AT + 1]);
    let is_plain = bytes[0] == V4_PLAIN
        && word(6) & (MORE_FRAGMENTS | OFFSET_MASK) == 0
        && bytes[9] == UDP
        && word(UDP_AT + 2) == PORT
        && word(UDP_AT + 6) == 0
        && kind == G_PDU;
    let (total, udp) = (usize::from(word(2)), usize::from(word(UDP_AT + 4)));
    let length = usize::from(word(GTPU_AT + 2));
    let is_whole =
        total <= available && IPV4_BYTES + udp <= total && UDP_BYTES + HEADER_BYTES + length <= udp;
    let mut sum = Sum::default();
    sum.add(&bytes[..IPV4_BYTES]);
    let to = IpAddr::V4(Ipv4Addr::from_bits(long(bytes, 16)));
    if !is_plain || !is_whole || sum.folded() != 0xffff || !interface.has(to) {
        return None;
    }
    let behind = GTPU_AT + LONG_HEADER_BYTES;
    let (header, has_container) = match flags {
        FLAGS => (HEADER_BYTES, false),
        // One container of one unit, and nothing behind it.
        FLAGS_EXTENSION
            if bytes[behind - 1] == EXTENSION_PDU_SESSION
                && bytes[behind] == 1
                && bytes[behind + CONTAINER_BYTES - 1] == 0 =>
        {
            (LONG_HEADER_BYTES + CONTAINER_BYTES, true)
        }
        _ => return None,
    };
    // What has no user's packet passes shut gates.
    let user = (HEADER_BYTES + length).checked_sub(header)?;
    (user >= IPV4_BYTES).then_some(Express {
        teid: long(bytes, GTPU_AT + 4),
        // In a frame's head, and of a length field's.
        at: (ip_at + GTPU_AT + header) as u16,
        bytes: user as u16,
        class: bytes[1],
        has_container,
    })
}

impl Node {
    /// Sends a message on, or the packet that is in it. None: that is to be done the usual way, and nothing was done.
    #[inline]
    pub(super) fn go_express(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        express: Express,
        outs: &mut Outs,
    ) -> Option<Result<(), LinkCause>> {
        let (id, side) = BearerId::of(express.teid);
        let hot = self.function.bearers.hot(id)?;
        let from = self.interfaces[usize::from(port)].side;
        if side != from || !express.is_for(hot, from) {
            return None;
        }
        match hot.user_v4(from.other()) {
            Some(user) => self.leave_tunnel(id, (from, user), packet, express, outs),
            None => {
                let to = from.other();
                let load = express.load(packet, hot.flow(to), to)?;
                self.enter_tunnel(id, to, load, outs)
            }
        }
    }

    /// The same of a user's packet that came without a tunnel, and is for one.
    #[inline]
    pub(super) fn go_express_user(
        &mut self,
        port: u16,
        id: BearerId,
        part: Part<'_>,
        outs: &mut Outs,
    ) -> Option<Result<(), LinkCause>> {
        let from = self.interfaces[usize::from(port)].side;
        let to = from.other();
        let inner = part.packet.head().get(part.at..)?;
        let inner = inner.first_chunk::<IPV4_BYTES>()?;
        let hot = self.function.bearers.hot(id)?;
        let container = match hot.flow(to) {
            Flow::Kept | Flow::Removed => Container::None,
            Flow::Set(flow) => container(to, flow)?,
            Flow::Mapped => return None,
        };
        if !is_whole(inner, part.length)
            || hot.user_v4(from) != Some(user(inner, to))
            || !passes(hot, to)
        {
            return None;
        }
        let load = Load {
            part,
            bytes: part.length,
            outer: None,
            container,
        };
        self.enter_tunnel(id, to, load, outs)
    }

    #[inline]
    fn enter_tunnel(
        &mut self,
        id: BearerId,
        to: Side,
        load: Load<'_>,
        outs: &mut Outs,
    ) -> Option<Result<(), LinkCause>> {
        let (hot, paths) = self.function.bearers.hot_and_paths(id)?;
        let path = hot.path(to);
        let hop = self.hops.get(path.index())?.as_ref()?;
        let is_known = hop.generation == self.neighbours.generation()
            && hop.side == to
            && paths.address(path) == Some(hop.to);
        if hot.is_plain(to) || !is_known || hop.lead.pseudo_sum(0).is_some() {
            return None;
        }
        let Part { packet, at, length } = load.part;
        let (extension, new): (_, &[u8]) = match &load.container {
            Container::None => (0, &[]),
            Container::Kept => (EXTENSION_PDU_SESSION, &[]),
            Container::New(bytes) => (EXTENSION_PDU_SESSION, bytes),
        };
        let header = Header {
            kind: G_PDU,
            teid: hot.teid(to),
            sequence: None,
            extension,
        };
        let behind = new.len() + length;
        let payload = UDP_BYTES + header.bytes() + behind;
        let interface = &self.interfaces[usize::from(hop.towards.port)];
        if IPV4_BYTES + payload > interface.mtu.min(self.mtu[to as usize]) {
            return None;
        }
        // Not before it is sure that something goes there: stations are asked for by what is sent to them.
        let mac = station(&mut self.neighbours, hop.towards, self.now_ns)?;
        let user = packet.head().get(at + length - load.bytes..)?;
        let (marking, inner) = (
            hot.marking[to as usize],
            mark::class_of_start(user, load.bytes),
        );
        let class = match load.outer {
            Some(outer) => mark::relayed(marking, outer, inner),
            None => mark::encapsulated(marking, inner),
        };
        let out = &mut outs.ports[usize::from(hop.towards.port)];
        let head = out.next_head()?;
        let end = hop.lead.emit((mac, class), payload, head)?;
        let mut end = end + header.emit(behind, head.get_mut(end..)?)?;
        if let Container::New(bytes) = load.container {
            *head.get_mut(end..)?.first_chunk_mut()? = bytes;
            end += bytes.len();
        }
        hot.count(to, load.bytes, self.now_ns);
        Some(match out.append_behind(end, packet, at, length) {
            true => Ok(()),
            false => Err(LinkCause::NoRoom),
        })
    }

    /// What a bearer's user sends, or is sent to, as it is. All of its header is in the frame's head, where nobody changes it any more.
    #[inline]
    fn leave_tunnel(
        &mut self,
        id: BearerId,
        (from, own): (Side, u32),
        packet: Packet<'_>,
        express: Express,
        outs: &mut Outs,
    ) -> Option<Result<(), LinkCause>> {
        let (to, now_ns) = (from.other(), self.now_ns);
        let (at, bytes) = (usize::from(express.at), usize::from(express.bytes));
        let inner = packet.head().get(at..)?.first_chunk::<IPV4_BYTES>()?;
        let ecn = mark::decapsulated(inner[1], express.class);
        if !is_whole(inner, bytes)
            || user(inner, to) != own
            || ecn != Some(inner[1] & mark::ECN_MASK)
            || bytes > self.mtu[to as usize]
        {
            return None;
        }
        let destination = long(inner, IPV4_BYTES - 4);
        let destination = IpAddr::V4(Ipv4Addr::from_bits(destination));
        let towards = self.find_way(to, destination).ok()?;
        let mac = station(&mut self.neighbours, towards, now_ns)?;
        let interface = &self.interfaces[usize::from(towards.port)];
        if bytes > interface.mtu {
            return None;
        }
        let out = &mut outs.ports[usize::from(towards.port)];
        let end = Frame::emit(out.next_head()?, mac, interface.mac, interface.vlan, IPV4);
        let hot = self.function.bearers.hot_mut(id)?;
        hot.count(to, bytes, now_ns);
        Some(match out.append_behind(end, packet, at, bytes) {
            true => Ok(()),
            false => Err(LinkCause::NoRoom),
        })
    }
}

/// The next station, if it is known.
#[inline]
fn station(
    neighbours: &mut crate::neighbour::Neighbours,
    towards: Towards,
    now_ns: u64,
) -> Option<Mac> {
    match neighbours.way(towards.place, now_ns) {
        Way::To(mac) => Some(mac),
        Way::Wait | Way::Nowhere => None,
    }
}
