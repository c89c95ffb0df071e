//! Messages of all kinds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_wire::gtpu::extension::Content;
use millrace_wire::gtpu::nr_ran::{
    self, Assistance, Blocks, DeliveryStatus, Fields, Ranges, UserData,
};
use millrace_wire::gtpu::path::{self, ErrorIndication, TunnelStatus};
use millrace_wire::gtpu::pdu_session::{Direction, Frame, Measures, Times};
use millrace_wire::gtpu::{
    ECHO_REQUEST, ECHO_RESPONSE, END_MARKER, ERROR_INDICATION, EXTENSION_LONG_PDCP_EARLIER,
    EXTENSIONS, G_PDU, Header, SUPPORTED_EXTENSIONS, TUNNEL_STATUS, emit_extension,
};

pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64*, Vigna 2016.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn flag(&mut self) -> bool {
        self.next() & 1 != 0
    }

    fn three(&mut self) -> u32 {
        self.next() as u32 & 0xff_ffff
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Random) -> T) -> Option<T> {
        self.flag().then(|| make(self))
    }
}

pub(crate) fn address(is_v6: bool, last: u8) -> IpAddr {
    if is_v6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()).into()
    } else {
        Ipv4Addr::new(192, 0, 2, last).into()
    }
}

pub(crate) fn addresses(is_v6: bool) -> (IpAddr, IpAddr) {
    (address(is_v6, 10), address(is_v6, 1))
}

/// Where the function is.
pub(crate) fn ours() -> [IpAddr; 2] {
    [address(false, 1), address(true, 1)]
}

/// A message.
pub(crate) fn message(random: &mut Random) -> Vec<u8> {
    let teid = random.next() as u32;
    let sequence = random.maybe(|random| random.next() as u16);
    let number = Some(random.next() as u16);
    let mut body = [0; 300];
    match random.below(16) {
        0 => emit(ECHO_REQUEST, 0, number, None, &[], &[]),
        1 => emit(
            ECHO_RESPONSE,
            0,
            number,
            None,
            &[],
            &path::emit_echo_response(),
        ),
        2 | 3 => {
            let peer = address(random.flag(), random.next() as u8);
            let count = ErrorIndication { teid, peer }.emit(&mut body).unwrap_or(0);
            let port = random.maybe(|random| Content::UdpPort(random.next() as u16));
            emit(
                ERROR_INDICATION,
                0,
                number,
                None,
                port.as_slice(),
                &body[..count],
            )
        }
        4 => {
            let kinds = &EXTENSIONS[..random.below(EXTENSIONS.len() as u64) as usize + 1];
            let count = path::emit_supported_extensions(kinds, &mut body).unwrap_or(0);
            emit(SUPPORTED_EXTENSIONS, 0, number, None, &[], &body[..count])
        }
        5 => emit(END_MARKER, teid, None, None, &[], &[]),
        6 => {
            let status = TunnelStatus {
                pause: random.flag(),
                resume: random.flag(),
            };
            emit(TUNNEL_STATUS, teid, number, None, &[], &status.emit())
        }
        7..=10 => packet(random, teid, sequence),
        11..=13 => radio(random, teid, sequence),
        _ => forwarded(random, teid, sequence),
    }
}

