//! What is sent: UDP over IPv4 in Ethernet, in many flows and of given lengths, or what `gtpu` and `capture` have.
//!
//! Addresses are of the range that is kept for such tests (198.18.0.0/15, RFC 2544, appendix C.2.2): a flow has a source address and port
//! of its own. UDP has no checksum (RFC 768 allows that in IPv4), since each packet has other bytes.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use millrace_port::{Burst, HEAD_BYTES, Packet};

use super::capture::{Capture, Frames};
use super::checksum::{complement, sum_of};
use super::gtpu::{Gtpu, Users};
use super::sink::Checks;
use super::stamp::{STAMP_BYTES, Stamp};

/// Ethernet, IPv4, UDP.
const HEADER_BYTES: usize = 14 + 20 + 8;
/// The shortest packet that has room for a stamp.
const SHORTEST: usize = HEADER_BYTES + STAMP_BYTES;
/// The longest: a jumbo frame.
pub(super) const LONGEST: usize = 9018;
/// Packets that are sent and received together, at most.
pub(super) const BURST_MAX: usize = 32;
/// More than this is more memory than a generator should need.
const FLOWS_MAX: usize = 65_536;
/// Where MAC addresses end.
pub(super) const MACS_END: usize = 12;
const PORT_FIRST: u16 = 49_152;
const PORT_COUNT: usize = 16_384;
/// The port of the service `discard`.
const PORT_DISCARD: u16 = 9;

/// Lengths of packets in bytes, from the first of Ethernet's header on, without the frame check sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// All of one length.
    Fixed(usize),
    /// Seven of 64, four of 570, one of 1518 bytes: the "simple IMIX" of RFC 6985, section 4.
    Imix,
    /// Seven of 86, four of 592, one of 1522 bytes: frames with users' packets in tunnels.
    Mix,
}

impl Sizes {
    /// Of one packet after the other, again and again.
    pub(super) fn cycle(&self) -> Vec<usize> {
        match self {
            Sizes::Fixed(bytes) => vec![*bytes],
            // The short ones between the others, as they would be in traffic.
            Sizes::Imix => vec![64, 570, 64, 64, 570, 64, 1518, 64, 570, 64, 570, 64],
            Sizes::Mix => vec![86, 592, 86, 86, 592, 86, 1522, 86, 592, 86, 592, 86],
        }
    }

    /// Of a packet, on the average.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let cycle = self.cycle();
        cycle.iter().sum::<usize>() as f64 / cycle.len() as f64
    }
}

impl FromStr for Sizes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Sizes> {
        if text.eq_ignore_ascii_case("imix") {
            return Ok(Sizes::Imix);
        }
        if text.eq_ignore_ascii_case("mix") {
            return Ok(Sizes::Mix);
        }
        match text.parse() {
            Ok(bytes) if (SHORTEST..=LONGEST).contains(&bytes) => Ok(Sizes::Fixed(bytes)),
            _ => bail!(
                "{text:?} is no length: a packet has {SHORTEST} to {LONGEST} bytes, or the lengths are imix or mix"
            ),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sizes::Fixed(bytes) => write!(f, "{bytes}"),
            Sizes::Imix => write!(f, "imix"),
            Sizes::Mix => write!(f, "mix"),
        }
    }
}

/// What is to be sent.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// Lengths.
    pub sizes: Sizes,
    /// How many flows there are.
    pub flows: usize,
    /// Where they come from, and where they go to.
    pub macs: [[u8; 6]; 2],
    /// What they are.
    pub content: Content,
}

/// What packets are.
#[derive(Clone, Debug)]
pub enum Content {
    /// UDP in IPv4.
    Udp,
    /// Users' packets, of flows of their own; lengths are those of frames in a tunnel.
    Gtpu(Gtpu),
    /// Frames of a capture, with lengths, flows and addresses of their own.
    Capture(Capture),
}

