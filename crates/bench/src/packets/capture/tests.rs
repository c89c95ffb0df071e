//! Captures that are written here, and the generator against somebody who returns their frames, or does what he should not.

use millrace_port::pcap::{Format, Link};

use super::super::tests::{Deed, Returner, SLOWLY, plain_of};
use super::super::{Content, Faults, Latencies, Options, Outcome, Sizes};
use super::*;

const V4: [u8; 2] = [0x08, 0x00];
const TAGGED_V6: [u8; 6] = [0x81, 0x00, 0, 100, 0x86, 0xdd];
const UDP: u8 = 17;
const TCP: u8 = 6;

/// A frame as a machine captures it that leaves checksums to its interface; `kind` is what comes before the packet.
fn frame(kind: &[u8], protocol: u8, port: u16, payload: usize) -> Vec<u8> {
    let port = port.to_be_bytes();
    let header = match protocol {
        TCP => 20,
        _ => 8,
    };
    let mut transport = [&port, &[0, 9][..]].concat();
    transport.resize(header, 0);
    transport[if protocol == TCP { 16 } else { 6 }] = 0x12;
    if protocol == TCP {
        transport[12] = 5 << 4;
    } else {
        transport[4..6].copy_from_slice(&((header + payload) as u16).to_be_bytes());
    }
    transport.extend((0..payload).map(|place| place as u8));
    let length = |more: usize| ((transport.len() + more) as u16).to_be_bytes();
    let ip = match kind.ends_with(&V4) {
        true => [
            &[0x45, 0][..],
            &length(20),
            &[0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
        ]
        .concat(),
        false => [
            &[0x60, 0, 0, 0][..],
            &length(0),
            &[protocol, 64],
            &[0xfd; 16],
            &[0xfe; 16],
        ]
        .concat(),
    };
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], kind, &ip, &transport].concat()
}

/// Whether checksums are right, found out as the RFCs say it, and not by the generator's own code. Frames are as those above.
fn is_right(frame: &[u8]) -> bool {
    let sum = |parts: &[&[u8]]| {
        let words = parts.iter().flat_map(|part| part.chunks(2));
        let words =
            words.map(|pair| u64::from(pair[0]) * 256 + pair.get(1).copied().map_or(0, u64::from));
        words.sum::<u64>() % 0xffff
    };
    let (addresses, protocol, transport) = match frame[12] {
        0x08 if sum(&[&frame[14..34]]) != 0 => return false,
        0x08 => (&frame[26..34], frame[23], &frame[34..]),
        _ => (&frame[26..58], frame[24], &frame[58..]),
    };
    let around = [
        0,
        protocol,
        (transport.len() >> 8) as u8,
        transport.len() as u8,
    ];
    sum(&[addresses, &around, transport]) == 0
}

/// The frames as a file of this format.
fn written(
    directory: &tempfile::TempDir,
    format: Format,
    frames: &[Vec<u8>],
) -> std::path::PathBuf {
    let path = directory.path().join("capture");
    let mut port = Pcap::write(&path, format, Link::Ethernet).unwrap();
    for frame in frames {
        let mut burst = Burst::new(1);
        assert!(burst.push(frame));
        assert_eq!(port.transmit(0, &burst, 0), 1);
    }
    path
}

fn read(frames: &[Vec<u8>]) -> Result<Capture> {
    let directory = tempfile::tempdir().unwrap();
    Capture::read(&written(&directory, Format::Pcap, frames))
}

fn run(capture: &Capture, deed: Deed, rate: Option<f64>, checks: Checks) -> Outcome {
    let pattern = super::super::Pattern {
        content: Content::Capture(capture.clone()),
        ..plain_of(Sizes::Fixed(64))
    };
    let options = Options {
        rate,
        seconds: 0.1,
        checks,
        latency: Latencies::All,
    };
    Returner::new(deed).send(pattern, &options)
}

const WHOLE: Checks = Checks {
    skips_macs: false,
    whole: true,
    is_turned: false,
};

