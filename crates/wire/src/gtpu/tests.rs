use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::path::{
    ErrorIndication, emit_echo_response, emit_supported_extensions, parse_restart_counter,
    parse_supported_extensions,
};
use super::pdu_session::{Direction, Frame};
use super::*;

mod contents;

/// A packet of a user with QFI 9 from the network, as a base station gets it.
const DOWNLINK: [u8; 19] = [
    0x34, 0xff, 0, 11, 0, 0, 0x12, 0x34, // flags, kind, length, TEID
    0xaa, 0xbb, 0xcc, 0x85, // no sequence, no N-PDU number, a container
    1, 0x00, 0x09, 0, // 4 bytes, downlink, QFI 9, no more
    1, 2, 3,
];

#[test]
fn a_packet_is_parsed_as_the_clauses_have_it() {
    let message = Message::parse(&DOWNLINK).unwrap();
    assert_eq!((message.kind, message.teid), (G_PDU, 0x1234));
    // Fields whose flags are not set mean nothing.
    assert_eq!((message.sequence, message.npdu), (None, None));
    assert_eq!(message.body, [1, 2, 3]);
    let mut extensions = message.extensions;
    let container = extensions.next().unwrap();
    assert_eq!(container.kind, EXTENSION_PDU_SESSION);
    let frame = Frame::parse(container.content).unwrap();
    assert_eq!((frame.direction, frame.qfi), (Direction::Downlink, 9));
    assert_eq!(extensions.next(), None);

    let plain = [0x30, 0xff, 0, 2, 0, 0, 0, 1, 7, 8, 9];
    let message = Message::parse(&plain).unwrap();
    // What is behind the length is nobody's.
    assert_eq!((message.teid, message.body), (1, &[7, 8][..]));
    let numbered = [0x33, 1, 0, 4, 0, 0, 0, 0, 0x12, 0x34, 5, 0x85];
    let message = Message::parse(&numbered).unwrap();
    assert_eq!((message.sequence, message.npdu), (Some(0x1234), Some(5)));
    // A kind of extension is there, and its flag is not.
    assert_eq!(message.extensions.count(), 0);
}

#[test]
fn what_is_written_is_parsed() {
    for sequence in [None, Some(0xfffe)] {
        for content in [&[][..], &[0x10, 5], &[1, 2, 3, 4, 5, 6, 7]] {
            let mut bytes = [0xee; 64];
            let has_extension = !content.is_empty();
            let header = Header {
                kind: G_PDU,
                teid: 0xdead_beef,
                sequence,
                extension: if has_extension { 0xc1 } else { 0 },
            };
            let extensions = if has_extension {
                extension_bytes(content.len()) + extension_bytes(2)
            } else {
                0
            };
            let mut at = header.emit(extensions + 5, &mut bytes).unwrap();
            if has_extension {
                at += emit_extension(content, 0x20, &mut bytes[at..]).unwrap();
                at += emit_extension(&[9, 9], 0, &mut bytes[at..]).unwrap();
            }
            bytes[at..at + 5].copy_from_slice(b"hello");
            let message = Message::parse(&bytes[..at + 5]).unwrap();
            assert_eq!((message.kind, message.teid), (G_PDU, 0xdead_beef));
            assert_eq!((message.sequence, message.body), (sequence, &b"hello"[..]));
            let mut found = message.extensions;
            if has_extension {
                let first = found.next().unwrap();
                assert_eq!(
                    (first.kind, &first.content[..content.len()]),
                    (0xc1, content)
                );
                let second = found.next().unwrap();
                assert_eq!((second.kind, second.content), (0x20, &[9, 9][..]));
            }
            assert_eq!(found.next(), None);
        }
    }
    assert_eq!(
        Header {
            kind: G_PDU,
            teid: 0,
            sequence: None,
            extension: 0
        }
        .emit(65536, &mut [0; 64]),
        None
    );
    assert_eq!(emit_extension(&[0; 1019], 0, &mut [0; 2000]), None);
    assert_eq!(emit_extension(&[0; 1018], 0, &mut [0; 2000]), Some(1020));
}

