//! Which packets are traced: a few words, all of which must hold.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use millrace_wire::pcap::Direction;

use crate::pcap::Link;

/// Which of two ends is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
    Either,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Term {
    Direction(Direction),
    EtherType(u16),
    Vlan(u16),
    Protocol(u8),
    /// An address, of which so many bits count.
    Address(Side, IpAddr, u8),
    Port(Side, u16),
}

/// Which packets are traced.
///
/// As text, terms one behind the other, with `and` between them where that reads better:
///
/// | term | packets |
/// |---|---|
/// | `in`, `out` | that the port received, or transmitted |
/// | `ethertype N` | whose EtherType, behind all tags, is `N`, such as `0x0806` |
/// | `vlan N` | with this tag |
/// | `proto N`, `tcp`, `udp`, `icmp`, `icmp6` | with this protocol in IPv4 or IPv6 |
/// | `host A`, `src A`, `dst A` | from or to this address, or network, as `10.0.0.0/8` |
/// | `port N`, `sport N`, `dport N` | from or to this port of TCP, UDP or SCTP |
///
/// Without terms it is every packet. Headers are looked at as far as a packet's private first bytes go.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    terms: Vec<Term>,
    text: String,
}

/// Why a text is no filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterError {
    /// No term begins so.
    Unknown(String),
    /// Something must follow this word.
    Missing(String),
    /// What follows the word cannot be.
    Value(String, String),
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilterError::Unknown(word) => write!(f, "{word:?} is no term of a filter"),
            FilterError::Missing(word) => write!(f, "something must follow {word:?}"),
            FilterError::Value(word, value) => write!(f, "{value:?} cannot follow {word:?}"),
        }
    }
}

impl std::error::Error for FilterError {}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A number, also as `0x…`.
fn number(text: &str) -> Option<u16> {
    match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/').unzip();
    let address: IpAddr = address.unwrap_or(text).parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
    (bits <= most).then_some((address, bits))
}

fn simple(word: &str) -> Option<Term> {
    Some(match word {
        "in" => Term::Direction(Direction::In),
        "out" => Term::Direction(Direction::Out),
        "tcp" => Term::Protocol(6),
        "udp" => Term::Protocol(17),
        "icmp" => Term::Protocol(1),
        "icmp6" => Term::Protocol(58),
        _ => return None,
    })
}

/// The term of a word and what follows it. None: it cannot follow.
fn valued(word: &str, value: &str) -> Result<Option<Term>, FilterError> {
    let address = |side| network(value).map(|(address, bits)| Term::Address(side, address, bits));
    let port = |side| number(value).map(|port| Term::Port(side, port));
    Ok(match word {
        "ethertype" => number(value).map(Term::EtherType),
        "vlan" => number(value).filter(|tag| *tag < 4096).map(Term::Vlan),
        "proto" => value.parse().ok().map(Term::Protocol),
        "host" => address(Side::Either),
        "src" => address(Side::Source),
        "dst" => address(Side::Destination),
        "port" => port(Side::Either),
        "sport" => port(Side::Source),
        "dport" => port(Side::Destination),
        _ => return Err(FilterError::Unknown(word.to_owned())),
    })
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        let mut terms = Vec::new();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            if word == "and" {
                continue;
            }
            if let Some(term) = simple(word) {
                terms.push(term);
                continue;
            }
            // An unknown word is worse than a missing one.
            valued(word, "")?;
            let Some(value) = words.next() else {
                return Err(FilterError::Missing(word.to_owned()));
            };
            let wrong = || FilterError::Value(word.to_owned(), value.to_owned());
            terms.push(valued(word, value)?.ok_or_else(wrong)?);
        }
        Ok(Filter {
            terms,
            text: text.to_owned(),
        })
    }
}

/// What a filter asks about a packet.
#[derive(Debug, Default, PartialEq, Eq)]
struct Headers {
    ether_type: u16,
    tags: [Option<u16>; 2],
    protocol: Option<u8>,
    addresses: Option<(IpAddr, IpAddr)>,
    ports: Option<(u16, u16)>,
}

const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Headers of IPv6 that may come before others, and are as long as they say.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
const FRAGMENT: u8 = 44;
/// TCP, UDP, SCTP: they begin with two ports.
const WITH_PORTS: [u8; 3] = [6, 17, 132];

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

