//! Messages and users' packets that go on.

use std::net::IpAddr;

use millrace_port::{Checksum, HEAD_BYTES, Packet};
use millrace_wire::gtpu::{HEADER_BYTES, PORT};

use super::hop::{Towards, station};
use super::lead::Lead;
use super::meet::{Datagram, Met};
use super::{Node, Outs, Whose};
use crate::bearer::{BearerId, Peer, Side};
use crate::checksum::Sum;
use crate::ethernet::{Frame, IPV4, IPV6};
use crate::function::{HEADER_BYTES_MAX, Reply, Verdict};
use crate::ip::{IPV6_BYTES, UDP, UDP_BYTES, Udp, Written, addresses, pseudo_sum};
use crate::link::LinkCause;
use crate::neighbour::Way;
use crate::paths::PathId;

/// A part of a packet: what goes on, of what came.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) packet: Packet<'a>,
    pub(super) at: usize,
    pub(super) length: usize,
}

impl<'a> Part<'a> {
    /// What the function is shown: a copy of what is longer than a head, as it may have to wait, or be told of.
    #[inline]
    fn shown(self, space: &'a mut [u8]) -> &'a [u8] {
        let Part { packet, at, length } = self;
        match packet.head().get(at..at + length) {
            Some(whole) => whole,
            None => {
                packet.copy_to(at, &mut space[..length]);
                &space[..length]
            }
        }
    }

    /// Without its first bytes, of which there are so many.
    #[inline]
    pub(super) fn from(self, bytes: usize) -> Part<'a> {
        Part {
            at: self.at + bytes,
            length: self.length - bytes,
            ..self
        }
    }
}

/// Which headers a message is sent behind.
#[derive(Clone, Copy)]
enum Behind<'a> {
    /// Those of a path, whose way was found.
    Hop(PathId),
    Lead(&'a Lead),
}

/// The beginning of a user's packet that leaves as it is, with all of its own header: as it was judged, and not as its memory may be by
/// now, which can be a peer's. How many bytes of the body are in it.
pub(super) fn judged(
    (mut bytes, changed): ([u8; HEADER_BYTES_MAX], usize),
    body: &[u8],
) -> ([u8; HEADER_BYTES_MAX], usize, usize) {
    let more = IPV6_BYTES.saturating_sub(changed).min(body.len());
    bytes[changed..changed + more].copy_from_slice(&body[..more]);
    (bytes, changed + more, more)
}

/// Copies a header. Those that most messages have are of lengths that are a move or two where they are known.
#[inline]
fn put(to: &mut [u8], header: &[u8]) {
    match header.len() {
        8 => to.copy_from_slice(&header[..8]),
        16 => to.copy_from_slice(&header[..16]),
        _ => to.copy_from_slice(header),
    }
}

/// Adds a part's bytes to a sum; there is space for those that are not in a head.
pub(super) fn add_part(space: &mut [u8], part: Part<'_>, sum: &mut Sum) {
    let Part { packet, at, length } = part;
    if let Some(bytes) = packet.head().get(at..at + length) {
        return sum.add(bytes);
    }
    let bytes = &mut space[..length];
    packet.copy_to(at, bytes);
    sum.add(bytes);
}

impl Node {
    /// Does with a packet what is to be done with such a one.
    #[inline]
    pub(super) fn deal(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        what: &Met,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        if self.workers > 1
            && !self.is_work
            && let Some(bearer) = what.bearer()
        {
            let shard = bearer.shard();
            if self.defers || !self.shards[shard as usize] {
                return outs.hand_over(Whose::Shard(shard), packet);
            }
            outs.done.push(shard);
        }
        match what {
            Met::Express(express) => match self.go_express(port, packet, *express, outs) {
                Some(outcome) => outcome,
                None => self.go_usually(port, packet, outs),
            },
            Met::Message(datagram) => self.handle_message(port, packet, datagram, outs),
            Met::User { bearer, at, length } => {
                let part = Part {
                    packet,
                    at: *at,
                    length: *length,
                };
                self.handle_user(port, *bearer, part, outs)
            }
            Met::Arp { at } => self.handle_arp(port, packet, *at, outs),
            Met::Icmp(internet) => self.handle_icmp(port, packet, internet, outs),
            Met::Part(parted) => self.handle_part(port, packet, parted, outs),
            Met::Drop(cause) => Err(*cause),
            // Whose it is was looked for.
            Met::Plain { .. } => Err(LinkCause::Destination),
        }
    }

    /// Does with a message what was not done at once.
    fn go_usually(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        match self.meet_any(usize::from(port), packet)? {
            Met::Message(datagram) => self.handle_message(port, packet, &datagram, outs),
            // What can go the short way is a message.
            _ => Err(LinkCause::Protocol),
        }
    }

