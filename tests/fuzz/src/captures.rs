//! Captures: any bytes are read to an end, and what they are does not depend on how they come.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Instant;

use millrace_port::pcap::{Pace, Pcap};
use millrace_port::{Burst, Port, State};
use millrace_shm::sys::create_unsealed;
use millrace_wire::pcap::{BLOCK_BYTES_MAX, Decoder, Item};

/// Reads `bytes` as a file.
pub fn run(bytes: &[u8]) {
    let whole = decode(bytes, false);
    assert_eq!(whole, decode(bytes, true), "it depends on how they come");
    read(bytes, whole);
}

/// How many packets there are; all at once, or no more than are needed each time.
fn decode(bytes: &[u8], in_steps: bool) -> u64 {
    let mut decoder = Decoder::default();
    let (mut at, mut packets) = (0, 0);
    let mut there = if in_steps { 0 } else { bytes.len() };
    loop {
        let rest = &bytes[at..there.max(at)];
        match decoder.next(rest) {
            Err(_) => return packets,
            Ok(Item::Need(wanted)) => {
                assert!(
                    wanted > rest.len() && wanted <= BLOCK_BYTES_MAX + 64,
                    "{wanted}"
                );
                if at + wanted > bytes.len() {
                    return packets;
                }
                there = at + wanted;
            }
            Ok(Item::Other(length)) => {
                assert!(length > 0);
                at += length;
            }
            Ok(Item::Packet(packet, length)) => {
                assert!(packet.bytes.len() < length && length <= rest.len());
                at += length;
                packets += 1;
            }
        }
    }
}

fn read(bytes: &[u8], packets: u64) {
    if bytes.is_empty() {
        return;
    }
    let memory = create_unsealed(c"capture", bytes.len()).expect("memory");
    let mut file = File::from(memory);
    file.write_all(bytes).expect("written");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut port = Pcap::read(path, Pace::Full).expect("a file");
    let mut burst = Burst::new(8);
    let (mut came, mut size) = (0, 0);
    while matches!(port.poll(Instant::now()), State::Connected) {
        came += port.receive(0, &mut burst) as u64;
        size += burst
            .iter()
            .map(|packet| packet.to_vec().len() as u64)
            .sum::<u64>();
    }
    let received = port.counters().received;
    assert_eq!((received.packets, received.bytes), (came, size));
    // One of a link that is not understood ends it.
    assert!(received.offered() <= packets);
}
