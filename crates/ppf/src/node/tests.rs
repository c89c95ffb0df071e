//! A node and the stations around it: frames in, frames out.

use millrace_wire::gtpu::{G_PDU, PORT};

use super::*;
use crate::arp::Arp;
use crate::bearer::Peer;
use crate::ethernet::{ARP, Frame, IPV4, IPV6};
use crate::icmp::Neighbour;
use crate::ip::{Header, ICMPV6, UDP, UDP_BYTES, Udp, Written, pseudo_sum};

mod cut;
mod express;
mod local;
mod memories;
mod parts;
mod paths;
mod tunnels;
mod wrong;

pub(crate) const RADIO: u16 = 0;
pub(crate) const CORE: u16 = 1;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The station of whoever is at the other end of a port.
fn station(port: u16) -> Mac {
    Mac([2, 0, 0, 0, 1, port as u8])
}

pub(crate) fn interfaces() -> Vec<Interface> {
    let one = |name: &str, side, vlan, addresses: [&str; 2]| Interface {
        name: name.to_owned(),
        side,
        mac: Mac::of_name(name),
        vlan,
        addresses: addresses.iter().map(|own| own.parse().unwrap()).collect(),
        routes: vec![("0.0.0.0/0".parse().unwrap(), address("198.51.100.254"))],
        mtu: 1500,
        udp_zero: false,
    };
    vec![
        one(
            "n3",
            Side::Radio,
            Some(7),
            ["192.0.2.1/24", "2001:db8:1::1/64"],
        ),
        one(
            "n6",
            Side::Core,
            None,
            ["198.51.100.1/24", "2001:db8:2::1/64"],
        ),
    ]
}

/// A node, and what it sent.
struct World {
    node: Node,
    outs: Outs,
    sent: Vec<(u16, Vec<u8>)>,
    works: Vec<(Whose, Vec<u8>)>,
}

impl World {
    fn new() -> World {
        World::of(0, 1)
    }

    fn of(worker: usize, workers: usize) -> World {
        World {
            node: Node::new(interfaces(), worker, workers),
            outs: Outs::new(2),
            sent: Vec::new(),
            works: Vec::new(),
        }
    }

    /// With ports that take no longer packets: the radio network's, and the core network's.
    fn with_mtus(mtus: [usize; 2]) -> World {
        let mut interfaces = interfaces();
        for (interface, mtu) in interfaces.iter_mut().zip(mtus) {
            interface.mtu = mtu;
        }
        World {
            node: Node::new(interfaces, 0, 1),
            ..World::new()
        }
    }

    fn collect(&mut self) {
        for (port, out) in (0..).zip(&mut self.outs.ports) {
            self.sent
                .extend(out.iter().map(|packet| (port, packet.to_vec())));
            out.clear();
        }
        let works = self.outs.works.iter().zip(&self.outs.whose);
        let works = works.map(|(packet, whose)| (*whose, packet.to_vec()));
        self.works.extend(works);
        self.outs.clear_works();
    }

    /// A frame comes; returns those that leave.
    fn come(&mut self, port: u16, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.come_together(port, &[frame.to_vec()])
    }

    /// The same of several, that come in one burst.
    fn come_together(&mut self, port: u16, frames: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
        let mut burst = Burst::new(frames.len());
        assert!(frames.iter().all(|frame| burst.push(frame)));
        let mut done = 0;
        while done < frames.len() {
            done = self
                .node
                .receive_from(done, port, &burst, false, &mut self.outs);
            self.collect();
        }
        std::mem::take(&mut self.sent)
    }

    fn poll(&mut self) -> Vec<(u16, Vec<u8>)> {
        self.node.poll(&mut self.outs);
        self.collect();
        std::mem::take(&mut self.sent)
    }

    /// What came and was made, and what became of it but for what left and what waits.
    fn books(&self) -> (u64, u64) {
        let counts = self.node.counts().iter();
        let (mut given, mut taken) = (0, 0);
        for count in counts {
            given += count.received + count.made;
            let dropped = LinkCause::ALL.map(|cause| count.dropped(cause));
            taken += count.consumed + dropped.iter().sum::<u64>();
        }
        let of_function = Side::BOTH.map(|side| self.node.drops(side).total());
        (given, taken + of_function.iter().sum::<u64>())
    }

    fn dropped(&self, port: u16, cause: LinkCause) -> u64 {
        self.node.counts()[usize::from(port)].dropped(cause)
    }

    /// A station of a port is known, for which nothing has waited.
    fn meet(&mut self, port: u16, at: &str) {
        assert!(self.hear(port, at).is_empty());
    }

    /// A station of a port is known; returns what leaves by that.
    fn hear(&mut self, port: u16, at: &str) -> Vec<(u16, Vec<u8>)> {
        let interface = self.node.interfaces[usize::from(port)].clone();
        self.node
            .neighbours
            .find(port, address(at), self.node.now_ns)
            .unwrap();
        match address(at) {
            IpAddr::V4(at) => {
                let IpAddr::V4(target) = interface.source(at.into()).unwrap() else {
                    unreachable!()
                };
                let told = Arp {
                    is_request: false,
                    mac: station(port),
                    address: at,
                    target_mac: interface.mac,
                    target,
                };
                self.come(port, &framed(port, ARP, &told.emit()))
            }
            IpAddr::V6(at) => {
                let told = Neighbour {
                    is_solicitation: false,
                    target: at,
                    mac: Some(station(port)),
                    is_solicited: true,
                    overrides: true,
                };
                let IpAddr::V6(own) = interface.source(at.into()).unwrap() else {
                    unreachable!()
                };
                let frame = packet(port, at.into(), own.into(), ICMPV6, &told.emit(at, own));
                self.come(port, &frame)
            }
        }
    }
}

