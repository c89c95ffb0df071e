//! A packet processing function's node between two ports: frames of messages and users' packets, whole and in parts, and any others. All
//! that comes is accounted for, and what leaves fits its port.

use std::net::IpAddr;

use millrace_port::Burst;
use millrace_ppf::{
    BURST, Bearer, BearerId, Interface, LinkCause, Mac, Node, Outs, Peer, ReassemblyLimits, Side,
};

use crate::Choices;

const RADIO: u16 = 0;
const CORE: u16 = 1;
const ETHERNET_BYTES: usize = 14;
/// Packets that wait for stations, at most: four of each of those that there are here.
const WAITING_MAX: u64 = 4 * 8;
const SECOND_NS: u64 = 1_000_000_000;

struct Run {
    node: Node,
    outs: Outs,
    mtus: [usize; 2],
    now_ns: u64,
    sent: u64,
}

/// Steps that `bytes` choose.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut run = Run::new(&mut choices);
    while !choices.is_empty() {
        match choices.below(8) {
            0 => run.wait(&mut choices),
            1 => run.anything(&mut choices),
            2 => run.answer(choices.below(2) as u16),
            _ => run.packet(&mut choices),
        }
        let waits = run.waiting();
        let parts = run.node.waiting_parts() as u64;
        assert!(
            waits >= parts && waits <= parts + WAITING_MAX,
            "{waits} wait"
        );
    }
    // Nobody answers, and nothing more comes.
    for _ in 0..8 {
        run.now_ns += 10 * SECOND_NS;
        run.poll();
    }
    assert_eq!((run.waiting(), run.node.waiting_parts()), (0, 0));
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("it is one")
}

fn interfaces(mtus: [usize; 2]) -> Vec<Interface> {
    let one = |name: &str, side, last: u8, v4: &str, v6: &str, mtu| Interface {
        name: name.to_owned(),
        side,
        mac: Mac([2, 0, 0, 0, 0, last]),
        vlan: None,
        addresses: vec![
            v4.parse().expect("a network"),
            v6.parse().expect("a network"),
        ],
        routes: vec![(
            "0.0.0.0/0".parse().expect("a network"),
            address("198.51.100.9"),
        )],
        mtu,
        udp_zero: true,
    };
    vec![
        one(
            "radio",
            Side::Radio,
            0,
            "192.0.2.1/24",
            "2001:db8:1::1/64",
            mtus[0],
        ),
        one(
            "core",
            Side::Core,
            1,
            "198.51.100.1/24",
            "2001:db8:2::1/64",
            mtus[1],
        ),
    ]
}

/// Numbers of bearers, by their tunnels at the core network's side.
const BEARERS: [u32; 3] = [0x402, 0x802, 0xc02];

fn bearers() -> [Bearer; 3] {
    let tunnel = |at: &str, teid| Peer {
        address: address(at),
        teid,
    };
    [
        Bearer::new(tunnel("198.51.100.9", 7), tunnel("192.0.2.9", 8)),
        Bearer::new(Peer::plain(address("10.0.0.1")), tunnel("192.0.2.9", 9)),
        Bearer::new(tunnel("198.51.100.9", 5), tunnel("2001:db8:1::9", 6)),
    ]
}

/// The checksum of the Internet (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let mut sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A packet of UDP, or a part of one: `place` is where, and whether there is more.
fn internet(from: IpAddr, to: IpAddr, number: u32, place: (usize, bool), body: &[u8]) -> Vec<u8> {
    let (at, has_more) = place;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet[2..4].copy_from_slice(&((20 + body.len()) as u16).to_be_bytes());
            packet[4..6].copy_from_slice(&(number as u16).to_be_bytes());
            let place = (at / 8) as u16 | u16::from(has_more) << 13;
            packet[6..8].copy_from_slice(&place.to_be_bytes());
            let sum = sum(&packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            packet.extend(body);
            packet
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let is_part = at != 0 || has_more;
            let length = body.len() + if is_part { 8 } else { 0 };
            let mut packet = vec![0x60, 0, 0, 0, 0, 0, if is_part { 44 } else { 17 }, 64];
            packet[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            packet.extend(from.octets());
            packet.extend(to.octets());
            if is_part {
                packet.extend([17, 0]);
                packet.extend((at as u16 | u16::from(has_more)).to_be_bytes());
                packet.extend(number.to_be_bytes());
            }
            packet.extend(body);
            packet
        }
        _ => panic!("{from} and {to} are of two families"),
    }
}

