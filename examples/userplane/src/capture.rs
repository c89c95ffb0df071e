//! Files of packets: pcap, the classic format (draft-ietf-opsawg-pcap).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;

use crate::packet;

/// Writes a capture file of UDP packets in so many flows, for `userplane balancer`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How many flows.
    #[arg(long, default_value_t = 64)]
    flows: u32,
    /// How many packets, which the flows have in turn.
    #[arg(long, default_value_t = 10_000)]
    packets: u32,
    /// The file to write.
    file: PathBuf,
}

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const ETHERNET: u32 = 1;
const RAW_IP: u32 = 101;
const ETHERNET_BYTES: usize = 14;
const FILE_HEADER_BYTES: usize = 24;
const RECORD_HEADER_BYTES: usize = 16;
const PACKET_BYTES_MAX: usize = 65_535;

pub(crate) fn write(options: &Options) -> anyhow::Result<()> {
    ensure!(options.flows > 0, "there must be a flow");
    let mut file = Vec::new();
    let mut emit = |word: u32| file.extend(word.to_le_bytes());
    // Version 2.4, no time zone, no accuracy, whole packets.
    [MICROSECONDS, 2 | 4 << 16, 0, 0, 65_535, RAW_IP]
        .into_iter()
        .for_each(&mut emit);
    for number in 0..options.packets {
        let (flow, sequence) = (number % options.flows, number / options.flows);
        let [_, a, b, c] = flow.to_be_bytes();
        // Any sizes from 8 to 1400 bytes; the number is in front.
        let bytes = 8 + number.wrapping_mul(2_654_435_761) as usize % 1393;
        let mut payload = vec![c; bytes];
        payload[..8].copy_from_slice(&u64::from(sequence).to_be_bytes());
        let source = ([10, a, b, c], 1024 + (flow % 60_000) as u16);
        let packet = packet::udp(source, ([10, 255, 0, 1], 2152), &payload);
        let length = packet.len() as u32;
        let [seconds, micros] = [number / 1_000_000, number % 1_000_000];
        for word in [seconds, micros, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    fs::write(&options.file, file).with_context(|| format!("to write {}", options.file.display()))
}

/// The IPv4 packets of a file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let file = fs::read(path).with_context(|| format!("to read {}", path.display()))?;
    let packets = parse(&file).with_context(|| format!("{}", path.display()))?;
    ensure!(!packets.is_empty(), "{} has no IPv4 packet", path.display());
    Ok(packets)
}

fn parse(file: &[u8]) -> anyhow::Result<Vec<Vec<u8>>> {
    let first = file.first_chunk().context("not a pcap file: too short")?;
    let read: fn([u8; 4]) -> u32 = match (u32::from_le_bytes(*first), u32::from_be_bytes(*first)) {
        (MICROSECONDS | NANOSECONDS, _) => u32::from_le_bytes,
        (_, MICROSECONDS | NANOSECONDS) => u32::from_be_bytes,
        _ => bail!("not a pcap file (pcapng is another format: `editcap -F pcap` converts it)"),
    };
    let word = |at: usize| {
        let bytes = file
            .get(at..)
            .and_then(|rest| rest.first_chunk())
            .context("the file ends early")?;
        anyhow::Ok(read(*bytes))
    };
    // The upper bits say how long checksums of frames are.
    let link_type = word(20)? & 0xffff;
    let skipped = match link_type {
        ETHERNET => ETHERNET_BYTES,
        RAW_IP => 0,
        other => bail!("link type {other}: 1 (Ethernet) and 101 (IP) are understood"),
    };
    let mut packets = Vec::new();
    let mut at = FILE_HEADER_BYTES;
    while at < file.len() {
        let length = word(at + 8)? as usize;
        let start = at + RECORD_HEADER_BYTES;
        let frame = file
            .get(start..start + length)
            .context("the file ends in a packet")?;
        at = start + length;
        let is_ipv4 = link_type == RAW_IP || frame.get(12..ETHERNET_BYTES) == Some(&[8, 0]);
        if let Some(packet) = frame.get(skipped..)
            && is_ipv4
            && packet.len() <= PACKET_BYTES_MAX
            && packet::flow(packet).is_some()
        {
            packets.push(trimmed(packet));
        }
    }
    Ok(packets)
}

/// Without what short frames are filled up with.
fn trimmed(packet: &[u8]) -> Vec<u8> {
    let length = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
    packet[..length.min(packet.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(words: [u32; 6], frames: &[Vec<u8>], emit: fn(u32) -> [u8; 4]) -> Vec<u8> {
        let mut file: Vec<u8> = words.into_iter().flat_map(emit).collect();
        for frame in frames {
            let length = frame.len() as u32;
            file.extend([0, 0, length, length].into_iter().flat_map(emit));
            file.extend(frame);
        }
        file
    }

    fn some_packet() -> Vec<u8> {
        packet::udp(([10, 0, 0, 1], 1), ([10, 0, 0, 2], 2), &[7; 5])
    }

    #[test]
    fn both_byte_orders_and_both_kinds_of_links_are_read() {
        let raw = some_packet();
        let mut frame = vec![0; 12];
        frame.extend([8, 0]);
        frame.extend(&raw);
        frame.extend([0; 9]);
        let mut arp = frame.clone();
        arp[13] = 6;
        let little = capture(
            [MICROSECONDS, 0, 0, 0, 0, 101],
            std::slice::from_ref(&raw),
            u32::to_le_bytes,
        );
        let big = capture(
            [NANOSECONDS, 0, 0, 0, 0, 1],
            &[arp, frame],
            u32::to_be_bytes,
        );
        assert_eq!(parse(&little).unwrap(), std::slice::from_ref(&raw));
        assert_eq!(parse(&big).unwrap(), [raw]);
    }

    #[test]
    fn whatever_is_no_capture_is_refused_in_words() {
        let whole = capture(
            [MICROSECONDS, 0, 0, 0, 0, 101],
            &[some_packet()],
            u32::to_le_bytes,
        );
        for length in 0..whole.len() {
            let parsed = parse(&whole[..length]);
            assert!(parsed.is_err() || length == FILE_HEADER_BYTES, "{length}");
        }
        let pcapng = [0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 0];
        assert!(parse(&pcapng).unwrap_err().to_string().contains("editcap"));
        let other = capture([MICROSECONDS, 0, 0, 0, 0, 113], &[], u32::to_le_bytes);
        assert!(parse(&other).unwrap_err().to_string().contains("113"));
    }
}