/// Seven frames that can be sent, of five flows, and three that cannot.
fn mixed() -> Vec<Vec<u8>> {
    let arp = [&[255; 6][..], &[2; 6], &[8, 6], &[0; 46]].concat();
    let padded = [frame(&V4, UDP, 1, 5), vec![0; 13]].concat();
    let checked = [frame(&V4, UDP, 1, 100), vec![1, 2, 3, 4]].concat();
    vec![
        frame(&V4, UDP, 1, 22),
        arp,
        frame(&V4, TCP, 1, 23),
        padded,
        frame(&TAGGED_V6, UDP, 1, 101),
        frame(&V4, TCP, 2, 1460),
        frame(&TAGGED_V6, TCP, 1, 1201),
        frame(&V4, TCP, 2, 0),
        checked,
        frame(&V4, TCP, 2, 70),
    ]
}

#[test]
fn frames_come_back_as_they_were_and_a_device_finds_their_checksums_right() {
    let directory = tempfile::tempdir().unwrap();
    for format in [Format::Pcap, Format::Pcapng] {
        let path = written(&directory, format, &mixed());
        let capture = Capture::read(&path).unwrap();
        for rate in [SLOWLY, None] {
            let deed: Deed = |_, mut packet, _| {
                if !is_right(&packet) {
                    packet[0] ^= 1;
                }
                vec![packet]
            };
            let outcome = run(&capture, deed, rate, WHOLE);
            assert!(outcome.is_sound() && outcome.received > 0, "{outcome}");
            assert_eq!(outcome.received + outcome.lost, outcome.sent, "{outcome}");
            assert_eq!(outcome.latency.count, outcome.received);
            assert_eq!((outcome.sizes.as_str(), outcome.flows), ("64 to 1514", 5));
            let told = outcome.notes.iter().find(|note| note.contains("left out"));
            let counts = "of the 10 frames in";
            let reasons =
                "3 are left out: 2 have no 22 bytes of payload for the stamp, 1 are not IPv4";
            let told = told.unwrap();
            assert!(told.contains(counts) && told.contains(reasons), "{told}");
        }
    }
}

#[test]
fn frames_are_sent_in_turn_and_only_their_last_bytes_are_others() {
    let captured = mixed();
    let frames = read(&captured).unwrap().frames();
    let mut burst = Burst::new(32);
    let stamps = |first: u64| {
        (first..first + 32).map(|number| Stamp {
            run: u32::MAX,
            number,
            time_ns: number << 40,
        })
    };
    let sent: Vec<&Vec<u8>> = [0, 2, 4, 5, 6, 8, 9].map(|place| &captured[place]).to_vec();
    for first in [0, 32, 5 << 33] {
        frames.fill(&mut burst, stamps(first));
        for (stamp, packet) in stamps(first).zip(burst.iter()) {
            let (bytes, index) = (packet.to_vec(), (stamp.number % 7) as usize);
            let at = bytes.len() - TRAIL_BYTES;
            assert_eq!(Frames::read(&packet), Some(stamp));
            assert!(is_right(&bytes), "frame {index}");
            assert!(
                frames.is_like(index, &stamp, &packet, WHOLE) && frames.is_filled(index, &bytes)
            );
            // Headers but for their checksums, and the payload before the stamp.
            assert_eq!(bytes[..24], sent[index][..24]);
            assert_eq!(bytes[78.min(at)..at], sent[index][78.min(at)..at]);
        }
    }
}

#[test]
fn what_is_changed_is_found_wherever_it_is_and_what_is_lost_is_counted() {
    let capture = read(&mixed()).unwrap();
    let changed: Deed = |number, mut packet, _| {
        // A MAC address, a header, before the stamp, its time, what balances it.
        let end = packet.len();
        let places = [0, 30, end - 23, end - 5, end - 1];
        packet[places[number as usize % 5]] ^= 0x40;
        vec![packet]
    };
    let outcome = run(&capture, changed, SLOWLY, WHOLE);
    assert_eq!(outcome.received, 0, "{outcome}");
    assert!(outcome.faults.changed > 0, "{outcome}");
    let shorter: Deed = |_, packet, _| vec![[&packet[..50], &packet[51..]].concat()];
    let outcome = run(&capture, shorter, SLOWLY, Checks::default());
    assert_eq!(outcome.received, 0, "{outcome}");
    assert!(outcome.faults.changed > 0, "{outcome}");
    let other_macs: Deed = |_, mut packet, _| {
        packet[..12].rotate_left(6);
        vec![packet]
    };
    let skips_macs = Checks {
        skips_macs: true,
        ..WHOLE
    };
    let outcome = run(&capture, other_macs, SLOWLY, skips_macs);
    assert!(outcome.is_sound() && outcome.received > 0, "{outcome}");
    let some: Deed = |number, packet, _| match number % 10 {
        3 => Vec::new(),
        _ => vec![packet],
    };
    let outcome = run(&capture, some, SLOWLY, WHOLE);
    assert!(outcome.is_sound(), "{outcome}");
    assert!(outcome.lost >= outcome.sent / 10, "{outcome}");
}