fn emit(
    kind: u8,
    teid: u32,
    sequence: Option<u16>,
    npdu: Option<u8>,
    contents: &[Content<'_>],
    body: &[u8],
) -> Vec<u8> {
    let mut behind = Vec::new();
    for (number, content) in contents.iter().enumerate() {
        let mut bytes = [0; 1024];
        let count = content.emit(&mut bytes).unwrap_or(0);
        let next = contents.get(number + 1).map_or(0, kind_of);
        let mut extension = [0; 1024];
        let all = emit_extension(&bytes[..count], next, &mut extension).unwrap_or(0);
        behind.extend_from_slice(&extension[..all]);
    }
    behind.extend_from_slice(body);
    let header = Header {
        kind,
        teid,
        sequence,
        extension: contents.first().map_or(0, kind_of),
    };
    let mut bytes = [0; 12];
    let count = header
        .emit_numbered(npdu, behind.len(), &mut bytes)
        .unwrap_or(0);
    [&bytes[..count], &behind].concat()
}

/// The kind of a content's extension header: of the two that say the same, either.
fn kind_of(content: &Content<'_>) -> u8 {
    match content {
        Content::LongPdcp(number) if number % 2 == 0 => EXTENSION_LONG_PDCP_EARLIER,
        _ => content.kind(),
    }
}

/// A user's packet of UDP, some of them longer than Ethernet takes.
fn inner(random: &mut Random) -> Vec<u8> {
    let length = match random.below(8) {
        0 => 1_400 + random.below(3_000),
        _ => random.below(200),
    };
    let length = length as usize;
    let mut packet = vec![
        0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 2, 3, 198, 51, 100, 7,
    ];
    packet[2..4].copy_from_slice(&((28 + length) as u16).to_be_bytes());
    let words = packet
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(&[0xc0, 0, 0xc0, 1]);
    packet.extend_from_slice(&((8 + length) as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0]);
    packet.resize(28 + length, 0x5a);
    packet
}

fn packet(random: &mut Random, teid: u32, sequence: Option<u16>) -> Vec<u8> {
    let is_down = random.flag();
    let frame = Frame {
        direction: if is_down {
            Direction::Downlink
        } else {
            Direction::Uplink
        },
        qfi: random.below(64) as u8,
        reflective: is_down && random.flag(),
        paging_policy: random
            .maybe(|random| random.below(8) as u8)
            .filter(|_| is_down),
    };
    let measures = match (random.below(3), is_down) {
        (0, _) => Measures::none(frame.direction),
        (_, true) => Measures::Downlink {
            sending: random.maybe(Random::next),
            sequence: random.maybe(Random::three),
            multicast: random.maybe(Random::three),
        },
        (_, false) => Measures::Uplink {
            times: random.maybe(|random| Times {
                sent: random.next(),
                received: random.next(),
                sending: random.next(),
            }),
            downlink_delay: random.maybe(Random::three),
            uplink_delay: random.maybe(Random::three),
            sequence: random.maybe(Random::three),
            network_delay: random.maybe(Random::three),
            has_pdcp_delay: random.maybe(Random::flag),
        },
    };
    let packet = inner(random);
    emit(
        G_PDU,
        teid,
        sequence,
        None,
        &[Content::PduSession(frame, measures)],
        &packet,
    )
}

fn radio(random: &mut Random, teid: u32, sequence: Option<u16>) -> Vec<u8> {
    let mut list = [0; 60];
    list.iter_mut().for_each(|byte| *byte = random.next() as u8);
    // Two fields, of two bytes and of one.
    (list[53], list[54], list[57], list[58]) = (1, 2, 2, 1);
    let lists = |random: &mut Random, each: usize| each * random.below(9) as usize;
    let frame = match random.below(3) {
        0 => nr_ran::Frame::UserData(UserData {
            sequence: random.three(),
            flush: random.maybe(Random::three),
            discard: Blocks::new(&list[..lists(random, 4)]).unwrap_or_default(),
            polls: random.flag(),
            wants_out_of_sequence: random.flag(),
            report_up_to: random.maybe(Random::three),
            has_data: random.flag(),
            polls_assistance: random.flag(),
            again: random.flag(),
        }),
        1 => nr_ran::Frame::Delivery(DeliveryStatus {
            desired_bytes: random.next() as u32,
            desired_rate: random.maybe(Random::three),
            is_final: random.flag(),
            lost: random.maybe(|random| Ranges::new(&list[..lists(random, 6)]).unwrap_or_default()),
            delivered: random.maybe(Random::three),
            transmitted: random.maybe(Random::three),
            cause: random.maybe(|random| random.below(4) as u8),
            delivered_again: random.maybe(Random::three),
            transmitted_again: random.maybe(Random::three),
            out_of_sequence: None,
        }),
        _ => nr_ran::Frame::Assistance(Assistance {
            duplication: random.maybe(Random::flag),
            fields: random.maybe(|_| Fields::new(&list[53..]).unwrap_or_default()),
            uplink_delay: random.maybe(Random::three),
            downlink_delay: random.maybe(Random::three),
        }),
    };
    // Frames may come without a packet.
    let packet = if random.flag() {
        inner(random)
    } else {
        Vec::new()
    };
    emit(
        G_PDU,
        teid,
        sequence,
        None,
        &[Content::NrRan(frame)],
        &packet,
    )
}

/// With what is only there in handovers.
fn forwarded(random: &mut Random, teid: u32, sequence: Option<u16>) -> Vec<u8> {
    let npdu = random.maybe(|random| random.next() as u8);
    let contents = [
        Content::Pdcp(random.below(1 << 15) as u16),
        Content::LongPdcp(random.below(1 << 18) as u32),
        Content::Ran(&[1, 2, 3, 4, 5, 6]),
        Content::XwRan(&[7, 8]),
        Content::ServiceClass(random.next() as u8),
        Content::UdpPort(random.next() as u16),
    ];
    let first = random.below(6) as usize;
    let count = random.below(3) as usize;
    let chosen = &contents[first..(first + count).min(contents.len())];
    let packet = inner(random);
    emit(G_PDU, teid, sequence, npdu, chosen, &packet)
}
