//! Frames of a capture, sent in turn, again and again.
//!
//! The last bytes of a frame's payload are its stamp, and two more that balance it: the sum of all is what it was. So every checksum that
//! was right stays right, whatever it is of: an inner one in a tunnel, too. Those of IPv4, UDP and TCP are made right when the file is
//! read, since a machine that captures what it sends itself has often not filled them in yet. All else of a frame is sent as it was
//! captured, but for what is behind its packet (padding, a frame check sequence).
//!
//! A flow is what has the same tags, addresses, protocol and ports. Fragments have no ports.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use millrace_port::pcap::{Pace, Pcap};
use millrace_port::{Burst, Cause, Closed, HEAD_BYTES, Packet, Port, State};

use super::checksum::{complement, sum_of};
use super::pattern::{BURST_MAX, LONGEST, MACS_END};
use super::sink::Checks;
use super::stamp::{STAMP_BYTES, Stamp};
use headers::Headers;

mod headers;
#[cfg(test)]
mod tests;

/// A stamp, and what balances it.
const TRAIL_BYTES: usize = STAMP_BYTES + 2;
/// More than this is more memory than a generator should need.
const BYTES_MAX: usize = 1 << 30;

/// Frames to send.
#[derive(Clone, Debug)]
pub struct Capture {
    path: String,
    frames: Frames,
    flows: usize,
    left: Left,
}

/// The same, while they are sent.
#[derive(Clone, Debug)]
pub(super) struct Frames(Arc<[Frame]>);

#[derive(Debug)]
struct Frame {
    bytes: Box<[u8]>,
    flow: u32,
    /// The complement of the sum of what was in the trail's place, in the machine's byte order: the sum of swapped words is that of words,
    /// swapped.
    opposite: u16,
}

/// Frames of the file that are not sent.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// They were cut when they were captured, or are shorter than a header.
    cut: u64,
    strange: u64,
    short: u64,
    long: u64,
}

impl Left {
    fn all(self) -> u64 {
        self.cut + self.strange + self.short + self.long
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Left {
            cut,
            strange,
            short,
            long,
        } = self;
        write!(
            f,
            "{short} have no {TRAIL_BYTES} bytes of payload for the stamp, {strange} are not IPv4 or IPv6 in Ethernet, \
             {cut} were captured in part, {long} have more than {LONGEST} bytes"
        )
    }
}

impl Capture {
    /// Reads a file, pcap or pcapng. Frames that cannot be sent are left out, and counted.
    ///
    /// # Errors
    /// It cannot be read, or not to its end; it is too large, or none of its frames can be sent.
    pub fn read(path: &Path) -> Result<Capture> {
        let name = path.display().to_string();
        let mut port =
            Pcap::read(path, Pace::Full).with_context(|| format!("cannot read {name}"))?;
        let (mut frames, mut flows, mut left) = (Vec::new(), HashMap::new(), Left::default());
        let (mut burst, mut bytes) = (Burst::new(BURST_MAX), 0);
        loop {
            port.receive(0, &mut burst);
            for packet in burst.iter() {
                frames.extend(Frame::of(packet.to_vec(), &mut flows, &mut left));
                bytes += packet.len();
            }
            ensure!(
                bytes <= BYTES_MAX,
                "{name} has more than {BYTES_MAX} bytes of frames: take a part of it (editcap -r)"
            );
            match port.state() {
                State::Closed(Closed::EndOfFile) => break,
                State::Closed(why) => bail!("cannot read {name}: {why}"),
                State::Connecting(_) | State::Connected => {}
            }
        }
        let received = port.counters().received;
        left.cut = received.dropped(Cause::Cut) + received.dropped(Cause::TooShort);
        left.long += received.dropped(Cause::TooLong);
        ensure!(
            !frames.is_empty(),
            "{name} has no frame that can be sent: of {}, {left}",
            left.all()
        );
        Ok(Capture {
            path: name,
            frames: Frames(frames.into()),
            flows: flows.len(),
            left,
        })
    }

