//! The packet processing function under sequences of anything: packets with numbers leave in their order, once, as messages that can be
//! parsed, and each is accounted for.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use millrace_ppf::{
    Bearer, BearerId, Cause, Flows, Function, HEADER_BYTES_MAX, HoldLimits, Limit, Marking, Outer,
    Peer, Settings, Side, Supervision, Thresholds, Verdict,
};
use millrace_wire::gtpu::{END_MARKER, G_PDU, Header, Message, emit_extension};

use crate::Choices;

const BEARERS_MAX: usize = 8;
const SERVER: u32 = 0xc633_6407;

/// What is known of the function from outside.
struct Run {
    function: Function,
    bearers: Vec<BearerId>,
    now_ns: u64,
    number: u64,
    /// By bearer and direction, the last number that left.
    last: HashMap<(BearerId, Side), u64>,
    /// Packets that were given in, that left, and that were dropped.
    given: u64,
    left: u64,
    dropped: u64,
}

/// Steps that `bytes` choose.
pub fn run(bytes: &[u8]) {
    let mut choices = Choices(bytes);
    let mut run = Run {
        function: Function::with_settings(settings(&mut choices)),
        bearers: Vec::new(),
        now_ns: 0,
        number: 0,
        last: HashMap::new(),
        given: 0,
        left: 0,
        dropped: 0,
    };
    while !choices.is_empty() {
        match choices.below(12) {
            0 => run.add(&mut choices),
            1 => run.remove(&mut choices),
            2 => run.change(&mut choices),
            3 => run.anything(&mut choices),
            4 => run.wait(&mut choices),
            5 | 6 => run.release(),
            7 => run.plain(&mut choices),
            8 => run.mark(&mut choices),
            _ => run.packet(&mut choices),
        }
        run.fetch();
        run.check();
    }
}

fn settings(choices: &mut Choices<'_>) -> Settings {
    let flags = choices.byte();
    Settings {
        mtu: if flags & 1 != 0 { [1_400, 120] } else { [0; 2] },
        supervision: (flags & 2 != 0).then(Supervision::default),
        hold: HoldLimits {
            packets: 12,
            bytes: 4_096,
            packets_per_bearer: 6,
            bytes_per_bearer: 2_000,
            age_ns: 5_000_000_000,
        },
        ..Settings::default()
    }
}

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(192, 0, 2, last).into()
}

fn user(slot: usize) -> u32 {
    0x0a00_0000 + slot as u32
}

fn internet(from: u32, to: u32, class: u8, number: u64, filling: usize) -> Vec<u8> {
    let mut packet = vec![0x45, class, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0];
    packet.extend_from_slice(&from.to_be_bytes());
    packet.extend_from_slice(&to.to_be_bytes());
    packet.resize(20 + filling, 0);
    packet.extend_from_slice(&number.to_be_bytes());
    let length = packet.len() as u16;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet
}

impl Run {
    fn add(&mut self, choices: &mut Choices<'_>) {
        if self.bearers.len() == BEARERS_MAX {
            return;
        }
        let mut bearer = bearer(choices, self.bearers.len());
        bearer.paused = [choices.byte() & 3 == 0, choices.byte() & 3 == 0];
        let id = self.function.bearers.add(bearer).expect("there is room");
        assert!(!self.bearers.contains(&id));
        self.bearers.push(id);
    }

    fn remove(&mut self, choices: &mut Choices<'_>) {
        if self.bearers.is_empty() {
            return;
        }
        let at = choices.below(self.bearers.len());
        let id = self.bearers.swap_remove(at);
        assert!(self.function.bearers.remove(id).is_some());
        assert!(self.function.bearers.get(id).is_none());
    }

    fn change(&mut self, choices: &mut Choices<'_>) {
        let Some(id) = self.any(choices) else {
            return;
        };
        let Some(mut bearer) = self.function.bearers.get_mut(id) else {
            panic!("bearer {id} is not there");
        };
        match choices.below(4) {
            0 => bearer.paused = [choices.byte() & 1 != 0, choices.byte() & 1 != 0],
            1 => bearer.gates = [choices.byte() & 1 != 0, choices.byte() & 1 != 0],
            2 => {
                bearer.radio = Peer {
                    address: address(choices.byte()),
                    teid: 1 + u32::from(choices.byte()),
                };
            }
            _ => {
                let usage = bearer.usage;
                let peers = (bearer.core, bearer.radio);
                *bearer = self::bearer(choices, 0);
                (bearer.core, bearer.radio) = peers;
                bearer.usage = usage;
            }
        }
    }

    fn any(&self, choices: &mut Choices<'_>) -> Option<BearerId> {
        match self.bearers.len() {
            0 => None,
            count => Some(self.bearers[choices.below(count)]),
        }
    }

