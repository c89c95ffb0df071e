//! Messages to and from captures, for tests beside others' programs:
//!
//! ```text
//!   gtpu write FILE SEED COUNT     writes messages of all kinds, some in fragments
//!   gtpu read FILE                 says what is in each: a JSON object a line, with lists of values by name
//!   gtpu relay IN OUT              what comes to 192.0.2.1 or 2001:db8::1 goes through the function, and on to OUT
//! ```
//!
//! `relay` knows one bearer: its first TEIDs, between 192.0.2.10 (TEID 0xc0) and 192.0.2.11 (TEID 0xa0), or the same of IPv6.

use std::fs;
use std::net::IpAddr;

use millrace_ppf::{
    Bearer, Function, Outcome, Outer, Peer, Reassembler, ReassemblyLimits, Side, Verdict,
};
use millrace_wire::gtpu::PORT;
use millrace_wire::pcap::{
    Decoder, HEADER_BYTES_MAX, Item, LEAD_BYTES_MAX, LINK_ETHERNET, TRAIL_BYTES_MAX, emit_around,
    emit_header,
};

mod frames;
mod make;
mod tell;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["write", file, seed, count] => write(file, seed.parse()?, count.parse()?),
        ["read", file] => read(file),
        ["relay", from, to] => relay(from, to),
        _ => Err("gtpu write FILE SEED COUNT | read FILE | relay IN OUT".into()),
    }
}

/// A capture that is written.
struct Capture(Vec<u8>);

impl Capture {
    fn new() -> Capture {
        let mut header = [0; HEADER_BYTES_MAX];
        let count = emit_header(false, LINK_ETHERNET, &mut header);
        Capture(header[..count].to_vec())
    }

    fn add(&mut self, frame: &[u8]) {
        let (mut lead, mut trail) = ([0; LEAD_BYTES_MAX], [0; TRAIL_BYTES_MAX]);
        let (before, behind) = emit_around(false, frame.len() as u32, 0, &mut lead, &mut trail);
        self.0.extend_from_slice(&lead[..before]);
        self.0.extend_from_slice(frame);
        self.0.extend_from_slice(&trail[..behind]);
    }
}

fn write(file: &str, seed: u64, count: usize) -> Result<()> {
    let mut random = make::Random(seed.max(1));
    let mut capture = Capture::new();
    for number in 0..count {
        let message = make::message(&mut random);
        let (from, to) = make::addresses(number % 2 == 1);
        for frame in frames::emit(from, to, 0, number as u32, &message) {
            capture.add(&frame);
        }
    }
    Ok(fs::write(file, capture.0)?)
}

/// Calls `each` with the addresses and the class of each UDP datagram to our port, the sender's port, and the datagram.
fn datagrams(file: &str, mut each: impl FnMut(frames::Datagram<'_>) -> Result<()>) -> Result<()> {
    let bytes = fs::read(file)?;
    let (mut decoder, mut at) = (Decoder::default(), 0);
    let mut reassembler = Reassembler::new(ReassemblyLimits::default());
    while at < bytes.len() {
        let captured = match decoder.next(&bytes[at..])? {
            Item::Need(_) => return Err("the capture is cut off".into()),
            Item::Other(count) => {
                at += count;
                continue;
            }
            Item::Packet(captured, count) => {
                at += count;
                captured
            }
        };
        let Some(packet) = frames::packet(captured.bytes) else {
            continue;
        };
        match millrace_ppf::Fragment::parse(packet) {
            Ok(None) => {
                if let Some(datagram) = frames::whole(packet).filter(|one| one.to_port == PORT) {
                    each(datagram)?;
                }
            }
            Ok(Some(fragment)) => {
                let ends = (fragment.source, fragment.destination);
                if let Outcome::Whole {
                    protocol: 17,
                    class,
                    bytes,
                    ..
                } = reassembler.handle_fragment(&fragment, 0)
                    && let Some(datagram) = frames::udp(ends, class, bytes)
                    && datagram.to_port == PORT
                {
                    each(datagram)?;
                }
            }
            Err(cause) => return Err(format!("a fragment: {cause:?}").into()),
        }
    }
    Ok(())
}

fn read(file: &str) -> Result<()> {
    datagrams(file, |datagram| {
        println!("{}", tell::json(datagram.bytes));
        Ok(())
    })
}

fn relay(from: &str, to: &str) -> Result<()> {
    let mut capture = Capture::new();
    let mut function = Function::new();
    let ours = make::ours();
    for is_v6 in [false, true] {
        let peer = |last: u8, teid| Peer {
            address: make::address(is_v6, last),
            teid,
        };
        function
            .bearers
            .add(Bearer::new(peer(10, 0xc0), peer(11, 0xa0)));
    }
    datagrams(from, |datagram| {
        if !ours.contains(&datagram.to) {
            return Ok(());
        }
        let core: [IpAddr; 2] = [make::address(false, 10), make::address(true, 10)];
        let outer = Outer {
            side: if core.contains(&datagram.from) {
                Side::Core
            } else {
                Side::Radio
            },
            source: datagram.from,
            destination: datagram.to,
            source_port: datagram.from_port,
        };
        match function.handle_at(&outer, datagram.class, datagram.bytes, 0) {
            Verdict::Relay {
                to,
                class,
                header,
                body,
                ..
            } => {
                let message = [&header.0[..header.1], body].concat();
                let from = make::ours()[usize::from(to.address.is_ipv6())];
                for frame in frames::emit(from, to.address, class, 0, &message) {
                    capture.add(&frame);
                }
            }
            Verdict::Reply(reply) => {
                for frame in frames::emit(reply.from, reply.to, 0, 0, reply.bytes()) {
                    capture.add(&frame);
                }
            }
            verdict => println!("{verdict:?}"),
        }
        Ok(())
    })?;
    Ok(fs::write(to, capture.0)?)
}