fn framed(port: u16, kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, port as u8, 2, 0, 0, 0, 1, port as u8];
    frame.extend(kind.to_be_bytes());
    frame.extend(body);
    frame
}

impl Run {
    fn new(choices: &mut Choices<'_>) -> Run {
        let mtus = [0; 2].map(|_| [576, 1280, 1500, 9000][choices.below(4)]);
        let limits = ReassemblyLimits {
            packets: 6,
            bytes: 65_536,
            parts: 8,
            age_ns: SECOND_NS,
        };
        let mut node = Node::new(interfaces(mtus), 0, 1).with_reassembly(limits);
        for (number, bearer) in BEARERS.into_iter().zip(bearers()) {
            node.put(BearerId::of(number).0, bearer);
        }
        Run {
            node,
            outs: Outs::new(2),
            mtus,
            now_ns: 0,
            sent: 0,
        }
    }

    /// What came and was made, and is nowhere else yet.
    fn waiting(&self) -> u64 {
        let (mut given, mut taken) = (0, self.sent);
        for count in self.node.counts() {
            given += count.received + count.made;
            let dropped = LinkCause::ALL.map(|cause| count.dropped(cause));
            taken += count.consumed + dropped.iter().sum::<u64>();
        }
        for side in Side::BOTH {
            taken += self.node.drops(side).total();
        }
        given.checked_sub(taken).expect("nothing is there twice")
    }

    fn collect(&mut self) {
        for (out, mtu) in self.outs.ports.iter_mut().zip(self.mtus) {
            for packet in out.iter() {
                left(&packet.to_vec(), mtu);
                self.sent += 1;
            }
            out.clear();
        }
    }

    fn come(&mut self, port: u16, frames: &[Vec<u8>]) {
        for frames in frames.chunks(BURST) {
            let mut burst = Burst::new(BURST);
            assert!(frames.iter().all(|frame| burst.push(frame)));
            let mut done = 0;
            while done < burst.len() {
                let more = self
                    .node
                    .receive_from(done, port, &burst, false, &mut self.outs);
                assert!(more > done);
                done = more;
                self.collect();
            }
        }
    }

    fn poll(&mut self) {
        self.node.set_time(self.now_ns);
        self.node.poll(&mut self.outs);
        self.collect();
    }

    fn wait(&mut self, choices: &mut Choices<'_>) {
        self.now_ns += 1 << (choices.byte() % 35);
        self.poll();
    }

    fn anything(&mut self, choices: &mut Choices<'_>) {
        let port = choices.below(2) as u16;
        let kind = [0x0800, 0x86dd, 0x0806, 0x8100][choices.below(4)];
        let length = usize::from(choices.byte()).min(choices.0.len());
        let (bytes, rest) = choices.0.split_at(length);
        choices.0 = rest;
        self.come(port, &[framed(port, kind, bytes)]);
    }

    /// The station of a port's peer answers, by ARP.
    fn answer(&mut self, port: u16) {
        let (peer, own) = match port {
            RADIO => ([192, 0, 2, 9], [192, 0, 2, 1]),
            _ => ([198, 51, 100, 9], [198, 51, 100, 1]),
        };
        let mut told = vec![0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 1, port as u8];
        told.extend(peer);
        told.extend([2, 0, 0, 0, 0, port as u8]);
        told.extend(own);
        self.come(port, &[framed(port, 0x0806, &told)]);
    }

