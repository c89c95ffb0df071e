//! A virtio port at work, for `tests/packets`: as `memif` does it.
//!
//! `virtio vhost-user|virtio-user server|client PATH [--queues N] [--unsealed] [--packed] [--plain] [--sleep] [--wait] count BYTES | …`
//!
//! `--packed` is for front ends, and back ends take what comes. With `--plain` no packet is in several buffers. With `--wait` nothing is
//! sent until a byte has come on standard input.

#![forbid(unsafe_code)]

mod frames;
mod site;

use std::error::Error;

use millrace_port::vhost_user::{Config, Role, VhostUser};
use millrace_port::virtio_user::{self, VirtioUser};
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
    config.packed = kind == "vhost-user";
    let (mut sleeps, mut waits) = (false, false);
    let what = loop {
        match next().ok_or(missing)?.as_str() {
            "--queues" => config.queue_pairs = next().ok_or(missing)?.parse()?,
            "--unsealed" => config.accept_unsealed = true,
            "--packed" => config.packed = true,
            "--plain" => config.mergeable = false,
            "--sleep" => sleeps = true,
            "--wait" => waits = true,
            word => break word.to_owned(),
        }
    };
    let mut site = if kind == "vhost-user" {
        Site::new(VhostUser::new(config)?)
    } else {
        let mut front = virtio_user::Config::new(role, config.path);
        front.queue_pairs = config.queue_pairs;
        front.packed = config.packed;
        front.mergeable = config.mergeable;
        Site::new(VirtioUser::new(front)?)
    };
    if waits {
        site.until_told();
    }
    site.work(&what, sleeps, next)
}
