//! What is for the function itself: stations' questions and answers, and echoes.

use std::net::{IpAddr, Ipv6Addr};

use millrace_port::{Burst, HEAD_BYTES, Packet};

use super::meet::Internet;
use super::{Node, Outs};
use crate::arp::{self, Arp};
use crate::ethernet::{ARP, Frame, IPV4, IPV6, Mac};
use crate::icmp::{
    ECHO_BYTES, NEIGHBOUR_BYTES, NEIGHBOUR_HOPS, Neighbour, answer_echo, group_mac, solicited_group,
};
use crate::ip::{ICMPV6, Written};
use crate::link::LinkCause;
use crate::neighbour::{Ask, Said};
use crate::reassembly::Reassembler;

/// Answers to stations and echoes in a second, of each port: more are asked by nobody who means well.
pub(super) const ANSWERS_PER_SECOND: u32 = 1000;
/// Bytes of ICMP that are looked at for neighbour discovery, at most: with options that nobody here knows.
const ICMP_BYTES_MAX: usize = 256;
/// All stations of a link (RFC 4291, 2.7.1).
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

impl Node {
    pub(super) fn handle_arp(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        at: usize,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let arp = Arp::parse(&packet.head()[at..]).ok_or(LinkCause::Neighbour)?;
        let own = self.interfaces[usize::from(port)].has(arp.target.into());
        let is_answer = !arp.is_request && own;
        if !arp.address.is_unspecified() {
            let said = Said {
                mac: arp.mac,
                is_answer,
                is_announced: arp.target == arp.address,
                overrides: true,
            };
            self.hear(port, packet, arp.address.into(), said, outs);
        }
        if !own {
            return Err(LinkCause::Destination);
        }
        if arp.is_request {
            self.may_answer(port)?;
        }
        self.consume(port);
        if !arp.is_request {
            return Ok(());
        }
        let interface = &self.interfaces[usize::from(port)];
        let answer = Arp {
            is_request: false,
            mac: interface.mac,
            address: arp.target,
            target_mac: arp.mac,
            target: arp.address,
        };
        let mut lead = [0; HEAD_BYTES];
        let begin = Frame::emit(&mut lead, arp.mac, interface.mac, interface.vlan, ARP);
        lead[begin..begin + arp::BYTES].copy_from_slice(&answer.emit());
        self.answer(port, packet, &lead[..begin + arp::BYTES], 0, 0, outs)
    }

    /// A station says where an address is.
    fn hear(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        address: IpAddr,
        said: Said,
        outs: &mut Outs,
    ) {
        let held = self.neighbours.hear((port, address), said, self.now_ns);
        if let Some(held) = held {
            self.release(port, said.mac, *held, outs);
        }
        // Each worker looks for stations by itself, and whoever has the port gets the answers, and the news: of that as much as it would
        // answer, whoever floods the link with it.
        if self.workers > 1
            && !self.is_work
            && (said.is_answer || said.is_announced && self.may_answer(port).is_ok())
        {
            self.share_with_all(port, packet, outs);
        }
    }

    /// Sends what has waited for a station.
    fn release(&mut self, port: u16, mac: Mac, mut held: Burst, outs: &mut Outs) {
        for number in 0..held.len() {
            held.head_mut(number)[..6].copy_from_slice(&mac.0);
            let out = &mut outs.ports[usize::from(port)];
            let left = held.get(number).is_some_and(|packet| out.append(packet));
            if !left {
                self.counts[usize::from(port)].drop(LinkCause::NoRoom);
            }
        }
    }

