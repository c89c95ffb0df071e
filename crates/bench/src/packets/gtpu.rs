//! Users' packets of a 5G user plane: what a packet processing function is sent, and what has to come of it.
//!
//! A frame in a tunnel is
//!
//! ```text
//!   0        14     18      38    46      54      74    82
//!   Ethernet | VLAN | IPv4 | UDP | GTP-U | IPv4 | UDP | number | filling
//! ```
//!
//! and in one without a tunnel what begins at 54 here begins at 18. The user's packet goes through unchanged, from its first byte to its
//! last. Its payload has four bytes where frames have 86: so much of a packet's number is there, its run is the identification of its own
//! header, and when it was due follows from its number.
//!
//! Frames are not made for each bearer, of which there may be millions: those of a burst are sent again and again, and what is of the
//! bearer is written into them. Bearers take turns in an order that no cache expects.

use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use millrace_port::Burst;

use super::checksum::{complement, sum_of};
use super::pattern::{BURST_MAX, Pattern};
use crate::stats::generator::Generator;

#[cfg(test)]
mod tests;
mod users;

pub(super) use users::Users;
use users::{Known, Layout};

/// The function's addresses, and those of the stations beyond its ports, at which tunnels have their far ends and servers are. All are of
/// the range for such tests (RFC 2544, appendix C.2.2).
const RADIO: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const RADIO_FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 9);
const CORE: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const CORE_FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 9);
/// Users are here, one for each bearer.
const USERS: u32 = 0x0a00_0001;
/// As many as a function can have.
const BEARERS_MAX: usize = 1 << 22;
/// Flows of one bearer differ in their port.
const FLOWS_OF_BEARER_MAX: usize = 16_384;
const PORT_FIRST: u16 = 49_152;
const PORT_DISCARD: u16 = 9;
const PORT_GTPU: u16 = 2152;
const VLAN: u16 = 100;

/// Where the first header of the Internet's begins, and where the user's does in a tunnel.
const OUTER_AT: usize = 18;
const IN_TUNNEL_AT: usize = OUTER_AT + 20 + 8 + 8;
const TEID_AT: usize = IN_TUNNEL_AT - 4;
const TUNNEL_BYTES: usize = IN_TUNNEL_AT - OUTER_AT;
/// Of a user's packet: its headers and its number, and where what is written of each is.
const USER_BYTES: usize = 20 + 8 + 4;
const RUN_AT: usize = 4;
const SUM_AT: usize = 10;
const SOURCE_AT: usize = 12;
const DESTINATION_AT: usize = 16;
const PORT_AT: usize = 20;
const NUMBER_AT: usize = 28;
/// The shortest frame in a tunnel.
pub(super) const SHORTEST: usize = IN_TUNNEL_AT + USER_BYTES;
/// Before what is of Ethernet's own protocols.
const TYPE_AT: usize = 16;
const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
/// Of a question of ARP: behind it there is nothing.
const QUESTION_BYTES: usize = OUTER_AT + 28;
const ETHERNET_QUESTION: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
const ETHERNET_ANSWER: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 2];

/// What a function does with users' packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From a tunnel of the radio network to one of the core network.
    Relay,
    /// From a tunnel of the radio network to a data network.
    Decapsulate,
    /// From a data network to a tunnel of the radio network.
    Encapsulate,
}

impl FromStr for Way {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Way> {
        Ok(match text {
            "relay" => Way::Relay,
            "decapsulate" => Way::Decapsulate,
            "encapsulate" => Way::Encapsulate,
            _ => bail!("{text:?} is none of relay, decapsulate and encapsulate"),
        })
    }
}