    /// A message or a user's packet, whole or in parts, of which some may be missing, twice, changed, or in another order.
    fn packet(&mut self, choices: &mut Choices<'_>) {
        let (port, from, to, body) = packet(choices);
        let kind = if from.is_ipv4() { 0x0800 } else { 0x86dd };
        let number = u32::from(choices.byte() % 8);
        let bytes = match choices.byte() {
            0..64 => body.len(),
            choice => 8 * (1 + usize::from(choice)),
        };
        let parts = body.chunks(bytes.max(8)).enumerate();
        let mut frames: Vec<_> = parts
            .map(|(which, part)| {
                let at = which * bytes.max(8);
                let place = (at, at + part.len() < body.len());
                framed(port, kind, &internet(from, to, number, place, part))
            })
            .collect();
        match choices.below(6) {
            0 => drop(frames.pop()),
            1 => frames.push(frames[0].clone()),
            2 => frames.reverse(),
            3 => {
                let which = choices.below(frames.len());
                let at = usize::from(choices.byte()) % frames[which].len();
                frames[which][at] ^= choices.byte();
            }
            _ => {}
        }
        self.come(port, &frames);
    }
}

/// By which port, from whom, to whom, and what is behind the header.
fn packet(choices: &mut Choices<'_>) -> (u16, IpAddr, IpAddr, Vec<u8>) {
    let length = choices.size();
    let which = choices.below(6);
    if which == 0 {
        let body = vec![7; length];
        return (CORE, address("8.8.8.8"), address("10.0.0.1"), body);
    }
    let (port, from, to, teid) = match which {
        1 => (CORE, "198.51.100.9", "198.51.100.1", BEARERS[0]),
        2 => (CORE, "198.51.100.9", "198.51.100.1", BEARERS[2]),
        3 => (RADIO, "192.0.2.9", "192.0.2.1", BEARERS[0] + 1),
        4 => (RADIO, "192.0.2.9", "192.0.2.1", BEARERS[1] + 1),
        _ => (RADIO, "2001:db8:1::9", "2001:db8:1::1", BEARERS[2] + 1),
    };
    let user = (address("10.0.0.1"), address("8.8.8.8"));
    let mut inner = internet(user.0, user.1, 1, (0, false), &vec![9; length]);
    // It may not be cut, or is a part itself; its sum, which nobody looks at, is wrong then.
    inner[6] = choices.byte() & 0x60;
    let mut body = vec![8, 104, 8, 104, 0, 0, 0, 0, 0x30, 255];
    body[4..6].copy_from_slice(&((16 + inner.len()) as u16).to_be_bytes());
    body.extend((inner.len() as u16).to_be_bytes());
    body.extend(teid.to_be_bytes());
    body.extend(inner);
    (port, address(from), address(to), body)
}

/// What leaves says its length truly, and is no longer than its port takes.
fn left(frame: &[u8], mtu: usize) {
    let packet = &frame[ETHERNET_BYTES..];
    match frame[12..ETHERNET_BYTES] {
        [0x08, 0x00] => {
            let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            assert_eq!(length, packet.len());
            assert!(length <= mtu || packet[9] == 1, "{length} bytes");
            let has_more = packet[6] & 0x20 != 0;
            let header = usize::from(packet[0] & 15) * 4;
            // A user's packet leaves with the header that it came with, whatever that is.
            let is_own = packet[12..15] == [192, 0, 2] || packet[12..15] == [198, 51, 100];
            assert!(!is_own || sum(&packet[..header]) == 0);
            assert!(!is_own || !has_more || (length - header).is_multiple_of(8));
        }
        [0x86, 0xdd] => {
            let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            assert_eq!(length + 40, packet.len());
            assert!(packet.len() <= mtu || packet[6] == 58);
        }
        _ => assert!(frame.len() <= 64),
    }
}
