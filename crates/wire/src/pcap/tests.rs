extern crate std;
use std::format;
use std::vec::Vec;

use super::*;

/// A capture of packets with their times, as it is written.
fn capture(blocks: bool, packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut header = [0; HEADER_BYTES_MAX];
    let length = emit_header(blocks, LINK_ETHERNET, &mut header);
    let mut file = header[..length].to_vec();
    for (time_ns, bytes) in packets {
        let (mut lead, mut trail) = ([0; LEAD_BYTES_MAX], [0; TRAIL_BYTES_MAX]);
        let around = emit_around(blocks, bytes.len() as u32, *time_ns, &mut lead, &mut trail);
        file.extend_from_slice(&lead[..around.0]);
        file.extend_from_slice(bytes);
        file.extend_from_slice(&trail[..around.1]);
    }
    file
}

/// All packets of a file, which comes in pieces.
fn decoded(file: &[u8]) -> Result<Vec<(u64, Vec<u8>)>, ParseError> {
    let (mut decoder, mut at, mut known) = (Decoder::default(), 0, 0);
    let mut packets = Vec::new();
    loop {
        match decoder.next(&file[at..known])? {
            Item::Need(bytes) if at + bytes > file.len() => return Ok(packets),
            Item::Need(bytes) => {
                assert!(at + bytes > known, "it has been given that");
                known = at + bytes;
            }
            Item::Other(bytes) => at += bytes,
            Item::Packet(packet, bytes) => {
                packets.push((packet.time_ns.unwrap_or(0), packet.bytes.to_vec()));
                at += bytes;
            }
        }
    }
}

fn packets() -> Vec<(u64, Vec<u8>)> {
    let lengths = [0u64, 1, 2, 3, 4, 60, 1514, 9018];
    lengths
        .map(|length| {
            let time_ns = 1_700_000_000_123_456_789 + length * 1_000_000_001;
            (time_ns, (0..length).map(|byte| byte as u8).collect())
        })
        .to_vec()
}

#[test]
fn what_is_written_is_read_again() {
    for blocks in [false, true] {
        assert_eq!(decoded(&capture(blocks, &packets())), Ok(packets()));
    }
}

#[test]
fn every_byte_order_and_unit_of_time_is_read() {
    let words = |words: &[u32], big: bool| -> Vec<u8> {
        let bytes = words.iter().map(|word| {
            if big {
                word.to_be_bytes()
            } else {
                word.to_le_bytes()
            }
        });
        bytes.flatten().collect()
    };
    for big in [false, true] {
        for (magic, time) in [
            (MAGIC_MICROSECONDS, 5_000_007_000),
            (MAGIC_NANOSECONDS, 5_000_000_007),
        ] {
            let file = words(
                &[magic, 0x0004_0002, 0, 0, 65_535, 1, 5, 7, 4, 4, 0x0102_0304],
                big,
            );
            let read = decoded(&file).unwrap();
            assert_eq!((read[0].0, read[0].1.len()), (time, 4));
        }
        // Microseconds by default, milliseconds, and 2^-10 seconds.
        for (unit, time) in [(None, 3_000), (Some(3), 3_000_000), (Some(0x8a), 2_929_687)] {
            let mut file = words(&[SECTION, 28, BYTE_ORDER, 1, 0, 0, 28], big);
            // Two halves are one word, each in its own byte order.
            let pair = |first: u32, second: u32| {
                if big {
                    first << 16 | second
                } else {
                    first | second << 16
                }
            };
            let option = unit.map(|unit: u32| [pair(9, 1), if big { unit << 24 } else { unit }, 0]);
            let length = 20 + option.map_or(0, |_| 12);
            file.extend(words(&[INTERFACE, length, pair(1, 0), 0], big));
            file.extend(words(
                option.as_ref().map_or(&[], |option| &option[..]),
                big,
            ));
            file.extend(words(&[length], big));
            // Somebody's own block is passed over.
            file.extend(words(&[0xbad, 16, 1, 16], big));
            file.extend(words(&[ENHANCED_PACKET, 36, 0, 0, 3, 2, 2, 0, 36], big));
            file.extend(words(&[SIMPLE_PACKET, 20, 4, 7, 20], big));
            let read = decoded(&file).unwrap();
            assert_eq!(
                (read[0].0, read[0].1.len(), read[1].1.len()),
                (time, 2, 4),
                "{unit:?}"
            );
        }
    }
}

#[test]
fn garbage_is_refused_or_ends_and_never_panics() {
    let mut state = 1u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize
    };
    for turn in 0..if cfg!(miri) { 4 } else { 4000 } {
        let mut file = capture(turn % 2 == 0, &packets()[..6]);
        for _ in 0..1 + random() % 6 {
            let at = random() % file.len();
            file[at] = random() as u8;
        }
        let _ = decoded(&file);
    }
    let error = decoded(&[7; 64]).unwrap_err();
    assert_eq!(
        format!("{error}"),
        "a file that begins with 0x07070707 is no capture"
    );
}
