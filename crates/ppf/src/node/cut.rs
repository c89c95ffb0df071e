//! Packets that are longer than their port takes: messages are cut into fragments of one outer packet (RFC 791, 3.2; RFC 8200, 4.5), and
//! users' packets of IPv4 that may be cut as a router does it. Each piece is a header, and a part of what came, which stays where it lies.
//!
//! What is cut has a checksum in UDP, in IPv4 as well, and whatever a port says of checksums: nothing else shows whoever puts it together
//! that parts of two packets were (RFC 4963; RFC 6864, 5.2).

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use millrace_port::HEAD_BYTES;
use millrace_wire::gtpu::PORT;

use super::hop::{Towards, station};
use super::send::{Part, add_part};
use super::{Interface, Node, OUT_BURST, Outs};
use crate::checksum::adjusted;
use crate::ethernet::{Frame, HEADER_BYTES, IPV4, IPV6, TAGGED_BYTES};
use crate::fragment::{
    FRAGMENT_HEADER_BYTES, PAYLOAD_BYTES_MAX, Piece, UNIT, emit_v4_fragment_place,
    emit_v6_fragment_header, pieces,
};
use crate::ip::{
    DONT_FRAGMENT, FRAGMENT, IPV4_BYTES, IPV6_BYTES, MORE_FRAGMENTS, OFFSET_MASK, UDP_BYTES, Udp,
    Written,
};
use crate::link::LinkCause;
use crate::neighbour::Way;

/// Pieces of one packet, at most: 64 KiB in pieces of 1100 bytes. Whoever puts them together has such a limit as well.
pub(super) const PIECES_MAX: usize = 64;
/// Counts of numbers that were given, which pairs of addresses share.
const COUNTERS: usize = 1024;
/// Of IPv4's header without options: version and length.
const V4_PLAIN: u8 = 0x45;

/// Numbers of packets that are cut. A number comes again for a pair of addresses after as many packets as there can be (RFC 6864, 4.3),
/// workers share none, and whoever does not see them cannot know the next one (RFC 7739).
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    counters: Box<[u32]>,
    secret: RandomState,
    worker: u32,
    /// A power of two, so that workers' numbers stay apart when a count begins anew.
    step: u32,
}

impl Numbers {
    /// Of one of `workers`.
    pub(super) fn new(worker: usize, workers: usize) -> Numbers {
        Numbers {
            counters: vec![0; COUNTERS].into_boxed_slice(),
            secret: RandomState::new(),
            // There are 16 workers at most.
            worker: worker as u32,
            step: workers.next_power_of_two() as u32,
        }
    }

    pub(super) fn next(&mut self, source: IpAddr, destination: IpAddr) -> u32 {
        let hash = self.secret.hash_one((source, destination));
        let counter = &mut self.counters[hash as usize % COUNTERS];
        *counter = counter.wrapping_add(1);
        let count = counter.wrapping_add((hash >> 32) as u32);
        count.wrapping_mul(self.step).wrapping_add(self.worker)
    }
}

/// The header that pieces have.
enum Head {
    /// Of a message: the whole packet's, and its number.
    Message(Written, u32),
    /// Of a user's packet, which may be a fragment itself.
    User([u8; IPV4_BYTES]),
}

impl Head {
    fn is_v6(&self) -> bool {
        matches!(self, Head::Message(ip, _) if ip.source.is_ipv6())
    }

    /// How many bytes it takes.
    fn bytes(&self) -> usize {
        match self.is_v6() {
            true => IPV6_BYTES + FRAGMENT_HEADER_BYTES,
            false => IPV4_BYTES,
        }
    }

