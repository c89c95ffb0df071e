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

use nix::sys::socket::SockProtocol;
use tracing::debug;

use crate::netlink::{Netlink, find_attribute};
use crate::tracking::Tracking;

/// Interfaces are asked for no more often than that: who looks at one keeps others from changing any.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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
    /// Of connections.
    pub(crate) tracking: Tracking,
    links: Option<Netlink>,
    /// When it was looked at last, and what was seen.
    loopback: Cell<Option<(Instant, bool)>>,
}

impl PacketRules {
    pub(crate) fn new() -> PacketRules {
        PacketRules {
            tracking: Tracking::new(),
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
    fn the_kernel_names_the_loopback_interface_s_discipline() {
        let rules = PacketRules::new();
        let name = rules.discipline_of_loopback().unwrap();
        assert_eq!(rules.shapes_loopback(Instant::now()), shapes(&name));
    }
}
