//! How long the function takes for a packet, without any ports: each of so many bearers gets one after another, in an order that no cache
//! expects, in bursts of 32 whose bearers are touched first.
//!
//! ```text
//!   rate [BEARERS …]      1, 1 000 and 1 000 000, if none are said
//! ```

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use millrace_ppf::{Bearer, BearerId, Flows, Function, Outer, Peer, Side, Verdict};
use millrace_wire::gtpu::{EXTENSION_PDU_SESSION, G_PDU, Header, emit_extension};

const BURST: usize = 32;
const PACKETS: usize = 1 << 22;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut counts = Vec::new();
    for word in &words {
        counts.push(word.parse()?);
    }
    if counts.is_empty() {
        counts = vec![1, 1_000, 1_000_000];
    }
    for count in counts {
        let before = resident_bytes();
        let mut function = Function::new();
        let ids: Vec<BearerId> = (0..count)
            .filter_map(|number| function.bearers.add(bearer(number)))
            .collect();
        let memory = (resident_bytes() - before) / count as u64;
        let order = order(count);
        let relay = run(&order, |burst| relay(&mut function, &ids, burst));
        let (mut wrapping, ids) = plain(count);
        let wrap = run(&order, |burst| wrap(&mut wrapping, burst));
        let unwrap = run(&order, |burst| unwrap(&mut wrapping, &ids, burst));
        println!(
            "{count} bearers, {memory} bytes each: relay {relay:.1} ns, encapsulation {wrap:.1} ns, decapsulation {unwrap:.1} ns a packet"
        );
    }
    Ok(())
}

fn bearer(number: u32) -> Bearer {
    let peer = |last: u32, teid| Peer {
        address: address(last),
        teid,
    };
    Bearer::new(
        peer(number % 16, number + 1),
        peer(16 + number % 64, number + 1),
    )
}

fn address(last: u32) -> IpAddr {
    Ipv4Addr::from_bits(0xc000_0200 + last).into()
}

fn user(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + number)
}

fn plain(count: u32) -> (Function, Vec<BearerId>) {
    let mut function = Function::new();
    let bearers = (0..count).filter_map(|number| {
        let mut bearer = bearer(number);
        bearer.core = Peer::plain(user(number).into());
        bearer.flows[Side::Radio as usize] = Flows::Set(9);
        function.bearers.add(bearer)
    });
    let ids = bearers.collect();
    (function, ids)
}

/// Numbers below `count`, each about as often as any other.
fn order(count: u32) -> Vec<u32> {
    let mut state = 1u64;
    let numbers = (0..PACKETS).map(|_| {
        // xorshift64*, Vigna 2016.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as u32 % count
    });
    numbers.collect()
}

/// Nanoseconds for each packet, the least of three times.
fn run(order: &[u32], mut burst: impl FnMut(&[u32])) -> f64 {
    let mut least = f64::MAX;
    for _ in 0..3 {
        let begin = Instant::now();
        order.chunks(BURST).for_each(&mut burst);
        least = least.min(begin.elapsed().as_nanos() as f64 / order.len() as f64);
    }
    least
}

/// 90 bytes of a frame: Ethernet and VLAN 18, IPv4 and UDP 28, and this.
const INNER_BYTES: usize = 28;

fn inner(from: [u8; 4], to: [u8; 4]) -> [u8; INNER_BYTES] {
    let mut packet = [0; INNER_BYTES];
    packet[..12].copy_from_slice(&[0x45, 0, 0, INNER_BYTES as u8, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&to);
    packet
}

fn message(teid: u32, body: &[u8]) -> [u8; 16 + INNER_BYTES] {
    let mut bytes = [0; 16 + INNER_BYTES];
    let header = Header {
        kind: G_PDU,
        teid,
        sequence: None,
        extension: EXTENSION_PDU_SESSION,
    };
    let _ = header.emit(4 + body.len(), &mut bytes);
    let _ = emit_extension(&[0x10, 9], 0, &mut bytes[12..]);
    bytes[16..].copy_from_slice(body);
    bytes
}

fn outer(side: Side) -> Outer {
    Outer {
        side,
        source: address(200),
        destination: address(201),
        source_port: 2152,
    }
}

fn take(verdict: &Verdict<'_>) {
    match verdict {
        Verdict::Relay { header, body, .. } | Verdict::Plain { header, body, .. } => {
            black_box((header, body));
        }
        verdict => panic!("{verdict:?}"),
    }
}

fn relay(function: &mut Function, ids: &[BearerId], burst: &[u32]) {
    let outer = outer(Side::Core);
    let teid = |number: &u32| ids[*number as usize].teid(Side::Core);
    let touched = burst
        .iter()
        .fold(0, |all, number| all ^ function.bearers.touch(teid(number)));
    black_box(touched);
    for number in burst {
        let message = message(teid(number), &inner([198, 51, 100, 7], [10, 1, 2, 3]));
        take(&function.handle_at(&outer, 0, black_box(&message), 1));
    }
}

fn unwrap(function: &mut Function, ids: &[BearerId], burst: &[u32]) {
    let outer = outer(Side::Radio);
    let teid = |number: &u32| ids[*number as usize].teid(Side::Radio);
    let touched = burst
        .iter()
        .fold(0, |all, number| all ^ function.bearers.touch(teid(number)));
    black_box(touched);
    for number in burst {
        let message = message(
            teid(number),
            &inner(user(*number).octets(), [198, 51, 100, 7]),
        );
        take(&function.handle_at(&outer, 0, black_box(&message), 1));
    }
}

fn wrap(function: &mut Function, burst: &[u32]) {
    let mut touched = 0;
    for number in burst {
        let id = function.bearers.find_user(Side::Core, user(*number).into());
        touched ^= id.map_or(0, |id| function.bearers.touch(id.teid(Side::Core)));
    }
    black_box(touched);
    for number in burst {
        let packet = inner([198, 51, 100, 7], user(*number).octets());
        take(&function.handle_plain(Side::Core, black_box(&packet), 1));
    }
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