fn framed(port: u16, kind: u16, body: &[u8]) -> Vec<u8> {
    let interface = &interfaces()[usize::from(port)];
    let mut header = [0; 18];
    let bytes = Frame::emit(
        &mut header,
        interface.mac,
        station(port),
        interface.vlan,
        kind,
    );
    [&header[..bytes], body].concat()
}

/// A packet of IP to a port of the function, from the station there.
fn packet(port: u16, from: IpAddr, to: IpAddr, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut ip = Written::new(from, to, protocol, body.len());
    ip.class = 0x28;
    if protocol == ICMPV6 {
        ip.hops = 255;
    }
    let mut header = vec![0; ip.bytes()];
    ip.emit(&mut header).unwrap();
    let kind = if from.is_ipv4() { IPV4 } else { IPV6 };
    framed(port, kind, &[&header, body].concat())
}

/// A datagram for GTP-U; in IPv6 with a checksum.
pub(crate) fn datagram(port: u16, from: &str, to: &str, message: &[u8]) -> Vec<u8> {
    let mut udp = vec![0; UDP_BYTES];
    let length = UDP_BYTES + message.len();
    Udp::emit(&mut udp, 40_000, PORT, length as u16);
    udp.extend_from_slice(message);
    let (from, to) = (address(from), address(to));
    if from.is_ipv6() {
        let mut sum = pseudo_sum(from, to, UDP, length);
        sum.add(&udp);
        udp[6..8].copy_from_slice(&sum.complement_of_udp().to_be_bytes());
    }
    packet(port, from, to, UDP, &udp)
}

pub(crate) fn g_pdu(teid: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16).to_be_bytes();
    [&[0x30, G_PDU], &length[..], &teid.to_be_bytes(), body].concat()
}

/// A user's packet.
fn inner(from: &str, to: &str, bytes: usize) -> Vec<u8> {
    let (from, to) = (address(from), address(to));
    let body: Vec<u8> = (0..bytes).map(|at| (at * 7) as u8).collect();
    let ip = Written::new(from, to, UDP, bytes);
    let mut header = vec![0; ip.bytes()];
    ip.emit(&mut header).unwrap();
    [header, body].concat()
}

/// What a frame has that the function has sent: all headers, and the message.
pub(crate) fn opened(port: u16, frame: &[u8]) -> (Frame, Header, Udp, &[u8]) {
    let ethernet = Frame::parse(frame).unwrap();
    let interface = &interfaces()[usize::from(port)];
    assert_eq!(
        (ethernet.source, ethernet.vlan),
        (interface.mac, interface.vlan)
    );
    let packet = &frame[ethernet.bytes..];
    let ip = Header::parse(packet, packet.len()).unwrap();
    assert_eq!(packet.len(), ip.bytes + ip.payload, "nothing is behind it");
    let datagram = &packet[ip.bytes..];
    let udp = Udp::parse(datagram, ip.payload).unwrap();
    assert_eq!(udp.length, ip.payload);
    if ip.source.is_ipv6() || udp.checksum != 0 {
        let mut sum = pseudo_sum(ip.source, ip.destination, UDP, udp.length);
        sum.add(datagram);
        assert_eq!(sum.folded(), 0xffff);
    }
    (ethernet, ip, udp, &datagram[UDP_BYTES..])
}

pub(crate) fn tunnel(at: &str, teid: u32) -> Peer {
    Peer {
        address: address(at),
        teid,
    }
}

/// A node knows the peers' stations at both ports.
pub(crate) fn meet_stations(node: &mut Node) {
    let mut world = World::new();
    std::mem::swap(&mut world.node, node);
    world.meet(RADIO, "192.0.2.9");
    world.meet(CORE, "198.51.100.9");
    std::mem::swap(&mut world.node, node);
}

/// A bearer between two tunnels, and one of a user.
fn bearers(node: &mut Node) -> (BearerId, BearerId) {
    let ids = [BearerId::of(0x402).0, BearerId::of(0x802).0];
    put(
        node,
        ids[0],
        Bearer::new(tunnel("198.51.100.9", 77), tunnel("192.0.2.9", 88)),
    );
    put(
        node,
        ids[1],
        Bearer::new(Peer::plain(address("10.0.0.1")), tunnel("192.0.2.9", 99)),
    );
    (ids[0], ids[1])
}

/// A node of one or two is told of a bearer, and has it, if it is its.
fn put(node: &mut Node, id: BearerId, bearer: Bearer) {
    node.know(id, &bearer);
    if owner(id) % node.workers == node.worker {
        node.put(id, bearer);
    }
}

/// Which of two workers has a bearer, before anything has moved.
fn owner(id: BearerId) -> usize {
    id.shard() as usize % 2
}