impl Way {
    /// Bearer `place` of those that are numbered from zero, as a function is asked for it: an object of JSON.
    #[must_use]
    pub fn bearer(self, place: u32) -> String {
        let tunnel = |far: Ipv4Addr| format!(r#"{{"address":"{far}","teid":{}}}"#, far_teid(place));
        let core = match self {
            Way::Relay => tunnel(CORE_FAR),
            Way::Decapsulate | Way::Encapsulate => format!(r#"{{"user":"{}"}}"#, user(place)),
        };
        format!(r#"{{"core":{core},"radio":{}}}"#, tunnel(RADIO_FAR))
    }

    fn goes_up(self) -> bool {
        self != Way::Encapsulate
    }

    /// Whether there is a tunnel before the function, and behind it.
    fn tunnels(self) -> [bool; 2] {
        [self != Way::Encapsulate, self != Way::Decapsulate]
    }
}

/// By what number a far end knows a bearer's tunnel.
fn far_teid(place: u32) -> u32 {
    place + 1
}

/// A bearer's user.
fn user(place: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(USERS + place)
}

/// What is of a flow, as it is written.
#[derive(Clone, Copy, Debug)]
struct Flow {
    teid: [u8; 4],
    far_teid: [u8; 4],
    user: [u8; 4],
    port: [u8; 2],
}

/// Users' packets, and whoever forwards them.
#[derive(Clone, Debug)]
pub struct Gtpu {
    way: Way,
    flows: Arc<[Flow]>,
    /// They come as they were sent: whoever forwards them is no function.
    is_kept: bool,
}

impl Gtpu {
    /// Packets for a function that was asked for bearers: by `teids` it knows the tunnels of the radio network.
    ///
    /// # Errors
    /// There are too many bearers or flows, or fewer flows than bearers.
    pub fn processed(way: Way, teids: &[u32], flows: usize) -> Result<Gtpu> {
        Gtpu::new(way, teids, flows, false)
    }

    /// The same frames, for somebody who brings them as they are.
    ///
    /// # Errors
    /// As [`Gtpu::processed`].
    pub fn kept(way: Way, bearers: usize, flows: usize) -> Result<Gtpu> {
        // A number of the function's own is any.
        let teids: Vec<u32> = (1..).take(bearers).collect();
        Gtpu::new(way, &teids, flows, true)
    }

    fn new(way: Way, teids: &[u32], flows: usize, is_kept: bool) -> Result<Gtpu> {
        let bearers = teids.len();
        ensure!(
            (1..=BEARERS_MAX).contains(&bearers),
            "there are 1 to {BEARERS_MAX} bearers, not {bearers}"
        );
        ensure!(
            (bearers..=bearers.saturating_mul(FLOWS_OF_BEARER_MAX)).contains(&flows)
                && flows <= BEARERS_MAX,
            "{flows} flows in {bearers} bearers: each has one at least and {FLOWS_OF_BEARER_MAX} at most, and all have {BEARERS_MAX}"
        );
        let order = shuffled(bearers);
        let flow = |number: usize| {
            let place = order[number % bearers];
            let port = PORT_FIRST + (number / bearers) as u16;
            Flow {
                teid: teids[place as usize].to_be_bytes(),
                far_teid: far_teid(place).to_be_bytes(),
                user: user(place).octets(),
                port: port.to_be_bytes(),
            }
        };
        Ok(Gtpu {
            way,
            flows: (0..flows).map(flow).collect(),
            is_kept,
        })
    }

    /// How many flows there are.
    #[must_use]
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// The same packets for somebody who brings them as they are.
    pub(super) fn unprocessed(&self) -> Gtpu {
        Gtpu {
            is_kept: true,
            ..self.clone()
        }
    }

    /// Frames that are sent again and again, in bursts of `together`.
    pub(super) fn make(&self, pattern: &Pattern, together: usize) -> Result<(Users, Vec<Burst>)> {
        let cycle = pattern.sizes.cycle();
        let shortest = cycle.iter().min().copied().unwrap_or_default();
        ensure!(
            shortest >= SHORTEST,
            "a frame in a tunnel has {SHORTEST} bytes at least, not {shortest}"
        );
        let count = BURST_MAX * if cycle.len() == 1 { 1 } else { 3 };
        let [sent_in_tunnel, came_in_tunnel] = match (self.way.tunnels(), self.is_kept) {
            ([sent, _], true) => [sent; 2],
            (both, false) => both,
        };
        let mut users = Users {
            gtpu: self.clone(),
            sent: Layout::of(sent_in_tunnel),
            came: Layout::of(came_in_tunnel),
            known: Vec::with_capacity(count),
        };
        let mut bursts: Vec<Burst> = Vec::new();
        let [from, to] = pattern.macs;
        for index in 0..count {
            let bytes = cycle[index % cycle.len()] - IN_TUNNEL_AT;
            let sent = self.frame([from, to], [RADIO_FAR, RADIO], sent_in_tunnel, bytes);
            let came = match (self.is_kept, self.way) {
                (true, _) => sent.clone(),
                (false, Way::Relay) => self.frame([to, from], [CORE, CORE_FAR], true, bytes),
                (false, Way::Decapsulate) => self.frame([to, from], [CORE, CORE_FAR], false, bytes),
                (false, Way::Encapsulate) => {
                    self.frame([to, from], [RADIO, RADIO_FAR], true, bytes)
                }
            };
            users.known.push(Known::of(&came, users.came));
            if index % together == 0 {
                bursts.push(Burst::new(together));
            }
            let last = bursts.last_mut();
            ensure!(
                last.is_some_and(|burst| burst.push(&sent)),
                "a frame does not fit"
            );
        }
        Ok((users, bursts))
    }

    /// A frame with a user's packet of so many bytes, and nothing of a flow.
    fn frame(
        &self,
        [from, to]: [[u8; 6]; 2],
        outer: [Ipv4Addr; 2],
        in_tunnel: bool,
        bytes: usize,
    ) -> Vec<u8> {
        let mut frame = [&to[..], &from, &[0x81, 0x00], &VLAN.to_be_bytes(), &IPV4].concat();
        let nobody = Ipv4Addr::UNSPECIFIED;
        let ends = match self.way.goes_up() {
            true => [nobody, CORE_FAR],
            false => [CORE_FAR, nobody],
        };
        let mut packet = ipv4(bytes, ends).to_vec();
        packet.extend(udp([0, PORT_DISCARD], bytes - 20));
        packet.resize(USER_BYTES, 0);
        // Bytes that show where they are.
        packet.extend((USER_BYTES..bytes).map(|place| place as u8));
        if in_tunnel {
            let mut header = ipv4(TUNNEL_BYTES + bytes, outer);
            let sum = complement(sum_of(&header));
            header[SUM_AT..SUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
            frame.extend(header);
            frame.extend(udp([PORT_GTPU; 2], 8 + 8 + bytes));
            // A G-PDU without anything that is optional (TS 29.281, 5.1).
            frame.extend([0x30, 0xff]);
            frame.extend((bytes as u16).to_be_bytes());
            frame.extend([0; 4]);
        }
        frame.extend(packet);
        frame
    }
}

/// Numbers below `count`, each once.
fn shuffled(count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..).take(count).collect();
    let mut chance = Generator::new(1);
    // Durstenfeld, "Algorithm 235: random permutation" (1964).
    for place in (1..count).rev() {
        order.swap(place, chance.below(place + 1));
    }
    order
}

/// A header without its checksum (RFC 791, section 3.1).
fn ipv4(bytes: usize, [from, to]: [Ipv4Addr; 2]) -> [u8; 20] {
    let mut header = [
        0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    header[2..4].copy_from_slice(&(bytes as u16).to_be_bytes());
    header[SOURCE_AT..DESTINATION_AT].copy_from_slice(&from.octets());
    header[DESTINATION_AT..].copy_from_slice(&to.octets());
    header
}

/// A header without a checksum, which IPv4 allows (RFC 768).
fn udp([from, to]: [u16; 2], bytes: usize) -> Vec<u8> {
    let words = [from, to, bytes as u16, 0].map(u16::to_be_bytes);
    words.concat()
}

/// The answer to a question of ARP (RFC 826), by the station `own`, which is everybody here.
pub(super) fn answer(question: &[u8], own: [u8; 6]) -> Vec<u8> {
    let (asker, address) = (&question[26..32], &question[32..36]);
    let about = &question[42..46];
    [
        &question[6..12],
        &own,
        &question[12..OUTER_AT],
        &ETHERNET_ANSWER,
        &own,
        about,
        asker,
        address,
    ]
    .concat()
}
