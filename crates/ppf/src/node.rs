//! A packet's way through the function: frames of ports come in by the burst, and go out by bursts for ports. There is no I/O here, and no
//! clock.
//!
//! A burst is gone through several times: what is each packet (`meet`), whose is it, and what becomes of it. What a time needs of a bearer
//! or a user is read just before, by loops that do nothing else, so that what is not in the processor's cache is waited for together. A
//! message's header is written anew and its body goes on where it lies, by [`Burst::append_part`]; nothing is allocated, but for a packet
//! that waits for its next station's address.
//!
//! A function with several workers has a node for each. All of them know all users, stations and ways; a bearer's state is one node's
//! ([`Node::owner`]), and what is of another's bearer is copied to it. What stations say is copied to all.
//!
//! In reading order: this file (who gets what), `meet` (what a packet is), `share` (which worker deals with it), `send` (messages and
//! users' packets leave), `cut` (those that are too long for their port), `whole` (those that came in parts), `own` (what the function
//! sends by itself), `local` (what is for the function itself).

use std::net::IpAddr;

use millrace_port::{Burst, Packet};

use crate::bearer::{Bearer, BearerId, MeterId, Side};
use crate::ethernet::Mac;
use crate::function::{Function, Settings};
use crate::link::{LinkCause, LinkCounts};
use crate::meter::Limit;
use crate::neighbour::{Known, Neighbours};
use crate::reassembly::{Reassembler, ReassemblyLimits};
use crate::route::{Prefix, Route, Routes};
use crate::table::users::{User, Users};

mod cut;
mod local;
mod meet;
mod own;
mod send;
mod share;
mod whole;

#[cfg(test)]
mod tests;

use cut::{Numbers, PIECES_MAX};
use meet::Met;
use send::Towards;

/// Packets that are handled together.
pub const BURST: usize = 32;
/// Packets that leave by one port at once: those of a burst, what the function sends by itself, and what has waited for a station.
pub(crate) const OUT_BURST: usize = 2 * BURST + crate::neighbour::HELD_MAX * 8;
/// Bytes of the longest packet of IP: of version 6, whose length does not have its header's.
const PACKET_BYTES_MAX: usize = crate::ip::IPV6_BYTES + crate::fragment::PAYLOAD_BYTES_MAX;

/// A port, as the function sees it.
#[derive(Debug, Clone)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Which side is there.
    pub side: Side,
    /// Its station's address.
    pub mac: Mac,
    /// The VLAN that it is in.
    pub vlan: Option<u16>,
    /// Its addresses, with their networks, which are at this port.
    pub addresses: Vec<Prefix>,
    /// Networks that gateways at this port lead to.
    pub routes: Vec<(Prefix, IpAddr)>,
    /// Bytes of an IP packet that leaves by it, at most.
    pub mtu: usize,
    /// In IPv6, UDP has no checksum, and none is asked for (RFC 6935, RFC 6936).
    pub udp_zero: bool,
}

impl Interface {
    /// The address that packets to there come from.
    #[inline]
    fn source(&self, to: IpAddr) -> Option<IpAddr> {
        let mut own = self.addresses.iter();
        let own = own.find(|own| own.address.is_ipv4() == to.is_ipv4());
        own.map(|own| own.address)
    }

    #[inline]
    fn has(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.address == address)
    }
}

/// Where packets leave to.
#[derive(Debug)]
pub struct Outs {
    /// By port: frames that leave by it.
    pub ports: Vec<Burst>,
    /// By worker: frames that came by the port whose burst was handled, and that are another worker's to handle.
    pub works: Vec<Burst>,
}

impl Outs {
    /// For so many.
    #[must_use]
    pub fn new(ports: usize, workers: usize) -> Outs {
        Outs {
            ports: (0..ports).map(|_| Burst::new(OUT_BURST)).collect(),
            works: (0..workers).map(|_| Burst::new(BURST)).collect(),
        }
    }
}

/// What was found once of a path. Its number may be another path's by now.
#[derive(Debug, Clone, Copy)]
struct Hop {
    side: Side,
    to: IpAddr,
    /// Of the neighbours then.
    generation: u32,
    towards: Towards,
}

/// The function of one worker.
#[derive(Debug)]
pub struct Node {
    /// Bearers, and what becomes of messages.
    pub function: Function,
    interfaces: Vec<Interface>,
    routes: Routes,
    neighbours: Neighbours,
    /// Of all workers' bearers, where there are several: of one's own the function knows them.
    users: [Users; 2],
    /// By a path's number.
    hops: Vec<Option<Hop>>,
    /// Of what left last without a path: the next is mostly for the same gateway.
    last: Option<Hop>,
    counts: Vec<LinkCounts>,
    /// What the function is shown where a message is longer than what is private of it: a copy.
    shown: Box<[u8]>,
    /// For sums of what is not in a head.
    summed: Box<[u8]>,
    met: Vec<Met>,
    /// Room for what the function sends by itself; none while it is used.
    own: Option<Burst>,
    /// Answers of a port in a second.
    answers: Vec<(u64, u32)>,
    /// By side, outer packets that come in parts.
    reassemblers: [Reassembler; 2],
    /// Of outer packets that leave in parts.
    numbers: Numbers,
    /// Something was cut for the bursts that are filled now: they may become full.
    has_cut: bool,
    worker: usize,
    workers: usize,
    /// What is handled now came from another worker.
    is_work: bool,
    now_ns: u64,
    now_s: u64,
    lost: u64,
    alive: u64,
}