    pub(super) fn handle_icmp(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        internet: &Internet,
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let mut first = [0; ECHO_BYTES];
        let header = &internet.header;
        if header.payload < ECHO_BYTES || packet.copy_to(internet.at, &mut first) < ECHO_BYTES {
            return Err(LinkCause::Truncated);
        }
        let interface = &self.interfaces[usize::from(port)];
        let is_v6 = header.source.is_ipv6();
        if let (true, IpAddr::V6(source), IpAddr::V6(destination)) = (
            matches!(first[0], 135 | 136),
            header.source,
            header.destination,
        ) {
            let mut bytes = [0; ICMP_BYTES_MAX];
            let bytes = bytes
                .get_mut(..header.payload)
                .ok_or(LinkCause::Neighbour)?;
            packet.copy_to(internet.at, bytes);
            let message = Neighbour::parse(bytes, source, destination, header.hops);
            let message = message.ok_or(LinkCause::Neighbour)?;
            return self.handle_neighbour(port, packet, internet, (source, message), outs);
        }
        if !interface.has(header.destination) {
            return Err(LinkCause::Destination);
        }
        let answer = answer_echo(first, is_v6).ok_or(LinkCause::Icmp)?;
        self.may_answer(port)?;
        self.consume(port);
        let interface = &self.interfaces[usize::from(port)];
        let mut ip = Written::new(
            header.destination,
            header.source,
            header.protocol,
            header.payload,
        );
        ip.class = header.class;
        let mut lead = [0; HEAD_BYTES];
        let kind = if is_v6 { IPV6 } else { IPV4 };
        let mut end = Frame::emit(&mut lead, internet.mac, interface.mac, interface.vlan, kind);
        ip.emit(&mut lead[end..]).ok_or(LinkCause::Headers)?;
        end += ip.bytes();
        lead[end..end + ECHO_BYTES].copy_from_slice(&answer);
        end += ECHO_BYTES;
        let body = internet.at + ECHO_BYTES;
        let length = header.payload - ECHO_BYTES;
        self.answer(port, packet, &lead[..end], body, length, outs)
    }

    fn handle_neighbour(
        &mut self,
        port: u16,
        packet: Packet<'_>,
        internet: &Internet,
        (source, message): (Ipv6Addr, Neighbour),
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let mac = message.mac.unwrap_or(internet.mac);
        if !message.is_solicitation {
            let said = Said {
                mac,
                is_answer: message.is_solicited,
                is_announced: !message.is_solicited && message.overrides,
                overrides: message.overrides,
            };
            self.hear(port, packet, message.target.into(), said, outs);
            self.consume(port);
            return Ok(());
        }
        if !source.is_unspecified() {
            let said = Said {
                mac,
                is_answer: false,
                is_announced: false,
                overrides: true,
            };
            self.hear(port, packet, source.into(), said, outs);
        }
        let interface = &self.interfaces[usize::from(port)];
        if !interface.has(message.target.into()) {
            return Err(LinkCause::Destination);
        }
        self.may_answer(port)?;
        self.consume(port);
        let interface = &self.interfaces[usize::from(port)];
        // Who has no address yet, and looks whether somebody else has it, is told with all others.
        let (to, to_mac) = match source.is_unspecified() {
            true => (ALL_NODES, group_mac(ALL_NODES)),
            false => (source, mac),
        };
        let answer = Neighbour {
            is_solicitation: false,
            target: message.target,
            mac: Some(interface.mac),
            is_solicited: !source.is_unspecified(),
            overrides: true,
        };
        let mut lead = [0; HEAD_BYTES];
        let begin = Frame::emit(&mut lead, to_mac, interface.mac, interface.vlan, IPV6);
        let end = emit_neighbour(&mut lead, begin, &answer, message.target, to);
        self.answer(port, packet, &lead[..end], 0, 0, outs)
    }

    /// Whether a port has answers left in this second.
    fn may_answer(&mut self, port: u16) -> Result<(), LinkCause> {
        let (second, count) = &mut self.answers[usize::from(port)];
        if *second != self.now_s {
            (*second, *count) = (self.now_s, 0);
        }
        if *count >= ANSWERS_PER_SECOND {
            return Err(LinkCause::Answers);
        }
        *count += 1;
        Ok(())
    }

    /// Whether packets or messages of its own wait for nothing but [`Node::poll`].
    pub(crate) fn has_more(&self) -> bool {
        self.function.has_more()
    }

