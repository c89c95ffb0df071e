//! A packet's way through the function: frames of ports come in by the burst, and go out by bursts for ports. There is no I/O here, and no
//! clock.
//!
//! A burst is gone through several times: what is each packet (`meet`), whose is it, and what becomes of it. What a time needs of a bearer
//! or a user is read just before, by loops that do nothing else, so that what is not in the processor's cache is waited for together. A
//! message's header is written anew and its body goes on where it lies, by [`Burst::append_behind`]; nothing is allocated, but for a packet
//! that waits for its next station's address.
//!
//! A function with several workers has a node for each. All of them know all users, peers, stations and ways; a bearer's state is one
//! node's at a time, with its shard's, and what is of another's bearer is handed over. What stations say is handed to all.
//!
//! In reading order: this file (who gets what), `outs` (where packets leave to), `meet` (what a packet is), `share` (which worker deals
//! with it), `express` (the short way of most messages), `send` (messages and users' packets leave), `hop` (where to) and `lead` (behind
//! which headers), `cut` (those that are too long for their port), `whole` (those that came in parts), `own` (what the function sends by
//! itself), `local` (what is for the function itself).

use std::net::IpAddr;

use millrace_port::{Burst, Packet};

use crate::bearer::{Bearer, BearerId, MeterId, SHARDS, Side};
use crate::ethernet::Mac;
use crate::function::{Function, Settings};
use crate::link::{LinkCause, LinkCounts};
use crate::meter::Limit;
use crate::neighbour::{Known, Neighbours};
use crate::reassembly::{Reassembler, ReassemblyLimits};
use crate::route::{Prefix, Route, Routes};
use crate::table::moving::Shard;
use crate::table::users::{User, Users};

mod cut;
mod express;
mod hop;
mod lead;
mod local;
mod meet;
mod outs;
mod own;
mod send;
mod share;
mod whole;

#[cfg(test)]
pub(crate) mod tests;

use cut::{Numbers, PIECES_MAX};
use hop::{Hop, Last};
use meet::Met;
pub use outs::{Outs, Whose};

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
    last: Option<Last>,
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
    /// By side, what is longer is not sent as it is; it is never 0.
    mtu: [usize; 2],
    /// Whether what can take the short way does; not, where tests hold it against the usual one.
    has_express: bool,
    /// By side, outer packets that come in parts.
    reassemblers: [Reassembler; 2],
    /// Of outer packets that leave in parts.
    numbers: Numbers,
    /// Something was cut for the bursts that are filled now: they may become full.
    has_cut: bool,
    worker: usize,
    workers: usize,
    /// By shard of bearers: what comes for them is dealt with here and now.
    shards: Box<[bool]>,
    /// Everything of bearers is handed over now: some of it waits already.
    defers: bool,
    /// What is handled now was handed over.
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
            mtu: settings
                .mtu
                .map(|mtu| if mtu == 0 { usize::MAX } else { mtu }),
            has_express: true,
            reassemblers: Side::BOTH.map(|_| Reassembler::new(ReassemblyLimits::default())),
            numbers: Numbers::new(worker, workers),
            has_cut: false,
            interfaces,
            worker,
            workers,
            shards: (0..SHARDS).map(|shard| shard % workers == worker).collect(),
            defers: false,
            is_work: false,
            now_ns: 0,
            now_s: 0,
            lost: 0,
            alive: 0,
        }
    }

    /// Says of which shards of bearers packets are dealt with where they come; those of others are handed over. At first shards go round
    /// the workers.
    pub fn deal_with(&mut self, is_here: impl Fn(u32) -> bool) {
        for (shard, here) in (0..).zip(&mut self.shards) {
            *here = is_here(shard);
        }
    }

    /// How many those are that are dealt with.
    pub(crate) fn shards(&self) -> usize {
        self.shards.iter().filter(|here| **here).count()
    }

    /// Whether all that comes for bearers is handed over from now on, also for those that are here.
    pub fn defer(&mut self, defers: bool) {
        self.defers = defers;
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

    /// Knows a bearer's users and peers from now on, whoever has the bearer.
    pub fn know(&mut self, id: BearerId, bearer: &Bearer) {
        if self.workers > 1 {
            self.know_users(id, bearer);
            self.know_peers(bearer);
        }
    }

    /// Knows them no more.
    pub fn forget(&mut self, id: BearerId, bearer: &Bearer) {
        if self.workers > 1 {
            self.forget_users(id, bearer);
            self.forget_peers(bearer);
        }
    }

    /// Knows others, of a bearer that becomes another. A peer that is in both is asked as it was: its path is never without a tunnel.
    pub fn know_instead(&mut self, id: BearerId, before: &Bearer, after: &Bearer) {
        if self.workers > 1 {
            self.know_peers(after);
            self.forget_peers(before);
            // A user that is in both is the bearer's after it was not.
            self.forget_users(id, before);
            self.know_users(id, after);
        }
    }

    fn know_users(&mut self, id: BearerId, bearer: &Bearer) {
        for (side, user) in users_of(bearer) {
            self.users[side as usize].insert(user, id);
        }
    }

    fn forget_users(&mut self, id: BearerId, bearer: &Bearer) {
        for (side, user) in users_of(bearer) {
            self.users[side as usize].remove(user, id);
        }
    }

    /// Has a bearer from now on. One that is there already goes on with what it has counted.
    pub fn put(&mut self, id: BearerId, mut bearer: Bearer) {
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
        for side in Side::BOTH {
            if before.peer(side) != after.peer(side) {
                for _ in 0..markers {
                    self.function.end_marker(id, side);
                }
            }
        }
        self.put(id, after);
    }

    /// Has it no more; returns it, if it was here.
    pub fn remove(&mut self, id: BearerId) -> Option<Bearer> {
        self.function.bearers.remove(id)
    }

    /// Gives all bearers of a shard away, with all that is known of them.
    pub(crate) fn give_shard(&mut self, shard: u32) -> Shard {
        self.function.bearers.take_shard(shard)
    }

    /// Has them from now on.
    pub(crate) fn take_shard(&mut self, shard: Shard) {
        self.function.bearers.put_shard(shard);
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

    /// Counts a packet of a port that was not handed over.
    pub fn lose(&mut self, port: u16, cause: LinkCause) {
        self.counts[usize::from(port)].drop(cause);
    }

    /// Tells the time, from any beginning.
    #[inline]
    pub fn set_time(&mut self, now_ns: u64) {
        if self.now_ns != now_ns {
            self.now_ns = now_ns;
            self.now_s = now_ns / 1_000_000_000;
        }
    }

    /// What was told last of the time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Deals with the packets that came by a port; `outs` are empty. `is_work`: they were handed over to this worker, and counted then.
    /// Returns how many it has dealt with: what is cut may need more room than there is, and the others are left to
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
            // Each is made in its place: to move one that was just written costs more than to find out what it is.
            match self.meet_express(usize::from(port), packet) {
                Some(express) => met.push(Met::Express(express)),
                None => {
                    let what = self.meet_any(usize::from(port), packet);
                    met.push(what.unwrap_or_else(Met::Drop));
                }
            }
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