    /// How many flows its frames are of.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows
    }

    /// Lengths of its frames, for a person.
    pub(super) fn lengths(&self) -> String {
        let lengths = || self.frames.0.iter().map(|frame| frame.bytes.len());
        let ends = lengths().min().zip(lengths().max());
        let (least, most) = ends.unwrap_or_default();
        match least == most {
            true => least.to_string(),
            false => format!("{least} to {most}"),
        }
    }

    /// What is left out, if anything is.
    pub(super) fn note(&self) -> Option<String> {
        let left = self.left.all();
        (left > 0).then(|| {
            format!(
                "of the {} frames in {}, {left} are left out: {}",
                left + self.frames.len() as u64,
                self.path,
                self.left
            )
        })
    }

    pub(super) fn frames(&self) -> Frames {
        self.frames.clone()
    }
}

impl Frame {
    /// None: it cannot be sent, and is counted.
    fn of(mut bytes: Vec<u8>, flows: &mut HashMap<Vec<u8>, u32>, left: &mut Left) -> Option<Frame> {
        if bytes.len() > LONGEST {
            left.long += 1;
            return None;
        }
        let Some(headers) = Headers::parse(&bytes) else {
            left.strange += 1;
            return None;
        };
        bytes.truncate(headers.end);
        let at = bytes.len() - TRAIL_BYTES.min(bytes.len());
        if at < headers.payload_at {
            left.short += 1;
            return None;
        }
        headers.mend(&mut bytes);
        let next = flows.len() as u32;
        Some(Frame {
            flow: *flows.entry(headers.flow(&bytes)).or_insert(next),
            opposite: u16::from_be(complement(sum_of(&bytes[at..]))),
            bytes: bytes.into(),
        })
    }

    fn trail_at(&self) -> usize {
        self.bytes.len() - TRAIL_BYTES
    }

    /// What is sent in the place of its last bytes.
    #[inline]
    fn trail(&self, stamp: Stamp) -> [u8; TRAIL_BYTES] {
        let mut trail = [0; TRAIL_BYTES];
        stamp.write(&mut trail);
        let balance = complement(stamp.sum() + u32::from(self.opposite));
        trail[STAMP_BYTES..].copy_from_slice(&balance.to_ne_bytes());
        trail
    }
}

/// The last bytes of a frame that has come.
#[inline]
fn trail_of(packet: &Packet<'_>) -> Option<[u8; TRAIL_BYTES]> {
    let mut trail = [0; TRAIL_BYTES];
    packet.copy_to(packet.len().checked_sub(TRAIL_BYTES)?, &mut trail);
    Some(trail)
}

impl Frames {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(super) fn flow(&self, index: usize) -> usize {
        self.0[index].flow as usize
    }

    /// Fills a burst with the frames that have these stamps.
    #[inline]
    pub(super) fn fill(&self, burst: &mut Burst, stamps: impl Iterator<Item = Stamp>) {
        burst.clear();
        for (place, stamp) in stamps.enumerate() {
            let frame = &self.0[(stamp.number % self.0.len() as u64) as usize];
            burst.push(&frame.bytes);
            burst.write(place, frame.trail_at(), &frame.trail(stamp));
        }
    }

    #[inline]
    pub(super) fn read(packet: &Packet<'_>) -> Option<Stamp> {
        Stamp::read(&trail_of(packet)?)
    }

    /// Whether this is how frame `index` begins and ends, and how long it is.
    #[inline]
    pub(super) fn is_like(
        &self,
        index: usize,
        stamp: &Stamp,
        packet: &Packet<'_>,
        checks: Checks,
    ) -> bool {
        let frame = &self.0[index];
        let from = if checks.skips_macs { MACS_END } else { 0 };
        let end = frame.trail_at().min(HEAD_BYTES);
        packet.len() == frame.bytes.len()
            && packet.head()[from..end] == frame.bytes[from..end]
            && trail_of(packet) == Some(frame.trail(*stamp))
    }

    /// Whether what lies between the head and the stamp of frame `index` is as it was sent.
    pub(super) fn is_filled(&self, index: usize, packet: &[u8]) -> bool {
        let frame = &self.0[index];
        let between = HEAD_BYTES..frame.trail_at();
        packet.get(between.clone()) == frame.bytes.get(between)
    }
}