impl Headers {
    /// As much of them as is there.
    fn parse(bytes: &[u8], link: Link) -> Headers {
        let mut headers = Headers::default();
        let rest = match link {
            Link::Ethernet => headers.ethernet(bytes),
            Link::Ip => headers.version(bytes),
        };
        if let Some(rest) = rest {
            headers.internet(rest);
        }
        headers
    }

    fn ethernet<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let mut at = 12;
        self.ether_type = half(bytes, at)?;
        for tag in 0..2 {
            if !matches!(self.ether_type, VLAN | SERVICE_VLAN) {
                break;
            }
            self.tags[tag] = Some(half(bytes, at + 2)? & 0xfff);
            at += 4;
            self.ether_type = half(bytes, at)?;
        }
        bytes.get(at + 2..)
    }

    fn version<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        self.ether_type = match bytes.first()? >> 4 {
            4 => IPV4,
            6 => IPV6,
            _ => return None,
        };
        Some(bytes)
    }

    fn internet(&mut self, bytes: &[u8]) -> Option<()> {
        match self.ether_type {
            IPV4 => {
                let header = bytes.first_chunk::<20>()?;
                self.protocol = Some(header[9]);
                let address = |at: usize| {
                    Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3])
                };
                self.addresses = Some((address(12).into(), address(16).into()));
                // Only the first fragment has them.
                if half(bytes, 6)? & 0x1fff == 0 {
                    self.transport(bytes.get(usize::from(header[0] & 15) * 4..)?);
                }
            }
            IPV6 => {
                let header = bytes.first_chunk::<40>()?;
                let address = |at: usize| {
                    let mut address = [0; 16];
                    address.copy_from_slice(&header[at..at + 16]);
                    Ipv6Addr::from(address)
                };
                self.addresses = Some((address(8).into(), address(24).into()));
                self.extensions(header[6], &bytes[40..]);
            }
            _ => {}
        }
        Some(())
    }

    fn extensions(&mut self, mut next: u8, mut rest: &[u8]) {
        self.protocol = Some(next);
        for _ in 0..4 {
            let length = match (next, rest) {
                (FRAGMENT, [_, _, a, b, ..]) if [*a, b & 0xf8] == [0, 0] => 8,
                (FRAGMENT, [after, ..]) => {
                    self.protocol = Some(*after);
                    return;
                }
                (_, [_, words, ..]) if EXTENSIONS.contains(&next) => 8 + usize::from(*words) * 8,
                _ => break,
            };
            next = rest[0];
            self.protocol = Some(next);
            rest = rest.get(length..).unwrap_or_default();
        }
        self.transport(rest);
    }

    fn transport(&mut self, bytes: &[u8]) {
        if self
            .protocol
            .is_some_and(|protocol| WITH_PORTS.contains(&protocol))
        {
            self.ports = half(bytes, 0).zip(half(bytes, 2));
        }
    }
}

fn is_inside(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let shift = |most: u8| u32::from(most - bits);
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let differ = address.to_bits() ^ network.to_bits();
            differ.checked_shr(shift(32)).unwrap_or(0) == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let differ = address.to_bits() ^ network.to_bits();
            differ.checked_shr(shift(128)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

impl Side {
    fn any<T: Copy>(self, ends: Option<(T, T)>, is: impl Fn(T) -> bool) -> bool {
        ends.is_some_and(|(source, destination)| match self {
            Side::Source => is(source),
            Side::Destination => is(destination),
            Side::Either => is(source) || is(destination),
        })
    }
}

impl Filter {
    /// Whether a packet that begins with these bytes is among them.
    #[must_use]
    pub fn matches(&self, head: &[u8], link: Link, direction: Direction) -> bool {
        let is_direction = |term: &Term| matches!(term, Term::Direction(_));
        if self.terms.iter().all(is_direction) {
            return self
                .terms
                .iter()
                .all(|term| *term == Term::Direction(direction));
        }
        let headers = Headers::parse(head, link);
        self.terms.iter().all(|term| match *term {
            Term::Direction(wanted) => wanted == direction,
            Term::EtherType(wanted) => wanted == headers.ether_type,
            Term::Vlan(wanted) => headers.tags.contains(&Some(wanted)),
            Term::Protocol(wanted) => headers.protocol == Some(wanted),
            Term::Address(side, network, bits) => side.any(headers.addresses, |address| {
                is_inside(address, network, bits)
            }),
            Term::Port(side, wanted) => side.any(headers.ports, |port| port == wanted),
        })
    }
}

#[cfg(test)]
mod tests;