#[test]
fn frames_of_one_flow_keep_their_order_and_those_of_several_need_not() {
    let overtaken: Deed = |number, packet, kept| match number % 10 {
        4 => {
            kept.push(packet);
            Vec::new()
        }
        5 => [vec![packet], std::mem::take(kept)].concat(),
        _ => vec![packet],
    };
    let of_flows = |flows: u16| {
        let frames = (0..40).map(|number| frame(&V4, UDP, number % flows, 100));
        run(
            &read(&frames.collect::<Vec<_>>()).unwrap(),
            overtaken,
            SLOWLY,
            WHOLE,
        )
    };
    let one = of_flows(1);
    assert!(one.faults.overtaken > 0 && one.flows == 1, "{one}");
    let many = of_flows(40);
    assert_eq!((many.faults, many.flows), (Faults::default(), 40), "{many}");
}

#[test]
fn headers_are_found_behind_tags_and_extensions_and_in_fragments() {
    let parse = |frame: &[u8]| {
        let headers = Headers::parse(frame).unwrap();
        (headers.payload_at, headers.end, headers.flow(frame).len())
    };
    let whole = frame(&V4, UDP, 1, 100);
    assert_eq!(parse(&whole), (42, 142, 2 + 8 + 1 + 4));
    let tags = [&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2][..], &V4].concat();
    assert_eq!(parse(&frame(&tags, TCP, 1, 9)), (62, 71, 10 + 8 + 1 + 4));
    let mut first = whole.clone();
    first[20] = 0x20;
    let mut later = whole.clone();
    later[21] = 9;
    // Neither's checksum is of itself; and no port is known of the second.
    assert_eq!(parse(&first), (34, 142, 2 + 8 + 1));
    assert_eq!(parse(&later), parse(&first));
    let mut mended = first.clone();
    Headers::parse(&first).unwrap().mend(&mut mended);
    assert_eq!(mended[34..], first[34..]);
    let mut six = frame(&[0x86, 0xdd], 0, 1, 100);
    // Hop by hop, then UDP, which this frame has 100 bytes for.
    six[54..56].copy_from_slice(&[UDP, 1]);
    assert_eq!(parse(&six), (54 + 16 + 8, 162, 2 + 32 + 1 + 4));
    let mut none = frame(&V4, UDP, 1, 100);
    none[40..42].fill(0);
    Headers::parse(&none).unwrap().mend(&mut none);
    assert_eq!(none[40..42], [0, 0], "UDP without a checksum stays so");
    for (at, wrong) in [(14, 0x44), (14, 0x65), (16, 0xff), (12, 9)] {
        let mut frame = whole.clone();
        frame[at] = wrong;
        assert!(Headers::parse(&frame).is_none(), "{wrong:#x} at {at}");
    }
    for end in 0..whole.len() {
        assert!(Headers::parse(&whole[..end]).is_none());
    }
}

#[test]
fn files_without_a_frame_to_send_are_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let refusal = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Capture::read(&path).unwrap_err().to_string()
    };
    assert!(refusal(&[7; 100]).contains("cannot read"));
    let good = std::fs::read(written(&directory, Format::Pcap, &mixed())).unwrap();
    assert!(refusal(&good[..good.len() - 1]).contains("ends in the middle of a packet"));
    let few = read(&[frame(&V4, UDP, 1, 21), vec![0; 60]]).unwrap_err();
    let few = few.to_string();
    assert!(
        few.contains("no frame that can be sent: of 2, 1 have no 22 bytes"),
        "{few}"
    );
    assert!(few.contains("1 are not IPv4"), "{few}");
    let long = read(&[frame(&V4, UDP, 1, 9_000)]).unwrap_err().to_string();
    assert!(long.contains("1 have more than 9018 bytes"), "{long}");
    let missing = Capture::read(Path::new("/nowhere/capture")).unwrap_err();
    assert!(missing.to_string().contains("cannot read /nowhere/capture"));
}
