//! A switch whose ports are lines of text, for `tests/switch`: what comes and goes can be compared with what another switch does.
//!
//! `lines CONFIG` reads lines and answers each with the frames that leave, one a line as `PORT HEX`, and then `.`:
//!
//! - `PORT HEX`: a frame comes by a port (one with `memif.path = "/test"`);
//! - `wait MILLISECONDS`: tunnels have so much time for something to come by them;
//! - `report`: the answer is what the switch says of itself, as JSON.

#![forbid(unsafe_code)]

#[path = "../tests/rig/mod.rs"]
mod rig;

use std::error::Error;
use std::fmt::Write as _;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("the configuration's path is missing")?;
    let mut rig = rig::rig(&std::fs::read_to_string(path)?);
    println!(".");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "report" => println!("{}", serde_json::to_string(&rig.report())?),
            "wait" => wait(&mut rig, Duration::from_millis(rest.parse()?)),
            port => rig.inject(port, &bytes(rest)?),
        }
        for (port, frame) in rig.collect() {
            let hex = frame.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
            println!("{port} {hex}");
        }
        println!(".");
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn wait(rig: &mut rig::Rig, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        rig.now = Instant::now();
        rig.settle();
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn bytes(hex: &str) -> Result<Vec<u8>, std::num::ParseIntError> {
    let places = (0..hex.len() / 2 * 2).step_by(2);
    places
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16))
        .collect()
}