    /// Writes that of a piece, for which there is room.
    fn emit(&self, piece: &Piece, to: &mut [u8]) -> Option<()> {
        match self {
            Head::Message(ip, number) if self.is_v6() => {
                let own = Written {
                    protocol: FRAGMENT,
                    payload: FRAGMENT_HEADER_BYTES + piece.bytes,
                    ..*ip
                };
                own.emit(to)?;
                let fragment = emit_v6_fragment_header(ip.protocol, *number, piece);
                to.get_mut(IPV6_BYTES..IPV6_BYTES + FRAGMENT_HEADER_BYTES)?
                    .copy_from_slice(&fragment);
            }
            Head::Message(ip, number) => {
                let own = Written {
                    payload: piece.bytes,
                    ..*ip
                };
                own.emit(to)?;
                let header = to.first_chunk_mut::<IPV4_BYTES>()?;
                // Of 32 bits, those that the field has.
                put_word(header, 4, *number as u16);
                put_word(header, 6, u16::from_be_bytes(emit_v4_fragment_place(piece)));
            }
            Head::User(header) => {
                let to = to.first_chunk_mut::<IPV4_BYTES>()?;
                *to = *header;
                let own = u16::from_be_bytes([header[6], header[7]]);
                let place = Piece {
                    at: usize::from(own & OFFSET_MASK) * UNIT + piece.at,
                    has_more: piece.has_more || own & MORE_FRAGMENTS != 0,
                    ..*piece
                };
                // A piece is shorter than the packet was.
                put_word(to, 2, (IPV4_BYTES + piece.bytes) as u16);
                put_word(to, 6, u16::from_be_bytes(emit_v4_fragment_place(&place)));
            }
        }
        Some(())
    }
}

/// A packet that is cut.
struct Cut<'a> {
    head: Head,
    /// What follows the header: these bytes,
    front: &'a [u8],
    /// and these.
    body: Part<'a>,
}

impl<'a> Cut<'a> {
    fn pieces(&self, mtu: usize) -> impl Iterator<Item = Piece> + use<> {
        pieces(self.front.len() + self.body.length, self.head.is_v6(), mtu)
    }

    /// Writes what a piece begins with, for which there is room; returns how many bytes that is, and the part of the body behind it.
    fn emit(&self, piece: &Piece, to: &mut [u8]) -> Option<(usize, Part<'a>)> {
        self.head.emit(piece, to)?;
        let front = if piece.at == 0 { self.front } else { &[] };
        let begin = self.head.bytes();
        let end = begin + front.len();
        to.get_mut(begin..end)?.copy_from_slice(front);
        // The first piece has all of the front.
        let part = Part {
            at: self.body.at + (piece.at + front.len()).checked_sub(self.front.len())?,
            length: piece.bytes.checked_sub(front.len())?,
            ..self.body
        };
        Some((end, part))
    }
}

