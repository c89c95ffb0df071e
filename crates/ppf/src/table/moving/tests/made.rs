//! Bearers and messages of any kind.

use millrace_wire::gtpu::nr_ran::{self, UserData};
use millrace_wire::gtpu::path::ErrorIndication;
use millrace_wire::gtpu::{
    END_MARKER, ERROR_INDICATION, EXTENSION_NR_RAN, G_PDU, Header, emit_extension,
};

use super::super::*;
use super::twins::{SHARDS_USED, UES};
use crate::bearer::{Bearer, Flows, Peer, Thresholds};
use crate::inner::v4_packet;
use crate::mark::Marking;
use crate::meter::Limit;
use crate::random::Random;

/// So few that some are too many.
pub(super) fn packets(packets_per_second: u32, burst_packets: u32) -> Limit {
    Limit {
        packets_per_second,
        burst_packets,
        ..Limit::default()
    }
}

/// What its user's addresses end with.
pub(super) fn user(id: BearerId) -> u8 {
    let shard = SHARDS_USED.iter().position(|shard| *shard == id.shard());
    (id.slot() / SHARDS * SHARDS_USED.len() + shard.unwrap()) as u8
}

pub(super) fn server() -> IpAddr {
    Ipv4Addr::new(198, 51, 100, 7).into()
}

pub(super) fn peer(random: &mut Random) -> Peer {
    let address = match random.below(8) {
        0 => Ipv6Addr::from_bits(random.below(3).into()).into(),
        last => Ipv4Addr::from_bits(0xc000_0200 + last as u32).into(),
    };
    Peer {
        address,
        teid: 1 + random.below(40) as u32,
    }
}

/// A bearer of this number; its user is nobody else's.
pub(super) fn bearer(random: &mut Random, id: BearerId) -> Bearer {
    let mut made = Bearer::new(peer(random), peer(random));
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, user(id).into(), 0, 0, 0, 0);
    match random.below(6) {
        0 => made.core = Peer::plain(v6.into()),
        1 | 2 => {
            made.core = Peer::plain(Ipv4Addr::new(10, 0, 0, user(id)).into());
            made.user_v6 = (random.below(2) == 0).then_some(v6);
        }
        _ => {}
    }
    made.marking = [Marking::Copied, Marking::Fixed(random.below(64) as u8)];
    made.gates = [random.below(9) > 0, random.below(9) > 0];
    // The first of a shard is always of its user equipment, which has credit in one place then.
    let is_first = id.slot() < SHARDS;
    if is_first || random.below(4) > 0 {
        made.paused = [random.below(3) == 0, random.below(3) == 0];
        made.follows_delivery = random.below(2) == 0;
        made.thresholds = Thresholds {
            packets: random.below(3) * 5,
            bytes: random.below(3) * 900,
            seconds: random.below(3) as u32,
        };
        made.limits[random.below(2) as usize] = packets(1 + random.below(3) as u32, 2);
        made.limits[random.below(2) as usize] = Limit {
            bytes_per_second: 100 + random.below(300),
            burst_bytes: 1_000,
            ..Limit::default()
        };
        made.user =
            (is_first || random.below(2) == 0).then_some(MeterId(u32::from(user(id)) % UES));
        if random.below(3) == 0 {
            let mut map = [None; 64];
            map[9] = Some(random.below(64) as u8);
            made.flows[0] = Flows::Mapped(Box::new(map));
        }
    }
    made
}

pub(super) fn message(random: &mut Random, id: BearerId, side: Side) -> Vec<u8> {
    let kind = match random.below(12) {
        0 => END_MARKER,
        _ => G_PDU,
    };
    let mut behind = Vec::new();
    if random.below(3) == 0 {
        let frame = nr_ran::Frame::UserData(UserData {
            sequence: random.below(30) as u32,
            ..UserData::default()
        });
        let (mut content, mut extension) = ([0; 64], [0; 80]);
        let count = frame.emit(&mut content).unwrap();
        // It fills words with its length and the next kind.
        let count = (count + 2).next_multiple_of(4) - 2;
        let count = emit_extension(&content[..count], 0, &mut extension).unwrap();
        behind.extend_from_slice(&extension[..count]);
    }
    let has_extension = !behind.is_empty();
    let payload = vec![7; random.below(600) as usize];
    if kind == G_PDU {
        let (user, server) = ([10, 0, 0, user(id)], [198, 51, 100, 7]);
        let packet = match side {
            Side::Core => v4_packet(server, user, 0, &payload),
            Side::Radio => v4_packet(user, server, 0, &payload),
        };
        behind.extend_from_slice(&packet);
    }
    let mut bytes = [0; 32];
    let header = Header {
        kind,
        teid: id.teid(side),
        sequence: None,
        extension: match has_extension {
            true => EXTENSION_NR_RAN,
            false => 0,
        },
    };
    let count = header.emit(behind.len(), &mut bytes).unwrap();
    [&bytes[..count], &behind].concat()
}

pub(super) fn lost(peer: Peer) -> Vec<u8> {
    let (mut body, mut bytes) = ([0; 64], [0; 32]);
    let (teid, peer) = (peer.teid, peer.address);
    let count = ErrorIndication { teid, peer }.emit(&mut body).unwrap();
    let header = Header {
        kind: ERROR_INDICATION,
        teid: 0,
        sequence: Some(1),
        extension: 0,
    };
    let header = header.emit(count, &mut bytes).unwrap();
    [&bytes[..header], &body[..count]].concat()
}