    /// Any bytes, from anybody.
    fn anything(&mut self, choices: &mut Choices<'_>) {
        let (outer, class) = (outer(choices), choices.byte());
        let length = usize::from(choices.byte()).min(choices.0.len());
        let (bytes, rest) = choices.0.split_at(length);
        choices.0 = rest;
        // A user's packet would have no number.
        let is_packet = Message::parse(bytes).is_ok_and(|message| message.kind == G_PDU);
        let receiver = bytes
            .get(16..20)
            .map(|bytes| [bytes[0], bytes[1], bytes[2], bytes[3]]);
        let receiver = receiver.map(|octets| IpAddr::from(Ipv4Addr::from(octets)));
        if is_packet
            || receiver.is_some_and(|to| self.function.bearers.find_user(Side::Core, to).is_some())
        {
            return;
        }
        let before = self.held();
        self.function.handle_at(&outer, class, bytes, self.now_ns);
        self.function.handle_plain(outer.side, bytes, self.now_ns);
        // The last message of a tunnel may wait, and is counted then.
        self.given += self.held() - before;
    }

    fn wait(&mut self, choices: &mut Choices<'_>) {
        self.now_ns += choices.word() >> (choices.byte() % 64).max(20);
        self.function.handle_timeout(self.now_ns);
    }

    /// A user's packet in a tunnel, with any extension headers.
    fn packet(&mut self, choices: &mut Choices<'_>) {
        let Some(id) = self.any(choices) else {
            return;
        };
        let (mut outer, class) = (outer(choices), choices.byte());
        let Some(bearer) = self.function.bearers.get(id) else {
            panic!("bearer {id} is not there");
        };
        let kinds = [0x85, 0x84, 0x40, 0x20, 0x81, 0xc0, 0x89, 0xc5];
        let mut extensions = Vec::new();
        for _ in 0..choices.below(4) {
            let kind = kinds[choices.below(kinds.len())];
            let content: Vec<u8> = (0..choices.below(16)).map(|_| choices.byte()).collect();
            extensions.push((kind, content));
        }
        let sender = match bearer.core.address {
            IpAddr::V4(address) => address.to_bits(),
            IpAddr::V6(_) => 0,
        };
        self.number += 1;
        let body = internet(
            sender,
            SERVER,
            choices.byte(),
            self.number,
            choices.below(256),
        );
        let datagram = message(id.teid(outer.side), &extensions, &body);
        outer.source = bearer.peer(outer.side).address;
        // What has no tunnel on this side comes by none.
        if bearer.peer(outer.side).is_plain() {
            return;
        }
        self.given += 1;
        let fate = fate(
            &self
                .function
                .handle_at(&outer, class, &datagram, self.now_ns),
        );
        self.settle(fate, Some((id, outer.side.other())));
    }

    fn plain(&mut self, choices: &mut Choices<'_>) {
        let slot = choices.below(BEARERS_MAX);
        self.number += 1;
        let packet = internet(
            SERVER,
            user(slot),
            choices.byte(),
            self.number,
            choices.below(256),
        );
        let id = self
            .function
            .bearers
            .find_user(Side::Core, Ipv4Addr::from_bits(user(slot)).into());
        self.given += 1;
        let fate = fate(&self.function.handle_plain(Side::Core, &packet, self.now_ns));
        self.settle(fate, id.map(|id| (id, Side::Radio)));
    }

    /// The last message of a tunnel.
    fn mark(&mut self, choices: &mut Choices<'_>) {
        let Some(id) = self.any(choices) else {
            return;
        };
        let outer = outer(choices);
        let header = Header {
            kind: END_MARKER,
            teid: id.teid(outer.side),
            sequence: None,
            extension: 0,
        };
        let mut bytes = [0; 8];
        header.emit(0, &mut bytes).expect("there is room");
        let before = self.held();
        self.function.handle_at(&outer, 0, &bytes, self.now_ns);
        // It may wait; what waits is counted, and so is it then.
        self.given += self.held() - before;
    }

    fn release(&mut self) {
        let fate = self
            .function
            .poll_released(self.now_ns)
            .map(|verdict| fate(&verdict));
        if let Some(fate) = fate {
            self.settle(fate, None);
        }
    }

    fn settle(&mut self, fate: Fate, of: Option<(BearerId, Side)>) {
        match fate {
            Fate::Left(bearer, side, bytes) => {
                assert!(of.is_none_or(|of| of == (bearer, side)));
                self.left += 1;
                self.number_left(bearer, side, &bytes);
            }
            Fate::Ended => self.left += 1,
            Fate::Waits => {}
            Fate::Dropped => self.dropped += 1,
        }
    }