/// Packets that were made before the run; to send them, their stamps are written.
pub(super) struct Made {
    /// Packets in each.
    together: usize,
    bursts: Vec<Burst>,
    flows: usize,
    kind: Kind,
    /// The flow of the first packet, of users' packets.
    first_flow: u64,
    /// Packets are due so far apart, if they are.
    interval_ns: f64,
    /// What packets are filled with: bytes that show where they are.
    filling: Vec<u8>,
}

/// What tells one of them from another.
enum Kind {
    Udp(Known),
    Users(Users),
    /// These are put into the burst when they are sent.
    Frames(Frames),
}

/// How packets of UDP come.
struct Known {
    /// Of each its first bytes.
    heads: Vec<[u8; HEAD_BYTES]>,
    lengths: Vec<usize>,
}

impl Pattern {
    /// The same packets, which come as they were sent.
    pub(super) fn unprocessed(&self) -> Pattern {
        let content = match &self.content {
            Content::Gtpu(gtpu) => Content::Gtpu(gtpu.unprocessed()),
            Content::Udp | Content::Capture(_) => self.content.clone(),
        };
        Pattern {
            content,
            ..self.clone()
        }
    }

    /// How many flows there are.
    pub(super) fn flows(&self) -> usize {
        match &self.content {
            Content::Udp => self.flows,
            Content::Gtpu(gtpu) => gtpu.flows(),
            Content::Capture(capture) => capture.flows(),
        }
    }

    /// Lengths, for a person.
    pub(super) fn lengths(&self) -> String {
        match &self.content {
            Content::Udp | Content::Gtpu(_) => self.sizes.to_string(),
            Content::Capture(capture) => capture.lengths(),
        }
    }

    /// What a reader should know of the packets.
    pub(super) fn note(&self) -> Option<String> {
        match &self.content {
            Content::Udp | Content::Gtpu(_) => None,
            Content::Capture(capture) => capture.note(),
        }
    }

    /// Makes all packets, enough that each flow and each length has its turn, in bursts of `together` of them: a power of two, at most
    /// [`BURST_MAX`].
    pub(super) fn make(&self, together: usize) -> Result<Made> {
        let (kind, bursts) = match &self.content {
            Content::Udp => {
                let (known, bursts) = self.make_udp(together)?;
                (Kind::Udp(known), bursts)
            }
            Content::Gtpu(gtpu) => {
                let (users, bursts) = gtpu.make(self, together)?;
                (Kind::Users(users), bursts)
            }
            Content::Capture(capture) => {
                (Kind::Frames(capture.frames()), vec![Burst::new(together)])
            }
        };
        let filling = (0..LONGEST + usize::from(u8::MAX)).map(|place| place as u8);
        Ok(Made {
            together,
            bursts,
            flows: self.flows(),
            kind,
            first_flow: 0,
            interval_ns: 0.0,
            filling: filling.collect(),
        })
    }

    fn make_udp(&self, together: usize) -> Result<(Known, Vec<Burst>)> {
        ensure!(
            (1..=FLOWS_MAX).contains(&self.flows),
            "there are 1 to {FLOWS_MAX} flows, not {}",
            self.flows
        );
        let cycle = self.sizes.cycle();
        // Whole bursts, and whole cycles.
        let step = BURST_MAX * if cycle.len() == 1 { 1 } else { 3 };
        let count = self.flows.next_multiple_of(step);
        let mut known = Known {
            heads: Vec::with_capacity(count),
            lengths: Vec::with_capacity(count),
        };
        let mut bursts: Vec<Burst> = Vec::new();
        for index in 0..count {
            let bytes = cycle[index % cycle.len()];
            let packet = self.packet(index % self.flows, bytes);
            let mut head = [0; HEAD_BYTES];
            let kept = bytes.min(HEAD_BYTES);
            head[..kept].copy_from_slice(&packet[..kept]);
            known.heads.push(head);
            known.lengths.push(bytes);
            if index % together == 0 {
                bursts.push(Burst::new(together));
            }
            let last = bursts.last_mut();
            ensure!(
                last.is_some_and(|burst| burst.push(&packet)),
                "a packet does not fit"
            );
        }
        Ok((known, bursts))
    }