    /// When [`Node::poll`] has something to do, by the time of [`Node::set_time`].
    #[inline]
    #[must_use]
    pub fn poll_at_ns(&self) -> Option<u64> {
        if self.function.has_more() {
            return Some(self.now_ns);
        }
        let due = [
            self.neighbours.poll_at_ns(),
            self.function.next_timeout_ns(),
        ];
        let parts = self.reassemblers.iter();
        let parts = parts.map(Reassembler::next_timeout_ns);
        due.into_iter().chain(parts).flatten().min()
    }

    /// Does what is due: asks for stations, and has the function do what it must, and sends what waited; `outs` are empty.
    pub fn poll(&mut self, outs: &mut Outs) {
        if self
            .function
            .next_timeout_ns()
            .is_some_and(|at| at <= self.now_ns)
        {
            self.function.handle_timeout(self.now_ns);
        }
        for reassembler in &mut self.reassemblers {
            reassembler.handle_timeout(self.now_ns);
        }
        self.has_cut = false;
        self.send_own(outs);
        let mut asks: Vec<Ask> = Vec::new();
        let counts = &mut self.counts;
        self.neighbours.poll(
            self.now_ns,
            |ask| asks.push(ask),
            |port, held| {
                counts[usize::from(port)].drop_many(LinkCause::Unresolved, held.len() as u64);
            },
        );
        for (port, held) in self.neighbours.take_crowded() {
            self.counts[usize::from(port)].drop_many(LinkCause::Unresolved, held);
        }
        for ask in asks {
            let mut frame = [0; HEAD_BYTES];
            // An address of this family is needed to ask; packets have none to come from either.
            let Some(end) = self.emit_ask(&mut frame, &ask) else {
                continue;
            };
            if outs.ports[usize::from(ask.port)].push(&frame[..end]) {
                self.counts[usize::from(ask.port)].made += 1;
            }
        }
    }

    fn emit_ask(&self, frame: &mut [u8; HEAD_BYTES], ask: &Ask) -> Option<usize> {
        let interface = &self.interfaces[usize::from(ask.port)];
        // The address that is of the same network, if one is.
        let mut own = interface.addresses.iter();
        let near = own.find(|own| own.has(ask.address)).map(|own| own.address);
        let source = near.or_else(|| interface.source(ask.address))?;
        match (source, ask.address) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let to = ask.mac.unwrap_or(Mac::BROADCAST);
                let begin = Frame::emit(frame, to, interface.mac, interface.vlan, ARP);
                let request = Arp {
                    is_request: true,
                    mac: interface.mac,
                    address: source,
                    target_mac: Mac::default(),
                    target,
                };
                frame[begin..begin + arp::BYTES].copy_from_slice(&request.emit());
                Some(begin + arp::BYTES)
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let group = solicited_group(target);
                let (to, to_mac) = match ask.mac {
                    Some(mac) => (target, mac),
                    None => (group, group_mac(group)),
                };
                let begin = Frame::emit(frame, to_mac, interface.mac, interface.vlan, IPV6);
                let request = Neighbour {
                    is_solicitation: true,
                    target,
                    mac: Some(interface.mac),
                    is_solicited: false,
                    overrides: false,
                };
                Some(emit_neighbour(frame, begin, &request, source, to))
            }
            _ => None,
        }
    }
}

/// Writes a packet of neighbour discovery behind a frame's header; returns where it ends.
fn emit_neighbour(
    frame: &mut [u8; HEAD_BYTES],
    begin: usize,
    message: &Neighbour,
    source: Ipv6Addr,
    to: Ipv6Addr,
) -> usize {
    let mut ip = Written::new(source.into(), to.into(), ICMPV6, NEIGHBOUR_BYTES);
    ip.hops = NEIGHBOUR_HOPS;
    // There is room, and both are of one family.
    let _ = ip.emit(&mut frame[begin..]);
    let at = begin + ip.bytes();
    frame[at..at + NEIGHBOUR_BYTES].copy_from_slice(&message.emit(source, to));
    at + NEIGHBOUR_BYTES
}