    fn number_left(&mut self, bearer: BearerId, side: Side, packet: &[u8]) {
        let number = packet
            .last_chunk::<8>()
            .map_or(0, |number| u64::from_be_bytes(*number));
        let last = self.last.insert((bearer, side), number).unwrap_or(0);
        assert!(number > last, "{number} left after {last}");
    }

    fn held(&self) -> u64 {
        let of = |id: &BearerId| Side::BOTH.map(|side| self.function.bearers.held(*id, side));
        self.bearers.iter().flat_map(of).map(u64::from).sum()
    }

    /// What the function has for others does not gather.
    fn fetch(&mut self) {
        while self.function.poll_event().is_some() {}
        while self.function.poll_sending().is_some() {}
    }

    fn check(&self) {
        let count = |cause| {
            Side::BOTH
                .map(|side| self.function.drops(side).of(cause))
                .iter()
                .sum::<u64>()
        };
        let later = count(Cause::HeldAge) + count(Cause::HeldGone);
        assert_eq!(self.given, self.left + self.dropped + later + self.held());
        assert_eq!(self.function.bearers.len(), self.bearers.len());
    }
}

/// What became of a packet.
enum Fate {
    /// It left, as these bytes.
    Left(BearerId, Side, Vec<u8>),
    /// It was a tunnel's last message, and left or had nowhere to go.
    Ended,
    Waits,
    Dropped,
}

fn fate(verdict: &Verdict<'_>) -> Fate {
    let whole = |header: &([u8; HEADER_BYTES_MAX], usize), body: &[u8]| {
        [&header.0[..header.1], body].concat()
    };
    match verdict {
        Verdict::Relay {
            bearer,
            side,
            to,
            header,
            body,
            ..
        } => {
            let bytes = whole(header, body);
            let message = Message::parse(&bytes).expect("what is sent is a message");
            assert_eq!(message.teid, to.teid);
            match message.kind {
                G_PDU => Fate::Left(*bearer, *side, message.body.to_vec()),
                _ => Fate::Ended,
            }
        }
        Verdict::Plain {
            bearer,
            side,
            header,
            body,
        } => Fate::Left(*bearer, *side, whole(header, body)),
        Verdict::Held => Fate::Waits,
        Verdict::Done => Fate::Ended,
        Verdict::Reply(_) | Verdict::Drop(_) => Fate::Dropped,
        verdict => panic!("{verdict:?} of a packet"),
    }
}

fn outer(choices: &mut Choices<'_>) -> Outer {
    let flags = choices.byte();
    Outer {
        side: Side::BOTH[usize::from(flags & 1)],
        source: address(flags >> 1),
        destination: address(1),
        source_port: 2_152,
    }
}

fn bearer(choices: &mut Choices<'_>, slot: usize) -> Bearer {
    let flags = choices.byte();
    let core = match flags & 1 {
        0 => Peer::plain(Ipv4Addr::from_bits(user(slot)).into()),
        _ => Peer {
            address: address(10),
            teid: 1 + u32::from(flags),
        },
    };
    let radio = Peer {
        address: address(11),
        teid: 1_000 + u32::from(flags),
    };
    let mut bearer = Bearer::new(core, radio);
    if flags & 2 != 0 {
        bearer.limits = [Limit::bytes(u64::from(choices.byte()) * 100); 2];
    }
    if flags & 4 != 0 {
        bearer.thresholds = Thresholds {
            packets: 3,
            ..Thresholds::default()
        };
    }
    let mut map = [None; 64];
    map[usize::from(flags % 64)] = Some(flags % 64);
    bearer.flows[1] = match flags >> 6 {
        0 => Flows::Kept,
        1 => Flows::Removed,
        2 => Flows::Set(flags % 64),
        _ => Flows::Mapped(Box::new(map)),
    };
    bearer.marking = [Marking::Copied, Marking::Fixed(flags % 64)];
    bearer.follows_delivery = flags & 8 != 0;
    bearer.forwards_numbers = flags & 16 != 0;
    bearer
}

fn message(teid: u32, extensions: &[(u8, Vec<u8>)], body: &[u8]) -> Vec<u8> {
    let mut behind = Vec::new();
    for (number, (_, content)) in extensions.iter().enumerate() {
        let next = extensions.get(number + 1).map_or(0, |next| next.0);
        let mut room = [0; 64];
        let count = emit_extension(content, next, &mut room).expect("there is room");
        behind.extend_from_slice(&room[..count]);
    }
    behind.extend_from_slice(body);
    let header = Header {
        kind: G_PDU,
        teid,
        sequence: Some(9),
        extension: extensions.first().map_or(0, |first| first.0),
    };
    let mut room = [0; 12];
    let count = header.emit(behind.len(), &mut room).expect("there is room");
    [&room[..count], &behind].concat()
}