impl Node {
    /// One of `workers` nodes, of functions with these ports, as functions usually are.
    #[must_use]
    pub fn new(interfaces: Vec<Interface>, worker: usize, workers: usize) -> Node {
        Node::with_settings(interfaces, Settings::default(), worker, workers)
    }

    /// One of `workers` nodes, of functions with these ports, that are as they are said to be, but for what ports say: no packet is longer
    /// than every port of its side takes.
    #[must_use]
    pub fn with_settings(
        interfaces: Vec<Interface>,
        mut settings: Settings,
        worker: usize,
        workers: usize,
    ) -> Node {
        settings.mtu = Side::BOTH.map(|side| mtu_of(&interfaces, side));
        let mut function = Function::with_settings(settings);
        function.bearers.paths.share(worker, workers);
        let mut routes = Vec::new();
        for (port, interface) in (0..).zip(&interfaces) {
            let side = interface.side;
            let own = interface.addresses.iter().map(|to| (*to, None));
            let far = interface.routes.iter();
            let far = far.map(|(to, via)| (*to, Some(*via)));
            routes.extend(own.chain(far).map(|(to, via)| Route {
                side,
                to,
                port,
                via,
            }));
        }
        let ports = interfaces.len();
        Node {
            function,
            routes: Routes::new(routes),
            neighbours: Neighbours::default(),
            users: [Users::default(), Users::default()],
            hops: Vec::new(),
            last: None,
            counts: vec![LinkCounts::default(); ports],
            shown: vec![0; PACKET_BYTES_MAX].into_boxed_slice(),
            summed: vec![0; PACKET_BYTES_MAX].into_boxed_slice(),
            met: Vec::with_capacity(BURST),
            own: Some(Burst::new(1)),
            answers: vec![(0, 0); ports],
            reassemblers: Side::BOTH.map(|_| Reassembler::new(ReassemblyLimits::default())),
            numbers: Numbers::new(worker, workers),
            has_cut: false,
            interfaces,
            worker,
            workers,
            is_work: false,
            now_ns: 0,
            now_s: 0,
            lost: 0,
            alive: 0,
        }
    }

    /// Which worker has a bearer's state.
    #[inline]
    #[must_use]
    pub fn owner(bearer: BearerId, workers: usize) -> usize {
        bearer.shard() as usize % workers
    }

    /// Has all bearers of a user equipment be limited together from now on, or no more.
    pub fn put_ue(&mut self, ue: MeterId, limits: Option<[Limit; 2]>) {
        match limits {
            Some(limits) => self.function.bearers.put_meter(ue, limits),
            None => {
                self.function.bearers.remove_meter(ue);
            }
        }
    }

    /// Has a bearer from now on, if it is this worker's, and knows its user in any case. One that is there already goes on with what it
    /// has counted.
    pub fn put(&mut self, id: BearerId, mut bearer: Bearer) {
        for (side, user) in users_of(&bearer) {
            if self.workers > 1 {
                self.users[side as usize].insert(user, id);
            }
        }
        if Node::owner(id, self.workers) != self.worker {
            self.know_peers(&bearer);
            return;
        }
        let bearers = &mut self.function.bearers;
        if let Some(mut there) = bearers.get_mut(id) {
            (bearer.usage, bearer.active_s) = (there.usage, there.active_s);
            *there = bearer;
        } else {
            // Whoever says numbers gives none twice; and far ends are as many as the registry could take.
            bearers.restore(id, &bearer);
        }
    }

    /// Has a bearer be otherwise than it was. Whoever was at a tunnel's far end until now gets so many end markers behind the last packet
    /// (TS 23.501, 5.8.2.9).
    pub fn change(&mut self, id: BearerId, before: &Bearer, after: Bearer, markers: u32) {
        self.forget_users(id, before);
        for side in Side::BOTH {
            if before.peer(side) != after.peer(side) {
                for _ in 0..markers {
                    self.function.end_marker(id, side);
                }
            }
        }
        self.put(id, after);
    }

    /// Has it no more; returns it, if it was this worker's. `bearer`: what the registry knew.
    pub fn remove(&mut self, id: BearerId, bearer: &Bearer) -> Option<Bearer> {
        self.forget_users(id, bearer);
        self.function.bearers.remove(id)
    }

    /// Forgets whose packets come to a bearer without a tunnel, and that another worker's has these peers; before its far ends become
    /// others.
    pub fn forget_users(&mut self, id: BearerId, bearer: &Bearer) {
        if Node::owner(id, self.workers) != self.worker {
            self.forget_peers(bearer);
        }
        for (side, user) in users_of(bearer) {
            self.users[side as usize].remove(user, id);
        }
    }