    /// A packet from where the others go to.
    pub(super) fn answer(&self) -> Vec<u8> {
        let [from, to] = self.macs;
        let back = Pattern {
            macs: [to, from],
            ..self.clone()
        };
        back.packet(0, SHORTEST)
    }

    pub(super) fn packet(&self, flow: usize, bytes: usize) -> Vec<u8> {
        let mut packet = Vec::with_capacity(bytes);
        let [from, to] = self.macs;
        packet.extend(to);
        packet.extend(from);
        packet.extend([0x08, 0x00]);
        packet.extend(ipv4(flow, bytes - 14));
        let port = PORT_FIRST + (flow % PORT_COUNT) as u16;
        for word in [port, PORT_DISCARD, (bytes - 14 - 20) as u16, 0] {
            packet.extend(word.to_be_bytes());
        }
        // Bytes that show where they are.
        packet.extend((packet.len()..bytes).map(|place| place as u8));
        packet
    }
}

/// A header, with its checksum (RFC 791, section 3.1).
fn ipv4(flow: usize, bytes: usize) -> [u8; 20] {
    let [high, low] = (bytes as u16).to_be_bytes();
    let [.., third, fourth] = (flow as u32).to_be_bytes();
    let mut header = [
        0x45, 0, high, low, 0, 0, 0x40, 0, 64, 17, 0, 0, 198, 18, third, fourth, 198, 19, 0, 1,
    ];
    let sum = complement(sum_of(&header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

impl Made {
    /// How many packets there are; packet `number` of a run is the one of that number modulo this.
    pub(super) fn len(&self) -> usize {
        match &self.kind {
            Kind::Udp(_) | Kind::Users(_) => self.bursts.len() * self.together,
            Kind::Frames(frames) => frames.len(),
        }
    }

    /// How many flows.
    pub(super) fn flows(&self) -> usize {
        self.flows
    }

    /// The flow that packet `index` is of, when it has this number.
    #[inline]
    pub(super) fn flow(&self, index: usize, number: u64) -> usize {
        match &self.kind {
            Kind::Udp(_) => index % self.flows,
            Kind::Users(_) => ((self.first_flow + number) % self.flows as u64) as usize,
            Kind::Frames(frames) => frames.flow(index),
        }
    }

    /// The first packet is of this flow, as far as the others do not depend on it; and packets are due so far apart, if they are.
    pub(super) fn begin(&mut self, first_flow: u64, interval_ns: Option<f64>) {
        self.first_flow = first_flow;
        self.interval_ns = interval_ns.unwrap_or_default();
    }

    /// As much of a run's number as packets have room for.
    pub(super) fn run(&self, run: u32) -> u32 {
        match self.kind {
            Kind::Udp(_) | Kind::Frames(_) => run,
            Kind::Users(_) => Users::run(run),
        }
    }

    /// How many packets a burst has.
    pub(super) fn together(&self) -> usize {
        self.together
    }

    /// The burst that has packet `number`, with the stamps of all from that on, and which of its packets that is.
    #[inline]
    pub(super) fn burst(
        &mut self,
        number: u64,
        run: u32,
        time_ns: impl Fn(u64) -> u64,
    ) -> (&Burst, usize) {
        let first = (number % self.together as u64) as usize;
        let index = (number / self.together as u64) as usize % self.bursts.len();
        let burst = &mut self.bursts[index];
        let stamp = |number| Stamp {
            run,
            number,
            time_ns: time_ns(number),
        };
        match &self.kind {
            Kind::Udp(_) => {
                for (number, place) in (number..).zip(first..self.together) {
                    stamp(number).write(&mut burst.head_mut(place)[STAMP_AT..]);
                }
            }
            Kind::Users(users) => {
                let mut flow = ((self.first_flow + number) % self.flows as u64) as usize;
                for (number, place) in (number..).zip(first..self.together) {
                    let packet = index * self.together + place;
                    users.write(packet, flow, run, number, burst.head_mut(place));
                    flow = if flow + 1 == self.flows { 0 } else { flow + 1 };
                }
            }
            Kind::Frames(frames) => {
                frames.fill(burst, (number..).take(self.together).map(stamp));
                return (burst, 0);
            }
        }
        (burst, first)
    }

    /// Reads which packet this is, of `sent`. None: it is none of these.
    #[inline]
    pub(super) fn stamp(&self, packet: &Packet<'_>, sent: u64) -> Option<Stamp> {
        match &self.kind {
            Kind::Udp(_) => packet.head().get(STAMP_AT..).and_then(Stamp::read),
            Kind::Users(users) => {
                let mut stamp = users.read(packet.head(), sent)?;
                stamp.time_ns = (stamp.number as f64 * self.interval_ns) as u64;
                Some(stamp)
            }
            Kind::Frames(_) => Frames::read(packet),
        }
    }

    /// Whether this is how packet `index` of a flow begins, and how long it is. MAC addresses that whoever forwards may write are left out.
    #[inline]
    pub(super) fn is_like(
        &self,
        (index, flow): (usize, usize),
        stamp: &Stamp,
        packet: &Packet<'_>,
        checks: Checks,
    ) -> bool {
        let (head, bytes) = (packet.head(), packet.len());
        match &self.kind {
            Kind::Udp(known) => known.is_like(index, head, bytes, checks),
            Kind::Users(users) => users.is_like((index, flow), stamp, head, bytes, checks),
            Kind::Frames(frames) => frames.is_like(index, stamp, packet, checks),
        }
    }

    /// Whether what is behind the head of packet `index` is as it was sent.
    pub(super) fn is_filled(&self, index: usize, packet: &[u8]) -> bool {
        let Some(rest) = packet.get(HEAD_BYTES..) else {
            return true;
        };
        let from = match &self.kind {
            Kind::Udp(_) => HEAD_BYTES,
            Kind::Users(users) => HEAD_BYTES - users.filled_from(),
            Kind::Frames(frames) => return frames.is_filled(index, packet),
        };
        *rest == self.filling[from..from + rest.len()]
    }

    /// Whether somebody asks for a station, which is here.
    pub(super) fn is_question(&self, head: &[u8]) -> bool {
        match &self.kind {
            Kind::Users(users) => users.is_question(head),
            Kind::Udp(_) | Kind::Frames(_) => false,
        }
    }
}

impl Known {
    #[inline]
    fn is_like(&self, index: usize, head: &[u8], bytes: usize, checks: Checks) -> bool {
        let from = if checks.skips_macs { MACS_END } else { 0 };
        let known = &self.heads[index];
        let end = bytes.min(HEAD_BYTES);
        if self.lengths[index] != bytes || head.len() != end {
            return false;
        }
        let begins = match checks.is_turned {
            true => is_turned(head, known),
            false => head[from..STAMP_AT] == known[from..STAMP_AT],
        };
        begins && head[STAMP_AT + STAMP_BYTES..] == known[STAMP_AT + STAMP_BYTES..end]
    }
}

/// Whether these are headers of the answer to what has the others. Whoever answers has a number, a life and checksums of his own for it.
fn is_turned(head: &[u8], known: &[u8]) -> bool {
    let same = |there: usize, here: usize, bytes: usize| {
        head[there..there + bytes] == known[here..here + bytes]
    };
    let is_ipv4 = same(12, 12, 4) && head[23] == known[23];
    let addresses = same(26, 30, 4) && same(30, 26, 4);
    let ports = same(34, 36, 2) && same(36, 34, 2) && same(38, 38, 2);
    same(0, 6, 6) && same(6, 0, 6) && is_ipv4 && addresses && ports
}

/// Where a stamp is.
pub(super) const STAMP_AT: usize = HEADER_BYTES;
