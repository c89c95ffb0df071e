//! A memif port at work, for `tests/packets` and `tests/switch`: counts, sends, or sends what somebody else returns and checks it.
//!
//! `memif server|client PATH [--queues N] [--unsealed] [--sleep] count BYTES | send N BYTES | exchange N [mac] |
//! number N BYTES | ordered`
//!
//! Says on standard output what becomes of the connection, one line each, and at last `result` with what was counted. `count` and
//! `ordered` end when standard input does.

#![forbid(unsafe_code)]

mod frames;
mod site;

use std::error::Error;

use millrace_port::memif::{Config, Memif, Role};
use site::Site;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut next = move || words.next();
    let missing = "a word is missing";
    let role = match next().ok_or(missing)?.as_str() {
        "server" => Role::Server,
        _ => Role::Client,
    };
    let mut config = Config::new(role, next().ok_or(missing)?);
    let mut sleeps = false;
    let what = loop {
        match next().ok_or(missing)?.as_str() {
            "--queues" => {
                config.receive_queues = next().ok_or(missing)?.parse()?;
                config.transmit_queues = config.receive_queues;
            }
            "--unsealed" => config.accept_unsealed = true,
            "--sleep" => sleeps = true,
            word => break word.to_owned(),
        }
    };
    Site::new(Memif::new(config)?).work(&what, sleeps, next)
}
