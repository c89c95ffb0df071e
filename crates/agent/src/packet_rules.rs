//! What the kernel does with a connection's packets, and cannot do with bytes that take a ring: helpers of connection tracking, which read
//! what a protocol says (FTP's ports) and let its other connections through, and queueing disciplines that shape, delay or drop.
//!
//! Connections under them are not introduced, where they can be seen:
//!
//! | what | where it is seen |
//! |---|---|
//! | a helper | in the connection tracking of the agent's network namespace (CAP_NET_ADMIN) |
//! | a discipline of the loopback interface | in the agent's network namespace |
//! | one of the interface by which an end sends, and of that one's other half, where it is a veth | by the BPF iterator, everywhere |
//!
//! It is looked at when a connection is introduced. What matches the bytes of packets (`string`, `bpf`, raw payload expressions), what an
//! XDP or BPF program does, and rules in other places are not seen.

use std::cell::Cell;
use std::time::{Duration, Instant};

use millrace_wire::Address;
use nix::libc;
use nix::sys::socket::SockProtocol;
use tracing::debug;

use crate::netlink::{Netlink, attribute, find_attribute, nested};

/// Interfaces are asked for no more often than that: who looks at one keeps others from changing any.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

// `linux/netfilter/nfnetlink_conntrack.h`.
const CONNTRACK_GET: u16 = 1 << 8 | 1;
const CONNTRACK_NEW: u16 = 1 << 8;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const TARGET_PORT: u16 = 3;
const HELPER: u16 = 5;
/// `struct nfgenmsg`.
const FAMILY_HEADER_BYTES: usize = 4;

// `linux/if_link.h`.
const LINK_NEW: u16 = 16;
const LINK_GET: u16 = 18;
const LINK_DISCIPLINE: u16 = 6;
/// `struct ifinfomsg`, and in it the interface's number: that of the loopback interface is 1 in every namespace.
const LINK_HEADER_BYTES: usize = 16;
const LINK_INDEX: usize = 4;
const LOOPBACK: i32 = 1;

/// Disciplines that send whatever there is as soon as there is room: they change the order of flows, and not what becomes of them.
const DIRECT: [&[u8]; 13] = [
    b"noqueue",
    b"noop",
    b"pfifo_fast",
    b"pfifo",
    b"bfifo",
    b"mq",
    b"fq",
    b"fq_codel",
    b"codel",
    b"fq_pie",
    b"pie",
    b"sfq",
    // A place for filters.
    b"clsact",
];

/// Whether a queueing discipline of that name (`struct Qdisc_ops`, filled up with zeros; empty where there is none) may hold packets back
/// or drop them when there is room.
pub(crate) fn shapes(name: &[u8]) -> bool {
    let length = name.iter().position(|byte| *byte == 0);
    let name = &name[..length.unwrap_or(name.len())];
    !name.is_empty() && !DIRECT.contains(&name)
}

/// Asks the kernel. What a kernel does not have, it does not do with packets.
#[derive(Debug, Default)]
pub(crate) struct PacketRules {
    tracking: Option<Netlink>,
    links: Option<Netlink>,
    /// When it was looked at last, and what was seen.
    loopback: Cell<Option<(Instant, bool)>>,
}

impl PacketRules {
    pub(crate) fn new() -> PacketRules {
        PacketRules {
            tracking: Netlink::open(SockProtocol::NetlinkNetFilter).ok(),
            links: Netlink::open(SockProtocol::NetlinkRoute).ok(),
            loopback: Cell::new(None),
        }
    }

    /// Whether connections between two sockets of the agent's network namespace are shaped.
    pub(crate) fn shapes_loopback(&self, now: Instant) -> bool {
        let known = self.loopback.get();
        if let Some((_, shaped)) = known.filter(|(at, _)| now < *at + LOOK_AGAIN) {
            return shaped;
        }
        let shaped = self
            .discipline_of_loopback()
            .is_some_and(|name| shapes(&name));
        self.loopback.set(Some((now, shaped)));
        shaped
    }

    fn discipline_of_loopback(&self) -> Option<Vec<u8>> {
        let mut question = [0; LINK_HEADER_BYTES];
        question[LINK_INDEX..LINK_INDEX + 4].copy_from_slice(&LOOPBACK.to_ne_bytes());
        let answer = self.links.as_ref()?.ask(LINK_GET, LINK_NEW, &question);
        let answer =
            answer.inspect_err(|error| debug!("the loopback interface is not seen: {error}"));
        let answer = answer.ok()?;
        find_attribute(answer.get(LINK_HEADER_BYTES..)?, LINK_DISCIPLINE).map(<[u8]>::to_vec)
    }

    /// Whether connection tracking has a helper for what was connected from one address to the other.
    pub(crate) fn has_helper(&self, from: &Address, to: &Address) -> bool {
        let question = conntrack_question(from, to);
        let Some(tracking) = &self.tracking else {
            return false;
        };
        match tracking.ask(CONNTRACK_GET, CONNTRACK_NEW, &question) {
            Ok(answer) => {
                let attributes = answer.get(FAMILY_HEADER_BYTES..).unwrap_or_default();
                find_attribute(attributes, HELPER).is_some()
            }
            // ENOENT: it is not tracked. EINVAL: nothing is, here.
            Err(error) => {
                let is_known = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL));
                if !is_known {
                    debug!("connection tracking does not answer: {error}");
                }
                false
            }
        }
    }
}

fn conntrack_question(from: &Address, to: &Address) -> Vec<u8> {
    let is_v4 = from.is_v4() && to.is_v4();
    // Source and target of IPv4 are the attributes 1 and 2, those of IPv6 3 and 4.
    let (family, first_kind, skipped) = if is_v4 {
        (libc::AF_INET, 1, 12)
    } else {
        (libc::AF_INET6, 3, 0)
    };
    let addresses = [
        attribute(first_kind, &from.ip[skipped..]),
        attribute(first_kind + 1, &to.ip[skipped..]),
    ];
    let protocol = [
        attribute(PROTOCOL_NUMBER, &[libc::IPPROTO_TCP as u8]),
        attribute(SOURCE_PORT, &from.port.to_be_bytes()),
        attribute(TARGET_PORT, &to.port.to_be_bytes()),
    ];
    let tuple = [
        nested(TUPLE_IP, &addresses),
        nested(TUPLE_PROTOCOL, &protocol),
    ];
    [vec![family as u8, 0, 0, 0], nested(TUPLE_ORIGINAL, &tuple)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_disciplines_that_are_known_to_pass_everything_on_count_as_none() {
        for name in ["", "noqueue", "mq\0\0\0\0", "fq_codel\0\0"] {
            assert!(!shapes(name.as_bytes()), "{name}");
        }
        for name in [
            "tbf",
            "htb\0\0",
            "netem",
            "fq_co",
            "ingress",
            "something new",
        ] {
            assert!(shapes(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_kernel_names_the_loopback_interface_s_discipline_and_tracks_no_connection_that_is_not() {
        let rules = PacketRules::new();
        let name = rules.discipline_of_loopback().unwrap();
        assert_eq!(rules.shapes_loopback(Instant::now()), shapes(&name));
        let ends = [1, 2].map(|port| Address {
            ip: std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets(),
            port,
        });
        assert!(!rules.has_helper(&ends[0], &ends[1]));
    }
}
