//! A capture, written or checked, for `tests/packets`.
//!
//! `capture write pcap|pcapng PATH N | read PATH N`

#![forbid(unsafe_code)]

mod frames;

use std::error::Error;
use std::time::Instant;

use frames::{filled, length, number_of};
use millrace_port::pcap::{Format, Link, Pace, Pcap};
use millrace_port::{Burst, Closed, Port, State};

const BURST: usize = 32;

fn write(path: &str, format: Format, count: u64) -> Result<(), Box<dyn Error>> {
    let mut port = Pcap::write(path, format, Link::Ethernet)?;
    let mut burst = Burst::new(1);
    for number in 0..count {
        burst.clear();
        burst.push(&filled(number, length(number)));
        port.transmit(0, &burst, 0);
    }
    match port.poll(Instant::now()) {
        State::Connected => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn read(path: &str, count: u64) -> Result<(), Box<dyn Error>> {
    let mut port = Pcap::read(path, Pace::Full)?;
    let mut burst = Burst::new(BURST);
    let mut number = 0;
    while matches!(port.state(), State::Connected) {
        port.receive(0, &mut burst);
        for packet in burst.iter() {
            let bytes = packet.to_vec();
            if bytes != filled(number, length(number)) {
                let other = number_of(&bytes);
                return Err(format!("packet {number} is {other:?}, or not as it was").into());
            }
            number += 1;
        }
    }
    match port.state() {
        State::Closed(Closed::EndOfFile) if number == count => Ok(()),
        state => Err(format!("{number} packets, {state:?}").into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["write", "pcap", path, count] => write(path, Format::Pcap, count.parse()?),
        ["write", "pcapng", path, count] => write(path, Format::Pcapng, count.parse()?),
        ["read", path, count] => read(path, count.parse()?),
        _ => Err("write FORMAT PATH N, or read PATH N".into()),
    }
}
