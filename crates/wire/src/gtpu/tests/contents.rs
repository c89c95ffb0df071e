//! What extension headers say: each content there and back, cut off at each place, and of any bytes.

use super::super::extension::Content;
use super::super::nr_ran::{self, Assistance, Blocks, DeliveryStatus, Fields, Ranges, UserData};
use super::super::path::TunnelStatus;
use super::super::pdu_session::{Direction, Frame, Measures, Times};
use super::super::*;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        // xorshift64*, Vigna 2016.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
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

/// Written, parsed and written again it is the same, and every cut of it is refused or says something else without a panic.
fn there_and_back(content: Content<'_>) {
    let mut bytes = [0xee; 1100];
    let header_bytes = 1;
    let count = content.emit(&mut bytes[header_bytes..]).unwrap();
    let kind = content.kind();
    let mut extension = [0; 1100];
    let all = emit_extension(
        &bytes[header_bytes..header_bytes + count],
        0,
        &mut extension,
    )
    .unwrap();
    let padded = Extension {
        kind,
        content: &extension[1..all - 1],
    };
    assert_eq!(Content::parse(&padded), Some(content));
    for end in 0..count {
        let cut = Extension {
            kind,
            content: &bytes[header_bytes..header_bytes + end],
        };
        if let Some(said) = Content::parse(&cut) {
            assert_ne!(said, content, "cut at {end}");
        }
    }
    assert_eq!(content.emit(&mut bytes[..count.saturating_sub(1)]), None);
}

fn session(random: &mut Random) -> Content<'static> {
    let is_down = random.flag();
    let frame = Frame {
        direction: if is_down {
            Direction::Downlink
        } else {
            Direction::Uplink
        },
        qfi: random.next() as u8 & 63,
        reflective: is_down && random.flag(),
        paging_policy: random
            .maybe(|random| random.next() as u8 & 7)
            .filter(|_| is_down),
    };
    let measures = if is_down {
        Measures::Downlink {
            sending: random.maybe(Random::next),
            sequence: random.maybe(Random::three),
            multicast: random.maybe(Random::three),
        }
    } else {
        Measures::Uplink {
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
        }
    };
    Content::PduSession(frame, measures)
}

fn radio<'a>(random: &mut Random, list: &'a mut [u8]) -> nr_ran::Frame<'a> {
    list.iter_mut().for_each(|byte| *byte = random.next() as u8);
    // Two fields, of two bytes and of none.
    (list[58], list[59], list[62], list[63]) = (1, 2, 9, 0);
    let list: &'a [u8] = list;
    match random.next() % 3 {
        0 => nr_ran::Frame::UserData(UserData {
            sequence: random.three(),
            flush: random.maybe(Random::three),
            discard: Blocks::new(&list[..4 * (random.next() % 10) as usize]).unwrap(),
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
            lost: random
                .maybe(|random| Ranges::new(&list[..6 * (random.next() % 10) as usize]).unwrap()),
            delivered: random.maybe(Random::three),
            transmitted: random.maybe(Random::three),
            cause: random.maybe(|random| random.next() as u8),
            delivered_again: random.maybe(Random::three),
            transmitted_again: random.maybe(Random::three),
            out_of_sequence: random.maybe(|_| Ranges::new(&list[..12]).unwrap()),
        }),
        _ => nr_ran::Frame::Assistance(Assistance {
            duplication: random.maybe(Random::flag),
            fields: random.maybe(|_| Fields::new(&list[58..]).unwrap()),
            uplink_delay: random.maybe(Random::three),
            downlink_delay: random.maybe(Random::three),
        }),
    }
}

#[test]
fn contents_go_there_and_back() {
    let mut random = Random(1);
    for _ in 0..if cfg!(miri) { 5 } else { 2_000 } {
        there_and_back(session(&mut random));
        let mut list = [0; 64];
        there_and_back(Content::NrRan(radio(&mut random, &mut list)));
        there_and_back(Content::UdpPort(random.next() as u16));
        there_and_back(Content::Pdcp(random.next() as u16 & 0x7fff));
        there_and_back(Content::LongPdcp(random.three() & 0x3_ffff));
        there_and_back(Content::ServiceClass(random.next() as u8));
    }
    for content in [Content::Ran(&[1, 2, 3, 4, 5, 6]), Content::XwRan(&[7, 8])] {
        let mut bytes = [0; 8];
        let count = content.emit(&mut bytes).unwrap();
        let extension = Extension {
            kind: content.kind(),
            content: &bytes[..count],
        };
        assert_eq!(Content::parse(&extension), Some(content));
    }
}