#[test]
fn every_cut_is_an_error_and_none_panics() {
    for end in 0..DOWNLINK.len() {
        assert!(Message::parse(&DOWNLINK[..end]).is_err(), "cut at {end}");
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = DOWNLINK;
        bytes[at] = byte;
        Message::parse(&bytes).map(|_| ())
    };
    assert_eq!(with(0, 0x54), Err(ParseError::Version(2)));
    assert_eq!(with(0, 0x24), Err(ParseError::Prime));
    assert_eq!(with(3, 12), Err(ParseError::Length(12)));
    assert_eq!(with(3, 3), Err(ParseError::Truncated));
    assert_eq!(with(12, 0), Err(ParseError::Extension(0x85)));
    assert_eq!(with(12, 2), Err(ParseError::Extension(0x85)));
    // Another extension is said to follow, of 4 bytes which are not there.
    assert_eq!(with(15, 0x20), Err(ParseError::Extension(0x20)));
}

#[test]
fn kinds_say_who_must_understand_them() {
    let of = Comprehension::of;
    assert_eq!(of(EXTENSION_UDP_PORT), Comprehension::Discard);
    assert_eq!(of(EXTENSION_PDU_SESSION), Comprehension::Endpoint);
    assert_eq!(
        (of(0x20), of(0xc0)),
        (Comprehension::Forward, Comprehension::Everybody)
    );
}

#[test]
fn frames_of_sessions_are_where_the_clause_has_them() {
    let up = Frame {
        direction: Direction::Uplink,
        qfi: 63,
        reflective: false,
        paging_policy: None,
    };
    let down = Frame {
        direction: Direction::Downlink,
        qfi: 5,
        reflective: true,
        paging_policy: Some(6),
    };
    for (frame, wanted) in [(up, &[0x10, 63][..]), (down, &[0, 0xc5, 6 << 5, 0, 0, 0])] {
        let (bytes, count) = frame.emit();
        assert_eq!(&bytes[..count], wanted);
        assert_eq!(Frame::parse(wanted), Some(frame));
    }
    assert_eq!(Frame::parse(&[0x20, 0]), None);
    assert_eq!(Frame::parse(&[0, 0x80]), None);
    assert_eq!(Frame::parse(&[0]), None);
}

#[test]
fn error_indications_and_lists_go_there_and_back() {
    for peer in [
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    ] {
        let indication = ErrorIndication {
            teid: 0x0102_0304,
            peer,
        };
        let mut bytes = [0; 32];
        let count = indication.emit(&mut bytes).unwrap();
        assert_eq!(ErrorIndication::parse(&bytes[..count]), Ok(indication));
        for end in 0..count {
            assert!(
                ErrorIndication::parse(&bytes[..end]).is_err(),
                "cut at {end}"
            );
        }
        // What comes before, if its length is known, is passed over; of a fixed length that is not known it is not.
        let mut after = [
            231, 0, 1, 9, 14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0,
        ];
        after[6..6 + count].copy_from_slice(&bytes[..count]);
        assert_eq!(ErrorIndication::parse(&after[..6 + count]), Ok(indication));
        after[4] = 15;
        assert_eq!(
            ErrorIndication::parse(&after[..6 + count]),
            Err(ParseError::Element(15))
        );
    }
    let mut bytes = [0; 8];
    let count = emit_supported_extensions(&[0x85, 0x84], &mut bytes).unwrap();
    assert_eq!(
        parse_supported_extensions(&bytes[..count]),
        Ok(&[0x85, 0x84][..])
    );
    assert_eq!(emit_echo_response(), [14, 0]);
    assert_eq!(parse_restart_counter(&emit_echo_response()), Some(0));
    assert_eq!(parse_restart_counter(&[255, 0, 1, 7, 14, 9]), Some(9));
    for none in [&[][..], &[14], &[255, 0, 9, 14, 1], &[3, 14, 1]] {
        assert_eq!(parse_restart_counter(none), None);
    }
}