/// Changes a word of a header of IPv4, and its checksum with it: one that was wrong stays wrong.
fn put_word(header: &mut [u8; IPV4_BYTES], at: usize, word: u16) {
    let of = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let checksum = adjusted(of(10), of(at), word);
    header[at..at + 2].copy_from_slice(&word.to_be_bytes());
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

impl Node {
    /// Sends a message that is longer than its port takes; `ip`: the header that it would have whole, by value, so that it need not be in
    /// memory for those that are not cut.
    #[cold]
    pub(super) fn send_cut(
        &mut self,
        body: Part<'_>,
        towards: (Towards, Way),
        ip: Written,
        header: &[u8],
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let own = if ip.source.is_ipv4() { IPV4_BYTES } else { 0 };
        if own + ip.payload > PAYLOAD_BYTES_MAX {
            return Err(LinkCause::TooLong);
        }
        let mut front = [0; HEAD_BYTES];
        let end = UDP_BYTES + header.len();
        front
            .get_mut(UDP_BYTES..end)
            .ok_or(LinkCause::Headers)?
            .copy_from_slice(header);
        // It fits, as was just seen.
        Udp::emit(&mut front, PORT, PORT, ip.payload as u16);
        let mut sum = ip.pseudo_sum();
        // Headers have an even length each.
        sum.add(&front[..end]);
        add_part(&mut self.summed, body, &mut sum);
        let sum = sum.complement_of_udp();
        front[UDP_BYTES - 2..UDP_BYTES].copy_from_slice(&sum.to_be_bytes());
        let number = self.numbers.next(ip.source, ip.destination);
        let cut = Cut {
            head: Head::Message(ip, number),
            front: &front[..end],
            body,
        };
        self.leave_cut(&cut, towards, outs)
    }

    /// Sends a user's packet that is longer than its port takes, if it may be cut. One with options is not cut, since not all of them are
    /// for each piece.
    #[cold]
    pub(super) fn send_user_cut(
        &mut self,
        body: Part<'_>,
        towards: (Towards, Way),
        beginning: &[u8],
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let (header, front) = beginning
            .split_first_chunk::<IPV4_BYTES>()
            .ok_or(LinkCause::TooLong)?;
        let place = u16::from_be_bytes([header[6], header[7]]);
        if header[0] != V4_PLAIN || place & DONT_FRAGMENT != 0 {
            return Err(LinkCause::TooLong);
        }
        let payload = front.len() + body.length;
        let end = usize::from(place & OFFSET_MASK) * UNIT + payload;
        let is_cut_wrongly = place & MORE_FRAGMENTS != 0 && !payload.is_multiple_of(UNIT);
        if is_cut_wrongly || IPV4_BYTES + end > PAYLOAD_BYTES_MAX {
            return Err(LinkCause::IpHeader);
        }
        let head = Head::User(*header);
        self.leave_cut(&Cut { head, front, body }, towards, outs)
    }

    /// How many pieces there will be, and there is room for all of them; or why none leaves.
    fn count_pieces(
        &self,
        cut: &Cut<'_>,
        (towards, way): (Towards, Way),
        outs: &Outs,
    ) -> Result<usize, LinkCause> {
        let port = usize::from(towards.port);
        let interface = &self.interfaces[port];
        let count = cut.pieces(interface.mtu).take(PIECES_MAX + 1).count();
        let first = cut.pieces(interface.mtu).next();
        if count > PIECES_MAX || first.is_none_or(|first| first.bytes < cut.front.len()) {
            return Err(LinkCause::TooLong);
        }
        let ethernet = match interface.vlan {
            Some(_) => TAGGED_BYTES,
            None => HEADER_BYTES,
        };
        if ethernet + cut.head.bytes() + cut.front.len() > HEAD_BYTES {
            return Err(LinkCause::Headers);
        }
        let (room, cause) = match way {
            Way::Wait => (
                self.neighbours.held_room(towards.place),
                LinkCause::Unresolved,
            ),
            _ => (OUT_BURST - outs.ports[port].len(), LinkCause::NoRoom),
        };
        if count > room { Err(cause) } else { Ok(count) }
    }

    /// Puts all pieces where packets leave, or none.
    fn leave_cut(
        &mut self,
        cut: &Cut<'_>,
        (towards, way): (Towards, Way),
        outs: &mut Outs,
    ) -> Result<(), LinkCause> {
        let mac = station(way)?;
        let count = self.count_pieces(cut, (towards, way), outs)?;
        let port = usize::from(towards.port);
        let Interface {
            mac: own,
            vlan,
            mtu,
            ..
        } = self.interfaces[port];
        let kind = if cut.head.is_v6() { IPV6 } else { IPV4 };
        self.counts[port].made += count as u64 - 1;
        self.has_cut = true;
        for (number, piece) in cut.pieces(mtu).enumerate() {
            let lead = outs.ports[port].next_head().ok_or(LinkCause::NoRoom);
            let written = lead.and_then(|lead| {
                let begin = Frame::emit(lead, mac, own, vlan, kind);
                let (bytes, part) = cut
                    .emit(&piece, &mut lead[begin..])
                    .ok_or(LinkCause::Headers)?;
                Ok((begin + bytes, part))
            });
            let left = written.and_then(|(lead, part)| self.leave(part, lead, towards, way, outs));
            if let Err(cause) = left {
                // Whoever is told of it counts one.
                self.counts[port].drop_many(cause, (count - number - 1) as u64);
                return Err(cause);
            }
        }
        Ok(())
    }
}
