//! A load generator for packets: `millrace load packets`.
//!
//! One thread sends packets by one port and takes them from the same or another one, where a switch or whatever is tested brings them; so
//! it needs one processor, and the device under test has another. Each packet has a number and a time, and is checked when it comes:
//! its first bytes, its length, whether it came twice, and whether it was overtaken by a later one of its flow.
//!
//! At a fixed rate a packet counts from when it was *due*, and one that the port does not take then is lost, as it would be on a wire.
//! Without a rate the generator sends as fast as the port takes, which finds out how fast packets can pass, not how fast they pass
//! without loss; `search` does that.
//!
//! Where there is somebody else at the other end, half of it is enough: `receive` only counts what comes, `send` only sends, and `echo`
//! sends back what comes; `udp` does that by the kernel's own stack, to hold it against.
//!
//! In reading order: `place` (where ports are), `pattern` (what is sent), `checksum`, `gtpu` (what is sent to a packet processing
//! function), `capture` (frames that were captured), `stamp` (what tells one packet from another), `sink` (what is found of what comes),
//! `device` (who else had the processors), `drive` (the loop), `slices` (latencies of quiet moments), `outcome` (what is told), `search`
//! (the highest rates), `width` (how narrowly), `idle` (what a device uses that has nothing to do), `receive`, `send`, `echo`, `udp`.

mod capture;
mod checksum;
mod device;
mod drive;
mod echo;
mod gtpu;
mod idle;
mod outcome;
mod pace;
mod pattern;
mod place;
mod receive;
mod search;
mod send;
mod sink;
mod slices;
mod stamp;
#[cfg(test)]
mod tests;
mod udp;
mod width;

pub use capture::Capture;
pub use drive::{Generator, Latencies, Options};
pub use echo::{Echoed, echo};
pub use gtpu::{Gtpu, Way};
pub use idle::{Quiet, idle};
pub use outcome::{Faults, Outcome};
pub use pattern::{Content, Pattern, Sizes};
pub use place::Place;
pub use receive::{Received, receive};
pub use search::{At, Found, Goal, Limit, Step, Verdict, search};
pub use send::{Sent, send};
pub use sink::Checks;
pub use udp::echo_udp;
pub use width::Width;