    /// Whose bearers users' addresses are.
    #[inline]
    fn users(&self, side: Side) -> &Users {
        match self.workers {
            1 => self.function.bearers.users(side),
            _ => &self.users[side as usize],
        }
    }

    /// What a port's packets became.
    #[must_use]
    pub fn counts(&self) -> &[LinkCounts] {
        &self.counts
    }

    /// How often a peer said that it has a tunnel no more, and that it lives.
    #[must_use]
    pub fn heard(&self) -> (u64, u64) {
        (self.lost, self.alive)
    }

    /// Stations: port, address, station, what is known.
    pub fn neighbours(&self) -> impl Iterator<Item = (u16, IpAddr, Mac, Known)> {
        self.neighbours.iter()
    }

    /// The ports.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Counts packets that a port did not take.
    pub fn lose(&mut self, port: u16, packets: u64) {
        self.counts[usize::from(port)].drop_many(LinkCause::NoRoom, packets);
    }

    /// Tells the time, from any beginning.
    #[inline]
    pub fn set_time(&mut self, now_ns: u64) {
        if self.now_ns != now_ns {
            self.now_ns = now_ns;
            self.now_s = now_ns / 1_000_000_000;
        }
    }

    /// Deals with the packets that came by a port; `outs` are empty. `is_work`: they were handed over by another worker, who has counted
    /// them. Returns how many it has dealt with: what is cut may need more room than there is, and the others are left to
    /// [`Node::receive_from`] then.
    #[inline]
    pub fn receive(&mut self, port: u16, burst: &Burst, is_work: bool, outs: &mut Outs) -> usize {
        self.receive_from(0, port, burst, is_work, outs)
    }

    /// The same without the first packets of a burst, which are `from`.
    #[inline]
    pub fn receive_from(
        &mut self,
        from: usize,
        port: u16,
        burst: &Burst,
        is_work: bool,
        outs: &mut Outs,
    ) -> usize {
        (self.is_work, self.has_cut) = (is_work, false);
        let mut met = std::mem::take(&mut self.met);
        met.clear();
        let mut read = 0;
        let side = self.interfaces[usize::from(port)].side;
        for packet in rest(burst, from) {
            let what = match self.meet(usize::from(port), packet) {
                Ok(what) => what,
                Err(cause) => Met::Drop(cause),
            };
            met.push(what);
        }
        // Loops that do little else have many of their reads under way at once.
        for what in &met {
            if let Met::Plain { user, .. } = what {
                read ^= self.users(side).touch(*user);
            }
        }
        for what in &mut met {
            if let Met::Plain { user, at, length } = *what {
                *what = match self.users(side).find(user) {
                    Some(bearer) => Met::User { bearer, at, length },
                    None => Met::Drop(LinkCause::Destination),
                };
            }
        }
        for what in &met {
            read ^= what.bearer().map_or(0, |bearer| {
                self.function.bearers.touch(bearer.teid(Side::Core))
            });
        }
        std::hint::black_box(read);
        let mut done = from;
        for (packet, what) in rest(burst, from).zip(&met) {
            if !self.has_room(outs) {
                break;
            }
            if let Err(cause) = self.share_or_deal(port, packet, what, outs) {
                self.counts[usize::from(port)].drop(cause);
            }
            done += 1;
        }
        if !is_work {
            self.counts[usize::from(port)].received += (done - from) as u64;
        }
        self.met = met;
        done
    }

    /// Whether there is room for whatever becomes of one packet more. Where nothing is cut there is.
    #[inline]
    fn has_room(&self, outs: &Outs) -> bool {
        !self.has_cut
            || outs
                .ports
                .iter()
                .all(|out| out.len() + PIECES_MAX <= OUT_BURST)
    }
}

const _: () = assert!(BURST + PIECES_MAX <= OUT_BURST);

/// A burst's packets without the first ones: passed over once, and not looked for with each.
#[inline]
fn rest(burst: &Burst, from: usize) -> impl Iterator<Item = Packet<'_>> {
    let mut packets = burst.iter();
    if from > 0 {
        packets.nth(from - 1);
    }
    packets
}

/// The longest packet that every port of a side takes.
fn mtu_of(interfaces: &[Interface], side: Side) -> usize {
    let own = interfaces.iter().filter(|own| own.side == side);
    own.map(|own| own.mtu).min().unwrap_or(0)
}

/// A bearer's user, on a side without a tunnel, by each of its addresses.
fn users_of(bearer: &Bearer) -> impl Iterator<Item = (Side, User)> {
    let sides = Side::BOTH.map(|side| (side, bearer.peer(side)));
    let also = bearer.user_v6;
    let plain = sides.into_iter().filter(|(_, peer)| peer.is_plain());
    plain.flat_map(move |(side, peer)| {
        let addresses = [Some(peer.address), also.map(IpAddr::from)];
        let users = addresses.into_iter().flatten();
        users.map(move |address| (side, User::of(address)))
    })
}