#[test]
fn any_bytes_say_something_or_nothing() {
    let mut random = Random(2);
    for _ in 0..if cfg!(miri) { 100 } else { 50_000 } {
        let mut bytes = [0; 40];
        bytes
            .iter_mut()
            .for_each(|byte| *byte = random.next() as u8);
        bytes[0] &= 0x2f;
        let length = (random.next() % 40) as usize;
        let kind = EXTENSIONS[(random.next() % EXTENSIONS.len() as u64) as usize];
        let extension = Extension {
            kind,
            content: &bytes[..length],
        };
        let Some(content) = Content::parse(&extension) else {
            continue;
        };
        let mut again = [0; 64];
        let count = content.emit(&mut again).unwrap();
        let extension = Extension {
            kind: content.kind(),
            content: &again[..count],
        };
        assert_eq!(Content::parse(&extension), Some(content));
    }
}

#[test]
fn contents_are_where_the_clauses_have_them() {
    let frame = Frame {
        direction: Direction::Uplink,
        qfi: 9,
        reflective: false,
        paging_policy: None,
    };
    let measures = Measures::Uplink {
        times: None,
        downlink_delay: Some(1),
        uplink_delay: Some(2),
        sequence: Some(3),
        network_delay: Some(4),
        has_pdcp_delay: Some(true),
    };
    let mut bytes = [0; 64];
    let count = measures.emit(&frame, &mut bytes).unwrap();
    let wanted = [
        0x17, 0xc9, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 3, 0, 0, 0, 4, 1, 1,
    ];
    assert_eq!(bytes[..count], wanted);

    let (block, range) = (Blocks::emit_one(3, 4), Ranges::emit_one(5, 7));
    let status = DeliveryStatus {
        desired_bytes: 0x0102_0304,
        is_final: true,
        lost: Ranges::new(&range),
        delivered: Some(8),
        transmitted: Some(9),
        cause: Some(2),
        ..DeliveryStatus::default()
    };
    let count = nr_ran::Frame::Delivery(status).emit(&mut bytes).unwrap();
    let wanted = [
        0x1f, 0x01, 1, 2, 3, 4, 1, 0, 0, 5, 0, 0, 7, 0, 0, 8, 0, 0, 9, 2,
    ];
    assert_eq!(bytes[..count], wanted);

    let data = UserData {
        sequence: 1,
        flush: Some(2),
        discard: Blocks::new(&block).unwrap(),
        report_up_to: Some(5),
        again: true,
        ..UserData::default()
    };
    let count = nr_ran::Frame::UserData(data).emit(&mut bytes).unwrap();
    let wanted = [0x06, 0x09, 0, 0, 1, 0, 0, 2, 1, 0, 0, 3, 4, 0, 0, 5];
    assert_eq!(bytes[..count], wanted);

    let pause = TunnelStatus {
        pause: true,
        resume: false,
    };
    assert_eq!(pause.emit(), [230, 0, 1, 1]);
    assert_eq!(TunnelStatus::parse(&pause.emit()), Ok(pause));
    assert_eq!(
        TunnelStatus::parse(&[230, 0, 0]),
        Err(ParseError::Element(230))
    );
}

#[test]
fn numbers_that_are_too_great_are_not_written() {
    let mut bytes = [0; 64];
    for content in [
        Content::Pdcp(0x8000),
        Content::LongPdcp(1 << 18),
        Content::NrRan(nr_ran::Frame::UserData(UserData {
            sequence: 1 << 24,
            ..UserData::default()
        })),
    ] {
        assert_eq!(content.emit(&mut bytes), None);
    }
    let header = Header {
        kind: G_PDU,
        teid: 1,
        sequence: None,
        extension: 0,
    };
    assert_eq!(header.emit_numbered(Some(9), 0, &mut bytes), Some(12));
    let message = Message::parse(&bytes[..12]).unwrap();
    assert_eq!((message.npdu, message.sequence), (Some(9), None));
}
