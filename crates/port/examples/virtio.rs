//! A virtio port at work, for `tests/packets`: as `memif` does it.
//!
//! `virtio vhost-user|virtio-user server|client PATH [--queues N] [--unsealed] [--split] [--plain] [--offloads] [--sleep] count BYTES …`
//!
//! `--split` has no packed rings, `--plain` no packet in several buffers.

#![forbid(unsafe_code)]

mod frames;
mod site;

use std::error::Error;

use millrace_port::vhost_user::{Config, Role, VhostUser};
use site::Site;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let mut next = move || words.next();
    let missing = "a word is missing";
    let kind = next().ok_or(missing)?;
    let role = match next().ok_or(missing)?.as_str() {
        "server" => Role::Server,
        _ => Role::Client,
    };
    let mut config = Config::new(role, next().ok_or(missing)?);
    let mut sleeps = false;
    let what = loop {
        match next().ok_or(missing)?.as_str() {
            "--queues" => config.queue_pairs = next().ok_or(missing)?.parse()?,
            "--unsealed" => config.accept_unsealed = true,
            "--split" => config.packed = false,
            "--plain" => config.mergeable = false,
            "--offloads" => config.offloads = true,
            "--sleep" => sleeps = true,
            word => break word.to_owned(),
        }
    };
    match kind.as_str() {
        "vhost-user" => Site::new(VhostUser::new(config)?).work(&what, sleeps, next),
        _ => Err("what kind of port?".into()),
    }
}