    fn handle_message(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        datagram: &Datagram,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        self.check_sum(port, packet, datagram)?;
        let &Datagram { at, length, .. } = datagram;
        let shown = Part { packet, at, length }.shown(&mut self.shown);
        // Where a message ends says the message; what is behind it is nobody's.
        let end = match shown {
            [_, _, high, low, ..] => HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low])),
            _ => 0,
        };
        let verdict = self
            .function
            .handle_at(&datagram.outer, datagram.class, shown, self.now_ns);
        match verdict {
            Verdict::Relay {
                side,
                to,
                path,
                class,
                header: (header, header_bytes),
                body,
                ..
            } => {
                let part = Part {
                    packet,
                    at: at + end - body.len(),
                    length: body.len(),
                };
                let header = &header[..header_bytes];
                self.send(part, (path, side), to, header, class, outs)
            }
            Verdict::Plain {
                side, header, body, ..
            } => {
                let (first, first_bytes, known) = judged(header, body);
                let length = body.len() - known;
                let part = Part {
                    packet,
                    at: at + end - length,
                    length,
                };
                self.send_user(part, side, &first[..first_bytes], outs)
            }
            Verdict::Held => Ok(()),
            Verdict::Reply(reply) => {
                if reply.is_echo() {
                    self.consume(port);
                }
                self.reply(port, packet, datagram, &reply, outs)
            }
            Verdict::Drop(_) => Ok(()),
            other => {
                self.lost += u64::from(matches!(other, Verdict::Lost(_)));
                self.alive += u64::from(matches!(other, Verdict::Alive(_)));
                self.consume(port);
                Ok(())
            }
        }
    }

    /// Counts a packet that was for this function itself.
    pub(super) fn consume(&mut self, port: u16) {
        self.counts[usize::from(port)].consumed += 1;
    }

    fn handle_user(
        &mut self,
        port: u16,
        bearer: BearerId,
        part: Part<'_>,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        if self.has_express
            && let Some(outcome) = self.go_express_user(port, bearer, part, outs)
        {
            return outcome;
        }
        let side = self.interfaces[usize::from(port)].side;
        let Part { packet, at, length } = part;
        let shown = part.shown(&mut self.shown);
        let function = &mut self.function;
        match function.handle_plain_of(bearer, side, shown, self.now_ns) {
            Verdict::Relay {
                side,
                to,
                path,
                class,
                header: (header, header_bytes),
                body,
                ..
            } => {
                let part = Part {
                    packet,
                    at: at + length - body.len(),
                    length: body.len(),
                };
                let header = &header[..header_bytes];
                self.send(part, (path, side), to, header, class, outs)
            }
            Verdict::Plain {
                side, header, body, ..
            } => {
                let (first, first_bytes, known) = judged(header, body);
                let rest = body.len() - known;
                let part = Part {
                    packet,
                    at: at + length - rest,
                    length: rest,
                };
                self.send_user(part, side, &first[..first_bytes], outs)
            }
            _ => Ok(()),
        }
    }

    /// Looks at a datagram's checksum, where it has one, or must have.
    #[inline]
    fn check_sum(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        datagram: &Datagram,
    ) -> Result<(), LinkCause> {
        if datagram.checksum == 0 {
            let may =
                datagram.outer.source.is_ipv4() || self.interfaces[usize::from(port)].udp_zero;
            return match may {
                true => Ok(()),
                false => Err(LinkCause::UdpNoChecksum),
            };
        }
        if packet.offload().checksum == Checksum::Verified {
            return Ok(());
        }
        let length = datagram.length + UDP_BYTES;
        let outer = &datagram.outer;
        let mut sum = pseudo_sum(outer.source, outer.destination, UDP, length);
        let part = Part {
            packet,
            at: datagram.at - UDP_BYTES,
            length,
        };
        add_part(&mut self.summed, part, &mut sum);
        match sum.folded() {
            0xffff => Ok(()),
            _ => Err(LinkCause::UdpChecksum),
        }
    }

    /// Sends a message's header and body to a tunnel's far end.
    #[inline]
    pub(super) fn send(
        &mut self,
        body: Part<'_>,
        (path, side): (PathId, Side),
        to: Peer,
        header: &[u8],
        class: u8,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let towards = self.towards(path, side, to.address)?;
        self.send_behind(body, (towards, Behind::Hop(path)), header, class, outs)
    }

    /// The same by a way that is known, from this address of ours if it is said.
    pub(super) fn send_towards(
        &mut self,
        body: Part<'_>,
        towards: Towards,
        (from, to): (Option<IpAddr>, IpAddr),
        class: u8,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let lead = self.lead(towards, from, to)?;
        self.send_behind(body, (towards, Behind::Lead(&lead)), &[], class, outs)
    }

    #[inline]
    fn send_behind(
        &mut self,
        body: Part<'_>,
        (towards, behind): (Towards, Behind<'_>),
        header: &[u8],
        class: u8,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let way = self.neighbours.way(towards.place, self.now_ns);
        let interface = &self.interfaces[usize::from(towards.port)];
        let lead = match behind {
            Behind::Lead(lead) => Some(lead),
            Behind::Hop(path) => self.hops[path.index()].as_ref().map(|hop| &hop.lead),
        };
        let lead = lead.ok_or(LinkCause::NoRoute)?;
        let payload = UDP_BYTES + header.len() + body.length;
        if lead.ip_bytes() + payload > interface.mtu {
            let ip = lead.written(class, payload).ok_or(LinkCause::Headers)?;
            return self.send_cut(body, (towards, way), ip, header, outs);
        }
        let mac = station(way)?;
        let out = &mut outs.ports[usize::from(towards.port)];
        let head = out.next_head().ok_or(LinkCause::NoRoom)?;
        let at = lead.emit((mac, class), payload, head);
        let at = at.ok_or(LinkCause::Headers)?;
        let end = at + header.len();
        put(head.get_mut(at..end).ok_or(LinkCause::Headers)?, header);
        let sum = lead.pseudo_sum(payload);
        if let Some(mut sum) = sum.filter(|_| !interface.udp_zero) {
            // Headers have an even length each.
            sum.add(&head[at - UDP_BYTES..end]);
            add_part(&mut self.summed, body, &mut sum);
            let sum = sum.complement_of_udp();
            head[at - 2..at].copy_from_slice(&sum.to_be_bytes());
        }
        self.leave(body, end, towards, way, outs)
    }

    /// Sends a user's packet: this beginning, with its header, and the rest of it.
    pub(super) fn send_user(
        &mut self,
        body: Part<'_>,
        side: Side,
        beginning: &[u8],
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let (source, destination) = addresses(beginning).ok_or(LinkCause::UserPacket)?;
        let towards = self.find_way(side, destination)?;
        let way = self.neighbours.way(towards.place, self.now_ns);
        let interface = &self.interfaces[usize::from(towards.port)];
        if beginning.len() + body.length > interface.mtu {
            return self.send_user_cut(body, (towards, way), beginning, outs);
        }
        let mac = station(way)?;
        let out = &mut outs.ports[usize::from(towards.port)];
        let head = out.next_head().ok_or(LinkCause::NoRoom)?;
        let kind = if source.is_ipv4() { IPV4 } else { IPV6 };
        let at = Frame::emit(head, mac, interface.mac, interface.vlan, kind);
        let end = at + beginning.len();
        head.get_mut(at..end)
            .ok_or(LinkCause::Headers)?
            .copy_from_slice(beginning);
        self.leave(body, end, towards, way, outs)
    }

    /// Puts a body where packets leave, behind so many bytes of headers that were written there, or where they wait for a station.
    #[inline]
    pub(super) fn leave(
        &mut self,
        body: Part<'_>,
        lead: usize,
        towards: Towards,
        way: Way,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let out = &mut outs.ports[usize::from(towards.port)];
        if !out.append_behind(lead, body.packet, body.at, body.length) {
            return Err(LinkCause::NoRoom);
        }
        if way != Way::Wait {
            return Ok(());
        }
        let last = out.len() - 1;
        let is_held = out
            .get(last)
            .is_some_and(|packet| self.neighbours.hold(towards.place, packet));
        out.truncate(last);
        match is_held {
            true => Ok(()),
            false => Err(LinkCause::Unresolved),
        }
    }

    /// Sends a message of the function's own back the way that the message before it came: no station is looked for for somebody who may
    /// not be there.
    fn reply(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        datagram: &Datagram,
        reply: &Reply,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let interface = &self.interfaces[usize::from(port)];
        let bytes = reply.bytes();
        let payload = UDP_BYTES + bytes.len();
        let ip = Written::new(reply.from, reply.to, UDP, payload);
        let kind = if reply.from.is_ipv4() { IPV4 } else { IPV6 };
        let mut lead = [0; HEAD_BYTES];
        let mut at = Frame::emit(&mut lead, datagram.mac, interface.mac, interface.vlan, kind);
        ip.emit(&mut lead[at..]).ok_or(LinkCause::Headers)?;
        at += ip.bytes();
        // As short as a message of ours.
        Udp::emit(&mut lead[at..], PORT, reply.to_port, payload as u16);
        let end = at + payload;
        lead.get_mut(at + UDP_BYTES..end)
            .ok_or(LinkCause::Headers)?
            .copy_from_slice(bytes);
        let mut sum = ip.pseudo_sum();
        sum.add(&lead[at..end]);
        let sum = sum.complement_of_udp();
        lead[at + 6..at + 8].copy_from_slice(&sum.to_be_bytes());
        self.answer(port, packet, &lead[..end], 0, 0, outs)
    }

    /// Sends an answer to what came by a port back by it: these headers, and bytes of what came.
    pub(super) fn answer(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        lead: &[u8],
        at: usize,
        length: usize,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let out = &mut outs.ports[usize::from(port)];
        if !out.append_part(packet, lead, at, length) {
            return Err(LinkCause::NoRoom);
        }
        self.counts[usize::from(port)].made += 1;
        Ok(())
    }
}
